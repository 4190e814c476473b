"""Completions that complete others, without recursion: a trampoline for each thread.

An operation's ``on_complete`` may complete the next one, whose ``on_complete`` completes the next.
Down to ``MAX_DEPTH`` such callbacks run inside each other, as a reader of the code expects. A
deeper operation has its outcome set at once, but its callbacks are deferred to the outermost one's
end, on the same thread. Hence a chain of any length, through any number of purgatories, needs a
bounded stack. A callback that waits for an operation, or closes a purgatory, can't have that
deferred until after it: waiting first runs all deferred callbacks, and closing has its own
trampoline.

Ground rules
------------
* All state is the thread's own: nothing is shared, nothing is locked.
* Greenlets of one thread take turns in the middle of callbacks, in any order: each has a trampoline
  of its own, as an attribute, which goes with it. The first greenlet of a thread is the thread.
* A thread is known by ``threading.get_ident``, which gevent replaces. Bare greenlets, which have
  the same number, can't wait for each other either.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from sys import modules
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from purgatory.core.backend import NATIVE
from purgatory.core.locks import Held

MAX_DEPTH = 16
"""The depth to which operations' callbacks run inside each other on one thread."""


class _Notes(Protocol):
    """The state of a purgatory, as far as the trampoline knows it."""

    interrupted: list[tuple[Any]]


Deferred: TypeAlias = tuple[Any, Callable[[], object], _Notes | None]
"""An operation, the method of it that is to be called later, and the state of its purgatory."""


class _PureTrampoline:
    """The context of one thread, in pure Python; ``NativeTrampoline`` does the same."""

    __slots__ = ("deferred", "depth", "held", "is_resuming")

    def __init__(self) -> None:
        self.depth = 0
        self.is_resuming = False
        self.held: Held | None = None
        self.deferred: deque[Deferred] = deque()


if TYPE_CHECKING or not NATIVE:
    TrampolineBase = _PureTrampoline
else:
    from purgatory.core.native.trampoline import NativeTrampoline as TrampolineBase


class Trampoline(TrampolineBase):
    """The context of a thread: its depth, the users' locks it holds, the work it deferred."""

    __slots__ = ()

    def run_deferred(self) -> None:
        """Run the deferred work, and what that defers in turn; then raise the first interrupt."""
        depth = self.depth
        try:
            self.depth = 1  # no callback that runs here is the outermost
            interrupt = self._run_all()
            self.depth = depth
        except BaseException:
            self.depth = depth
            raise
        if interrupt is not None:
            raise interrupt

    def _run_all(self) -> BaseException | None:
        interrupt: BaseException | None = None
        deferred = self.deferred
        while deferred:
            first = deferred[0]
            operation, work, state = first
            try:
                work()
            except BaseException as error:
                interrupt = interrupt or error
                # The interrupt may have come before the work began: the next call resumes it.
                if state is None:
                    operation._op_resume_once()  # it was never submitted: no call would
                else:
                    state.interrupted += ((operation,),)
            # Only now: if this was interrupted, it is done again, which then does nothing.
            if deferred and deferred[0] is first:
                deferred.popleft()
        return interrupt


class _PureThisThread:
    """The calling thread: its number and its trampoline.

    Args:
        new_trampoline: makes the trampoline of a thread, or greenlet, that has none yet.
    """

    def __init__(self, new_trampoline: Callable[[], Trampoline]) -> None:
        self._new_trampoline = new_trampoline
        self._of_thread = threading.local()

    @property
    def number(self) -> int:
        """The result of ``threading.get_ident``."""
        return threading.get_ident()

    @property
    def trampoline(self) -> Trampoline:
        """The trampoline of this thread."""
        # Read at each completion: nearly always there is no call to make.
        kept = self._keeper() if "greenlet" in modules else self._of_thread
        try:
            trampoline: Trampoline = kept.purgatory_trampoline
        except AttributeError:
            trampoline = kept.purgatory_trampoline = self._new_trampoline()
        return trampoline

    @trampoline.setter
    def trampoline(self, trampoline: Trampoline) -> None:
        self._keeper().purgatory_trampoline = trampoline

    def _keeper(self) -> Any:
        """Return the owner of the trampoline: a greenlet, unless this is a thread's own."""
        greenlet = modules.get("greenlet")
        get_current = getattr(greenlet, "getcurrent", None)  # not in the middle of its import
        if get_current is None:
            return self._of_thread
        current = get_current()
        return self._of_thread if current.parent is None else current


if TYPE_CHECKING or not NATIVE:
    ThisThread = _PureThisThread
else:
    from purgatory.core.native.trampoline import NativeThisThread as ThisThread

this_thread = ThisThread(Trampoline)
