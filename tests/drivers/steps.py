"""The steps of a story about a cluster, as plain data: what both drivers are told to do.

Brokers are 1, 2 and 3. The topic has two partitions: broker 1 leads the first one at the start,
broker 2 the second one, and all three copy both. A record is a letter: that of the step that
produced it; a marker is "!" where it commits, and "x" where it aborts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from purgatory.kafka.faults import Fault

TOPIC = "orders"
PARTITIONS = 2
BROKERS = (1, 2, 3)
MIN_INSYNC = 2
ALL = -1

SHORT_MS = 60
"""A timeout that is over before the next step."""

MIDDLE_MS = 600
"""One that is over when a follower that was behind all the time has left the ISR."""

LONG_MS = 600_000
"""A timeout that no story reaches."""


TRANSACTIONAL_ID = "t1"
"""Coordinated by broker 3, which leads no partition of the topic."""

TRANSACTION_MS = 3_000
"""How long a transaction lasts that a story has time for."""


@dataclass(frozen=True)
class Transact:
    """A transactional producer asks its coordinator.

    Args:
        asks: "init", "add" (takes a partition in), "commit" or "abort".
        producer: which; all have the same transactional id, and those of before are zombies.
        partition: to take in.
        timeout_ms: how long its transactions may last.
    """

    asks: str
    producer: str = "P"
    partition: int = 0
    timeout_ms: int = LONG_MS


@dataclass(frozen=True)
class Produce:
    """A client sends a batch.

    Args:
        letter: names the step, and is each of its records.
        records: how many records are in the batch.
        acks: -1 (all), 1 or 0.
        timeout_ms: how long the leader may wait for followers.
        partition: which.
        broker: whom it is sent to; None: who leads by then.
        producer: the id of an idempotent producer; None: it has none.
        sequence: the number of its first record, with an idempotent producer.
        transaction: the transactional producer in whose transaction it is sent; None: in none.
        client: those of one name share a connection to each broker; without one, it has its own.
    """

    letter: str
    records: int = 1
    acks: int = ALL
    timeout_ms: int = LONG_MS
    partition: int = 0
    broker: int | None = None
    producer: int | None = None
    sequence: int = 0
    transaction: str | None = None
    client: str = ""


@dataclass(frozen=True)
class Read:
    """A consumer reads a partition from its first record on, at the leader or at ``broker``.

    With ``committed`` up to the last stable offset; it tells where aborted transactions begin.
    """

    partition: int = 0
    broker: int | None = None
    committed: bool = False


@dataclass(frozen=True)
class Begin:
    """A fault begins."""

    fault: Fault


@dataclass(frozen=True)
class End:
    """Those that began as this fault end; none, where it was refused or is over."""

    fault: Fault


@dataclass(frozen=True)
class WaitForLag:
    """Time passes: whoever is behind has been so for longer than a member of the ISR may be."""


@dataclass(frozen=True)
class WaitForTimeout:
    """Time passes: a transaction that is open lasts longer than it may."""


Step = Produce | Read | Transact | Begin | End | WaitForLag | WaitForTimeout


UNTOUCHED = "leader 2 in epoch 0; all in sync with nothing"


@dataclass(frozen=True)
class Story:
    """What happens to a cluster, and what it comes to.

    After each step both drivers are left alone until nothing changes any more, and must have
    decided the same. Steps that stand together in a tuple follow each other at once: what one
    begins is under way when the next one comes.

    Args:
        name: of a few words.
        shows: what it shows, in a sentence.
        steps: what happens.
        ends: what is decided of the first partition at the end, as text (`decisions`).
        answers: all answers, as text.
        second_ends: what is decided of the second partition.
        loses: the letters of acknowledged records that may be gone at the end: no replica that was
            in sync is intact.
        drops_laggards: whether a follower that is behind leaves the ISR soon; else it never does.
        on_disk: whether it is always played with logs on a disk, too; the others now and then.
    """

    name: str
    shows: str
    steps: tuple[Step | tuple[Step, ...], ...]
    ends: str
    answers: str
    second_ends: str = UNTOUCHED
    loses: str = ""
    drops_laggards: bool = False
    on_disk: bool = False

    @property
    def has_transactions(self) -> bool:
        """Whether anybody asks for one."""
        return any(isinstance(step, Transact) for steps in self.scheduler for step in steps)

    @property
    def scheduler(self) -> Iterator[tuple[Step, ...]]:
        """The steps between which both are left alone."""
        for one in self.steps:
            yield one if isinstance(one, tuple) else (one,)

    @property
    def end_lines(self) -> tuple[str, ...]:
        """What is decided at the end, as the decisions have it."""
        return (self.ends, self.second_ends, self.answers)
