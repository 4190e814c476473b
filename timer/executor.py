"""Executors run the expired tasks: the driving thread, one worker, or the user's own pool.

Any object with ``submit(function, *args)`` will do, a ``concurrent.futures`` pool among them. The
two here exist because a future for each expired task costs ten times what handing it over does.

Ground rules
------------
* ``submit`` is called with no lock of the timer held.
* Both run one task at a time. A task submitted from inside a task runs after it: no recursion.
* ``submit`` may be interrupted by a finalizer that submits as well: no lock is waited for that the
  same thread may hold.
* An exception may come between any two steps (a signal's handler that raises): no lock stays held,
  since only ``with`` takes one, and a queued call is taken off and begun in one step.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from operator import call
from types import GeneratorType
from typing import Any, Protocol, TypeAlias, cast

from timer.durations import checked_timeout_s
from timer.locks import ScopedLock, module_lock
from timer.log import log_safely
from timer.wake import Wake

_lock = module_lock()

Calls = deque[Callable[[], Any]]
Runner: TypeAlias = "GeneratorType[bool, None, None]"


class TaskExecutor(Protocol):
    """The interface of a timer's executor."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Run ``function(*args)``, now or later, here or on another thread."""


class InlineExecutor:
    """Runs tasks at once, on the thread that submits them: for event loops and simulations.

    A task submitted while another one runs waits for that one's end and runs on its thread.
    """

    __slots__ = ("_due", "_runner")

    def __init__(self) -> None:
        self._after_fork()

    def _after_fork(self) -> None:
        self._due: Calls = deque()
        self._runner = _new_runner(self._due)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._due)} due>"

    def submit(self, function: Callable[..., Any], /, *args: Any) -> None:
        due = self._due
        due.append(partial(function, *args) if args else function)
        # Looked at again after each turn: a call that was appended meanwhile is ours.
        while due:
            runner = self._runner
            # No other thread can come between these two lines: neither calls Python.
            if runner.gi_running:
                return
            if not next(runner, False):
                self._replace(runner)

    def _replace(self, finished: Runner) -> None:
        """Create a new runner if ``finished``, which was interrupted, is still the current one."""
        with _lock:
            if self._runner is finished:
                self._runner = _new_runner(self._due)


def _new_runner(due: Calls) -> Runner:
    return cast(Runner, _run_calls(due))


def _run_calls(due: Calls) -> Iterator[bool]:
    """Make all calls that are due whenever the next value is asked for.

    The generator serves as a lock that nothing can leave taken: while it runs nobody else can have
    it run, and an exception that interrupts it ends it, so that others see that this turn is over.
    """
    calls = _calls(due)
    while True:
        while due:
            next(calls)
        yield True


class SingleThreadExecutor:
    """One worker thread, started with the first task.

    Args:
        name: the thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False
        self._after_fork()

    def _after_fork(self) -> None:
        """In the child: nothing is queued, and the next task starts a thread."""
        self._due: Calls = deque()
        self._wake = Wake()
        self._lock = ScopedLock()
        self._worker: threading.Thread | None = None

    def __repr__(self) -> str:
        closed = " closed" if self._closed else ""
        return f"<{type(self).__name__} {self._name!r}{closed}: {len(self._due)} due>"

    def submit(self, function: Callable[..., Any], /, *args: Any) -> None:
        """Queue the call.

        Raises:
            RuntimeError: the executor was shut down, or has no thread and can't start one.
        """
        if not self._has_worker() and not self._closed:
            self._start()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"executor {self._name!r} was shut down")
            self._due.append(partial(function, *args))
        self._wake.set()

    def shutdown(self, timeout_s: float | timedelta | None = None) -> None:
        """Run the queued calls and end the thread; wait for it, unless called by it.

        Args:
            timeout_s: the longest wait, in seconds or as a timedelta; by default there is no limit.
        """
        limit_s = checked_timeout_s(timeout_s, "timeout_s")
        with self._lock:
            self._closed = True
        self._wake.set()
        thread = self._worker
        if thread is None or not thread.is_alive():
            interrupt = self._work()  # the leftovers of a thread that could not go on
            if interrupt is not None:
                raise interrupt
        elif thread is not threading.current_thread() and not sys.is_finalizing():
            thread.join(None if limit_s > threading.TIMEOUT_MAX else limit_s)
            if thread.is_alive():
                log_safely("timer", "error", "executor_still_runs", executor=self._name)

    def _has_worker(self) -> bool:
        worker = self._worker
        return worker is not None and worker.is_alive()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        # Looked at again: a finalizer that ran while the thread was made may have started one.
        if not self._has_worker():
            thread.start()
            self._become_worker(thread)

    def _become_worker(self, thread: threading.Thread) -> bool:
        """Make a thread that was started the worker, if there is none. Say whether it is."""
        with self._lock:
            if not self._has_worker():
                self._worker = thread
            return self._worker is thread

    def _work(self) -> BaseException | None:
        """Make all calls until it is shut down; return the first interrupt."""
        interrupt: BaseException | None = None
        # If two threads were started at the same time, one is too many.
        if not self._become_worker(threading.current_thread()):
            return None
        calls = _calls(self._due)
        while True:
            try:
                closed = self._closed  # looked at first: nothing is queued after that
                while self._due:
                    next(calls)
                if closed:
                    return interrupt
                self._wake.wait()
            except BaseException as error:
                if interrupt is None and not isinstance(error, Exception):
                    interrupt = error
                # A SystemExit raised in one task must not end the worker of all the others.
                log_safely(
                    "timer", "error", "executor_task_failed", executor=self._name, exc_info=error
                )


def _calls(due: Calls) -> Iterator[Any]:
    """Return an iterator whose ``next`` takes the first call off ``due`` and makes it.

    Both happen in one step of the interpreter, and an exception can come only before or in the
    call, not between: a call that is taken off is made.
    """
    return map(call, iter(due.popleft, None))
