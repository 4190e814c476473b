"""Order within a producer: records that lie behind later ones, and records that are missing.

Partitioning: by (run, producer, range of sequence numbers), so a producer with hundreds of millions
of records is many tasks, and so is a partition that one producer fills. What a range must know of
the others is one row each, put into it before its windows run:

* of the ranges before it, the last number that was sent, and from where to where the producer's
  stored numbers reach;
* of the ranges behind it, the least offset per partition: whatever lies above it, in this range, is
  behind a later record.

These rows come from one small row per range (and partition), added up over the ranges of a producer
by windows that see ranges and never records.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.analysis.auditing.cases import Case, case, cases_of, record

_RANGE = ["run_id", "producer", "range"]
_SLICE = [*_RANGE, "topic", "partition"]
_FIRST, _LAST = -(2**63), 2**63 - 2
"""Before and behind all numbers; the last but one, because a frame of greater ones adds 1 to it."""


def sequence_cases(values: DataFrame, split: int) -> DataFrame:
    """Retry reorders, nonmonotonic sends and sequence gaps, from the table of values.

    Numbers may begin anew under one producer: records of one number have no order among them, and
    a number is missing only if none of them is stored.

    Args:
        values: the table of `values.values`; it is read three times.
        split: how many sequence numbers one range holds.
    """
    records = _records(values, split)
    rows = records.unionByName(_before(records), allowMissingColumns=True).unionByName(
        _behind(records), allowMissingColumns=True
    )
    before = Window.partitionBy(*_RANGE).orderBy("place_in_range", "value_id", "topic", "partition")
    so_far = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    earlier = before.rowsBetween(Window.unboundedPreceding, -1)
    alike = (
        Window.partitionBy(*_RANGE)
        .orderBy("place_in_range")
        .rangeBetween(Window.currentRow, Window.currentRow)
    )
    # A frame of values, not of rows: those of greater numbers, and none of the same.
    later = (
        Window.partitionBy(*_SLICE)
        .orderBy(f.col("place_in_range").desc())
        .rangeBetween(Window.unboundedPreceding, -1)
    )
    known = (
        rows.repartition(*_RANGE)
        .withColumn("earlier", f.max("sent").over(earlier))
        .withColumn("stored_from", f.max("stored_from").over(so_far))
        .withColumn("stored_to", f.max("stored_to").over(so_far))
        .withColumn("stored_alike", f.max("first_offset").over(alike))
        .withColumn("later", f.min("least").over(later))
        .where("sequence is not null")
    )
    return _cases(known)


def _records(values: DataFrame, split: int) -> DataFrame:
    """A row per record and partition that holds it; one without a partition if none does."""
    exploded = values.where("attempts > 0").select(
        "run_id",
        "producer",
        f.expr(f"sequence div {split}").alias("range"),
        f.col("sequence").alias("place_in_range"),
        "sequence",
        "topic",
        "value_id",
        "group",
        "key",
        "acks",
        "attempts",
        "last_attempt",
        "oks",
        "open",
        (f.col("aborts") == f.col("attempts")).alias("aborted"),
        "send_us",
        f.explode(
            f.when(f.size("stored") > 0, f.col("stored")).otherwise(f.array(f.lit(None)))
        ).alias("at"),
    )
    return exploded.select(
        *exploded.columns[:-1],
        *(f.col(f"at.{name}").alias(name) for name in ("partition", "first_offset")),
        f.struct("sequence", "value_id", "topic", "aborted").alias("sent"),
        f.when(
            f.col("at").isNotNull(),
            f.struct(f.col("at.first_offset").alias("first_offset"), "sequence", "value_id"),
        ).alias("least"),
    )


def _before(records: DataFrame) -> DataFrame:
    """For each range: the last record before it, and what the producer's stored numbers span."""
    stored = f.when(f.col("first_offset").isNotNull(), f.col("sequence"))
    all_ranges = Window.partitionBy("run_id", "producer")
    earlier = all_ranges.orderBy("range").rowsBetween(Window.unboundedPreceding, -1)
    return (
        records.groupBy(*_RANGE)
        .agg(
            f.max("sent").alias("last"),
            f.min(stored).alias("least_stored"),
            f.max(stored).alias("most_stored"),
        )
        .select(
            *_RANGE,
            f.lit(_FIRST).cast("bigint").alias("place_in_range"),
            f.max("last").over(earlier).alias("sent"),
            f.min("least_stored").over(all_ranges).alias("stored_from"),
            f.max("most_stored").over(all_ranges).alias("stored_to"),
        )
    )


