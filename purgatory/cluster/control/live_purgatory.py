"""The purgatories of a cluster and their timing wheels, as the live feed shows them.

A purgatory notifies its observer of each completion. Parked operations and their buckets are found
by comparing each wheel with its previous snapshot; an unchanged bucket costs almost nothing. An
operation that was added and completed between two snapshots is reported when it completes, with
the bucket that its expiration gives. Each purgatory of a broker has its own wheel. All of them have
the same ticks and buckets, so that the page can show them as one wheel.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from purgatory.cluster.traced_brokers import ElapsedClock, operation_keys, operation_kind
from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.operation import DelayedOperation, submitted_ns
from purgatory.core.outcome import FOREVER_MS, Outcome
from purgatory.settings.addresses import host_and_port
from timer import SystemTimer, TimerTask
from timer.snapshot import TimerSnapshot

if TYPE_CHECKING:
    from purgatory.cluster.broker import Broker


Change = dict[str, Any]
_NS_PER_MS = 1_000_000
_NS_PER_US = 1_000
MAX_NEW = 1_000
"""The most parked operations that a batch reports for the first time; others are deferred."""

MAX_SHORT_LIVED = 250
"""The most operations, added and completed within a batch, that it reports; others are counted."""


class FeedBatch:
    """The changes since the previous batch of the feed.

    Args:
        clock: the feed's clock.
    """

    def __init__(self, clock: ElapsedClock) -> None:
        self.clock = clock
        self.begin_us = clock.now_us()
        self.short_lived = 0
        """The number of operations of this batch that were first reported on completion."""
        self.new = 0
        """The number of parked operations that were reported for the first time."""
        self.reported = 0
        """The number of parked operations on the page, of all purgatories."""
        self._changes: list[Change] = []
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        """Return a unique number for an operation."""
        return next(self._numbers)

    def add(self, change: str, *, at_us: int | None = None, **values: Any) -> None:
        """Record a change, by default with the current time; never before the batch's begin."""
        if at_us is None:
            at_us = self.clock.now_us()
        self._changes.append({"at_us": max(at_us, self.begin_us), "change": change, **values})

    def log(self, text: str, level: str = "info") -> None:
        """Record a log line of the page."""
        self.add("log", text=text, level=level)

    def end(self) -> tuple[int, int, list[Change]]:
        """Begin the next batch; return the begin, the end and the changes, by time, of this one."""
        begin_us, changes = self.begin_us, self._changes
        changes.sort(key=lambda change: change["at_us"])
        self.begin_us = max(self.clock.now_us(), changes[-1]["at_us"] if changes else 0)
        self._changes = []
        self.short_lived = self.new = 0
        return begin_us, self.begin_us, changes


Row = list[Any]
Level = dict[str, Any]
WheelPosition = tuple[int | None, int | None]
_MAX_KEYS = 20
_MAX_KEY_LENGTH = 200
_NO_POSITION: WheelPosition = (None, None)
_LEVEL, _BUCKET = 7, 8
IMMEDIATE = "immediate"


