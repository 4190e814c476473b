"""The steps of a story about a cluster, as plain data that both drivers run.

Brokers are 1, 2 and 3. The topic has two partitions: broker 1 leads the first one at the start,
broker 2 the second one, and all three replicate both. A record is a letter: that of the step that
produced it; a commit marker is "!", an abort marker "x".
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
"""A timeout that is over once a lagging follower has left the ISR."""

LONG_MS = 600_000
"""A timeout that no story reaches."""


TRANSACTIONAL_ID = "t1"
"""Coordinated by broker 3, which leads no partition of the topic."""

TRANSACTION_MS = 3_000
"""The timeout of transactions that a story waits for."""


@dataclass(frozen=True)
class Transact:
    """A transactional producer's request to its coordinator.

    Args:
        asks: "init", "add" (a partition), "commit" or "abort".
        producer: its name; all have the same transactional id, and earlier ones are zombies.
        partition: to add.
        timeout_ms: the transaction timeout.
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
        records: the batch's number of records.
        acks: -1 (all), 1 or 0.
        timeout_ms: how long the leader may wait for followers.
        broker: the receiver; None: the current leader.
        producer: the id of an idempotent producer; None: not idempotent.
        sequence: of the first record, with an idempotent producer.
        transaction: the transactional producer in whose transaction it is sent; None: in none.
        client: clients of one name share a connection to each broker; "" has its own.
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

    With ``committed``, up to the last stable offset; the response lists aborted transactions.
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
    """The faults that began as this one end; a refused or ended one is ignored."""

    fault: Fault


@dataclass(frozen=True)
class WaitForLag:
    """Time passes until every lagging follower has lagged for longer than the ISR permits."""


@dataclass(frozen=True)
class WaitForTimeout:
    """Time passes until an open transaction has exceeded its timeout."""


Step = Produce | Read | Transact | Begin | End | WaitForLag | WaitForTimeout


UNTOUCHED = "leader 2 in epoch 0; all in sync with nothing"


@dataclass(frozen=True)
class Story:
    """Steps of a cluster, and the expected decisions at their end.

    After each step both drivers run until nothing changes any more, and must have decided the same.
    Steps in a tuple follow each other at once: the first is under way when the next one begins.

    Args:
        name: of a few words.
        shows: the behaviour that it shows, in a sentence.
        ends: the first partition's decisions at the end, as text (`decisions`).
        responses: all responses, as text.
        second_ends: the second partition's decisions.
        loses: the letters of acknowledged records that may be gone at the end: no replica that was
            in sync is intact.
        drops_laggards: whether a lagging follower leaves the ISR soon; else it never does.
        on_disk: whether it is always played with logs on a disk, too; the others now and then.
    """

    name: str
    shows: str
    steps: tuple[Step | tuple[Step, ...], ...]
    ends: str
    responses: str
    second_ends: str = UNTOUCHED
    loses: str = ""
    drops_laggards: bool = False
    on_disk: bool = False

    @property
    def has_transactions(self) -> bool:
        """Whether any step is of a transaction."""
        return any(isinstance(step, Transact) for steps in self.scheduler for step in steps)

    @property
    def scheduler(self) -> Iterator[tuple[Step, ...]]:
        """The groups of steps after which both drivers come to rest."""
        for one in self.steps:
            yield one if isinstance(one, tuple) else (one,)

    @property
    def end_lines(self) -> tuple[str, ...]:
        """The expected lines at the end, as `Decisions.lines` has them."""
        return (self.ends, self.second_ends, self.responses)
