"""The tables of the result: counts of all cases, and a few of them with the rows involved.

Partitioning: counts are added up before the shuffle; of the cases of a run and anomaly, each task
passes on its first N, so that no window sees more. The rows that belong to the chosen cases are
found by a broadcast join of what identifies them, which is small: N x anomalies x runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.audit.anomalies import (
    ANOMALIES,
    GROUNDS,
    INDETERMINATE,
    NO_READS,
    NO_SENDS,
    NONE,
    NONE_ACKNOWLEDGED,
    NONE_STORED,
    VERDICTS,
)
from purgatory.pipeline.jobs.expressions import broadcast, position

EVENT: Mapping[str, str] = {
    "time_us": "bigint",
    "event": "string",
    "group": "string",
    "producer": "bigint",
    "consumer": "bigint",
    "sequence": "bigint",
    "attempt": "int",
    "acks": "int",
    "outcome": "string",
    "error": "string",
    "until_us": "bigint",
    "poll": "bigint",
    "applied": "boolean",
    "key": "bigint",
    "version": "bigint",
    "value_id": "bigint",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "transactional_id": "string",
    "epoch": "int",
    "transaction": "bigint",
    "isolation": "string",
    "held": "boolean",
}
"""A row of the trace in a witness: `event` is `send`, `read`, `effect`, `commit`, `transaction`.

