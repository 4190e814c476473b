"""The lock of a purgatory's state, and those that users pass in with an operation.

Their order
-----------
A user's lock comes first: the state's lock and the timer's are taken within it, and never within
one another. The state's lock guards the watch lists, the pending operations and the counters.

The state's lock
----------------
* Taken by ``with`` only, reentrant (see ``interrupts``), and never left taken (``timer.locks``).
* No thread waits *in* it. A thread that did would be handed the lock while it does not run, and
  from then on each section would cost a switch of threads: two threads took five times as long for
  the same work. A thread that finds it taken sleeps for a moment, and tries again.
* Nothing is waited for under it, and no code of a user runs, except a key's ``__hash__`` and
  ``__eq__``, and finalizers.

A user's lock
-------------
* The user's lock is tried, never waited for, and never left taken by an interrupt.
* Taking it and noting that it is taken is one step of the interpreter, and so is giving it back and
  noting that: ``list += map(...)`` calls the lock's method from within. Hence the list always
  says whether the lock is ours.
* The lists of all locks that a thread holds hang together, the last one first. One is hung up
  before its lock is tried, and taken down by a store alone.
"""

from __future__ import annotations

import sys
from _thread import RLock
from collections.abc import Callable, Iterator
from functools import partial
from itertools import compress, cycle
from operator import call, methodcaller
from typing import Any, Protocol, Self, TypeAlias

from timer.locks import ScopedLock
from timer.log import safe_repr
from timer.machine_time import time

_NOT_WAITING = (False,)
_LAST = (-1,)
_PAUSE_S = 50e-6
_release = methodcaller("release")


class StateLock(ScopedLock):
    """The lock of one purgatory's state, in pure Python."""

    __slots__ = ()

    def __new__(cls) -> Self:
        lock = RLock()
        take = partial(lock.acquire, False)
        pauses: Iterator[Callable[[], Any]] = cycle((partial(_pause, lock), take))
        wait = partial(next, filter(None, map(call, pauses)))
        return super().__new__(cls, lock, take, wait)


def _pause(lock: Any) -> None:
    if sys.is_finalizing():
        lock._at_fork_reinit()  # a thread that will never run again may have it
    else:
        time.sleep(_PAUSE_S)


class LockLike(Protocol):
    """The methods of a lock that a user may pass in, as of ``threading``'s Lock and RLock."""

    def acquire(self, blocking: bool = ..., /) -> bool:
        """Take the lock; if not ``blocking``, only if it is free."""

    def release(self) -> None:
        """Give it back."""


def check_lock(lock: object) -> None:
    """Raise TypeError if ``lock`` can't be one."""
    if isinstance(lock, type) or not (hasattr(lock, "acquire") and hasattr(lock, "release")):
        raise TypeError(
            f"lock must have acquire and release, as threading.Lock() has: {safe_repr(lock)}"
        )


Held: TypeAlias = "tuple[list[LockLike], Held | None]"
"""A lock that a thread holds for a callback, or an empty list if it doesn't hold it yet or any
more; and those that it held before."""


class Holder(Protocol):
    """The trampoline of a thread, as far as locks go."""

    held: Held | None


def do_under(lock: LockLike, holder: Holder, work: Callable[[], bool]) -> bool | None:
    """Return what ``work`` returns under ``lock``, or None if the lock is taken."""
    ours: list[LockLike] = []
    before = holder.held
    try:
        holder.held = (ours, before)
        ours += compress((lock,), map(lock.acquire, _NOT_WAITING))
        if not ours:
            holder.held = before
            return None
        result = work()
        [].extend(map(_release, map(ours.pop, _LAST)))
        holder.held = before
        return result
    except BaseException:
        holder.held = before
        for taken in ours:
            taken.release()
        raise


def locks_held(holder: Holder) -> Iterator[LockLike]:
    """Yield the users' locks that are held there, the last one first."""
    held = holder.held
    while held is not None:
        locks, held = held
        yield from locks
