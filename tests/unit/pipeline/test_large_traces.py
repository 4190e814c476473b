"""The traces that the audit is measured with have the planted anomalies, and no others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.jobs.audit import ConsumerSettings, ProducerSettings, RunConfiguration
from purgatory.pipeline.jobs.audit.anomalies import PERMITTED
from tests.benchmarks.large_traces import expected_counts, main, write_large_trace
from tests.benchmarks.planted_blocks import GROUPS, Shape
from tests.spark.pipeline.audit_rows import Commit, Effect, Read, Send, SmallTrace, Transaction
from tests.unit.pipeline.audit_oracle import Oracle

CONFIGURATION = RunConfiguration(
    producers=[ProducerSettings("writers", True, 5, 10, single_writer=True)],
    consumers=[ConsumerSettings(group, "assign", "read_committed") for group in GROUPS],
)


def _rows(folder: Path, name: str, kind: Any) -> list[Any]:
    table = pq.read_table(folder / name, columns=list(kind._fields))
    return [kind(**row) for row in table.to_pylist()]


def _by_oracle(folder: Path) -> Counter[str]:
    trace = SmallTrace(
        _rows(folder, "sends", Send),
        _rows(folder, "reads", Read),
        _rows(folder, "effects", Effect),
        _rows(folder, "commits", Commit),
        _rows(folder, "transactions", Transaction),
        CONFIGURATION,
    )
    counts: Counter[str] = Counter()
    for (anomaly, _, verdict, _), count in Oracle(trace).found().items():
        assert verdict != PERMITTED
        counts[anomaly] += count
    return counts


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_oracle_finds_each_injected_anomaly(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    shape = Shape(6_000, partitions=8, producers=10, planted=3, seed=seed)
    write_large_trace(folder, shape)
    assert json.loads((folder / "expected.json").read_text()) == expected_counts(shape)
    assert _by_oracle(folder) == Counter(expected_counts(shape))


@pytest.mark.parametrize("more", [(), ("--no-transactions",)])
def test_audit_finds_each_planted_anomaly(more: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    main([str(folder), "--rows", "30k", "--planted", "20", "--seed", "4", *more])
    result = run_job("audit", [folder], engine="duckdb", witnesses=0)
    assert result.bad_rows == {}
    counts: Counter[str] = Counter()
    for row in result.rows["audit"]:
        assert row["verdict"] != PERMITTED
        counts[row["anomaly"]] += row["count"]
    expected = json.loads((folder / "expected.json").read_text())
    assert {name: counts[name] for name in expected} == expected
    tables = json.loads((folder / "run.json").read_text())["tables"]
    assert tables["sends"]["rows"] + tables["reads"]["rows"] == pytest.approx(30_000, rel=0.02)


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few for 1250 anomalies: there must be more rows"):
        write_large_trace(tmp_path / "trace", Shape(10_000))
    assert list(tmp_path.iterdir()) == []
