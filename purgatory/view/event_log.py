"""The log of a traced run, as text: faults, elections, expired produces."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from purgatory.settings.typed_duration import duration_text
from purgatory.trace import change_rows as rows
from purgatory.view.state import ClusterState, PageEncoder
from purgatory.view.timeline import CHANGED, COMPLETED, Timeline
from purgatory.view.trace_columns import keys_at

Line = tuple[str, str]
"""A text and its level, info or warning."""

_BROKER_STATES = {
    "alive": ("is alive", "info"),
    "dead": ("is dead", "warning"),
    "paused": ("is paused", "warning"),
}


class EventLog:
    """The lines of a run, in the order of time. Events are recorded in that order, each once."""

    def __init__(self, timeline: Timeline, encoder: PageEncoder) -> None:
        self._timeline = timeline
        self._encoder = encoder
        self._at = array("q")
        self._lines: list[Line] = []

    def record(self, event: int, before: ClusterState) -> None:
        """Record an event, given the state that it changes. O(1)."""
        timeline = self._timeline
        kind, ref = timeline.kind[event], timeline.ref[event]
        if kind == COMPLETED:
            lines = self._completed_lines(ref)
        elif kind == CHANGED:
            lines = self._change_lines(ref, before)
        else:
            return
        for entry in lines:
            self._at.append(timeline.at[event])
            self._lines.append(entry)

    def between(self, from_us: int, until_us: int) -> list[dict[str, Any]]:
        """Return the lines after one moment and not after another. O(log lines + those)."""
        first, end = bisect_right(self._at, from_us), bisect_right(self._at, until_us)
        return [self._change(index) for index in range(first, end)]

    def last(self, at_us: int, limit: int) -> list[dict[str, Any]]:
        """Return the last lines up to a moment, at most so many. O(log lines + most)."""
        end = bisect_right(self._at, at_us)
        return [self._change(index) for index in range(max(0, end - limit), end)]

    def _change(self, index: int) -> dict[str, Any]:
        text, level = self._lines[index]
        return {"at_us": self._at[index], "change": "log", "text": text, "level": level}

    def _completed_lines(self, ref: int) -> Iterator[Line]:
        completed = self._timeline.completed
        outcome, purgatory = completed.outcome.at(ref), completed.purgatory.at(ref)
        if outcome == "failed" or (outcome == "expired" and purgatory == "Produce"):
            keys = " ".join(keys_at(completed.keys, ref))
            text = f"broker {completed.broker[ref]}: {purgatory} on {keys} {outcome}"
            yield f"{text} after {duration_text(completed.wait_us[ref])}", "warning"

    def _change_lines(self, row: int, before: ClusterState) -> Iterator[Line]:
        match self._timeline.changes.change.at(row):
            case rows.FAULT:
                yield _fault(self._encoder.fault(row))
            case rows.BROKER:
                yield from self._broker_lines(row, before)
            case rows.GROUP:
                yield from self._group_lines(row, before)
            case rows.PARTITION:
                yield from self._partition_lines(row, before)

    def _broker_lines(self, row: int, before: ClusterState) -> Iterator[Line]:
        broker, _, _, _, state = self._timeline.change_row(row)
        text, level = _BROKER_STATES.get(state, (state, "info"))
        previous = before.brokers.get(broker)
        if previous == "paused" and level == "info":
            text = "is resumed"
        if previous is not None or level == "warning":
            yield f"broker {broker} {text}", level

    def _group_lines(self, row: int, before: ClusterState) -> Iterator[Line]:
        group = self._encoder.group(row)
        previous = before.groups.get(group["name"])
        if previous is None or self._timeline.changes.state.at(previous) != group["state"]:
            count = len(group["members"])
            members = f"{count} member{'' if count == 1 else 's'}"
            yield f"group {group['name']} is {group['state']}, with {members}", "info"

    def _partition_lines(self, row: int, before: ClusterState) -> Iterator[Line]:
        after = self._encoder.partition(row)
        last_row = before.partitions.get((after["topic"], after["partition"]))
        if last_row is None:
            return
        previous = self._encoder.partition(last_row)
        name = f"{after['topic']}-{after['partition']}"
        if previous["leader"] != after["leader"]:
            if after["leader"] < 0:
                yield f"{name} has no leader", "warning"
            else:
                yield (
                    f"broker {after['leader']} leads {name}, epoch {after['leader_epoch']}",
                    "info",
                )
        for broker in sorted(set(previous["isr"]) - set(after["isr"])):
            yield f"broker {broker} left the ISR of {name}", "warning"
        for broker in sorted(set(after["isr"]) - set(previous["isr"])):
            yield f"broker {broker} is back in the ISR of {name}", "info"


def _fault(fault: dict[str, Any]) -> Line:
    if fault["active"]:
        return f"fault {fault['number']}: {fault['text']}", "warning"
    return f"fault {fault['number']} ended: {fault['text']}", "info"
