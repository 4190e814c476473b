"""What happened in a traced run, in lines for people: faults, elections, produces out of time."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from purgatory.trace import change_rows as rows
from purgatory.view.page_data import PageData
from purgatory.view.parked_operations import keys_at
from purgatory.view.timeline import CHANGED, SETTLED, Timeline

Line = tuple[str, str]
"""A text, and its level: info or warning."""

_LIVES = {
    "alive": ("lives", "info"),
    "dead": ("is dead", "warning"),
    "paused": ("stands still", "warning"),
}
_TOLD = (rows.BROKER, rows.PARTITION, rows.GROUP, rows.FAULT)


class Happenings:
    """The lines of a run, in the order of time. O(events) to make.

    Args:
        timeline: its events.
        page_data: describes them.
    """

    def __init__(self, timeline: Timeline, page_data: PageData) -> None:
        self._line = timeline
        self._data = page_data
        self._told: dict[Any, dict[str, Any]] = {}
        self._at = array("q")
        self._lines: list[Line] = []
        for event, kind in enumerate(timeline.kind):
            if kind in (CHANGED, SETTLED):
                for line in self._lines_of(kind, timeline.ref[event]):
                    self._at.append(timeline.at[event])
                    self._lines.append(line)

    def between(self, from_us: int, until_us: int) -> list[dict[str, Any]]:
        """Return the lines after one moment and not after another. O(log lines + those)."""
        first, last = bisect_right(self._at, from_us), bisect_right(self._at, until_us)
        return [self._change(index) for index in range(first, last)]

    def last(self, at_us: int, most: int) -> list[dict[str, Any]]:
        """Return the last lines up to a moment, at most so many. O(log lines + most)."""
        upto = bisect_right(self._at, at_us)
        return [self._change(index) for index in range(max(0, upto - most), upto)]

    def _change(self, index: int) -> dict[str, Any]:
        text, level = self._lines[index]
        return {"at_us": self._at[index], "what": "said", "text": text, "level": level}

    def _lines_of(self, kind: int, ref: int) -> Iterator[Line]:
        if kind == SETTLED:
            yield from self._settled(ref)
            return
        table = self._line.changes
        assert table is not None, "it has rows"
        what = table.change.at(ref)
        if what not in _TOLD:
            return
        told = self._data.changed(ref)
        assert told is not None, "the page is told of these"
        if what == rows.FAULT:
            yield _fault(told)
        elif what == rows.BROKER:
            words, level = _LIVES.get(table.state.at(ref), (table.state.at(ref), "info"))
            before = self._was(what, told["broker"], told)
            if before is not None and before["paused"] and level == "info":
                words = "goes on"
            if before is not None or level == "warning":
                yield f"broker {told['broker']} {words}", level
        elif what == rows.GROUP:
            before = self._was(what, told["name"], told)
            if before is None or before["state"] != told["state"]:
                count = len(told["members"])
                members = f"{count} member{'' if count == 1 else 's'}"
                yield f"group {told['name']} is {told['state']}, with {members}", "info"
        else:
            yield from _partition(self._was(what, (told["topic"], told["partition"]), told), told)

    def _was(self, what: str, key: Any, told: dict[str, Any]) -> dict[str, Any] | None:
        """Return what was told of it before, and keep what is told now."""
        before = self._told.get((what, key))
        self._told[what, key] = told
        return before

    def _settled(self, ref: int) -> Iterator[Line]:
        settled = self._line.settled
        outcome, purgatory = settled.outcome.at(ref), settled.purgatory.at(ref)
        if outcome == "failed" or (outcome == "expired" and purgatory == "Produce"):
            keys = " ".join(keys_at(settled.keys, ref))
            waited = f"after {settled.wait_us[ref] / 1_000:,.2f} ms"
            yield (
                f"broker {settled.broker[ref]}: {purgatory} on {keys} {outcome} {waited}",
                "warning",
            )


def _fault(told: dict[str, Any]) -> Line:
    if told["active"]:
        return f"fault {told['number']}: {told['text']}", "warning"
    return f"fault {told['number']} ended: {told['text']}", "info"


def _partition(before: dict[str, Any] | None, now: dict[str, Any]) -> Iterator[Line]:
    if before is None:
        return
    key = f"{now['topic']}-{now['partition']}"
    if before["leader"] != now["leader"]:
        if now["leader"] < 0:
            yield f"{key} has no leader", "warning"
        else:
            yield f"broker {now['leader']} leads {key}, epoch {now['leader_epoch']}", "info"
    for broker in sorted(set(before["isr"]) - set(now["isr"])):
        yield f"broker {broker} left the ISR of {key}", "warning"
    for broker in sorted(set(now["isr"]) - set(before["isr"])):
        yield f"broker {broker} is back in the ISR of {key}", "info"
