"""Order within a key: the versions of one row of a table, in the order of their application.

Partitioning: by (run, group, topic, key, range of time), so that one hot key is many tasks. The
highest version applied before a range is put into it as one row.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from purgatory.analysis.auditing.cases import case, cases_of, place, record

_KEY = ["run_id", "group", "topic", "key"]
_RANGE = [*_KEY, "range"]
_PLACE = ["run_id", "topic", "partition", "offset"]
_RECORD = ["run_id", "topic", "value_id"]


def key_cases(effects: DataFrame, reads: DataFrame, values: DataFrame, split_us: int) -> DataFrame:
    """Versions of a key that were applied after a higher one.

    Effects of one microsecond count as applied in the order of their partitions, offsets and
    versions. Where the log itself has the versions in that order, the settings of the producer
    decide.

    Args:
        effects, reads: the trace's tables.
        values: the table of `values.values`, which knows who sent a value.
        split_us: how much time one range holds, in microseconds.
    """
    applied = effects.where("key is not null and version is not null").select(
        *_KEY,
        f.expr(f"time_us div {split_us}").alias("range"),
        "time_us",
        "partition",
        "offset",
        "version",
        "consumer",
        f.struct("version", "partition", "offset").alias("applied"),
    )
    rows = applied.unionByName(_highest_before(applied), allowMissingColumns=True)
    earlier = (
        Window.partitionBy(*_RANGE)
        .orderBy("time_us", "partition", "offset", "version")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    late = (
        rows.withColumn("highest", f.max("applied").over(earlier))
        .where("version < highest.version")
        .withColumn(
            "log_order",
            (f.col("partition") == f.col("highest.partition"))
            & (f.col("offset") > f.col("highest.offset")),
        )
    )
    return _cases(_with_sender(late, reads, values))


def _highest_before(applied: DataFrame) -> DataFrame:
    """For each range of a key but the first: the highest version that was applied before it."""
    earlier = Window.partitionBy(*_KEY).orderBy("range").rowsBetween(Window.unboundedPreceding, -1)
    return (
        applied.groupBy(*_RANGE)
        .agg(f.max("applied").alias("in_range"))
        .select(
            *_RANGE,
            f.max("in_range").over(earlier).alias("applied"),
            f.lit(-(2**63)).cast("bigint").alias("time_us"),
        )
        .where("applied is not null")
    )


def _with_sender(late: DataFrame, reads: DataFrame, values: DataFrame) -> DataFrame:
    """Add who sent the records that were applied late: that producer's settings decide."""
    held = reads.join(late.select(*_PLACE).distinct(), _PLACE, "left_semi")
    held = held.groupBy(*_PLACE).agg(f.min("value_id").alias("value_id"))
    senders = values.select(
        *_RECORD, f.col("group").alias("producer_group"), "producer", "sequence"
    )
    return late.join(held, _PLACE, "left").join(senders, _RECORD, "left")


def _cases(late: DataFrame) -> DataFrame:
    highest = f.struct(
        f.col("group"), f.col("topic"), f.col("highest.partition"), f.col("highest.offset")
    )
    violated = case(
        "key_order_violation",
        producer_group=f.col("producer_group"),
        consumer_group=f.col("group"),
        topic=f.col("topic"),
        partition=f.col("partition"),
        offset=f.col("offset"),
        producer=f.col("producer"),
        consumer=f.col("consumer"),
        key=f.col("key"),
        value_id=f.col("value_id"),
        sequence=f.col("sequence"),
        time_us=f.col("time_us"),
        excusable=f.col("log_order"),
        records=f.array(record()),
        inputs=f.array(place(f.col("group")), highest),
    )
    return cases_of(late, {"late": (f.lit(True), violated)})
