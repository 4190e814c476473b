"""A traced run: its state at any moment, and all changes between two moments.

    run = TracedRun(Path("my-trace"))
    run.state(4_000_000)

All results are plain data, as the page gets them.

Ground rules: everything is computed when the run is opened, `request_traces` and `overview` at
their first use, and never changed afterwards, so any number of threads may use it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from purgatory.trace.change_rows import CHANGES
from purgatory.trace.trace_writer import arrow_schema
from purgatory.view.errors import ViewError
from purgatory.view.event_log import EventLog
from purgatory.view.overview import overview
from purgatory.view.request_traces import RequestTraces
from purgatory.view.state import ClusterState, PageEncoder
from purgatory.view.timeline import ChangeColumns, Timeline
from purgatory.view.trace_columns import (
    LATEST_US,
    TraceFolder,
    add_parked_rows,
    ints,
    operations_without_changes,
    split_operations,
)

MAX_SHOWN = 10_000
"""The most operations in a state; of more it has a sample."""

MAX_CHANGES = 50_000

_LAST_LINES = 50

_CHECKPOINT_EVENTS = 20_000
_DEFAULT_TIMER = {"tick_ms": 1, "wheel_size": 20}
_UNKNOWN = ("topics", "groups", "transactions", "faults", "brokers", "wheels")


class TracedRun:
    """An opened trace. O(rows), some microseconds per row.

    Raises:
        ViewError: the folder has no trace that can be shown.
    """

    def __init__(self, folder: Path) -> None:
        self.trace = TraceFolder(folder)
        operations = self.trace.table("operations")
        assert operations is not None, "a trace has that table"
        changes = self.trace.table(CHANGES)
        if changes is not None and changes.num_rows:
            if self._is_real_time:
                changes = add_parked_rows(operations, changes)
                self.trace.notes.append(
                    "This is a cluster in real time: partitions, groups, transactions and faults "
                    "were sampled ten times a second, and where operations lie on the wheels is "
                    "computed from when they came and their timeouts."
                )
            parked, completed, operation_of_change = split_operations(operations, changes)
        else:
            parked, completed = operations_without_changes(operations)
            changes, operation_of_change = arrow_schema(CHANGES).empty_table(), array("q")
            self.trace.notes.append(
                "This trace has no table of changes: brokers, partitions, groups, transactions and "
                "faults are unknown, and where operations lie on the wheels is computed from when "
                "they came and their timeouts."
            )
        self.timeline = Timeline(
            parked,
            completed,
            ChangeColumns(changes),
            operation_of_change,
            self._timer(),
            self._is_real_time,
        )
        self.encoder = PageEncoder(self.timeline)
        self.log = EventLog(self.timeline, self.encoder)
        self.end_us = self._end_us(operations)
        self._at: list[int] = []
        self._checkpoints: list[ClusterState] = []
        self._build_checkpoints()

    @property
    def _is_real_time(self) -> bool:
        return "timer" not in self.trace.head

    def _timer(self) -> Mapping[str, int]:
        settings = self.trace.head.get("timer")
        if not isinstance(settings, dict):
            return _DEFAULT_TIMER
        timer = {**_DEFAULT_TIMER, **settings}
        tick_ms, size = timer["tick_ms"], timer["wheel_size"]
        if type(tick_ms) is not int or type(size) is not int or tick_ms < 1 or size < 2:
            raise ViewError(f"{self.trace.folder}: run.json has a timer that can't be: {settings}")
        return timer

    def _end_us(self, operations: pa.Table) -> int:
        end_times = ints(operations.column("end_us"))
        last_us = max(end_times) if len(end_times) else 0
        duration_ms = self.trace.head.get("duration_ms")
        if type(duration_ms) is int and duration_ms <= LATEST_US // 1_000:
            last_us = max(last_us, duration_ms * 1_000)
        return max(last_us, self.timeline.at[-1] if len(self.timeline) else 0)

    def _build_checkpoints(self) -> None:
        """Fold all events into the log, and into states, some of which are kept as checkpoints."""
        state, change_count = ClusterState(self.timeline), 0
        self._at.append(0)
        self._checkpoints.append(state.copy())
        for event in range(len(self.timeline)):
            self.log.record(event, state)
            state.apply(event)
            change_count += 1
            # With many parked operations a copy is expensive: then there are fewer checkpoints.
            if change_count >= _CHECKPOINT_EVENTS + 20 * len(state.parked):
                change_count = 0
                self._at.append(event + 1)
                self._checkpoints.append(state.copy())

    def about(self) -> dict[str, Any]:
        """Return name, length, notes and overview of the run."""
        head = self.trace.head
        name = self.trace.run_id
        scenario, seed = head.get("scenario"), head.get("seed")
        if scenario and isinstance(scenario, str):
            name = scenario if seed is None else f"{scenario}, seed {seed}"
        return {
            "mode": "trace",
            "name": name,
            "begin_us": 0,
            "end_us": self.end_us,
            "may_change": False,
            "complete": self.trace.complete,
            "notes": list(self.trace.notes),
            "overview": self.overview,
        }

    @cached_property
    def overview(self) -> dict[str, Any]:
        """The run at a glance, as `purgatory.view.overview.overview` returns it."""
        return overview(self.timeline, self.encoder, self.end_us)

    def cluster_state(self, at_us: int) -> ClusterState:
        """Return the state at a moment, after all events of that microsecond.

        O(events since the last checkpoint): some milliseconds.
        """
        end = bisect_right(self.timeline.at, at_us)
        index = bisect_right(self._at, end) - 1
        state = self._checkpoints[index].copy()
        for event in range(self._at[index], end):
            state.apply(event)
        return state

    def state(self, at_us: int) -> dict[str, Any]:
        """Return the state at a moment as plain data."""
        unknown_parts = [] if self.timeline.has_changes else list(_UNKNOWN)
        state = self.encoder.state(self.cluster_state(at_us), at_us, MAX_SHOWN, unknown_parts)
        return {**state, "log": self.log.last(at_us, _LAST_LINES)}

    def changes(self, from_us: int, until_us: int, limit: int = 5_000) -> dict[str, Any]:
        """Return the changes between two times.

        Args:
            from_us, until_us: the moments.
            limit: the most changes, from 1 on; those of one moment are never split.
        """
        at = self.timeline.at
        first, last = bisect_right(at, from_us), bisect_right(at, until_us)
        limit = max(1, min(limit, MAX_CHANGES))
        if last - first > limit:
            last = bisect_left(at, at[first + limit])
            if last <= first:  # one moment has more
                last = bisect_right(at, at[first])
            until_us = at[last - 1]
        until_us = max(from_us, until_us)
        events = map(self.encoder.change, range(first, last))
        changes = [change for change in events if change is not None]
        lines = self.log.between(from_us, until_us)
        if lines:  # each behind all else of its moment
            changes = sorted(changes + lines, key=itemgetter("at_us"))
        return {"from_us": from_us, "until_us": until_us, "changes": changes}

    def next(self, after_us: int) -> int | None:
        """Return the next moment at which anything changes. O(log events)."""
        at = self.timeline.at
        index = bisect_right(at, after_us)
        return at[index] if index < len(at) else None

    def previous(self, before_us: int) -> int | None:
        """Return the last moment before another at which anything changes. O(log events)."""
        index = bisect_left(self.timeline.at, before_us)
        return self.timeline.at[index - 1] if index else None

    @cached_property
    def request_traces(self) -> RequestTraces:
        """The produces, from the client to the response."""
        return RequestTraces(self.trace, self.timeline)
