"""The discrete-event engine: what happens next, to the nanosecond, on the project's own timer.

The timing wheel knows milliseconds; a simulated network needs finer steps. So the two share the
work: the wheel brings the engine to each millisecond in which something happens, with one task for
all of its events, and a sorted list holds the events of that one millisecond. Between two events
nothing runs and no time passes.

Operation timeouts live on the brokers' own timers, which the engine drives with the same clock: a
millisecond's timeouts come before its events, in the order in which the timers were attached. Two
events at the same nanosecond run in the order in which they were scheduled. Nothing else decides an
order: no hash, no address, no thread.

Ground rules: everything here runs on one thread. Events may schedule events; an exception in an
event ends the run and reaches the caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable
from typing import Any

from timer import Clock, InlineExecutor, SystemTimer, TimerTask, Wake

NS_PER_MS = 1_000_000
NS_PER_US = 1_000
ScheduledEvent = tuple[int, int, Callable[..., object], tuple[Any, ...]]
"""Its time, its number in the order of scheduling, and what to call."""


class Engine(ABC):
    """Runs events in the order of their times."""

    after_each: Callable[[], object] | None = None
    """Called after each event, and after what expired: for who looks what has changed. Set before
    `run`."""

    @abstractmethod
    def now_ns(self) -> int:
        """The time since the start of the run, in nanoseconds."""

    @abstractmethod
    def at(self, time_ns: int, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` at `time_ns`; now, if that has passed. O(log events of that ms).

        Only for the engine's own thread.
        """

    def after(self, delay_ns: int, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` in `delay_ns` nanoseconds."""
        self.at(self.now_ns() + delay_ns, function, *args)

    @abstractmethod
    def run(self, keep_on: Callable[[], bool]) -> None:
        """Run events until there are none or `keep_on`, asked once per millisecond, says no."""

    @abstractmethod
    def close(self) -> None:
        """Drop what is scheduled."""


class EventTask(TimerTask):
    """The wheel's task for all events of one millisecond."""

    __slots__ = ("_bring", "_millisecond")

    def __init__(self, delay_ms: int, bring: Callable[[int], object], millisecond: int) -> None:
        super().__init__(delay_ms)
        self._bring = bring
        self._millisecond = millisecond

    def run(self) -> None:
        self._bring(self._millisecond)


class VirtualClock(Clock):
    """The time of a run, which begins at 0; only the engine moves it, and nobody waits on it."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def wait(self, wake: Wake, until_ns: int) -> bool:
        return False


class VirtualEngine(Engine):
    """Runs events in virtual time: as fast as they can be computed.

    All parts of the simulation share its ``clock``.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.events_run = 0
        self._timer = SystemTimer("simulation", clock=self.clock, executor=InlineExecutor())
        self._driven: list[SystemTimer] = []
        self._sequence = 0
        self._millisecond = 0
        self._by_millisecond: dict[int, list[ScheduledEvent]] = {}
        # In order; those before `_next` have run already.
        self._due: list[ScheduledEvent] = []
        self._next = 0

    def attach(self, timer: SystemTimer) -> None:
        """Drive `timer` too: a running broker's. Its clock must be the engine's."""
        if timer.clock is not self.clock:
            raise ValueError(f"timer {timer.name!r} has another clock than the engine")
        if timer not in self._driven:
            self._driven.append(timer)
            self._driven.sort(key=lambda item: item.name)

    def detach(self, timer: SystemTimer) -> None:
        """Drive `timer` no more: its broker stands still. Attached again, it makes up for it."""
        if timer in self._driven:
            self._driven.remove(timer)

    def now_ns(self) -> int:
        return self.clock.time_ns

    def after(self, delay_ns: int, function: Callable[..., object], *args: Any) -> None:
        self.at(self.clock.time_ns + delay_ns, function, *args)

    def at(self, time_ns: int, function: Callable[..., object], *args: Any) -> None:
        now_ns = self.clock.time_ns
        if time_ns < now_ns:
            time_ns = now_ns
        self._sequence += 1
        millisecond = time_ns // NS_PER_MS
        if millisecond == self._millisecond:
            insort(self._due, (time_ns, self._sequence, function, args), self._next)
            return
        events = self._by_millisecond.get(millisecond)
        if events is None:
            self._by_millisecond[millisecond] = events = []
            # The timer counts from the end of the millisecond that has begun.
            delay_ms = millisecond - -(-now_ns // NS_PER_MS)
            if delay_ms > 0:  # without a delay it would run at once: `_enter` brings the next one
                self._timer.add(EventTask(delay_ms, self._bring, millisecond))
        events.append((time_ns, self._sequence, function, args))

    def run(self, keep_on: Callable[[], bool]) -> None:
        run_due = self._run_due if self.after_each is None else self._run_and_look
        run_due()
        while keep_on():
            next_ms = self._next_millisecond()
            if next_ms is None:
                return
            self._enter(next_ms)
            run_due()

    def close(self) -> None:
        self._timer.close()
        self._by_millisecond.clear()
        self._due.clear()
        self._next = 0

    def _bring(self, millisecond: int) -> None:
        self._due.extend(self._by_millisecond.pop(millisecond))
        self._due.sort()

    def _next_millisecond(self) -> int | None:
        first = self._timer.next_expiration_ms()
        soon = self._millisecond + 1
        if soon in self._by_millisecond and (first is None or soon < first):
            first = soon
        for timer in self._driven:
            candidate = timer.next_expiration_ms()
            if candidate is not None and (first is None or candidate < first):
                first = candidate
        return first

    def _enter(self, clock_ms: int) -> None:
        """Go to a millisecond, expire what is due in it, and put its events in order."""
        if clock_ms > self._millisecond:
            self._millisecond = clock_ms
            self.clock.time_ns = clock_ms * NS_PER_MS
        self._timer.advance_clock(0)
        if self._millisecond in self._by_millisecond:
            self._bring(self._millisecond)
        for timer in list(self._driven):
            expiration_ms = timer.next_expiration_ms()
            if expiration_ms is not None and expiration_ms <= clock_ms:
                timer.advance_clock(0)

    def _run_due(self) -> None:
        due, clock = self._due, self.clock
        index = self._next
        while index < len(due):  # an event may add others of this millisecond
            time_ns, _, function, args = due[index]
            self._next = index = index + 1
            if time_ns > clock.time_ns:
                clock.time_ns = time_ns
            function(*args)
        self.events_run += index
        due.clear()
        self._next = 0

    def _run_and_look(self) -> None:
        """`_run_due`, with a look before the first event and after each: by itself, so that a run
        at which nobody looks pays nothing."""
        due, clock, look = self._due, self.clock, self.after_each
        assert look is not None, "somebody looks"
        look()
        index = self._next
        while index < len(due):
            time_ns, _, function, args = due[index]
            self._next = index = index + 1
            if time_ns > clock.time_ns:
                clock.time_ns = time_ns
            function(*args)
            look()
        self.events_run += index
        due.clear()
        self._next = 0
