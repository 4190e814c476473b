"""Throughput of clients over time, and the ends of partitions, which give consumer lag."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.expressions import broadcast
from purgatory.pipeline.jobs.tables import CONSUMER, PRODUCER

_CLIENT = ["run_id", "kind", "group", "topic", "partition"]


def throughput(sends: DataFrame, reads: DataFrame, windows: DataFrame) -> DataFrame:
    """The table `throughput`: a row per run, window of time, kind of client, group and partition.

    Records of producers count when they were acknowledged, those of consumers when they were read.

    One pass over each table, and a shuffle of one row per window, group, partition and task.

    Args:
        sends, reads: the trace's tables of these names.
        windows: `run_id` and `window_us`, the width of its windows; the runs to compute; few.
    """
    produced = sends.where("outcome = 'ok' and answer_us is not null").select(
        "run_id",
        f.lit(PRODUCER).alias("kind"),
        "group",
        "topic",
        "partition",
        f.col("answer_us").alias("time_us"),
        "offset",
    )
    consumed = reads.select(
        "run_id",
        f.lit(CONSUMER).alias("kind"),
        "group",
        "topic",
        "partition",
        "time_us",
        "offset",
    )
    return (
        produced.unionByName(consumed)
        .join(broadcast(windows), "run_id")
        .withColumn("window_start_us", f.col("time_us") - f.col("time_us") % f.col("window_us"))
        .groupBy(*_CLIENT, "window_start_us", "window_us")
        .agg(
            f.count(f.lit(1)).alias("records"),
            (f.max("offset") + 1).alias("end_offset"),
        )
        .select(
            "run_id",
            "window_start_us",
            (f.col("window_start_us") + f.col("window_us")).alias("window_end_us"),
            *_CLIENT[1:],
            "records",
            "end_offset",
        )
    )
