"""Faults of native parts only: references, the garbage collector, wrong types, memory."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from timer import NATIVE, InlineExecutor, ManualClock, SystemTimer, TimerTask, system_timer
from timer.histogram import Histogram
from timer.timer_task import CallLater

pytestmark = pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")

ROOT = Path(__file__).parents[3]


class Owner(TimerTask):
    """A task that owns things, its timer perhaps among them."""

    owned: object = None

    def run(self) -> None:
        pass


def new_timer() -> tuple[SystemTimer, ManualClock]:
    clock = ManualClock()
    return SystemTimer("native", clock=clock, executor=InlineExecutor()), clock


def in_a_bucket(timer: SystemTimer, task: Owner, clock: ManualClock) -> None:
    timer.add(task)


def falling(timer: SystemTimer, task: Owner, clock: ManualClock) -> None:
    timer.add(task)
    clock.advance(20)
    assert timer._poll()


def due(timer: SystemTimer, task: Owner, clock: ManualClock) -> None:
    task.delay_ms = 5
    timer.add(task)
    clock.advance(5)
    assert timer._poll()


@pytest.mark.parametrize("where", [in_a_bucket, falling, due], ids=lambda one: one.__name__)
def test_a_task_that_owns_its_timer_is_freed_with_it(
    where: Callable[[SystemTimer, Owner, ManualClock], None],
) -> None:
    """The timer owns the task, the task the timer: only the garbage collector can end that."""
    timer, clock = new_timer()
    task = Owner(30)
    task.owned = timer
    where(timer, task, clock)
    freed: list[weakref.ref[Any]] = [weakref.ref(timer), weakref.ref(task)]
    del timer, task
    gc.collect()
    assert [reference() for reference in freed] == [None, None]


def holding_by_an_argument(held: list[object]) -> TimerTask:
    return new_timer()[0].call_later(5, print, held)


def holding_by_a_method(held: list[object]) -> TimerTask:
    return new_timer()[0].call_later(5, held.append, 5)


def holding_by_what_was_set(held: list[object]) -> TimerTask:
    task = new_timer()[0].call_later(5, print, held)
    task.run = held.clear  # type: ignore[method-assign]
    return task


@pytest.mark.parametrize(
    "hold",
    [holding_by_an_argument, holding_by_a_method, holding_by_what_was_set],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("pends", [True, False])
def test_a_task_of_call_later_is_freed_with_its_function(
    hold: Callable[[list[object]], TimerTask], pends: bool
) -> None:
    """Its function or an argument owns the task: only the garbage collector can end that."""
    held: list[object] = []
    task = hold(held)
    if pends:
        timer, _ = new_timer()
        timer.add(task)
        held.append(timer)
    held.append(task)
    freed = weakref.ref(task)
    del held, task
    assert freed() is not None
    if pends:
        del timer
    gc.collect()
    assert freed() is None


def test_a_task_of_call_later_leaves_nothing_behind() -> None:
    timer, clock = new_timer()
    argument = object()
    test_which = print
    before = sys.getrefcount(argument), sys.getrefcount(test_which)
    for _ in range(50):
        task = timer.call_later(5, print, argument)
        task.cancel()
        timer.call_later(5, id, argument)
        clock.advance(5)
        timer.advance_clock()
        with suppress(TypeError):
            timer.call_later(2.5, print, argument)  # type: ignore[arg-type]
    timer.call_later(5, print, argument)
    timer.close()
    del task, timer
    assert (sys.getrefcount(argument), sys.getrefcount(test_which)) == before


def test_pending_tasks_are_freed_with_their_timer_at_once() -> None:
    timer, _ = new_timer()
    task = Owner(30)
    timer.add(task)
    freed = weakref.ref(task)
    del task
    gc.collect()
    assert freed() is not None, "the timer owns it"
    gc.disable()
    try:
        del timer
        assert freed() is None
    finally:
        gc.enable()


def test_a_task_that_outlives_its_timer_is_on_none() -> None:
    timer, _ = new_timer()
    task = Owner(30)
    timer.add(task)
    del timer
    gc.collect()
    assert not task.cancel()
    other, _ = new_timer()
    other.add(task)
    assert other.size == 1


def test_a_finalizer_that_uses_the_timer_while_it_closes_does_no_harm() -> None:
    timer, _ = new_timer()
    others = [Owner(50) for _ in range(10)]
    told: list[object] = []

    class Last(Owner):
        def __del__(self) -> None:
            told.append([other.cancel() for other in others])
            new_timer()[0].add(others[0])
            told.append(timer.size)

    timer.add(Last(10))
    for other in others:
        timer.add(other)
    assert timer.close() == 11
    assert told == [[False] * 10, 0]
    timer._check()


def test_references_are_neither_lost_nor_kept() -> None:
    timer, clock = new_timer()
    tasks = [Owner(delay_ms) for delay_ms in (0, 5, 450, 9_000)]
    before = [sys.getrefcount(task) for task in tasks]
    for _ in range(50):
        for task in tasks:
            timer.add(task)
            timer.add(task)
            if task.delay_ms != 450:
                task.cancel()
        clock.advance(10_000)
        timer.advance_clock()
    assert timer.size == 0
    del task
    assert [sys.getrefcount(task) for task in tasks] == before


class ClockThatMeddles(ManualClock):
    """A read of the clock lets another thread, or a signal's handler, come in between."""

    meddle: Callable[[], object] = staticmethod(int)

    def now_ns(self) -> int:
        meddle, self.meddle = self.meddle, int
        meddle()
        return super().now_ns()


