"""Real threads: cancels against expiry, adds against a moving clock, finalizers against locks.

Each promise is one of counting, and holds on a machine of any speed: how often each side wins
differs from run to run, what must never happen does not.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

from tests.unit.timer.named_task import Counted
from timer import (
    InlineExecutor,
    ManualClock,
    SystemTimer,
    TaskExecutor,
    TimerClosedError,
    TimerTask,
)
from timer.timer_task import TimerTaskEntry
from timer.timer_task_list import TimerTaskList

LONG_S = 60
ROUNDS = 60


@pytest.fixture(autouse=True)
def _threads_that_change_often() -> Iterator[None]:
    """Let threads take turns every 20 us instead of 5 ms: more races in less time."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(20e-6)
    yield
    sys.setswitchinterval(before_s)


def run_together(*functions: Callable[[], object]) -> None:
    """Run each on a thread of its own, begun at the same moment; raise what any of them raised."""
    barrier = threading.Barrier(len(functions))
    errors: list[BaseException] = []

    def begin(function: Callable[[], object]) -> None:
        try:
            barrier.wait(LONG_S)
            function()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=begin, args=(function,), daemon=True) for function in functions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive(), "deadlock"
    if errors:
        raise errors[0]


def cancel_all(answers: list[bool], tasks: Sequence[TimerTask], order: int = 1) -> None:
    """Cancel all, from the last on if ``order`` is -1, and note the answers as ``tasks`` stand."""
    answers += [task.cancel() for task in tasks[::order]][::order]


def drive(clock: ManualClock, timer: SystemTimer, until_ms: int, step_ms: int) -> None:
    """Let time pass step by step, and run what cascades due."""
    while clock.now_ms() < until_ms:
        clock.advance(step_ms)
        timer.advance_clock(0)


@pytest.mark.parametrize("workers", ["inline", "one worker", "pool"])
def test_task_never_runs_after_a_true_cancel_and_else_runs_once(workers: str) -> None:
    """Tasks fall through three levels while two threads cancel the same ones."""
    wins: Counter[str] = Counter()
    for round_ in range(ROUNDS):
        clock = ManualClock()
        pool = ThreadPoolExecutor(2) if workers == "pool" else None
        executor: TaskExecutor | None = InlineExecutor() if workers == "inline" else pool
        timer = SystemTimer("race", clock=clock, executor=executor)
        tasks = [Counted(395 + round_ % 3 + number % 40) for number in range(200)]
        for task in tasks:
            timer.add(task)
        answers: list[list[bool]] = [[], []]

        run_together(
            partial(drive, clock, timer, 460, step_ms=5),
            partial(cancel_all, answers[0], tasks, order=1),
            partial(cancel_all, answers[1], tasks, order=-1),
        )
        while timer.size:
            pass  # the worker is behind
        if pool is not None:
            pool.shutdown()
        assert timer.close() == 0
        for task, first, second in zip(tasks, *answers, strict=True):
            assert task.runs + first + second == 1, (task.runs, first, second)
            wins["ran" if task.runs else "cancelled"] += 1
    assert wins.total() == ROUNDS * 200


@pytest.mark.pure
def test_cancel_during_a_move_of_level_wins_without_waiting() -> None:
    """The cancel comes in the middle of the move, while the mover holds the lock."""
    clock = ManualClock()
    timer = SystemTimer("moved", clock=clock, executor=InlineExecutor())
    task = Counted(450)
    timer.add(task)
    found: list[bool] = []

    class MetByACancel:
        """Another thread cancels just before and just after an entry is put into its bucket."""

        def __getattr__(self, name: str) -> object:
            return getattr(timing_wheel, name)

        def add(self, entry: TimerTaskEntry) -> bool:
            run_together(lambda: found.append(task.cancel()))
            answer = timing_wheel.add(entry)
            run_together(lambda: found.append(task.cancel()))
            return answer

    timing_wheel = timer._wheel
    timer._wheel = MetByACancel()  # type: ignore[assignment]
    drive(clock, timer, 400, step_ms=400)
    timer._wheel = timing_wheel
    drive(clock, timer, 1_000, step_ms=10)
    assert found == [True, False]
    assert task.runs == 0
    assert timer.size == 0


