"""The published histories of Jepsen's tests of its Kafka checker, and both verdicts on each.

Source: `jepsen/test/jepsen/tests/kafka_test.clj` of github.com/jepsen-io/jepsen. Its histories are
rewritten as rows of our tables: a process is a producer and a consumer, a key a topic of one
partition, and `info` an unknown outcome. `DIFFERENCES` explains the intended differences of the
two. Its tests of the checker's parts, of lag and of a generator have no history that an audit could
judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import duckdb
import pytest

from purgatory.pipeline.jobs.audit import ConsumerSettings, ProducerSettings, RunConfiguration
from purgatory.pipeline.jobs.audit.findings import undecided
from purgatory.pipeline.result_rows import Row
from tests.spark.pipeline.audit_rows import Read, Send, SmallTrace, Transaction, result_of
from tests.unit.pipeline.audit_oracle import Oracle


class Sent(NamedTuple):
    """A record of an operation: its offset is None if no client learned it."""

    key: str
    value: str
    offset: int | None = None


Polled = Mapping[str, Sequence[tuple[int, str]]]
"""Offsets and values by key, as one poll got them."""


class Op(NamedTuple):
    """A completed operation: in a history, at the time of its place."""

    process: int
    outcome: str
    parts: Sequence[Sent | Polled]
    transaction: bool = False


def ok(process: int, *parts: Sent | Polled) -> Op:
    return Op(process, "ok", parts)


def info(process: int, *parts: Sent | Polled) -> Op:
    return Op(process, "unknown", parts)


def fail(process: int, *parts: Sent | Polled) -> Op:
    return Op(process, "fail", parts)


def txn(process: int, *parts: Sent | Polled) -> Op:
    return Op(process, "ok", parts, transaction=True)


def x(*records: tuple[int, str]) -> Polled:
    return {"x": records}


def y(*records: tuple[int, str]) -> Polled:
    return {"y": records}


class History(NamedTuple):
    """A history.

    Args:
        jepsen: the findings of its checker, by its own names.
        ours: how many cases of which anomaly the audit finds; writers of one partition at a time
            are no matter here.
        ops: the operations, in order.
        assignment: of the consumers.
    """

    jepsen: str
    ours: Mapping[str, int]
    ops: Sequence[Op]
    assignment: str = "assign"


_SIX = [Sent("x", str(number), number) for number in range(6)]
_SKIPPED = [
    ok(0, x((1, "a"), (2, "b"))),
    ok(1, x((3, "c"))),
    ok(0, x((4, "d"))),
    ok(2, Sent("x", "f", 6)),
    ok(0, x((7, "g"))),
    info(3, *(Sent("x", value) for value in "abcdg")),
]
_WENT_BACK = [
    ok(0, *(Sent("x", value) for value in "abcd")),
    ok(0, x((1, "a"), (2, "b"), (3, "c"))),
    ok(0, x((2, "b"), (3, "c"), (4, "d"))),
]
_SENT_BACK = [
    ok(0, Sent("x", "c", 3), Sent("x", "d", 4)),
    ok(0, Sent("x", "a", 1), Sent("x", "b", 2)),
]
_CONFLICT = [info(0, Sent("x", "1", 0), Sent("y", "1")), ok(1, Sent("x", "2", 0))]
_CRASHED = [info(0, Sent("x", "a"), Sent("y", "b", 0)), info(1, Sent("y", "c"))]

HISTORIES: Mapping[str, History] = {
    "version orders": History(
        "inconsistent offset 1",
        {"duplicate": 1},
        [
            ok(1, x((0, "a"), (1, "b"))),
            info(0, Sent("x", "c", 1), Sent("x", "b", 3), Sent("x", "d", 4)),
        ],
    ),
    "a real-world example": History(
        "inconsistent offset 1",
        {"inconsistent_offset": 1, "unseen": 2},
        [ok(379, Sent("11", "641", 537)), ok(363, Sent("11", "645", 537))],
    ),
    "an unknown send conflicts": History("nothing", {"unseen": 1}, _CONFLICT),
    "an unknown send conflicts, and its other record is read": History(
        "inconsistent offset 1", {"unseen": 1}, [*_CONFLICT, ok(2, y((5, "1")))]
    ),
    "a failed write is read": History(
        "G1a 1",
        {"aborted_read": 1},
        [fail(0, Sent("x", "2"), Sent("y", "3")), ok(1, x((0, "2")))],
    ),
    "lost writes": History(
        "lost write 2, unseen 1",
        {"lost_write": 2, "unseen": 1},
        [
            ok(0, Sent("x", "a", 0)),
            ok(0, Sent("x", "b", 1), Sent("x", "d", 3)),
            info(1, Sent("x", "c")),
            ok(0, x((2, "c"))),
        ],
    ),
    "a lost write that was written over": History(
        "lost write 1, inconsistent offset 1",
        {"lost_write": 1, "inconsistent_offset": 1},
        [
            ok(0, Sent("x", "a", 0)),
            ok(0, Sent("x", "b", 0), Sent("x", "c", 2)),
            ok(0, x((0, "b"), (2, "c"))),
        ],
    ),
    "a crashed transaction": History("nothing", {}, [*_CRASHED, ok(3, y((1, "c")))]),
    "a crashed transaction of which one record is read": History(
        "lost write 1", {}, [*_CRASHED, ok(2, x((0, "a"))), ok(3, y((1, "c")))]
    ),
    "polls skip": History("poll skip 2", {"poll_skip": 1, "lost_write": 1}, _SKIPPED),
    "polls skip, and partitions change hands": History(
        "nothing", {"lost_write": 1}, _SKIPPED, "subscribe"
    ),
    "aborted polls are polled again": History(
        "nothing",
        {"nonmonotonic_poll": 2},
        [
            ok(0, *_SIX[:3]),
            ok(1, x((0, "0"))),
            fail(1, x((1, "1"), (2, "2"))),
            info(1, x((1, "1"), (2, "2"))),
            ok(1, x((1, "1"), (2, "2"))),
        ],
    ),
    "aborted polls are not polled again": History(
        "poll skip 2",
        {},
        [
            ok(0, *_SIX),
            ok(1, x((0, "0"))),
            fail(1, x((1, "1"), (2, "2"))),
            fail(1, x((3, "3"), (4, "4"))),
            ok(1, x((5, "5"))),
        ],
    ),
    "a crashed poll is not polled again": History(
        "poll skip 1",
        {"unseen": 1},
        [
            ok(0, *_SIX),
            ok(1, x((0, "0"))),
            fail(1, x((1, "1"), (2, "2"))),
            info(1, x((3, "3"), (4, "4"))),
        ],
    ),
    "a poll goes back": History("nonmonotonic poll 1", {"nonmonotonic_poll": 1}, _WENT_BACK),
    "a poll goes back, and partitions change hands": History(
        "nothing", {}, _WENT_BACK, "subscribe"
    ),
    "sends go back": History(
        "nonmonotonic send 1", {"nonmonotonic_send": 2, "unseen": 4}, _SENT_BACK
    ),
    "sends go back, and partitions change hands": History(
        "nothing", {"nonmonotonic_send": 2, "unseen": 4}, _SENT_BACK, "subscribe"
    ),
    "skips within operations": History(
        "internal poll skip 2",
        {"poll_skip": 2},
        [
            info(1, *(Sent("x", value) for value in "abd")),
            ok(0, x((1, "a"), (4, "d"))),
            ok(9, x((1, "a")), x((4, "d"))),
            ok(8, x((2, "b"))),
        ],
    ),
    "another's record between two of one operation": History(
        "internal send skip 1",
        {"lost_write": 1},
        [
            ok(0, Sent("x", "a", 1), Sent("x", "c")),
            info(1, Sent("x", "b")),
            ok(2, x((2, "b"), (3, "c"))),
        ],
    ),
    "polls go back within operations": History(
        "internal nonmonotonic poll 2",
        {"poll_skip": 1, "nonmonotonic_poll": 1},
        [
            info(0, *(Sent("x", value) for value in "abc")),
            ok(2, x((3, "c"), (1, "a"))),
            ok(0, x((2, "b"), (3, "c")), x((3, "c"))),
        ],
    ),
    "sends go back within operations": History(
        "internal nonmonotonic send 2",
        {"nonmonotonic_send": 2, "unseen": 2},
        [
            ok(0, Sent("x", "c", 3), Sent("x", "a", 1)),
            info(0, Sent("y", "d"), Sent("y", "b")),
            info(1, Sent("y", "c")),
            ok(0, y((2, "b"), (3, "c"), (4, "d"))),
        ],
    ),
    "acknowledged at one offset, read at another": History(
        "duplicate 1",
        {"duplicate": 1, "moved_write": 1},
        [ok(0, Sent("x", "a", 1)), info(1, Sent("x", "b")), ok(2, x((2, "b"), (3, "a")))],
    ),
    "ten at two offsets": History(
        "duplicate 10, inconsistent offset 2, nonmonotonic poll 9",
        {"duplicate": 10, "moved_write": 10, "inconsistent_offset": 2, "nonmonotonic_poll": 9},
        [
            op
            for number in range(10)
            for op in (ok(0, Sent("x", str(number), 0)), ok(1, x((1, str(number)))))
        ],
    ),
    "an aborted poll tells of copies": History(
        "duplicate 1",
        {"duplicate": 1, "moved_write": 1, "aborted_read": 1},
        [
            ok(0, Sent("x", "0", 1)),
            fail(0, Sent("x", "1", 2)),
            fail(1, x((11, "0"), (12, "1"))),
        ],
    ),
    "nothing happens": History("not valid", {}, []),
    "unseen at first": History(
        "unseen 2", {"unseen": 2}, [ok(1, x()), ok(0, Sent("x", "a", 0), Sent("x", "b", 1))]
    ),
    "unseen later": History(
        "unseen 1",
        {"unseen": 1},
        [ok(0, Sent("x", "a", 0), Sent("x", "b", 1)), ok(1, x((0, "a")))],
    ),
    "unseen no more": History(
        "nothing",
        {},
        [ok(0, Sent("x", "a", 0), Sent("x", "b", 1)), ok(1, x((0, "a"))), ok(1, x((1, "b")))],
    ),
    "a cycle of writes": History(
        "G0 1",
        {"unseen": 4},
        [
            txn(0, Sent("x", "a", 0), Sent("y", "a", 1)),
            txn(1, Sent("x", "b", 1), Sent("y", "b", 0)),
        ],
    ),
    "a cycle of reads": History(
        "G1c 1",
        {"partial_transaction": 1},
        [txn(0, Sent("x", "a", 0), y((0, "b"))), txn(1, Sent("y", "b", 0), x((0, "a")))],
    ),
    "a cycle of writes and reads": History(
        "G1c 1",
        {"unseen": 2},
        [txn(0, Sent("x", "a", 0), Sent("y", "c", 2)), txn(1, x((0, "a")), Sent("y", "b", 1))],
    ),
    "a transaction reads what it wrote": History(
        "precommitted read 1", {"partial_transaction": 1}, [txn(0, Sent("x", "a", 0), x((0, "a")))]
    ),
}

_UNKNOWN = "a send of unknown outcome claims no offset below what was read"
DIFFERENCES: Mapping[str, str] = {
    "version orders": _UNKNOWN,
    "an unknown send conflicts, and its other record is read": _UNKNOWN,
    "a crashed transaction of which one record is read": _UNKNOWN,
    "polls skip": "acknowledged and not read is lost, not skipped",
    "polls skip, and partitions change hands": "acknowledged and not read is lost, not skipped",
    "aborted polls are polled again": "`reads` don't show that their transaction was aborted",
    "aborted polls are not polled again": "`reads` don't show that their transaction was aborted",
    "a crashed poll is not polled again": "`reads` don't show that their transaction was aborted",
    "sends go back": "records count, not pairs of operations",
    "sends go back, and partitions change hands": "subscriptions don't excuse the order of sends",
    "skips within operations": "polls have no operations here",
    "another's record between two of one operation": "others may write between two records",
    "polls go back within operations": "a poll's records have no order",
    "sends go back within operations": "records count, not pairs of operations",
    "nothing happens": "status 3",
    "a cycle of writes": "Kafka promises no order between partitions",
    "a cycle of reads": "found as a read of what was not committed",
    "a cycle of writes and reads": "Kafka permits it",
    "a transaction reads what it wrote": "another name",
}
"""Histories with different verdicts of the two, and the audit's reasons."""


