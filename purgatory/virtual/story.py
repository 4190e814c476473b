"""The story of a run: the steps of its program, each with the step that woke it.

    with World(seed=3, story=True) as world:
        ...
    print(world.story)

A step is one callback of the loop: a task that runs up to its next await, or a plain function. The
step that made it ready woke it: that step set a result, started the task, set the timer, or sent
the bytes. These causes, with the order of steps within a task, are Lamport's relation
happens-before (1978). A message matters only if it happened before the last step in this sense.
Steps of the program's own lines may matter in any case, since they share variables, and so may
faults. The story has the last of all these.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import linecache
import sysconfig
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, groupby, islice
from os.path import basename, realpath
from pathlib import Path
from typing import Any, Final

from purgatory.virtual.clocks import INITIAL_UPTIME_US, US_PER_S, WorldClock
from purgatory.virtual.history import Event, History, lines_with_apis
from purgatory.virtual.hosts import PROCESS, HostProcess
from purgatory.virtual.network import NODE
from purgatory.virtual.transport import END, Wire, WireEnd, WireLink, WireNetwork

_MAX_STEPS: Final = 50_000
"""The number of steps that are kept, the last ones."""

_MAX_MESSAGES: Final = 20_000
_MAX_KEPT_FAULTS: Final = 1_000
_AROUND: Final = 30
"""The number of steps before a fault, and after it, that are kept however long the run goes on."""

_MAX_AROUND: Final = 3_000

_STORY_STEPS: Final = 30
"""The number of steps in a story's text."""

FAULTS: Final = ("fault", "host", "partition", "heal")
_MESSAGES: Final = ("data", "end", "reset", "lost", "refused", "gave up")
_MAX_FAULTS: Final = 8
_NEAR: Final = 3
"""The number of steps in a story before each of the last faults, and after it; of more than
`_FEW_FAULTS`, one."""

_FEW_FAULTS: Final = 3
_MAX_PERIOD: Final = 4
"""The most times whose steps are taken for a repeat of those before them."""

_MIN_FOLDED: Final = 2

_SOURCE_WIDTH: Final = 70
_MAX_DECORATOR_LINES: Final = 20
_INDENT: Final = " " * 22