`until_us` is when the answer to a send was there, or a transaction over. What does not apply is
null.
"""

_KEY = ["run_id", "anomaly", "rank"]
_RECORD = ["topic", "value_id"]
_INPUT = ["group", "topic", "partition", "offset"]
_WITNESS = (
    "verdict",
    "setting",
    "group",
    "topic",
    "partition",
    "offset",
    "producer",
    "consumer",
    "key",
    "value_id",
    "sequence",
    "transaction",
    "time_us",
    "count",
)
_ORDER = (
    "time_us",
    "topic",
    "partition",
    "offset",
    "producer",
    "sequence",
    "consumer",
    "value_id",
    "key",
    "transaction",
    "group",
    "setting",
    "weight",
)
"""The order of the cases of one verdict."""

MOST_EVENTS = 100
"""The most rows of a witness, the earliest of them."""


def counts(cases: DataFrame, runs: DataFrame) -> DataFrame:
    """The table `audit`: of each run and anomaly, how many cases with which verdict.

    An anomaly that was not found has a row with the count 0: with the verdict `none`, or
    `indeterminate` where the trace lacks the rows that would show it.

    Args:
        cases: with verdicts.
        runs: `run_id`, and `has_effects` and so on: whether the run has rows of those.
    """
    counted = cases.groupBy("run_id", "anomaly", "group", "verdict", "setting").agg(
        f.sum("weight").cast("bigint").alias("count")
    )
    names = f.explode(f.array(*(f.lit(name) for name in ANOMALIES))).alias("anomaly")
    pairs = runs.select("*", names)
    reason = _missing_reason()
    return pairs.join(counted, ["run_id", "anomaly"], "left").select(
        "run_id",
        "anomaly",
        "group",
        f.coalesce("verdict", f.when(reason.isNotNull(), INDETERMINATE).otherwise(NONE)).alias(
            "verdict"
        ),
        f.coalesce("setting", f.when(f.col("verdict").isNull(), reason)).alias("setting"),
        f.coalesce("count", f.lit(0)).alias("count"),
    )


def witnesses(
    cases: DataFrame,
    most: int,
    tables: Mapping[str, DataFrame],
) -> DataFrame:
    """The table `witnesses`: the first `most` cases of each run and anomaly, with their rows.

    Violations come first, then what is indeterminate, then by time, then by all else that a witness
    shows: cases that tie are the same to the reader, so nothing depends on the order of rows.
    """
    order = [*(f.col(name) for name in ("severity", *_ORDER)), *_row_columns()]
    first = Window.partitionBy("run_id", "anomaly").orderBy(*_nulls_first(order))
    chosen = (
        cases.withColumn("severity", position(VERDICTS, "verdict"))
        .withColumn("rank", f.row_number().over(first).cast("int"))
        .where(f.col("rank") <= most)
        .drop("severity")
        .withColumnRenamed("weight", "count")
    )
    by_record = chosen.select(*_KEY, f.explode(f.array_distinct("records")).alias("record"))
    of_record = (f.col(f"record.{name}").alias(name) for name in _RECORD)
    by_input = chosen.select(*_KEY, f.explode(f.array_distinct("inputs")).alias("input"))
    of_records, of_inputs = _events(tables)
    events = of_records.join(
        broadcast(by_record.select(*_KEY, *of_record)), ["run_id", *_RECORD]
    ).select(*_KEY, "event")
    events = events.unionByName(
        of_inputs.join(
            broadcast(
                by_input.select(*_KEY, *(f.col(f"input.{name}").alias(name) for name in _INPUT))
            ),
            ["run_id", *_INPUT],
        ).select(*_KEY, "event")
    )
    if "transactions" in tables:
        named = chosen.where("transaction is not null").select(*_KEY, "transaction")
        rows = tables["transactions"]
        ends = rows.select("run_id", "transaction", _event(rows, "transaction"))
        of_transactions = ends.join(broadcast(named), ["run_id", "transaction"])
        events = events.unionByName(of_transactions.select(*_KEY, "event"))
    earliest = (
        Window.partitionBy(*_KEY)
        # By its fields: engines differ in where they put a null within a struct.
        .orderBy(*_nulls_first([f.col(f"event.{name}") for name in EVENT]))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    shown = (
        events.distinct()
        .withColumn("number", f.row_number().over(earliest))
        .where(f.col("number") <= MOST_EVENTS)
        .select(*_KEY, f.struct("number", "event").alias("numbered"))
    )
    witness = f.struct(*_WITNESS).alias("witness")
    return (
        chosen.select(*_KEY, witness)
        .unionByName(shown, allowMissingColumns=True)
        .groupBy(*_KEY)
        .agg(
            f.max("witness").alias("witness"),
            f.array_sort(f.array_compact(f.collect_list("numbered"))).alias("numbered"),
        )
        .select(
            *_KEY,
            *(f.col(f"witness.{name}").alias(name) for name in _WITNESS),
            f.transform("numbered", lambda one: one["event"]).alias("events"),
        )
    )


def _missing_reason() -> Column:
    of_effects = f.col("anomaly").isin("key_order_violation")
    of_both = f.col("anomaly").isin("offset_without_result", "result_without_offset")
    of_ends = f.col("anomaly").isin("partial_transaction", "zombie_write")
    has = {
        NO_SENDS: f.col("has_sends"),
        NONE_STORED: f.col("has_stored"),
        NONE_ACKNOWLEDGED: f.col("has_acknowledged"),
        # A group that has effects tells by them what it applied.
        NO_READS: f.col("has_reads")
        | ((f.col("anomaly") == "effect_duplicate") & f.col("has_effects")),
    }
    without = [
        f.when(f.col("anomaly").isin(*anomalies) & ~has[reason], f.lit(reason))
        for reason, anomalies in GROUNDS.items()
    ]
    # Where there are transactions, commits tell whether they hold.
    by_effects = of_effects | (of_both & ~f.col("has_transactions"))
    return f.coalesce(
        *without,
        f.when(by_effects & ~f.col("has_effects"), f.lit("no effects in the trace"))
        .when(of_both & ~f.col("has_commits"), f.lit("no commits in the trace"))
        .when(
            of_ends & f.col("has_transactional") & ~f.col("has_transactions"),
            f.lit("no transactions in the trace"),
        ),
    )


def _nulls_first(order: Sequence[Column]) -> list[Column]:
    """An order with nulls first, since the engines have different defaults."""
    return [column.asc_nulls_first() for column in order]


def _row_columns() -> list[Column]:
    """The records and inputs of a case as columns of an order: at most two of each."""
    return [
        f.try_element_at(shown, f.lit(number)).getField(name)
        for shown, fields in (("records", _RECORD), ("inputs", _INPUT))
        for number in (1, 2)
        for name in fields
    ]


def _events(tables: Mapping[str, DataFrame]) -> tuple[DataFrame, DataFrame]:
    """The rows of the trace as events: those that belong to records, and those of inputs."""
    sends, reads = tables["sends"], tables["reads"]
    sent, read = _event(sends, "send"), _event(reads, "read")
    of_records = sends.select("run_id", *_RECORD, sent).unionByName(
        reads.select("run_id", *_RECORD, read)
    )
    of_inputs = reads.select("run_id", *_INPUT, read)
    for name in ("effect", "commit"):
        table = tables.get(f"{name}s")
        if table is not None:
            of_inputs = of_inputs.unionByName(table.select("run_id", *_INPUT, _event(table, name)))
    return of_records, of_inputs


def _event(rows: DataFrame, name: str) -> Column:
    columns = {column: column for column in rows.columns if column in EVENT}
    if name == "send":
        columns |= {"time_us": "send_us", "until_us": "answer_us"}
    if name == "transaction":
        columns |= {"time_us": "begun_us", "until_us": "ended_us"}
    sources = {
        **{column: f"`{source}`" for column, source in columns.items()},
        "event": f"'{name}'",
    }
    fields = ", ".join(
        f"'{field}', CAST({sources.get(field, 'NULL')} AS {kind})" for field, kind in EVENT.items()
    )
    return f.expr(f"named_struct({fields})").alias("event")