def test_adds_from_many_threads_all_run_once_and_none_early() -> None:
    clock = ManualClock()
    timer = SystemTimer("busy", clock=clock, executor=InlineExecutor())
    early: list[int] = []
    ran: Counter[int] = Counter()
    adders, tasks_each = 4, 1_500
    adding = threading.Semaphore(0)

    def add_many(first: int) -> None:
        for number in range(first, first + tasks_each):
            delay_ms = number * 7 % 900

            def note(number: int, due_ms: int) -> None:
                ran[number] += 1
                if clock.now_ms() < due_ms:
                    early.append(number)

            # The clock may move between this line and the add, but never back: no false alarm.
            timer.call_later(delay_ms, note, number, clock.now_ms() + delay_ms)
        adding.release()

    def drive_until_all_ran() -> None:
        ended = 0
        while ended < adders or timer.size:
            drive(clock, timer, clock.now_ms() + 1, step_ms=1)
            ended += adding.acquire(blocking=False)

    starts = range(0, adders * tasks_each, tasks_each)
    run_together(drive_until_all_ran, *[partial(add_many, first) for first in starts])
    assert len(ran) == adders * tasks_each
    assert set(ran.values()) == {1}
    assert early == []
    assert timer.failures == 0
    timer._check()


@pytest.mark.parametrize("workers", ["inline", "one worker", "pool"])
def test_timer_driven_by_two_threads_runs_each_task_once(workers: str) -> None:
    for _ in range(ROUNDS):
        clock = ManualClock()
        with ThreadPoolExecutor(2) as pool:
            executor: TaskExecutor | None = InlineExecutor() if workers == "inline" else pool
            timer = SystemTimer(
                "driven twice", clock=clock, executor=None if workers == "one worker" else executor
            )
            tasks = [Counted(1 + number * 3 % 450) for number in range(200)]
            for task in tasks:
                timer.add(task)
            run_together(*[partial(drive, clock, timer, 450, step_ms=7)] * 2)
            timer.advance_clock(0)
            while timer.size:
                pass  # the worker is behind
        timer.close()
        assert [task.runs for task in tasks] == [1] * 200
        timer._check()


@pytest.mark.pure
def test_task_moves_to_another_timer_despite_the_firsts_lock() -> None:
    """Two timers have no order of locks: tasks may be moved both ways at once."""
    clock = ManualClock()
    first, second = (
        SystemTimer(name, clock=clock, executor=InlineExecutor()) for name in ("first", "second")
    )
    task = Counted(50)
    first.add(task)
    with first._lock:
        run_together(lambda: second.add(task))
        run_together(lambda: second.add(task))
    assert (first.size, second.size) == (0, 1)
    for timer in (first, second):
        drive(clock, timer, clock.now_ms() + 100, step_ms=50)
    assert task.runs == 1


def test_adding_again_from_two_threads_leaves_one_run_for_each_round() -> None:
    """The last add decides; a task is never in two buckets at once."""
    clock = ManualClock()
    timer = SystemTimer("again", clock=clock, executor=InlineExecutor())
    task = Counted(50)

    def add_again() -> None:
        for _ in range(2_000):
            timer.add(task)

    run_together(add_again, add_again)
    assert timer.size == 1
    timer._check()
    drive(clock, timer, 100, step_ms=1)
    assert task.runs == 1


def close_at(clock: ManualClock, timer: SystemTimer, now_ms: int, dropped: list[int]) -> None:
    while clock.now_ms() < now_ms:
        pass
    dropped.append(timer.close())


def drive_until_closed(clock: ManualClock, timer: SystemTimer) -> None:
    with suppress(TimerClosedError):
        drive(clock, timer, 100, step_ms=1)
    clock.advance(100)


def test_a_close_in_the_middle_loses_no_count() -> None:
    """Each task ran, was cancelled, or was dropped and counted: exactly one of the three."""
    for round_ in range(ROUNDS):
        clock = ManualClock()
        timer = SystemTimer("closed", clock=clock, executor=InlineExecutor())
        tasks = [Counted(1 + number % 60) for number in range(300)]
        for task in tasks:
            timer.add(task)
        dropped: list[int] = []
        cancelled: list[bool] = []

        run_together(
            partial(close_at, clock, timer, round_, dropped),
            partial(drive_until_closed, clock, timer),
            partial(cancel_all, cancelled, tasks[::3]),
        )
        assert sum(task.runs for task in tasks) + sum(cancelled) + dropped[0] == len(tasks)
        assert all(task.runs <= 1 for task in tasks)


