"""The trace of a run: the operations that waited, and the changes that rebuild the cluster's state.

An operation is a request of the kind that a purgatory holds: a produce with acks=all, a fetch, a
deletion of records. It is `immediate` when its response came without a wait, whether the broker
went through its purgatory or not; so the purgatories' own counters, as `/metrics` shows them, count
fewer of these, and equally many of all others.

The table `changes` has a row for each operation that is parked, and none for its moves on the
wheel, which follow from the time. A timer advances at the beginning of each millisecond in which a
bucket is due; the table has a row for each other advance: after a pause, or with a tick of more
than a millisecond. In real time the timers have threads of their own, so neither is written; see
the table `operations`.

Ground rules: `begin_response` and `observe` are called on the thread that completes an operation,
in this order, inside the same call. Everything else runs on the engine's thread. Changes of logs,
groups and transactions are written after the event that made them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
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
from purgatory.trace.observer import (
    CoordinatorState,
    FaultState,
    PartitionRole,
    StateObserver,
    rows_of,
)
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


CoordinatorStates = Callable[[], tuple[dict[str, CoordinatorState], dict[str, CoordinatorState]]]
"""Returns all groups and all transactions, by their names."""


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
        self._waiting: dict[object, int] = {}
        self._changed_logs: dict[ObservedLog, None] = {}
        self._logs: dict[tuple[int, TopicPartition], ObservedLog] = {}
        self._state = StateObserver(self._record)
        self._assignments: Mapping[TopicPartition, PartitionState] = {}
        self._coordinators: CoordinatorStates | None = None
        self.observed_ns = -1
        """When the last event ended."""

    def _now_us(self) -> int:
        return self._now_ns() // NS_PER_US

    # Operations.

    def operation_number(self, operation: object) -> int:
        """Return the number of a request, or an operation, that has ended."""
        return self._waiting.pop(operation, 0) or next(self._numbers)

    def record_submitted(
        self,
        broker: int,
        purgatory: str,
        kind: str,
        operation: DelayedOperation,
        clock_ms: int | None,
    ) -> None:
        """Record an operation that begins to wait; ``clock_ms``: as in the table."""
        number = next(self._numbers)
        request = getattr(getattr(operation, "_respond", None), "__self__", None)
        keys: Sequence[object] = operation._op_keys
        if isinstance(request, Request) and request.is_delayable and request.purgatory == purgatory:
            self._waiting[request] = number
            kind, keys = request.kind, request.watch_keys
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

    def record_settled(self, broker: int, operation: DelayedOperation, outcome: str) -> None:
        """Record the outcome of a broker's own operation, which belongs to no request."""
        number = self._waiting.pop(operation, None)
        if number is not None:
            row = ChangeRow(self._now_us(), rows.SETTLED, broker, number=number, state=outcome)
            self._write(row)

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

    def begin(
        self,
        assignments: Mapping[TopicPartition, PartitionState],
        coordinators: CoordinatorStates | None,
    ) -> None:
        """Begin to observe.

        Args:
            assignments: the controller's live state.
            coordinators: returns the groups and the transactions; None: there are none.
        """
        self._assignments = assignments
        self._coordinators = coordinators
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
        """Record an event's changes. O(moved logs + groups + transactions)."""
        self.observed_ns = self._now_ns()
        observe = self._state.observe
        if self._changed_logs:
            for log in self._changed_logs:
                observe(rows.LOG_END, (log.topic_partition, log.broker), log.end_offset)
                if self._assignments[log.topic_partition].leader == log.broker:
                    observe(rows.HIGH_WATERMARK, log.topic_partition, log.high_watermark)
            self._changed_logs.clear()
        if self._coordinators is not None:
            groups, transactions = self._coordinators()
            self._state.observe_all(rows.GROUP, groups)
            self._state.observe_all(rows.TRANSACTION, transactions)

    def _record(self, kind: str, key: Any, before: Any, value: Any) -> None:
        if kind == rows.HIGH_WATERMARK:
            leader = self._assignments[key].leader
            self._write(ChangeRow(self._now_us(), kind, leader, key.topic, key.partition, value))
            return
        if kind == rows.GROUP and value is None:
            before = before._replace(members=())
        for row in rows_of(self._now_us(), kind, key, before, value):
            self._write(row)


# Operations.

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending")
"""The outcomes of operations; `pending`: open at the end of the run."""

