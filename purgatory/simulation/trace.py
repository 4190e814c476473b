"""The trace of a run: the operations that waited, and the changes that rebuild the cluster's state.

An operation is a request of the kind that a purgatory holds: a produce with acks=all, a fetch, a
deletion of records. It is `immediate` when its response came without a wait, whether the broker
asked its purgatory for that or not; so the purgatories' own counters, as `/metrics` shows them,
count fewer of these, and the same of all others.

In the table `changes`, the moves on the wheel follow from what is put on it and from the time, so
there is a row for each operation that is parked, and none for its moves. A timer advances at the
beginning of each millisecond in which a bucket is due; there is a row for each time that it does so
otherwise: after a pause, or with a tick that is coarser than a millisecond. In real time the timers
have threads of their own, so neither is written: the table `operations` says what waited.

Ground rules: `observer` and `answering` are called on whichever thread completes an operation, the
latter first, inside the same call. Everything else runs on the engine's thread. Changes of logs,
groups and transactions are written after the event that made them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.core.purgatory import SettledObserver
from purgatory.kafka import RecordBatch, TopicPartition
from purgatory.kafka.faults.active_faults import ActiveFault, fault_text
from purgatory.kafka.log.log import Log, LogConfig
from purgatory.kafka.topics import PartitionState
from purgatory.simulation.engine import NS_PER_MS, NS_PER_US
from purgatory.simulation.latencies import Waits
from purgatory.simulation.network import Request
from purgatory.simulation.scenario import Scenario
from purgatory.trace import change_rows as rows
from purgatory.trace.change_rows import ChangeRow
from purgatory.trace.table_rows import OperationRow
from timer import SystemTimer


class ObservedLog(Log):
    """A replica's log.

    Args:
        config: its settings.
        broker, place: whose, and of which partition.
        moved: where it puts itself when an end may have moved.
    """

    __slots__ = ("broker", "moved", "place", "told_end")

    def __init__(
        self,
        config: LogConfig,
        broker: int,
        place: TopicPartition,
        moved: dict[ObservedLog, None],
    ) -> None:
        super().__init__(config)
        self.broker = broker
        self.place = place
        self.moved = moved
        self.told_end = -1
        moved[self] = None

    def append(self, batch: RecordBatch) -> int:
        self.moved[self] = None
        return super().append(batch)

    def update_high_watermark(self, offset: int) -> bool:
        self.moved[self] = None
        return super().update_high_watermark(offset)

    def truncate_to(self, offset: int) -> None:
        self.moved[self] = None
        super().truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.moved[self] = None
        super().truncate_fully_and_start_at(offset)


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
        self._moved: dict[ObservedLog, None] = {}
        self._logs: dict[tuple[int, TopicPartition], ObservedLog] = {}
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
        """Record an operation that waits from now on; ``clock_ms``: as in the table."""
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
        """Record what became of an operation that is nobody's request: a broker's own."""
        number = self._waiting.pop(operation, None)
        if number is not None:
            self._write(
                ChangeRow(self._now_us(), rows.SETTLED, broker, number=number, state=outcome)
            )

    def clock(self, broker: int) -> None:
        """Record that a broker's timer advances at an unexpected time."""
        self._write(ChangeRow(self._now_us(), rows.CLOCK, broker))

    # Brokers and faults.

    def broker(self, broker: int, state: str) -> None:
        """Record that a broker is ``alive`` (with a new timer if it was ``dead``) or ``paused``
        (its timer stands still)."""
        self._write(ChangeRow(self._now_us(), rows.BROKER, broker, state=state))

    def fault(self, begun: ActiveFault) -> None:
        """Record that a fault has begun or ended."""
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
        log = self._logs[broker, place] = ObservedLog(config, broker, place, self._moved)
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

    def _watermark(self, place: TopicPartition, log: ObservedLog) -> None:
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


# Operations.

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending")
"""What an operation can be counted as; `pending`: open at the end of the run."""

