"""What became of transactions, beside the rows that belong to them.

Partitioning: what belongs to a transaction is joined with it by (run, transaction), all else is
passed by; what is known of the epochs of transactional ids is one row each, and is broadcast. The
window over them sees epochs of one transactional id, and never records.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.analysis.engines import small

ABORTED = ("TRANSACTION_ABORTED", "TRANSACTION_ABORTABLE")
"""Errors of a send whose record is in the log, where only a transaction hides it."""

_NEVER = -(2**63)
_ID = ["run_id", "transactional_id"]
_TRANSACTION = ["run_id", "transaction"]
_PLACE = ["run_id", "topic", "partition", "offset"]
_RECORD = ["run_id", "topic", "value_id"]


def settled_sends(sends: DataFrame, transactions: DataFrame | None) -> DataFrame:
    """Sends with what became of their transactions.

    Adds `fate`, the outcome of the transaction; `decided_us`; `aborted`, whether it is aborted;
    `hidden`, whether the record may be in the log all the same; and `late`: sent when the
    transaction was over, or when another producer had the transactional id.
    """
    if transactions is None:
        null, no = f.lit(None), f.lit(False)
        known = sends.withColumns(
            {"fate": null.cast("string"), "decided_us": null.cast("bigint"), "late": no}
        )
    else:
        superseded = small(_superseded(sends, transactions))
        known = (
            with_fates(sends, transactions)
            .join(superseded, [*_ID, "epoch"], "left")
            .withColumn("late", f.greatest(_after("superseded_us"), _after("ended_us")))
        )
    told = f.coalesce(f.col("error").isin(*ABORTED), f.lit(False))
    aborted = f.coalesce(f.col("fate") == "aborted", f.lit(False))
    return known.withColumns(
        {"aborted": aborted | told, "hidden": aborted & (f.col("outcome") != "fail")}
    )


def _after(time_us: str) -> Column:
    return f.coalesce(f.col("send_us") > f.col(time_us), f.lit(False))


def with_fates(rows: DataFrame, transactions: DataFrame) -> DataFrame:
    """Rows with `fate`, `decided_us` and `ended_us` of the transaction that they name, or null.

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


def _superseded(sends: DataFrame, transactions: DataFrame) -> DataFrame:
    """For each epoch of a transactional id but the last: when the next ones were given out."""
    given = transactions.select(*_ID, "epoch", f.coalesce("epoch_us", "begun_us").alias("given_us"))
    sent = sends.where("transactional_id is not null").select(*_ID, "epoch").distinct()
    later = (
        Window.partitionBy(*_ID)
        .orderBy(f.col("epoch").desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        given.unionByName(sent, allowMissingColumns=True)
        .groupBy(*_ID, "epoch")
        .agg(f.min("given_us").alias("given_us"))
        .select(*_ID, "epoch", f.min("given_us").over(later).alias("superseded_us"))
        .where("superseded_us is not null")
    )


def visible_reads(reads: DataFrame, sends: DataFrame, values: DataFrame) -> DataFrame:
    """Reads without those of places where a transaction was aborted: who passes them by skips
    nothing.

    Where the answer was lost, nobody was told the place. It is where the value was read, if all
    that may have stored the value was aborted.

    Args:
        reads: the trace's table.
        sends: with `settled_sends`.
        values: the table of `values.values`.
    """
    places = sends.where("hidden and offset is not null").select(*_PLACE).distinct()
    aborted = values.where("unplaced > 0 and oks + unknowns = 0").select(*_RECORD)
    return reads.join(places, _PLACE, "left_anti").join(aborted, _RECORD, "left_anti")


def counted_effects(effects: DataFrame, transactions: DataFrame) -> DataFrame:
    """Effects without those whose transaction isn't committed: their results are not there."""
    return with_fates(effects, transactions).where(_counts()).select(*effects.columns)


def counted_commits(commits: DataFrame, transactions: DataFrame) -> DataFrame:
    """Commits without those that don't hold, as the trace says, or as their transaction does."""
    counts = f.coalesce("held", _counts())
    return with_fates(commits, transactions).where(counts).select(*commits.columns)


def _counts() -> Column:
    return f.coalesce(f.col("fate") == "committed", f.lit(True))