class LivePurgatory:
    """Observes a purgatory until it is released.

    Args:
        broker: the broker's id.
        purgatory: the purgatory.
        batch: collects the changes.
    """

    def __init__(self, broker: int, purgatory: AsyncPurgatory, batch: FeedBatch) -> None:
        self.broker = broker
        self.name = purgatory.name
        self._core = purgatory.core
        timer = purgatory.core.timer
        assert isinstance(timer, SystemTimer), "that of an AsyncPurgatory"
        self._timer = timer
        self._batch = batch
        self._reported: dict[int, tuple[DelayedOperation, Row]] = {}
        self._buckets: dict[tuple[int, int], Sequence[TimerTask]] = {}
        self._has_completions = False
        self.pending = self._core.num_delayed
        self.outcomes = dict(self._core.counters.outcomes)
        self.levels = _levels(timer.snapshot(_identity))
        self._next_listener = self._core.on_completed
        self._core.on_completed = self._record_completion

    def release(self) -> None:
        """Stop observing."""
        self._core.on_completed = self._next_listener
        self._batch.reported -= len(self._reported)
        self._reported.clear()

    @property
    def pending_count(self) -> int:
        """The number of pending operations, reported or not."""
        return self._core.num_delayed

    def rows(self) -> list[Row]:
        """Return the parked operations that were reported."""
        return [list(row) for _, row in self._reported.values()]

    @property
    def reported(self) -> int:
        """The number of reported parked operations."""
        return len(self._reported)

    # Completions.

    def _record_completion(self, operation: DelayedOperation, outcome: str, wait_ns: int) -> None:
        self._has_completions = True
        known = self._reported.pop(id(operation), None)
        batch = self._batch
        if known is not None:
            batch.reported -= 1
            self._report_completion(known[1], outcome, wait_ns)
        elif batch.short_lived < MAX_SHORT_LIVED:
            batch.short_lived += 1
            row = self._row(operation, _NO_POSITION)
            if outcome != IMMEDIATE:
                row[_LEVEL:] = self._position_by_expiration(row[6])
                batch.add("parked", at_us=row[5], operation=row)
                self.pending += 1
            self._report_completion(row, outcome, wait_ns)
        if self._next_listener is not None:
            self._next_listener(operation, outcome, wait_ns)

    def _report_completion(self, row: Row, outcome: str, wait_ns: int) -> None:
        if outcome != IMMEDIATE:
            self.pending -= 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self._batch.add(
            "completed",
            id=row[0],
            broker=self.broker,
            purgatory=self.name,
            kind=row[3],
            outcome=outcome,
            wait_us=wait_ns // _NS_PER_US,
            keys=row[4],
        )

    def _position_by_expiration(self, expires_ms: int | None) -> WheelPosition:
        """Return the level and bucket of an expiration: on the first level that covers it."""
        if expires_ms is not None:
            for level in self.levels:
                if expires_ms < level["covers_ms"][1]:
                    return level["level"], expires_ms // level["tick_ms"] % level["size"]
        return _NO_POSITION

    # Parked operations.

    def compare(self, limit: int) -> None:
        """Report newly parked operations, those in another bucket, and counts.

        O(tasks on the wheel); unchanged buckets cost some nanoseconds for each task.

        Args:
            limit: the most operations of this purgatory to report.
        """
        if self._timer.size or self._buckets:
            self._compare_wheel(limit)
        pending = self._core.num_delayed
        if len(self._reported) < min(pending, limit) and self._timer.size < pending:
            self._report_unscheduled(limit)
        if self._has_completions or pending != self.pending:
            self._has_completions = False
            self._report_counts(pending)

    def _compare_wheel(self, limit: int) -> None:
        snapshot = self._timer.snapshot(_identity)
        buckets: dict[tuple[int, int], Sequence[TimerTask]] = {}
        for level in snapshot["levels"]:
            for index, bucket in enumerate(level["buckets"]):
                tasks: list[TimerTask] = bucket["tasks"]
                if not tasks:
                    continue
                key = level["level"], index
                before = self._buckets.get(key, ())
                if tasks == before:
                    buckets[key] = tasks
                    continue
                known = set(map(id, before))  # referenced, so that their ids stay unique
                new = [task for task in tasks if id(task) not in known]
                span_ms = bucket["expiration_ms"], bucket["expiration_ms"] + level["tick_ms"] - 1
                if self._report_positions(new, key, span_ms, limit):
                    buckets[key] = tasks
        self._buckets = buckets
        self.levels = _levels(snapshot)

    def _report_positions(
        self,
        tasks: Sequence[TimerTask],
        position: WheelPosition,
        span_ms: tuple[int, int],
        limit: int,
    ) -> bool:
        """Report the position of tasks; return whether all were reported."""
        all_reported = True
        for task in tasks:
            if not isinstance(task, DelayedOperation) or task.outcome is not Outcome.PENDING:
                continue  # a retry; or an operation that is completing, and is reported then
            known = self._reported.get(id(task))
            if known is None:
                if not self._report_parked(task, position, limit, span_ms):
                    all_reported = False
            elif (known[1][_LEVEL], known[1][_BUCKET]) != position:
                known[1][_LEVEL:] = position
                self._batch.add("moved", id=known[1][0], level=position[0], bucket=position[1])
        return all_reported

    def _report_unscheduled(self, limit: int) -> None:
        """Report operations that never expire."""
        for end in self._core.pending_ends(limit):
            for operation in end:
                if id(operation) not in self._reported and operation.outcome is Outcome.PENDING:
                    self._report_parked(operation, _NO_POSITION, limit, None)

    def _report_parked(
        self,
        operation: DelayedOperation,
        position: WheelPosition,
        limit: int,
        within_ms: tuple[int, int] | None,
    ) -> bool:
        batch = self._batch
        if len(self._reported) >= limit or batch.new >= MAX_NEW:
            return False
        batch.new += 1
        batch.reported += 1
        row = self._row(operation, position)
        if within_ms is None:
            row[6] = None
        elif row[6] is not None:
            # A millisecond may have begun between its submission and its insertion.
            row[6] = min(max(row[6], within_ms[0]), within_ms[1])
        self._reported[id(operation)] = operation, row
        self.pending += 1
        batch.add("parked", at_us=row[5], operation=list(row))
        return True

    def _row(self, operation: DelayedOperation, position: WheelPosition) -> Row:
        start_ns, delay_ms = submitted_ns(operation), operation.delay_ms
        keys = operation_keys(operation)
        texts = [str(key)[:_MAX_KEY_LENGTH] for key in keys[:_MAX_KEYS]]
        if len(keys) > _MAX_KEYS:
            texts.append(f"and {len(keys) - _MAX_KEYS} more")
        return [
            self._batch.next_number(),
            self.broker,
            self.name,
            operation_kind(self.name, operation),
            texts,
            self._batch.clock.us_of_ns(start_ns),
            None if delay_ms >= FOREVER_MS else delay_ms - (-start_ns // _NS_PER_MS),
            *position,
        ]

    # Counts.

    def _report_counts(self, pending: int) -> None:
        """Report the counts of operations that were not reported individually."""
        outcomes = self._core.counters.outcomes
        missing = {
            outcome: number - self.outcomes.get(outcome, 0)
            for outcome, number in outcomes.items()
            if number != self.outcomes.get(outcome, 0)
        }
        if missing or pending != self.pending:
            self.outcomes, self.pending = dict(outcomes), pending
            self._batch.add(
                "completed_many",
                broker=self.broker,
                purgatory=self.name,
                outcomes=missing,
                pending=pending,
            )


def _identity(task: TimerTask) -> TimerTask:
    return task


def _levels(snapshot: TimerSnapshot) -> list[Level]:
    return [
        {
            "level": level["level"],
            "tick_ms": level["tick_ms"],
            "size": len(level["buckets"]),
            "covers_ms": list(level["covers_ms"]),
        }
        for level in snapshot["levels"]
    ]


MAX_REPORTED = 10_000
"""The most parked operations of a cluster that are reported; a sample of more."""


class LiveBroker:
    """Observes a broker until its purgatories are released.

    Args:
        broker: the broker.
        batch: collects the changes.
    """

    def __init__(self, broker: Broker, batch: FeedBatch) -> None:
        self._broker = broker
        self._batch = batch
        self._alive = broker.alive
        self._connections = broker.connection_count
        self._broker_purgatories = broker.purgatories
        self.purgatories = [
            LivePurgatory(broker.broker_id, purgatory, batch)
            for purgatory in (broker.purgatories if broker.alive else ())
        ]
        self._levels = self._current_levels()

    @property
    def is_stale(self) -> bool:
        """Whether the broker has stopped or started since, or has other purgatories."""
        broker = self._broker
        return broker.alive != self._alive or (
            self._alive
            and (
                broker.purgatories is not self._broker_purgatories
                or len(broker.purgatories) != len(self.purgatories)
            )
        )

    @property
    def pending_count(self) -> int:
        """The number of pending operations on the broker."""
        return sum(purgatory.pending_count for purgatory in self.purgatories)

    def compare(self, pending: int) -> None:
        """Report changes; ``pending`` is the number of pending operations of the cluster."""
        for purgatory in self.purgatories:
            # Beyond the limit each purgatory shows its share, at least one operation.
            share = purgatory.pending_count
            if pending > MAX_REPORTED:
                share = share * MAX_REPORTED // pending + 1
            purgatory.compare(
                min(share, purgatory.reported + max(0, MAX_REPORTED - self._batch.reported))
            )
        levels = self._current_levels()
        if levels != self._levels:
            self._levels = levels
            clock_ms = levels[0]["covers_ms"][0]
            self._add("clock", clock_ms=clock_ms, levels=levels)
        if self._broker.connection_count != self._connections:
            self._connections = self._broker.connection_count
            self._add("broker", alive=self._alive, connections=self._connections)

    def report_state(self) -> None:
        """Report whether the broker is alive, if that has changed."""
        if self.is_stale:
            broker = self._broker
            self._add("broker", alive=broker.alive, connections=broker.connection_count)
            if broker.alive:
                self._batch.log(f"broker {broker.broker_id} is alive")
            else:
                self._batch.log(f"broker {broker.broker_id} is dead", "warning")

    def state(self) -> dict[str, Any]:
        """Return the reported state."""
        levels = self._levels
        wheel = None
        if levels:
            wheel = {
                "tick_ms": levels[0]["tick_ms"],
                "size": levels[0]["size"],
                "clock_ms": levels[0]["covers_ms"][0],
                "start_ms": self._batch.clock.start_ms,
                "levels": levels,
            }
        return {
            "id": self._broker.broker_id,
            "alive": self._alive,
            "address": host_and_port(self._broker.host, self._broker.port),
            "connections": self._connections,
            "wheel": wheel,
            "purgatories": [
                {
                    "name": purgatory.name,
                    "pending": purgatory.pending,
                    "outcomes": dict(purgatory.outcomes),
                }
                for purgatory in self.purgatories
            ],
        }

    def _add(self, change: str, **values: Any) -> None:
        self._batch.add(change, broker=self._broker.broker_id, **values)

    def _current_levels(self) -> list[dict[str, Any]]:
        """Return the levels in use, each from the wheel whose clock is furthest ahead."""
        ahead: dict[int, dict[str, Any]] = {}
        for purgatory in self.purgatories:
            for level in purgatory.levels:
                known = ahead.get(level["level"])
                if known is None or level["covers_ms"] > known["covers_ms"]:
                    ahead[level["level"]] = level
        return [ahead[number] for number in sorted(ahead)]
