"""The story of a run: which steps its program took, and what woke each of them.

    with World(seed=3, story=True) as world:
        ...
    print(world.story)

A step is one callback of the loop: a task that goes on up to its next await, or a plain function.
It is woken by the step that made it ready: the one that set a result, started the task, set the
timer, or sent the bytes. Together with the order of steps within a task that is the relation that
Lamport called happens-before (1978). A message matters to the last step only if it happened before
that in this sense. Steps of the program's own lines may matter in any case, since they share
variables, and so may faults. Of all these the story has the last ones.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import linecache
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from os.path import basename, realpath
from pathlib import Path
from typing import Any, Final

from purgatory.virtual.clocks import INITIAL_UPTIME_US, US_PER_S, WorldClock
from purgatory.virtual.history import Event, History, lines_with_apis
from purgatory.virtual.hosts import PROCESS, HostProcess
from purgatory.virtual.network import NODE

_MAX_STEPS: Final = 50_000
"""How many steps are kept, the last ones."""

_STORY_STEPS: Final = 30
"""How many of them a story has."""

_FAULTS: Final = ("fault", "host", "partition", "heal")
_MESSAGES: Final = ("data", "end", "reset", "lost", "refused", "gave up")
_MAX_FAULTS: Final = 3
_NEAR: Final = 3
"""How many steps a story has before each of the last faults, and after it."""

_SOURCE_WIDTH: Final = 70
_MAX_DECORATOR_LINES: Final = 20
_INDENT: Final = " " * 22

_LIBRARIES: Final = tuple(
    {realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_OWN: Final = str(Path(__file__).resolve().parents[1])


@cache
def _is_of_the_program(path: str) -> bool:
    """Whether a file is neither of Python, nor of an installed package, nor of this one."""
    real = realpath(path)
    return not (path.startswith("<") or real.startswith((*_LIBRARIES, _OWN)))


Place = tuple[str, int]
"""A file and a line."""


@dataclass(slots=True)
class Step:
    """One callback that ran.

    Args:
        at_us: in microseconds since the world began.
        node: of the network, on which it ran.
        name: of its function, and of its task.
        place: where the program's own code went on; None: it was a library's.
        cause: the number of the step that woke it; None: there is none, or it is forgotten.
        before: the number of the last step of the same task.
        events: what was sent, arrived, and went wrong in it.
    """

    number: int
    at_us: int
    node: str
    name: str
    place: Place | None
    cause: int | None
    before: int | None
    events: list[Event] = field(default_factory=list)


class Story:
    """Records the steps of a world.

    Args:
        describe: returns the name of what a handle runs, the places of its frames with the
            outermost first, and its task if it is one.
    """

    def __init__(
        self,
        clock: WorldClock,
        history: History,
        describe: Callable[[Any], tuple[str, Sequence[Place], Any]],
    ) -> None:
        self._clock = clock
        self._history = history
        self._describe = describe
        self._steps: deque[Step] = deque(maxlen=_MAX_STEPS)
        self._count = 0
        self._events = history.events

    # Recording.

    def follow(self, take: Callable[[], Any], stopped: Set[HostProcess]) -> Callable[[], Any]:
        """Return a function that takes the next callback, and records it.

        Args:
            stopped: the processes whose callbacks the loop does not run.
        """

        def take_and_record() -> Any:
            self._end_step()
            handle = take()
            if not handle._cancelled and handle._context.get(PROCESS) not in stopped:
                self._begin_step(handle)
            return handle

        return take_and_record

    def made(self, handle: Any) -> Any:
        """Record which step made a callback ready, or set its timer; return it."""
        if hasattr(type(handle), "cause"):
            handle.cause = self._count or None
        return handle

    def _begin_step(self, handle: Any) -> None:
        name, places, task = self._describe(handle)
        own = [place for place in places if _is_of_the_program(place[0])]
        self._count += 1
        self._steps.append(
            Step(
                self._count,
                self._clock.now_us - INITIAL_UPTIME_US,
                handle._context.get(NODE, "client"),
                name,
                own[-1] if own else None,
                getattr(handle, "cause", None),
                getattr(task, "last_step", None),
            )
        )
        if task is not None:
            task.last_step = self._count

    def _end_step(self) -> None:
        if self._history.events != self._events and self._steps:
            new = self._history.events - self._events
            self._steps[-1].events += self._history.last(new)
        self._events = self._history.events

    # Telling.

    def text(self, most: int = _STORY_STEPS) -> str:
        """Return the last steps that matter, each at the line where it went on, and what woke it.

        Args:
            most: how many, at most.
        """
        self._end_step()
        kept = {step.number: step for step in self._steps}
        if not kept:
            return "no step was taken"
        past = _past(kept, self._count)
        shown: list[Step] = []
        alias: dict[int, Step] = {}
        for step in kept.values():
            matters = step.place or _has(step, _FAULTS)
            if not matters and not (step.number in past and _has(step, _MESSAGES)):
                continue
            if not (shown and _goes_on(shown[-1], step)):
                shown.append(step)
            alias[step.number] = shown[-1]
        places = {step.number: place for place, step in enumerate(shown)}
        shown = _selected(shown, most)
        index = {step.number: number for number, step in enumerate(shown, 1)}
        apis = iter(lines_with_apis([event for step in shown for event in step.events]))
        lines = [f"{len(shown)} of {self._count:,} steps, each with that which woke it (<-)"]
        place = -1
        for step in shown:
            if places[step.number] != place + 1:
                lines.append(f"{_INDENT}...")
            place = places[step.number]
            cause = step.cause
            while cause is not None and cause in kept and cause not in alias:
                cause = kept[cause].cause  # past what only libraries did
            lines += _step_lines(step, index, alias.get(cause or 0), apis)
        return "\n".join(lines)


def _selected(steps: Sequence[Step], most: int) -> list[Step]:
    """The last steps, and those around the last faults."""
    faults = [place for place, step in enumerate(steps) if _has(step, _FAULTS)][-_MAX_FAULTS:]
    around = {near for place in faults for near in range(place - _NEAR, place + _NEAR + 1)}
    places = {place for place in around if 0 <= place < len(steps)}
    for place in reversed(range(len(steps))):
        if len(places) >= most:
            break
        places.add(place)
    return [steps[place] for place in sorted(places)]


def _goes_on(before: Step, step: Step) -> bool:
    """Whether a step waits once more for what the one before it did, at the same line."""
    same = (before.name, before.node, before.place, before.at_us)
    return same == (step.name, step.node, step.place, step.at_us) and not step.events


def _past(kept: Mapping[int, Step], last: int) -> set[int]:
    """The numbers of the steps that happened before one, and its own."""
    past: set[int] = set()
    waiting: list[int | None] = [last]
    while waiting:
        number = waiting.pop()
        if number is not None and number in kept and number not in past:
            past.add(number)
            waiting += [kept[number].cause, kept[number].before]
    return past


def _has(step: Step, kinds: Sequence[str]) -> bool:
    return any(event.kind in kinds for event in step.events)


def _step_lines(
    step: Step,
    index: Mapping[int, int],
    cause: Step | None,
    apis: Iterator[str],
) -> Iterator[str]:
    told = [" ".join(next(apis).split()[2:]) for _ in step.events]
    texts = [
        text
        for event, text in zip(step.events, told, strict=True)
        if event.kind in (*_FAULTS, *_MESSAGES, "schedule")
    ]
    woken = ""
    if cause is not None and cause.number in index:
        after_us = step.at_us - cause.at_us
        unit = f"{after_us / 1_000:g} ms" if after_us < US_PER_S else f"{after_us / US_PER_S:g} s"
        later = f", {unit} later" if after_us else ""
        woken = f"  <- {index[cause.number]}{later}"
    begin = f"{index[step.number]:4}  {step.at_us / US_PER_S:12.6f} s  "
    if step.place is None:
        yield f"{begin}{'; '.join(texts)}{woken}"
        return
    node = "" if step.node == "client" else f"{step.node}: "
    line, source = _source(*step.place)
    yield f"{begin}{node}{step.name} at {basename(step.place[0])}:{line}{woken}"
    yield f"{_INDENT}{source}"
    for text in texts:
        yield f"{_INDENT}({text})"


def _source(path: str, line: int) -> tuple[int, str]:
    """A line, or where decorators begin the one of their function, and its text."""
    source = linecache.getline(path, line).strip()
    if source.startswith("@"):
        for number in range(line + 1, line + _MAX_DECORATOR_LINES):
            text = linecache.getline(path, number).strip()
            if text.startswith(("async def ", "def ")):
                line, source = number, text
                break
    return line, source if len(source) <= _SOURCE_WIDTH else source[: _SOURCE_WIDTH - 3] + "..."
