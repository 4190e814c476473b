"""The trace of a run: the operations that waited, and the changes that rebuild the cluster's state.

An operation is a request of the kind that a purgatory holds: a produce with acks=all, or a fetch.
An operation is `immediate` if its response came without a wait, whether or not the broker used its
purgatory; the purgatories' own counters count fewer of these, and equally many of all others.

The table `changes` has a row for each operation that is parked, and none for its moves on the
wheel, which follow from the time. A timer advances at the beginning of each millisecond in which a
bucket is due; the table has a row for each other advance: after a pause, or with a tick of more
than a millisecond.

Ground rules: everything runs on the engine's thread. `begin_response` and `observe` are called in
this order, inside the call that completes an operation. Changes of logs are written after the event
that made them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from datetime import timedelta
from itertools import count
from typing import Any

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.core.keys import Keys
from purgatory.core.purgatory import CompletionObserver
from purgatory.kafka import RecordBatch, TopicPartition
from purgatory.kafka.faults.active_faults import ActiveFault
from purgatory.kafka.log.log import Log, LogConfig
from purgatory.kafka.topics import PartitionState
from purgatory.simulation.engine import NS_PER_MS, NS_PER_US
from purgatory.simulation.latencies import Waits
from purgatory.simulation.network import Request
from purgatory.simulation.scenario import Scenario
from purgatory.trace import change_rows as rows
from purgatory.trace.change_rows import ChangeRow
from purgatory.trace.observer import FaultState, PartitionRole, StateObserver, rows_of
from purgatory.trace.table_rows import OperationRow
from timer import SystemTimer


class ObservedLog(Log):
    """A replica's log that adds itself to `changed_logs` when an end offset may have changed."""

    __slots__ = ("broker", "changed_logs", "topic_partition")

    def __init__(
        self,
        config: LogConfig,
        broker: int,
        topic_partition: TopicPartition,
        changed_logs: dict[ObservedLog, None],
    ) -> None:
        super().__init__(config)
        self.broker = broker
        self.topic_partition = topic_partition
        self.changed_logs = changed_logs
        changed_logs[self] = None

    def append(self, batch: RecordBatch) -> int:
        self.changed_logs[self] = None
        return super().append(batch)

    def update_high_watermark(self, offset: int) -> bool:
        self.changed_logs[self] = None
        return super().update_high_watermark(offset)

    def truncate_to(self, offset: int) -> None:
        self.changed_logs[self] = None
        super().truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.changed_logs[self] = None
        super().truncate_fully_and_start_at(offset)


