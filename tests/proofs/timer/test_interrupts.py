"""An exception between any two instructions leaves nothing stuck and no task lost.

Each public call is interrupted before each of its instructions in turn (see
``tests.proofs.interrupts.interruptions``); then the time passes, undisturbed, and all must add up:
no lock is held, every task ran once or was cancelled or dropped, and nothing is left.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from unittest import mock

import pytest

import timer as timer_package
from tests.proofs.interrupts.alarms import Alarms
from tests.proofs.interrupts.interruptions import Scenario, interrupt_everywhere, interrupt_twice
from tests.proofs.interrupts.own_process import run_in_own_process
from tests.unit.timer.named_task import Counted
from timer import (
    NATIVE,
    InlineExecutor,
    ManualClock,
    SystemTimer,
    TaskExecutor,
    TimerClosedError,
    executor,
    histogram,
    system_timer,
)
from timer.executor import SingleThreadExecutor
from timer.wake import Wake

# From Python 3.12 on the tests also interrupt a generator that is thrown away: it is only printed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TIMER = (str(Path(str(timer_package.__file__)).parent),)
LONG_S = 60
PAIRS = 100


class Bench:
    """A timer with tasks on several levels, and what must hold in the end."""

    def __init__(self, executor: TaskExecutor | None = None) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer(
            "interrupted", clock=self.clock, executor=executor or InlineExecutor()
        )
        self.tasks: list[Counted] = []
        self.cancelled: set[Counted] = set()
        for delay_ms in (5, 450, 450):
            self.add(delay_ms)

    def add(self, delay_ms: int) -> Counted:
        task = Counted(delay_ms)
        self.timer.add(task)
        self.tasks.append(task)
        return task

    def check(self, uncertain: tuple[Counted, ...] = ()) -> None:
        """Let all time pass, then see that every task ran once, or was cancelled.

        Args:
            uncertain: those whose own ``add`` or ``cancel`` was interrupted: they may have run.
        """
        assert_unlocked(self.timer)
        for _ in range(2):
            self.clock.advance(1_000)
            self.timer.advance_clock()
        for task in self.tasks:
            if task in uncertain:
                assert task.runs <= 1, "run twice"
            else:
                assert task.runs == (task not in self.cancelled), f"{task} ran {task.runs} times"
        assert self.timer.size == 0
        assert not self.timer._sleepers
        self.timer._check()
        assert self.timer.buckets_occupied == 0
        assert self.timer.next_expiration_ms() is None


def assert_unlocked(timer: SystemTimer) -> None:
    """Assert that this thread, the one that was interrupted, holds no lock of the timer."""
    locks = [] if NATIVE else [timer._lock, histogram._lock]
    if isinstance(timer._executor, InlineExecutor):
        locks.append(executor._lock)
    if isinstance(timer._executor, SingleThreadExecutor):
        locks.append(timer._executor._lock)
    assert not any(lock._is_owned() for lock in locks), "a lock is held"


def add_anew() -> Scenario:
    bench = Bench()
    task = Counted(450)
    yield lambda: bench.timer.add(task)
    bench.tasks.append(task)
    bench.check(uncertain=(task,))


def add_where_no_bucket_is_in_use() -> Scenario:
    bench = Bench()
    task = Counted(100_000)
    yield lambda: bench.timer.add(task)
    bench.clock.advance(100_000)
    bench.timer.advance_clock()
    bench.tasks.append(task)
    bench.check(uncertain=(task,))


def add_what_is_due_at_once() -> Scenario:
    bench = Bench()
    task = Counted(0)
    place = yield lambda: bench.timer.add(task)
    assert place or task.runs == 1
    bench.tasks.append(task)
    bench.check(uncertain=(task,))


def add_again() -> Scenario:
    """A pending task is moved, or stays where it was: it runs once in any case."""
    bench = Bench()
    task = bench.tasks[-1]
    task.delay_ms = 444
    yield lambda: bench.timer.add(task)
    bench.check()


def add_again_what_is_due_at_once() -> Scenario:
    bench = Bench()
    task = bench.tasks[-1]
    task.delay_ms = 0
    yield lambda: bench.timer.add(task)
    bench.check()


def add_to_another_timer() -> Scenario:
    bench, other = Bench(), Bench()
    task = bench.tasks[-1]
    yield lambda: other.timer.add(task)
    other.check()
    bench.check()


def call_later() -> Scenario:
    bench = Bench()
    ran: list[int] = []
    place = yield lambda: bench.timer.call_later(450, ran.append, 1)
    bench.check()
    assert ran == [1] or (place is not None and not ran)


def cancel() -> Scenario:
    bench = Bench()
    task = bench.tasks[-2]
    yield task.cancel
    bench.check(uncertain=(task,))


def advance() -> Scenario:
    bench = Bench()
    bench.clock.advance(450)
    yield bench.timer.advance_clock
    bench.check()


def advance_with_large_buckets() -> Scenario:
    """The entries of a coarse bucket cascade one by one, not within the section that took them."""
    with mock.patch.object(system_timer, "MAX_CASCADE_UNDER_LOCK", 0):
        yield from advance()


def advance_with_a_pool() -> Scenario:
    """An executor of the user's: each task is submitted by itself."""

    class Pool:
        def submit(self, function: Callable[..., object], /, *args: object) -> None:
            function(*args)

    bench = Bench(Pool())
    bench.clock.advance(450)
    yield bench.timer.advance_clock
    bench.check()


