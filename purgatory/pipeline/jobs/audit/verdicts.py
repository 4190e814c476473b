"""The verdict on each case, by the settings of its groups.

In this order: a case that the rows or a setting permit is permitted; one that depends on missing
rows (an incomplete run) or an unknown setting is indeterminate; all others are violations.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.audit.anomalies import (
    INDETERMINATE,
    OF_ABSENCE,
    PERMITTED,
    VIOLATION,
)
from purgatory.pipeline.jobs.audit.cases import SettingsTables

_UNKNOWN = "configuration unknown: "


def judge_cases(cases: DataFrame, settings: SettingsTables) -> DataFrame:
    """Cases with `verdict`, `setting` and the `group` whose case it is.

    Args:
        cases: rows of `cases.CASE`.
        settings: the configuration, and the expectations, which override what settings permit.
    """
    rows = settings.with_expectations(settings.with_completeness(cases))
    rows = settings.join_producers(rows, "producer_group", "p_")
    rows = settings.join_producers(rows, "other_group", "o_")
    rows = settings.join_consumers(rows, "consumer_group", "c_")
    permits, unknown, forbids = _settings_by_anomaly()
    explained = f.coalesce("excusable", f.lit(False))
    allowed_by = f.coalesce("permit", f.when(explained, permits))
    expected = f.col("expected")
    unknown_setting = f.when(explained, unknown)
    absent = f.col("anomaly").isin(*OF_ABSENCE) & ~f.col("complete")
    unknown_reason = f.coalesce(
        "doubt",
        f.when(absent, f.lit("incomplete run")),
        # No setting permits what violates an expectation.
        f.when(expected.isNull(), unknown_setting),
    )
    overridden = f.concat(expected, f.lit(" expected, in spite of "), "permitting")
    expectation = f.concat(expected, f.lit(" expected, "), unknown_setting)
    return (
        rows.withColumn("permitting", allowed_by)
        .withColumn("doubtful", unknown_reason)
        .withColumn(
            "verdict",
            f.when(f.col("permitting").isNotNull() & expected.isNull(), PERMITTED)
            .when(f.col("permitting").isNotNull(), VIOLATION)
            .when(f.col("doubtful").isNotNull(), INDETERMINATE)
            .otherwise(VIOLATION),
        )
        .withColumn(
            "setting",
            f.when(f.col("permitting").isNotNull() & expected.isNotNull(), overridden).otherwise(
                f.coalesce(
                    "permitting", "doubtful", "broken", f.when(explained, forbids), expectation
                )
            ),
        )
        .withColumn("group", f.coalesce("consumer_group", "producer_group"))
        .select(*cases.columns, "group", "verdict", "setting")
    )


def _settings_by_anomaly() -> tuple[Column, Column, Column]:
    """By anomaly, the settings that permit it, those that are unknown, those that forbid it."""
    anomaly = f.col("anomaly")
    rules = {
        ("duplicate", "lost_ack_duplicate"): _retry_rule(),
        ("retry_reorder", "key_order_violation"): _reorder_rule(),
        ("sequence_gap",): _gap_rule(),
        ("multi_writer",): _writer_rule(),
        ("poll_skip", "nonmonotonic_poll", "reprocess"): _assignment_rule(),
    }
    by_kind = []
    for kind in range(3):
        parts = [f.when(anomaly.isin(*names), rule[kind]) for names, rule in rules.items()]
        by_kind.append(f.coalesce(*parts))
    return by_kind[0], by_kind[1], by_kind[2]


_Rule = tuple[Column, Column, Column]


def _retry_rule() -> _Rule:
    """A retry after a lost response is stored twice, unless producers are idempotent."""
    idempotence, retries = f.col("p_idempotence"), f.col("p_retries")
    never = f.coalesce(retries == 0, f.lit(False))
    forbids = f.when(idempotence, f.lit("idempotence=true")).when(never, f.lit("retries=0"))
    return (
        f.when(~idempotence & ~never, f.lit("idempotence=false")),
        f.when(forbids.isNull() & idempotence.isNull(), f.lit(_UNKNOWN + "idempotence")),
        forbids,
    )


def _reorder_rule() -> _Rule:
    """A retry may be stored behind later records, if several requests were in flight."""
    idempotence, in_flight = f.col("p_idempotence"), f.col("p_max_in_flight")
    forbids = (
        f.when(idempotence, f.lit("idempotence=true"))
        .when(in_flight == 1, f.lit("max_in_flight=1"))
        .when(f.col("p_retries") == 0, f.lit("retries=0"))
    )
    permits = f.when(
        forbids.isNull() & ~idempotence & (in_flight > 1),
        f.concat(f.lit("idempotence=false with max_in_flight="), in_flight),
    )
    unknown = f.concat(
        f.lit(_UNKNOWN),
        f.concat_ws(
            ", ",
            f.when(idempotence.isNull(), f.lit("idempotence")),
            f.when(in_flight.isNull(), f.lit("max_in_flight")),
        ),
    )
    doubtful = idempotence.isNull() | in_flight.isNull()
    return permits, f.when(forbids.isNull() & doubtful, unknown), forbids


def _gap_rule() -> _Rule:
    """A producer without a successful response retries until its retries are used up."""
    retries = f.col("p_retries")
    used_up = f.col("attempts") > retries
    setting = f.concat(f.lit("retries="), retries)
    return (
        f.when(used_up, setting),
        f.when(retries.isNull(), f.lit(_UNKNOWN + "retries")),
        f.when(~used_up, setting),
    )


def _writer_rule() -> _Rule:
    """Several producers may write, unless one of the two groups requires a single writer."""
    first, second = f.col("p_single_writer"), f.col("o_single_writer")
    required = f.coalesce(first, f.lit(False)) | f.coalesce(second, f.lit(False))
    return (
        f.when(~first & ~second, f.lit("single_writer=false")),
        f.when(~required & (first.isNull() | second.isNull()), f.lit(_UNKNOWN + "single_writer")),
        f.when(required, f.lit("single_writer=true")),
    )


def _assignment_rule() -> _Rule:
    """With subscribe, partitions are reassigned; with assign, a reader keeps its position."""
    assignment = f.col("c_assignment")
    setting = f.concat(f.lit("assignment="), assignment)
    return (
        f.when(assignment == "subscribe", setting),
        f.when(assignment.isNull(), f.lit(_UNKNOWN + "assignment")),
        f.when(assignment == "assign", setting),
    )
