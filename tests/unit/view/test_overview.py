"""The overview of a run, recounted from the rows of its trace."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from purgatory.simulation import Simulation, parse_scenario
from purgatory.view.time_travel import TracedRun
from tests.unit.view.test_state import PAUSES


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    folder = tmp_path_factory.mktemp("run") / "trace"
    text = PAUSES.format(tick_ms=1, wheel_size=20)
    Simulation(parse_scenario(text, "pauses", Path()), trace_folder=folder).run()
    return TracedRun(folder)


def test_request_counts_in_the_buckets_of_its_start_and_failure(run: TracedRun) -> None:
    overview = run.overview
    width_us = overview["width_us"]
    started, failed = [0] * len(overview["started"]), [0] * len(overview["failed"])
    for row in pq.read_table(run.trace.folder / "operations").to_pylist():
        if row["outcome"] != "pending":
            started[row["start_us"] // width_us] += 1
        is_late_produce = (row["purgatory"], row["outcome"]) == ("Produce", "expired")
        if is_late_produce or row["outcome"] == "failed":
            failed[row["end_us"] // width_us] += 1
    assert overview["failed"] == failed and sum(failed) > 0
    # Those that are pending at the end have started too.
    assert all(have >= want for have, want in zip(overview["started"], started, strict=True))
    assert width_us * len(started) > run.end_us


def test_pending_is_the_most_that_waited_in_a_bucket(run: TracedRun) -> None:
    width_us, pending = run.overview["width_us"], run.overview["pending"]
    for bucket in range(0, len(pending), 7):
        for at_us in (bucket * width_us, bucket * width_us + width_us // 2):
            assert run.state(min(at_us, run.end_us))["pending"] <= pending[bucket]
    assert max(pending) > 10


def test_the_worst_moment_shows_a_request_that_is_about_to_fail(run: TracedRun) -> None:
    worst = run.overview["worst"]
    state = run.state(worst["at_us"])
    (operation,) = [one for one in state["operations"] if one[0] == worst["operation"]]
    assert operation[2] == "Produce"
    after = {one[0] for one in run.state(worst["at_us"] + 1)["operations"]}
    assert worst["operation"] not in after
    assert "Produce on events-" in worst["text"] and "expired after" in worst["text"]


def test_faults_have_their_begin_and_their_end(run: TracedRun) -> None:
    faults = run.overview["faults"]
    assert faults
    for fault in faults:
        assert 0 <= fault["from_us"] < (fault["until_us"] or run.end_us) <= run.end_us
