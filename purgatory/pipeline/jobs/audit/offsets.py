"""Anomalies at single offsets: several values, and inputs delivered or applied again.

Partitioning: by (run, topic, partition, offset), and by consumer group where deliveries are
counted. No window, nothing to stitch; counts and extremes are added up before the shuffle.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.audit.cases import Case, case, extract_cases, input_key, record
from purgatory.pipeline.jobs.audit.transactions import (
    committed_effects,
    uncommitted_results,
    valid_commits,
)
from purgatory.pipeline.jobs.expressions import broadcast

_PARTITION = ["run_id", "topic", "partition"]
_OFFSET = [*_PARTITION, "offset"]
_RECORD = ["run_id", "topic", "value_id"]
_GROUP = ["run_id", "group"]


def inconsistent_offsets(sends: DataFrame, reads: DataFrame) -> DataFrame:
    """Offsets with two or more values, by reads and acknowledgements.

    An acknowledgement with acks=1 is of one broker, whose log may be lost: it permits differences,
    as long as all others agree.
    """
    acknowledged = sends.where("outcome = 'ok' and offset is not null").select(
        *_OFFSET,
        "value_id",
        f.when(f.col("acks") == -1, f.col("value_id")).alias("firm"),
        f.col("send_us").alias("time_us"),
    )
    observed = reads.select(*_OFFSET, "value_id", f.col("value_id").alias("firm"), "time_us")
    offsets = (
        acknowledged.unionByName(observed)
        .groupBy(*_OFFSET)
        .agg(
            f.min("value_id").alias("one"),
            f.max("value_id").alias("other"),
            f.min("firm").alias("firm_one"),
            f.max("firm").alias("firm_other"),
            f.min("time_us").alias("time_us"),
        )
    )
    agree = f.coalesce(f.col("firm_one") == f.col("firm_other"), f.lit(True))
    inconsistent = case(
        "inconsistent_offset",
        topic=f.col("topic"),
        partition=f.col("partition"),
        offset=f.col("offset"),
        value_id=f.col("one"),
        time_us=f.col("time_us"),
        permit=f.when(agree, f.lit("acks=1")),
        records=f.array(record("one"), record("other")),
    )
    return extract_cases(offsets, {"differ": (f.col("one") != f.col("other"), inconsistent)})


def input_cases(
    reads: DataFrame,
    effects: DataFrame | None,
    commits: DataFrame | None,
    values: DataFrame,
    transactions: DataFrame | None,
) -> DataFrame:
    """Inputs delivered or applied again, results without offsets and offsets without results.

    What a group applied is in the effects, if they have rows of that group; else in the reads.

    Args:
        reads, effects, commits: the trace's tables.
        values: the table of `values.values`: a copy that was dropped as one lacks no result.
        transactions: the trace's table; effects count once their transaction is committed.
    """
    committed = effects
    if effects is not None and transactions is not None:
        committed = committed_effects(effects, transactions)
    inputs = _count_inputs(reads, committed)
    if effects is None:
        recorded = inputs.withColumn("recorded", f.lit(False))
    else:
        groups = effects.select(*_GROUP).distinct().withColumn("recorded", f.lit(True))
        recorded = inputs.join(broadcast(groups), _GROUP, "left").withColumn(
            "recorded", f.coalesce("recorded", f.lit(False))
        )
    counts = recorded.withColumn(
        "times", f.when(f.col("recorded"), f.col("effects")).otherwise(f.col("applied"))
    )
    kinds = {
        "reprocess": (
            (f.col("deliveries") > 1) & (f.col("times") == 1),
            _case("reprocess", excusable=f.lit(True)),
        ),
        "effects": (f.col("times") > 1, _case("effect_duplicate")),
    }
    cases = extract_cases(counts, kinds)
    if effects is None or commits is None:
        return cases
    return cases.unionByName(_commit_cases(counts, commits, values, transactions))


def _count_inputs(reads: DataFrame, effects: DataFrame | None) -> DataFrame:
    """A row per consumer group and offset: how often delivered, and how often applied."""
    rows = reads.select(
        *_GROUP,
        "topic",
        "partition",
        "offset",
        f.lit(1).alias("deliveries"),
        f.col("applied").cast("int").alias("applied"),
        f.lit(0).alias("effects"),
        "value_id",
        "consumer",
        "time_us",
        f.lit(None).cast("bigint").alias("transaction"),
    )
    if effects is not None:
        rows = rows.unionByName(
            effects.select(
                *_GROUP,
                "topic",
                "partition",
                "offset",
                f.lit(0).alias("deliveries"),
                f.lit(0).alias("applied"),
                f.lit(1).alias("effects"),
                f.lit(None).cast("bigint").alias("value_id"),
                "consumer",
                "time_us",
                "transaction",
            )
        )
    return rows.groupBy(*_GROUP, "topic", "partition", "offset").agg(
        f.sum("deliveries").alias("deliveries"),
        f.sum("applied").alias("applied"),
        f.sum("effects").alias("effects"),
        f.min("value_id").alias("value_id"),
        f.min("consumer").alias("consumer"),
        f.min("time_us").alias("time_us"),
        f.min("transaction").alias("transaction"),
    )


def _commit_cases(
    counts: DataFrame, commits: DataFrame, values: DataFrame, transactions: DataFrame | None
) -> DataFrame:
    """Compare the last committed offsets with the results, and with those in their transactions.

    A partition without a commit, of a group that has some, counts as committed up to nothing.
    """
    holding = commits if transactions is None else valid_commits(commits, transactions)
    last = holding.groupBy(*_GROUP, "topic", "partition").agg(f.max("offset").alias("committed"))
    groups = commits.select(*_GROUP).distinct().withColumn("commits", f.lit(True))
    compared = (
        counts.where("recorded")
        .join(broadcast(groups), _GROUP)
        .join(broadcast(last), [*_GROUP, "topic", "partition"], "left")
        .withColumn("committed", f.coalesce("committed", f.lit(_NOTHING)))
        .withColumn("covered", f.col("offset") < f.col("committed"))
    )
    apart = f.lit(False)
    if transactions is not None:
        compared, apart = uncommitted_results(compared, holding)
    has_result = f.col("times") > 0
    compared = compared.withColumn("apart", has_result & (~f.col("covered") | apart)).where(
        f.col("apart") | (f.col("covered") & ~has_result)
    )
    copies = values.where("places > 1").select(*_RECORD, f.lit(True).alias("copied"))
    at_commit = f.struct(
        f.col("group"), f.col("topic"), f.col("partition"), f.col("committed").alias("offset")
    )
    both = f.array(input_key(f.col("group")), at_commit)
    return extract_cases(
        compared.join(copies, _RECORD, "left"),
        {
            "no result": (
                ~f.col("apart") & (f.col("deliveries") > 0),
                _case(
                    "offset_without_result",
                    doubt=f.when(f.col("copied"), f.lit("a copy, perhaps dropped as such")),
                    inputs=both,
                ),
            ),
            "no offset": (f.col("apart"), _case("result_without_offset", inputs=both)),
        },
    )


_NOTHING = -(2**63)


def _case(anomaly: str, **columns: Column) -> Case:
    return case(
        anomaly,
        **{
            "consumer_group": f.col("group"),
            "topic": f.col("topic"),
            "partition": f.col("partition"),
            "offset": f.col("offset"),
            "consumer": f.col("consumer"),
            "value_id": f.col("value_id"),
            "transaction": f.col("transaction"),
            "time_us": f.col("time_us"),
            "records": f.array(record()),
            "inputs": f.array(input_key(f.col("group"))),
            **columns,
        },
    )


# Several writers at a partition that should have one.
#
# Partitioning: sends are added up to one row per (run, topic, partition, producer) before the
# shuffle; the window over a partition sees writers, not records.


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
    return extract_cases(
        spans.withColumn("earlier", f.max("span").over(earlier)),
        {"overlap": (f.col("start_us") < f.col("earlier.end_us"), overlap)},
    )
