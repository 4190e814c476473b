"""The audit of traces that brokers wrote: by the columns that only they fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from purgatory.pipeline.jobs.audit import RunConfiguration
from purgatory.pipeline.jobs.audit.anomalies import EQUAL_RECORDS, FETCHED_AGAIN
from tests.spark.pipeline.audit_rows import (
    Commit,
    Effect,
    Engine,
    Read,
    Send,
    SmallTrace,
    Transaction,
    audited,
    result_of,
    spark_exhaustively,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

OBSERVED = RunConfiguration(observed=True)
GROUP = "billing"


class Expected(NamedTuple):
    """A trace, and all that is found in it: anomaly, verdict and setting, with their counts."""

    trace: SmallTrace
    found: Mapping[tuple[str, str, str | None], int] = {}


def sent(sequence: int, offset: int | None = None, **more: Any) -> Send:
    place = sequence if offset is None else offset
    return Send(1, sequence, more.pop("value_id", sequence), 0, place, send_us=sequence, **more)


def failed(sequence: int, error: str, **more: Any) -> Send:
    return Send(1, sequence, sequence, 0, None, outcome="fail", error=error, **more)


def read(offset: int, poll: int = 1, reading: int = 1, **more: Any) -> Read:
    columns: dict[str, Any] = {
        "value_id": offset,
        "applied": False,
        "group": "rdkafka",
        "consumer_group": GROUP,
        "restarts": 0,
        "reading": reading,
        "fetch_offset": 0,
        **more,
    }
    return Read(1, poll, 0, offset, **columns)


def traced(
    sends: Sequence[Send], reads: Sequence[Read], effects: Sequence[int] = (), **more: Any
) -> SmallTrace:
    done = [Effect(0, offset, n, 0, n, group=GROUP, consumer=0) for n, offset in enumerate(effects)]
    return SmallTrace(list(sends), list(reads), done, configuration=OBSERVED, **more)


def shared(offset: int, delivery: int = 1, acknowledged: str | None = "accept") -> Read:
    row = read(offset, delivery=delivery, acknowledged=acknowledged)
    return row._replace(reading=None, fetch_offset=offset)


FOUR = [sent(n) for n in range(4)]
READ = [read(n) for n in range(4)]
AGAIN = [read(n, 2, 2, restarts=1) for n in range(4)]
COMMITTED = [Commit(0, 4, 9, group=GROUP)]
ABORTED = [
    Transaction(1, "x", 0, "committed", begun_us=0, decided_us=50, ended_us=50),
    Transaction(2, "x", 1, "aborted", begun_us=51, decided_us=60, ended_us=60),
    Transaction(3, "x", 2, "committed", begun_us=61, decided_us=70, ended_us=70),
]

OF_SENDS: Mapping[str, Expected] = {
    "a transaction is aborted, and its record sent again under another number": Expected(
        traced(
            [
                sent(0, transaction=1),
                sent(1, value_id=7, transaction=2),
                sent(2, 3, value_id=7, transaction=3),
            ],
            [read(0), read(3, value_id=7)],
            transactions=ABORTED,
        )
    ),
    "equal records of two producers": Expected(
        traced(
            [*FOUR, Send(2, 0, 90, 0, 4, equal_to=3, send_us=50, answer_us=51)],
            [*READ, read(4, value_id=90)],
        ),
        {("duplicate", "indeterminate", EQUAL_RECORDS): 1},
    ),
    "an equal record of one that was refused": Expected(
        traced(
            [
                *FOUR[:3],
                failed(3, "MESSAGE_TOO_LARGE"),
                Send(2, 0, 90, 0, 4, equal_to=3, send_us=50, answer_us=51),
            ],
            [*READ[:3], read(4, value_id=90)],
        ),
        {("failed_send", "permitted", "MESSAGE_TOO_LARGE"): 1},
    ),
    "equal records that were not told apart": Expected(
        traced([*FOUR, sent(4, value_id=3)], [*READ, read(4, value_id=3)]),
        {("duplicate", "indeterminate", EQUAL_RECORDS): 1},
    ),
    "an equal record on another connection": Expected(
        traced(
            [
                *FOUR[:3],
                sent(3, outcome="unknown", error="sent again"),
                sent(3, 4, attempt=2),
            ],
            [*READ, read(4, value_id=3)],
        ),
        {
            ("duplicate", "indeterminate", EQUAL_RECORDS): 1,
            ("lost_ack_duplicate", "indeterminate", EQUAL_RECORDS): 1,
        },
    ),
    "a lost response, and the record sent again": Expected(
        traced(
            [
                *FOUR[:3],
                sent(3, outcome="unknown", error="answer lost"),
                sent(3, 4, attempt=2),
            ],
            [*READ, read(4, value_id=3)],
        ),
        {
            ("duplicate", "indeterminate", "configuration unknown: idempotence"): 1,
            ("lost_ack_duplicate", "indeterminate", "configuration unknown: idempotence"): 1,
        },
    ),
    "sends that failed for good": Expected(
        traced(
            [
                sent(0),
                failed(1, "MESSAGE_TOO_LARGE"),
                failed(2, "NOT_ENOUGH_REPLICAS"),
                failed(2, "INVALID_RECORD", attempt=2),
                sent(3),
            ],
            [READ[0], READ[3]],
        ),
        {
            ("failed_send", "permitted", "MESSAGE_TOO_LARGE"): 1,
            ("failed_send", "permitted", "INVALID_RECORD"): 1,
        },
    ),
    "numbers that no broker got": Expected(traced([sent(0), sent(3)], [READ[0], READ[3]])),
    "a topic that was made anew": Expected(
        traced(
            [*FOUR, *(sent(n, value_id=10 + n, topic="orders#2") for n in range(4))],
            [*READ, *(read(n, 2, 2, value_id=10 + n, topic="orders#2") for n in range(4))],
        )
    ),
}

COMPACTED = [
    sent(0, key=1, compaction="key"),
    sent(1, key=2, compaction="key"),
    sent(2, key=1, compaction="key"),
    sent(3, key=3, compaction="tombstone"),
    sent(4, key=4, compaction="key"),
    sent(5, key=2, compaction="key"),
]

OF_READS: Mapping[str, Expected] = {
    "what compaction may take": Expected(traced(COMPACTED, [read(2), read(4), read(5)])),
    "read by others before compaction": Expected(
        traced(
            COMPACTED,
            [
                *(read(n, consumer_group="early", reading=9) for n in range(6)),
                *(read(n, 2, 2) for n in (2, 4, 5)),
            ],
        )
    ),
    "what compaction may not take": Expected(
        traced(COMPACTED, [read(2), read(5)]),
        {("lost_write", "violation", "acks=all"): 1, ("sequence_gap", "violation", "acks=all"): 1},
    ),
    "back in another reading": Expected(traced(FOUR, [*READ, *(read(n, 2, 2) for n in (2, 3))])),
    "back in one reading": Expected(
        traced(FOUR, [*READ, *(read(n, 2) for n in (2, 3))]),
        {
            ("nonmonotonic_poll", "indeterminate", FETCHED_AGAIN): 1,
            ("reprocess", "indeterminate", FETCHED_AGAIN): 2,
        },
    ),
    "two groups under one client id": Expected(
        traced(FOUR, [*READ, *(read(n, 2, 2, consumer_group="shipping") for n in range(4))])
    ),
    "everything again, and never a commit": Expected(
        traced(FOUR, [*READ, *AGAIN]),
        {("reprocess", "indeterminate", "configuration unknown: assignment"): 4},
    ),
    "everything again, of a group that commits": Expected(
        traced(FOUR, [*READ, *AGAIN], commits=COMMITTED)
    ),
    "from a position of its own, and never a commit": Expected(
        traced(FOUR, [*READ, *(row._replace(fetch_offset=2) for row in AGAIN[2:])])
    ),
    "all in a share group": Expected(traced(FOUR, [shared(n) for n in range(4)])),
    "released and delivered again": Expected(
        traced(FOUR, [shared(0, 1, "release"), shared(0, 2), *(shared(n) for n in (2, 1, 3))])
    ),
    "accepted and delivered again": Expected(
        traced(FOUR, [*(shared(n) for n in range(4)), shared(0, 2)]),
        {("reprocess", "violation", None): 1},
    ),
}

OF_EFFECTS: Mapping[str, Expected] = {
    "committed and not done": Expected(
        traced(FOUR, READ, effects=[0, 1], commits=COMMITTED),
        {("offset_without_result", "violation", None): 2},
    ),
    "done and not committed": Expected(
        traced(FOUR, READ, effects=range(4), commits=[Commit(0, 2, 9, group=GROUP)])
    ),
    "done twice": Expected(
        traced(FOUR, [*READ, *AGAIN], effects=[0, 1, 2, 3, 3], commits=COMMITTED),
        {("effect_duplicate", "permitted", "at-least-once"): 1},
    ),
    "delivered twice and done once": Expected(
        traced(FOUR, [*READ, *AGAIN], effects=range(4), commits=COMMITTED)
    ),
    "accepted and not done": Expected(
        traced(FOUR, [shared(n) for n in range(4)], effects=[0, 1, 2]),
        {("offset_without_result", "violation", None): 1},
    ),
}
CASES = {**OF_SENDS, **OF_READS, **OF_EFFECTS}


def _found(engine: Engine, expect: Sequence[str] = ()) -> Mapping[str, Mapping[Any, int]]:
    traces = {name: case.trace for name, case in CASES.items()}
    return {
        name: {(anomaly, verdict, setting): n for (anomaly, _, verdict, setting), n in one.items()}
        for name, one in audited(engine, traces, expect=expect).items()
    }


@spark_exhaustively
def test_each_anomaly_is_judged_by_what_brokers_see(engine: Engine) -> None:
    expected = {name: dict(case.found) for name, case in CASES.items()}
    assert _found(engine) == expected


@spark_exhaustively
def test_expectations_make_violations_of_certain_anomalies_alone(engine: Engine) -> None:
    found = _found(engine, ["once", "no-loss", "order"])
    violated = {
        name: sorted(anomaly for anomaly, verdict, _ in one if verdict == "violation")
        for name, one in found.items()
    }
    assert {name: anomalies for name, anomalies in violated.items() if anomalies} == {
        "a lost response, and the record sent again": ["duplicate", "lost_ack_duplicate"],
        "what compaction may not take": ["lost_write", "sequence_gap"],
        "everything again, and never a commit": ["reprocess"],
        "accepted and delivered again": ["reprocess"],
        "committed and not done": ["offset_without_result"],
        "done twice": ["effect_duplicate"],
        "accepted and not done": ["offset_without_result"],
    }


@spark_exhaustively
def test_audit_without_effects_names_unchecked_anomalies(engine: Engine) -> None:
    counted, _ = result_of(engine, {"run": traced(FOUR, READ)}, shown=False)
    reasons = {row["anomaly"]: row["setting"] for row in counted if row["setting"]}
    unseen = "no effects: nothing tells whether what was delivered was processed"
    assert reasons["effect_duplicate"] == reasons["offset_without_result"] == unseen
