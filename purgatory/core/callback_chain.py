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
* Greenlets of one thread take turns in the middle of callbacks, in any order: each has a chain of
  its own, as an attribute, which goes with it. The first greenlet of a thread is the thread.
* Who is at work is told by ``threading.get_ident``, which gevent replaces. Bare greenlets, whom it
  does not tell apart, can't wait for each other either.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from sys import modules
from typing import TYPE_CHECKING, Any, TypeAlias

from purgatory.core.books import Books
from purgatory.core.users_lock import Held
from purgatory.core.watchers import Watched
from purgatory.core.which_core import NATIVE

LONGEST_CHAIN = 16
"""How many operations' callbacks run inside each other on one thread."""


LeftWork: TypeAlias = tuple[Watched, Callable[[], object], Books[Any] | None]
"""An operation, the method of it that is to be called later, and the books that it is in."""


class PureChain:
    """What stands in a chain, in pure Python."""

    __slots__ = ("held", "is_going_on", "left", "length")

    def __init__(self) -> None:
        self.length = 0
        self.is_going_on = False
        self.held: Held | None = None
        self.left: deque[LeftWork] = deque()


if TYPE_CHECKING or not NATIVE:
    Chain = PureChain
else:
    from purgatory.core.native.chain import NativeChain as Chain


class CallbackChain(Chain):
    """What one thread is in the middle of: how deep, under which locks of users, and what it left
    for the end."""

    __slots__ = ()

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
            first = left[0]
            operation, work, books = first
            try:
                work()
            except BaseException as error:
                interrupt = interrupt or error
                # It may have come before the work began: whoever comes next goes on with it.
                if books is not None:
                    books.broken_off += ((operation,),)
            # Only now: broken off before, it is done again, which does nothing if it was done.
            if left and left[0] is first:
                left.popleft()
        return interrupt


class PureThisThread:
    """What stands for the thread that asks.

    Args:
        new_chain: makes the chain of a thread, or greenlet, that has none yet.
    """

    def __init__(self, new_chain: Callable[[], CallbackChain]) -> None:
        self._new_chain = new_chain
        self._of_thread = threading.local()

    @property
    def number(self) -> int:
        """What ``threading.get_ident`` says."""
        return threading.get_ident()

    @property
    def chain(self) -> CallbackChain:
        """The chain that this thread is in."""
        # Asked for at each completion: nearly always there is no call to make.
        kept = self._keeper() if "greenlet" in modules else self._of_thread
        try:
            chain: CallbackChain = kept.purgatory_chain
        except AttributeError:
            chain = kept.purgatory_chain = self._new_chain()
        return chain

    @chain.setter
    def chain(self, chain: CallbackChain) -> None:
        self._keeper().purgatory_chain = chain

    def _keeper(self) -> Any:
        """Return what keeps the chain: a greenlet, unless this is a thread's own."""
        greenlet = modules.get("greenlet")
        get_current = getattr(greenlet, "getcurrent", None)  # not in the middle of its import
        if get_current is None:
            return self._of_thread
        current = get_current()
        return self._of_thread if current.parent is None else current


if TYPE_CHECKING or not NATIVE:
    ThisThread = PureThisThread
else:
    from purgatory.core.native.chain import NativeThisThread as ThisThread

this_thread = ThisThread(CallbackChain)
