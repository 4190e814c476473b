"""The verdict of a run, and the sums of its numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.report.findings import Results, findings
from purgatory.pipeline.report.page import PagePart
from purgatory.pipeline.report.verdict import sums_section, verdict

Row = dict[str, Any]

RUN: Row = {"run_id": "r", "complete": True, "duration_us": 12_000_000, "faults": []}
CASE: Row = {"anomaly": "lost_write", "group": "g", "setting": None, "count": 3}
EXPIRED: list[Row] = [
    {
        "purgatory": "Produce",
        "kind": "all",
        "outcome": outcome,
        "operations": count,
        "wait_mean_us": 1.0,
        "wait_max_us": 1,
    }
    for outcome, count in (("completed", 6), ("expired", 2), ("all", 8))
]


def _verdict(**tables: Any) -> tuple[str | None, str]:
    results = Results(tables.pop("runs", [RUN]), **tables)
    validity, text, _ = verdict(results, findings(results))
    return validity, text


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (
            {"audit": [{**CASE, "verdict": "violation"}]},
            ("invalid", "Guarantees are violated: 3 acknowledged records are lost."),
        ),
        (
            {"audit": [{**CASE, "verdict": "indeterminate"}]},
            ("unknown", "Not decided: 3 acknowledged records are lost."),
        ),
        (
            {
                "audit": [{**CASE, "count": 0, "verdict": "none"}],
                "runs": [RUN | {"complete": False}],
            },
            ("unknown", "Not decided: the trace is incomplete."),
        ),
        (
            {"audit": [{**CASE, "count": 0, "verdict": "none"}], "waits": EXPIRED},
            ("valid", "No guarantee is violated, but 2 of 8 produces (25.0 %) timed out."),
        ),
        (
            {"audit": [{**CASE, "count": 0, "verdict": "none"}]},
            ("valid", "No guarantee is violated, and nothing failed."),
        ),
        ({"waits": EXPIRED}, (None, "2 of 8 produces (25.0 %) timed out.")),
        (
            {
                "runs": [{**RUN, "complete": False}],
                "audit": [{**CASE, "verdict": "violation"}],
                "waits": EXPIRED,
            },
            ("invalid", "Guarantees are violated: 3 acknowledged records are lost."),
        ),
        ({}, ("unjudged", "Nothing was judged: the trace has no rows.")),
    ],
)  # fmt: skip
def test_verdict_is_the_worst_of_the_findings(
    tables: dict[str, Any], expected: tuple[str | None, str]
) -> None:
    assert _verdict(**tables) == expected


def test_each_sum_equals_its_parts(simulated: Path, tmp_path: Path) -> None:
    run_job("analyze", [simulated / "slow-follower"], tmp_path / "out", engine="duckdb")
    names = ("runs", "waits", "latencies", "attempts")
    tables = {name: pq.read_table(tmp_path / "out" / name).to_pylist() for name in names}
    html = sums_section(PagePart(0), Results(**tables))
    lines = re.findall(r"<li><strong>([\d,]+) ([^<]*)</strong> = ([^<]*)</li>", html)
    sums = {(whole, name): parts for whole, name, parts in lines}
    assert sums["4,947", "attempts to send"]
    assert sums["4,867", "produces"] == "4,809 completed + 58 expired"
    assert sums["138", "attempts with an unknown outcome"] == (
        "100 DISCONNECTED + 38 REQUEST_TIMED_OUT"
    )
    assert len(lines) >= 6
    for whole, _, parts in lines:
        numbers = [int(part.split(" ")[0].replace(",", "")) for part in parts.split(" + ")]
        assert int(whole.replace(",", "")) == sum(numbers)
