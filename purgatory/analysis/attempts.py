"""What became of attempts to send, and of the records in them: whether they are in the log, twice.

A broker's answer and what is stored differ where an answer timed out or got lost. Readers tell what
is stored: a record is counted as stored where somebody read it, once for each place.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from purgatory.analysis.waiting_words import ALL, ALL_TOPICS

_ROW = ("run_id", "group", "outcome", "error")
_RECORD = ["run_id", "topic", "value_id"]


def attempts(sends: DataFrame, reads: DataFrame) -> DataFrame:
    """The table `attempts`: a row per run, group of producers, outcome and error of an attempt.

    `all` stands for all outcomes and `*` for all errors; a record of which attempts had several
    outcomes counts once in each of them, and once in the row over all.

    Shuffles the sends and the places of reads by topic and value; then a row per group, outcome and
    error.

    Args:
        sends, reads: the trace's tables of these names.
    """
    everything, whichever = f.lit(ALL), f.lit(ALL_TOPICS)
    of_attempt = f.array(
        f.struct(everything.alias("outcome"), whichever.alias("error")),
        f.struct(f.col("outcome").alias("outcome"), whichever.alias("error")),
        f.struct(f.col("outcome").alias("outcome"), f.col("error").alias("error")),
    )
    records = (
        sends.select(
            "run_id",
            "group",
            "topic",
            "value_id",
            "send_us",
            "answer_us",
            f.explode(of_attempt).alias("of"),
        )
        .select(
            "run_id",
            "group",
            "topic",
            "value_id",
            "send_us",
            f.coalesce("answer_us", "send_us").alias("until_us"),
            f.col("of.outcome").alias("outcome"),
            f.col("of.error").alias("error"),
        )
        .where("error is not null")
        .groupBy(*_ROW, "topic", "value_id")
        .agg(
            f.count(f.lit(1)).alias("attempts"),
            f.min("send_us").alias("from_us"),
            f.max("until_us").alias("until_us"),
        )
    )
    places = (
        reads.select("run_id", "value_id", "topic", "partition", "offset")
        .distinct()
        .groupBy(*_RECORD)
        .agg(f.count(f.lit(1)).alias("places"))
    )
    return (
        records.join(places, _RECORD, "left")
        .groupBy(*_ROW)
        .agg(
            f.sum("attempts").cast("bigint").alias("attempts"),
            f.count(f.lit(1)).alias("records"),
            f.count("places").alias("stored"),
            f.count(f.when(f.col("places") > 1, 1)).alias("doubled"),
            f.coalesce(f.sum(f.col("places") - 1), f.lit(0)).cast("bigint").alias("copies"),
            f.min("from_us").alias("from_us"),
            f.max("until_us").alias("until_us"),
        )
    )
