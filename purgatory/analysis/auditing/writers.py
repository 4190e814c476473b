"""Several writers at a partition that should have one.

Partitioning: sends are added up to one row per (run, topic, partition, producer) before the
shuffle; the window over a partition sees writers, not records.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from purgatory.analysis.auditing.cases import case, cases_of, record

_PARTITION = ["run_id", "topic", "partition"]


def writer_cases(sends: DataFrame) -> DataFrame:
    """Producers that began to write to a partition before an earlier one had ended.

    A producer's interval goes from its first send to its last answer there, or to its last send if
    that came later. Sends that definitely failed do not count. Each producer that begins within
    another's interval is one case, so that n writers at once are n - 1.
    """
    # Of what is sent in the same microsecond, the lower value counts as sent first.
    at = f.struct("send_us", "value_id")
    spans = (
        sends.where("outcome != 'fail'")
        .groupBy(*_PARTITION, "group", "producer")
        .agg(
            f.min("send_us").alias("start_us"),
            f.max(f.greatest("send_us", "answer_us")).alias("end_us"),
            f.min(at).alias("first"),
            f.max(at).alias("last"),
        )
        .withColumn("first_value", f.col("first.value_id"))
        .withColumn("last_value", f.col("last.value_id"))
        .withColumn("span", f.struct("end_us", "producer", "group", "last_value"))
    )
    earlier = (
        Window.partitionBy(*_PARTITION)
        .orderBy("start_us", "producer", "group")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    overlap = case(
        "multi_writer",
        producer_group=f.col("group"),
        other_group=f.col("earlier.group"),
        topic=f.col("topic"),
        partition=f.col("partition"),
        producer=f.col("producer"),
        value_id=f.col("first_value"),
        time_us=f.col("start_us"),
        excusable=f.lit(True),
        records=f.array(record("earlier.last_value"), record("first_value")),
    )
    return cases_of(
        spans.withColumn("earlier", f.max("span").over(earlier)),
        {"overlap": (f.col("start_us") < f.col("earlier.end_us"), overlap)},
    )
