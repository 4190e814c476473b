"""Virtual and real time: the clock, the timers, and the threads that drive them.

In virtual time a broker's process has one timer on the engine's manual clock, driven by the engine,
and everything runs on one thread. In real time clients, network and controller still get their
events from the engine, on the thread that called `run`; each event waits for its time. But each
purgatory has a timer and a reaper of its own on the machine's clock, as in a server. Timeouts fire
on the reapers' threads, and their responses go to the engine's thread. A paused broker holds back
its responses, but its reapers can't be stopped: its timeouts count when they fire, not at the end
of the pause, as in virtual time.

Ground rules: threads share only the `_CallQueue`. The heap and everything that events access belong
to the engine's thread.
"""

from __future__ import annotations

import gc
import heapq
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import TopicPartition
from purgatory.simulation.engine import NS_PER_MS, Engine, EventTask, ScheduledEvent, VirtualEngine
from purgatory.simulation.trace import (
    ChangeRecorder,
    ObservedPurgatory,
    ObservedTimer,
    OperationRecorder,
)
from timer import Clock, InlineExecutor, SystemClock, SystemTimer
from timer.wake import Wake

PURGATORIES = ("Produce", "Fetch", "DeleteRecords")
"""The names of the purgatories that each broker has, in the order of the tables."""

GROUP_PURGATORIES = ("Rebalance", "Sync", "Heartbeat")
"""Those of brokers that coordinate consumer groups."""

TRANSACTION_PURGATORIES = ("TransactionMarker", "TransactionTimeout")
"""Those of brokers that coordinate transactions."""


class Process:
    """A broker's running process: its clock and purgatories.

    Args:
        clock: the process's time.
        timer: the timer of all its purgatories; None when each has its own.
        purgatories: Produce, Fetch and DeleteRecords, and those of groups and of transactions, if
            there are any.
    """

    def __init__(
        self,
        clock: Clock,
        timer: SystemTimer | None,
        purgatories: Sequence[DelayedOperationPurgatory],
    ) -> None:
        self.clock = clock
        self.timer = timer
        self.purgatories = tuple(purgatories)
        self.produce, self.fetch, self.delete_records = self.purgatories[: len(PURGATORIES)]
        self.resumed_ns = 0

    def purgatory(self, name: str) -> DelayedOperationPurgatory:
        return next(purgatory for purgatory in self.purgatories if purgatory.name == name)


class Runtime(ABC):
    """Starts and ends the brokers' processes."""

    threaded = False
    """Whether threads other than the engine's complete operations."""

    def __init__(self, engine: Engine, recorder: OperationRecorder) -> None:
        self.engine = engine
        self.recorder = recorder
        self.timer_tick_ms = 1
        self.timer_wheel_size = 20
        self.topic_partitions: Sequence[TopicPartition] = ()
        self.has_groups = False
        self.has_transactions = False
        self.changes: ChangeRecorder | None = None
        """Writes the trace's table `changes`; None: there is none."""
        self.on_start: Callable[[int, Process], None] | None = None
        self.on_end: Callable[[Process], None] | None = None

    def start_process(self, broker_id: int) -> Process:
        """Start a broker's process."""
        process = self._make_process(broker_id)
        if self.on_start is not None:
            self.on_start(broker_id, process)
        return process

    def end_process(self, process: Process) -> None:
        """End a process; its purgatories close without completing their operations."""
        if self.on_end is not None:
            self.on_end(process)
        self._end_process(process)

    @abstractmethod
    def suspend_process(self, process: Process) -> None:
        """Suspend expirations in a process."""

    @abstractmethod
    def resume_process(self, process: Process) -> None:
        """Resume, beginning with overdue expirations."""

    @abstractmethod
    def call_soon_threadsafe(self, function: Callable[..., object], *args: Any) -> None:
        """Have the engine's thread call `function(*args)` soon; callable from any thread."""

    @abstractmethod
    def _make_process(self, broker_id: int) -> Process: ...

    @abstractmethod
    def _end_process(self, process: Process) -> None: ...


class VirtualRuntime(Runtime):
    """Processes in virtual time."""

    engine: VirtualEngine

    def __init__(self, recorder: OperationRecorder) -> None:
        super().__init__(VirtualEngine(), recorder)
        self._count = 0

    def call_soon_threadsafe(self, function: Callable[..., object], *args: Any) -> None:
        self.engine.call_after(0, function, *args)

    def suspend_process(self, process: Process) -> None:
        assert process.timer is not None
        self.engine.unregister(process.timer)
        if isinstance(process.timer, ObservedTimer):
            process.timer.was_suspended = True

    def resume_process(self, process: Process) -> None:
        assert process.timer is not None
        process.resumed_ns = self.engine.now_ns()
        self.engine.attach(process.timer)
        process.timer.advance_clock(0)

    def _make_process(self, broker_id: int) -> Process:
        self._count += 1
        clock = self.engine.clock
        # The name puts the timers of one millisecond in order: by broker, then by age.
        name = f"broker-{broker_id:05}-{self._count:09}"
        timer_arguments = name, self.timer_tick_ms, self.timer_wheel_size, clock, InlineExecutor()
        observers = [(purgatory, "", self.recorder.observe) for purgatory in PURGATORIES]
        observers += [
            (
                purgatory,
                kind,
                partial(self.recorder.record_coordinator_wait, broker_id, purgatory, kind),
            )
            for purgatory, kind in self._coordinator_purgatories()
        ]
        changes = self.changes
        timer = SystemTimer(*timer_arguments)
        if changes is not None:
            timer = observed = ObservedTimer(changes, broker_id, *timer_arguments)
            purgatories: list[DelayedOperationPurgatory] = [
                ObservedPurgatory(
                    changes, kind or "coordinator", purgatory, observed, broker_id, on_completed
                )
                for purgatory, kind, on_completed in observers
            ]
        else:
            purgatories = [
                DelayedOperationPurgatory(
                    purgatory,
                    timer=timer,
                    broker_id=broker_id,
                    reaper_enabled=False,
                    on_completed=on_completed,
                )
                for purgatory, _, on_completed in observers
            ]
        self.engine.attach(timer)
        return Process(clock, timer, purgatories)

    def _coordinator_purgatories(self) -> Iterator[tuple[str, str]]:
        """The purgatories of coordinators, and the kind that waits in each."""
        if self.has_groups:
            yield from ((name, "member") for name in GROUP_PURGATORIES)
        if self.has_transactions:
            yield from ((name, "transaction") for name in TRANSACTION_PURGATORIES)

    def _end_process(self, process: Process) -> None:
        assert process.timer is not None
        self.engine.unregister(process.timer)
        for purgatory in process.purgatories:
            purgatory.close(policy="leave")
        process.timer.close()