KINDS = ("producer", "follower", "consumer", "admin", "member", "transaction", "coordinator")
"""Who asked."""

WaitsKey = tuple[str, str, int, str]
"""Purgatory, kind, broker and outcome."""


class OperationRecorder:
    """Keeps the waits by purgatory, kind, broker and outcome, and writes the trace's rows.

    Args:
        now_ns: the time since the start of the run.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.write: Callable[[OperationRow], None] | None = None
        """Takes rows of the table; None: nobody wants them."""
        self.waits: dict[WaitsKey, Waits] = {}
        self._thread_id = 0
        self._call_soon: Callable[..., None] | None = None
        self.number_of: Callable[[object], int] | None = None
        """Returns the number of a request, or operation, that is settled; by default, they are
        counted as they are."""
        self._now_ns = now_ns
        self._count = 0
        self._local = threading.local()
        self._answering: Request | None = None

    def hand_over_from_threads(self, thread_id: int, call_soon: Callable[..., None]) -> None:
        """Expect to be called on other threads than the engine's, and hand over by `call_soon`."""
        self._thread_id = thread_id
        self._call_soon = call_soon

    def answering(self, request: Request) -> bool:
        """Record which request is being answered on this thread; True if it is the engine's."""
        if self._call_soon is not None and threading.get_ident() != self._thread_id:
            self._local.request = request
            return False
        self._answering = request
        return True

    def observe(self, _operation: DelayedOperation, outcome: str, _wait_ns: int) -> None:
        """Record an operation that a purgatory settled: the one that was just answered.

        One that was cancelled was not answered: who cancels it notes that.
        """
        if outcome == "cancelled":
            return
        if self._call_soon is not None and threading.get_ident() != self._thread_id:
            self._call_soon(self.record, self._local.request, outcome, self._now_ns())
        elif self._answering is not None:
            self.record(self._answering, outcome, self._now_ns())
            self._answering = None

    def record(self, request: Request, outcome: str, end_ns: int) -> None:
        """Record what became of a request. O(1)."""
        if request.recorded:
            return
        request.recorded = True
        broker, purgatory, kind = request.connection.broker.id, request.purgatory, request.kind
        start_us, end_us = request.received_ns // NS_PER_US, end_ns // NS_PER_US
        self._note(broker, purgatory, kind, outcome, end_us - start_us)
        if self.write is not None:
            keys, timeout_ms = request.watch_keys, request.timeout_ms
            self._write_row(
                request, broker, purgatory, kind, outcome, start_us, end_us, timeout_ms, keys
            )

    def coordinated_wait(
        self,
        broker: int,
        purgatory: str,
        kind: str,
        operation: DelayedOperation,
        outcome: str,
        wait_ns: int,
    ) -> None:
        """Record what members of groups waited for (each other, a heartbeat), or transactions
        (their markers, their time to be up)."""
        end_ns = self._now_ns()
        start_us, end_us = (end_ns - wait_ns) // NS_PER_US, end_ns // NS_PER_US
        self._note(broker, purgatory, kind, outcome, end_us - start_us)
        if self.write is not None:
            keys, timeout_ms = operation._op_keys, operation.delay_ms
            self._write_row(
                operation, broker, purgatory, kind, outcome, start_us, end_us, timeout_ms, keys
            )

    def _note(self, broker: int, purgatory: str, kind: str, outcome: str, wait_us: int) -> None:
        key = (purgatory, kind, broker, outcome)
        waits = self.waits.get(key)
        if waits is None:
            waits = self.waits[key] = Waits()
        waits.add(wait_us)
        self._count += 1

    def _write_row(
        self,
        what: object,
        broker: int,
        purgatory: str,
        kind: str,
        outcome: str,
        start_us: int,
        end_us: int,
        timeout_ms: int,
        keys: Sequence[object],
    ) -> None:
        assert self.write is not None, "rows are wanted"
        number = self._count if self.number_of is None else self.number_of(what)
        self.write(
            OperationRow(
                broker,
                purgatory,
                number,
                len(keys),
                timeout_ms,
                start_us,
                end_us,
                end_us - start_us,
                outcome,
                kind,
                keys,
            )
        )


