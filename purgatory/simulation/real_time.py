"""The same simulation by the machine's clock, with timers and reapers on threads of their own.

The clients, the network and the controller run as in virtual time: their events come from the
engine, on the thread that called `run`. Only that each event now waits for its time. The brokers'
purgatories are as in a server: each has its timer, and a reaper thread that drives it. Timeouts
therefore fire on other threads; what they answer is handed over to the engine's thread.

A broker that is paused holds back its answers, but its reapers cannot be stopped: its timeouts are
counted when they fire, not at the end of the pause, as in virtual time.

Ground rules: the `_Calls` are the one thing that threads share. The heap and everything that events
touch belong to the engine's thread.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from purgatory import DelayedOperationPurgatory
from purgatory.simulation.engine import NS_PER_MS, Engine, EventTask, ScheduledEvent
from purgatory.simulation.operation_recorder import OperationRecorder
from purgatory.simulation.runtime import PURGATORIES, Process, Runtime
from timer import SystemClock, SystemTimer, Wake

_LONGEST_WAIT_S = 0.1
_DRIVE_MS = 200


def _nobody_looks() -> None:
    """Stand for who would look."""


class _Calls:
    """What the engine's thread is to call for others; the executor of the timers.

    A deque and a wake, since a queue's ``get`` with a short timeout may wait for ever.
    """

    def __init__(self) -> None:
        self._due: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._wake = Wake()

    def submit(self, function: Callable[..., Any], /, *args: Any) -> None:
        """Have the engine's thread call `function(*args)`; from any thread."""
        self._due.append((function, args))
        self._wake.set()

    def make_all(self, wait_s: float) -> None:
        """Wait at most `wait_s` for a call, if there is none, then make all there are."""
        if not self._due:
            self._wake.wait(wait_s)
        while self._due:
            function, args = self._due.popleft()
            function(*args)


class RealTimeEngine(Engine):
    """Runs each event when the machine's clock says so.

    The wheel's own thread brings the events of each millisecond when it begins; within it the
    engine waits for each one's nanosecond.
    """

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.thread_id = threading.get_ident()
        # A whole millisecond, as the timers count: what is due lies in the bucket it lay in.
        self._origin_ns = self.clock.now_ns() // NS_PER_MS * NS_PER_MS
        self._calls = _Calls()
        self._timer = SystemTimer("simulation", clock=self.clock, executor=self._calls)
        self._by_millisecond: dict[int, list[ScheduledEvent]] = {}
        self._due: list[ScheduledEvent] = []
        self._sequence = 0
        self._closed = False
        self._driver = threading.Thread(target=self._drive, name="simulation-timer", daemon=True)

    def now_ns(self) -> int:
        return self.clock.now_ns() - self._origin_ns

    def at(self, time_ns: int, function: Callable[..., object], *args: Any) -> None:
        self._sequence += 1
        event = (time_ns, self._sequence, function, args)
        # In milliseconds of the clock, which the wheel counts in; its origin lies between two.
        clock_ms = (time_ns + self._origin_ns) // NS_PER_MS
        now_ns = self.clock.now_ns()
        if clock_ms <= now_ns // NS_PER_MS:
            heapq.heappush(self._due, event)
            return
        events = self._by_millisecond.get(clock_ms)
        if events is None:
            self._by_millisecond[clock_ms] = events = []
            self._timer.add(EventTask(clock_ms + -now_ns // NS_PER_MS, self._bring, clock_ms))
        events.append(event)

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Have the engine's thread call `function(*args)`; callable from any thread."""
        self._calls.submit(function, *args)

    def run(self, keep_on: Callable[[], bool]) -> None:
        self._driver.start()
        look = self.after_each or _nobody_looks
        look()
        while keep_on():
            wait_s = _LONGEST_WAIT_S
            if self._due:
                wait_s = min(wait_s, (self._due[0][0] - self.now_ns()) / 1e9)
            self._calls.make_all(wait_s)
            look()
            while self._due and self._due[0][0] <= self.now_ns():
                _, _, function, args = heapq.heappop(self._due)
                function(*args)
                look()

    def close(self) -> None:
        self._closed = True
        self._timer.close()
        if self._driver.is_alive():
            self._driver.join()

    def settle(self) -> None:
        """Take what other threads handed over."""
        self._calls.make_all(0)

    def _bring(self, clock_ms: int) -> None:
        for event in self._by_millisecond.pop(clock_ms):
            heapq.heappush(self._due, event)

    def _drive(self) -> None:
        while not self._closed:
            self._timer.advance_clock(_DRIVE_MS)


class RealTimeRuntime(Runtime):
    """Processes whose purgatories have timers, reapers and workers of their own.

    Args:
        recorder: is told of each settled operation.
    """

    threaded = True
    engine: RealTimeEngine

    def __init__(self, recorder: OperationRecorder) -> None:
        super().__init__(RealTimeEngine(), recorder)
        recorder.hand_over_from_threads(self.engine.thread_id, self.engine.call_soon)

    def handed_over(self, function: Callable[..., object], *args: Any) -> None:
        self.engine.call_soon(function, *args)

    def suspend_process(self, process: Process) -> None:
        """See the module: reapers cannot be stopped."""

    def resume_process(self, process: Process) -> None:
        process.resumed_ns = self.engine.now_ns()

    def _make_process(self, broker_id: int) -> Process:
        purgatories = [
            DelayedOperationPurgatory(
                purgatory,
                timer=SystemTimer(purgatory, self.timer_tick_ms, self.timer_wheel_size),
                broker_id=broker_id,
                on_settled=self.recorder.observe,
            )
            for purgatory in PURGATORIES
        ]
        return Process(self.engine.clock, None, purgatories)

    def _end_process(self, process: Process) -> None:
        for purgatory in process.purgatories:
            purgatory.close(pending="leave")
            purgatory.timer.close()
        self.engine.settle()
