"""Rows of operations, sends and reads out of a stream of records, with those that can't be right.

A record that is no row of its table is kept, with its `problem`, and counted by the job that takes
it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.trace.trace_schema import NULLABLE, RULES, TABLES

BAD_ROW = "bad row"
"""Why a row is set aside that isn't one."""
LATE = "late"
"""Why a row is set aside whose time was over."""
EXAMPLE_CHARACTERS = 200
"""How much of a row that was set aside is shown."""

_MORE_COLUMNS = {"started_us": "bigint", "numbered_by": "string", "_corrupt": "string"}
_EVENT_US = {
    "operations": "end_us",
    "sends": "coalesce(answer_us, send_us)",
    "reads": "time_us",
}
_FUTURE_US = 24 * 3600 * 1_000_000
"""A row from further ahead than this is bad: it would make all others late."""


def rows_of(records: DataFrame, *tables: str) -> DataFrame:
    """Return the rows that records hold as JSON, one each.

    Stateless: O(1) per record, in the JVM.

    Args:
        records: with a column `value`, text or binary, and, where several tables are asked for,
            `table`, the one that a record's row is of; more columns are let pass.
        tables: of ``operations``, ``sends`` and ``reads``.

    Returns:
        `table`; the columns of these tables (`docs/traces.md`), null where a row's table has no
        such column; `started_us` and `numbered_by`; `event_us`, when it happened, in microseconds
        since 1970; `problem`, null where all is right, and `example`, the beginning of the text of
        one that isn't. A bad row has an `event_us` of 0.
    """
    table = f.lit(tables[0]) if len(tables) == 1 else f.col("table")
    flat = _parsed(records, table, tables)
    problem = f.coalesce(
        _by_table(table, {name: _problem(name) for name in tables}),
        f.when(~f.coalesce(table.isin(*tables), f.lit(False)), "no such table"),
    )
    ended_us = _by_table(table, {name: f.expr(_EVENT_US[name]) for name in tables})
    judged = flat.withColumn(
        "event_us", f.coalesce(f.col("started_us"), f.lit(0)) + ended_us
    ).withColumn("problem", problem)
    is_bad = f.col("problem").isNotNull()
    placed = ("table", "text", "run_id", "_corrupt", "event_us", "problem")
    return judged.select(
        "table",
        f.coalesce("run_id", f.lit("")).alias("run_id"),
        *(name for name in judged.columns if name not in placed),
        f.when(is_bad, 0).otherwise(f.col("event_us")).alias("event_us"),
        "problem",
        f.when(is_bad, f.substring("text", 1, EXAMPLE_CHARACTERS)).alias("example"),
    )


def _parsed(records: DataFrame, table: Column, tables: Sequence[str]) -> DataFrame:
    """Return `table`, `text`, and all columns that some tables have, each parsed as of its own."""
    text = f.col("value").cast("string")
    parsed = records.select(
        table.alias("table"),
        text.alias("text"),
        *(f.when(table == name, _from_json(text, name)).alias(f"_{name}") for name in tables),
    )
    having: dict[str, list[Column]] = {}
    for name in tables:
        for column in _columns(name):
            having.setdefault(column, []).append(f.col(f"_{name}.{column}"))
    flat = (f.coalesce(*places).alias(column) for column, places in having.items())
    return parsed.select("table", "text", *flat)


def _by_table(table: Column, values: Mapping[str, Column]) -> Column:
    """Return the value that goes with a row's table."""
    return f.coalesce(*(f.when(table == name, value) for name, value in values.items()))


def _columns(table: str) -> dict[str, str]:
    return {**TABLES[table], **_MORE_COLUMNS}


def _from_json(text: Column, table: str) -> Column:
    schema = ", ".join(f"`{name}` {kind}" for name, kind in _columns(table).items())
    options = {"columnNameOfCorruptRecord": "_corrupt", "mode": "PERMISSIVE"}
    return f.from_json(text, schema, options)


def with_watermark(rows: DataFrame, late_us: int) -> DataFrame:
    """Let the watermark follow `event_us`, at a distance of ``late_us``.

    The column that Spark would drop late rows by is not passed on, so that the jobs see them.
    """
    delay = f"{late_us // 1_000} milliseconds"
    return (
        rows.withColumn("event_time", f.timestamp_micros("event_us"))
        .withWatermark("event_time", delay)
        .withColumn("event_us", f.unix_micros("event_time"))
        .drop("event_time")
    )


def _problem(table: str) -> Column:
    """Say what is wrong with a row, or null."""
    problem = f.when(
        f.col("_corrupt").isNotNull() | (f.trim(f.coalesce("text", f.lit(""))) == ""),
        "no row of JSON",
    )
    for name in TABLES[table]:
        if name not in NULLABLE[table] and name != "run_id":
            problem = problem.when(f.col(name).isNull(), f"no {name}")
    for rule in RULES[table]:
        problem = problem.when(f.expr(rule.condition), rule.reason)
    return problem.when(_is_future(f.col("event_us")), "from the future")


def _is_future(event_us: Column) -> Column:
    """Tell whether a time is too far ahead of the clock.

    The batch's time, as Spark's `current_timestamp` gives it, would be another number in the code
    that Spark generates for each batch, which would be compiled anew each time. So the clock is
    asked for, and only for rows that would have been too far ahead when the query began.
    """
    now_ms = f.expr("java_method('java.lang.System', 'currentTimeMillis')").cast("bigint")
    surely_us = time.time_ns() // 1_000 + _FUTURE_US
    return (event_us > surely_us) & (event_us > now_ms * 1_000 + _FUTURE_US)
