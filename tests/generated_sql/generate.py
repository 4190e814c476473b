"""Writes the SQL by which DuckDB does the jobs, from their one source in PySpark's functions.

    python -m tests.generated_sql.generate            # what `make sql` does
    python -m tests.generated_sql.generate --check    # fails where what is there is another
    python -m tests.generated_sql.generate waits      # of this job alone

SQLFrame takes PySpark's place here, and gives the SQL of each data frame. A table that a job keeps,
or at which its plan may be cut, becomes a table of DuckDB's, so that no statement grows too long.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import duckdb
from sqlframe import activate
from sqlframe.base import dataframe as _sqlframe
from sqlglot import exp

from purgatory.pipeline.engines import duckdb as duckdb_engine
from purgatory.pipeline.engines.duckdb.job_sql import duckdb_type
from purgatory.pipeline.jobs.audit.anomalies import AUDIT_TABLES, OPTIONAL
from purgatory.pipeline.jobs.audit.client_settings import SETTINGS
from purgatory.pipeline.jobs.run_spans import FAULTS, SPANS, WINDOWS
from purgatory.trace.trace_schema import TABLES

SQLFRAME: Any = _sqlframe
"""Its insides, which are not typed."""

FOLDER = Path(duckdb_engine.__file__).parent / "sql"

OPTIONS = {
    name: 7_000_000_001 + place
    for place, name in enumerate(
        ("split", "split_us", "witnesses", "window_us", "number", "most_keys")
    )
}
"""Numbers that a job is given here, and the variables that stand for them in the SQL."""


AUDITS: Mapping[str, Collection[str]] = {
    "audit": AUDIT_TABLES,
    "audit_sends_reads": [name for name in AUDIT_TABLES if name not in OPTIONAL],
}
"""The audits' tables, by the name of their job: most traces have sends and reads alone."""

WAITS: Mapping[str, Mapping[str, Any]] = {
    "waits": {"by_topic": True},
    "waits_approximate": {"by_topic": True, "percentiles": "approximate"},
    "waits_over_topics": {},
    "waits_over_topics_approximate": {"percentiles": "approximate"},
}
"""The waits' plans, by the name of their job; windows are a variable, null for the whole run."""


class Statements:
    """The statements of one job, each of which makes a table.

    Args:
        job: its name, with which the names of its steps begin: SQLFrame keeps a table's columns.
        connection: where they are tried, on empty tables.
        session: SQLFrame's, over it.
    """

    def __init__(self, job: str, connection: duckdb.DuckDBPyConnection, session: Any) -> None:
        self._job = job
        self._connection = connection
        self._session = session
        self.texts: list[str] = []

    def step(self, frame: Any) -> Any:
        """A table of its own, with what a frame comes to."""
        name = f"{self._job}_{len(self.texts) + 1}"
        self.table(name, frame)
        return self._session.table(name)

    def table(self, name: str, frame: Any) -> None:
        """A table with a name."""
        text = frame.sql(dialect="duckdb", optimize=False, pretty=False)
        for option, number in OPTIONS.items():
            text = re.sub(rf"\b{number}\b", f"getvariable('{option}')", text)
        made = f"TABLE {name} AS {_numbered(text)}"
        for option in OPTIONS:
            self._connection.execute(f"SET VARIABLE {option} = 1::BIGINT")
        # Not as a temporary one, as it will be: SQLFrame would not find its columns.
        self._connection.execute(f"CREATE OR REPLACE {made}")
        self.texts.append(f"CREATE OR REPLACE TEMP {made}")


Job = Callable[[Any, Statements], None]
"""Makes the statements of a job in a session."""


def _numbered(text: str) -> str:
    """The same with its parts' names in order: those of SQLFrame's are another in each run."""
    names: dict[str, str] = {}
    return re.sub(
        r"\bt\d{5,}\b", lambda found: names.setdefault(found[0], f"t{len(names) + 1}"), text
    )


def _of_the_left(self: Any, columns: Any) -> None:
    """Let a name after a join be the left side's, if it has it, as it is in Spark.

    SQLFrame gives a column that is used again to the next table of the join.
    """
    given = columns if isinstance(columns, list) else [columns]
    unplaced = {
        id(found): found
        for column in given
        for found in column.expression.find_all(exp.Column)
        if not found.table
    }
    if not unplaced or "joins" not in self.expression.args:
        return
    joined = SQLFRAME.get_tables_from_expression_with_join(self.expression)
    parts = {part.alias_or_name: part.this for part in self.expression.ctes}
    for column in unplaced.values():
        for table in joined:
            name = table.this.this
            has_all = name in parts and any(
                isinstance(one, exp.Star) for one in parts[name].expressions
            )
            if name in parts and (has_all or column.alias_or_name in parts[name].named_selects):
                column.set("table", exp.to_identifier(name))
                break


def _grouping_sets(self: Any, sets: list[list[str]], *names: str) -> Any:
    """`groupingSets` of names, which SQLFrame has only as `cube` of all of them."""
    columns = dict(zip(names, self._ensure_and_normalize_cols(names), strict=True))
    return self._group_data(self, [[columns[name] for name in one] for one in sets], self.last_op)


