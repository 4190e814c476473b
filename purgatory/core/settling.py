"""Settling an operation: once, in stages each of which may be begun again or is passed over.

How an interrupt leaves nothing stuck
-------------------------------------
An exception may come between any two instructions: a signal's handler raises, or the stack is too
deep. So all that is held is noted by the step that takes it, and settling is a series of stages
that stand in the operation. A call that is broken off gives back what it holds, notes the operation
in the books, by stores alone, since the next interrupt can only come at a call, and tries once to
go on. If that is broken off as well, whoever comes next goes on (``_op_go_on``): a call on the
operation, or any call of its purgatory.

Ground rules
------------
* The settler is claimed once, for good, by ``setdefault``, and only given back by a call that is
  broken off: the first one sets ``_op_outcome``, and whoever claims it again finds that set, and
  goes on from ``_op_stage``.
* Order, each step seen by whoever sees the next: outcome set; timer cancelled; taken off all watch
  lists; callbacks; told to those who wait.
* ``_op_books`` is set before the operation is put on a list, and a list takes only what is PENDING.
  So either the list sees the outcome, or the settler finds the operation there.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from purgatory.core.books import Books
from purgatory.core.callback_chain import LONGEST_CHAIN, CallbackChain, this_thread
from purgatory.core.error_frames import drop_tracebacks
from purgatory.core.errors import FAULTS
from purgatory.core.life import CALLED_BACK, CALLING_BACK, OBSERVING, PUT_OFF, SETTLED
from purgatory.core.outcome import CANCELLED, EXPIRED, FAILED, PENDING, Outcome
from purgatory.core.retry_task import RetryTask
from purgatory.core.turn import Me
from purgatory.core.watchers import REFUSED, Watched
from timer import TimerTask

Verdict: TypeAlias = tuple[Outcome, BaseException | None]
"""What an operation is told to become, whether its condition holds or not; and why it failed."""


class Settled(Watched):
    """What is settled exactly once, by whoever claims it first."""

    __slots__ = (
        "_op_books",
        "_op_claims",
        "_op_error",
        "_op_expiry_due",
        "_op_listeners",
        "_op_retry",
        "_op_settler",
        "_op_stage",
        "_op_start_ns",
        "_op_verdict",
        "_op_wait_ns",
    )

    _op_books: Books[Any] | None
    _op_claims: dict[str, Me]
    """Who is at it: "server" and "settler"."""
    _op_error: BaseException | None
    _op_expiry_due: bool
    _op_listeners: list[Callable[[], object]] | None
    _op_verdict: Verdict | None
    _op_retry: RetryTask | None
    _op_settler: int
    """The thread that set the outcome."""
    _op_stage: int
    _op_start_ns: int
    _op_wait_ns: int

    @property
    def error(self) -> BaseException | None:
        """Why it FAILED, or None. Raised by a callback, it has no traceback: that was logged."""
        return self._op_error

    def on_complete(self) -> None:
        """Finish the work. Called once, when ``outcome`` is COMPLETED or EXPIRED."""

    def on_expiration(self) -> None:
        """Called after ``on_complete`` if the time was up, and not otherwise."""

    def on_failure(self, error: BaseException) -> None:
        """Called when the operation FAILED: the last place to give an answer."""

    def _op_settle(
        self, outcome: Outcome, error: BaseException | None = None, going_on: bool = False
    ) -> bool:
        """Settle it, or, ``going_on``, finish that. True for the call that set the outcome."""
        claims = self._op_claims
        me = [threading.get_ident()]
        try:
            if claims.setdefault("settler", me) is not me:
                # The winner may not have set the outcome yet: whoever serves must not go round and
                # round on these until he has.
                self._op_expiry_due = False
                self._op_verdict = None
                return False
            if self._op_outcome is PENDING:
                self._op_settler = me[0]
                self._op_error = error
                self._op_outcome = outcome  # anything may follow PENDING: no look at MOVES
            else:
                if self._op_stage == SETTLED or (self._op_stage == PUT_OFF and not going_on):
                    del claims["settler"]
                    return False
                going_on = True
            chain = this_thread.chain
            if self._op_stage <= PUT_OFF:
                self._op_leave(me)
                if chain.length >= LONGEST_CHAIN:
                    self._op_stage = PUT_OFF
                    chain.left.append((self, self._op_go_on, self._op_books))
                    del claims["settler"]
                    return not going_on
            self._op_finish(chain, me)
            return not going_on
        except BaseException as interrupt:
            if "settler" in claims and claims["settler"] is me:
                if self._op_outcome is PENDING:
                    self._op_error = error
                    self._op_outcome = outcome
                elif self._op_stage == CALLING_BACK and self._op_outcome is not FAILED:
                    self._op_error = interrupt
                    self._op_outcome = FAILED
                del claims["settler"]
                if self._op_books is not None and self._op_stage != SETTLED:
                    self._op_books.broken_off += ((self,),)
                self._op_hand_over()
            raise

    def _op_leave(self, me: Me) -> None:
        """Take it off the timer and the lists."""
        TimerTask.cancel(self)
        retry = self._op_retry
        if retry is not None:
            retry.cancel()
            self._op_retry = None  # no cycle keeps the two alive
        books = self._op_books
        if books is not None:
            key_error = books.unwatch(self, me)
            if key_error is not None:
                self._op_log("error", "key_failed", exc_info=key_error)
            self._op_wait_ns = books.now_ns() - self._op_start_ns

    def _op_finish(self, chain: CallbackChain, me: Me) -> None:
        """Run the callbacks of a settled operation, book it, tell those who wait."""
        length = chain.length
        books = self._op_books
        try:
            chain.length = length + 1
            if self._op_outcome is not CANCELLED:
                self._op_call_back()
            if books is not None:
                counted_as = self._op_counted_as()
                if books.on_settled is not None and self._op_stage < OBSERVING:
                    self._op_stage = OBSERVING
                    books.observe(self, counted_as, self._op_wait_ns)
                server = self._op_claims.get("server")
                if server is not None and server[0] != me[0]:
                    books.note_still_checked(self)  # settled from outside, in the middle of a check
                books.count_settled(self, counted_as, self._op_wait_ns, me)
            self._op_stage = SETTLED
            if self._op_listeners is not None:
                self._op_tell()
            chain.length = length
            if chain.left and not length:
                chain.run_left()
        except BaseException:
            chain.length = length
            if chain.left and not length:
                chain.run_left()
            raise

    def _op_counted_as(self) -> str:
        counted_as: str = self._op_outcome._value_
        submitter = self._op_submitter
        if submitter is REFUSED:
            return "rejected"
        if counted_as == "completed" and submitter and submitter[0] == self._op_settler:
            return "immediate"
        return counted_as

    def _op_call_back(self) -> None:
        kept: BaseException | None = None
        if self._op_stage < CALLING_BACK and self._op_outcome is not FAILED:
            stage = "on_complete"
            self._op_stage = CALLING_BACK
            try:
                self.on_complete()
                if self._op_outcome is EXPIRED:
                    stage = "on_expiration"
                    self.on_expiration()
            except FAULTS as error:
                self._op_report(stage, error)
                self._op_become_failed(error)
                kept = error
            else:
                self._op_stage = CALLED_BACK
        if self._op_outcome is FAILED and self._op_stage < CALLED_BACK:
            self._op_stage = CALLED_BACK
            self._op_call_on_failure()
        if kept is not None:
            drop_tracebacks(kept)

    def _op_resume(self) -> None:
        if (
            self._op_outcome is not PENDING
            and self._op_stage not in (PUT_OFF, SETTLED)
            and "settler" not in self._op_claims
        ):
            self._op_go_on()

    def _op_was_let_go(self) -> bool:
        """Whether its purgatory was closed and left it pending: only that takes all its keys."""
        return self._op_books is not None and not self._op_keys

    # What the layers above do, which are there once for all cores.

    @abstractmethod
    def _op_become_failed(self, error: BaseException) -> None:
        """Become FAILED by ``error``, unless it is."""

    @abstractmethod
    def _op_call_on_failure(self) -> None:
        """Call ``on_failure``."""

    @abstractmethod
    def _op_go_on(self) -> None:
        """Finish what was broken off, unless another call is at it."""

    @abstractmethod
    def _op_hand_over(self) -> None:
        """Try once to go on with what was broken off, here and now."""

    @abstractmethod
    def _op_log(self, level: str, event: str, **values: object) -> None:
        """Log what happened to it."""

    @abstractmethod
    def _op_report(self, stage: str, error: BaseException) -> None:
        """Count and log what a callback raised."""

    @abstractmethod
    def _op_tell(self) -> None:
        """Call the listeners, each once."""
