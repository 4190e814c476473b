"""The tables of waits and occupancy by either engine, in their order, of operations in memory."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import SparkSession

from purgatory.pipeline import (
    hot_keys,
    occupancy,
    occupancy_of_keys,
    peaks,
    slowest,
    waits,
)
from purgatory.pipeline.engines.duckdb.sql_engine import DuckDBEngine
from purgatory.pipeline.jobs.occupancy import (
    hot_keys_chain,
    key_occupancy_chain,
    occupancy_chain,
    peaks_chain,
)
from purgatory.pipeline.jobs.result_orders import OCCUPANCY_ORDERS, WAIT_ORDERS, Exactness
from purgatory.pipeline.jobs.run_spans import FAULTS, SPANS
from purgatory.pipeline.jobs.waits import slowest_chain, waits_chain
from purgatory.trace.trace_writer import arrow_schema
from tests.spark.pipeline.audit_rows import Engine, given, in_order

SCHEMA = pa.schema([one.with_nullable(True) for one in arrow_schema("operations")])

_ORDERS = {**WAIT_ORDERS, **OCCUPANCY_ORDERS}
END_US = 2_000
_KEYS: tuple[list[str] | None, ...] = (
    None,
    [],
    ["a-0"],
    ["a-0", "a-1"],
    ["b-7", "b-7"],
    ["a-0", "group"],
    ["é-1", "b-1\n"],
)


def random_operations(seed: int, number: int, longest_us: int = 600) -> pa.Table:
    """Operations of three runs, with ties, pending ones, and some with unknown keys."""
    chance = random.Random(seed)
    rows = []
    for operation in range(number):
        outcome = chance.choice(["immediate", "completed", "completed", "expired", "pending"])
        start_us = chance.randrange(END_US)
        wait_us = {"immediate": 0, "pending": END_US - start_us}.get(
            outcome, chance.choice([100, chance.randrange(longest_us)])
        )
        rows.append(
            {
                "run_id": chance.choice(["run-1", "run-2", "run-3"]),
                "broker": chance.randrange(2),
                "purgatory": chance.choice(["Fetch", "Produce"]),
                "operation": operation,
                "keys": 1,
                "timeout_ms": 1,
                "start_us": start_us,
                "end_us": start_us + wait_us,
                "wait_us": wait_us,
                "outcome": outcome,
                "kind": chance.choice(["follower", "consumer"]),
                "watch_keys": chance.choice([*_KEYS, [f"c-{operation % 9}"]]),
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def waits_of(
    engine: Engine,
    operations: pa.Table,
    *,
    window_us: int | None = None,
    by_topic: bool = False,
    percentiles: Exactness = "exact",
) -> pa.Table:
    """The table `waits`."""
    if isinstance(engine, SparkSession):
        made = waits(
            engine.createDataFrame(operations),
            window_us=window_us,
            by_topic=by_topic,
            percentiles=percentiles,
        )
        return in_order(made, _ORDERS["waits"])
    given(engine, operations)
    computing = DuckDBEngine(engine)
    computing.run(waits_chain(window_us, percentiles, by_topic=by_topic))
    return in_order(computing, _ORDERS["waits"], "waits")


def slowest_of(engine: Engine, operations: pa.Table, number: int) -> pa.Table:
    """The table `slowest`."""
    if isinstance(engine, SparkSession):
        return in_order(slowest(engine.createDataFrame(operations), number), _ORDERS["slowest"])
    given(engine, operations)
    computing = DuckDBEngine(engine)
    computing.run(slowest_chain(number))
    return in_order(computing, _ORDERS["slowest"], "slowest")


def occupancy_of(
    engine: Engine,
    operations: pa.Table,
    spans: pa.Table,
    faults: pa.Table | None = None,
    number: int = 10,
    names: Iterable[str] = OCCUPANCY_ORDERS,
) -> dict[str, pa.Table]:
    """The tables of occupancy, or some of them, by their names."""
    if isinstance(engine, SparkSession):
        rows, over = engine.createDataFrame(operations), engine.createDataFrame(spans)
        table = occupancy(rows, over).persist()
        hot = hot_keys(rows, over, number).persist()
        made = {
            "occupancy": table,
            "peaks": peaks(
                rows, table, over, None if faults is None else engine.createDataFrame(faults)
            ),
            "hot_keys": hot,
            "key_occupancy": occupancy_of_keys(rows, over, hot),
        }
        return {name: in_order(made[name], _ORDERS[name]) for name in names}
    given(engine, operations)
    computing = DuckDBEngine(engine)
    for name, columns, one in (("spans", SPANS, spans), ("faults", FAULTS, faults)):
        computing.make_table(name, columns, [] if one is None else _tuples(one))
    computing.run(
        [
            *occupancy_chain(),
            *peaks_chain(),
            *hot_keys_chain(number),
            *key_occupancy_chain(),
        ]
    )
    return {name: in_order(computing, _ORDERS[name], name) for name in names}


def _tuples(table: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def assert_same(one: pa.Table, other: pa.Table) -> None:
    """Two tables have the same columns, of the same types, and the same rows in one order."""
    assert one.schema.names == other.schema.names
    assert [_kind(field.type) for field in one.schema] == [
        _kind(field.type) for field in other.schema
    ]
    assert one.to_pylist() == other.to_pylist()


def _kind(kind: pa.DataType) -> object:
    """A type without the names that engines give to the elements of lists."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return ["list", _kind(kind.value_type)]
    if pa.types.is_struct(kind):
        return [(field.name, _kind(field.type)) for field in kind]
    return "string" if pa.types.is_large_string(kind) else str(kind)
