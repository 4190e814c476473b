"""Rows of the queries: from the records of topics, past the watermark, to the rows of results.

A record that is no valid row of its table is kept, with its `problem`, and counted in the table
`quarantine` by the query that reads it.
"""

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

from purgatory.pipeline.errors import FaultError, PipelineError
from purgatory.pipeline.stream.publisher import ConnectError, connect_admin, published_topics
from purgatory.trace.trace_schema import NULLABLE, RULES, TABLES

BAD_ROW = "bad row"
"""The reason for a row in quarantine that is invalid; what is wrong with it follows."""

LATE = "late"
"""The reason for a row in quarantine that came after its watermark."""

EXAMPLE_CHARACTERS = 200
"""How much of an invalid row the quarantine has as an example."""

_MORE_COLUMNS = {"started_us": "bigint", "numbered_by": "string", "_corrupt": "string"}
_EVENT_US = {
    "operations": "end_us",
    "sends": "coalesce(answer_us, send_us)",
    "reads": "time_us",
}
_FUTURE_US = 24 * 3600 * 1_000_000
"""A row from further in the future is invalid: it would move the watermark, and make all others
late."""

QUARANTINE = "quarantine"
"""The table that counts the rows in quarantine."""

QUARANTINE_COLUMNS = {"source": "string", "reason": "string", "rows": "bigint", "example": "string"}
"""Its columns: how many rows of which table are in quarantine, why, and an example."""

_PANDAS = {"bigint": "Int64", "int": "Int32", "double": "Float64", "timestamp": "datetime64[us]"}

PACKED = "packed"
"""The column of packed rows."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMEOUT_S = 15.0


# Topics as streams of records


class RecordStreams(Protocol):
    """Returns the stream of the records of some tables, with columns `value` and `table`."""

    def __call__(self, *tables: str) -> DataFrame:
        """Return the stream of these tables' records."""