_LIBRARIES: Final = tuple(
    {realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_OWN: Final = str(Path(__file__).resolve().parents[1])


@cache
def _is_of_the_program(path: str) -> bool:
    """Whether a file belongs neither to Python, nor to an installed package, nor to this one."""
    real = realpath(path)
    return not (path.startswith("<") or real.startswith((*_LIBRARIES, _OWN)))


Place = tuple[str, int]
"""A file and a line."""

Description = tuple[str, Sequence[Place], Any]


def _own_place(places: Sequence[Place]) -> Place | None:
    """The innermost place in the program's own code."""
    own = [place for place in places if _is_of_the_program(place[0])]
    return own[-1] if own else None


@dataclass(slots=True)
class Step:
    """One callback that ran.

    Args:
        at_us: its time in microseconds since the world began.
        node: the node of the network on which it ran.
        name: the name of its function, and of its task.
        place: the line of the program's own code; None: a step of a library.
        cause: the number of the step that woke it; None: no step did, or it is forgotten.
        before: the number of the last step of the same task.
        is_task: whether it is a step of a task.
        events: the messages and faults in it.
        is_last: whether the task was done after it.
    """

    number: int
    at_us: int
    node: str
    name: str
    place: Place | None
    cause: int | None
    before: int | None
    is_task: bool = False
    events: list[Event] = field(default_factory=list)
    is_last: bool = False


@dataclass(slots=True)
class Message:
    """Bytes, the end of a stream, or a reset, on the way from one node to another.

    Args:
        connection: the name of the wire, as in events.
        kind: "data", "end" or "reset".
        is_encrypted: whether the data is encrypted, and so unreadable.
        sent: the number of the step that sent it.
        ended: the number of the step in which it arrived or was dropped; None: it is in transit.
        outcome: "arrived", "lost" or "dropped".
    """

    connection: str
    source: str
    target: str
    kind: str
    data: bytes
    is_encrypted: bool
    sent: int
    ended: int | None = None
    outcome: str | None = None


class RecordedWire(Wire):
    """A wire that adds its messages to a story. They arrive in the order of their sends."""

    def __init__(
        self, story: Story, network: WireNetwork, label: str, source: WireEnd, target: WireEnd
    ) -> None:
        super().__init__(network, label, source, target)
        self._story = story
        self._messages: deque[Message] = deque()
        self._sends_held = False

    def send_held(self) -> None:
        self._sends_held = True
        super().send_held()
        self._sends_held = False

    def cut(self) -> None:
        super().cut()
        self._end_all()

    def _send(self, item: bytes | Exception, link: WireLink) -> None:
        if not self._sends_held:
            self._record(item)
        super()._send(item, link)

    def _pause_item(self, item: bytes | Exception) -> None:
        self._record(item)
        super()._pause_item(item)
        if self.is_dead:
            self._end_all()

    def _arrive(self) -> None:
        is_lost = isinstance(self._in_transit[0], Exception)
        message = self._messages.popleft()
        super()._arrive()
        if message.outcome is None:
            self._story.end(message, "lost" if is_lost and message.kind == "data" else "arrived")

    def _time_out(self) -> None:
        super()._time_out()
        if self.is_dead:
            self._end_all()

    def _record(self, item: bytes | Exception) -> None:
        data = b"" if isinstance(item, Exception) else item
        kind = "reset" if isinstance(item, Exception) else "end" if item == END else "data"
        message = Message(
            self._label,
            self.source.node,
            self.target.node,
            kind,
            data,
            self.is_encrypted,
            self._story.count,
        )
        self._messages.append(message)
        self._story.add(message)

    def _end_all(self) -> None:
        for message in self._messages:
            if message.outcome is None:
                self._story.end(message, "dropped")


class Story:
    """Records the steps of a world.

    Args:
        describe: returns the name of a handle's function, the places of its frames with the
            outermost first, and its task, if any.
        waiting: returns the same for each task that is not done, dead ones included.
    """

    def __init__(
        self,
        clock: WorldClock,
        history: History,
        describe: Callable[[Any], Description],
        waiting: Callable[[], Iterable[Description]],
    ) -> None:
        self._clock = clock
        self._history = history
        self._describe = describe
        self._waiting = waiting
        self._steps: deque[Step] = deque(maxlen=_MAX_STEPS)
        self._around: dict[int, Step] = {}
        self._after_fault = 0
        """How many more steps are kept for the last fault."""
        self._task: Any = None
        self.messages: deque[Message] = deque(maxlen=_MAX_MESSAGES)
        """The last messages, in the order in which they were sent."""
        self.faults: deque[tuple[int, Event]] = deque(maxlen=_MAX_KEPT_FAULTS)
        """The last faults, each with the number of its step."""
        self.count = 0
        """The number of the current step."""
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

    def set_cause(self, handle: Any) -> Any:
        """Record that the current step made a callback ready, or set its timer; return it."""
        if hasattr(type(handle), "cause"):
            handle.cause = self.count or None
        return handle

    def _begin_step(self, handle: Any) -> None:
        name, places, task = self._describe(handle)
        self.count += 1
        self._steps.append(
            Step(
                self.count,
                self._clock.now_us - INITIAL_UPTIME_US,
                handle._context.get(NODE, "client"),
                name,
                _own_place(places),
                getattr(handle, "cause", None),
                getattr(task, "last_step", None),
                task is not None,
            )
        )
        if self._after_fault:
            self._after_fault -= 1
            self._keep(self._steps[-1])
        self._task = task
        if task is not None:
            task.last_step = self.count

    def _end_step(self) -> None:
        if not self._steps:
            self._events = self._history.events
            return
        step = self._steps[-1]
        if self._task is not None:
            step.is_last = self._task.done()
            self._task = None
        if self._history.events != self._events:
            new = list(self._history.last(self._history.events - self._events))
            self._events = self._history.events
            step.events += new
            faults = [(step.number, event) for event in new if event.kind in FAULTS]
            if faults:
                self.faults += faults
                self._after_fault = _AROUND
                for kept in reversed(list(islice(reversed(self._steps), _AROUND))):
                    self._keep(kept)

    def _keep(self, step: Step) -> None:
        self._around[step.number] = step
        if len(self._around) > _MAX_AROUND:
            del self._around[next(iter(self._around))]

    def add(self, message: Message) -> None:
        """Record that a message is sent."""
        self.messages.append(message)
        self._on(message.source)

    def end(self, message: Message, outcome: str) -> None:
        """Record the outcome of a message."""
        message.ended, message.outcome = self.count, outcome
        if outcome == "arrived":
            self._on(message.target)

    def _on(self, node: str) -> None:
        """Set the node of a broker's step: callbacks of brokers have no node in their context."""
        if self._steps and self._steps[-1].place is None:
            self._steps[-1].node = node

    # Methods for views.

    def steps(self) -> Mapping[int, Step]:
        """Return the last steps, and those around the last faults, by their numbers."""
        self._end_step()
        first = self._steps[0].number if self._steps else 0
        early = {number: step for number, step in self._around.items() if number < first}
        return {**early, **{step.number: step for step in self._steps}}

    def around_faults(self) -> Set[int]:
        """Return the numbers of the steps around the last faults."""
        return self._around.keys()

    def waits(self) -> Iterator[tuple[Step, str, Place | None]]:
        """Yield each waiting task's last step, its name, and the line where the program waits."""
        kept = self.steps()
        for name, places, task in self._waiting():
            step = kept.get(getattr(task, "last_step", 0))
            if step is not None:
                yield step, name, _own_place(places)

    # The text.

    def text(self, most: int = _STORY_STEPS) -> str:
        """Return the last steps that matter, each with its line, and the step that woke it.

        Args:
            most: the limit of steps.
        """
        kept = self.steps()
        if not kept:
            return "no step was taken"
        past = past_of(kept, self.count)
        shown: list[Step] = []
        alias: dict[int, Step] = {}
        for step in kept.values():
            matters = step.place or has_events(step, FAULTS)
            if not matters and not (step.number in past and has_events(step, _MESSAGES)):
                continue
            if not (shown and _goes_on(shown[-1], step)):
                shown.append(step)
            alias[step.number] = shown[-1]
        shown, repeats = _folded(shown)
        places = {step.number: place for place, step in enumerate(shown)}
        shown = _selected(shown, most)
        index = {step.number: number for number, step in enumerate(shown, 1)}
        apis = iter(lines_with_apis([event for step in shown for event in step.events]))
        lines = [f"{len(shown)} of {self.count:,} steps, each with the step that woke it (<-)"]
        place = -1
        for step in shown:
            if places[step.number] != place + 1:
                lines.append(f"{_INDENT}...")
            elif step.number in repeats:
                lines.append(f"{_INDENT}{repeats[step.number]}")
            place = places[step.number]
            cause = step.cause
            while cause is not None and cause in kept and cause not in alias:
                cause = kept[cause].cause  # past steps of libraries alone
            lines += _step_lines(step, index, alias.get(cause or 0), apis)
        return "\n".join(lines)


def _folded(steps: Sequence[Step]) -> tuple[list[Step], dict[int, str]]:
    """The steps without repeats, of which the first and the last stay: O(steps).

    Steps of one time have no order of their own, so that a repeat is one of whole times.

    Returns:
        The steps, and by the number of the step after them what is left out.
    """
    times = [list(group) for _, group in groupby(steps, key=lambda step: step.at_us)]
    traits = [Counter(map(_traits, group)) for group in times]
    kept: list[Step] = []
    repeats: dict[int, str] = {}
    begin = 0
    while begin < len(times):
        period, folded = _repeats_at(traits, begin)
        first = list(chain.from_iterable(times[begin : begin + period]))
        kept += first
        begin += period
        if folded:
            begin += period * folded
            these = f"these {len(first)} steps " if len(first) > 1 else ""
            until = f"until {times[begin - 1][0].at_us / US_PER_S:g} s"
            repeats[times[begin][0].number] = f"... {these}{folded:,} times more, {until}"
            kept += chain.from_iterable(times[begin : begin + period])
            begin += period
    return kept, repeats


def _repeats_at(traits: Sequence[Any], begin: int) -> tuple[int, int]:
    """The shortest period that is repeated from here, and how often between first and last."""
    for period in range(1, _MAX_PERIOD + 1):
        end = begin + period
        while end < len(traits) and traits[end] == traits[end - period]:
            end += 1
        folded = (end - begin) // period - 2
        if folded >= _MIN_FOLDED:
            return period, folded
    return 1, 0


def _traits(step: Step) -> Hashable:
    """The key that a step shares with its repeats; a fault has none."""
    if has_events(step, FAULTS):
        return step.number
    events = [
        # A request begins with its API; the number of a response is another each time.
        (kind, text, len(data), data[4:6] if " > broker" in text else b"")
        for _, kind, text, data in step.events
    ]
    return step.node, step.name, step.place, *events


def _selected(steps: Sequence[Step], most: int) -> list[Step]:
    """The last steps, and those around the last faults."""
    faults = [place for place, step in enumerate(steps) if has_events(step, FAULTS)][-_MAX_FAULTS:]
    most_near = _NEAR if len(faults) <= _FEW_FAULTS else 1
    around = {near for place in faults for near in range(place - most_near, place + most_near + 1)}
    places = {place for place in around if 0 <= place < len(steps)}
    for place in reversed(range(len(steps))):
        if len(places) >= most:
            break
        places.add(place)
    return [steps[place] for place in sorted(places)]


def _goes_on(before: Step, step: Step) -> bool:
    """Whether a step continues the wait of the one before it, at the same line."""
    same = (before.name, before.node, before.place, before.at_us)
    return same == (step.name, step.node, step.place, step.at_us) and not step.events


def past_of(kept: Mapping[int, Step], last: int) -> set[int]:
    """Return the numbers of the steps that happened before a step, and its own."""
    past: set[int] = set()
    waiting: list[int | None] = [last]
    while waiting:
        number = waiting.pop()
        if number is not None and number in kept and number not in past:
            past.add(number)
            waiting += [kept[number].cause, kept[number].before]
    return past


def has_events(step: Step, kinds: Sequence[str]) -> bool:
    """Whether a step has an event of these kinds."""
    return any(event.kind in kinds for event in step.events)


def _step_lines(
    step: Step,
    index: Mapping[int, int],
    cause: Step | None,
    apis: Iterator[str],
) -> Iterator[str]:
    event_texts = [" ".join(next(apis).split()[2:]) for _ in step.events]
    texts = [
        text
        for event, text in zip(step.events, event_texts, strict=True)
        if event.kind in (*FAULTS, *_MESSAGES, "schedule")
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
    line, source = source_line(*step.place)
    yield f"{begin}{node}{step.name} at {basename(step.place[0])}:{line}{woken}"
    yield f"{_INDENT}{source}"
    for text in texts:
        yield f"{_INDENT}({text})"


def source_line(path: str, line: int) -> tuple[int, str]:
    """Return a line, or for decorators the line of their function, and its text."""
    source = linecache.getline(path, line).strip()
    if source.startswith("@"):
        for number in range(line + 1, line + _MAX_DECORATOR_LINES):
            text = linecache.getline(path, number).strip()
            if text.startswith(("async def ", "def ")):
                line, source = number, text
                break
    return line, source if len(source) <= _SOURCE_WIDTH else source[: _SOURCE_WIDTH - 3] + "..."
