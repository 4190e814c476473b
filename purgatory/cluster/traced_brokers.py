"""The brokers' part of a cluster's trace: operations, changes of state, names of topics.

A topic that was deleted and created again is another one in the trace: "orders#2".

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from uuid import UUID

from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.operation import DelayedOperation, submitted_ns
from purgatory.kafka import DelayedFetch
from purgatory.kafka.share_groups.delayed_acquisition_lock import DelayedAcquisitionLock
from purgatory.kafka.share_groups.delayed_share_fetch import DelayedShareFetch
from purgatory.trace.change_rows import BROKER, PARKED, ChangeRow, due_ms
from purgatory.trace.observer import rows_of
from purgatory.trace.table_rows import OperationRow
from purgatory.trace.trace_tables import Tables
from timer.machine_time import time

_NS_PER_MS = 1_000_000
_NS_PER_US = 1_000
_KINDS_BY_PURGATORY = {
    "Produce": "producer",
    **dict.fromkeys(("Rebalance", "Sync", "Heartbeat"), "member"),
    **dict.fromkeys(("TransactionMarker", "TransactionTimeout"), "transaction"),
    **dict.fromkeys(("DeleteRecords", "ElectLeader", "Topic", "AlterAcls"), "admin"),
}


def operation_keys(operation: DelayedOperation) -> tuple[Any, ...]:
    """Return the watch keys of an operation.

    A fetch is watched on keys that also name an end of the log, and an operation that completed at
    once on none: for these, their partitions.
    """
    if isinstance(operation, DelayedFetch | DelayedShareFetch | DelayedAcquisitionLock):
        return tuple(operation.topic_partitions)
    return operation._op_keys


def operation_kind(purgatory: str, operation: DelayedOperation) -> str:
    """Return the kind of an operation's client: producer, follower, consumer, member, ..."""
    if isinstance(operation, DelayedFetch):
        return "consumer" if operation.params.replica_id < 0 else "follower"
    return _KINDS_BY_PURGATORY.get(purgatory, "consumer")


class ElapsedClock:
    """Measures the time since a trace or a live feed began, in microseconds.

    The origin is a whole millisecond, as of timers, so that operations stay in their buckets.
    """

    def __init__(self) -> None:
        self.start_ms, since_ns = divmod(time.monotonic_ns(), _NS_PER_MS)
        """The origin by the timers' clocks."""
        self._start_wall_s = time.time() - since_ns / 1_000_000_000

    def now_us(self) -> int:
        """Return the time now."""
        return self.us_of_ns(time.monotonic_ns())

    def us_of_ns(self, monotonic_ns: int) -> int:
        """Return the time of a reading of the timers' clocks."""
        return (monotonic_ns - self.start_ms * _NS_PER_MS) // _NS_PER_US

    def us_of_s(self, monotonic_s: float) -> int:
        """Return the time of such a reading in seconds."""
        return self.us_of_ns(round(monotonic_s * 1_000_000_000))

    def us_of_wall_s(self, seconds: float) -> int:
        """Return the time of a wall-clock reading, in seconds since 1970."""
        return int((seconds - self._start_wall_s) * 1_000_000)


class TracedBrokers:
    """Records operations and changes as rows; arguments are those of `trace.ClusterTrace`."""

    def __init__(
        self,
        tables: Tables,
        change: Callable[[ChangeRow], object] | None = None,
        operations: bool = True,
    ) -> None:
        self._tables = tables
        self.operations = operations
        self.clock = ElapsedClock()
        self.now_us = self.clock.now_us
        self.change = change
        self._operations = 0

    @property
    def duration_ms(self) -> int:
        """The duration so far, in milliseconds."""
        return self.clock.now_us() // 1_000

    # ---- operations

    def record_completed(
        self, broker: int, purgatory: str, operation: DelayedOperation, outcome: str, wait_ns: int
    ) -> None:
        """Record a completed operation."""
        self._operations += 1
        end_us = self.now_us()
        wait_us = min(wait_ns // _NS_PER_US, end_us)
        keys = operation_keys(operation)
        self._tables.operation(
            OperationRow(
                broker,
                purgatory,
                self._operations,
                len(keys),
                operation.delay_ms,
                end_us - wait_us,
                end_us,
                wait_us,
                outcome,
                operation_kind(purgatory, operation),
                keys,
            )
        )

    # ---- the state of the cluster

    def record_change(self, kind: str, key: Any, before: Any, value: Any) -> None:
        """Record a change from the observer."""
        assert self.change is not None, "it is observed"
        for row in rows_of(self.now_us(), kind, key, before, value):
            self.change(row)

    def record_started(self, broker: int) -> None:
        """Record that a broker has started."""
        if self.change is not None:
            self.change(ChangeRow(self.now_us(), BROKER, broker, state="alive"))

    def record_stopped(
        self, broker: int, purgatories: Iterable[AsyncPurgatory], died: bool
    ) -> None:
        """Record the waiting operations of a broker that stops. O(operations).

        Args:
            died: whether the broker died; else the cluster stops.
        """
        if self.change is None:
            return
        for purgatory in purgatories:
            for operation in purgatory.core.pending_ends(purgatory.core.num_delayed)[0]:
                self._operations += 1
                start_us = max(0, self.clock.us_of_ns(submitted_ns(operation)))
                self.change(
                    ChangeRow(
                        start_us,
                        PARKED,
                        broker,
                        purgatory.name,
                        number=self._operations,
                        state=operation_kind(purgatory.name, operation),
                        due_ms=due_ms(start_us, operation.delay_ms),
                        names=operation_keys(operation),
                    )
                )
        if died:
            self.change(ChangeRow(self.now_us(), BROKER, broker, state="dead"))


class TopicFacts(NamedTuple):
    """The facts of a topic that a trace depends on."""

    topic_id: UUID | None
    compacts: bool
    """Whether compaction may remove older records of a key."""


class TracedTopics:
    """Names topics. Names of topics have no `#`, so that those of traces are unique.

    Attributes:
        facts: returns the facts of the topic that has a name now; None: there are none. Set by the
            traced cluster or proxy.
    """

    def __init__(self) -> None:
        self.facts: Callable[[str], TopicFacts | None] | None = None
        self._names: dict[str, dict[UUID, str]] = {}

    def name(self, name: str) -> str:
        """Return the trace's name of the topic that has a name now. O(1)."""
        facts = None if self.facts is None else self.facts(name)
        if facts is None or facts.topic_id is None:
            known = self._names.get(name)
            return name if known is None else next(reversed(known.values()))
        known = self._names.setdefault(name, {})
        traced = known.get(facts.topic_id)
        if traced is None:
            traced = known[facts.topic_id] = f"{name}#{len(known) + 1}" if known else name
        return traced

    def compacts(self, name: str) -> bool:
        """Whether a topic is known to be compacted. O(1)."""
        facts = None if self.facts is None else self.facts(name)
        return facts is not None and facts.compacts