def advance_with_an_executor_that_refuses() -> Scenario:
    class Full:
        def submit(self, function: Callable[..., object], /, *args: object) -> None:
            raise RuntimeError("full")

    bench = Bench(Full())
    bench.clock.advance(5)
    yield bench.timer.advance_clock
    bench.check()


def advance_and_wait() -> Scenario:
    bench = Bench()

    class Moving(ManualClock):
        def wait(self, wake: object, until_ns: int) -> bool:
            self.advance_to_ns(until_ns)
            return True

    moving = Moving()
    bench.timer.clock = bench.clock = moving
    bench.timer._now_ns = moving.now_ns
    yield lambda: bench.timer.advance_clock(4)
    bench.timer._sleepers.clear()  # see the test of what an interrupted wait leaves
    bench.check()


def look() -> Scenario:
    bench = Bench()
    yield lambda: (
        bench.timer.size,
        bench.timer.next_expiration_ms(),
        bench.timer.snapshot(),
        bench.timer.levels_in_use,
        bench.timer.lateness.snapshot(),
    )
    bench.check()


def move_the_clock() -> Scenario:
    bench = Bench()

    def move() -> None:
        bench.clock.advance(1)
        bench.clock.advance_to(2)
        bench.clock.advance_to_ns(3_000_000)

    yield move
    bench.check()


def a_task_that_adds_and_cancels() -> Scenario:
    bench = Bench()
    victim = bench.add(451)
    bench.cancelled.add(victim)
    added: list[Counted] = []

    def nest() -> None:
        added.append(bench.add(0))
        added.append(bench.add(7))
        victim.cancel()

    bench.timer.call_later(450, nest)
    bench.clock.advance(450)
    yield bench.timer.advance_clock
    # A task that was interrupted was begun, and is not begun again.
    bench.check(uncertain=(victim, *added))


SCENARIOS = [
    add_anew,
    add_where_no_bucket_is_in_use,
    add_what_is_due_at_once,
    add_again,
    add_again_what_is_due_at_once,
    add_to_another_timer,
    call_later,
    pytest.param(cancel, marks=pytest.mark.pure),  # natively it has no step in Python
    advance,
    advance_with_large_buckets,
    advance_with_a_pool,
    advance_with_an_executor_that_refuses,
    advance_and_wait,
    look,
    move_the_clock,
    a_task_that_adds_and_cancels,
]


