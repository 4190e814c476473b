"""The shipped scenarios: waits and audit agree with the simulator's own tables and counts.

The books see the brokers' logs; the audit has only the clients' sends and reads. DuckDB computes
all of it, and by night Spark: that both have the same tables, smaller traces show by day.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.ingest.trace_set import find_traces
from purgatory.simulation.scenario_file import shipped_scenarios
from purgatory.trace.rounded_waits import MAX_RELATIVE_ERROR
from tests.spark.pipeline.analysis_rows import latencies_of
from tests.spark.pipeline.audit_rows import Engine
from tests.spark.pipeline.operation_rows import waits_of
from tests.unit.simulation.shipped_runs import ShippedRun

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SCENARIOS = tuple(sorted(shipped_scenarios()))
Row = dict[str, Any]
Rows = list[Row]


@pytest.fixture(scope="module")
def traces(shipped: ShippedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace of each shipped scenario."""
    folder = tmp_path_factory.mktemp("scenarios")
    for name in SCENARIOS:
        shipped(name).link_to(folder / name)
    return folder


@pytest.fixture(scope="module")
def written(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit of all of them, as it is written."""
    folder = tmp_path_factory.mktemp("audit") / "audit"
    run_job("audit", [traces], folder, engine="duckdb", expect=["order"])
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
def test_audit_agrees_with_the_simulators_counts(
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
            # Without acknowledgements, losses show as gaps, but not behind the last record.
            assert counted(name, "lost_write") == 0, name
            assert bool(group["lost"]) == bool(counted(name, "sequence_gap")), name
            assert counted(name, "sequence_gap") <= group["lost"], name
        else:
            assert counted(name, "lost_write") == group["lost"], name


def _copies(trace: Path) -> dict[str, Counter[int]]:
    """The duplicates of each value, by producer group; counted by hand."""
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


def test_retry_reorder_is_a_violation_only_with_idempotence(
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


def test_witness_has_the_rows_of_its_timeline(written: Path) -> None:
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


def _table(traces: Path, name: str) -> pa.Table:
    """A table of all traces."""
    tables = [pq.read_table(traces / scenario / name) for scenario in SCENARIOS]
    return pa.concat_tables(tables, promote_options="default")


def test_wait_tables_agree_on_every_shipped_scenario(engine: Engine, traces: Path) -> None:
    found: dict[str, dict[tuple[str, str, str], Row]] = {name: {} for name in SCENARIOS}
    names = {trace.run_id: trace.scenario for trace in find_traces([traces])}
    for row in waits_of(engine, _table(traces, "operations")).to_pylist():
        if row["kind"] != "all":
            found[names[row["run_id"]]][row["purgatory"], row["kind"], row["outcome"]] = row
    assert len(found) >= 4
    for name in SCENARIOS:
        summary = json.loads((traces / name / "run.json").read_text())["summary"]
        _compare(found[name], summary["purgatories"])


def test_latency_tables_agree_on_every_shipped_scenario(engine: Engine, traces: Path) -> None:
    names = {trace.run_id: trace.scenario for trace in find_traces([traces])}
    found: dict[tuple[str, str, str], Row] = {}
    for row in latencies_of(engine, _table(traces, "sends")).to_pylist():
        found[names[row["run_id"]], row["group"], row["span"]] = row
    for name in SCENARIOS:
        summary = json.loads((traces / name / "run.json").read_text())["summary"]
        for group in summary["producers"]:
            for span, expected in group["latency_us"].items():
                if not expected["count"]:
                    continue
                ours = found.pop((name, group["group"], span))
                assert ours["count"] == expected["count"]
                assert ours["latency_max_us"] == expected["max"]
                assert ours["latency_mean_us"] == pytest.approx(expected["mean"])
                for share in ("p50", "p95", "p99", "p999"):
                    # Both count by four digits; only the simulator keeps the longest exactly.
                    assert ours[f"latency_{share}_us"] == pytest.approx(
                        expected[share], rel=MAX_RELATIVE_ERROR
                    )
    assert not found, "the pipeline has nothing that the simulator does not have"


def _compare(found: dict[tuple[str, str, str], Row], purgatories: list[Row]) -> None:
    compare = 0
    for expected in purgatories:
        if not expected["operations"]:
            continue
        tables = {"all": expected["wait_us"], **expected["wait_us_by_outcome"]}
        for outcome, waited in tables.items():
            ours = found.pop((expected["purgatory"], expected["kind"], outcome))
            count = expected["operations"] if outcome == "all" else expected[outcome]
            assert ours["operations"] == count
            assert ours["share"] == count / expected["operations"]
            assert ours["wait_max_us"] == waited["max"]
            for name in ("p50", "p95", "p99", "p999"):
                exact = ours[f"wait_{name}_us"]
                assert exact * (1 - MAX_RELATIVE_ERROR) - 1e-6 <= waited[name] <= exact + 1e-6
                compare += 1
    assert compare >= 12
    assert not found, "the pipeline has nothing that the simulator does not have"
