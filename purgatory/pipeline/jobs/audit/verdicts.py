"""The verdict on each case: the settings of the groups concerned decide.

In this order: what the rows themselves or a setting permit is permitted; what cannot be told
(the run is incomplete, a setting is unknown) is indeterminate; all else is a violation.
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


def judged(cases: DataFrame, settings: SettingsTables) -> DataFrame:
    """Cases with `verdict`, `setting` and the `group` whose case it is.

    Args:
        cases: rows of `cases.CASE`.
        settings: the configuration, and what is expected: a violation of that is one even where a
            setting permits it.
    """
    rows = settings.with_expected(settings.with_complete(cases))
    rows = settings.of_producers(rows, "producer_group", "p_")
    rows = settings.of_producers(rows, "other_group", "o_")
    rows = settings.of_consumers(rows, "consumer_group", "c_")
    permits, unknown, forbids = _by_settings()
    excusable = f.coalesce("excusable", f.lit(False))
    permit = f.coalesce("permit", f.when(excusable, permits))
    expected = f.col("expected")
    untold = f.when(excusable, unknown)
    absent = f.col("anomaly").isin(*OF_ABSENCE) & ~f.col("complete")
    doubt = f.coalesce(
        "doubt",
        f.when(absent, f.lit("incomplete run")),
        # Whatever the setting is, it does not excuse what is against an expectation.
        f.when(expected.isNull(), untold),
    )
    in_spite = f.concat(expected, f.lit(" expected, in spite of "), "permitting")
    whatever = f.concat(expected, f.lit(" expected, "), untold)
    return (
        rows.withColumn("permitting", permit)
        .withColumn("doubtful", doubt)
        .withColumn(
            "verdict",
            f.when(f.col("permitting").isNotNull() & expected.isNull(), PERMITTED)
            .when(f.col("permitting").isNotNull(), VIOLATION)
            .when(f.col("doubtful").isNotNull(), INDETERMINATE)
            .otherwise(VIOLATION),
        )
        .withColumn(
            "setting",
            f.when(f.col("permitting").isNotNull() & expected.isNotNull(), in_spite).otherwise(
                f.coalesce("permitting", "doubtful", "broken", f.when(excusable, forbids), whatever)
            ),
        )
        .withColumn("group", f.coalesce("consumer_group", "producer_group"))
        .select(*cases.columns, "group", "verdict", "setting")
    )


def _by_settings() -> tuple[Column, Column, Column]:
    """By anomaly, the settings that permit it, those that are unknown, those that forbid it."""
    anomaly = f.col("anomaly")
    rules = {
        ("duplicate", "lost_ack_duplicate"): _resent(),
        ("retry_reorder", "key_order_violation"): _reordered(),
        ("sequence_gap",): _given_up(),
        ("multi_writer",): _writers(),
        ("poll_skip", "nonmonotonic_poll", "reprocess"): _assignment(),
    }
    by_kind = []
    for kind in range(3):
        parts = [f.when(anomaly.isin(*names), rule[kind]) for names, rule in rules.items()]
        by_kind.append(f.coalesce(*parts))
    return by_kind[0], by_kind[1], by_kind[2]


_Rule = tuple[Column, Column, Column]


def _resent() -> _Rule:
    """A record that is sent again after a lost answer is stored twice, unless the broker knows."""
    idempotence, retries = f.col("p_idempotence"), f.col("p_retries")
    never = f.coalesce(retries == 0, f.lit(False))
    forbids = f.when(idempotence, f.lit("idempotence=true")).when(never, f.lit("retries=0"))
    return (
        f.when(~idempotence & ~never, f.lit("idempotence=false")),
        f.when(forbids.isNull() & idempotence.isNull(), f.lit(_UNKNOWN + "idempotence")),
        forbids,
    )


def _reordered() -> _Rule:
    """What is sent again may land behind what passed it by, if anything could pass it by."""
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


def _given_up() -> _Rule:
    """A producer that was told of no success sends again until its retries are used up."""
    retries = f.col("p_retries")
    used_up = f.col("attempts") > retries
    setting = f.concat(f.lit("retries="), retries)
    return (
        f.when(used_up, setting),
        f.when(retries.isNull(), f.lit(_UNKNOWN + "retries")),
        f.when(~used_up, setting),
    )


def _writers() -> _Rule:
    """Several may write where nobody asked for one; either of two groups may ask."""
    one, other = f.col("p_single_writer"), f.col("o_single_writer")
    asked = f.coalesce(one, f.lit(False)) | f.coalesce(other, f.lit(False))
    return (
        f.when(~one & ~other, f.lit("single_writer=false")),
        f.when(~asked & (one.isNull() | other.isNull()), f.lit(_UNKNOWN + "single_writer")),
        f.when(asked, f.lit("single_writer=true")),
    )


def _assignment() -> _Rule:
    """With subscribe, partitions change hands; with assign, nobody takes a reader's place."""
    assignment = f.col("c_assignment")
    setting = f.concat(f.lit("assignment="), assignment)
    return (
        f.when(assignment == "subscribe", setting),
        f.when(assignment.isNull(), f.lit(_UNKNOWN + "assignment")),
        f.when(assignment == "assign", setting),
    )
