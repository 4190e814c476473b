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

from purgatory.pipeline.jobs import expressions as engines
from purgatory.pipeline.jobs.audit.cases import Case, case, extract_cases, input_key, record
from purgatory.pipeline.jobs.audit.losses_and_duplicates import plain_values, senders

_RANGE = ["run_id", "producer", "range"]
_SLICE = [*_RANGE, "topic", "partition"]
_FIRST, _LAST = -(2**63), 2**63 - 2
"""Before and behind all numbers; the last but one, because a frame of greater ones adds 1 to it."""


def sequence_cases(values: DataFrame, split: int) -> DataFrame:
    """Retry reorders, nonmonotonic sends and sequence gaps, from the table of values.

    Numbers may begin anew under one producer: records of one number have no order among them, and
    a number is missing only if none of them is stored.

    Args:
        values: the table of `values.values`, or what `disorder_candidates` leaves of it; it is read
            three times.
        split: how many sequence numbers one range holds.
    """
    records = _records(values, split)
    rows = records.unionByName(_range_predecessors(records), allowMissingColumns=True).unionByName(
        _range_successors(records), allowMissingColumns=True
    )
    before = Window.partitionBy(*_RANGE).orderBy("place_in_range", "value_id", "topic", "partition")
    so_far = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    same_number = (
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
        .withColumn("earlier", f.lag("sent").over(before))
        .withColumn("stored_from", f.max("stored_from").over(so_far))
        .withColumn("stored_to", f.max("stored_to").over(so_far))
        .withColumn("stored_alike", f.max("first_offset").over(same_number))
        .withColumn("later", f.min("least").over(later))
        .where("sequence is not null")
    )
    return _sequence_cases(known)


def disorder_candidates(values: DataFrame, sends: DataFrame, places: DataFrame) -> DataFrame:
    """The records of those producers that may have a case of order, as `values.values` has them.

    They are those whose offsets fall anywhere in a partition, and those that have fewer stored
    numbers than there are from the first to the last.

    Args:
        values: without the plain records.
        sends: with `resolve_sends`.
        places: the table of `values.single_places`.
    """
    plain = places.where("plain")
    others = values.where("attempts > 0")
    by_partition = [*_PRODUCER, "topic", "partition"]
    at = others.select(*_PRODUCER, "sequence", "topic", f.explode("stored").alias("at"))
    numbered = plain.select(*by_partition, "sequence", "offset").unionByName(
        at.select(
            *_PRODUCER,
            "topic",
            f.col("at.partition").alias("partition"),
            "sequence",
            f.col("at.first_offset").alias("offset"),
        )
    )
    in_order = Window.partitionBy(*by_partition).orderBy("sequence", "offset")
    stored = f.countDistinct("sequence")
    suspects = engines.persist(
        numbered.withColumn("falls", f.col("offset") < f.lag("offset").over(in_order))
        .groupBy(*_PRODUCER)
        .agg(
            f.bool_or("falls").alias("falls"),
            (f.max("sequence") - f.min("sequence") + 1 > stored).alias("lacks"),
        )
        .where("falls or lacks")
        .select(*_PRODUCER)
    )
    columns = list(_OF_ORDER)
    chosen = plain.join(suspects, _PRODUCER, "left_semi")
    return engines.persist(
        others.join(suspects, _PRODUCER, "left_semi")
        .select(*columns)
        .unionByName(plain_values(sends, chosen).select(*columns))
    )


_PRODUCER = ["run_id", "producer"]
_OF_ORDER = (
    *("run_id", "producer", "sequence", "topic", "value_id", "group", "key", "acks"),
    *("attempts", "last_attempt", "oks", "open", "aborts", "send_us", "stored"),
)


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


def _range_predecessors(records: DataFrame) -> DataFrame:
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


def _range_successors(records: DataFrame) -> DataFrame:
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