def _behind(records: DataFrame) -> DataFrame:
    """For each range and partition: the record of the later ranges that lies first in it."""
    later = (
        Window.partitionBy("run_id", "producer", "topic", "partition")
        .orderBy(f.col("range").desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        records.where("first_offset is not null")
        .groupBy(*_SLICE)
        .agg(f.min("least").alias("in_range"))
        .select(
            *_SLICE,
            f.lit(_LAST).cast("bigint").alias("place_in_range"),
            f.min("in_range").over(later).alias("least"),
        )
        .where("least is not null")
    )


def _cases(rows: DataFrame) -> DataFrame:
    behind = f.col("later.first_offset") < f.col("first_offset")
    again = (f.col("last_attempt") > 1) | (f.col("attempts") > 1)
    between = (f.col("stored_from") <= f.col("earlier.sequence")) & (
        f.col("sequence") <= f.col("stored_to")
    )
    unstored = (
        f.col("stored_alike").isNull()
        & ~f.col("aborted")
        & (f.col("stored_from") < f.col("sequence"))
        & (f.col("sequence") < f.col("stored_to"))
    )
    never_sent = f.col("sequence") - f.col("earlier.sequence") - 1
    told = f.col("oks") > 0
    no_answer = f.when(f.col("acks") == 0, f.lit("acks=0"))
    both = f.array(record(), record("later.value_id"))  # they lie in one partition
    order = {"excusable": f.lit(True), "records": both}
    return cases_of(
        rows,
        {
            "reorder": (behind & again, _case("retry_reorder", **order)),
            "nonmonotonic": (
                behind & ~again,
                _case("nonmonotonic_send", records=both),
            ),
            "missing": (
                unstored,
                _case(
                    "sequence_gap",
                    permit=f.when(told & (f.col("acks") == 1), f.lit("acks=1")).otherwise(
                        no_answer
                    ),
                    excusable=~told,
                    doubt=f.when(~told & f.col("open"), f.lit("open at the end of the run")),
                    broken=f.when(told, f.lit("acks=all")),
                ),
            ),
            "never sent": (
                between & (never_sent > 0),
                _case(
                    "sequence_gap",
                    weight=never_sent,
                    sequence=f.col("earlier.sequence") + 1,
                    value_id=f.lit(None),
                    key=f.lit(None),
                    permit=no_answer,
                    # Who aborts a transaction may have numbered records that it never sent.
                    doubt=f.when(
                        f.col("earlier.aborted") | f.col("aborted"),
                        f.lit("perhaps of an aborted transaction"),
                    ),
                    excusable=f.lit(False),
                    records=f.array(record("earlier.value_id", "earlier.topic"), record()),
                ),
            ),
        },
    )


def _case(anomaly: str, **columns: Column) -> Case:
    return case(
        anomaly,
        **{
            "producer_group": f.col("group"),
            "topic": f.col("topic"),
            "partition": f.col("partition"),
            "offset": f.col("first_offset"),
            "producer": f.col("producer"),
            "key": f.col("key"),
            "value_id": f.col("value_id"),
            "sequence": f.col("sequence"),
            "time_us": f.col("send_us"),
            "attempts": f.col("attempts"),
            "records": f.array(record()),
            **columns,
        },
    )
