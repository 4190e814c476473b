"""Exactly k of each anomaly in runs of random shape: the audit finds these, and judges them right.

All runs go through one job. A table of its own here has the anomalies that configurations permit.
DuckDB is compared with it; test_audit_ties compares Spark's results of such runs, cell by cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import pytest

from purgatory.pipeline.jobs.audit import (
    ANOMALIES,
    ConsumerSettings,
    ProducerSettings,
    RunConfiguration,
)
from tests.spark.pipeline.audit_injections import INJECTIONS, injected
from tests.spark.pipeline.audit_rows import Engine, SmallTrace, audited, spark_exhaustively

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def _configuration(
    idempotence: bool, max_in_flight: int, single_writer: bool, assignment: str, isolation: str
) -> RunConfiguration:
    return RunConfiguration(
        [ProducerSettings("writers", idempotence, max_in_flight, 9, single_writer)],
        [ConsumerSettings(group, assignment, isolation) for group in ("readers", "others")],
    )


STRICT = _configuration(True, 5, True, "assign", "read_committed")
LAX = _configuration(False, 5, False, "subscribe", "read_uncommitted")
ONE_IN_FLIGHT = _configuration(False, 1, True, "assign", "read_committed")
CONFIGURATIONS: Mapping[str, tuple[RunConfiguration, int]] = {
    "strict": (STRICT, -1),
    "lax": (LAX, -1),
    "one in flight": (ONE_IN_FLIGHT, -1),
    "unknown": (RunConfiguration(), -1),
    "incomplete": (replace(STRICT, complete=False), -1),
    "acks=1": (STRICT, 1),
    "acks=0": (STRICT, 0),
}

VIOLATION = ("violation", None)
INCOMPLETE = ("indeterminate", "incomplete run")


def _unknown(name: str) -> tuple[str, str]:
    return "indeterminate", f"configuration unknown: {name}"


def expected_verdict(anomaly: str, configuration: str) -> tuple[str, str | None]:
    """The verdict on an injected anomaly; rows of the table below come before its columns."""
    special = VERDICTS[anomaly]
    return special.get(configuration, special.get("", VIOLATION))


_ALWAYS = {"": VIOLATION}
_RESENT = {
    "": ("violation", "idempotence=true"),
    "lax": ("permitted", "idempotence=false"),
    "one in flight": ("permitted", "idempotence=false"),
    "unknown": _unknown("idempotence"),
}
_ASSIGNED = {
    "": ("violation", "assignment=assign"),
    "lax": ("permitted", "assignment=subscribe"),
    "unknown": _unknown("assignment"),
}
_ISOLATED = {
    "": ("violation", "isolation=read_committed"),
    "lax": ("permitted", "isolation=read_uncommitted"),
    "unknown": _unknown("isolation"),
    "incomplete": INCOMPLETE,
}
_WEAK = {
    "": ("violation", "acks=all"),
    "acks=1": ("permitted", "acks=1"),
    "acks=0": ("permitted", "acks=0"),
    "incomplete": INCOMPLETE,
}
VERDICTS: Mapping[str, Mapping[str, tuple[str, str | None]]] = {
    "inconsistent_offset": _ALWAYS,
    "duplicate": _ALWAYS,
    "lost_ack_duplicate": _RESENT,
    "lost_ack_duplicate unread": _RESENT,
    "lost_write": _WEAK,
    "lost_write before all readers": {
        **_WEAK,
        "": ("indeterminate", "every reader began behind it"),
        "incomplete": ("indeterminate", "every reader began behind it"),
    },
    "moved_write": _WEAK,
    "unseen": {"": ("indeterminate", "readers did not get there")},
    "aborted_read": {"incomplete": INCOMPLETE},
    "retry_reorder": {
        "": ("violation", "idempotence=true"),
        "lax": ("permitted", "idempotence=false with max_in_flight=5"),
        "one in flight": ("violation", "max_in_flight=1"),
        "unknown": _unknown("idempotence, max_in_flight"),
    },
    "nonmonotonic_send": _ALWAYS,
    "sequence_gap": {"acks=0": ("permitted", "acks=0"), "incomplete": INCOMPLETE},
    "failed_send": {"": ("permitted", "MESSAGE_TOO_LARGE")},
    "multi_writer": {
        "": ("violation", "single_writer=true"),
        "lax": ("permitted", "single_writer=false"),
        "unknown": _unknown("single_writer"),
    },
    "poll_skip": {**_ASSIGNED, "incomplete": INCOMPLETE},
    "nonmonotonic_poll": _ASSIGNED,
    "reprocess": {**_ASSIGNED, "incomplete": INCOMPLETE},
    "effect_duplicate": _ALWAYS,
    "key_order_violation": _ALWAYS,
    "offset_without_result": {"incomplete": INCOMPLETE},
    "result_without_offset": {"incomplete": INCOMPLETE},
    "aborted_read of a transaction": _ISOLATED,
    "sequence_gap by an aborted one": {
        "": ("indeterminate", "perhaps of an aborted transaction"),
        "acks=0": ("permitted", "acks=0"),
    },
    "partial_transaction": _ISOLATED,
    "partial_transaction too early": {
        "": ("violation", "isolation=read_committed"),
        "incomplete": INCOMPLETE,
    },
    "zombie_write": _ALWAYS,
    "zombie_write after the end": _ALWAYS,
    "offset_without_result by its transaction": {"incomplete": INCOMPLETE},
    "offset_without_result that counts": {"incomplete": INCOMPLETE},
    "result_without_offset by its transaction": {"incomplete": INCOMPLETE},
    "result_without_offset in one transaction": {"incomplete": INCOMPLETE},
}


class Case(NamedTuple):
    """One run with an injection, and the expected findings: counts without groups."""

    trace: SmallTrace
    expected: Counter[tuple[str, str, str | None]]


def injected_case(anomaly: str, k: int, configuration: str, seed: int) -> Case:
    settings, acks = CONFIGURATIONS[configuration]
    trace, added = injected(anomaly, k, seed, acks)
    trace.configuration = settings
    expected = Counter[tuple[str, str, str | None]]()
    for name, count in added.items():
        # A duplicate after a lost response is judged as that; any other, by nothing.
        of = anomaly.partition(" ")[0]
        own = of == name or (of == "lost_ack_duplicate" and name == "duplicate")
        judged = anomaly if own else name
        expected[(name, *expected_verdict(judged, configuration))] += count
    return Case(trace, expected)


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    """For each anomaly and configuration, runs with one and with some of it; and clean runs."""
    made = {}
    for number, configuration in enumerate(CONFIGURATIONS):
        for k in (1, 2 + number % 3):
            for anomaly in INJECTIONS:
                name = f"{k} {anomaly}, {configuration}"
                made[name] = injected_case(anomaly, k, configuration, number)
        made[f"clean, {configuration}"] = injected_case("", 0, configuration, number)
    return made


@spark_exhaustively
def test_audit_finds_each_injected_anomaly_with_its_verdict(
    engine: Engine, cases: Mapping[str, Case]
) -> None:
    traces = {name: case.trace for name, case in cases.items()}
    found = audited(engine, traces, split=7, split_us=300)
    wrong = {}
    for name, case in cases.items():
        counts = Counter[tuple[str, str, str | None]]()
        for (anomaly, _, verdict, setting), count in found[name].items():
            counts[(anomaly, verdict, setting)] += count
        if counts != case.expected:
            wrong[name] = (dict(counts), dict(case.expected))
    assert wrong == {}


def test_every_anomaly_is_injected_alone_and_more_than_once(cases: Mapping[str, Case]) -> None:
    assert set(INJECTIONS) == set(VERDICTS)
    assert {name.partition(" ")[0] for name in INJECTIONS} == set(ANOMALIES)
    for anomaly in INJECTIONS:
        counts = [
            sum(
                count for key, count in case.expected.items() if key[0] == anomaly.partition(" ")[0]
            )
            for name, case in cases.items()
            if f" {anomaly}, " in name
        ]
        assert min(counts) >= 1 and max(counts) >= 3, anomaly
