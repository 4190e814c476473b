"""The audit of the shipped scenarios: it agrees with the simulator's own books on each.

The books see the brokers' logs; the audit has only what clients sent and read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.cli.main import main
from purgatory.pipeline.auditing.results import write_audit
from purgatory.pipeline.traces.survey import find_traces
from purgatory.simulation.scenario_file import shipped_scenarios

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

SCENARIOS = tuple(sorted(shipped_scenarios()))
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace of each shipped scenario."""
    folder = tmp_path_factory.mktemp("scenarios")
    for name in SCENARIOS:
        assert main(["simulate", name, "--quiet", "--trace", str(folder / name)]) == 0
    return folder


@pytest.fixture(scope="module")
def written(spark: SparkSession, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit of all of them in one job, as it is written."""
    folder = tmp_path_factory.mktemp("audit")
    write_audit(spark, find_traces([traces]), folder, expect=["order"])
    return folder


@pytest.fixture(scope="module")
def counts(written: Path) -> Mapping[tuple[str, str, str | None], Rows]:
    """The rows of the table `audit` by scenario, anomaly and group."""
    found: dict[tuple[str, str, str | None], Rows] = {}
    for row in pq.read_table(written / "audit").to_pylist():
        scenario = row["run_id"].rpartition("-")[0]
        found.setdefault((scenario, row["anomaly"], row["group"]), []).append(row)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_audit_agrees_with_the_simulators_own_books(
    scenario: str, traces: Path, counts: Mapping[tuple[str, str, str | None], Rows]
) -> None:
    def counted(group: str, *anomalies: str) -> int:
        return sum(
            row["count"] for name in anomalies for row in counts.get((scenario, name, group), [])
        )

    books = json.loads((traces / scenario / "run.json").read_text())["summary"]["producers"]
    assert books
    copies = _copies(traces / scenario)
    for group in books:
        name = group["group"]
        # The books count copies, the audit values that have some.
        assert sum(copies[name].values()) == group["duplicates"], name
        assert counted(name, "duplicate") == len(copies[name]), name
        assert counted(name, "lost_ack_duplicate") == len(copies[name]), name
        assert counted(name, "retry_reorder", "nonmonotonic_send") == group["reorderings"], name
        assert counted(name, "unseen") == 0, name
        if group["acks"] == 0:
            # Nothing was acknowledged: what is lost shows as gaps, but not behind the last record.
            assert counted(name, "lost_write") == 0, name
            assert bool(group["lost"]) == bool(counted(name, "sequence_gap")), name
            assert counted(name, "sequence_gap") <= group["lost"], name
        else:
            assert counted(name, "lost_write") == group["lost"], name


def _copies(trace: Path) -> dict[str, Counter[int]]:
    """How often too many each value was stored, by producer group; counted by hand."""
    group_of = {
        row["value_id"]: row["group"]
        for row in pq.read_table(trace / "sends", columns=["value_id", "group"]).to_pylist()
    }
    places = {
        (row["partition"], row["offset"], row["value_id"])
        for row in pq.read_table(
            trace / "reads", columns=["partition", "offset", "value_id"]
        ).to_pylist()
    }
    stored = Counter(value for _, _, value in places)
    copies: dict[str, Counter[int]] = {group: Counter() for group in group_of.values()}
    for value, times in stored.items():
        if times > 1:
            copies[group_of[value]][value] = times - 1
    return copies


def test_retry_reorder_is_convicted_and_with_idempotence_acquitted(
    counts: Mapping[tuple[str, str, str | None], Rows],
) -> None:
    (reordered,) = counts[("retry-reorder", "retry_reorder", "five-in-flight")]
    assert reordered["count"] > 0
    assert reordered["verdict"] == "violation"
    permitting = "idempotence=false with max_in_flight=5"
    assert reordered["setting"] == f"order expected, in spite of {permitting}"
    accused = Counter(
        {
            group: sum(row["count"] for row in rows)
            for (scenario, anomaly, group), rows in counts.items()
            if scenario == "retry-reorder" and anomaly != "multi_writer" and group is not None
        }
    )
    assert "five-in-flight" in accused
    assert "idempotent" not in accused
    assert "one-in-flight" not in accused


def test_a_witness_has_the_rows_from_which_its_timeline_is_drawn(written: Path) -> None:
    rows = pq.read_table(written / "witnesses").to_pylist()
    reorders = [
        row
        for row in rows
        if (row["run_id"], row["anomaly"]) == ("retry-reorder-1", "retry_reorder")
    ]
    assert [row["rank"] for row in reorders] == list(range(1, 11))
    for row in reorders:
        events = row["events"]
        assert [event["time_us"] for event in events] == sorted(e["time_us"] for e in events)
        late = [event for event in events if event["value_id"] == row["value_id"]]
        early = [event for event in events if event["value_id"] != row["value_id"]]
        assert [event["attempt"] for event in late if event["event"] == "send"] == [1, 2]
        # The one that passed it by has a higher sequence, and was read at a lower offset.
        (passed,) = {event["sequence"] for event in early if event["event"] == "send"}
        assert passed > row["sequence"]
        read = {e["value_id"]: e["offset"] for e in events if e["event"] == "read"}
        assert read.pop(row["value_id"]) == row["offset"] > min(read.values())