def topic_records(
    session: SparkSession,
    bootstrap_servers: str,
    prefix: str,
    most_rows: int,
    client: Mapping[str, str],
) -> RecordStreams:
    """Return the streams of a cluster's topics.

    Args:
        session: the source is registered in it.
        bootstrap_servers: of the cluster.
        prefix: of the topics' names.
        most_rows: how many records a batch has at most.
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
    """Refuse a cluster that does not respond, or lacks one of the topics. Takes 15 s at most.

    Raises:
        FaultError: no broker responds in time.
        PipelineError: the brokers refuse, or a topic is missing.
    """
    try:
        names = set(published_topics(prefix).values())
        _, existing = connect_admin(bootstrap_servers, client, _TIMEOUT_S)
    except ValueError as error:
        raise PipelineError(f"--prefix {error}") from None
    except ConnectError as error:
        kind = FaultError if error.is_transient else PipelineError
        raise kind(f"--bootstrap {bootstrap_servers}: no cluster answers: {error}") from error
    missing = sorted(names - existing)
    if missing:
        raise PipelineError(
            f"{bootstrap_servers} has no topic {missing[0]}: publish to it first (purgatory "
            "cluster --publish PREFIX), and give the same --prefix"
        )


# Records as rows


def rows_of(records: DataFrame, *tables: str) -> DataFrame:
    """Parse records, each of which is one row as JSON.

    Stateless: O(1) per record, in the JVM.

    Args:
        records: with a column `value`, text or binary, and, for several tables, `table`: that of
            the record. Other columns are ignored.
        tables: some of `operations`, `sends` and `reads`.

    Returns:
        `table`; the columns of these tables (`docs/traces.md`), null where the table of a row has
        no such column; `started_us` and `numbered_by`; `event_us`, the time of the event, in
        microseconds since 1970; `problem`, null for a valid row, and `example`, the beginning of
        the text of an invalid one, whose `event_us` is 0.
    """
    table = f.lit(tables[0]) if len(tables) == 1 else f.col("table")
    flat = _parsed(records, table, tables)
    problem = f.coalesce(
        _by_table(table, {name: _problem(name) for name in tables}),
        f.when(~f.coalesce(table.isin(*tables), f.lit(False)), "no such table"),
    )
    ended_us = _by_table(table, {name: f.expr(_EVENT_US[name]) for name in tables})
    checked = flat.withColumn(
        "event_us", f.coalesce(f.col("started_us"), f.lit(0)) + ended_us
    ).withColumn("problem", problem)
    is_bad = f.col("problem").isNotNull()
    placed = ("table", "text", "run_id", "_corrupt", "event_us", "problem")
    return checked.select(
        "table",
        f.coalesce("run_id", f.lit("")).alias("run_id"),
        *(name for name in checked.columns if name not in placed),
        f.when(is_bad, 0).otherwise(f.col("event_us")).alias("event_us"),
        "problem",
        f.when(is_bad, f.substring("text", 1, EXAMPLE_CHARACTERS)).alias("example"),
    )


def _parsed(records: DataFrame, table: Column, tables: Sequence[str]) -> DataFrame:
    """Return `table`, `text` and the columns of all tables, each parsed by its own schema."""
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
    """Return the column with the value for the table of a row."""
    return f.coalesce(*(f.when(table == name, value) for name, value in values.items()))


def _columns(table: str) -> dict[str, str]:
    return {**TABLES[table], **_MORE_COLUMNS}


def _from_json(text: Column, table: str) -> Column:
    schema = ", ".join(f"`{name}` {kind}" for name, kind in _columns(table).items())
    options = {"columnNameOfCorruptRecord": "_corrupt", "mode": "PERMISSIVE"}
    return f.from_json(text, schema, options)


def _problem(table: str) -> Column:
    """Return the column with what is wrong with a row, null for a valid one."""
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
    """Return the column whether a time is too far in the future.

    Spark's `current_timestamp` is a constant in the code that Spark generates for a batch, which
    would be compiled for each batch. So the clock is read in Java, and only for rows that were too
    far in the future when the query started.
    """
    now_ms = f.expr("java_method('java.lang.System', 'currentTimeMillis')").cast("bigint")
    surely_us = time.time_ns() // 1_000 + _FUTURE_US
    return (event_us > surely_us) & (event_us > now_ms * 1_000 + _FUTURE_US)


# The watermark


def with_watermark(rows: DataFrame, watermark_delay_us: int) -> DataFrame:
    """Set a watermark `watermark_delay_us` behind the newest `event_us`.

    The column by which Spark would drop late rows is not passed on: the queries count them.
    """
    delay = f"{watermark_delay_us // 1_000} milliseconds"
    return (
        rows.withColumn("event_time", f.timestamp_micros("event_us"))
        .withWatermark("event_time", delay)
        .withColumn("event_us", f.unix_micros("event_time"))
        .drop("event_time")
    )


def watermark_us(progress: Mapping[str, Any]) -> int | None:
    """Return the watermark in a query's progress, in microseconds since 1970, or None.

    Args:
        progress: `StreamingQuery.lastProgress`.
    """
    watermark = (progress.get("eventTime") or {}).get("watermark")
    if watermark is None:
        return None
    time = datetime.fromisoformat(watermark.replace("Z", "+00:00"))
    return (time - _EPOCH) // timedelta(microseconds=1)


# Rows packed on their way to a stateful processor
#
# Spark hands rows to a stateful processor one by one, which costs more than the processing. So the
# rows of a key in an Arrow batch are packed into one before the shuffle.


def pack_by(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Pack the rows of the same keys in an Arrow batch into one row.

    O(n log n) in Python, for the rows of a batch.

    Args:
        rows: with these columns, and others.
        keys: of text or whole numbers, never null.

    Returns:
        The columns of the keys, and `PACKED`, which `unpack_rows` reads.
    """
    schema = rows.select(*keys).schema.add(PACKED, "binary")

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _pack(batch, keys)

    return rows.mapInArrow(pack, schema)


def unpack_rows(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows in some packed rows."""
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
    """Return the positions at which a column changes its value, and 0."""
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


# Rows of results
#
# A query has two tables in one stream, told apart by the column `table`.


def ddl(columns: Mapping[str, str]) -> str:
    """Return columns as Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Return rows with all of these columns, null where a row has none, whole numbers exact."""
    return pd.DataFrame(
        {
            name: pd.Series([row.get(name) for row in rows], dtype=_PANDAS.get(kind, object))
            for name, kind in columns.items()
        }
    )


def quarantine_row(
    source: str, reason: str, rows: int, example: str | None, run_id: str
) -> dict[str, Any]:
    """Return a row of the table `quarantine`."""
    return {
        "table": QUARANTINE,
        "run_id": run_id,
        "source": source,
        "reason": reason,
        "rows": rows,
        "example": example,
    }


def bad_rows(source: str, part: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of `quarantine` for the rows that have a `problem`."""
    bad = part[part["problem"].notna()]
    return [
        quarantine_row(source, f"{BAD_ROW}: {problem}", len(rows), rows["example"].iloc[0], "")
        for problem, rows in bad.groupby("problem")
    ]


def time_of(us: int) -> pd.Timestamp:
    """Return a time given in microseconds since 1970."""
    return pd.Timestamp(us, unit="us")