def test_task_rescheduled_during_a_clock_read_is_not_early() -> None:
    clock = ClockThatMeddles()
    timer = SystemTimer("put off", clock=clock, executor=InlineExecutor())
    ran: list[int] = []
    task = timer.call_later(5, ran.append, 5)
    clock.advance(5)
    assert timer._poll()

    def put_off() -> None:
        assert task.cancel()
        task.delay_ms = 100
        timer.add(task)

    clock.meddle = put_off
    timer._run_due()
    assert ran == []
    clock.advance(99)
    timer.advance_clock()
    assert ran == []
    clock.advance(1)
    timer.advance_clock()
    assert ran == [5]


@pytest.mark.skipif(sys.version_info < (3, 13), reason="has no public-enough interpreters")
@pytest.mark.own_process
def test_a_second_interpreter_gets_pure_python() -> None:
    program = (
        "import _interpreters as all, timer; assert timer.NATIVE; one = all.create();"
        "told = all.exec(one, 'import timer; assert not timer.NATIVE'); assert told is None, told"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize("wrong", [None, 5, "task", object(), TimerTask, ManualClock()])
def test_an_object_that_is_no_task_is_refused(wrong: Any) -> None:
    timer, _ = new_timer()
    with pytest.raises(TypeError, match="task must be a TimerTask"):
        timer.add(wrong)
    with pytest.raises(TypeError):
        timer._run(wrong)
    timer._check()
    assert timer.size == 0


def test_an_uninitialized_object_does_not_crash() -> None:
    """``__new__`` alone leaves the least that the methods need."""
    timer = SystemTimer.__new__(SystemTimer)
    for use in (
        lambda: timer.add(Owner(5)),
        lambda: timer.call_later(5, print),
        timer.next_expiration_ms,
        lambda: timer.levels_in_use,
        lambda: timer.lateness.snapshot().total,
        timer._poll,
        timer._check,
        timer.close,
    ):
        with suppress(AttributeError, TypeError):
            use()
    others: tuple[Callable[[], object], ...] = (
        lambda: timer.size,
        timer.next_expiration_ms,
        Owner.__new__(Owner).cancel,
        lambda: Owner.__new__(Owner).delay_ms,
        Histogram.__new__(Histogram).snapshot,
        lambda: Histogram.__new__(Histogram).observe(5),
    )
    for other in others:
        with pytest.raises(AttributeError, match="its __init__ must call"):
            other()
    task = Owner.__new__(Owner)
    with pytest.raises(TypeError, match="its __init__ must call"):
        new_timer()[0].add(task)
    called: Any = CallLater.__new__(CallLater)
    with pytest.raises(TypeError, match="its __init__ must call"):
        new_timer()[0].add(called)
    assert called.run is None


@pytest.mark.parametrize("wrong", [(), (5,), (5, print), (5, print, None), (5, print, [1])])
def test_wrong_arguments_of_call_later_are_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        CallLater(*wrong)
    if len(wrong) < 2:
        with pytest.raises(TypeError, match="call_later"):
            new_timer()[0].call_later(*wrong)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="gives each a dict, whatever makes it")
