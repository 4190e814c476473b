"""What clients saw: latencies until a response or an acknowledgement, outcomes, and throughput.

They are longer than a purgatory's wait, which begins when the broker handles a request: a broker
handles one request of a connection at a time, and the others queue. If the trace has the times of
arrival, handling and response at the broker, an attempt is divided into its parts.

Percentiles are those of rounded times (`rounded_waits`), and need no more memory for more sends.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.expressions import broadcast
from purgatory.pipeline.jobs.result_orders import ALL, ALL_TOPICS, CONSUMER, PRODUCER
from purgatory.trace.percentiles import DECIMALS
from purgatory.trace.rounded_waits import round_column

_SPAN_COLUMNS = ("span", "time_us")
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def latencies(sends: DataFrame) -> DataFrame:
    """The table `latencies`: a row per run, group of producers and span.

    An attempt counts for each record in it. A span whose times the trace lacks has no row.
    Percentiles are up to `MAX_RELATIVE_ERROR` of `rounded_waits` too small above 10 ms.

    Two passes over the sends, one with a shuffle by record. Each task holds at most some ten
    thousand different times per group and span.

    Args:
        sends: the trace's table of that name.
    """
    times = _attempt_times(sends).unionByName(_record_times(sends))
    return (
        times.groupBy("run_id", "group", "span")
        .agg(
            f.count("time_us").alias("count"),
            (f.sum("time_us") / f.count("time_us")).alias("latency_mean_us"),
            f.percentile(round_column(f.col("time_us")), list(_SHARES.values())).alias("values"),
            f.max("time_us").alias("latency_max_us"),
        )
        .select(
            "run_id",
            "group",
            "span",
            "count",
            "latency_mean_us",
            *(
                f.round(f.element_at("values", place), DECIMALS).alias(f"latency_{name}_us")
                for place, name in enumerate(_SHARES, 1)
            ),
            "latency_max_us",
        )
    )


def _attempt_times(sends: DataFrame) -> DataFrame:
    attempt_us = _between("send_us", "answer_us")
    parts = {
        "attempt": attempt_us,
        "network": attempt_us - _between("arrived_us", "settled_us"),
        "queue": _between("arrived_us", "served_us"),
        "wait": _between("served_us", "settled_us"),
        "broken": f.when(f.col("error") == "DISCONNECTED", attempt_us),
    }
    spans = f.explode(
        f.array(
            *(
                f.struct(f.lit(span).alias("span"), time_us.alias("time_us"))
                for span, time_us in parts.items()
            )
        )
    )
    return (
        sends.where("answer_us is not null")
        .select("run_id", "group", spans.alias("timed"))
        .select("run_id", "group", *(f.col(f"timed.{name}").alias(name) for name in _SPAN_COLUMNS))
        .where("time_us is not null")
    )


def _between(start: str, end: str) -> Column:
    return f.col(end) - f.col(start)


def _record_times(sends: DataFrame) -> DataFrame:
    acknowledged_us = f.min(f.when(f.col("outcome") == "ok", f.col("answer_us")))
    began_us = f.min(f.coalesce("created_us", "send_us"))
    return (
        sends.groupBy("run_id", "group", "producer", "sequence")
        .agg((acknowledged_us - began_us).alias("time_us"))
        .where("time_us is not null")
        .select("run_id", "group", f.lit("record").alias("span"), "time_us")
    )


# The outcomes of attempts to send, and how often their records are stored.
#
# A response and the log differ if a response timed out or got lost. A record counts as stored if a
# consumer read it, once for each offset.


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
    all_outcomes, all_errors = f.lit(ALL), f.lit(ALL_TOPICS)
    labels = f.array(
        f.struct(all_outcomes.alias("outcome"), all_errors.alias("error")),
        f.struct(f.col("outcome").alias("outcome"), all_errors.alias("error")),
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
            f.explode(labels).alias("of"),
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


# Throughput over time, and the ends of partitions, which give consumer lag.


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