def trace_of(history: History) -> SmallTrace:
    """A history as the tables of a trace."""
    trace = SmallTrace(
        configuration=RunConfiguration(
            [ProducerSettings("jepsen", True, 5, 10, single_writer=False)],
            [ConsumerSettings("jepsen", history.assignment, "read_committed")],
        )
    )
    ids: dict[tuple[str, str], int] = {}
    sequences: dict[int, int] = {}
    polls: dict[int, int] = {}
    for number, op in enumerate(history.ops, 1):
        ended_us = 10 * number
        if op.transaction:
            trace.transactions.append(
                Transaction(number, str(op.process), 0, begun_us=ended_us - 9, decided_us=ended_us)
            )
        for part in op.parts:
            if isinstance(part, Sent):
                sequence = sequences[op.process] = sequences.get(op.process, -1) + 1
                trace.sends.append(
                    Send(
                        op.process,
                        sequence,
                        ids.setdefault((part.key, part.value), len(ids)),
                        0,
                        part.offset,
                        "jepsen",
                        outcome=op.outcome,
                        send_us=ended_us - 9,
                        answer_us=ended_us,
                        topic=part.key,
                        transactional_id=str(op.process) if op.transaction else None,
                        epoch=0 if op.transaction else None,
                        transaction=number if op.transaction else None,
                    )
                )
                continue
            poll = polls[op.process] = polls.get(op.process, -1) + 1
            trace.reads += [
                Read(
                    op.process,
                    poll,
                    0,
                    offset,
                    ids.setdefault((key, value), len(ids)),
                    "jepsen",
                    ended_us - 1,
                    applied=False,
                    topic=key,
                )
                for key, records in part.items()
                for offset, value in records
            ]
    return trace


