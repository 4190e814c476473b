"""Locks that no interrupt leaves taken, wherever CPython looks for signals.

``with`` gives a lock back by calling its ``__exit__``. The instructions that lead to this call are
covered by nothing: an interrupt that comes there leaves a usual lock taken for good. The places
where CPython looks for signals differ from version to version, so nothing here relies on them.

Ground rules
------------
* A lock is held by an object, its *hold*, and given back when that object goes.
* The ``__exit__`` that ``with`` looks up is a new hold. This hold is on the interpreter's stack
  alone, so it goes with the block, whichever way that is left: at its end, by ``return``, by an
  error, or by an interrupt before any instruction whatsoever.
* Taking the lock and making the hold is one call of C, and so is giving it back: a finalizer that
  is written in C. Hence no instruction of Python lies in between.
* A hold refers to nothing that the collector follows. Such objects go at once, however deep in a
  chain of others that go; and what has room on the stack for taking has room for giving back.
* A lock of a module is made anew in the child of a fork: there, nobody gives back what another
  thread of the parent has taken.
"""

from __future__ import annotations

import os
import threading
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self

_ignore = "".format  # in C: takes anything, and returns what is false


class ScopedLock:
    """A lock for ``with``, and for nothing else: already a look at its ``__exit__`` takes it.

    Args:
        lock: what is taken: an RLock of ``threading`` by default.
        take: functions that are called in turn until one returns True, when the lock is taken.
    """

    # No instance is ever made of it: a class can have a finalizer and an `__exit__` of its own.
    __slots__ = ()

    if TYPE_CHECKING:

        def __new__(cls, lock: Any = None, *take: Callable[[], object]) -> Self: ...
        def __enter__(self) -> object: ...
        def __exit__(self, *exception: object) -> None: ...
        def _is_owned(self) -> bool: ...
        def _at_fork_reinit(self) -> None: ...
        def locked(self) -> bool: ...

    else:

        def __new__(cls, lock=None, *take):
            if lock is None:
                lock = threading.RLock()
            hold = type("_Hold", (_Hold,), {"__slots__": (), "__del__": lock.release})
            taken = map(any, repeat(tuple(map(_Truth, take or (lock.acquire,)))))
            members = {
                "__slots__": (),
                "__enter__": get_ident,  # any function in C that does nothing
                "__exit__": property(partial(next, map(hold, taken))),
            }
            for name in ("_is_owned", "_at_fork_reinit", "locked"):
                if hasattr(lock, name):
                    members[name] = getattr(lock, name)
            return object.__new__(type(cls.__name__, (cls,), members))


class _Hold(float):  # a class in C that the collector does not follow
    __slots__ = ()
    __call__ = _ignore


class _Truth:
    """True as soon as its function, which is called each time, returns True."""

    __slots__ = ("__bool__",)

    def __init__(self, ask: Callable[[], object]) -> None:
        self.__bool__ = ask


_of_modules: list[ScopedLock] = []


def module_lock() -> ScopedLock:
    """Return a new lock for all that a module shares, which a child finds free after a fork."""
    lock = ScopedLock()
    _of_modules.append(lock)
    return lock


def _free_all() -> None:
    for lock in _of_modules:
        if not lock._is_owned():  # a finalizer may fork in the middle of a section
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
