"""What would leave a virtual world is refused, before it happens: sockets, threads, processes.

Ground rules
------------
* Python's audit hooks can't be taken away again. There is one for all worlds, which looks only
  while one is entered, at what the thread does that entered it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from threading import get_ident
from typing import Any, Final

from purgatory.virtual.errors import LeavingWorldError, WorldError

KINDS: Final = ("sockets", "threads", "processes")
"""What may be allowed by name."""

_SOCKETS = (
    "sockets",
    "a real socket was asked for in a virtual world; connect and listen with asyncio "
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
_REFUSED: Final = {
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


class _Border:
    """Whom it holds, and what they may do."""

    thread_id = 0
    allowed: frozenset[str] = frozenset()
    is_watched = False


def _look(event: str, arguments: Any) -> None:
    if not _Border.thread_id or event not in _REFUSED or _Border.thread_id != get_ident():
        return
    kind, advice = _REFUSED[event]
    if kind not in _Border.allowed:
        raise LeavingWorldError(f"{advice}; or allow it: World(allow=[{kind!r}])")


_start_thread = threading.Thread.start


def _refuse_thread(thread: threading.Thread) -> None:
    """`threading.Thread.start`: before Python 3.12 nobody is told of a thread that starts."""
    _look("_thread.start_new_thread", ())
    _start_thread(thread)


def checked_kinds(allow: Iterable[str]) -> frozenset[str]:
    """Return what is to be allowed.

    Raises:
        WorldError: one of them is no kind.
    """
    allowed = frozenset(allow)
    if unknown := sorted(allowed - set(KINDS)):
        raise WorldError(f"allow: there is no {unknown[0]!r}; there are {', '.join(KINDS)}")
    return allowed


def close_border(allowed: frozenset[str]) -> None:
    """Refuse this thread what is not allowed."""
    if not _Border.is_watched:
        sys.addaudithook(_look)
        _Border.is_watched = True
    _Border.thread_id, _Border.allowed = get_ident(), allowed
    threading.Thread.start = _refuse_thread  # type: ignore[method-assign,assignment]


def open_border() -> None:
    """Refuse nothing more."""
    _Border.thread_id = 0
    threading.Thread.start = _start_thread  # type: ignore[method-assign]
