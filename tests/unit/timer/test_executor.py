"""Executors run expired tasks: the driving thread, one worker, or a pool of the user's."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import pytest
import structlog

from tests.unit.timer.named_task import NamedTask
from timer import InlineExecutor, ManualClock, SystemTimer
from timer.backend import NATIVE
from timer.executor import SingleThreadExecutor, _new_runner

LONG_S = 60


@pytest.fixture
def worker() -> Iterator[SingleThreadExecutor]:
    executor = SingleThreadExecutor("the-worker")
    yield executor
    executor.shutdown()


# --- inline


def test_inline_runs_on_the_thread_that_submits() -> None:
    threads: list[int] = []
    InlineExecutor().submit(lambda: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]


def test_inline_runs_the_tasks_of_a_task_after_it() -> None:
    executor = InlineExecutor()
    ran: list[str] = []

    def outer() -> None:
        executor.submit(ran.append, "inner")
        ran.append("outer")

    executor.submit(outer)
    assert ran == ["outer", "inner"]


def test_inline_has_the_running_thread_run_the_tasks_of_another() -> None:
    executor = InlineExecutor()
    ran: list[tuple[str, int]] = []

    def submit() -> None:
        executor.submit(lambda: ran.append(("other", threading.get_ident())))

    def first() -> None:
        other = threading.Thread(target=submit)
        other.start()
        other.join(LONG_S)
        ran.append(("first", threading.get_ident()))

    executor.submit(first)
    here = threading.get_ident()
    assert ran == [("first", here), ("other", here)]


def test_inline_executor_runs_a_task_submitted_as_its_turn_ends() -> None:
    executor = InlineExecutor()
    ran: list[str] = []
    others = [threading.Thread(target=executor.submit, args=(ran.append, "late"))]

    class SubmitsBeforeTheEnd(deque[Callable[[], Any]]):
        """Another thread submits when a turn has had its last look, and is not over yet."""

        def __bool__(self) -> bool:
            filled = len(self) > 0
            if others and not filled:
                other = others.pop()
                other.start()
                other.join(LONG_S)
                assert ran == ["first"], "it was not for the other thread to run"
            return filled

    executor._due = SubmitsBeforeTheEnd()
    executor._runner = _new_runner(executor._due)
    executor.submit(ran.append, "first")
    assert ran == ["first", "late"]


def test_inline_executor_has_one_runner_after_an_interrupt() -> None:
    executor = InlineExecutor()
    ended = executor._runner
    executor._replace(ended)
    replaced = executor._runner
    assert replaced is not ended
    executor._replace(ended)
    assert executor._runner is replaced


def test_inline_resumes_after_an_interrupt() -> None:
    executor = InlineExecutor()
    ran: list[str] = []

    def interrupt() -> None:
        executor.submit(ran.append, "left over")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.submit(interrupt)
    executor.submit(ran.append, "next")
    assert ran == ["left over", "next"]


# --- one worker


def test_the_worker_runs_all_in_order_on_one_thread_of_its_name(
    worker: SingleThreadExecutor,
) -> None:
    ran: list[tuple[int, str]] = []
    for number in range(100):
        worker.submit(lambda number=number: ran.append((number, threading.current_thread().name)))
    worker.shutdown()
    assert ran == [(number, "the-worker") for number in range(100)]


def test_an_idle_worker_has_no_thread() -> None:
    executor = SingleThreadExecutor("idle-worker")
    executor.shutdown()
    assert "idle-worker" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_the_worker_survives_every_exception_of_a_task(
    worker: SingleThreadExecutor, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error("on purpose")

    ran: list[str] = []
    worker.submit(fail)
    worker.submit(ran.append, "after")
    worker.shutdown()
    assert ran == ["after"]
    assert "executor_task_failed" in caplog.text


def test_worker_takes_nothing_after_shutdown(worker: SingleThreadExecutor) -> None:
    worker.submit(int)
    worker.shutdown()
    worker.shutdown()
    with pytest.raises(RuntimeError, match="executor 'the-worker' was shut down"):
        worker.submit(int)


def test_shutdown_on_the_workers_thread_does_not_wait_for_itself(
    worker: SingleThreadExecutor,
) -> None:
    done = threading.Event()

    def end() -> None:
        worker.shutdown()
        done.set()

    worker.submit(end)
    assert done.wait(LONG_S)


def test_a_shutdown_gives_up_waiting_after_its_timeout(
    worker: SingleThreadExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    worker.submit(go_on.wait, LONG_S)
    worker.shutdown(timeout_s=0.01)
    assert "executor_still_runs" in caplog.text
    go_on.set()


def test_a_log_that_raises_does_not_escape_from_a_shutdown(worker: SingleThreadExecutor) -> None:
    logged: list[object] = []

    def broken(_logger: object, _method: str, entry: structlog.typing.EventDict) -> NoReturn:
        logged.append(entry["event"])
        raise BrokenPipeError("nobody reads the log")

    structlog.configure(processors=[broken])
    go_on = threading.Event()
    worker.submit(go_on.wait, LONG_S)
    worker.shutdown(timeout_s=0.01)
    go_on.set()
    assert logged == ["executor_still_runs"]


def test_finalizer_that_submits_during_a_start_starts_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The garbage collector may run a finalizer wherever an object is made: here, a thread."""
    worker = SingleThreadExecutor("the-worker")
    make_thread = threading.Thread
    made: list[threading.Thread] = []
    ran: list[str] = []

    def make_after_a_finalizer(*args: object, **kwargs: object) -> threading.Thread:
        if not made:
            made.append(make_thread())
            worker.submit(ran.append, "from the finalizer")
        made.append(make_thread(*args, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    def submit() -> None:
        worker.submit(ran.append, "from the thread")

    monkeypatch.setattr(threading, "Thread", make_after_a_finalizer)
    submitter = make_thread(target=submit, daemon=True)
    submitter.start()
    submitter.join(LONG_S)
    assert not submitter.is_alive(), "it waits for a lock that it holds"
    started = [thread for thread in made if thread.ident is not None]
    assert len(started) == 1
    worker.shutdown()
    assert ran == ["from the finalizer", "from the thread"]


# --- with a timer


def test_a_slow_task_delays_no_other_in_a_pool() -> None:
    clock = ManualClock()
    slow_goes_on, quick_ran = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        timer = SystemTimer("pooled", clock=clock, executor=pool)
        timer.call_later(5, slow_goes_on.wait, LONG_S)
        timer.call_later(5, quick_ran.set)
        clock.advance(5)
        timer.advance_clock()
        assert quick_ran.wait(LONG_S), "it had to wait for the slow one"
        assert not slow_goes_on.is_set()
        slow_goes_on.set()
    timer.close()


def test_a_task_that_waits_for_a_slow_worker_can_still_be_cancelled() -> None:
    clock = ManualClock()
    timer = SystemTimer("slow", clock=clock)
    started, go_on = threading.Event(), threading.Event()
    ran: list[object] = []

    def slow() -> None:
        started.set()
        go_on.wait(LONG_S)

    victim = NamedTask(5, "victim", ran)
    timer.call_later(5, slow)
    timer.add(victim)
    timer.add(NamedTask(5, "other", ran))
    clock.advance(5)
    timer.advance_clock()
    assert started.wait(LONG_S)
    assert timer.size == 2, "tasks that wait for the worker are pending"
    assert victim.cancel()
    assert timer.size == 1
    other_done = threading.Event()
    timer.call_later(0, other_done.set)
    timer.advance_clock()
    go_on.set()
    assert other_done.wait(LONG_S)
    assert ran == ["other"]
    timer.close()


def test_task_runs_on_the_driving_thread_after_a_pools_shutdown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    pool = ThreadPoolExecutor(1)
    timer = SystemTimer("orphan", clock=clock, executor=pool)
    threads: list[int] = []
    timer.call_later(5, lambda: threads.append(threading.get_ident()))
    pool.shutdown()
    clock.advance(5)
    timer.advance_clock()
    assert threads == [threading.get_ident()]
    assert "timer_executor_refused" in caplog.text


@pytest.fixture
def _no_thread_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first worker fail to start, as where the system has no more threads."""
    start = threading.Thread.start
    failures = [RuntimeError("can't start new thread")]

    def start_or_fail(thread: threading.Thread) -> None:
        if failures and thread.name.endswith("the-worker"):
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)


@pytest.mark.usefixtures("_no_thread_at_first")
def test_worker_that_failed_to_start_starts_with_the_next_task() -> None:
    worker = SingleThreadExecutor("the-worker")
    ran: list[str] = []
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.submit(ran.append, "refused")
    worker.submit(ran.append, "taken")
    worker.shutdown(LONG_S)
    assert ran == ["taken"]


@pytest.mark.usefixtures("_no_thread_at_first")
def test_a_worker_that_never_started_is_shut_down_without_an_error() -> None:
    worker = SingleThreadExecutor("the-worker")
    with pytest.raises(RuntimeError):
        worker.submit(int)
    worker.shutdown(LONG_S)


@pytest.mark.usefixtures("_no_thread_at_first")
def test_tasks_run_on_the_driving_thread_without_a_worker() -> None:
    clock = ManualClock()
    timer = SystemTimer("the-worker", clock=clock)
    threads: list[str] = []
    for _ in range(2):
        timer.call_later(5, lambda: threads.append(threading.current_thread().name))
        clock.advance(5)
        timer.advance_clock()
    while timer.size:
        pass  # the worker is behind
    timer.close()
    assert threads == [threading.current_thread().name, "executor-the-worker"]


class Later:
    """A pool whose tasks run when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any) -> None:
        self.calls.append(partial(function, *args))

    def run_all(self) -> None:
        while self.calls:
            self.calls.pop()()


def test_pool_frees_the_tasks_it_ran_and_counts_the_others() -> None:
    clock, pool = ManualClock(), Later()
    timer = SystemTimer("pool", clock=clock, executor=pool)
    for number in range(1_000):
        timer.call_later(1, int)
        clock.advance(1)
        timer.advance_clock()
        if number < 990:
            pool.run_all()
    if not NATIVE:
        assert len(timer._buckets()) < 25, "the containers of a thousand buckets are not kept"
    assert timer.size == 10
    timer.call_later(0, int)
    assert timer.size == 11
    pool.run_all()
    assert timer.size == 0


@pytest.mark.parametrize("how", ["added again", "cancelled, then added again"])
def test_task_added_again_while_in_a_pool_waits_for_its_new_time(how: str) -> None:
    clock, pool = ManualClock(), Later()
    timer = SystemTimer("pool", clock=clock, executor=pool)
    ran: list[object] = []
    session = NamedTask(5, "ended", ran)
    timer.add(session)
    clock.advance(5)
    timer.advance_clock()
    if how != "added again":
        assert session.cancel()
    session.delay_ms = 1_000
    timer.add(session)
    pool.run_all()
    assert (ran, timer.size) == ([], 1)
    clock.advance(1_000)
    timer.advance_clock()
    pool.run_all()
    assert (ran, timer.size) == (["ended"], 0)


def test_a_pool_that_is_interrupted_loses_no_task() -> None:
    class Interrupted(Later):
        def submit(self, function: Callable[..., Any], /, *args: Any) -> None:
            if interrupts:
                raise interrupts.pop()
            super().submit(function, *args)

    interrupts = [KeyboardInterrupt()]
    clock, pool = ManualClock(), Interrupted()
    timer = SystemTimer("pool", clock=clock, executor=pool)
    ran: list[object] = []
    for name in "ab":
        timer.add(NamedTask(5, name, ran))
    clock.advance(5)
    with pytest.raises(KeyboardInterrupt):
        timer.advance_clock()
    assert timer.size == 2
    timer.advance_clock()
    pool.run_all()
    assert (sorted(map(str, ran)), timer.size) == (["a", "b"], 0)


# --- fork


@pytest.mark.own_process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_of_a_busy_parent_runs_its_own_tasks() -> None:
    clock = ManualClock()
    timer = SystemTimer("forked", clock=clock)
    begun, go_on = threading.Event(), threading.Event()
    parents = threading.Event()

    def keep_the_worker_busy() -> None:
        with timer._executor._lock:  # type: ignore[attr-defined]  # as a submit does for a moment
            begun.set()
            assert go_on.wait(LONG_S)

    timer.call_later(1, parents.set)
    timer.call_later(0, keep_the_worker_busy)
    assert begun.wait(LONG_S)
    child = os.fork()
    if child == 0:
        done = threading.Event()
        signal.alarm(LONG_S)  # lest it waits for the parent's lock for ever
        timer.call_later(2, done.set)
        clock.advance(2)
        timer.advance_clock()
        os._exit(0 if done.wait(LONG_S) and not parents.is_set() else 1)
    go_on.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    clock.advance(1)
    timer.advance_clock()
    assert parents.wait(LONG_S)
    timer.close()


@pytest.mark.own_process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_waits_for_no_lock_and_cancels_no_parents_task() -> None:
    clock, ran = ManualClock(), list[str]()
    timer = SystemTimer("forked", clock=clock, executor=InlineExecutor())
    task = timer.call_later(5, ran.append, "the parent's")
    begun, go_on = threading.Event(), threading.Event()

    def label(_: object) -> None:
        begun.set()
        assert go_on.wait(LONG_S)

    looker = threading.Thread(target=timer.snapshot, args=(label,))  # this holds the timer's lock
    looker.start()
    assert begun.wait(LONG_S)
    child = os.fork()
    if child == 0:
        signal.alarm(LONG_S)  # lest it waits for the parent's lock for ever
        found = task.cancel() or timer.size
        timer.call_later(0, ran.append, "the child's")
        clock.advance(5)
        timer.advance_clock()
        os._exit(0 if not found and ran == ["the child's"] else 1)
    go_on.set()
    looker.join(LONG_S)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert task.cancel()
