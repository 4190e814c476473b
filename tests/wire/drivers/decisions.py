"""Decisions of a driver's brokers and controller; if the drivers differ, one of them is wrong.

As lines:

    leader 2 in epoch 1; in sync 2 3; 1 A, 2 AB|C, 3 AB|
    leader 2 in epoch 0; all in sync with D
    A NONE at 0, B NONE at 1, C -, D NONE at 0

Broker 2 leads the first partition, and 1 is out of sync. The log of 2 has the records A, B and C;
A and B are below its high watermark. The produces A and B were acknowledged; C has no response yet.
In the second one all logs have D, and all replicas know that it is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from purgatory.kafka import TransactionResult

MARKERS = {TransactionResult.COMMIT: "!", TransactionResult.ABORT: "x"}
"""The form of a transaction's marker among the records of a log."""


@dataclass(frozen=True)
class ReplicaState:
    """The records of a log, a letter each, and how many of them its replica knows as committed."""

    records: str
    high_watermark: int

    @property
    def is_committed(self) -> bool:
        """Whether all records are committed."""
        return self.high_watermark == len(self.records)

    def __str__(self) -> str:
        return f"{self.records[: self.high_watermark]}|{self.records[self.high_watermark :]}"


@dataclass(frozen=True)
class PartitionDecisions:
    """A partition's leader, its ISR, and the replicas on running brokers.

    The high watermarks of out-of-sync replicas, and of all replicas without a leader, are left out:
    a broker recovers its log from disk, but not its high watermark.
    """

    leader: int
    epoch: int
    isr: tuple[int, ...]
    replicas: Mapping[int, ReplicaState | str]

    def __str__(self) -> str:
        leads = "no leader" if self.leader < 0 else f"leader {self.leader}"
        return f"{leads} in epoch {self.epoch}; {self._where}"

    @property
    def _where(self) -> str:
        led = self.led
        states = set(self.replicas.values())
        if led and states == {led} and led.is_committed and len(self.isr) == len(self.replicas):
            return f"all in sync with {led.records or 'nothing'}"
        in_sync = " ".join(map(str, self.isr))
        replicas = ", ".join(f"{broker} {state}" for broker, state in self.replicas.items())
        return f"in sync {in_sync}; {replicas}"

    @property
    def led(self) -> ReplicaState | None:
        """The leader's replica, if one runs."""
        state = self.replicas.get(self.leader)
        return state if isinstance(state, ReplicaState) else None


def decided(
    leader: int, epoch: int, isr: Sequence[int], replicas: Mapping[int, ReplicaState | str]
) -> PartitionDecisions:
    """Return a partition's decisions, without the high watermarks that have no effect."""
    counts = isr if leader >= 0 else ()
    return PartitionDecisions(
        leader,
        epoch,
        tuple(isr),
        {
            broker: state if isinstance(state, str) or broker in counts else state.records or "-"
            for broker, state in replicas.items()
        },
    )


@dataclass(frozen=True)
class Decisions:
    """All decisions.

    Args:
        partitions: by number.
        responses: of each step that sends a request, in order.
        injections: how often each counted fault was injected, in the order in which they began.
        acknowledged: the partition and the records of each produce acknowledged with acks=all.
    """

    partitions: Sequence[PartitionDecisions]
    responses: Sequence[str]
    injections: Sequence[int]
    acknowledged: Sequence[tuple[int, str]]

    @property
    def lines(self) -> tuple[str, ...]:
        """The decisions as text: a line for each partition, and one for the responses."""
        return (*map(str, self.partitions), ", ".join(self.responses))


class Rules:
    """The invariants of a story, whatever was decided.

    Args:
        loses: the letters of acknowledged records that may be lost.
    """

    def __init__(self, loses: str) -> None:
        self._loses = loses
        self._high_watermarks: dict[tuple[int, int], int] = {}

    def check(self, decisions: Decisions) -> None:
        """Raise AssertionError if an invariant is violated."""
        for number, partition in enumerate(decisions.partitions):
            led = partition.led
            if led is None:
                continue
            before = self._high_watermarks.get((number, partition.epoch), 0)
            assert led.high_watermark >= before, f"{number}: high watermark fell from {before}"
            self._high_watermarks[number, partition.epoch] = led.high_watermark
            for of_partition, records in decisions.acknowledged:
                if of_partition == number and records[0] not in self._loses:
                    assert led.records.count(records[0]) >= len(records), (records, str(partition))
