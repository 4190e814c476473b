"""One thread at a time, without a lock: a step that takes something notes at once who took it.

Why no lock
-----------
* An interrupt may come between ``lock.acquire()`` and the ``try`` after it: then the lock is taken
  for good. ``with lock`` is safe, at twice the price.
* A thread that waits for a lock is handed it while it does not run. Where two threads need a lock
  often, each section then costs a switch of threads: together they get a fifth of what one gets.

So whose turn it is stands in a dict, taken by ``dict.setdefault``: one step of the interpreter,
after which the item itself says who took it, whatever came next. A thread that finds it taken
sleeps a moment, and tries again::

    me = [threading.get_ident()]
    turn = self._turn
    try:
        if turn.setdefault("holder", me) is not me:
            turn = turn.wait(me)
        ...
        del turn["holder"]
    except BaseException:
        if "holder" in turn and turn["holder"] is me:
            del turn["holder"]
        raise

Ground rules
------------
* ``me`` is new for each call: what is compared is its identity. It holds the thread's number.
* The turn is given back inside the ``try`` as well, so that no instruction lies between. The
  ``except`` only looks and stores: CPython looks for signals after calls, where a function begins
  and where a loop jumps back, so none comes in there.
* No loop inside the ``try`` has a condition or ends with an ``if``: from Python 3.12 on the
  compiler leaves the jump back that it makes of these out of the ``try``, and a signal may come
  just there. Such a loop goes into a function of its own.
* Nothing is waited for, and no code of a user runs, in a turn; but for ``__hash__`` and ``__eq__``
  of keys.
* A finalizer or a signal handler that comes in the middle of its own thread's turn gets in: what is
  changed in a turn is changed in an order that allows for it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Me: TypeAlias = list[int]
"""Who took something: a list that nobody else has, with the number of the thread."""

PAUSE_S = 50e-6
"""How long who waits for his turn sleeps: then the holder runs."""


class Turn(dict[str, Me]):
    """Whose turn it is: empty, or one item under "holder"."""

    __slots__ = ()

    def wait(self, me: Me) -> Turn:
        """Wait for the turn of ``me``, and return what it is to be given back to."""
        while (holder := self.setdefault("holder", me)) is not me:
            if holder[0] == me[0] or sys.is_finalizing():
                # This thread is in the middle of a turn, or the holder will never run again.
                inner = Turn()
                inner["holder"] = me
                return inner
            time.sleep(PAUSE_S)
        return self

    def run(self, work: Callable[[], T]) -> T:
        """Do ``work`` in a turn. It must be short."""
        me = [threading.get_ident()]
        turn = self
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            result = work()
            del turn["holder"]
            return result
        except BaseException:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            raise

    @property
    def is_ours(self) -> bool:
        """Whether this thread is in the middle of a turn."""
        holder = self.get("holder")
        return holder is not None and holder[0] == threading.get_ident()