def _sequence_cases(rows: DataFrame) -> DataFrame:
    behind = f.col("later.first_offset") < f.col("first_offset")
    resent = (f.col("last_attempt") > 1) | (f.col("attempts") > 1)
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
    acknowledged = f.col("oks") > 0
    no_answer = f.when(f.col("acks") == 0, f.lit("acks=0"))
    both = f.array(record(), record("later.value_id"))  # they lie in one partition
    order = {"excusable": f.lit(True), "records": both}
    return extract_cases(
        rows,
        {
            "reorder": (behind & resent, _sequence_case("retry_reorder", **order)),
            "nonmonotonic": (
                behind & ~resent,
                _sequence_case("nonmonotonic_send", records=both),
            ),
            "missing": (
                unstored,
                _sequence_case(
                    "sequence_gap",
                    permit=f.when(acknowledged & (f.col("acks") == 1), f.lit("acks=1")).otherwise(
                        no_answer
                    ),
                    excusable=~acknowledged,
                    doubt=f.when(
                        ~acknowledged & f.col("open"), f.lit("open at the end of the run")
                    ),
                    broken=f.when(acknowledged, f.lit("acks=all")),
                ),
            ),
            "never sent": (
                between & (never_sent > 0),
                _sequence_case(
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


def _sequence_case(anomaly: str, **columns: Column) -> Case:
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


# Order within a reader: polls that jump over known offsets, or go back.
#
# Offsets may be sparse, so they are ranked densely per partition, over all that anybody read in it.
# A poll is what a reader got at once: it should begin one rank behind the end of the last one.
#
# Partitioning: the ranks are counted per (run, topic, partition, range of offsets), from 0 in each
# range; what the ranges before it hold is added later, when only polls are left. Polls are compared
# per (run, group, consumer, topic, partition, range of polls), with the last poll of the ranges
# before put into each range. So neither a hot partition nor a reader of it is one task.


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
    rows = polls.unionByName(_previous_ends(polls), allowMissingColumns=True)
    previous = Window.partitionBy(*_POLLS).orderBy("poll")
    known = rows.withColumn("earlier", f.lag("end").over(previous)).where("first_rank is not null")
    return _poll_cases(known)


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


def _previous_ends(polls: DataFrame) -> DataFrame:
    """For each range of a reader's polls but the first: the end of the poll before it."""
    of_reader = Window.partitionBy(*_READER).orderBy("poll_range")
    return (
        polls.groupBy(*_POLLS)
        .agg(f.max("end").alias("last"))
        .select(*_POLLS, f.lag("last").over(of_reader).alias("end"))
        .where("end is not null")
        .withColumn("poll", f.col("end.poll"))
    )


def _poll_cases(rows: DataFrame) -> DataFrame:
    step = f.col("first_rank") - f.col("earlier.last_rank")
    holes = f.col("last_rank") - f.col("first_rank") + 1 > f.col("offsets")
    ends = f.array(record("earlier.last_value"), record("first_value"))
    return extract_cases(
        rows,
        {
            "skip": (step > 1, _poll_case("poll_skip", records=ends)),
            # No rebalance takes place within a poll.
            "skip within": (
                holes,
                _poll_case(
                    "poll_skip",
                    excusable=f.lit(False),
                    records=f.array(record("first_value"), record("last_value")),
                ),
            ),
            "back": (step < 1, _poll_case("nonmonotonic_poll", records=ends)),
        },
    )


def _poll_case(anomaly: str, **columns: Column) -> Case:
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


# Order within a key: the versions of one row of a table, in the order of their application.
#
# Partitioning: by (run, group, topic, key, range of time), so that one hot key is many tasks. The
# highest version applied before a range is put into it as one row.


_KEY = ["run_id", "group", "topic", "key"]
_KEY_RANGE = [*_KEY, "range"]
_PLACE = ["run_id", "topic", "partition", "offset"]
_RECORD = ["run_id", "topic", "value_id"]


def key_cases(
    effects: DataFrame,
    reads: DataFrame,
    values: DataFrame,
    split_us: int,
    sends: DataFrame | None = None,
) -> DataFrame:
    """Versions of a key that were applied after a higher one.

    Effects of one microsecond count as applied in the order of their partitions, offsets and
    versions. Where the log itself has the versions in that order, the settings of the producer
    decide.

    Args:
        effects, reads: the trace's tables.
        values: the table of `values.values`, which knows who sent a value.
        split_us: how much time one range holds, in microseconds.
        sends: with `resolve_sends`, where `values` has no plain records.
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
    rows = applied.unionByName(_previous_highest(applied), allowMissingColumns=True)
    earlier = (
        Window.partitionBy(*_KEY_RANGE)
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
    return _key_cases(_with_sender(late, reads, values, sends))


def _previous_highest(applied: DataFrame) -> DataFrame:
    """For each range of a key but the first: the highest version that was applied before it."""
    earlier = Window.partitionBy(*_KEY).orderBy("range").rowsBetween(Window.unboundedPreceding, -1)
    return (
        applied.groupBy(*_KEY_RANGE)
        .agg(f.max("applied").alias("in_range"))
        .select(
            *_KEY_RANGE,
            f.max("in_range").over(earlier).alias("applied"),
            f.lit(-(2**63)).cast("bigint").alias("time_us"),
        )
        .where("applied is not null")
    )


def _with_sender(
    late: DataFrame, reads: DataFrame, values: DataFrame, sends: DataFrame | None
) -> DataFrame:
    """Add the producers of the records that were applied late, whose settings decide."""
    records = reads.join(late.select(*_PLACE).distinct(), _PLACE, "left_semi")
    records = records.groupBy(*_PLACE).agg(f.min("value_id").alias("value_id"))
    if sends is None:
        group = f.col("group").alias("producer_group")
        sent = values.select(*_RECORD, group, "producer", "sequence")
    else:
        sent = senders(sends, records.select(*_RECORD).distinct())
    return late.join(records, _PLACE, "left").join(sent, _RECORD, "left")


def _key_cases(late: DataFrame) -> DataFrame:
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
        inputs=f.array(input_key(f.col("group")), highest),
    )
    return extract_cases(late, {"late": (f.lit(True), violated)})
