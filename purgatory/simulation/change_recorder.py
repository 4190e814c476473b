"""Writes the trace's table `changes`: all that is needed, beside the other tables, to rebuild the
state of the cluster at any moment.

What a broker's timer does follows from what is put on it and from the time, so there is a row for
each operation that is parked, and none for its moves on the wheel. A timer advances at the begin of
each millisecond in which a bucket is due; there is a row for each time that it does so otherwise:
after a pause, or with a tick that is coarser than a millisecond.

In real time the timers have threads of their own, so neither is told: who rebuilds the state has
what waited from the table `operations`.

Ground rules: everything runs on the engine's thread. What changed in logs, groups and transactions
is written after the event in which it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from purgatory import DelayedOperation
from purgatory.kafka import TopicPartition
from purgatory.kafka.faults.active_faults import BegunFault, fault_text
from purgatory.kafka.log.log import Log, LogConfig
from purgatory.kafka.topics import PartitionState
from purgatory.simulation.engine import NS_PER_MS, NS_PER_US
from purgatory.simulation.network import Request
from purgatory.simulation.told_log import ToldLog
from purgatory.trace import change_rows as rows
from purgatory.trace.change_rows import ChangeRow


class ChangeRecorder:
    """Follows a simulated cluster.

    Args:
        now_ns: the time since the start of the run.
        write: takes the rows.
    """

    def __init__(self, now_ns: Callable[[], int], write: Callable[[ChangeRow], object]) -> None:
        self._now_ns = now_ns
        self._write = write
        self._numbers = count(1)
        self._waiting: dict[object, int] = {}
        self._moved: dict[ToldLog, None] = {}
        self._logs: dict[tuple[int, TopicPartition], ToldLog] = {}
        self._partitions: dict[TopicPartition, tuple[Any, ...]] = {}
        self._watermarks: dict[TopicPartition, int] = {}
        self._look_further: Callable[[], object] | None = None
        self.looked_ns = -1
        """When the last event ended."""
        self._states: Mapping[TopicPartition, PartitionState] = {}

    def _now_us(self) -> int:
        return self._now_ns() // NS_PER_US

    # Operations.

    def number_of(self, what: object) -> int:
        """Return the number of a request, or an operation, that is settled now."""
        return self._waiting.pop(what, 0) or next(self._numbers)

    def parked(
        self,
        broker: int,
        purgatory: str,
        kind: str,
        operation: DelayedOperation,
        clock_ms: int | None,
    ) -> None:
        """Note an operation that waits from now on; ``clock_ms``: as in the table."""
        number = next(self._numbers)
        asked = getattr(getattr(operation, "_respond", None), "__self__", None)
        keys: Sequence[object] = operation._op_keys
        if isinstance(asked, Request) and asked.may_wait and asked.purgatory == purgatory:
            self._waiting[asked] = number
            kind, keys = asked.kind, asked.watch_keys
        else:
            self._waiting[operation] = number
        now_ns = self._now_ns()
        self._write(
            ChangeRow(
                now_ns // NS_PER_US,
                rows.PARKED,
                broker,
                purgatory,
                number=number,
                state=kind,
                due_ms=operation.delay_ms - (-now_ns // NS_PER_MS),
                clock_ms=clock_ms,
                names=tuple(keys),
            )
        )

    def settled(self, broker: int, operation: DelayedOperation, outcome: str) -> None:
        """Note what became of an operation that is nobody's request: a broker's own."""
        number = self._waiting.pop(operation, None)
        if number is not None:
            self._write(
                ChangeRow(self._now_us(), rows.SETTLED, broker, number=number, state=outcome)
            )

    def clock(self, broker: int) -> None:
        """Note that a broker's timer advances at an unexpected time."""
        self._write(ChangeRow(self._now_us(), rows.CLOCK, broker))

    # Brokers and faults.

    def broker(self, broker: int, state: str) -> None:
        """Note that a broker is ``alive``, with a new timer if it was dead, ``dead`` or ``paused``:
        its timer stands still."""
        self._write(ChangeRow(self._now_us(), rows.BROKER, broker, state=state))

    def fault(self, begun: BegunFault) -> None:
        """Note that a fault has begun or ended."""
        fault, until_ms = begun.fault, None
        if begun.active and fault.for_s is not None:
            until_ms = round((begun.began_s + fault.for_s) * 1_000)
        self._write(
            ChangeRow(
                self._now_us(),
                rows.FAULT,
                name=fault_text(fault),
                number=begun.number,
                state=fault.kind if begun.active else rows.ENDED,
                due_ms=until_ms,
                names=tuple(fault.brokers),
            )
        )

    # Logs and partitions.

    def new_log(self, broker: int, config: LogConfig, place: TopicPartition) -> Log:
        """Return a new log that tells of its ends."""
        log = self._logs[broker, place] = ToldLog(config, broker, place, self._moved)
        return log

    def decided(self) -> None:
        """Write what the controller has changed. O(partitions)."""
        for place, state in self._states.items():
            told = (state.leader, state.leader_epoch, state.replicas, state.isr)
            if self._partitions.get(place) != told:
                self._partitions[place] = told
                self._write(
                    ChangeRow(
                        self._now_us(),
                        rows.PARTITION,
                        state.leader,
                        place.topic,
                        place.partition,
                        number=state.leader_epoch,
                        names=state.replicas,
                        in_sync=state.isr,
                    )
                )
                log = self._logs.get((state.leader, place))
                if log is not None:
                    self._watermark(place, log)

    def _watermark(self, place: TopicPartition, log: ToldLog) -> None:
        if self._watermarks.get(place) != log.high_watermark:
            self._watermarks[place] = log.high_watermark
            self._write(
                ChangeRow(
                    self._now_us(),
                    rows.HIGH_WATERMARK,
                    log.broker,
                    place.topic,
                    place.partition,
                    number=log.high_watermark,
                )
            )

    # After each event.

    def watch(
        self,
        states: Mapping[TopicPartition, PartitionState],
        look_further: Callable[[], object] | None,
    ) -> None:
        """Begin to look.

        Args:
            states: what the controller decides, as it goes on.
            look_further: looks after each event as well.
        """
        self._states = states
        self._look_further = look_further
        self.decided()

    def look(self) -> None:
        """Write what has become of logs. O(logs that moved)."""
        self.looked_ns = self._now_ns()
        if self._moved:
            for log in self._moved:
                place = log.place
                if log.told_end != log.end_offset:
                    log.told_end = log.end_offset
                    self._write(
                        ChangeRow(
                            self._now_us(),
                            rows.LOG_END,
                            log.broker,
                            place.topic,
                            place.partition,
                            number=log.end_offset,
                        )
                    )
                if self._states[place].leader == log.broker:
                    self._watermark(place, log)
            self._moved.clear()
        if self._look_further is not None:
            self._look_further()