_NO_KEYS: tuple[Hashable, ...] = ()


class ObservedTimer(SystemTimer):
    """A broker's timer that tells when it advances at an unexpected time.

    Args:
        changes: is told.
        broker: whose it is.
        more: as `SystemTimer` takes it.
    """

    def __init__(self, changes: ChangeRecorder, broker: int, *more: Any, **named: Any) -> None:
        super().__init__(*more, **named)
        self._changes = changes
        self._broker = broker
        self._advances = False
        self.stood_still = False
        """Whether it was not driven since it last advanced."""

    def advance_clock(self, timeout_ms: int = 0) -> bool:
        now_ns, first_ms = self.clock.now_ns(), self.next_expiration_ms()
        is_foreseen = first_ms is not None and first_ms * NS_PER_MS == now_ns
        if self.stood_still or not is_foreseen or self._changes.looked_ns == now_ns:
            self.stood_still = False
            self._changes.clock(self._broker)
        self._advances = True
        try:
            return super().advance_clock(timeout_ms)
        finally:
            self._advances = False

    @property
    def clock_ms(self) -> int | None:
        """While it advances, how far it has come; else None."""
        return self._levels()[0][1] if self._advances else None


class ObservedPurgatory(DelayedOperationPurgatory):
    """A purgatory that tells what is parked in it.

    Args:
        changes: is told.
        kind: who waits in it, unless it is somebody's request.
        name, timer, broker_id, on_settled: as `DelayedOperationPurgatory` takes them.
    """

    def __init__(
        self,
        changes: ChangeRecorder,
        kind: str,
        name: str,
        timer: ObservedTimer,
        broker_id: int,
        on_settled: SettledObserver,
    ) -> None:
        self._changes = changes
        self._kind = kind
        self._told_timer = timer
        self._observe = on_settled
        super().__init__(name, timer, broker_id, reaper_enabled=False, on_settled=self._settled)

    def try_complete_else_watch(
        self,
        operation: DelayedOperation,
        keys: Iterable[Hashable] = _NO_KEYS,
        thresholds: Mapping[Any, int] | None = None,
    ) -> bool:
        completed = super().try_complete_else_watch(operation, keys, thresholds)
        if not operation.is_completed:
            clock_ms = self._told_timer.clock_ms
            self._changes.parked(self.broker_id, self.name, self._kind, operation, clock_ms)
        return completed

    def _settled(self, operation: DelayedOperation, outcome: str, wait_ns: int) -> None:
        self._observe(operation, outcome, wait_ns)
        self._changes.settled(self.broker_id, operation, outcome)


def producers_configuration(scenario: Scenario) -> list[dict[str, Any]]:
    """One entry for each producer group. `acks` is 0, 1 or -1 (all), as in the table `sends`.

    `single_writer` says that one producer alone writes to each partition: here, only where the
    whole scenario has no more than one.
    """
    single_writer = sum(section.count for section in scenario.producers) == 1
    return [
        {
            "group": section.group,
            "acks": -1 if section.acks == "all" else section.acks,
            "idempotence": section.idempotence,
            "max_in_flight": section.max_in_flight,
            "retries": section.retries,
            "single_writer": single_writer,
        }
        for section in scenario.producers
    ]


def consumers_configuration(scenario: Scenario) -> list[dict[str, Any]]:
    """One entry for each consumer group.

    Its consumers read the partitions that they are given once and for all (`assign`), or go back to
    what is committed: where a coordinator deals the partitions out, or where transactions are
    aborted in which other records are made of what they read (`subscribe`).
    """
    sent_on = {one.transactions.reads for one in scenario.producers if one.transactions}
    return [
        {
            "group": section.group,
            "assignment": "assign"
            if section.membership == "none" and section.group not in sent_on
            else "subscribe",
            "isolation": section.isolation,
        }
        for section in scenario.consumers
    ]
