"""Apply killed anywhere and restarted: the target equals the source, and the audit agrees."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from purgatory.cdc.apply.audit_log import write_trace
from purgatory.cdc.targets import Target
from purgatory.pipeline import audit
from purgatory.pipeline.engines.duckdb.sql_engine import make_table
from purgatory.pipeline.jobs.audit import ConsumerSettings, RunConfiguration
from purgatory.trace.trace_schema import TABLES
from tests.databases.cdc.change_log import as_list, closing_target, random_log, rows_of

POINTS = ("before", "within", "commit", "after")
ROOT = Path(__file__).parents[4]
RECORDS = 300
SEED = 7


def run_until_done(
    folder: Path, mode: str, url: str, points: tuple[str, ...]
) -> tuple[list[dict[str, Any]], int]:
    """Apply a log in processes that are killed in turn at each point; the rows that must come out.

    Returns:
        Those rows, and how often a process was killed.
    """
    log, rows = random_log(SEED, RECORDS, keys=100)
    path = folder / "log.jsonl"
    path.write_bytes(b"".join((record.value or b"") + b"\n" for record in log))
    chance = random.Random(SEED)
    kills = 0
    for kill_at in [*(f"{point}:{chance.randrange(1, 5)}" for point in points), "never"]:
        command = [*("-m", "tests.databases.cdc.killed_apply", mode, url), str(path)]
        ran = subprocess.run(
            [sys.executable, *command, str(folder / "offsets.db"), kill_at],
            cwd=ROOT,
            check=False,
            timeout=60,
            capture_output=True,
            text=True,
        )
        if kill_at == "never":
            assert ran.returncode == 0, ran.stderr
        else:
            assert ran.returncode == -signal.SIGKILL, (kill_at, ran.stderr)
            kills += 1
    return as_list(rows), kills


class _ResultsAndOffsets:
    """Two databases as the trace wants them: commits are where the offsets are."""

    def __init__(self, results: Target, offsets: Target) -> None:
        self._results = results
        self._offsets = offsets

    def select_own(self, table: str, **where: Any) -> list[tuple[Any, ...]]:
        own = self._offsets if table == "purgatory_commits" else self._results
        return own.select_own(table, **where)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which each test writes its trace; the last test audits them all."""
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def wrong_ways(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """Whether the target equals the source after each of the ways with offsets apart."""
    equal = {}
    for mode in ("offset-first", "results-first"):
        folder = tmp_path_factory.mktemp(mode)
        url = f"sqlite:///{folder / 'target.db'}"
        rows, _ = run_until_done(folder, mode, url, ("between",))
        with (
            closing_target(url) as target,
            closing_target(f"sqlite:///{folder / 'offsets.db'}") as offsets,
        ):
            equal[mode] = rows_of(target) == rows
            write_trace(_ResultsAndOffsets(target, offsets), traces / mode, mode)  # type: ignore[arg-type]
    return equal


def _make_table(connection: duckdb.DuckDBPyConnection, traces: Path, name: str) -> None:
    """Make one table of all traces."""
    rows = []
    for path in traces.glob(f"*/{name}.jsonl"):
        for line in path.read_text().splitlines():
            row = {"run_id": path.parent.name, **json.loads(line)}
            rows.append(tuple(map(row.get, TABLES[name])))  # nullable columns may be left out
    make_table(connection, name, TABLES[name], rows)


@pytest.fixture(scope="module")
def audited(traces: Path) -> dict[str, Counter[tuple[str, str]]]:
    """The audit of each run, all of which ended: how many of each anomaly and verdict.

    DuckDB audits, much sooner than Spark; the tests of the audit compare both.
    """
    readers = ConsumerSettings("apply", assignment="subscribe", isolation="read_committed")
    found: dict[str, Counter[tuple[str, str]]] = {}
    with duckdb.connect() as connection:
        for name in ("sends", "reads", "effects", "commits"):
            _make_table(connection, traces, name)
        result = audit(connection, RunConfiguration(consumers=[readers]))
        counts = result.audit.select("run_id", "anomaly", "verdict", '"count"')
        for run_id, anomaly, verdict, count in counts.fetchall():
            found.setdefault(run_id, Counter())[anomaly, verdict] += count
    return {run_id: +counts for run_id, counts in found.items()}


@pytest.mark.parametrize("mode", ["together", "transactions"])
def test_killed_apply_has_each_change_once(
    url: str, mode: str, tmp_path: Path, traces: Path
) -> None:
    rows, kills = run_until_done(tmp_path, mode, url, POINTS)
    assert kills == len(POINTS)
    with closing_target(url) as target:
        assert rows_of(target) == rows
        offsets = [(row[1], row[2]) for row in target.select_own("purgatory_effects")]
        assert offsets == sorted(set(offsets))
        assert len(offsets) == RECORDS
        assert target.select_own("purgatory_pending") == []
        reads = target.select_own("purgatory_reads")
        assert len(reads) > RECORDS, "the killed batch was delivered again"
        name = f"{url.partition(':')[0]}-{mode}"
        write_trace(target, traces / name, name)


def test_audit_finds_only_redelivered_batches(
    wrong_ways: dict[str, bool], audited: dict[str, Counter[tuple[str, str]]]
) -> None:
    together = {name: found for name, found in audited.items() if name not in wrong_ways}
    assert together, "the tests before this one write the traces"
    for counts in together.values():
        assert {verdict for _, verdict in counts} == {"permitted"}
        assert {anomaly for anomaly, _ in counts} <= {"reprocess", "nonmonotonic_poll"}


def test_audit_finds_changes_lost_with_the_offset_stored_first(
    wrong_ways: dict[str, bool], audited: dict[str, Counter[tuple[str, str]]]
) -> None:
    assert not wrong_ways["offset-first"]
    lost = 20
    assert audited["offset-first"] == {("offset_without_result", "violation"): lost}


def test_audit_finds_changes_repeated_by_results_first(
    wrong_ways: dict[str, bool], audited: dict[str, Counter[tuple[str, str]]]
) -> None:
    counts = audited["results-first"]
    assert counts["effect_duplicate", "violation"] == 20
    assert counts["key_order_violation", "violation"] > 0