# --- finalizers: the garbage collector runs them anywhere, also where a lock is held


class Rubbish:
    """A cycle whose finalizer calls a function and leaves another such cycle behind."""

    __slots__ = ("function", "itself")

    def __init__(self, function: Callable[[], object]) -> None:
        # Nothing is allocated from here on, so the collector finds it in its youngest generation.
        self.function = function
        self.itself = self

    def __del__(self) -> None:
        self.function()


@pytest.fixture
def _collector_at_every_object() -> Iterator[None]:
    """Let the garbage collector run at nearly every object that is made."""
    before = gc.get_threshold()
    # The collector would look through the leftovers of other tests, and so would run less often.
    gc.freeze()
    gc.collect()
    gc.set_threshold(1, 50, 50)
    yield
    gc.set_threshold(*before)
    gc.collect()


@pytest.mark.usefixtures("_collector_at_every_object")
def test_finalizers_may_add_and_cancel_in_the_middle_of_any_call() -> None:
    clock = ManualClock()
    timer = SystemTimer("finalized", clock=clock)
    ran: list[int] = []
    held: list[TimerTask] = []
    finalized = cancelled = 0
    stop = threading.Event()

    def in_finalizer() -> None:
        nonlocal finalized, cancelled
        if stop.is_set():
            return
        finalized += 1
        held.append(timer.call_later(finalized * 37 % 900, ran.append, finalized))
        if finalized % 3 == 0:
            cancelled += held[finalized // 2].cancel()
        Rubbish(in_finalizer)

    def add_and_drive() -> None:
        Rubbish(in_finalizer)
        for number in range(1_000):
            timer.call_later(number * 13 % 900, ran.append, -number)
            if number % 10 == 0:
                clock.advance(3)
                timer.advance_clock(0)

    run_together(add_and_drive)
    stop.set()
    gc.collect()
    assert finalized > 10, "the collector did not get in between"
    while timer.size:
        clock.advance(100)
        timer.advance_clock(0)
    timer.close()  # joins the worker
    timer._check()
    assert len(set(ran)) == len(ran), "a task ran twice"
    assert len(ran) + cancelled == finalized + 1_000, "a task was lost, or ran though cancelled"


@pytest.mark.pure
def test_finalizer_that_adds_during_a_levels_creation_finds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer = SystemTimer("nested", clock=ManualClock(), executor=InlineExecutor())
    finalizers: list[Callable[[], object]] = [lambda: timer.call_later(459, int)]

    def make_bucket_after_a_finalizer(*args: int) -> object:
        if finalizers:
            finalizers.pop()()
        return TimerTaskList(*args)

    monkeypatch.setattr("timer.timing_wheel.TimerTaskList", make_bucket_after_a_finalizer)
    timer.call_later(450, int)
    timer._check()
    assert timer.levels_in_use == 3
    assert timer.buckets_occupied == 1, "both are in the bucket of 400 to 800 ms"
    assert timer.size == 2


@pytest.mark.pure
def test_finalizer_that_adds_does_not_queue_a_bucket_twice() -> None:
    timer = SystemTimer("nested", clock=ManualClock(), executor=InlineExecutor())
    finalizers: list[Callable[[], object]] = [lambda: timer.call_later(5, int)]

    class Bucket(TimerTaskList):
        """A finalizer runs while the tuple is made that is put into the queue."""

        @property
        def level(self) -> int:
            if finalizers:
                finalizers.pop()()
            return 1

        @level.setter
        def level(self, level: int) -> None:
            pass

    timer._wheel.buckets[5] = Bucket(1, 5)
    timer.call_later(5, int)
    timer._check()
    assert not finalizers
    assert timer.buckets_occupied == 1
    assert timer.size == 2


def test_a_weak_reference_that_dies_may_cancel() -> None:
    clock = ManualClock()
    timer = SystemTimer("weak", clock=clock, executor=InlineExecutor())

    class Session:
        """Owns a timeout that must not outlive it."""

    session = Session()
    timeout = timer.call_later(50, print, "never printed")
    weakref.finalize(session, timeout.cancel)
    assert timer.size == 1
    del session
    assert timer.size == 0
