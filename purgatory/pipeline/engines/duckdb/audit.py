"""The audit of tables that a connection, or this process, has: `audit` and `witnesses`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb

from purgatory.pipeline.engines.duckdb.connection import duckdb_connection
from purgatory.pipeline.engines.duckdb.sql_engine import DuckDBEngine, duckdb_type, make_table
from purgatory.pipeline.jobs.audit.anomalies import (
    AUDIT_TABLES,
    COUNTS_ORDER,
    JUDGED_ORDER,
    OPTIONAL,
    SPLIT,
    SPLIT_US,
    WITNESSES,
    WITNESSES_ORDER,
)
from purgatory.pipeline.jobs.audit.audit_chain import (
    AUDIT_SETTINGS,
    audit_chain,
    audit_settings,
)
from purgatory.pipeline.jobs.audit.client_settings import Configuration, RunConfiguration
from purgatory.pipeline.jobs.audit.findings import Findings, findings_of
from purgatory.pipeline.jobs.chain import order_by
from purgatory.trace.trace_schema import NULLABLE, TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from purgatory.pipeline.result_rows import Order


def audit_tables(
    engine: DuckDBEngine,
    configuration: Configuration = None,
    witnesses: int = WITNESSES,
    *,
    expect: Sequence[str] = (),
    split: int = SPLIT,
    split_us: int = SPLIT_US,
) -> None:
    """Make the tables `audit` and `witnesses` from all tables of `AUDIT_TABLES`, in no order.

    Args:
        engine: has the tables, each with all its columns.
        configuration, witnesses, expect, split, split_us: as `engines.spark.frames.audit` has them.

    Raises:
        ValueError: as `engines.spark.frames.audit` has it.
    """
    chain = audit_chain(witnesses, split, split_us)
    for name, rows in audit_settings(configuration, expect).items():
        engine.make_table(name, AUDIT_SETTINGS[name], rows)
    engine.run(chain)


def _result(engine: DuckDBEngine, table: str, order: Order) -> pa.Table:
    return engine.query(f"select * from {table} order by {order_by(order)}")


# The audit of rows that are in memory, as of a cluster or a simulation in the same program.


def audit_arrow(
    run_id: str,
    tables: Mapping[str, pa.Table],
    configuration: RunConfiguration | None = None,
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    texts: Mapping[int, bytes | None] | None = None,
) -> Findings:
    """Audit tables of Arrow.

    Args:
        run_id: of all rows; a run that has none is one, too.
        tables: all of `AUDIT_TABLES`, with all columns of the schema.
        configuration: of the producers and consumers.
        expect, witnesses: as `engines.trace_audit.audit` has them.
        texts: the beginnings of keys and values by their ids, as far as they are known.

    Raises:
        ValueError: as `engines.trace_audit.audit` has it.
    """
    with duckdb_connection(rows=sum(map(len, tables.values()))) as connection:
        for name, table in tables.items():
            connection.register(name, table)
        engine = DuckDBEngine(connection)
        configurations = {run_id: configuration or RunConfiguration()}
        audit_tables(engine, configurations, witnesses, expect=expect)
        audit = _result(engine, "audit", COUNTS_ORDER).to_pylist()
        witness_rows = _result(engine, "witnesses", WITNESSES_ORDER).to_pylist()
        judged = _result(engine, "judged", JUDGED_ORDER).to_pylist()
        return findings_of(audit, witness_rows, {}, expect, texts, judged=judged)


# The audit of the tables of a user's connection, as in a notebook.


@dataclass(frozen=True)
class ConnectionAudit:
    """The result of an audit, sorted: relations of the connection, over tables of Arrow.

    Attributes:
        audit: `run_id`, `anomaly`, `group`, `verdict`, `setting`, `count`.
        witnesses: cases with the rows involved, as `docs/audit.md` describes.
    """

    audit: duckdb.DuckDBPyRelation
    witnesses: duckdb.DuckDBPyRelation


def audit_connection(
    connection: duckdb.DuckDBPyConnection,
    configuration: Configuration = None,
    witnesses: int = WITNESSES,
    *,
    expect: Sequence[str] = (),
    split: int = SPLIT,
    split_us: int = SPLIT_US,
) -> ConnectionAudit:
    """Find every anomaly of order and duplicates in the tables of a connection, and judge each.

    Computed at once, in a DuckDB of its own that is gone afterwards: nothing is made or replaced
    in `connection`, whose tables are read once.

    Args:
        connection: with tables or views `sends` and `reads`, and, if the traces have them,
            `effects`, `commits` and `transactions`; columns that may be null may be missing.
        configuration, witnesses, expect, split, split_us: as `engines.spark.frames.audit` has them.

    Raises:
        ValueError: a table or column is missing, or as `engines.spark.frames.audit` has it.
        SessionError: DuckDB has no place or memory left.
    """
    with duckdb_connection() as job_connection:
        for name in AUDIT_TABLES:
            _copy(connection, job_connection, name)
        engine = DuckDBEngine(job_connection)
        audit_tables(
            engine, configuration, witnesses, expect=expect, split=split, split_us=split_us
        )
        counts = _result(engine, "audit", COUNTS_ORDER)
        witness_table = _result(engine, "witnesses", WITNESSES_ORDER)
    return ConnectionAudit(connection.from_arrow(counts), connection.from_arrow(witness_table))


def _copy(source: duckdb.DuckDBPyConnection, target: duckdb.DuckDBPyConnection, name: str) -> None:
    """Give a table of a trace to another connection, with all columns that it can have."""
    make_table(target, name, TABLES[name])
    try:
        cursor = source.execute(f'SELECT * FROM "{name}" LIMIT 0')
    except duckdb.CatalogException:
        if name in OPTIONAL:
            return
        raise ValueError(f"there is no table {name}: an audit reads sends and reads") from None
    present = {column[0] for column in cursor.description or ()}
    missing = sorted(TABLES[name].keys() - present - set(NULLABLE[name]))
    if missing:
        raise ValueError(f"table {name}: there is no column {', '.join(missing)}")
    expressions = {
        column: f'"{column}"' if column in present else "NULL" for column in TABLES[name]
    }
    cells = ", ".join(
        f'{expressions[column]}::{duckdb_type(kind)} AS "{column}"'
        for column, kind in TABLES[name].items()
    )
    rows = source.execute(f'SELECT {cells} FROM "{name}"').to_arrow_reader()
    target.register("copied", rows)
    target.execute(f'INSERT INTO "{name}" SELECT * FROM copied')
    target.unregister("copied")
