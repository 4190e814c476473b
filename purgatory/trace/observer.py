"""The observer of a cluster's state, and the rows of the table `changes`.

The simulation observes what may have changed after each event, a cluster its whole state ten times
a second. A change is a difference from the last observation: it has a kind, as in the table
`changes`, a key, and the values before and after, or None.

    kind               key                       value
    PARTITION          TopicPartition            PartitionRole
    LOG_END            TopicPartition, broker    an offset
    HIGH_WATERMARK     TopicPartition            an offset
    GROUP              its name                  CoordinatorState
    TRANSACTION        its transactional id      CoordinatorState
    FAULT              its number                FaultState

The trace writes the rows of these changes, the live feed sends them to its viewers.

Ground rules: one thread at a time calls an observer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from purgatory.kafka.faults.active_faults import ActiveFault, fault_text
from purgatory.kafka.transactions.transaction_metadata import TransactionState
from purgatory.trace.change_rows import (
    ENDED,
    FAULT,
    GONE,
    GROUP,
    HIGH_WATERMARK,
    LOG_END,
    PARTITION,
    ChangeRow,
)

TRANSACTION_STATES = {
    TransactionState.ONGOING: "begun",
    TransactionState.PREPARE_COMMIT: "committing",
    TransactionState.PREPARE_ABORT: "aborting",
}
"""The names of the states of an open transaction in a trace; in other states there is none."""


class PartitionRole(NamedTuple):
    """The leader and the replicas of a partition."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    internal: bool = False
    """Whether the topic is internal."""


class CoordinatorState(NamedTuple):
    """The state of a group or a transaction at its coordinator."""

    broker: int | None
    """The coordinator; None: not recorded."""
    state: str
    number: int
    """The generation of a group, or the producer epoch of a transaction."""
    members: tuple[str, ...] | None = None
    since_us: int = 0
    """The time at which the transaction began, if known."""


class FaultState(NamedTuple):
    """An active or past fault."""

    kind: str
    text: str
    brokers: tuple[int, ...]
    active: bool
    since_us: int
    until_us: int | None

    @classmethod
    def of(cls, fault: ActiveFault, us_of_s: Callable[[float], int]) -> FaultState:
        """Return the state of a fault; ``us_of_s`` converts its times to those of the trace."""
        until_s = fault.ended_s
        if until_s is None and fault.fault.for_s is not None:
            until_s = fault.began_s + fault.fault.for_s
        return cls(
            fault.fault.kind,
            fault_text(fault.fault),
            tuple(fault.fault.brokers),
            fault.active,
            us_of_s(fault.began_s),
            None if until_s is None else us_of_s(until_s),
        )


OnChange = Callable[[str, Any, Any, Any], object]
"""Called with the kind of a change, its key, and the values before and after."""


class StateObserver:
    """Reports differences from the last observation."""

    def __init__(self, on_change: OnChange) -> None:
        self.last_values: dict[str, dict[Any, Any]] = defaultdict(dict)
        """The last observation by kind and key."""
        self._on_change = on_change

    def observe(self, kind: str, key: Any, value: Any) -> bool:
        """Compare one value; return whether it has changed. O(1)."""
        last_values = self.last_values[kind]
        before = last_values.get(key)
        if value == before:
            return False
        if value is None:
            del last_values[key]
        else:
            last_values[key] = value
        self._on_change(kind, key, before, value)
        return True

    def observe_all(self, kind: str, values: Mapping[Any, Any]) -> None:
        """Compare all values of a kind; missing keys are gone. O(values)."""
        last_values = self.last_values[kind]
        if values != last_values:
            for key, value in values.items():
                self.observe(kind, key, value)
            for key in [key for key in last_values if key not in values]:
                self.observe(kind, key, None)


def rows_of(at_us: int, kind: str, key: Any, before: Any, value: Any) -> tuple[ChangeRow, ...]:
    """Return the row of a change; two for a fault that begins and ends at once."""
    if kind == LOG_END:
        (topic, partition), broker = key
        return (ChangeRow(at_us, kind, broker, topic, partition, value),)
    if kind == HIGH_WATERMARK:
        return (ChangeRow(at_us, kind, None, key.topic, key.partition, value),)
    if kind == PARTITION:
        role, state = value or PartitionRole(-1, 0, (), ()), None if value else GONE
        row = ChangeRow(
            at_us,
            kind,
            role.leader,
            key.topic,
            key.partition,
            number=role.leader_epoch,
            state=state,
            names=role.replicas,
            in_sync=role.isr,
        )
        return (row,)
    if kind == FAULT:
        due_ms = None if value.until_us is None else max(0, value.until_us // 1_000)
        row = ChangeRow(at_us, kind, name=value.text, number=key, names=value.brokers)
        begun, ended = row._replace(state=value.kind, due_ms=due_ms), row._replace(state=ENDED)
        if value.active:
            return (begun,)
        return (begun, ended) if before is None else (ended,)
    state = value or before._replace(state=GONE if kind == GROUP else ENDED)
    row = ChangeRow(
        at_us,
        kind,
        state.broker,
        key,
        number=state.number,
        state=state.state,
        names=state.members,
    )
    return (row,)
