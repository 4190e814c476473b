"""Waits and expiries of operations by window, per run, purgatory and kind: batches of SQL."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from purgatory.kafka.topic_partition import TopicPartition
from purgatory.pipeline.engines.spark.sql_engine import SQL_SETTINGS
from purgatory.pipeline.jobs.chain import Statement, parse_chain
from purgatory.stream.watermark import Watermark
from purgatory.trace.trace_schema import NULLABLE, RULES, TABLES

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending")
"""The outcomes that have a column; others count in `operations` only."""

TABLES_OF_RESULTS = ("waits", "quarantine")
"""The tables that a batch adds rows to."""

_TABLE = "operations"
_AHEAD_US = 24 * 3600 * 1_000_000
"""A row from further in the future is invalid: it would move the watermark, and make all others
late."""

_MORE_COLUMNS = {"started_us": "bigint", "_corrupt": "string"}
_OPEN = pa.schema(
    [(name, pa.string()) for name in ("run_id", "purgatory", "kind", "outcome")]
    + [
        (name, pa.int64())
        for name in ("window_start_us", "rounded_us", "operations", "sum_us", "max_us")
    ]
)
"""The columns of open windows: their operations, counted by outcome and rounded wait."""


class State(NamedTuple):
    """The state between two batches: the watermark, and the counts of the open windows."""

    watermark: Watermark = Watermark()
    windows: pa.Table = _OPEN.empty_table()


class Counted(NamedTuple):
    """The counts of a batch, and the time of the newest row of each partition in it."""

    counts: pa.Table
    newest_us: Mapping[TopicPartition, int | None]


def operations_of(records: DataFrame) -> DataFrame:
    """Return records, each of which is a row of operations as JSON, as such rows.

    Stateless: O(1) per record, in the JVM.

    Args:
        records: a stream, or not, with the columns `value`, text or binary, `topic` and
            `partition`; its session reads the SQL with `SQL_SETTINGS`.

    Returns:
        The columns of the view `operations` in `operations.sql`.
    """
    columns = {**TABLES[_TABLE], **_MORE_COLUMNS}
    chain = chain_of(
        "operations.sql",
        columns=", ".join(f"`{name}` {kind}" for name, kind in columns.items()),
        ahead_us=_AHEAD_US,
        surely_us=time.time_ns() // 1_000 + _AHEAD_US,
    )
    return views_of(records.sparkSession, {"records": records}, chain)["operations"]


def count_batch(operations: DataFrame, *, window_us: int, longest_wait_us: int) -> Counted:
    """Count the rows of a batch, of `operations_of`, by window, outcome and rounded wait.

    One shuffle; the driver gets a row per count.

    Args:
        operations: the rows of the batch.
        window_us: the length of a window.
        longest_wait_us: a longer wait is counted as outlasted, too.
    """
    chain = chain_of("counts.sql", window_us=window_us, longest_wait_us=longest_wait_us)
    counts = views_of(operations.sparkSession, {"operations": operations}, chain)[
        "counts"
    ].toArrow()
    newest = counts.group_by(["topic", "partition"]).aggregate([("newest_us", "max")])
    return Counted(
        counts,
        {
            TopicPartition(row["topic"], row["partition"]): row["newest_us_max"]
            for row in newest.to_pylist()
        },
    )


def close_windows(
    session: SparkSession, counts: pa.Table, before: State, after: Watermark, *, window_us: int
) -> tuple[State, dict[str, pa.Table]]:
    """Add the counts of a batch to the open windows, and close those that the watermark passed.

    Args:
        session: runs the SQL.
        counts: of `count_batch`.
        before: the state before the batch, by whose watermark a row is late.
        after: the watermark after the batch.
        window_us: the length of a window.

    Returns:
        The state after the batch, and the rows that it adds to each of `TABLES_OF_RESULTS`.
    """
    inputs = {
        "counts": session.createDataFrame(counts),
        "open": session.createDataFrame(before.windows),
    }
    chain = chain_of(
        "windows.sql",
        window_us=window_us,
        watermark_us=before.watermark.us,
        closed_us=after.us,
    )
    views = views_of(session, inputs, chain)
    still_open = views["still_open"].toArrow().select(_OPEN.names).cast(_OPEN)
    return State(after, still_open), {name: views[name].toArrow() for name in TABLES_OF_RESULTS}


def chain_of(name: str, **parameters: object) -> list[Statement]:
    """The statements of a file of SQL beside this module, with the values of its parameters."""
    text = files("purgatory.stream").joinpath(name).read_text("utf-8")
    return parse_chain(text.replace("{rules}", _rules()), parameters, name)


def _rules() -> str:
    """The conditions on a row of operations, as branches of a `case`."""
    required = (name for name in TABLES[_TABLE] if name not in {"run_id", *NULLABLE[_TABLE]})
    branches = [f"when {name} is null then 'no {name}'" for name in required]
    branches += [f"when {rule.condition} then '{rule.reason}'" for rule in RULES[_TABLE]]
    return "\n        ".join(branches)


def views_of(
    session: SparkSession, inputs: Mapping[str, DataFrame], chain: Iterable[Statement]
) -> dict[str, DataFrame]:
    """Return the views of a chain; its tables are computed now, into the memory of the driver."""
    for name, value in SQL_SETTINGS.items():
        session.conf.set(name, value)
    views = dict(inputs)
    for name, view in inputs.items():
        view.createOrReplaceTempView(name)
    for one in chain:
        view = session.sql(one.query)
        views[one.name] = session.createDataFrame(view.toArrow()) if one.kept else view
        views[one.name].createOrReplaceTempView(one.name)
    return views
