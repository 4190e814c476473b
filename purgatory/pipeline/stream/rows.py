"""The watermark in Spark's account of a batch: the time up to which rows are expected no more."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.client.first_answer import NoAnswerError, first_answer
from purgatory.pipeline.errors import FaultError, PipelineError
from purgatory.pipeline.stream.publisher import published_topics
from purgatory.trace.trace_schema import NULLABLE, RULES, TABLES

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def watermark_us(progress: Mapping[str, Any]) -> int | None:
    """The watermark in microseconds since 1970, or None if there is none.

    Args:
        progress: Spark's own account of a batch.
    """
    watermark = (progress.get("eventTime") or {}).get("watermark")
    if watermark is None:
        return None
    time = datetime.fromisoformat(watermark.replace("Z", "+00:00"))
    return (time - _EPOCH) // timedelta(microseconds=1)


# The streams of records that a cluster's topics are, for the jobs.


_TIMEOUT_S = 15.0


class Records(Protocol):
    """Gives the stream of the records of some tables, with columns `value` and `table`."""

    def __call__(self, *tables: str) -> DataFrame:
        """Return the stream of these tables' records."""


def topic_records(
    session: SparkSession,
    bootstrap_servers: str,
    prefix: str,
    most_rows: int,
    client: Mapping[str, str],
) -> Records:
    """Return what gives the streams of a cluster's topics.

    Args:
        session: in which the source gets registered.
        bootstrap_servers: of the cluster.
        prefix: of the topics' names.
        most_rows: how many records a batch takes at most.
        client: more settings, as librdkafka names them.
    """
    from purgatory.pipeline.source import register

    register(session)
    topics = published_topics(prefix)

    def records(*tables: str) -> DataFrame:
        reader = (
            session.readStream.format("purgatory")
            .option("kafka.bootstrap.servers", bootstrap_servers)
            .option("subscribe", ",".join(topics[table] for table in tables))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(most_rows))
        )
        for name, value in client.items():
            reader = reader.option(f"kafka.{name}", value)
        table = f.coalesce(*(f.when(f.col("topic") == topics[name], name) for name in tables))
        return reader.load().select("value", table.alias("table"))

    return records


def check_topics(bootstrap_servers: str, prefix: str, client: Mapping[str, str]) -> None:
    """Refuse a cluster that doesn't answer, or has none of the topics. Takes 15 s at most.

    Raises:
        PipelineError: saying which, and what to do.
    """
    try:
        wanted = set(published_topics(prefix).values())
        _, there = first_answer(bootstrap_servers, client, _TIMEOUT_S)
    except ValueError as error:
        raise PipelineError(f"--prefix {error}") from None
    except NoAnswerError as error:
        kind = FaultError if error.passes else PipelineError
        raise kind(f"--bootstrap {bootstrap_servers}: no cluster answers: {error}") from error
    missing = sorted(wanted - there)
    if missing:
        raise PipelineError(
            f"{bootstrap_servers} has no topic {missing[0]}: publish to it first (purgatory "
            "cluster --publish PREFIX), and give the same --prefix"
        )


# What all jobs give: rows of several tables in one stream, told apart by the column `table`.


ASIDE = "aside"
"""The table of rows that were set aside, in counts."""

ASIDE_COLUMNS = {"source": "string", "reason": "string", "rows": "bigint", "example": "string"}
"""The columns of the table `aside`: how many rows of which source were set aside, and why."""

_PANDAS = {"bigint": "Int64", "int": "Int32", "double": "Float64", "timestamp": "datetime64[us]"}


def ddl(columns: Mapping[str, str]) -> str:
    """Return columns in Spark's words."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Return rows with all of these columns, null where a row has none, whole numbers exact."""
    return pd.DataFrame(
        {
            name: pd.Series([row.get(name) for row in rows], dtype=_PANDAS.get(kind, object))
            for name, kind in columns.items()
        }
    )


def aside(source: str, reason: str, rows: int, example: str | None, run_id: str) -> dict[str, Any]:
    """Return a row of the table `aside`."""
    return {
        "table": ASIDE,
        "run_id": run_id,
        "source": source,
        "reason": reason,
        "rows": rows,
        "example": example,
    }


def bad_rows(source: str, part: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows of `aside` for those that have a `problem`."""
    bad = part[part["problem"].notna()]
    return [
        aside(source, f"{BAD_ROW}: {problem}", len(rows), rows["example"].iloc[0], "")
        for problem, rows in bad.groupby("problem")
    ]


def time_of(us: int) -> pd.Timestamp:
    """Return a time given in microseconds since 1970."""
    return pd.Timestamp(us, unit="us")


# Many rows as one, on their way to a job with state.
#
# Spark hands rows to such a job one by one, which costs more than what is done with them. So the rows
# of a key in a batch of Arrow's are packed before the shuffle, and the job takes them out at once.


PACKED = "packed"
"""The column in which the rows are."""


def packed_by(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the rows of the same keys packed together, those of each batch of Arrow's.

    O(n log n) in Python, for the rows of a batch.

    Args:
        rows: with these columns, and others.
        keys: of text or whole numbers, never null.

    Returns:
        The columns of the keys, and `PACKED`, of which `unpacked` makes rows again.
    """
    schema = rows.select(*keys).schema.add(PACKED, "binary")

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _pack(batch, keys)

    return rows.mapInArrow(pack, schema)


def unpacked(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows that some packed ones hold."""
    tables = [pa.ipc.open_stream(data).read_all() for part in parts for data in part[PACKED]]
    return pa.concat_tables(tables).to_pandas()


def _pack(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    ordered = batch.take(pc.sort_indices(batch, [(key, "ascending") for key in keys]))
    starts = _starts([ordered.column(key) for key in keys])
    ends = np.append(starts[1:], len(ordered))
    columns: list[Any] = [ordered.column(key).take(pa.array(starts)) for key in keys]
    values = ordered.drop_columns(list(keys))
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    columns.append(pa.array([_as_bytes(values.slice(at, to - at)) for at, to in pairs]))
    return pa.RecordBatch.from_arrays(columns, [*keys, PACKED])


def _starts(columns: Sequence[pa.Array]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the places at which any of some columns has another value than before."""
    other = np.zeros(len(columns[0]), np.bool_)
    other[0] = True
    for column in columns:
        changed = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        other[1:] |= changed.to_numpy(zero_copy_only=False)
    return np.flatnonzero(other)


def _as_bytes(rows: pa.RecordBatch) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_batch(rows)
    return out.getvalue()


# Rows of operations, sends and reads out of a stream of records, with those that can't be right.
#
# A record that is no row of its table is kept, with its `problem`, and counted by the job that takes
# it.


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