@pytest.fixture(scope="module")
def audited() -> Mapping[str, list[Row]]:
    """The rows of the table `audit` of each history, of one job."""
    traces = {name: trace_of(history) for name, history in HISTORIES.items()}
    with duckdb.connect() as connection:
        rows, _ = result_of(connection, traces)
    return {name: [row for row in rows if row["run_id"] == name] for name in HISTORIES}


@pytest.mark.parametrize("name", HISTORIES)
def test_audit_finds_or_names_each_anomaly_of_jepsens_histories(
    name: str, audited: Mapping[str, list[Row]]
) -> None:
    found: Counter[str] = Counter()
    for row in audited[name]:
        if row["count"] and row["anomaly"] != "multi_writer" and row["verdict"] != "permitted":
            found[row["anomaly"]] += row["count"]
    assert found == HISTORIES[name].ours
    counted = Oracle(trace_of(HISTORIES[name])).found()
    assert {(*key, count) for key, count in counted.items()} == {
        (row["anomaly"], row["group"], row["verdict"], row["setting"], row["count"])
        for row in audited[name]
        if row["count"]
    }


def test_history_without_operations_is_not_decided(
    audited: Mapping[str, list[Row]],
) -> None:
    assert undecided(audited["nothing happens"], ())


def test_difference_to_jepsen_has_a_reason() -> None:
    names = {
        "lost_write": "lost write",
        "inconsistent_offset": "inconsistent offset",
        "poll_skip": "poll skip",
        "nonmonotonic_poll": "nonmonotonic poll",
        "nonmonotonic_send": "nonmonotonic send",
        "aborted_read": "G1a",
    }
    differing = set()
    for name, history in HISTORIES.items():
        ours = {f"{names.get(one, one)} {count}" for one, count in history.ours.items()}
        jepsens = set(history.jepsen.split(", ")) - {"nothing"}
        more = jepsens == set() and history.ours.keys() - {"unseen"}
        if not jepsens <= ours or more:
            differing.add(name)
    assert differing == DIFFERENCES.keys()
