"""The sandbox of a world: it refuses sockets, threads and processes.

Signals are deferred while they would do harm: Python calls a handler wherever the program is, and
an exception in the first step of an ``__exit__`` would leave patches behind. Calls of anyio on
threads run as calls on an executor do in a world, so FastAPI, Starlette and others may mix plain
functions and coroutines.

Ground rules
------------
* Python's audit hooks can't be removed. One hook serves all worlds: it checks only while a world is
  entered, and only the thread that entered it.
* Python handles signals on the main thread, so only worlds on that thread defer any.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Any, Final

from purgatory.settings.problems import known_names
from purgatory.virtual.built_in_function import call_in, outer_frame
from purgatory.virtual.errors import DeadlockError, SandboxError, WorldError

KINDS: Final = ("sockets", "threads", "processes")
"""The kinds that can be allowed."""

_SOCKETS = (
    "sockets",
    "a real socket was about to be made in a virtual world; connect and listen with asyncio "
    "(open_connection, start_server), whose connections are in memory there",
)

_THREADS = (
    "threads",
    "a thread was about to start in a virtual world; use asyncio.to_thread or run_in_executor, "
    "whose calls the world makes at moments that its seed decides",
)

_PROCESSES = (
    "processes",
    "a process was about to start in a virtual world; run its work as a coroutine in the world",
)

_BLOCKED_FUNCTIONS: Final = {
    "socket.__new__": _SOCKETS,
    "socket.getaddrinfo": _SOCKETS,
    "socket.gethostbyname": _SOCKETS,
    "_thread.start_new_thread": _THREADS,
    "_thread.start_joinable_thread": _THREADS,
    "subprocess.Popen": _PROCESSES,
    "os.fork": _PROCESSES,
    "os.forkpty": _PROCESSES,
    "os.posix_spawn": _PROCESSES,
    "os.system": _PROCESSES,
    "os.exec": _PROCESSES,
}

_IMPORT_FRAME: Final = "<frozen importlib._bootstrap>"


class _Sandbox:
    """The sandboxed thread, and its allowed kinds."""

    thread_id = 0
    allowed: frozenset[str] = frozenset()
    is_watched = False


def _audit(event: str, arguments: Any) -> None:
    if (
        not _Sandbox.thread_id
        or event not in _BLOCKED_FUNCTIONS
        or _Sandbox.thread_id != get_ident()
    ):
        return
    kind, advice = _BLOCKED_FUNCTIONS[event]
    if kind not in _Sandbox.allowed:
        if module := _imported_module():
            advice = f"{advice}. The call was in an import: import {module} before the world begins"
        raise SandboxError(f"{advice}; or allow it: World(allow=[{kind!r}])")


def _imported_module() -> str | None:
    """Return the outermost module that this thread is importing, or None."""
    found: str | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_FRAME and frame.f_code.co_name == "_find_and_load":
            found = frame.f_locals.get("name", found)
        frame = frame.f_back
    return found


_TIMEOUT_PLUGIN: Final = "pytest_timeout"
"""The pytest plugin that ends tests after a timeout, by a thread that it may start in the test."""

_start_thread = threading.Thread.start


def _raise_for_thread(thread: threading.Thread) -> None:
    """`threading.Thread.start`: before Python 3.12 no audit event reports a new thread."""
    function = getattr(thread, "function", None)
    if (
        getattr(function, "__module__", "") == _TIMEOUT_PLUGIN
    ):  # the plugin's thread is no part of the world
        thread_id, _Sandbox.thread_id = _Sandbox.thread_id, 0
        try:
            _start_thread(thread)
        finally:
            _Sandbox.thread_id = thread_id
        return
    _audit("_thread.start_new_thread", ())
    _start_thread(thread)


_original_wait = threading.Condition.wait
_THREADS_TIMEOUT_S: Final = 5.0
"""The longest wait, without a timeout, for a thread from before the world."""

_POLL_INTERVAL_S: Final = 0.05


def _wait(condition: threading.Condition, timeout: float | None = None) -> bool:
    """`threading.Condition.wait`, also for events, queues and futures.

    Only a thread from before the world can notify it, else the timeout passes in the world's time.
    """
    is_blocked = _Sandbox.thread_id == get_ident() and "threads" not in _Sandbox.allowed
    if not is_blocked or (timeout is not None and timeout <= 0):
        return _original_wait(condition, timeout)
    limit_s = 0.0
    if threading.active_count() > 1:
        limit_s = _THREADS_TIMEOUT_S if timeout is None else min(timeout, _POLL_INTERVAL_S)
    if _original_wait(condition, limit_s):
        return True
    if timeout is None:
        raise DeadlockError(
            "a call waits, without a timeout, for another thread, and a virtual world has none: "
            "await it on the loop, or allow threads: World(allow=['threads'])"
        )
    time.sleep(timeout)
    return False


try:
    import _posixsubprocess
except ImportError:  # Windows
    _posixsubprocess = None  # type: ignore[assignment]

_fork_exec: Any = getattr(_posixsubprocess, "fork_exec", None)


def _raise_for_process(*arguments: Any) -> Any:
    """Called by `multiprocessing` to spawn processes, which no audit event reports."""
    _audit("subprocess.Popen", ())
    return _fork_exec(*arguments)


def checked_kinds(allow: Iterable[str]) -> frozenset[str]:
    """Return the kinds as a set.

    Raises:
        WorldError: a kind is unknown.
    """
    allowed = frozenset(allow)
    if unknown := sorted(allowed - set(KINDS)):
        raise WorldError(f"allow: there is no {unknown[0]!r}; {known_names(unknown[0], KINDS)}")
    return allowed


def enter_sandbox(allowed: frozenset[str]) -> None:
    """Begin to refuse all other kinds on this thread."""
    if not _Sandbox.is_watched:
        sys.addaudithook(_audit)
        _Sandbox.is_watched = True
    _Sandbox.thread_id, _Sandbox.allowed = get_ident(), allowed
    threading.Thread.start = _raise_for_thread  # type: ignore[method-assign,assignment]
    threading.Condition.wait = _wait  # type: ignore[method-assign,assignment]
    if _fork_exec is not None:
        _posixsubprocess.fork_exec = _raise_for_process


def leave_sandbox() -> None:
    """End the sandbox."""
    _Sandbox.thread_id = 0
    threading.Thread.start = _start_thread  # type: ignore[method-assign]
    threading.Condition.wait = _original_wait  # type: ignore[method-assign]
    if _fork_exec is not None:
        _posixsubprocess.fork_exec = _fork_exec


_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGALRM") if hasattr(signal, name)
)
"""Signals whose handlers raise: Ctrl-C, and a test's timeout."""