class ChangeRecorder:
    """Observes a simulated cluster, and writes the table `changes`.

    Args:
        now_ns: the time since the start of the run.
        write: takes the rows.
    """

    def __init__(self, now_ns: Callable[[], int], write: Callable[[ChangeRow], object]) -> None:
        self._now_ns = now_ns
        self._write = write
        self._numbers = count(1)
        self._waiting: dict[Request, int] = {}
        self._changed_logs: dict[ObservedLog, None] = {}
        self._logs: dict[tuple[int, TopicPartition], ObservedLog] = {}
        self._state = StateObserver(self._record)
        self._assignments: Mapping[TopicPartition, PartitionState] = {}
        self.observed_ns = -1
        """When the last event ended."""

    def _now_us(self) -> int:
        return self._now_ns() // NS_PER_US

    # Operations.

    def operation_number(self, request: Request) -> int:
        """Return the number of a request that has ended."""
        return self._waiting.pop(request, 0) or next(self._numbers)

    def record_parked(
        self, broker: int, purgatory: str, operation: DelayedOperation, clock_ms: int | None
    ) -> None:
        """Record an operation that begins to wait; ``clock_ms``: as in the table."""
        request = operation._respond.__self__  # type: ignore[attr-defined]
        assert isinstance(request, Request), "nothing but requests waits"
        self._waiting[request] = number = next(self._numbers)
        now_ns = self._now_ns()
        self._write(
            ChangeRow(
                now_ns // NS_PER_US,
                rows.PARKED,
                broker,
                purgatory,
                number=number,
                state=request.kind,
                due_ms=operation.delay_ms - (-now_ns // NS_PER_MS),
                clock_ms=clock_ms,
                names=request.watch_keys,
            )
        )

    def record_clock(self, broker: int) -> None:
        """Record that a broker's timer advances at an unexpected time."""
        self._write(ChangeRow(self._now_us(), rows.CLOCK, broker))

    # The state of the cluster.

    def record_broker(self, broker: int, state: str) -> None:
        """Record that a broker is ``alive`` (with a new timer if it was ``dead``) or ``paused``
        (its timer stands still)."""
        self._write(ChangeRow(self._now_us(), rows.BROKER, broker, state=state))

    def record_fault(self, fault: ActiveFault) -> None:
        """Record that a fault has begun or ended."""
        state = FaultState.of(fault, lambda at_s: round(at_s * 1_000_000))
        self._state.observe(rows.FAULT, fault.number, state)

    def new_log(self, broker: int, config: LogConfig, topic_partition: TopicPartition) -> Log:
        """Return a new log with observed end offsets."""
        log = self._logs[broker, topic_partition] = ObservedLog(
            config, broker, topic_partition, self._changed_logs
        )
        return log

    def begin(self, assignments: Mapping[TopicPartition, PartitionState]) -> None:
        """Begin to observe; ``assignments`` is the controller's live state."""
        self._assignments = assignments
        self.observe_assignments()

    def observe_assignments(self) -> None:
        """Record the controller's changes. O(partitions)."""
        for topic_partition, state in self._assignments.items():
            role = PartitionRole(state.leader, state.leader_epoch, state.replicas, state.isr)
            if self._state.observe(rows.PARTITION, topic_partition, role):
                log = self._logs.get((state.leader, topic_partition))
                if log is not None:
                    self._state.observe(rows.HIGH_WATERMARK, topic_partition, log.high_watermark)

    def observe(self) -> None:
        """Record an event's changes. O(moved logs)."""
        self.observed_ns = self._now_ns()
        observe = self._state.observe
        if self._changed_logs:
            for log in self._changed_logs:
                observe(rows.LOG_END, (log.topic_partition, log.broker), log.end_offset)
                if self._assignments[log.topic_partition].leader == log.broker:
                    observe(rows.HIGH_WATERMARK, log.topic_partition, log.high_watermark)
            self._changed_logs.clear()

    def _record(self, kind: str, key: Any, before: Any, value: Any) -> None:
        if kind == rows.HIGH_WATERMARK:
            leader = self._assignments[key].leader
            self._write(ChangeRow(self._now_us(), kind, leader, key.topic, key.partition, value))
            return
        for row in rows_of(self._now_us(), kind, key, before, value):
            self._write(row)


OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending")
"""The outcomes of operations; `pending`: open at the end of the run."""

WaitsKey = tuple[str, str, int, str]
"""Purgatory, kind, broker and outcome."""


class OperationRecorder:
    """Counts the waits by purgatory, kind, broker and outcome, and writes the trace's rows.

    Args:
        now_ns: the time since the start of the run.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.write: Callable[[OperationRow], None] | None = None
        """Takes rows of the table; None: none is written."""
        self.waits: dict[WaitsKey, Waits] = {}
        self.operation_number: Callable[[Request], int] | None = None
        """Returns the number of a request that has ended; by default, they are numbered in this
        order."""
        self._now_ns = now_ns
        self._count = 0
        self._current_request: Request | None = None

    def begin_response(self, request: Request) -> None:
        """Remember which request gets its response."""
        self._current_request = request

    def observe(self, _operation: DelayedOperation, outcome: str, _wait_ns: int) -> None:
        """Record an operation of a purgatory: that of the last `begin_response`.

        Cancelled operations have no response; their canceller records them.
        """
        if outcome != "cancelled" and self._current_request is not None:
            self.record(self._current_request, outcome, self._now_ns())
            self._current_request = None

    def record(self, request: Request, outcome: str, end_ns: int) -> None:
        """Record the outcome of a request. O(1)."""
        if request.recorded:
            return
        request.recorded = True
        broker, purgatory, kind = request.connection.broker.id, request.purgatory, request.kind
        start_us, end_us = request.received_ns // NS_PER_US, end_ns // NS_PER_US
        key = (purgatory, kind, broker, outcome)
        waits = self.waits.get(key)
        if waits is None:
            waits = self.waits[key] = Waits()
        waits.add(end_us - start_us)
        self._count += 1
        if self.write is None:
            return
        keys = request.watch_keys
        self.write(
            OperationRow(
                broker,
                purgatory,
                self._count if self.operation_number is None else self.operation_number(request),
                len(keys),
                request.timeout_ms,
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
    """A broker's timer that records when it advances at an unexpected time.

    Args:
        more: arguments of `SystemTimer`.
    """

    def __init__(self, changes: ChangeRecorder, broker: int, *more: Any) -> None:
        super().__init__(*more)
        self._changes = changes
        self._broker = broker
        self._is_advancing = False
        self.was_suspended = False
        """Whether it has been suspended since it last advanced."""

    def advance_clock(self, timeout_ms: int | timedelta = 0) -> bool:
        now_ns, first_ms = self.clock.now_ns(), self.next_expiration_ms()
        is_scheduled = first_ms is not None and first_ms * NS_PER_MS == now_ns
        if self.was_suspended or not is_scheduled or self._changes.observed_ns == now_ns:
            self.was_suspended = False
            self._changes.record_clock(self._broker)
        self._is_advancing = True
        try:
            return super().advance_clock(timeout_ms)
        finally:
            self._is_advancing = False

    @property
    def clock_ms(self) -> int | None:
        """Its time while it advances; else None."""
        return self._levels()[0][1] if self._is_advancing else None


class ObservedPurgatory(DelayedOperationPurgatory):
    """A purgatory whose parked operations are recorded."""

    def __init__(
        self,
        changes: ChangeRecorder,
        name: str,
        timer: ObservedTimer,
        broker_id: int,
        on_completed: CompletionObserver,
    ) -> None:
        self._changes = changes
        self._observed_timer = timer
        super().__init__(name, timer, broker_id, reaper_enabled=False, on_completed=on_completed)

    def try_complete_else_watch(
        self,
        operation: DelayedOperation,
        keys: Keys = _NO_KEYS,
        thresholds: Mapping[Any, int] | None = None,
    ) -> bool:
        completed = super().try_complete_else_watch(operation, keys, thresholds)
        if not operation.is_completed:
            clock_ms = self._observed_timer.clock_ms
            self._changes.record_parked(self.broker_id, self.name, operation, clock_ms)
        return completed


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
    """One entry for each consumer group: its consumers have fixed partitions."""
    return [
        {"group": section.group, "assignment": "assign", "isolation": "read_uncommitted"}
        for section in scenario.consumers
    ]
