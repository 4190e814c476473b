"""Locks that note in which order they are taken, and a search for cycles in that order.

A lock is named after where it is made: ``watchers.lock``, ``system_timer._lock``; all locks that
are made there have one name. An edge from one name to another says that some thread waited, or
would have waited, for the second while it held the first. A try does not wait: it makes no edge,
but its lock is held all the same.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from _thread import RLock as RealRLock
from _thread import allocate_lock
from pathlib import Path
from types import FrameType
from typing import Any

Edge = tuple[str, str]


class LockRecorder:
    """Knows the order of all recorded locks, and those that the current thread holds.

    Args:
        signals: names of locks that one thread waits for and another releases: nobody holds them.
    """

    def __init__(self, signals: frozenset[str] = frozenset()) -> None:
        self.signals = signals
        self.edges: dict[Edge, str] = {}
        self.waited_for: set[str] = set()
        self.tried: set[str] = set()
        self._local = threading.local()

    @property
    def held(self) -> list[RecordedLock]:
        """The locks of the current thread, in the order in which they were taken."""
        held: list[RecordedLock] | None = getattr(self._local, "held", None)
        if held is None:
            held = self._local.held = []
        return held

    def note(self, lock: RecordedLock, blocking: bool) -> None:
        """Note that the current thread is about to take ``lock``."""
        if not blocking:
            self.tried.add(lock.name)
            return
        held = self.held
        if any(other is lock for other in held):
            return  # taken again by its holder: nothing to wait for
        self.waited_for.add(lock.name)
        for other in held:
            edge = (other.name, lock.name)
            if edge not in self.edges:
                self.edges[edge] = _where()

    def cycle(self) -> list[str]:
        """Return the names along a cycle of the order, or nothing if there is none."""
        following: dict[str, list[str]] = {}
        for before, after in self.edges:
            following.setdefault(before, []).append(after)
        finished: set[str] = set()

        def search(name: str, path: list[str]) -> list[str]:
            if name in path:
                return [*path[path.index(name) :], name]
            if name not in finished:
                for after in following.get(name, []):
                    if found := search(after, [*path, name]):
                        return found
                finished.add(name)
            return []

        return next((found for name in following if (found := search(name, []))), [])

    def stand_ins(self) -> dict[str, dict[str, object]]:
        """Return a fresh core's replacements of the locks of ``threading``."""
        return {
            "threading": {
                "Lock": lambda: RecordedLock(self, allocate_lock()),
                "RLock": lambda: RecordedRLock(self, RealRLock()),
                "StateLock": lambda: RecordedRLock(self, RealRLock(), "state.lock"),
            }
        }


class RecordedLock:
    """A real lock that tells its recorder."""

    def __init__(self, recorder: LockRecorder, lock: Any, name: str | None = None) -> None:
        self.name = name or _name_of_lock()
        self._recorder = recorder
        self._lock = lock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, as ``threading``'s."""
        self._recorder.note(self, blocking)
        taken: bool = self._lock.acquire(blocking, timeout)
        if taken and self.name not in self._recorder.signals:
            self._recorder.held.append(self)
        return taken

    def release(self) -> None:
        """Give it back."""
        if self.name not in self._recorder.signals:
            held = self._recorder.held
            del held[len(held) - 1 - held[::-1].index(self)]
        self._lock.release()

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return bool(self._lock.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class RecordedRLock(RecordedLock):
    """A real reentrant lock; calls of a condition are passed on."""

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> tuple[Any, int]:
        held = self._recorder.held
        depth = held.count(self)
        held[:] = [lock for lock in held if lock is not self]
        return self._lock._release_save(), depth

    def _acquire_restore(self, saved: tuple[Any, int]) -> None:
        state, depth = saved
        self._recorder.note(self, blocking=True)
        self._lock._acquire_restore(state)
        self._recorder.held.extend([self] * depth)


def _outside(frame: FrameType | None) -> FrameType:
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    assert frame is not None
    return frame


def _name_of_lock() -> str:
    frame = _outside(sys._getframe())
    while Path(frame.f_code.co_filename).name == "locks.py" and frame.f_back is not None:
        frame = frame.f_back
    path = frame.f_code.co_filename
    line = linecache.getline(path, frame.f_lineno)
    attribute = re.search(r"(\w+) = ", line)
    assert attribute is not None, f"a lock is made in a way that gives it no name: {line!r}"
    return f"{Path(path).stem}.{attribute[1]}"


def _where() -> str:
    frame = _outside(sys._getframe())
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