KINDS = ("producer", "follower", "consumer", "admin", "member", "transaction", "coordinator")
"""The kinds of requesters."""

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
        self._thread_id = 0
        self._call_soon: Callable[..., None] | None = None
        self.operation_number: Callable[[object], int] | None = None
        """Returns the number of a request, or operation, that has ended; by default, they are
        numbered in this order."""
        self._now_ns = now_ns
        self._count = 0
        self._local = threading.local()
        self._current_request: Request | None = None

    def set_engine_thread(self, thread_id: int, call_soon: Callable[..., None]) -> None:
        """Pass on calls from other threads than the engine's by `call_soon`."""
        self._thread_id = thread_id
        self._call_soon = call_soon

    def begin_response(self, request: Request) -> bool:
        """Remember which request gets its response on this thread; True on the engine's thread."""
        if self._call_soon is not None and threading.get_ident() != self._thread_id:
            self._local.request = request
            return False
        self._current_request = request
        return True

    def observe(self, _operation: DelayedOperation, outcome: str, _wait_ns: int) -> None:
        """Record an operation of a purgatory: that of the last `begin_response`.

        Cancelled operations have no response; their canceller records them.
        """
        if outcome == "cancelled":
            return
        if self._call_soon is not None and threading.get_ident() != self._thread_id:
            self._call_soon(self.record, self._local.request, outcome, self._now_ns())
        elif self._current_request is not None:
            self.record(self._current_request, outcome, self._now_ns())
            self._current_request = None

    def record(self, request: Request, outcome: str, end_ns: int) -> None:
        """Record the outcome of a request. O(1)."""
        if request.recorded:
            return
        request.recorded = True
        broker = request.connection.broker.id
        keys, timeout_ms = request.watch_keys, request.timeout_ms
        start_ns, purgatory, kind = request.received_ns, request.purgatory, request.kind
        self._record(request, keys, timeout_ms, broker, purgatory, kind, outcome, start_ns, end_ns)

    def record_coordinator_wait(
        self,
        broker: int,
        purgatory: str,
        kind: str,
        operation: DelayedOperation,
        outcome: str,
        wait_ns: int,
    ) -> None:
        """Record a wait of a group member (for others, a heartbeat) or of a transaction (for
        markers, its timeout)."""
        keys, timeout_ms = operation._op_keys, operation.delay_ms
        end_ns = self._now_ns()
        start_ns = end_ns - wait_ns
        self._record(
            operation, keys, timeout_ms, broker, purgatory, kind, outcome, start_ns, end_ns
        )

    def _record(
        self,
        waiting: Request | DelayedOperation,
        keys: Sequence[object],
        timeout_ms: int,
        broker: int,
        purgatory: str,
        kind: str,
        outcome: str,
        start_ns: int,
        end_ns: int,
    ) -> None:
        start_us, end_us = start_ns // NS_PER_US, end_ns // NS_PER_US
        key = (purgatory, kind, broker, outcome)
        waits = self.waits.get(key)
        if waits is None:
            waits = self.waits[key] = Waits()
        waits.add(end_us - start_us)
        self._count += 1
        if self.write is None:
            return
        self.write(
            OperationRow(
                broker,
                purgatory,
                self._count if self.operation_number is None else self.operation_number(waiting),
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
    """A purgatory whose parked operations are recorded.

    Args:
        kind: that of operations that belong to no request.
    """

    def __init__(
        self,
        changes: ChangeRecorder,
        kind: str,
        name: str,
        timer: ObservedTimer,
        broker_id: int,
        on_completed: CompletionObserver,
    ) -> None:
        self._changes = changes
        self._kind = kind
        self._observed_timer = timer
        self._observe = on_completed
        super().__init__(name, timer, broker_id, reaper_enabled=False, on_completed=self._settled)

    def try_complete_else_watch(
        self,
        operation: DelayedOperation,
        keys: Keys = _NO_KEYS,
        thresholds: Mapping[Any, int] | None = None,
    ) -> bool:
        completed = super().try_complete_else_watch(operation, keys, thresholds)
        if not operation.is_completed:
            clock_ms = self._observed_timer.clock_ms
            self._changes.record_submitted(
                self.broker_id, self.name, self._kind, operation, clock_ms
            )
        return completed

    def _settled(self, operation: DelayedOperation, outcome: str, wait_ns: int) -> None:
        self._observe(operation, outcome, wait_ns)
        self._changes.record_settled(self.broker_id, operation, outcome)


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

    `assign`: its consumers have fixed partitions. `subscribe`: they return to committed offsets,
    since a coordinator assigns the partitions, or transactions in which their records are
    transformed may be aborted.
    """
    transformed = {
        producers.transactions.reads for producers in scenario.producers if producers.transactions
    }
    return [
        {
            "group": section.group,
            "assignment": "assign"
            if section.membership == "none" and section.group not in transformed
            else "subscribe",
            "isolation": section.isolation,
        }
        for section in scenario.consumers
    ]
