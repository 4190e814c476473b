"""Telling those who wait for an operation what became of it.

Ground rules
------------
* A listener is noted first, then it is looked whether all is over; the settler says so first, then
  looks for listeners. So nobody is missed.
* Whoever pops a listener calls it, and puts it back if that is broken off.
* What an interrupt broke off is noted in the books, by stores alone, and gone on with once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from purgatory.core.callback_chain import this_thread
from purgatory.core.errors import FAULTS
from purgatory.core.failing import Failing
from purgatory.core.life import SETTLED
from purgatory.core.outcome import PENDING, Outcome
from purgatory.core.timeout import checked_timeout_s
from timer import Wake

_FIRST = (0,)

_listeners_lock = Lock()


class Told(Failing):
    """What tells its listeners once it is settled, or let go of."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> Outcome:
        """Block this thread until the outcome is known and the callbacks have run.

        Args:
            timeout: seconds; None waits for ever.

        Returns:
            The outcome; PENDING if the timeout came first, or if the purgatory was closed and left
            the operation as it was.
        """
        timeout_s = checked_timeout_s(timeout)
        chain = this_thread.chain
        if chain.left and self._op_stage != SETTLED:
            chain.run_left()  # what is waited for may be among it, and nobody else will run it
        self._op_resume()
        if self._op_stage != SETTLED:
            told = Wake()
            try:
                self.call_when_settled(told.set)
                told.wait(timeout_s)
                self._op_unlisten(told.set)
            except BaseException:
                self._op_unlisten(told.set)
                raise
        return self._op_outcome if self._op_stage == SETTLED else PENDING

    def call_when_settled(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` once, when the outcome is known and the callbacks have run.

        It is called by the thread that settled the operation, or here and now if that is over. It
        must be short, and what it raises is logged. If the purgatory is closed and leaves the
        operation pending, it is called too: ``outcome`` tells.
        """
        listeners = self._op_listeners
        if listeners is None:
            made: list[Callable[[], object]] = []  # not under the lock: it may run a finalizer
            with _listeners_lock:
                listeners = self._op_listeners
                if listeners is None:
                    listeners = self._op_listeners = made
        listeners.append(listener)
        self._op_resume()
        if self._op_is_over():
            self._op_tell()

    def _op_unlisten(self, listener: Callable[[], object]) -> None:
        with suppress(ValueError):  # it was told
            (self._op_listeners or []).remove(listener)

    def _op_tell(self) -> None:
        """Call the listeners, each once."""
        listeners = self._op_listeners
        while listeners:
            popped: list[Callable[[], object]] = []
            try:
                popped += map(listeners.pop, _FIRST)  # one step, which notes what it takes
                self._op_call_listener(popped[0])
            except BaseException as error:
                if not popped and error.__class__ is IndexError:
                    return  # another thread was faster
                listeners[:0] = popped
                if self._op_books is not None:
                    self._op_books.broken_off += ((self,),)
                self._op_hand_over()
                raise

    def _op_call_listener(self, listener: Callable[[], object]) -> None:
        try:
            listener()
        except FAULTS as error:
            self._op_log("error", "listener_failed", exc_info=error)

    def _op_is_over(self) -> bool:
        """Whether nothing is to come any more."""
        return self._op_stage == SETTLED or self._op_was_let_go()

    def _op_hand_over(self) -> None:
        """Try once to go on with what was broken off, here and now."""
        chain = this_thread.chain
        if chain.is_going_on or (self._op_stage == SETTLED and not self._op_listeners):
            return
        try:
            chain.is_going_on = True
            self._op_go_on()
            chain.is_going_on = False
        except BaseException:
            chain.is_going_on = False
            raise


is_over = Told._op_is_over


def is_new(operation: object) -> bool:
    """Whether ``operation`` is one, and was never submitted."""
    return getattr(operation, "_op_books", operation) is None
