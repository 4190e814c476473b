"""Order within a reader: polls that jump over known offsets, or go back.

Offsets may be sparse, so they are ranked densely per partition, over all that anybody read in it.
A poll is what a reader was given at once: it should begin one rank behind the last one's end.

Partitioning: the ranks are counted per (run, topic, partition, range of offsets), from 0 in each
range; what the ranges before it hold is added later, when only polls are left. Polls are compared
per (run, group, consumer, topic, partition, range of polls), with the last poll of the ranges
before put into each range. So neither a hot partition nor a reader of it is one task.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.analysis.auditing.cases import Case, case, cases_of, record

_PARTITION = ["run_id", "topic", "partition"]
_OFFSETS = [*_PARTITION, "range"]
_READER = ["run_id", "group", "consumer", "topic", "partition"]
_POLLS = [*_READER, "poll_range"]


def poll_pieces(reads: DataFrame, split: int) -> DataFrame:
    """A row per poll, partition and range of offsets: its ranks within the range.

    Args:
        reads: the trace's table.
        split: how many offsets one range holds.
    """
    in_range = Window.partitionBy(*_OFFSETS).orderBy("offset")
    ranked = (
        reads.select(
            *_READER,
            "poll",
            "offset",
            "value_id",
            "time_us",
            f.expr(f"offset div {split}").alias("range"),
        )
        .repartition(*_OFFSETS)
        .groupBy(*_OFFSETS, "offset", "group", "consumer", "poll")
        .agg(f.min("value_id").alias("value_id"), f.min("time_us").alias("time_us"))
        .withColumn("rank", f.dense_rank().over(in_range).cast("bigint"))
    )
    return ranked.groupBy(*_READER, "poll", "range").agg(
        f.min("rank").alias("first_rank"),
        f.max("rank").alias("last_rank"),
        f.count(f.lit(1)).alias("offsets"),
        f.min("offset").alias("first_offset"),
        f.max("offset").alias("last_offset"),
        f.min_by("value_id", "offset").alias("first_value"),
        f.max_by("value_id", "offset").alias("last_value"),
        f.min("time_us").alias("time_us"),
    )


def poll_cases(pieces: DataFrame, split: int) -> DataFrame:
    """Polls that skip and polls that go back.

    Args:
        pieces: the table of `poll_pieces`; it is read several times.
        split: how many polls one range holds.
    """
    polls = _polls(pieces).withColumn("poll_range", f.expr(f"poll div {split}"))
    rows = polls.unionByName(_last_before(polls), allowMissingColumns=True)
    previous = Window.partitionBy(*_POLLS).orderBy("poll")
    known = rows.withColumn("earlier", f.lag("end").over(previous)).where("first_rank is not null")
    return _cases(known)


def _polls(pieces: DataFrame) -> DataFrame:
    """A row per poll and partition, with its ranks within the partition."""
    earlier = (
        Window.partitionBy(*_PARTITION).orderBy("range").rowsBetween(Window.unboundedPreceding, -1)
    )
    openings = (
        pieces.groupBy(*_OFFSETS)
        .agg(f.max("last_rank").alias("size"))
        .select(*_OFFSETS, f.coalesce(f.sum("size").over(earlier), f.lit(0)).alias("opening"))
    )
    polls = (
        pieces.join(openings, _OFFSETS)
        .groupBy(*_READER, "poll")
        .agg(
            f.min(f.col("opening") + f.col("first_rank")).alias("first_rank"),
            f.max(f.col("opening") + f.col("last_rank")).alias("last_rank"),
            f.sum("offsets").alias("offsets"),
            f.min("first_offset").alias("first_offset"),
            f.max("last_offset").alias("last_offset"),
            f.min_by("first_value", "first_offset").alias("first_value"),
            f.max_by("last_value", "last_offset").alias("last_value"),
            f.min("time_us").alias("time_us"),
        )
    )
    end = f.struct("poll", "last_rank", "last_offset", "last_value")
    return polls.withColumn("end", end)


def _last_before(polls: DataFrame) -> DataFrame:
    """For each range of a reader's polls but the first: the end of the poll before it."""
    of_reader = Window.partitionBy(*_READER).orderBy("poll_range")
    return (
        polls.groupBy(*_POLLS)
        .agg(f.max("end").alias("last"))
        .select(*_POLLS, f.lag("last").over(of_reader).alias("end"))
        .where("end is not null")
        .withColumn("poll", f.col("end.poll"))
    )


def _cases(rows: DataFrame) -> DataFrame:
    step = f.col("first_rank") - f.col("earlier.last_rank")
    holes = f.col("last_rank") - f.col("first_rank") + 1 > f.col("offsets")
    ends = f.array(record("earlier.last_value"), record("first_value"))
    return cases_of(
        rows,
        {
            "skip": (step > 1, _case("poll_skip", records=ends)),
            # No rebalance takes place within a poll.
            "skip within": (
                holes,
                _case(
                    "poll_skip",
                    excusable=f.lit(False),
                    records=f.array(record("first_value"), record("last_value")),
                ),
            ),
            "back": (step < 1, _case("nonmonotonic_poll", records=ends)),
        },
    )


def _case(anomaly: str, **columns: Column) -> Case:
    return case(
        anomaly,
        **{
            "consumer_group": f.col("group"),
            "topic": f.col("topic"),
            "partition": f.col("partition"),
            "offset": f.col("first_offset"),
            "consumer": f.col("consumer"),
            "value_id": f.col("first_value"),
            "time_us": f.col("time_us"),
            "excusable": f.lit(True),
            **columns,
        },
    )
