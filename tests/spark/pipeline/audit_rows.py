"""Small traces for the tests of the audit: rows by name, and many runs in one job of Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline import audit
from purgatory.pipeline.engines.duckdb.audit import audit_tables
from purgatory.pipeline.engines.duckdb.sql_engine import DuckDBEngine
from purgatory.pipeline.engines.spark.sql_engine import sql_settings
from purgatory.pipeline.jobs.audit import RunConfiguration
from purgatory.pipeline.jobs.audit.anomalies import COUNTS_ORDER, OPTIONAL, WITNESSES_ORDER
from purgatory.pipeline.jobs.chain import order_by
from purgatory.pipeline.result_rows import Order, Row
from purgatory.trace.trace_schema import TABLES


class Send(NamedTuple):
    """An attempt, as in the table `sends`."""

    producer: int
    sequence: int
    value_id: int
    partition: int
    offset: int | None = None
    group: str = "writers"
    attempt: int = 1
    key: int = 0
    acks: int = -1
    outcome: str = "ok"
    error: str | None = None
    send_us: int = 0
    answer_us: int | None = 1
    topic: str = "orders"
    transactional_id: str | None = None
    epoch: int | None = None
    transaction: int | None = None
    equal_to: int | None = None
    compaction: str | None = None


class Read(NamedTuple):
    """A record that was delivered, as in the table `reads`."""

    consumer: int
    poll: int
    partition: int
    offset: int
    value_id: int
    group: str = "readers"
    time_us: int = 0
    applied: bool = True
    topic: str = "orders"
    isolation: str | None = None
    fetch_offset: int | None = None
    consumer_group: str | None = None
    restarts: int | None = None
    reading: int | None = None
    delivery: int | None = None
    acknowledged: str | None = None


class Effect(NamedTuple):
    """An application of an input, as in the table `effects`."""

    partition: int
    offset: int
    key: int
    version: int
    time_us: int
    group: str = "readers"
    consumer: int = 0
    topic: str = "orders"
    transaction: int | None = None


class Commit(NamedTuple):
    """An offset stored with the results, as in the table `commits`."""

    partition: int
    offset: int
    time_us: int = 0
    group: str = "readers"
    topic: str = "orders"
    transaction: int | None = None
    held: bool | None = None


class Transaction(NamedTuple):
    """A transaction, as in the table `transactions`."""

    transaction: int
    transactional_id: str
    epoch: int
    outcome: str = "committed"
    ended_by: str | None = "producer"
    epoch_us: int | None = None
    begun_us: int = 0
    decided_us: int | None = None
    ended_us: int | None = None


@dataclass
class SmallTrace:
    """The rows of one run, and its configuration."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    configuration: RunConfiguration = field(default_factory=RunConfiguration)


Found = Counter[tuple[str, str | None, str, str | None]]
"""Of one run: how many cases there are by anomaly, group, verdict and setting."""

_KINDS = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_()}


Engine = SparkSession | duckdb.DuckDBPyConnection


spark_exhaustively = pytest.mark.parametrize(
    "engine", [pytest.param("spark", marks=pytest.mark.exhaustive), "duckdb"], indirect=True
)
"""Mark a test whose runs Spark, too, audits in each `make test`: those of test_audit_ties."""


def tables(spark: SparkSession, traces: Mapping[str, SmallTrace]) -> dict[str, Any]:
    """The tables of some runs as Spark has them, by their names."""
    return {name: spark.createDataFrame(table) for name, table in arrow_tables(traces).items()}


def arrow_tables(traces: Mapping[str, SmallTrace]) -> dict[str, pa.Table]:
    """The tables of some runs, by their names."""
    made: dict[str, pa.Table] = {}
    kinds: tuple[Any, ...] = (Send, Read, Effect, Commit, Transaction)
    for name, kind in zip(("sends", "reads", *OPTIONAL), kinds, strict=True):
        rows = [
            {"run_id": run_id, **row._asdict()}
            for run_id, trace in traces.items()
            for row in getattr(trace, name)
        ]
        schema = pa.schema(
            [(field, _KINDS[TABLES[name][field]]) for field in ("run_id", *kind._fields)]
        )
        made[name] = pa.Table.from_pylist(rows, schema=schema)
    return made


def result_of(
    engine: Engine, traces: Mapping[str, SmallTrace], *, shown: bool = True, **options: Any
) -> tuple[Sequence[Row], Sequence[Row]]:
    """Audit some runs in one job; the rows of `audit` and of `witnesses`, in their order.

    Args:
        shown: whether Spark, which takes as long for witnesses as for the rest, is asked for them.
    """
    configuration = {run_id: trace.configuration for run_id, trace in traces.items()}
    if isinstance(engine, SparkSession):
        result = audit(**tables(engine, traces), configuration=configuration, **options)
        counted = in_order(result.audit, COUNTS_ORDER).to_pylist()
        if not shown:
            return counted, []
        return counted, in_order(result.witnesses, WITNESSES_ORDER).to_pylist()
    for name, table in arrow_tables(traces).items():
        given(engine, table, name)
    duckdb_engine = DuckDBEngine(engine)
    audit_tables(duckdb_engine, configuration, **options)
    return (
        in_order(duckdb_engine, COUNTS_ORDER, "audit").to_pylist(),
        in_order(duckdb_engine, WITNESSES_ORDER, "witnesses").to_pylist(),
    )


def given(connection: duckdb.DuckDBPyConnection, rows: pa.Table, table: str = "operations") -> None:
    """Make a table of a trace, with all columns."""
    DuckDBEngine(connection).make_table(table, TABLES[table])
    connection.register("given", rows)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM given")


def in_order(found: DataFrame | DuckDBEngine, order: Order, table: str = "result") -> pa.Table:
    """The rows of a result, in order: of a frame of Spark's, or of a table of DuckDB's."""
    query = f"select * from {table} order by {order_by(order)}"
    if isinstance(found, DuckDBEngine):
        return found.query(query)
    with sql_settings(found.sparkSession):
        found.createOrReplaceTempView(table)
        return found.sparkSession.sql(query).toArrow()


def audited(engine: Engine, traces: Mapping[str, SmallTrace], **options: Any) -> dict[str, Found]:
    """Audit some runs in one job, and return the findings of each: rows with a count above 0."""
    rows, _ = result_of(engine, traces, shown=False, **options)
    found: dict[str, Found] = {run_id: Counter() for run_id in traces}
    for row in rows:
        if row["count"]:
            key = (row["anomaly"], row["group"], row["verdict"], row["setting"])
            assert key not in found[row["run_id"]], "a count has one row"
            found[row["run_id"]][key] = row["count"]
    return found