# The functions of C, as Python's wrappers look each handler up in an enumeration, slowly.
_handler_of: Final[Callable[[int], Any]] = inspect.unwrap(signal.getsignal)
_set_handler: Final[Callable[[int, Any], Any]] = inspect.unwrap(signal.signal)


class DeferredSignals:
    """Defers signals between `begin` and `end`.

    A signal waits while patches are removed, or until the replacement of a function of C returns.

    Args:
        exiting: a method in which signals are deferred, but not in the functions that it calls.
        restoring: a method in which signals are deferred, also in the functions that it calls.
    """

    def __init__(self, exiting: Callable[..., Any], restoring: Callable[..., Any]) -> None:
        self._exiting = exiting.__code__
        self._restoring = restoring.__code__
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._deferred: list[int] = []

    def begin(self) -> None:
        """Begin to defer signals that have handlers, on the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            handler = _handler_of(number)
            if callable(handler):
                self._handlers[number] = handler
                _set_handler(number, self._handle)

    def end(self) -> None:
        """End, and handle deferred signals. Idempotent."""
        for number, handler in self._handlers.items():
            if _handler_of(number) == self._handle:
                _set_handler(number, handler)
        while self._deferred:
            number = self._deferred.pop()
            self._handlers[number](number, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_deferred_in(frame):
            self._deferred.append(number)
            return
        handler = self._handlers[number]
        outer = outer_frame(frame)
        if outer is None:
            handler(number, frame)
        else:
            call_in(outer, partial(handler, number, outer))

    def _is_deferred_in(self, frame: FrameType | None) -> bool:
        if frame is not None and frame.f_code is self._exiting:
            return True
        while frame is not None and frame.f_code is not self._restoring:
            frame = frame.f_back
        return frame is not None


_BACKEND: Final = "anyio._backends._asyncio"


class AnyioCalls:
    """Runs anyio's calls on the loop of a world, between `begin` and `end`."""

    def __init__(self) -> None:
        self._backend: Any = None
        self._original: Any = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, once anyio is imported. Idempotent."""
        if "anyio" not in sys.modules or self._backend is not None:
            return
        backend: Any = getattr(importlib.import_module(_BACKEND), "backend_class", None)
        if backend is None:
            return  # the threads of an anyio before 4 are refused as all others
        original = backend.run_sync_in_worker_thread

        async def call(
            func: Callable[..., Any],
            args: tuple[Any, ...],
            abandon_on_cancel: bool = False,
            limiter: Any = None,
        ) -> Any:
            if asyncio.get_running_loop() is not loop:
                return await original(func, args, abandon_on_cancel, limiter)
            await backend.checkpoint()
            async with limiter or backend.current_default_thread_limiter():
                context = contextvars.copy_context()
                called = loop.run_in_executor(None, partial(context.run, func, *args))
                with backend.create_cancel_scope(shield=not abandon_on_cancel):
                    return await called

        self._backend, self._original = backend, backend.__dict__["run_sync_in_worker_thread"]
        backend.run_sync_in_worker_thread = staticmethod(call)

    def end(self) -> None:
        """End: restore anyio's function."""
        if self._backend is not None:
            self._backend.run_sync_in_worker_thread = self._original
            self._backend = None
