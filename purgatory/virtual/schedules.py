"""Schedules: which of the ready callbacks runs next.

asyncio and, by default, a world run callbacks first in, first out. A *choice* is a moment with more
than one candidate. A schedule counts its choices; a choice other than the first callback is a
*deviation*. The deviations, such as ``12:1,40:2`` (at choice 12 the callback number 1, counted from
0, at choice 40 number 2), are a schedule too, which repeats the run.

Candidates are the steps of each task, and each plain callback. Callbacks of one object, such as a
protocol's ``data_received`` and ``connection_lost``, keep their order: asyncio promises it, and no
program works without it. asyncio's callbacks that only make a task ready are no candidates; the
task is one.

Ground rules: a schedule belongs to the loop of one world.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import futures, tasks
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType
from typing import Any, Final

from purgatory.virtual.errors import WorldError

FIFO: Final = "fifo"
MIXED: Final = "mixed"
RECORDED_FIFO: Final = "0:0"
"""A schedule that never deviates, but counts its choices, which `FIFO` does not."""

WINDOW: Final = 64
"""The most candidates of a choice, whose cost is linear in them."""

_NO_CHOICE: Final = frozenset(
    code
    for function in (futures._set_result_unless_cancelled, asyncio.gather, tasks._wait)  # type: ignore[attr-defined]
    for code in (function.__code__, *function.__code__.co_consts)
    if isinstance(code, CodeType)
)
"""asyncio's own callbacks that make a task ready that waits for a time, or for several futures."""

_STICKY_SHARE: Final = 7 / 8
_GOES_ON_SHARE: Final = 1 / 2
_PCT_DEPTH: Final = 3
_MAX_DEPTH: Final = 100
_PCT_CHOICES: Final = 10_000
_MAX_TURNS: Final = 100
"""The most times in a row that a task goes first while others wait, as it may spin for ever."""


class Schedule:
    """First in, first out, but for some deviations. Records its choices.

    Args:
        deviations: which callback to take at a choice, where it is not the first. A number that is
            too high takes the last one.
    """

    def __init__(self, deviations: Mapping[int, int] | None = None) -> None:
        self.deviations: dict[int, int] = {}
        """The number of the callback by the choice, for choices other than the first callback."""
        self.widths: list[int] = []
        """The number of candidates of each choice."""
        self.planned = deviations or {}

    def pop(self, ready: deque[Any]) -> Any:
        """Remove and return the callback that runs next. O(callbacks that are ready)."""
        if len(ready) == 1 or getattr(ready[0]._callback, "__code__", None) in _NO_CHOICE:
            return ready.popleft()
        first: dict[int, tuple[int, Any]] = {}
        for place, handle in enumerate(ready):
            if handle._cancelled:
                continue
            owner = owner_of(handle)
            if id(owner) not in first:
                first[id(owner)] = place, owner
                if len(first) == WINDOW:
                    break
        if len(first) < 2:
            return ready.popleft()
        candidates = list(first.values())
        index = self._choose([owner for _, owner in candidates])
        if index:
            self.deviations[len(self.widths)] = index
        self.widths.append(len(candidates))
        place = candidates[index][0]
        chosen = ready[place]
        del ready[place]
        return chosen

    def _choose(self, owners: Sequence[Any]) -> int:
        """Return the index of the owner, of two or more, whose callback runs next."""
        return min(self.planned.get(len(self.widths), 0), len(owners) - 1)


def owner_of(handle: Any) -> Any:
    """Return the owner, whose callbacks keep their order: a task, an object, or the handle."""
    owner = getattr(unwrapped(handle._callback), "__self__", None)
    return handle if owner is None else owner


def unwrapped(callback: Any) -> Any:
    """Return the function that nested partials call."""
    while isinstance(callback, partial):
        callback = callback.func
    return callback


