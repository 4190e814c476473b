"""The sentences that a report opens with: of each shipped scenario, and recounted from its rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.report.findings import Results, findings
from purgatory.pipeline.report.sentences import Finding, Severity, expired_severity, expired_text
from tests.unit.simulation.shipped_runs import ShippedRun

Row = dict[str, Any]

EXPECTED = {
    "slow-follower": [
        "58 of 4,867 produces (1.2 %) timed out. Each waited 1.5 s. This was from 4.0 s to 8.0 s "
        "into the run, while the follower on broker 2 was stalled (4.0 s to 8.0 s). The follower "
        "was still in the ISR, so acks=all waited for it. The leader had appended all of them.",
        'Producers of group "orders" do not know the outcome of 138 attempts (100 DISCONNECTED, 38 '
        "REQUEST_TIMED_OUT) from 4.0 s to 8.0 s into the run, while the follower on broker 2 was "
        "stalled (4.0 s to 8.0 s). They had 100 records: all of them are stored, 40 more than "
        "once. The 58 produces that timed out: 38 got the response REQUEST_TIMED_OUT, 20 lost "
        "their connection before it. 80 more attempts lost theirs before a broker read them.",
        "40 records are stored more than once (4,867 stored for 4,809 records: 58 duplicates), "
        "sent again because no response came, the first at 4.0 s, right before the follower on "
        "broker 2 was stalled (4.0 s to 8.0 s). The settings permit this (idempotence=false).",
        "21 of 11,454 fetches (0.2 %) returned at fetch.max.wait.ms with less than "
        "fetch.min.bytes. Each waited 501 ms. This was from 4.0 s to 8.0 s into the run, while the "
        "follower on broker 2 was stalled (4.0 s to 8.0 s).",
        'Producers of group "orders" waited 82.9 ms on average (p99 1,910.0 ms) for a response or '
        "the end of their connection. Answered attempts waited 17.6 ms on average (p99 292.3 ms) "
        "of it at the broker, and queued 33.2 ms on average (p99 1,649.0 ms) behind other requests "
        "of their connection.",
    ],
    "steady": [
        "Nothing went wrong: all 4,978 produces were answered in time, and no record was lost, "
        "duplicated or reordered.",
        "60 of 28,410 fetches (0.2 %) returned at fetch.max.wait.ms with less than "
        "fetch.min.bytes. Each waited 501 ms. This was from 0.0 s to 10.1 s into the run.",
        'The slowest producers, those of group "orders", waited 6.1 ms on average (p99 27.3 ms) '
        "for a response.",
    ],
}


def _rows(folder: Path, table: str) -> list[Row]:
    rows: list[Row] = pq.read_table(folder / table).to_pylist()
    return rows


def _results(folder: Path) -> Results:
    names = ("waits", "latencies", "attempts", "expiry", "audit", "witnesses")
    return Results(_rows(folder, "runs"), **{name: _rows(folder, name) for name in names})


@pytest.fixture(
    scope="module",
    params=["leader-failover", "retry-reorder", "slow-follower", "steady"],
)
def analyzed(
    request: pytest.FixtureRequest, shipped: ShippedRun, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, list[Finding]]:
    """A shipped scenario: its name, its trace, and its findings."""
    folder = tmp_path_factory.mktemp(request.param)
    trace = shipped(request.param).trace
    run_job("analyze", [trace], folder / "out", engine="duckdb")
    return request.param, trace, findings(_results(folder / "out"))


def _seconds(time_us: float) -> str:
    return f"{time_us / 1e6:.1f} s"


@pytest.mark.slow
def test_each_shipped_scenario_opens_with_its_sentences(
    analyzed: tuple[str, Path, list[Finding]],
) -> None:
    name, trace, said = analyzed
    texts = [one.text for one in said]
    if name in EXPECTED:
        assert texts == EXPECTED[name]
    assert texts == list(dict.fromkeys(texts))
    assert [one.severity for one in said] == sorted(one.severity for one in said)
    _recount_expired(_rows(trace, "operations"), texts)
    _recount_unanswered(_rows(trace, "sends"), _rows(trace, "reads"), texts)


def _recount_expired(operations: Sequence[Row], texts: Sequence[str]) -> None:
    """Each purgatory whose operations expired has a sentence with these counts and times."""
    totals = Counter(row["purgatory"] for row in operations)
    for purgatory, total in totals.items():
        of = [r for r in operations if (r["purgatory"], r["outcome"]) == (purgatory, "expired")]
        start = re.escape(f"{len(of):,} of {total:,} ")
        what = {"Produce": "produces", "Fetch": "fetches"}[purgatory]
        found = [text for text in texts if re.match(f"{start}{what} ", text)]
        assert len(found) == bool(of), purgatory
        if of:
            between = (
                f". This was from {_seconds(min(r['start_us'] for r in of))} to "
                f"{_seconds(max(r['end_us'] for r in of))} into the run"
            )
            assert between in found[0]
            waited_us = [r["wait_us"] for r in of]
            if max(waited_us) >= 1_000_000 and min(waited_us) == max(waited_us):
                assert f"Each waited {_seconds(max(waited_us))}. This was" in found[0]


def _recount_unanswered(sends: Sequence[Row], reads: Sequence[Row], texts: Sequence[str]) -> None:
    """Each group with unanswered attempts has a sentence with these counts and the duplicates."""
    places: dict[int, set[tuple[Any, ...]]] = {}
    for row in reads:
        place = (row["topic"], row["partition"], row["offset"])
        places.setdefault(row["value_id"], set()).add(place)
    for group in {row["group"] for row in sends}:
        of = [r for r in sends if (r["group"], r["outcome"]) == (group, "unknown") and r["error"]]
        start = f'Producers of group "{group}" do not know the outcome of '
        found = [text for text in texts if text.startswith(start)]
        assert len(found) == bool(of), group
        if of:
            records = {row["value_id"] for row in of}
            assert found[0].startswith(f"{start}{len(of):,} attempts (")
            assert f"They had {len(records):,} records: " in found[0]
            assert ("all of them are stored" in found[0]) == (records <= places.keys())
            for error, count in Counter(row["error"] for row in of).items():
                assert f"{count:,} {error}" in found[0]
    copies = sum(len(found) - 1 for found in places.values())
    doubled = sum(len(found) > 1 for found in places.values())
    told = [text for text in texts if "are stored more than once" in text]
    assert len(told) == bool(copies)
    if copies:
        assert told[0].startswith(f"{doubled:,} records ")
        stored = copies + len(places)
        assert f"({stored:,} stored for {len(places):,} records: {copies:,} duplicate" in told[0]


def _run(**columns: Any) -> Row:
    run = {"run_id": "run", "complete": True, "duration_us": 9_000_000, "faults": []}
    return {**run, **columns}


def _texts(**tables: Any) -> list[str]:
    return [one.text for one in findings(Results(**tables))]


def _waits(**counts: int) -> list[Row]:
    row = {"purgatory": "Produce", "kind": "all", "wait_mean_us": 800_000, "wait_max_us": 1_500_000}
    return [{**row, "outcome": outcome, "operations": count} for outcome, count in counts.items()]


def test_empty_trace_is_reported() -> None:
    assert _texts(runs=[_run()]) == ["Nothing happened: the trace has no operations."]


def test_incomplete_trace_is_named_first_and_never_valid() -> None:
    said = findings(Results([_run(complete=False)], waits=_waits(completed=3, all=3)))
    assert [one.severity for one in said] == [Severity.INCOMPLETE]
    assert said[0].text.startswith("The trace is incomplete: requests that were pending")


def test_fault_in_force_for_a_small_part_of_the_time_is_no_cause() -> None:
    kill = {"kind": "kill", "broker": 1, "at_ms": 4000, "duration_ms": 500}
    later = {"kind": "new_kind", "broker": None, "at_ms": 8500, "duration_ms": None}
    expired = {"purgatory": "Produce", "watch_key": None, "expired": 2}
    assert _texts(
        runs=[_run(faults=[kill, later])],
        waits=_waits(expired=2, all=8),
        expiry=[{**expired, "from_us": 1_000_000, "until_us": 7_000_000}],
    ) == [
        "2 of 8 produces (25.0 %) timed out. They waited 800 ms on average, 1.5 s at most. This "
        "was from 1.0 s to 7.0 s into the run; in a part of that time broker 1 was dead (4.0 s to "
        "4.5 s). The leader had appended all of them.",
        "The fault new_kind was in force (from 8.5 s on).",
    ]


def test_unread_record_is_not_called_stored() -> None:
    row = {"group": "g", "attempts": 1, "records": 1, "stored": 0, "doubled": 0, "copies": 0}
    row |= {"outcome": "unknown", "from_us": 0, "until_us": 1_000_000}
    attempts = [{**row, "error": "*"}, {**row, "error": "DISCONNECTED"}]
    assert _texts(runs=[_run()], attempts=attempts) == [
        'Producers of group "g" do not know the outcome of 1 attempt (1 DISCONNECTED) from 0.0 s '
        "to 1.0 s into the run; none was read, so the trace does not show whether they are stored."
    ]


@pytest.mark.parametrize(
    ("times_us", "count", "when"),
    [
        ((), 2, ""),
        ((None,), 1, ""),
        ((4_300_000,), 1, ", at 4.3 s, while broker 1 was dead (4.0 s to 4.5 s)"),
        ((3_990_000,), 1, ", at 4.0 s, right before broker 1 was dead (4.0 s to 4.5 s)"),
        ((3_400_000, 3_600_000), 9, ", the first at 3.4 s"),
        (
            (3_400_000, 3_600_000),
            2,
            ", between 3.4 s and 3.6 s, right before broker 1 was dead (4.0 s to 4.5 s)",
        ),
        ((8_000_000, 8_010_000), 2, ", at 8.0 s"),
        (
            (4_100_000, 4_600_000),
            2,
            ", between 4.1 s and 4.6 s, while broker 1 was dead (4.0 s to 4.5 s)",
        ),
        ((8_000_000, 8_500_000), 3, ", the first at 8.0 s"),
        ((4_200_000,), 3, ", the first at 4.2 s, while broker 1 was dead (4.0 s to 4.5 s)"),
    ],
)
def test_findings_have_the_times_of_their_witnesses(
    times_us: Sequence[int | None], count: int, when: str
) -> None:
    kill = {"kind": "kill", "broker": 1, "at_ms": 4000, "duration_ms": 500}
    found = {"anomaly": "poll_skip", "group": "g", "verdict": "violation", "setting": None}
    witnesses = [{**found, "time_us": time_us, "count": 1} for time_us in times_us]
    witnesses.append({**found, "verdict": "permitted", "time_us": 1_000, "count": 1})
    text, *_ = _texts(
        runs=[_run(faults=[kill])], audit=[{**found, "count": count}], witnesses=witnesses
    )
    polls = "One poll" if count == 1 else f"{count} polls"
    assert text == f"{polls} jumped over records{when}. This violates the guarantees."


def test_possible_concurrent_writers_are_not_reported() -> None:
    found = {"anomaly": "multi_writer", "group": "g", "setting": "single_writer=false", "count": 27}
    assert _texts(runs=[_run()], audit=[{**found, "verdict": "permitted"}]) == [
        "Nothing went wrong: no record was lost, duplicated or reordered."
    ]
    (text,) = _texts(runs=[_run()], audit=[{**found, "verdict": "violation", "setting": None}])
    assert text.startswith("27 times a producer wrote to a partition while another one did.")


@pytest.mark.parametrize(
    ("expired", "told", "broken", "said"),
    [
        (5, 3, 9, "The 5 produces that timed out: 3 got the response REQUEST_TIMED_OUT, 2 lost "
         "their connection before it. 7 more attempts lost theirs before a broker read them."),
        (5, 5, 0, "The 5 produces that timed out: 5 got the response REQUEST_TIMED_OUT."),
        # Several records to a request: nobody can tell.
        (5, 50, 9, ""),
    ],
)  # fmt: skip
def test_timed_out_produces_are_found_again_among_the_attempts(
    expired: int, told: int, broken: int, said: str
) -> None:
    produces = 100 + expired
    row = {"group": "g", "records": 9, "stored": 9, "doubled": 0, "copies": 0, "from_us": 0}
    row |= {"outcome": "unknown", "until_us": 5}
    counts = {"*": told + broken, "REQUEST_TIMED_OUT": told, "DISCONNECTED": broken}
    attempts = [{**row, "error": error, "attempts": n} for error, n in counts.items() if n]
    spans = {"attempt": 100 + told + broken, "broken": broken}
    latency = {"group": "g", "latency_mean_us": 1, "latency_p99_us": 1}
    texts = _texts(
        runs=[_run()],
        waits=_waits(expired=expired, completed=100, all=produces),
        attempts=attempts,
        latencies=[{**latency, "span": span, "count": count} for span, count in spans.items()],
    )
    (text,) = [
        text for text in texts if text.startswith("Producers of group") and "attempts" in text
    ]
    assert text.endswith(f"are stored. {said}" if said else "are stored.")


def test_unacknowledged_sends_with_acks_0_are_no_problem() -> None:
    row = {"group": "g", "outcome": "unknown", "error": "*", "attempts": 9, "records": 9}
    row |= {"stored": 9, "doubled": 0, "copies": 0, "from_us": 0, "until_us": 5}
    said = findings(Results([_run()], attempts=[row]))
    assert [one.severity for one in said] == [Severity.NOTE]


def test_small_share_is_not_rounded_to_zero() -> None:
    assert expired_text("Produce", 3, 12_409) == "3 of 12,409 produces (0.02 %) timed out."
    assert expired_text("Rebalance", 1, 4).startswith("1 of 4 rebalances (25.0 %) expired: that of")
    assert expired_text("TransactionTimeout", 1, 4).startswith("1 of 4 waits of transactions (25.0")
    assert expired_text("Sync", 1, 4).startswith("1 of 4 syncs (25.0 %) expired: members")
    assert expired_severity("Sync") == Severity.HARM
    assert expired_severity("ShareFetch") == expired_severity("Rebalance") == Severity.NOTE
    assert expired_text("Of mine", 1, 2) == (
        "1 of 2 operations in the purgatory Of mine (50.0 %) timed out."
    )
