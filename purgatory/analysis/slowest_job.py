"""The operations that waited longest, each with what it waited for."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from purgatory.analysis.waiting_words import check_number
from purgatory.analysis.watched import watch_keys


def slowest(operations: DataFrame, number: int = 10) -> DataFrame:
    """The table `slowest`: for each run and purgatory, the operations with the longest waits.

    Of equal waits, the one that started first is the slower. Pending ones take part with their
    waits so far. O(operations): each task keeps its own slowest before anything is exchanged.

    Args:
        operations: the trace's table of that name.
        number: how many of each run and purgatory, at least 1.

    Raises:
        ValueError: a number below 1.
    """
    check_number(number)
    order = Window.partitionBy("run_id", "purgatory").orderBy(
        f.col("wait_us").desc(), "start_us", "operation"
    )
    return (
        operations.withColumn("rank", f.row_number().over(order).cast("int"))
        .where(f.col("rank") <= number)
        .select(
            "run_id",
            "purgatory",
            "rank",
            "operation",
            "broker",
            "kind",
            "outcome",
            "start_us",
            "end_us",
            "wait_us",
            "timeout_ms",
            watch_keys(operations).alias("watch_keys"),
        )
    )
