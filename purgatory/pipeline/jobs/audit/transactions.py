"""The outcomes of transactions, joined with the rows that belong to them.

Partitioning: rows of a transaction are joined with it by (run, transaction), other rows bypass the
join; the epochs of transactional ids are one row each, and are broadcast. The window over them has
epochs of one transactional id, and no records.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.pipeline.jobs import expressions as engines
from purgatory.pipeline.jobs.audit.cases import (
    Case,
    SettingsTables,
    case,
    extract_cases,
    input_key,
    record,
)
from purgatory.pipeline.jobs.expressions import broadcast

ABORTED = ("TRANSACTION_ABORTED", "TRANSACTION_ABORTABLE")
"""Errors of a send whose record is in the log, where only a transaction hides it."""

_NEVER = -(2**63)
_ID = ["run_id", "transactional_id"]
_TRANSACTION = ["run_id", "transaction"]
_PLACE = ["run_id", "topic", "partition", "offset"]
_RECORD = ["run_id", "topic", "value_id"]


def resolve_sends(
    sends: DataFrame, transactions: DataFrame | None
) -> tuple[DataFrame, Sequence[DataFrame]]:
    """Sends with the outcomes of their transactions, and the tables that are persisted for them.

    Adds `fate`, the outcome of the transaction; `decided_us`; `aborted`, whether it is aborted;
    `hidden`, whether the record may be in the log all the same; and `late`: sent when the
    transaction was over, or when another producer had the transactional id.
    """
    nothing = {
        "fate": f.lit(None).cast("string"),
        "decided_us": f.lit(None).cast("bigint"),
        "late": f.lit(False),
    }
    if transactions is None:
        return _with_aborted(sends.withColumns(nothing)), ()
    named = f.col("transaction").isNotNull() | f.col("transactional_id").isNotNull()
    superseded = broadcast(_superseding_times(sends, transactions))
    known = (
        with_outcomes(sends.where(named), transactions)
        .join(superseded, [*_ID, "epoch"], "left")
        .withColumn("late", f.greatest(_after("superseded_us"), _after("ended_us")))
        .select(*sends.columns, *nothing)
    )
    of_transactions = engines.persist(_with_aborted(known))
    others = _with_aborted(sends.where(~named).withColumns(nothing))
    return of_transactions.unionByName(others), (of_transactions,)


def _with_aborted(sends: DataFrame) -> DataFrame:
    has_abort_error = f.coalesce(f.col("error").isin(*ABORTED), f.lit(False))
    aborted = f.coalesce(f.col("fate") == "aborted", f.lit(False))
    return sends.withColumns(
        {"aborted": aborted | has_abort_error, "hidden": aborted & (f.col("outcome") != "fail")}
    )


def _after(time_us: str) -> Column:
    return f.coalesce(f.col("send_us") > f.col(time_us), f.lit(False))


def with_outcomes(rows: DataFrame, transactions: DataFrame) -> DataFrame:
    """Add `fate`, `decided_us` and `ended_us` of the transaction of each row, or null.

    Of two rows of one transaction, the greater counts, in this order; an unknown time is least.
    """
    times = ("decided_us", "ended_us")
    # Engines differ in where they put a null within a struct.
    known = (f.coalesce(name, f.lit(_NEVER)).alias(f"known_{name}") for name in times)
    end = f.max(f.struct(f.col("outcome").alias("fate"), *known, *times))
    ends = (
        transactions.groupBy(*_TRANSACTION)
        .agg(end.alias("end"))
        .select(
            *_TRANSACTION,
            *(f.col(f"end.{name}").alias(name) for name in ("fate", "decided_us", "ended_us")),
        )
    )
    named = rows.where("transaction is not null").join(ends, _TRANSACTION, "left")
    return named.unionByName(rows.where("transaction is null"), allowMissingColumns=True)


def _superseding_times(sends: DataFrame, transactions: DataFrame) -> DataFrame:
    """For each epoch of a transactional id but the last: when the next one was assigned."""
    epochs = transactions.select(
        *_ID, "epoch", f.coalesce("epoch_us", "begun_us").alias("given_us")
    )
    sent = sends.where("transactional_id is not null").select(*_ID, "epoch").distinct()
    later = (
        Window.partitionBy(*_ID)
        .orderBy(f.col("epoch").desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        epochs.unionByName(sent, allowMissingColumns=True)
        .groupBy(*_ID, "epoch")
        .agg(f.min("given_us").alias("given_us"))
        .select(*_ID, "epoch", f.min("given_us").over(later).alias("superseded_us"))
        .where("superseded_us is not null")
    )


def visible_reads(reads: DataFrame, sends: DataFrame, values: DataFrame) -> DataFrame:
    """Reads without those of aborted records, which a consumer may skip.

    If the response was lost, the offset of an aborted record is unknown. It is where the value was
    read, if all attempts that may have stored the value were aborted.

    Args:
        reads: the trace's table.
        sends: with `resolve_sends`.
        values: the table of `values.values`.
    """
    places = sends.where("hidden and offset is not null").select(*_PLACE).distinct()
    aborted = values.where("unplaced > 0 and oks + unknowns = 0").select(*_RECORD)
    return reads.join(places, _PLACE, "left_anti").join(aborted, _RECORD, "left_anti")


def committed_effects(effects: DataFrame, transactions: DataFrame) -> DataFrame:
    """Effects of committed transactions, and those outside of transactions."""
    return with_outcomes(effects, transactions).where(_is_committed()).select(*effects.columns)


def valid_commits(commits: DataFrame, transactions: DataFrame) -> DataFrame:
    """Commits that hold, by the column `held`, or else by their transaction."""
    counts = f.coalesce("held", _is_committed())
    return with_outcomes(commits, transactions).where(counts).select(*commits.columns)


def _is_committed() -> Column:
    return f.coalesce(f.col("fate") == "committed", f.lit(True))


# Transactions that were read, or committed, in part.
#
# Partitioning: the records of a transaction are joined with the reads of each group by (run, group,
# topic, partition, offset), and aggregated by (run, group, transaction). The last offset that a
# group read is one row per group and partition, and is broadcast.


_GROUP = ["run_id", "group"]


def partial_transactions(sends: DataFrame, reads: DataFrame, settings: SettingsTables) -> DataFrame:
    """Transactions of which a group read some records and skipped others, or which a consumer with
    read_committed read before they were committed.

    Args:
        sends: with `resolve_sends`.
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
    passed = written.join(broadcast(reached), ["run_id", "topic", "partition"]).where(
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
    return extract_cases(found, {"in parts": (f.col("shown").isNotNull(), _in_parts())})


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


def mismatched_commits(
    commits: DataFrame, transactions: DataFrame, effects: DataFrame | None
) -> DataFrame:
    """Offsets that hold though their transaction is not committed, and the reverse.

    For groups with effects in the trace, `offsets.input_cases` finds these cases by input.
    """
    known = with_outcomes(commits.where("held is not null"), transactions)
    if effects is not None:
        known = known.join(broadcast(effects.select(*_GROUP).distinct()), _GROUP, "left_anti")
    return extract_cases(
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


def uncommitted_results(compared: DataFrame, commits: DataFrame) -> tuple[DataFrame, Column]:
    """Add the offset that the transaction of a result committed, and whether it excludes its input.

    Args:
        compared: a row per input, with the `transaction` of its result.
        commits: those that count.
    """
    store = [*_GROUP, "topic", "partition", "transaction"]
    offsets = (
        commits.where("transaction is not null")
        .groupBy(*store)
        .agg(f.max("offset").alias("committed_with_it"))
    )
    named = compared.where("transaction is not null").join(offsets, store, "left")
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
        inputs=f.array(input_key(f.col("group"))),
    )
