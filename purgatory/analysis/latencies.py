"""How long clients waited: from send to answer, and until a record was acknowledged.

That is more than a purgatory's wait, which begins when the broker takes a request up: a broker
serves one request of a connection at a time, and the others queue. Where the trace tells when a
request arrived, was taken up and was answered at the broker, an attempt is shown in its parts.

Times are counted as `rounded_waits` has them: percentiles need no more memory for more sends.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.trace.rounded_waits import rounded_column

SPANS: Mapping[str, str] = {
    "record": "from its arrival at the producer until it was acknowledged",
    "attempt": "from send to answer, or to the break of the connection",
    "network": "of an answered attempt: there and back",
    "queue": "of an answered attempt: behind others of its connection",
    "wait": "of an answered attempt: from when the broker took it up until it answered",
    "broken": "of an attempt without an answer: until the connection broke",
}
"""What is timed, in the order in which it is shown."""

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def latencies(sends: DataFrame) -> DataFrame:
    """The table `latencies`: a row per run, group of producers and span.

    An attempt counts for each record that was sent in it. A span that the trace doesn't tell has
    no row. Percentiles are up to `MAX_RELATIVE_ERROR` of `rounded_waits` too small above 10 ms.

    Two passes over the sends, one with a shuffle by record; then at most some ten thousand
    different times per group and span.

    Args:
        sends: the trace's table of that name.
    """
    times = _of_attempts(sends).unionByName(_of_records(sends))
    row = ("run_id", "group", "span")
    counted = times.groupBy(*row, rounded_column(f.col("time_us")).alias("value")).agg(
        f.count("time_us").alias("number"),
        f.sum("time_us").alias("sum_us"),
        f.max("time_us").alias("max_us"),
    )
    shares = f.array(*map(f.lit, _SHARES.values()))
    return (
        counted.groupBy(*row)
        .agg(
            f.sum("number").alias("count"),
            (f.sum("sum_us") / f.sum("number")).alias("latency_mean_us"),
            f.percentile("value", shares, f.col("number")).alias("at"),
            f.max("max_us").alias("latency_max_us"),
        )
        .select(
            *row,
            "count",
            "latency_mean_us",
            *(f.col("at")[place].alias(f"latency_{name}_us") for place, name in enumerate(_SHARES)),
            "latency_max_us",
        )
    )


def latencies_order() -> list[str | Column]:
    """The order of the rows: by run and group, and an attempt before its parts."""
    spans = f.array(*map(f.lit, SPANS))
    return ["run_id", "group", f.array_position(spans, f.col("span"))]


def _of_attempts(sends: DataFrame) -> DataFrame:
    attempt_us = f.expr("answer_us - send_us")
    parts = {
        "attempt": attempt_us,
        "network": attempt_us - f.expr("settled_us - arrived_us"),
        "queue": f.expr("served_us - arrived_us"),
        "wait": f.expr("settled_us - served_us"),
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
        .select("run_id", "group", "timed.span", "timed.time_us")
        .where("time_us is not null")
    )


def _of_records(sends: DataFrame) -> DataFrame:
    acknowledged_us = f.min(f.when(f.col("outcome") == "ok", f.col("answer_us")))
    began_us = f.min(f.coalesce("created_us", "send_us"))
    return (
        sends.groupBy("run_id", "group", "producer", "sequence")
        .agg((acknowledged_us - began_us).alias("time_us"))
        .where("time_us is not null")
        .select("run_id", "group", f.lit("record").alias("span"), "time_us")
    )