LONG = [
    advance,
    advance_with_large_buckets,
    advance_with_a_pool,
    a_task_that_adds_and_cancels,
    look,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_an_interrupt_at_any_instruction_loses_no_task(scenario: Callable[[], Scenario]) -> None:
    """Of the longest calls, each fifth instruction; ``make nightly`` takes them all."""
    report = interrupt_everywhere(scenario, step=5 if scenario in LONG else 1, where=TIMER)
    assert report.interrupts > (2 if NATIVE else 5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", LONG, ids=lambda scenario: scenario.__name__)
def test_interrupt_anywhere_in_long_calls_loses_no_task(
    scenario: Callable[[], Scenario],
) -> None:
    report = interrupt_everywhere(scenario, where=TIMER)
    assert report.interrupts > (100 if NATIVE else 1_000)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_second_interrupt_loses_no_task(scenario: Callable[[], Scenario]) -> None:
    interrupt_twice(scenario, PAIRS, where=TIMER)


def test_a_recursion_error_at_any_instruction_loses_no_task() -> None:
    """A RecursionError is an Exception, which is caught where tasks and executors fail."""
    interrupt_everywhere(advance, RecursionError, step=5, where=TIMER)


def call_with_little_room() -> None:
    """At each depth: where nothing fits, where the timer does but a task doesn't, where all do."""
    begun: list[int] = []
    raised = 0
    for room in range(1, 60):
        clock = ManualClock()
        timer = SystemTimer("deep", clock=clock, executor=InlineExecutor())
        for _ in range(2):
            timer.call_later(450, lambda room=room: begun.append(room))
        timer.call_later(450, lambda *begun_in: begun.extend(begun_in), room)
        clock.advance(450)
        try:
            at_depth(sys.getrecursionlimit() - depth() - room, timer.advance_clock)
        except RecursionError:
            raised += 1
        for _ in range(2):
            clock.advance(1_000)
            timer.advance_clock()
        assert begun.count(room) + timer.failures == 3, room
        assert timer.size == 0
    assert raised > 2


def test_too_little_room_on_the_stack_loses_no_task() -> None:
    run_in_own_process(call_with_little_room)


class OnceOutOfMemory(Counted):
    """A task that may run again, and has no room when it first runs."""

    _timer_may_run_again = True

    def run(self) -> None:
        super().run()
        if self.runs == 1:
            raise MemoryError


def test_a_task_that_may_run_again_does_so_when_memory_gave_out() -> None:
    clock = ManualClock()
    timer = SystemTimer("test", clock=clock, executor=InlineExecutor())
    task = OnceOutOfMemory(5)
    timer.add(task)
    clock.advance(5)
    timer.advance_clock()
    assert (task.runs, timer.size, timer.failures) == (2, 0, 0)


def depth() -> int:
    """Return how deep the stack is."""
    frame: FrameType | None = sys._getframe()
    count = 0
    while frame is not None:
        count += 1
        frame = frame.f_back
    return count


def at_depth(calls: int, function: Callable[[], object]) -> None:
    """Call ``function`` so many calls further down."""
    if calls <= 0:
        function()
    else:
        at_depth(calls - 1, function)


def close() -> Scenario:
    """Closing again finishes: what was pending is dropped and counted, or was by the first call."""
    bench = Bench()
    counts: list[int] = []

    def call() -> None:
        counts.append(bench.timer.close())

    place = yield call
    if place is None:
        assert counts == [3]
    bench.timer.close()
    assert_unlocked(bench.timer)
    assert bench.timer.size == 0
    with pytest.raises(TimerClosedError):
        bench.timer.call_later(5, int)
    with pytest.raises(TimerClosedError):
        bench.timer.advance_clock()
    assert not any(task.cancel() or task.runs for task in bench.tasks)


def submit_inline() -> Scenario:
    executor = InlineExecutor()
    ran: list[str] = []

    def outer() -> None:
        ran.append("outer")
        executor.submit(ran.append, "inner")

    place = yield lambda: executor.submit(outer)
    executor.submit(ran.append, "last")
    if place is None:
        assert ran == ["outer", "inner", "last"]
    assert "last" in ran
    assert len(set(ran)) == len(ran), "run twice"
    # Queued tasks are run; the interrupted submit may not have come so far.
    assert ("outer" in ran) >= ("inner" in ran)


def work() -> Scenario:
    """A worker, whose loop is run here: what interrupts a step of it is logged, and it goes on."""
    executor = SingleThreadExecutor("worked here")
    ran: list[int] = []
    for number in range(3):
        executor._due.append(partial(ran.append, number))
    executor._closed = True
    yield executor._work
    executor._work()
    assert ran == [0, 1, 2]


def submit_to_a_worker() -> Scenario:
    executor = SingleThreadExecutor("interrupted")
    ran: list[str] = []
    place = yield lambda: executor.submit(ran.append, "first")
    executor.submit(ran.append, "second")
    executor.shutdown(LONG_S)
    assert ran == ["first", "second"] or (place is not None and ran == ["second"])


def shut_down() -> Scenario:
    executor = SingleThreadExecutor("shut down")
    ran: list[int] = []
    executor.submit(ran.append, 1)
    yield lambda: executor.shutdown(LONG_S)
    executor.shutdown(LONG_S)
    assert ran == [1]
    assert not any(thread.name == "shut down" for thread in threading.enumerate())


@pytest.mark.parametrize("scenario", [close, submit_inline, work, submit_to_a_worker, shut_down])
def test_an_interrupted_close_or_executor_resumes_when_called_again(
    scenario: Callable[[], Scenario],
) -> None:
    report = interrupt_everywhere(scenario, where=TIMER)
    assert report.interrupts > (2 if NATIVE else 5)
    interrupt_twice(scenario, PAIRS, where=TIMER)


def test_a_wait_that_is_interrupted_leaves_its_wake_as_good_as_new() -> None:
    def scenario() -> Scenario:
        bench, wake = Bench(), Wake()
        wake.set()
        yield lambda: bench.clock.wait(wake, 1)
        for _ in range(3):
            bench.clock.advance(1)
        wake.wait(0)
        assert not wake.wait(0)
        yield wake.set
        wake.set()
        assert wake.wait(60)

    interrupt_everywhere(scenario, where=TIMER)


def storm(seconds: str) -> None:
    """Real signals, at any moment of an add, a cancel, a turn and a wait."""
    alarms = Alarms(random.Random(7))
    end_s = time.monotonic() + float(seconds)
    while time.monotonic() < end_s:
        bench = Bench()
        own: list[Counted] = []

        def call(bench: Bench = bench, own: list[Counted] = own) -> None:
            for delay_ms in (450, 30, 2):
                own.append(Counted(delay_ms))
                bench.timer.add(own[-1])
            own[0].cancel()
            bench.timer.advance_clock(1)
            bench.clock.advance(450)
            bench.timer.advance_clock()
            bench.timer.advance_clock(1)

        alarms.during(call)
        bench.tasks += own
        bench.timer._sleepers.clear()
        bench.check(uncertain=tuple(own))
    print(f"{alarms.came} alarms")
    assert alarms.came > 20


def test_a_storm_of_signals_loses_no_task() -> None:
    run_in_own_process(storm, "3")