def statements_of_jobs(wanted: Collection[str] = ()) -> Mapping[str, str]:
    """The SQL of each job, or of those wanted, by its name."""
    connection = duckdb.connect()
    activate("duckdb", conn=connection)
    SQLFRAME.BaseDataFrame._resolve_ambiguous_columns = _of_the_left
    SQLFRAME.BaseDataFrame.groupingSets = _grouping_sets
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    for name, columns in {
        **TABLES,
        **SETTINGS,
        "spans": SPANS,
        "faults": FAULTS,
        "windows": WINDOWS,
    }.items():
        kinds = ", ".join(f'"{column}" {duckdb_type(kind)}' for column, kind in columns.items())
        connection.execute(f"CREATE TABLE {name} ({kinds})")
    return {
        name: _text(Statements(name, connection, session), session, job)
        for name, job in _jobs().items()
        if not wanted or name in wanted
    }


def _jobs() -> Mapping[str, Job]:
    return {
        **{name: _audit(tables) for name, tables in AUDITS.items()},
        "slowest": _slowest,
        "occupancy": _occupancy,
        "occupancy_causes": _occupancy_causes,
        "latencies": _latencies,
        "attempts": _attempts,
        "distribution": _distribution,
        "expiry": _expiry,
        "throughput": _throughput,
        **{name: _waits(name) for name in WAITS},
    }


def _text(statements: Statements, session: Any, job: Job) -> str:
    from purgatory.pipeline.jobs import expressions as engines

    replaced: Any = engines
    replaced.persist = replaced.materialize = statements.step
    replaced.COUNTS_FIRST = replaced.EXACT_IN_MEMORY = True
    job(session, statements)
    return ";\n".join(statements.texts) + ";\n"


def _audit(names: Collection[str]) -> Job:
    def job(session: Any, statements: Statements) -> None:
        from purgatory.pipeline.jobs.audit.audit_job import build_audit
        from purgatory.pipeline.jobs.audit.cases import SettingsTables

        tables = {name: session.table(name) for name in names}
        settings = SettingsTables(**{name: session.table(name) for name in SETTINGS})
        result = build_audit(
            tables, settings, OPTIONS["witnesses"], OPTIONS["split"], OPTIONS["split_us"]
        )
        statements.table("audit", result.audit)
        statements.table("witnesses", result.witnesses)

    return job


def _waits(name: str) -> Job:
    def job(session: Any, statements: Statements) -> None:
        from purgatory.pipeline.jobs.old_waits import waits

        operations = session.table("operations")
        statements.table("waits", waits(operations, window_us=OPTIONS["window_us"], **WAITS[name]))

    return job


def _slowest(session: Any, statements: Statements) -> None:
    from purgatory.pipeline.jobs.old_waits import slowest

    statements.table("slowest", slowest(session.table("operations"), OPTIONS["number"]))


def _occupancy(session: Any, statements: Statements) -> None:
    from purgatory.pipeline.jobs.old_occupancy import occupancy

    statements.table("occupancy", occupancy(session.table("operations"), session.table("spans")))


def _occupancy_causes(session: Any, statements: Statements) -> None:
    from purgatory.pipeline.jobs.old_occupancy import hot_keys, littles_law, occupancy_of_keys
    from purgatory.pipeline.jobs.peaks import peaks

    names = ("operations", "occupancy", "spans", "faults")
    operations, occupancy, spans, faults = (session.table(name) for name in names)
    statements.table("littles_law", littles_law(operations, occupancy, spans))
    statements.table("peaks", peaks(operations, occupancy, spans, faults))
    statements.table("hot_keys", hot_keys(operations, spans, OPTIONS["number"]))
    keys = occupancy_of_keys(operations, spans, session.table("hot_keys"))
    statements.table("key_occupancy", keys)


def _latencies(session: Any, statements: Statements) -> None:
    from purgatory.pipeline.jobs.latencies import latencies

    statements.table("latencies", latencies(session.table("sends")))


def _attempts(session: Any, statements: Statements) -> None:
    from purgatory.pipeline.jobs.latencies import attempts

    statements.table("attempts", attempts(session.table("sends"), session.table("reads")))


def _distribution(session: Any, statements: Statements) -> None:
    from purgatory.pipeline.jobs.old_waits import distribution

    statements.table("distribution", distribution(session.table("operations")))


def _throughput(session: Any, statements: Statements) -> None:
    from purgatory.pipeline.jobs.latencies import throughput

    tables = (session.table(name) for name in ("sends", "reads", "windows"))
    statements.table("throughput", throughput(*tables))


def _expiry(session: Any, statements: Statements) -> None:
    from purgatory.pipeline.jobs.old_waits import expiry

    statements.table("expiry", expiry(session.table("operations"), OPTIONS["most_keys"]))


def main() -> int:
    """Write what is not there yet, or tell of it."""
    different = 0
    wanted = [argument for argument in sys.argv[1:] if argument != "--check"]
    for name, text in statements_of_jobs(wanted).items():
        path = FOLDER / f"{name}.sql"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        different += 1
        if "--check" in sys.argv:
            print(f"{path} is not what the source gives: run make sql", file=sys.stderr)
        else:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return different if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
