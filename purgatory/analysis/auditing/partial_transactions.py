"""Transactions whose parts were seen, or held, without the others.

Partitioning: what a transaction wrote is joined with what each group read by (run, group, topic,
partition, offset), and added up by (run, group, transaction). How far each group read is one row
per group and partition, and is broadcast.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.analysis.auditing.cases import Case, case, cases_of, place, record
from purgatory.analysis.auditing.settings_tables import SettingsTables
from purgatory.analysis.auditing.transaction_fates import with_fates
from purgatory.analysis.engines import small

_GROUP = ["run_id", "group"]
_PLACE = ["run_id", "topic", "partition", "offset"]


def partial_transactions(sends: DataFrame, reads: DataFrame, settings: SettingsTables) -> DataFrame:
    """Transactions of which a group read some records and passed others by, or which a reader of
    read_committed saw before they were committed.

    Args:
        sends: with `settled_sends`.
        reads: the trace's table.
        settings: the configuration.
    """
    written = (
        sends.where("fate in ('committed', 'open') and outcome = 'ok' and offset is not null")
        .groupBy(*_PLACE, "transaction")
        .agg(
            f.max("fate").alias("fate"),
            f.max("decided_us").alias("decided_us"),
            f.min("value_id").alias("value_id"),
        )
    )
    reached = reads.groupBy(*_GROUP, "topic", "partition").agg(f.max("offset").alias("reached"))
    passed = written.join(small(reached), ["run_id", "topic", "partition"]).where(
        "offset <= reached"
    )
    known = passed.join(_delivered(reads, settings), [*_PLACE, "group"], "left")
    at = f.struct("topic", "partition", "offset", "value_id")
    is_seen = f.col("read_us").isNotNull()
    early = (f.col("fate") == "open") | (f.col("committed_read_us") < f.col("decided_us"))
    is_early = f.col("committed_read_us").isNotNull() & early
    parts = known.groupBy(*_GROUP, "transaction").agg(
        f.max("fate").alias("fate"),
        f.min(f.when(is_seen, at)).alias("seen"),
        f.min(f.when(~is_seen, at)).alias("missed"),
        f.min(f.when(is_early, at)).alias("early"),
        f.max("committed_read").alias("committed_read"),
        f.max("unknown_read").alias("unknown_read"),
        f.min("read_us").alias("time_us"),
    )
    split = f.col("seen").isNotNull() & f.col("missed").isNotNull() & (f.col("fate") != "open")
    shown = f.coalesce(f.when(split, f.col("missed")), f.col("early"))
    found = parts.withColumn("split", split).withColumn("shown", shown)
    return cases_of(found, {"in parts": (f.col("shown").isNotNull(), _in_parts())})


def _delivered(reads: DataFrame, settings: SettingsTables) -> DataFrame:
    """A row per group and offset: when it was read first, and with which isolation."""
    isolated = settings.with_isolation(reads)
    committed = f.col("isolation") == "read_committed"
    return isolated.groupBy(*_PLACE, "group").agg(
        f.min("time_us").alias("read_us"),
        f.min(f.when(committed, f.col("time_us"))).alias("committed_read_us"),
        f.max(f.coalesce(committed, f.lit(False))).alias("committed_read"),
        f.max(f.col("isolation").isNull()).alias("unknown_read"),
    )


def _in_parts() -> Case:
    committed, unknown = f.col("committed_read"), f.col("unknown_read")
    return case(
        "partial_transaction",
        consumer_group=f.col("group"),
        topic=f.col("shown.topic"),
        partition=f.col("shown.partition"),
        offset=f.col("shown.offset"),
        value_id=f.col("shown.value_id"),
        transaction=f.col("transaction"),
        time_us=f.col("time_us"),
        permit=f.when(~committed & ~unknown, f.lit("isolation=read_uncommitted")),
        doubt=f.when(~committed & unknown, f.lit("configuration unknown: isolation")),
        broken=f.lit("isolation=read_committed"),
        records=f.array(
            record("seen.value_id", "seen.topic"), record("shown.value_id", "shown.topic")
        ),
    )


def stray_commits(
    commits: DataFrame, transactions: DataFrame, effects: DataFrame | None
) -> DataFrame:
    """Offsets that hold though their transaction doesn't, and the other way round.

    Where a group's effects are in the trace, its inputs tell that, each for itself
    (`single_offsets`).
    """
    known = with_fates(commits.where("held is not null"), transactions)
    if effects is not None:
        known = known.join(small(effects.select(*_GROUP).distinct()), _GROUP, "left_anti")
    return cases_of(
        known,
        {
            "holds": (
                f.col("held") & (f.col("fate") != "committed"),
                _offset("offset_without_result"),
            ),
            "dropped": (
                ~f.col("held") & (f.col("fate") == "committed"),
                _offset("result_without_offset"),
            ),
        },
    )


def results_apart(compared: DataFrame, commits: DataFrame) -> tuple[DataFrame, Column]:
    """Add how far the transaction of a result committed; tell where that isn't beyond its input.

    Args:
        compared: a row per input, with the `transaction` of its result.
        commits: those that count.
    """
    store = [*_GROUP, "topic", "partition", "transaction"]
    own = (
        commits.where("transaction is not null")
        .groupBy(*store)
        .agg(f.max("offset").alias("committed_with_it"))
    )
    named = compared.where("transaction is not null").join(own, store, "left")
    rows = named.unionByName(compared.where("transaction is null"), allowMissingColumns=True)
    beyond = f.coalesce(f.col("committed_with_it") > f.col("offset"), f.lit(False))
    return rows, f.col("transaction").isNotNull() & ~beyond


def _offset(anomaly: str) -> Case:
    return case(
        anomaly,
        consumer_group=f.col("group"),
        topic=f.col("topic"),
        partition=f.col("partition"),
        offset=f.col("offset"),
        transaction=f.col("transaction"),
        time_us=f.col("time_us"),
        inputs=f.array(place(f.col("group"))),
    )
