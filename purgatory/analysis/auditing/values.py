"""What became of each value: its attempts, its acknowledgements, the places where it is stored.

Partitioning: one shuffle of all sends and reads by (run, value). A value has as many rows as it has
attempts and readings, and nothing is gathered in memory but its partitions: a tool that gives all
records one value makes one task slow, and breaks none.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.analysis.auditing.cases import Case, case, cases_of
from purgatory.analysis.auditing.client_configuration import SettingsTables

ABORTED = ("TRANSACTION_ABORTED", "TRANSACTION_ABORTABLE")
"""Errors of a send whose record is in the log, where only a transaction hides it."""

_VALUE = ["run_id", "value_id"]
_IN_PARTITION = [*_VALUE, "topic", "partition"]
_AT_PLACE = [*_IN_PARTITION, "offset"]
_SUMS = ("attempts", "oks", "unknowns", "fails", "reads", "committed_reads", "unknown_reads")


def values(sends: DataFrame, reads: DataFrame, settings: SettingsTables) -> DataFrame:
    """A row per run and value that was sent or read.

    `stored` has, for each partition that holds the value, its first offset there and its copies: a
    place counts if somebody read the value there, or if it was acknowledged and lies above
    all that was read in the partition. An acknowledged place below that, without the value, is
    none: `lost` if the value was never read.
    """
    reached = reads.groupBy("run_id", "topic", "partition").agg(f.max("offset").alias("reached"))
    observed = _sent(sends).unionByName(_read(reads, settings), allowMissingColumns=True)
    at_place = (
        observed.repartition(*_VALUE)
        .groupBy(*_AT_PLACE)
        .agg(*_merged(), f.max("acked").alias("acked"))
        .join(f.broadcast(reached), ["run_id", "topic", "partition"], "left")
        .withColumn("above", f.coalesce(f.col("offset") > f.col("reached"), f.lit(True)))
        .withColumn("unread", f.col("acked") & (f.col("reads") == 0))
        .withColumn("holds", (f.col("reads") > 0) | (f.col("unread") & f.col("above")))
    )
    in_partition = at_place.groupBy(*_IN_PARTITION).agg(
        *_merged(),
        f.min(f.when(f.col("holds"), f.col("offset"))).alias("first_offset"),
        f.count(f.when(f.col("holds"), f.lit(1))).alias("copies"),
        f.min(f.when(f.col("unread") & ~f.col("above"), f.col("offset"))).alias("missed_offset"),
        f.min(f.when(f.col("unread") & f.col("above"), f.col("offset"))).alias("waiting_offset"),
    )
    stored = f.struct("topic", "partition", "first_offset", "copies")
    return (
        in_partition.groupBy(*_VALUE)
        .agg(
            *_merged(),
            f.collect_list(f.when(f.col("copies") > 0, stored)).alias("stored"),
            f.sum("copies").alias("places"),
            f.min("missed_offset").alias("missed_offset"),
            f.min("waiting_offset").alias("waiting_offset"),
        )
        .select(
            *_VALUE,
            "first.*",
            *_SUMS,
            "last_attempt",
            (f.col("unknown_attempt") < f.col("last_attempt")).alias("lost_ack"),
            f.col("last.open").alias("open"),
            f.col("last.error").alias("error"),
            "send_us",
            "read_us",
            "stored",
            "places",
            "missed_offset",
            "waiting_offset",
        )
    )


def value_cases(table: DataFrame) -> DataFrame:
    """Duplicates, lost writes, unseen values and aborted reads, from the table of values.

    No shuffle: each row stands for itself.
    """
    sent = f.col("attempts") > 0
    copied = f.col("places") > 1
    lost_ack = f.coalesce(f.col("lost_ack"), f.lit(False))
    explained = lost_ack & (f.col("places") <= f.col("oks") + f.col("unknowns"))
    duplicate = {
        "excusable": explained,
        "doubt": f.when(~sent, f.lit("its sends are not in the trace")),
    }
    unread = (f.col("oks") > 0) & (f.col("reads") == 0)
    lost = unread & f.col("missed_offset").isNotNull() & f.col("waiting_offset").isNull()
    aborted = f.col("error").isin(*ABORTED)
    return cases_of(
        table.withColumn("at", f.get("stored", f.lit(0))),
        {
            "duplicate": (copied, _value_case("duplicate", **duplicate)),
            "lost_ack_duplicate": (
                copied & lost_ack,
                _value_case("lost_ack_duplicate", **duplicate),
            ),
            "lost_write": (
                lost,
                _value_case(
                    "lost_write",
                    offset=f.col("missed_offset"),
                    permit=_weak_acks(),
                    broken=f.lit("acks=all"),
                ),
            ),
            "unseen": (
                unread & ~lost,
                _value_case(
                    "unseen",
                    offset=f.col("waiting_offset"),
                    doubt=f.when(
                        f.col("waiting_offset").isNull(), f.lit("its offset is not known")
                    ).otherwise(f.lit("readers did not get there")),
                ),
            ),
            "aborted_read": (
                sent & (f.col("fails") == f.col("attempts")) & (f.col("reads") > 0),
                _value_case(
                    "aborted_read",
                    permit=f.when(
                        aborted & (f.col("committed_reads") == 0) & (f.col("unknown_reads") == 0),
                        f.lit("isolation=read_uncommitted"),
                    ),
                    doubt=f.when(
                        aborted & (f.col("committed_reads") == 0),
                        f.lit("configuration unknown: isolation"),
                    ),
                    broken=f.when(aborted, f.lit("isolation=read_committed")),
                ),
            ),
        },
    )


def _weak_acks() -> Column:
    """The setting that permits losing what was acknowledged."""
    return f.when(f.col("acks").isin(0, 1), f.concat(f.lit("acks="), f.col("acks")))


def _value_case(anomaly: str, **columns: Column) -> Case:
    return case(
        anomaly,
        **{
            "producer_group": f.col("group"),
            "topic": f.coalesce(f.col("at.topic"), f.col("topic")),
            "partition": f.coalesce(f.col("at.partition"), f.col("partition")),
            "offset": f.col("at.first_offset"),
            "producer": f.col("producer"),
            "key": f.col("key"),
            "value_id": f.col("value_id"),
            "sequence": f.col("sequence"),
            "time_us": f.coalesce(f.col("send_us"), f.col("read_us")),
            "attempts": f.col("attempts"),
            "values": f.array("value_id"),
            **columns,
        },
    )


def _sent(sends: DataFrame) -> DataFrame:
    acknowledged = f.col("outcome") == "ok"
    unknown = f.col("outcome") == "unknown"
    first = f.struct(
        "attempt", "group", "producer", "sequence", "key", "acks", "topic", "partition"
    )
    last = f.struct(
        "attempt",
        (unknown & f.col("answer_us").isNull() & (f.col("acks") != 0)).alias("open"),
        "error",
    )
    return sends.select(
        *_IN_PARTITION,
        f.when(acknowledged, f.col("offset")).alias("offset"),
        first.alias("first"),
        last.alias("last"),
        f.lit(1).cast("bigint").alias("attempts"),
        acknowledged.cast("bigint").alias("oks"),
        unknown.cast("bigint").alias("unknowns"),
        (f.col("outcome") == "fail").cast("bigint").alias("fails"),
        *(f.lit(0).cast("bigint").alias(name) for name in _SUMS[4:]),
        f.col("attempt").alias("last_attempt"),
        f.when(unknown, f.col("attempt")).alias("unknown_attempt"),
        "send_us",
        (acknowledged & f.col("offset").isNotNull()).alias("acked"),
    )


def _read(reads: DataFrame, settings: SettingsTables) -> DataFrame:
    judged = settings.of_consumers(
        reads.select(*_AT_PLACE, "group", "time_us"), "group", "settings_"
    )
    isolation = f.col("settings_isolation")
    return judged.select(
        *_AT_PLACE,
        *(f.lit(0).cast("bigint").alias(name) for name in _SUMS[:4]),
        f.lit(1).cast("bigint").alias("reads"),
        f.coalesce((isolation == "read_committed").cast("bigint"), f.lit(0)).alias(
            "committed_reads"
        ),
        isolation.isNull().cast("bigint").alias("unknown_reads"),
        f.col("time_us").alias("read_us"),
        f.lit(False).alias("acked"),
    )


def _merged() -> list[Column]:
    """The columns that are put together in the same way at each step."""
    return [
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        *(f.sum(name).alias(name) for name in _SUMS),
        f.max("last_attempt").alias("last_attempt"),
        f.min("unknown_attempt").alias("unknown_attempt"),
        f.min("send_us").alias("send_us"),
        f.min("read_us").alias("read_us"),
    ]
