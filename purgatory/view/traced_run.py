"""A run that a trace tells of: its state at any moment, and all that changed between two.

    run = TracedRun(Path("my-trace"))
    run.state(4_000_000)

All that is returned is plain data, as it goes over the wire.

Ground rules: what it answers from is made once and never changed, but for `_checkpoints`, which is
filled when the run is opened. So any number of threads may ask.
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
from purgatory.view.errors import ViewError
from purgatory.view.happenings import Happenings
from purgatory.view.journeys import Journeys
from purgatory.view.page_data import PageData
from purgatory.view.parked_operations import guessed, told, with_parked
from purgatory.view.timeline import ChangeColumns, Timeline
from purgatory.view.trace_columns import LATEST_US, TraceFolder, ints
from purgatory.view.world import World

MOST_SHOWN = 10_000
"""Of how many operations a state tells; of more, it tells of a sample."""

MOST_CHANGES = 50_000

_LAST_LINES = 50

_EVENTS_APART = 20_000
_USUAL_TIMER = {"tick_ms": 1, "wheel_size": 20}
_UNTOLD = ("topics", "groups", "transactions", "faults", "brokers", "wheels")


class TracedRun:
    """A trace, opened. O(rows), some microseconds each.

    Args:
        folder: of the trace.

    Raises:
        ViewError: there is no trace that can be shown.
    """

    def __init__(self, folder: Path) -> None:
        self.trace = TraceFolder(folder)
        operations = self.trace.table("operations")
        assert operations is not None, "a trace has that table"
        changes = self.trace.table(CHANGES)
        self.is_told = changes is not None and changes.num_rows > 0
        if self.is_told:
            if self._is_real_time:
                changes = with_parked(operations, changes)
                self.trace.notes.append(self._real_time_note())
            parked, settled, of_operation = told(operations, changes)
            columns = ChangeColumns(changes)
        else:
            (parked, settled), of_operation, columns = guessed(operations), array("q"), None
            self.trace.notes.append(
                "This trace has no table of changes: of brokers, partitions, groups, transactions "
                "and faults it tells nothing, and where operations lie on the wheels is computed "
                "from when they came and their timeouts."
            )
        self.timeline = Timeline(
            parked, settled, columns, of_operation, self._timer(), self._is_real_time
        )
        self.page_data = PageData(self.timeline)
        self.end_us = self._end_us(operations)
        self._at: list[int] = []
        self._checkpoints: list[World] = []
        self._keep_checkpoints()

    @property
    def _is_real_time(self) -> bool:
        return "timer" not in self.trace.head or self.trace.head.get("real_time") is True

    def _real_time_note(self) -> str:
        what = "simulation in real time:"
        if "timer" not in self.trace.head:
            what = (
                "cluster in real time: of partitions, groups, transactions and faults it was told "
                "ten times a second, and"
            )
        return (
            f"This is a {what} where operations lie on the wheels is computed from when they came "
            "and their timeouts."
        )

    def _timer(self) -> Mapping[str, int]:
        given = self.trace.head.get("timer")
        if not isinstance(given, dict):
            return _USUAL_TIMER
        timer = {**_USUAL_TIMER, **given}
        tick_ms, size = timer["tick_ms"], timer["wheel_size"]
        if type(tick_ms) is not int or type(size) is not int or tick_ms < 1 or size < 2:
            raise ViewError(f"{self.trace.folder}: run.json has a timer that can't be: {given}")
        return timer

    def _end_us(self, operations: pa.Table) -> int:
        ends = ints(operations.column("end_us"))
        last_us = max(ends) if len(ends) else 0
        duration_ms = self.trace.head.get("duration_ms")
        if type(duration_ms) is int and duration_ms <= LATEST_US // 1_000:
            last_us = max(last_us, duration_ms * 1_000)
        return max(last_us, self.timeline.at[-1] if len(self.timeline) else 0)

    def _keep_checkpoints(self) -> None:
        world, since = World(self.timeline), 0
        self._at.append(0)
        self._checkpoints.append(world.copy())
        for event in range(len(self.timeline)):
            world.apply(event)
            since += 1
            # Where much waits, a copy is dear: then there are fewer.
            if since >= _EVENTS_APART + 20 * len(world.parked):
                since = 0
                self._at.append(event + 1)
                self._checkpoints.append(world.copy())

    # What is asked.

    def about(self) -> dict[str, Any]:
        """Return what the run is."""
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
        }

    def world(self, at_us: int) -> World:
        """Return the state at a moment, after all that happened in that microsecond.

        O(events since the last checkpoint): some milliseconds.
        """
        upto = bisect_right(self.timeline.at, at_us)
        index = bisect_right(self._at, upto) - 1
        world = self._checkpoints[index].copy()
        for event in range(self._at[index], upto):
            world.apply(event)
        return world

    def state(self, at_us: int) -> dict[str, Any]:
        """Return the state at a moment as plain data."""
        unknown = [] if self.is_told else list(_UNTOLD)
        state = self.page_data.state(self.world(at_us), at_us, MOST_SHOWN, unknown)
        return {**state, "said": self.happenings.last(at_us, _LAST_LINES)}

    def changes(self, from_us: int, until_us: int, limit: int = 5_000) -> dict[str, Any]:
        """Return what changes after one moment and not after another.

        Args:
            from_us, until_us: the moments.
            limit: of how many at most, from 1 on; one moment is not cut in two, however many there
                are of it.
        """
        at = self.timeline.at
        first, last = bisect_right(at, from_us), bisect_right(at, until_us)
        limit = max(1, min(limit, MOST_CHANGES))
        if last - first > limit:
            last = bisect_left(at, at[first + limit])
            if last <= first:  # one moment has more
                last = bisect_right(at, at[first])
            until_us = at[last - 1]
        until_us = max(from_us, until_us)
        told = [self.page_data.change(event) for event in range(first, last)]
        changes = [change for change in told if change is not None]
        said = self.happenings.between(from_us, until_us)
        if said:  # each behind all else of its moment
            changes = sorted(changes + said, key=itemgetter("at_us"))
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
    def happenings(self) -> Happenings:
        """What happened, in lines for people."""
        return Happenings(self.timeline, self.page_data)

    @cached_property
    def journeys(self) -> Journeys:
        """The produces, from the client to its answer."""
        return Journeys(self.trace, self.timeline)
