"""A lock that a user passed in: tried, never waited for, and never left taken by an interrupt.

Ground rules
------------
* Taking the lock and noting that it is taken is one step of the interpreter, and so is giving it
  back and noting that: ``list += map(...)`` calls the lock's method from within. So whatever comes
  in between, the list says whether the lock is ours.
* The lists of all locks that a thread holds hang together, the last one first. One is hung up
  before its lock is tried, and taken down by a store alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import compress
from operator import methodcaller
from typing import Protocol, TypeAlias

from purgatory.core.lock_like import LockLike

_NOT_WAITING = (False,)
_LAST = (-1,)
_release = methodcaller("release")


Held: TypeAlias = "tuple[list[LockLike], Held | None]"
"""A lock that a thread holds for a callback, or an empty list if it doesn't hold it yet or any
more; and those that it held before."""


class Holder(Protocol):
    """What a thread is in the middle of."""

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