class RandomSchedule(Schedule):
    """Any candidate, with the same probability."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def _choose(self, owners: Sequence[Any]) -> int:
        return self._rng.randrange(len(owners))


class StickySchedule(RandomSchedule):
    """Any candidate, but with even odds the owner that was chosen last.

    Most bugs need several steps of one task between two of another, which uniform choices rarely
    give.
    """

    _last: Any = None

    def _choose(self, owners: Sequence[Any]) -> int:
        if self._rng.random() < _GOES_ON_SHARE:
            for index, owner in enumerate(owners):
                if owner is self._last:
                    return index
        index = super()._choose(owners)
        self._last = owners[index]
        return index


class PCTSchedule(RandomSchedule):
    """Probabilistic concurrency testing (Burckhardt and others, ASPLOS 2010).

    The owner of the highest priority runs; at ``depth - 1`` random choices, the owner that would
    run next falls below all others. The schedule finds bugs that need a task to be slow for long,
    which a random order hardly ever does. The paper draws these choices uniformly from a known
    number of them. Here they are spread by order of magnitude, for short runs and long ones.
    """

    def __init__(self, rng: random.Random, depth: int) -> None:
        super().__init__(rng)
        self._changes = {int(_PCT_CHOICES ** rng.random()) for _ in range(depth - 1)}
        self._lowest = 0.0
        self._last: Any = None
        self._turns = 0

    def _choose(self, owners: Sequence[Any]) -> int:
        index = self._highest(owners)
        self._turns = self._turns + 1 if owners[index] is self._last else 0
        if len(self.widths) + 1 in self._changes or self._turns > _MAX_TURNS:
            self._turns = 0
            self._lowest -= 1
            _set_priority(owners[index], self._lowest)
            index = self._highest(owners)
        self._last = owners[index]
        return index

    def _priority(self, owner: Any) -> float:
        """Return the priority of a task or a handle; others have a new one each time."""
        priority: float | None = None
        if isinstance(owner, _WITH_PRIORITY):
            priority = getattr(owner, "priority", None)
        if priority is None:
            priority = self._rng.random()
            _set_priority(owner, priority)
        return priority

    def _highest(self, owners: Sequence[Any]) -> int:
        priorities = [self._priority(owner) for owner in owners]
        return priorities.index(max(priorities))


_WITH_PRIORITY: Final = (asyncio.Task, asyncio.Handle)


def _set_priority(owner: Any, priority: float) -> None:
    if isinstance(owner, _WITH_PRIORITY):
        with suppress(AttributeError):  # a task that is not a world's own
            owner.priority = priority  # type: ignore[union-attr]


def parse_schedule(text: str, rng: random.Random | None) -> Schedule | None:
    """Return the schedule that a text names, None for "fifo".

    "random"; "sticky"; "pct" or "pct:3"; "mixed", seven times of eight sticky, else pct of a depth
    up to 4; or deviations, as in "12:1,40:2".

    Args:
        rng: draws the choices; None: the text is only checked.

    Raises:
        WorldError: the text names no schedule.
    """
    rng = rng or random.Random()
    if not isinstance(text, str):
        raise WorldError(f"a schedule is a text such as 'random', not {text!r}")
    if text == FIFO:
        return None
    if text == MIXED:
        if rng.random() < _STICKY_SHARE:
            return StickySchedule(rng)
        return PCTSchedule(rng, rng.randint(1, 4))
    if text == "random":
        return RandomSchedule(rng)
    if text == "sticky":
        return StickySchedule(rng)
    name, colon, depth = text.partition(":")
    if name == "pct" and (not colon or (depth.isdecimal() and 1 <= int(depth) <= _MAX_DEPTH)):
        return PCTSchedule(rng, int(depth) if colon else _PCT_DEPTH)
    deviations: dict[int, int] = {}
    for item in text.split(","):
        choice, colon, index = item.partition(":")
        if not (colon and choice.isdecimal() and index.isdecimal()):
            raise WorldError(
                f"the schedule {text!r} is none of fifo, mixed, random, sticky, pct, "
                f"pct:DEPTH (1 to {_MAX_DEPTH}), or deviations from first in, first out, such as "
                "12:1,40:2 (the choice, and the number of the callback that it takes)"
            )
        deviations[int(choice)] = int(index)
    return Schedule(deviations)


def format_deviations(deviations: Mapping[int, int]) -> str:
    """Return the text from which `parse_schedule` makes these deviations."""
    return ",".join(f"{choice}:{index}" for choice, index in sorted(deviations.items())) or FIFO


class ExhaustiveSearch:
    """All schedules with a limited number of deviations, those with fewer first.

        search = ExhaustiveSearch(2)
        for deviations in search:
            ...  # run
            search.ran(schedule.widths)

    Delay-bounded search (Emmi and others, POPL 2011); the bound is on deviations, not on delays.

    Args:
        most: the most deviations of a schedule.
        limit: the most schedules to run, and so to keep in memory.
    """

    def __init__(self, most: int, limit: int = 100_000) -> None:
        self.most = most
        self.limit = limit
        self.is_limited = False
        """Whether there were more schedules than the limit."""
        self.count = 0
        """The number of schedules that ran."""
        self.is_complete = True
        """Whether no schedule has more deviations than the bound, once all schedules ran."""
        self.has_full_window = False
        """Whether a choice had `WINDOW` candidates, so that more may have been ready."""
        self._widths: Sequence[int] = ()

    def ran(self, widths: Sequence[int]) -> None:
        """Set the choices of the last schedule, from which further schedules deviate."""
        self.count += 1
        self._widths = widths
        self.has_full_window = self.has_full_window or WINDOW in widths

    def __iter__(self) -> Generator[Mapping[int, int], None, None]:
        level: list[dict[int, int]] = [{}]
        for number in range(self.most + 1):
            following: list[dict[int, int]] = []
            for deviations in level:
                if self.count == self.limit:
                    self.is_limited = True
                    return
                yield deviations
                for more in self._with_one_more(deviations):
                    if number == self.most:
                        self.is_complete = False
                        break
                    if len(following) > self.limit:
                        break
                    following.append(more)
            level = following

    def _with_one_more(self, deviations: dict[int, int]) -> Iterator[dict[int, int]]:
        """The schedules with one more deviation, one by one: there may be millions."""
        begin = max(deviations, default=-1) + 1
        for choice in range(begin, len(self._widths)):
            for index in range(1, self._widths[choice]):
                yield {**deviations, choice: index}