def test_the_attributes_of_a_users_task_stand_in_the_task() -> None:
    tracemalloc.start()
    try:
        tasks = [Owner(number) for number in range(1_000)]
        for task in tasks:
            task.owned = task.delay_ms
        before, _ = tracemalloc.get_traced_memory()
        dicts = [vars(task) for task in tasks]  # only who asks for one is given it
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before > 56 * len(dicts)


def test_a_task_that_sets_the_attributes_of_init_need_not_call_it() -> None:
    """A class of tasks that is made in great numbers saves the call."""

    class Quick(Owner):
        def __init__(self, delay_ms: int) -> None:
            self.delay_ms = delay_ms
            self._timer_entry = None

        def cancel(self) -> bool:
            raise AssertionError("nobody asked for that")

    timer, clock = new_timer()
    task = Quick(5)
    timer.add(task)
    assert task._timer_waits and task._timer_entry is None
    clock.advance(5)
    assert timer.advance_clock()
    assert not task._timer_waits


def test_many_threads_that_switch_all_the_time_lose_no_task() -> None:
    timer, clock = new_timer()
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    ran: list[int] = []
    cancelled: list[int] = []
    stop = threading.Event()

    def add_and_cancel(first: int) -> None:
        for number in range(first, first + 2_000):
            task = timer.call_later(number % 700, ran.append, number)
            if number % 3 == 0 and task.cancel():
                cancelled.append(number)

    def drive() -> None:
        while not stop.is_set():
            timer.advance_clock()

    try:
        threads = [
            threading.Thread(target=add_and_cancel, args=(first,)) for first in (0, 2_000, 4_000)
        ]
        driver = threading.Thread(target=drive)
        driver.start()
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            clock.advance(1)
        for thread in threads:
            thread.join()
        stop.set()
        driver.join()
    finally:
        sys.setswitchinterval(interval_s)
    clock.advance(1_000)
    timer.advance_clock()
    assert sorted(ran + cancelled) == list(range(6_000))
    timer._check()


@pytest.mark.once
@pytest.mark.parametrize(("executor", "times"), [(None, 2), (InlineExecutor(), 0)])
def test_the_worker_yields_to_other_threads_while_many_tasks_are_due(
    executor: InlineExecutor | None, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the parts of 256 in which it runs them; whoever drives inline is not delayed."""
    slept: list[float] = []
    monkeypatch.setattr(system_timer, "sleep", slept.append)
    read_ns = count(0, system_timer.MAX_RUN_NS + 1)
    monkeypatch.setattr(system_timer, "monotonic_ns", lambda: next(read_ns))
    clock = ManualClock()
    timer = SystemTimer("much", clock=clock, executor=executor)
    ran = threading.Event()
    for _ in range(599):
        timer.call_later(5, int)
    timer.call_later(5, ran.set)
    clock.advance(5)
    timer.advance_clock()
    assert ran.wait(60)
    timer.close()
    assert slept == [system_timer.YIELD_S] * times


def test_a_delay_is_kept_as_it_was_given() -> None:
    """Nearly all are numbers of 64 bits, which stand in the task itself."""
    odd = object()
    before = sys.getrefcount(odd)
    task = Owner(5)
    for delay_ms in (5, -1, 2**63 - 1, -(2**63), 2**63, 10**30, True, 2.5, None, odd, "5", 7):
        task.delay_ms = delay_ms  # type: ignore[assignment]
        kept: Any = task.delay_ms
        assert type(kept) is type(delay_ms)
        assert kept == delay_ms
    del kept, delay_ms
    assert sys.getrefcount(odd) == before
    task.delay_ms = odd  # type: ignore[assignment]
    del task
    assert sys.getrefcount(odd) == before


@pytest.mark.slow
@pytest.mark.own_process
def test_the_debug_allocators_find_nothing() -> None:
    """They fill what was freed, and look at the edges of what was allocated."""
    tests = "tests/proofs/timer/test_native_against_pure.py", "tests/unit/timer/test_adding.py"
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3_000:] + ended.stderr[-3_000:]
