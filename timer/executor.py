"""Who runs the expired tasks: the driving thread itself, one worker, or the user's own pool.

Any object with ``submit(function, *args)`` will do, a ``concurrent.futures`` pool among them. The
two here exist because a future for each expired task costs ten times what handing it over does.

Ground rules
------------
* ``submit`` is called with no lock of the timer held.
* Both run one task at a time. What is submitted from inside a task runs after it: no recursion.
* ``submit`` may be interrupted by a finalizer that submits as well: no lock is waited for that the
  same thread may hold.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from timer.safe_log import log_safely


class TaskExecutor(Protocol):
    """What a timer asks of its executor."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Run ``function(*args)``, now or later, here or on another thread."""


class InlineExecutor:
    """Runs tasks at once, on the thread that submits them: for event loops and simulations.

    A task submitted while another one runs waits for that one's end and runs on its thread.
    """

    __slots__ = ("_busy", "_due")

    def __init__(self) -> None:
        self._after_fork()

    def _after_fork(self) -> None:
        self._due: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._busy = threading.Lock()

    def submit(self, function: Callable[..., Any], /, *args: Any) -> None:
        self._due.append((function, args))
        # Looked at again after each release: what was appended while we held the lock is ours.
        while self._due and self._busy.acquire(False):
            try:
                while self._due:
                    due, due_args = self._due.popleft()
                    due(*due_args)
            finally:
                self._busy.release()


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
        self._due: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[..., Any], /, *args: Any) -> None:
        """Queue the call.

        Raises:
            RuntimeError: the executor was shut down.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError(f"executor {self._name!r} was shut down")
            if self._thread is None:
                self._start()
            self._due.put((function, args))

    def shutdown(self, timeout_s: float | None = None) -> None:
        """Run what is queued, then end the thread; wait for it, unless this is that thread.

        Args:
            timeout_s: the longest wait, in seconds; by default there is no limit.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._due.put(None)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
            if thread.is_alive():
                log_safely("timer", "error", "executor_still_runs", executor=self._name)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        # Looked at again: a finalizer that ran while the thread was made may have started one.
        if self._thread is None:
            self._thread = thread
            thread.start()

    def _work(self) -> None:
        while (item := self._due.get()) is not None:
            function, args = item
            try:
                function(*args)
            except BaseException as error:
                # A SystemExit raised in one task must not end the worker of all the others.
                log_safely(
                    "timer", "error", "executor_task_failed", executor=self._name, exc_info=error
                )
