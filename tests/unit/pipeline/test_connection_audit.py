"""`audit(connection)`: the tables of a user's own DuckDB, which are not changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from purgatory.pipeline import audit
from purgatory.pipeline.jobs.audit.audit_chain import audit_settings
from purgatory.pipeline.jobs.audit.client_settings import observed
from purgatory.trace.trace_schema import NULLABLE, TABLES
from purgatory.trace.trace_writer import arrow_schema
from tests.spark.pipeline.audit_injections import injected
from tests.unit.documents.documents import ROOT, python_of


def _connection(*tables: str) -> duckdb.DuckDBPyConnection:
    """One in which three records lie behind later ones, as tables without needless columns."""
    connection = duckdb.connect()
    rows, _ = injected("retry_reorder", 3, seed=4)
    named = {
        "sends": [{"run_id": "run-1", "size_bytes": 1, **one._asdict()} for one in rows.sends],
        "reads": [{"run_id": "run-1", **one._asdict()} for one in rows.reads],
    }
    for table in tables:
        made = pa.Table.from_pylist(named[table], schema=arrow_schema(table))
        kept = [
            name
            for name in made.column_names
            if name not in NULLABLE[table] or made[name].null_count < len(made)
        ]
        assert len(kept) < len(TABLES[table])
        connection.register("made", made.select(kept))
        connection.execute(f"CREATE TEMP TABLE {table} AS SELECT * FROM made")
        connection.unregister("made")
    return connection


def test_findings_are_relations_and_no_table_is_left() -> None:
    with _connection("sends", "reads") as connection:
        connection.execute("CREATE TEMP TABLE audit AS SELECT 'mine' AS whose")
        before = connection.execute("SHOW TABLES").fetchall()
        found = audit(connection, expect=["order"])
        violations = found.audit.filter("verdict = 'violation'")
        assert violations.select("anomaly", '"count"').fetchall() == [("retry_reorder", 3)]
        assert found.witnesses.filter("anomaly = 'retry_reorder'").df()["rank"].tolist() == [
            1,
            2,
            3,
        ]
        assert connection.execute("SHOW TABLES").fetchall() == before
        assert connection.execute("FROM audit").fetchall() == [("mine",)]


def test_missing_table_or_column_is_named() -> None:
    with _connection("sends") as connection, pytest.raises(ValueError, match="no table reads"):
        audit(connection)
    with _connection("sends", "reads") as connection:
        connection.execute("ALTER TABLE reads DROP COLUMN poll")
        with pytest.raises(ValueError, match="table reads: there is no column poll"):
            audit(connection)
    with _connection("sends", "reads") as connection, pytest.raises(ValueError, match="'orders'"):
        audit(connection, expect=["orders"])


def test_documented_example_runs(
    slow_follower_trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "build" / "demo").mkdir(parents=True)
    (tmp_path / "build" / "demo" / "trace").symlink_to(slow_follower_trace)
    monkeypatch.chdir(tmp_path)
    exec(python_of(ROOT / "docs" / "audit.md"), {})
    assert "duplicate" in capsys.readouterr().out


def test_expectation_in_place_of_a_configuration_is_named() -> None:
    wrong: Any = "once"
    with pytest.raises(TypeError, match=r"not 'once'; what is expected is given as expect="):
        observed(wrong)
    with pytest.raises(TypeError, match="configuration must be a RunConfiguration, not 'once'"):
        audit_settings(wrong, [])
