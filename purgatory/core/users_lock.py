"""A lock that a user passed in: tried, never waited for, and never left taken by an interrupt.

Ground rules
------------
* Taking the lock and noting that it is taken is one step of the interpreter, and so is giving it
  back and noting that: ``list += map(...)`` calls the lock's method from within. So whatever comes
  in between, the list says whether the lock is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from operator import methodcaller

from purgatory.core.lock_like import LockLike

_NOT_WAITING = (False,)
_LAST = (-1,)
_release = methodcaller("release")


def do_under(lock: LockLike, work: Callable[[], bool]) -> bool | None:
    """Return what ``work`` returns under ``lock``, or None if the lock is taken."""
    ours: list[LockLike] = []
    try:
        ours += compress((lock,), map(lock.acquire, _NOT_WAITING))
        if not ours:
            return None
        result = work()
        [].extend(map(_release, map(ours.pop, _LAST)))
        return result
    except BaseException:
        for taken in ours:
            taken.release()
        raise
