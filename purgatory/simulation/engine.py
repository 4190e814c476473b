"""The discrete-event engine: it orders events to the nanosecond, on the project's own timer.

The timing wheel counts milliseconds; a simulated network needs finer steps. The wheel therefore
finds the next millisecond with events, by one task for all of them, and a sorted list holds the
events of that millisecond. Between two events nothing runs and no time passes.

Operation timeouts live on the brokers' own timers, which the engine drives with the same clock: a
millisecond's timeouts come before its events, in the order in which the timers were attached. Two
events at the same nanosecond run in the order in which they were scheduled. Nothing else determines
the order: no hash, address or thread.

Ground rules: everything here runs on one thread. Events may schedule events; an exception in an
event ends the run and reaches the caller.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Any

from timer import Clock, InlineExecutor, SystemTimer, TimerTask
from timer.wake import Wake

NS_PER_MS = 1_000_000
NS_PER_US = 1_000
ScheduledEvent = tuple[int, int, Callable[..., object], tuple[Any, ...]]
"""Time, sequence number, function and arguments."""


class _EventTask(TimerTask):
    """The wheel's task for all events of one millisecond."""

    __slots__ = ("_load_events", "_millisecond")

    def __init__(self, delay_ms: int, load: Callable[[int], object], millisecond: int) -> None:
        super().__init__(delay_ms)
        self._load_events = load
        self._millisecond = millisecond

    def run(self) -> None:
        self._load_events(self._millisecond)


class VirtualClock(Clock):
    """The time of a run, which begins at 0; only the engine advances it."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def wait(self, wake: Wake, until_ns: int) -> bool:
        return False


class Engine:
    """Runs events in the order of their times, in virtual time, without waiting.

    All parts of the simulation share its ``clock``.
    """

    on_event: Callable[[], object] | None = None
    """Called after each event, and after expirations; observes changes. Set before `run`."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.events_run = 0
        self._timer = SystemTimer("simulation", clock=self.clock, executor=InlineExecutor())
        self._timers: list[SystemTimer] = []
        self._sequence = 0
        self._millisecond = 0
        self._by_millisecond: dict[int, list[ScheduledEvent]] = {}
        # Sorted; the events before `_next` have run.
        self._due: list[ScheduledEvent] = []
        self._next = 0

    def attach(self, timer: SystemTimer) -> None:
        """Drive the timer of a running broker, too. Its clock must be the engine's."""
        if timer.clock is not self.clock:
            raise ValueError(f"timer {timer.name!r} has another clock than the engine")
        if timer not in self._timers:
            self._timers.append(timer)
            self._timers.sort(key=lambda item: item.name)

    def unregister(self, timer: SystemTimer) -> None:
        """Stop driving a timer; once attached again, it catches up."""
        if timer in self._timers:
            self._timers.remove(timer)

    def now_ns(self) -> int:
        """The time since the start of the run, in nanoseconds."""
        return self.clock.time_ns

    def call_after(self, delay_ns: int, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` in `delay_ns` nanoseconds."""
        self.call_at(self.clock.time_ns + delay_ns, function, *args)

    def call_at(self, time_ns: int, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` at `time_ns`; at once if that has passed.

        O(log events of the millisecond).
        """
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
            if delay_ms > 0:  # a task without a delay would run at once; `_advance_to` loads these
                self._timer.add(_EventTask(delay_ms, self._load_events, millisecond))
        events.append((time_ns, self._sequence, function, args))

    def run(self, keep_running: Callable[[], bool]) -> None:
        """Run events until none is left or `keep_running` (once per millisecond) is False."""
        run_due = self._run_due if self.on_event is None else self._run_due_observed
        run_due()
        while keep_running():
            next_ms = self._next_millisecond()
            if next_ms is None:
                return
            self._advance_to(next_ms)
            run_due()

    def close(self) -> None:
        """Discard all events."""
        self._timer.close()
        self._by_millisecond.clear()
        self._due.clear()
        self._next = 0

    def _load_events(self, millisecond: int) -> None:
        self._due.extend(self._by_millisecond.pop(millisecond))
        self._due.sort()

    def _next_millisecond(self) -> int | None:
        first = self._timer.next_expiration_ms()
        next_ms = self._millisecond + 1
        if next_ms in self._by_millisecond and (first is None or next_ms < first):
            first = next_ms
        for timer in self._timers:
            candidate = timer.next_expiration_ms()
            if candidate is not None and (first is None or candidate < first):
                first = candidate
        return first

    def _advance_to(self, clock_ms: int) -> None:
        """Go to a millisecond, expire what is due in it, and put its events in order."""
        if clock_ms > self._millisecond:
            self._millisecond = clock_ms
            self.clock.time_ns = clock_ms * NS_PER_MS
        self._timer.advance_clock(0)
        if self._millisecond in self._by_millisecond:
            self._load_events(self._millisecond)
        for timer in list(self._timers):
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

    def _run_due_observed(self) -> None:
        """A copy of `_run_due` that calls `on_event`, so that runs without it pay nothing."""
        due, clock, observe = self._due, self.clock, self.on_event
        assert observe is not None, "`run` chose this method"
        observe()
        index = self._next
        while index < len(due):
            time_ns, _, function, args = due[index]
            self._next = index = index + 1
            if time_ns > clock.time_ns:
                clock.time_ns = time_ns
            function(*args)
            observe()
        self.events_run += index
        due.clear()
        self._next = 0
