"""Rows of a run that is all right, and ways to spoil it; what was done is known exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

SECOND_US = 1_000_000
STARTED_US = 1_700_000_000 * SECOND_US


def operation(
    end_us: int, outcome: str = "completed", wait_us: int = 1_000, **more: Any
) -> dict[str, Any]:
    """A row of the table of operations, by the time when it ended."""
    start_us = end_us - wait_us
    return {
        "run_id": "run",
        "started_us": STARTED_US,
        "broker": 1,
        "purgatory": "Produce",
        "operation": 0,
        "keys": 1,
        "timeout_ms": 1_000,
        "start_us": start_us,
        "end_us": end_us,
        "wait_us": wait_us,
        "outcome": outcome,
        "kind": "producer",
        "watch_keys": ["orders-0"],
        **more,
    }


class Log:
    """A partition that producers write to and a consumer reads, as rows of `sends` and `reads`."""

    def __init__(self, partition: int = 0, numbered_by: str = "partition") -> None:
        self.partition = partition
        self.numbered_by = numbered_by
        self.sends: list[dict[str, Any]] = []
        self.reads: list[dict[str, Any]] = []
        self.now_us = 0
        self.end = 0
        self._sequences: dict[int, int] = {}
        self._values = iter(range(1 + partition * 10**6, 10**9))
        self.expected: dict[str, int] = {}

    def expect(self, anomaly: str, count: int = 1) -> None:
        """Note what must be found."""
        self.expected[anomaly] = self.expected.get(anomaly, 0) + count

    def next_of(self, producer: int) -> tuple[int, int]:
        """Return the next sequence number of a producer and a new value."""
        sequence = self._sequences[producer] = self._sequences.get(producer, -1) + 1
        return sequence, next(self._values)

    def send(
        self,
        producer: int,
        sequence: int,
        value: int,
        outcome: str = "ok",
        attempt: int = 1,
        stored: bool = True,
    ) -> None:
        """Send a record once; it is read at once if it is stored."""
        self.now_us += 1_000
        offset = self.end if stored else None
        self.sends.append(
            {
                "run_id": "run",
                "started_us": STARTED_US,
                "numbered_by": self.numbered_by,
                "group": f"group-{producer % 2}",
                "producer": producer,
                "sequence": sequence,
                "attempt": attempt,
                "key": value % 5,
                "value_id": value,
                "acks": -1,
                "outcome": outcome,
                "error": None,
                "send_us": self.now_us,
                "answer_us": self.now_us + 500 if outcome == "ok" else None,
                "topic": "orders",
                "partition": self.partition,
                "offset": offset if outcome == "ok" else None,
                "size_bytes": 10,
            }
        )
        if stored:
            self.end += 1
            self.read(value, self.end - 1)

    def read(self, value: int, offset: int) -> None:
        """Read a record."""
        self.reads.append(
            {
                "run_id": "run",
                "started_us": STARTED_US,
                "group": "readers",
                "consumer": 1,
                "poll": 1,
                "topic": "orders",
                "partition": self.partition,
                "offset": offset,
                "value_id": value,
                "time_us": self.now_us + 700,
                "applied": True,
            }
        )

    # What producers do.

    def good(self, producer: int) -> None:
        """One record, as it should be."""
        self.send(producer, *self.next_of(producer))

    def duplicate_after_lost_answer(self, producer: int) -> None:
        """Stored, not told, and stored again."""
        record = self.next_of(producer)
        self.send(producer, *record, outcome="unknown")
        self.send(producer, *record, attempt=2)
        self.expect("duplicate")
        self.expect("lost_ack_duplicate")

    def duplicate(self, producer: int) -> None:
        """The same record, sent once, at two offsets."""
        record = self.next_of(producer)
        self.send(producer, *record)
        self.read(record[1], self.end)
        self.end += 1
        self.expect("duplicate")

    def retry_reorder(self, producer: int) -> None:
        """One fails, the next goes by, the first is sent again."""
        first, second = self.next_of(producer), self.next_of(producer)
        self.send(producer, *first, outcome="fail", stored=False)
        self.send(producer, *second)
        self.send(producer, *first, attempt=2)
        self.expect("retry_reorder")

    def nonmonotonic(self, producer: int) -> None:
        """Two records change places."""
        first, second = self.next_of(producer), self.next_of(producer)
        self.send(producer, *second)
        self.send(producer, *first)
        self.expect("nonmonotonic_send")

    def unstored(self, producer: int) -> None:
        """One fails for good, between two that are stored."""
        self.good(producer)
        self.send(producer, *self.next_of(producer), outcome="fail", stored=False)
        self.good(producer)
        self.expect("sequence_gap")

    def never_sent(self, producer: int, missing: int = 3) -> None:
        """Some numbers are left out."""
        self.good(producer)
        for _ in range(missing):
            self.next_of(producer)
        self.good(producer)
        self.expect("sequence_gap", missing)

    def harmless_retry(self, producer: int) -> None:
        """Stored, not told, sent again, and taken for the same: no anomaly."""
        record = self.next_of(producer)
        self.send(producer, *record, outcome="unknown")
        self.send(producer, *record, attempt=2, stored=False, outcome="fail")


ACTIONS = (
    "duplicate_after_lost_answer",
    "duplicate",
    "retry_reorder",
    "nonmonotonic",
    "unstored",
    "never_sent",
    "harmless_retry",
)


def random_log(seed: int, actions: int, partition: int = 0) -> Log:
    """A log of two producers, in which a third of what they do is wrong."""
    chance = random.Random(seed)
    log = Log(partition)
    for producer in (1, 2):
        log.good(producer)
    for _ in range(actions):
        action = chance.choice(ACTIONS) if chance.random() < 0.3 else "good"
        getattr(log, action)(chance.choice([1, 2]))
    for producer in (1, 2):
        log.good(producer)
    return log


def in_batches(
    log: Log, batches: int
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Its sends and reads in order of time, in so many batches."""
    size = log.now_us // batches + 1
    for number in range(batches):
        least, most = number * size, (number + 1) * size
        yield (
            [row for row in log.sends if least < row["send_us"] <= most],
            [row for row in log.reads if least < row["time_us"] - 700 <= most],
        )
