"""The attempts, acknowledgements and places (partition and offset) of each record.

A record is a value within its topic: its copy in another topic is another record.

Partitioning: one shuffle of all sends and reads by (run, topic, value). A record has as many rows
as attempts and reads, and only its partitions are collected in memory: if all records have one
value, one task is slow, and none fails.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.audit.anomalies import UNREAD, UNREAD_COPIES
from purgatory.pipeline.jobs.audit.cases import Case, SettingsTables, case, extract_cases, record
from purgatory.pipeline.jobs.audit.transactions import ABORTED
from purgatory.pipeline.jobs.expressions import broadcast

_RECORD = ["run_id", "topic", "value_id"]
_IN_PARTITION = [*_RECORD, "partition"]
_AT_PLACE = [*_IN_PARTITION, "offset"]
_OF_SENDS = (
    "attempts",
    "oks",
    "unknowns",
    "fails",
    "aborts",
    "hiddens",
    "unplaced",
    "unplaced_unknowns",
    "late_oks",
    "late_unknowns",
    "timely",
)
_OF_READS = ("reads", "committed_reads", "unknown_reads")
_SUMS = _OF_SENDS + _OF_READS
_HIDDEN = tuple(f"hidden_{name}" for name in _OF_READS)
"""The reads at places where a transaction was aborted."""


def single_places(sends: DataFrame, reads: DataFrame) -> DataFrame:
    """A row per run and record that was sent or read, with what it takes to pass most of them by.

    A record is `plain` if it was sent once, and neither failed nor hidden nor late; if somebody
    read it; and if it lies at one place, whoever speaks of it. There is no case in it, save for its
    order, for which it has its `producer`, `sequence` and place. A record that nobody sent is
    left out if it was read at one place: there is nothing to say of it.

    Args:
        sends: with `resolve_sends`.
        reads: the trace's table.
    """
    outcome = f.col("outcome")
    none = f.lit(None).cast("bigint")
    sent = sends.select(
        *_IN_PARTITION,
        f.when((outcome != "fail") | f.col("hidden"), f.col("offset")).alias("offset"),
        "producer",
        "sequence",
        f.lit(1).alias("sent"),
        ((outcome == "fail") | f.col("aborted") | f.col("late")).alias("odd"),
    )
    read = reads.select(
        *_AT_PLACE,
        none.alias("producer"),
        none.alias("sequence"),
        f.lit(None).cast("int").alias("sent"),
        f.lit(None).cast("boolean").alias("odd"),
    )
    one_place = (f.col("partition") == f.col("most_partition")) & (
        f.col("offset") == f.col("most_offset")
    )
    plain = (f.col("rows") > 1) & (f.col("sent") == 1) & ~f.col("odd") & one_place
    return (
        sent.unionByName(read)
        .groupBy(*_RECORD)
        .agg(
            f.min("partition").alias("partition"),
            f.max("partition").alias("most_partition"),
            f.min("offset").alias("offset"),
            f.max("offset").alias("most_offset"),
            f.min("producer").alias("producer"),
            f.min("sequence").alias("sequence"),
            f.count("sent").alias("sent"),
            f.count(f.lit(1)).alias("rows"),
            f.coalesce(f.bool_or("odd"), f.lit(False)).alias("odd"),
        )
        .withColumn("plain", f.coalesce(plain, f.lit(False)))
        .where(~(f.col("sent").eqNullSafe(0) & f.coalesce(one_place, f.lit(False))))
        .select(*_RECORD, "partition", "offset", "producer", "sequence", "plain")
    )


def values(
    sends: DataFrame,
    reads: DataFrame,
    settings: SettingsTables,
    places: DataFrame | None = None,
) -> DataFrame:
    """A row per run and record that was sent or read.

    `stored` has, for each partition that holds the record, its first offset there and its copies: a
    place counts if somebody read the record there, or if a broker stored it there and it lies above
    all that was read in the partition. An acknowledged place below that, where nobody read the
    record, is `missed`: it counts among the `places`, but not for order. It is `passed` unless all
    readers of the partition began behind it. Places where a transaction
    was aborted hold nothing.

    Args:
        sends: with `resolve_sends`.
        reads: the trace's table.
        settings: the configuration.
        places: the table of `single_places`, if records that are plain there are left out.
    """
    reached = reads.groupBy("run_id", "topic", "partition").agg(
        f.max("offset").alias("reached"),
        f.min(f.coalesce("fetch_offset", f.lit(0))).alias("began"),
    )
    if places is not None:
        suspects = places.where("not plain").select(*_RECORD)
        sends = sends.join(suspects, _RECORD, "left_semi")
        reads = reads.join(suspects, _RECORD, "left_semi")
    observed = _send_observations(sends).unionByName(
        _read_observations(reads, settings), allowMissingColumns=True
    )
    at_place = (
        observed.repartition(*_RECORD)
        .groupBy(*_AT_PLACE)
        .agg(*_summed(_SUMS), *(f.max(name).alias(name) for name in ("acked", "told", "hides")))
        .join(broadcast(reached), ["run_id", "topic", "partition"], "left")
        .withColumn("above", f.coalesce(f.col("offset") > f.col("reached"), f.lit(True)))
        .withColumn("unread", f.col("reads") == 0)
        .withColumn("waiting", f.col("acked") & f.col("unread") & f.col("above"))
        .withColumn("misses", f.col("acked") & f.col("unread") & ~f.col("above"))
        .withColumn("passed", f.col("misses") & (f.col("offset") >= f.col("began")))
        .withColumns(
            {
                f"hidden_{name}": f.when(f.col("hides"), f.col(name)).otherwise(0)
                for name in _OF_READS
            }
        )
        .withColumn(
            "holds",
            f.when(f.col("unread"), f.col("told") & f.col("above")).otherwise(~f.col("hides")),
        )
    )
    place = f.struct("partition", "offset")
    in_partition = at_place.groupBy(*_IN_PARTITION).agg(
        *_summed(_SUMS + _HIDDEN),
        f.min(f.when(f.col("holds"), f.col("offset"))).alias("first_offset"),
        f.count(f.when(f.col("holds"), f.lit(1))).alias("copies"),
        f.count(f.when(f.col("misses"), f.lit(1))).alias("misses"),
        f.min(f.when(f.col("misses"), place)).alias("missed"),
        f.bool_or("passed").alias("passed"),
        f.min(f.when(f.col("waiting"), place)).alias("waiting"),
        f.bool_or(f.col("waiting") & f.col("reached").isNull()).alias("unvisited"),
        f.min(f.when(f.col("hidden_reads") > 0, f.col("offset"))).alias("hidden_offset"),
    )
    stored = f.struct("partition", "first_offset", "copies")
    return (
        in_partition.groupBy(*_RECORD)
        .agg(
            *_summed(_SUMS + _HIDDEN),
            # Sorted: they are gathered in any order.
            f.array_sort(
                f.array_compact(f.collect_list(f.when(f.col("copies") > 0, stored)))
            ).alias("stored"),
            f.sum(f.col("copies") + f.col("misses")).alias("places"),
            f.min("missed").alias("missed"),
            f.bool_or("passed").alias("passed"),
            f.min("waiting").alias("waiting"),
            f.bool_or("unvisited").alias("unvisited"),
            f.min("hidden_offset").alias("hidden_offset"),
        )
        .select(
            *_RECORD,
            *(f.col(f"first.{name}").alias(name) for name in _FIRST),
            *_SUMS,
            *_HIDDEN,
            "transaction",
            "last_attempt",
            (f.col("unknown_attempt") < f.col("last_attempt")).alias("lost_ack"),
            f.col("last.open").alias("open"),
            "send_us",
            "read_us",
            "stored",
            "places",
            "missed",
            "passed",
            "waiting",
            "unvisited",
            "hidden_offset",
        )
    )


def plain_values(sends: DataFrame, places: DataFrame) -> DataFrame:
    """Rows of plain records, with the columns of `values` for their order.

    Args:
        sends: with `resolve_sends`.
        places: plain rows of `single_places`.
    """
    one = f.lit(1).cast("bigint")
    at = places.select(
        *_RECORD,
        f.struct("partition", f.col("offset").alias("first_offset"), one.alias("copies")).alias(
            "at"
        ),
    )
    ok, unknown = f.col("outcome") == "ok", f.col("outcome") == "unknown"
    return sends.join(at, _RECORD).select(
        *_RECORD,
        "group",
        "producer",
        "sequence",
        "key",
        "acks",
        one.alias("attempts"),
        f.col("attempt").alias("last_attempt"),
        ok.cast("bigint").alias("oks"),
        f.lit(0).cast("bigint").alias("aborts"),
        (unknown & f.col("answer_us").isNull() & (f.col("acks") != 0)).alias("open"),
        "send_us",
        f.array("at").alias("stored"),
    )


def senders(sends: DataFrame, records: DataFrame) -> DataFrame:
    """Who sent some records: `producer_group`, `producer` and `sequence` of the first attempt.

    Args:
        sends: with `resolve_sends`.
        records: each once.
    """
    first = f.struct("hidden", "attempt", *_FIRST[:3])
    return (
        sends.join(records, _RECORD, "left_semi")
        .groupBy(*_RECORD)
        .agg(f.min(first).alias("first"))
        .select(
            *_RECORD,
            f.col("first.group").alias("producer_group"),
            *(f.col(f"first.{name}").alias(name) for name in _FIRST[1:3]),
        )
    )


def value_cases(table: DataFrame) -> DataFrame:
    """Duplicates, lost and moved writes, unseen records, aborted reads and zombies' writes, from
    the table of values.

    No shuffle: each row stands for itself.
    """
    sent = f.col("attempts") > 0
    copied = f.col("places") > 1
    lost_ack = f.coalesce(f.col("lost_ack"), f.lit(False))
    explained = lost_ack & (f.col("places") <= f.col("oks") + f.col("unknowns"))
    duplicate = {
        "excusable": explained,
        "doubt": f.when(~sent, f.lit("its sends are not in the trace")).when(
            f.col("unplaced") > 0, f.lit("a copy, perhaps of an aborted transaction")
        ),
    }
    unread = (f.col("oks") > 0) & (f.col("reads") == f.col("hidden_reads"))
    missed, waiting = f.col("missed").isNotNull(), f.col("waiting").isNotNull()
    lost = unread & missed & ~waiting
    missing = {
        "partition": f.col("missed.partition"),
        "offset": f.col("missed.offset"),
        "permit": f.when(f.col("acks").isin(0, 1), f.concat(f.lit("acks="), f.col("acks"))),
        "doubt": f.when(~f.col("passed"), f.lit("every reader began behind it")),
        "broken": f.lit("acks=all"),
    }
    aborted = f.col("hiddens") > 0
    failed = sent & (f.col("fails") == f.col("attempts"))
    read, committed_reads, unknown_reads = (
        f.when(failed, f.col(name)).otherwise(f.col(f"hidden_{name}")) for name in _OF_READS
    )
    zombie = (f.col("late_oks") > 0) | (
        (f.col("late_unknowns") > 0) & (f.col("timely") == 0) & (f.col("reads") > 0)
    )
    return extract_cases(
        table.withColumn("at", f.try_element_at("stored", f.lit(1))),
        {
            "duplicate": (copied, _value_case("duplicate", **duplicate)),
            "lost_ack_duplicate": (
                copied & lost_ack,
                _value_case("lost_ack_duplicate", **duplicate),
            ),
            "lost_write": (lost, _value_case("lost_write", **missing)),
            "moved_write": (
                missed & (f.size("stored") > 0),
                _value_case("moved_write", **missing),
            ),
            "unseen": (
                unread & ~lost,
                _value_case(
                    "unseen",
                    offset=f.col("waiting.offset"),
                    doubt=f.when(~waiting, f.lit("its offset is not known"))
                    .when(~f.col("unvisited"), f.lit("readers did not get there"))
                    .when(f.col("unplaced_unknowns") > 0, f.lit(UNREAD_COPIES))
                    .otherwise(f.lit(UNREAD)),
                ),
            ),
            "aborted_read": (
                read > 0,
                _value_case(
                    "aborted_read",
                    offset=f.coalesce("hidden_offset", "at.first_offset"),
                    permit=f.when(
                        aborted & (committed_reads == 0) & (unknown_reads == 0),
                        f.lit("isolation=read_uncommitted"),
                    ),
                    doubt=f.when(
                        aborted & (committed_reads == 0),
                        f.lit("configuration unknown: isolation"),
                    ),
                    broken=f.when(aborted, f.lit("isolation=read_committed")),
                ),
            ),
            "zombie_write": (zombie, _value_case("zombie_write")),
        },
    )


def _value_case(anomaly: str, **columns: Column) -> Case:
    return case(
        anomaly,
        **{
            "producer_group": f.col("group"),
            "topic": f.col("topic"),
            "partition": f.coalesce(f.col("at.partition"), f.col("partition")),
            "offset": f.col("at.first_offset"),
            "producer": f.col("producer"),
            "key": f.col("key"),
            "value_id": f.col("value_id"),
            "sequence": f.col("sequence"),
            "transaction": f.col("transaction"),
            "time_us": f.coalesce(f.col("send_us"), f.col("read_us")),
            "attempts": f.col("attempts"),
            "records": f.array(record()),
            **columns,
        },
    )


_FIRST = ("group", "producer", "sequence", "key", "acks", "partition")


def _send_observations(sends: DataFrame) -> DataFrame:
    hidden, late = f.col("hidden"), f.col("late")
    acknowledged = (f.col("outcome") == "ok") & ~hidden
    unknown = (f.col("outcome") == "unknown") & ~hidden
    has_place = f.col("offset").isNotNull()
    has_abort_error = f.coalesce(f.col("error").isin(*ABORTED), f.lit(False))
    is_open = unknown & f.col("answer_us").isNull() & (f.col("acks") != 0)
    sums = {
        "attempts": f.lit(True),
        "oks": acknowledged,
        "unknowns": unknown,
        "fails": ~acknowledged & ~unknown,
        "aborts": f.col("aborted"),
        "hiddens": hidden | has_abort_error,
        "unplaced": hidden & ~has_place,
        "unplaced_unknowns": unknown & ~has_place,
        "late_oks": late & (f.col("outcome") == "ok"),
        "late_unknowns": late & (f.col("outcome") == "unknown"),
        "timely": ~late & (f.col("outcome") != "fail"),
    }
    return sends.select(
        *_IN_PARTITION,
        f.when(acknowledged | unknown | hidden, f.col("offset")).alias("offset"),
        # What was sent again in another transaction counts as it was sent there.
        f.struct(hidden.alias("hidden"), "attempt", *_FIRST).alias("first"),
        f.struct("attempt", is_open.alias("open")).alias("last"),
        *(holds.cast("bigint").alias(name) for name, holds in sums.items()),
        *(f.lit(0).cast("bigint").alias(name) for name in _OF_READS),
        f.col("attempt").alias("last_attempt"),
        f.when(unknown, f.col("attempt")).alias("unknown_attempt"),
        f.when(hidden | late, f.col("transaction")).alias("transaction"),
        "send_us",
        (acknowledged & has_place).alias("acked"),
        ((acknowledged | unknown) & has_place).alias("told"),
        (hidden & has_place).alias("hides"),
    )


def _read_observations(reads: DataFrame, settings: SettingsTables) -> DataFrame:
    isolation = f.col("isolation")
    return settings.with_isolation(reads).select(
        *_AT_PLACE,
        *(f.lit(0).cast("bigint").alias(name) for name in _OF_SENDS),
        f.lit(1).cast("bigint").alias("reads"),
        f.coalesce((isolation == "read_committed").cast("bigint"), f.lit(0)).alias(
            "committed_reads"
        ),
        isolation.isNull().cast("bigint").alias("unknown_reads"),
        f.col("time_us").alias("read_us"),
        f.lit(False).alias("acked"),
        f.lit(False).alias("told"),
        f.lit(False).alias("hides"),
    )


def _summed(sums: tuple[str, ...]) -> list[Column]:
    """The columns that are put together in the same way at each step."""
    return [
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        *(f.sum(name).alias(name) for name in sums),
        f.max("transaction").alias("transaction"),
        f.max("last_attempt").alias("last_attempt"),
        f.min("unknown_attempt").alias("unknown_attempt"),
        f.min("send_us").alias("send_us"),
        f.min("read_us").alias("read_us"),
    ]
