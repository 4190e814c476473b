"""Completions that cause completions, without recursion.

An operation's ``on_complete`` may complete the next one, whose ``on_complete`` completes the next.
Down to ``LONGEST_CHAIN`` such callbacks run inside each other, as a reader of the code expects.
What would go deeper is settled at once, but its callbacks are left to the outermost one's end, on
the same thread. So a chain of any length, through any number of purgatories, needs a bounded stack.
A callback that waits for an operation, or closes a purgatory, can't have that put off until after
it: waiting runs first what was left, and closing has a chain of its own.

Ground rules
------------
* All state is the thread's own: nothing is shared, nothing is locked.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from purgatory.core.delayed_operation import DelayedOperation

LeftWork: TypeAlias = "tuple[DelayedOperation, Callable[[], object]]"
"""An operation, and the method of it that is to be called later."""

LONGEST_CHAIN = 16
"""How many operations' callbacks run inside each other on one thread."""


class CallbackChain:
    """What one thread is in the middle of: how deep, and what it left for the end."""

    __slots__ = ("is_going_on", "left", "length")

    def __init__(self) -> None:
        self.length = 0
        self.is_going_on = False
        self.left: deque[LeftWork] = deque()

    def run_left(self) -> None:
        """Run what was left, and what that leaves in turn; then raise the first interrupt."""
        length = self.length
        try:
            self.length = 1  # nothing that runs here takes itself for the outermost
            interrupt = self._run_all_left()
            self.length = length
        except BaseException:
            self.length = length
            raise
        if interrupt is not None:
            raise interrupt

    def _run_all_left(self) -> BaseException | None:
        """Run what was left, and return the first interrupt."""
        interrupt: BaseException | None = None
        left = self.left
        while left:
            work = left[0]
            try:
                work[1]()
            except BaseException as error:
                interrupt = interrupt or error
                # It may have come before the work began: whoever comes next goes on with it.
                purgatory = work[0]._op_purgatory
                if purgatory is not None:
                    purgatory._broken_off += ((work[0],),)
            # Only now: broken off before, it is done again, which does nothing if it was done.
            if left and left[0] is work:
                left.popleft()
        return interrupt


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.chain = CallbackChain()


this_thread = _ThisThread()