_MAX_WAIT_S = 0.1
_DRIVE_MS = 200


class _CallQueue:
    """Calls from other threads to the engine's; the executor of the timers.

    A deque and a wake, since a queue's ``get`` with a short timeout may wait for ever.
    """

    def __init__(self) -> None:
        self._due: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._wake = Wake()

    def submit(self, function: Callable[..., Any], /, *args: Any) -> None:
        """Have the engine's thread call `function(*args)`; from any thread."""
        self._due.append((function, args))
        self._wake.set()

    def run_all(self, wait_s: float) -> None:
        """Wait at most `wait_s` for a call, then run all."""
        if not self._due:
            self._wake.wait(wait_s)
        while self._due:
            function, args = self._due.popleft()
            function(*args)


class RealTimeEngine(Engine):
    """Runs each event at its time on the machine's clock.

    The wheel's thread loads the events of each millisecond at its begin; within it the engine waits
    for each event's nanosecond.
    """

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.thread_id = threading.get_ident()
        # A whole millisecond, as the timers count: what is due lies in the bucket it lay in.
        self._origin_ns = self.clock.now_ns() // NS_PER_MS * NS_PER_MS
        self._calls = _CallQueue()
        self._timer = SystemTimer("simulation", clock=self.clock, executor=self._calls)
        self._by_millisecond: dict[int, list[ScheduledEvent]] = {}
        self._due: list[ScheduledEvent] = []
        self._sequence = 0
        self._closed = False
        self._driver = threading.Thread(target=self._drive, name="simulation-timer", daemon=True)

    def now_ns(self) -> int:
        return self.clock.now_ns() - self._origin_ns

    def call_at(self, time_ns: int, function: Callable[..., object], *args: Any) -> None:
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
            self._timer.add(EventTask(clock_ms + -now_ns // NS_PER_MS, self._load_events, clock_ms))
        events.append(event)

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Have the engine's thread call `function(*args)`; callable from any thread."""
        self._calls.submit(function, *args)

    def run(self, keep_running: Callable[[], bool]) -> None:
        self._driver.start()
        observe = self.on_event or (lambda: None)
        observe()
        while keep_running():
            wait_s = _MAX_WAIT_S
            if self._due:
                wait_s = min(wait_s, (self._due[0][0] - self.now_ns()) / 1e9)
            self._calls.run_all(wait_s)
            observe()
            while self._due and self._due[0][0] <= self.now_ns():
                _, _, function, args = heapq.heappop(self._due)
                function(*args)
                observe()

    def close(self) -> None:
        self._closed = True
        self._timer.close()
        if self._driver.is_alive():
            self._driver.join()

    def run_pending_calls(self) -> None:
        """Run the calls of other threads."""
        self._calls.run_all(0)

    def _load_events(self, clock_ms: int) -> None:
        for event in self._by_millisecond.pop(clock_ms):
            heapq.heappush(self._due, event)

    def _drive(self) -> None:
        while not self._closed:
            self._timer.advance_clock(_DRIVE_MS)


class RealTimeRuntime(Runtime):
    """Processes whose purgatories have their own timers, reapers and workers."""

    threaded = True
    engine: RealTimeEngine

    def __init__(self, recorder: OperationRecorder) -> None:
        super().__init__(RealTimeEngine(), recorder)
        recorder.set_engine_thread(self.engine.thread_id, self.engine.call_soon)

    def call_soon_threadsafe(self, function: Callable[..., object], *args: Any) -> None:
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
                on_completed=self.recorder.observe,
            )
            for purgatory in PURGATORIES
        ]
        return Process(self.engine.clock, None, purgatories)

    def _end_process(self, process: Process) -> None:
        for purgatory in process.purgatories:
            purgatory.close(policy="leave")
            purgatory.timer.close()
        self.engine.run_pending_calls()


@contextmanager
def relaxed_garbage_collection() -> Iterator[None]:
    """Collect garbage less often: a run makes millions of objects, hardly any of them cyclic."""
    before = gc.get_threshold()
    gc.collect()
    try:
        gc.freeze()
        gc.set_threshold(500_000, 20, 100)
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
