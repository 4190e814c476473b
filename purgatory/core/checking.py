"""Serving what is noted with an operation: checks, its expiry, a verdict from outside.

How a check is never lost, and never waits
------------------------------------------
A call that wants something of an operation first *notes* it (a flag: check, expire or fail), then
*tries* the operation's lock. If it gets the lock, it serves all that is noted, releases the lock,
and then *looks* at the flags again::

    requester:  note   try ..........          fails: the holder has yet to look
    holder:     ...... serve   release   look

If the try fails, the release comes after it, hence after the note, and the look that follows the
release sees it. If it succeeds, the requester serves itself. So nothing noted is lost, and nobody
ever waits. This is Kafka's ``maybeTryComplete``, with the note made before the try instead of after
it, and with expiry and failure handed over by the same rule.

Ground rules
------------
* The server is claimed as a ``Turn`` is, by ``setdefault``, but never waited for. It runs the
  callbacks one at a time, and looks at the flags when it is done.
* A lock that the user passed in is tried by the server. Its holder may be code that knows nothing
  of the flags, so when it is taken the flags stay set, and the server puts a retry on the timer,
  unless one is there: 1 ms ahead, then 2, 4 and so on, until it finds the lock free. A retry that
  comes while there is a server leaves everything to that, which looks for it once it is none.
* Nothing of ours touches an operation that was let go: the close that lets it go becomes its server
  for good. In the lists' turn it loses its keys; a call that puts it on a list or on the timer
  meanwhile looks at those. Last it is no longer pending: until then, the next close lets it go
  again.
* A claim has the number of its thread: so a close finds what its own thread is in the middle of.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from purgatory.core.callback_chain import LONGEST_CHAIN, this_thread
from purgatory.core.error_frames import drop_tracebacks
from purgatory.core.errors import FAULTS
from purgatory.core.life import SETTLED
from purgatory.core.lock_like import LockLike
from purgatory.core.outcome import COMPLETED, EXPIRED, FAILED, PENDING
from purgatory.core.retry_task import RetryTask
from purgatory.core.settling import Settled
from purgatory.core.turn import Me
from purgatory.core.users_lock import do_under
from purgatory.core.watchers import REFUSED

_LET_GO: Me = [0]
"""The server, for good, of what was let go of. No thread has this number."""


class Checked(Settled):
    """What is checked, expired and failed by one server at a time, under a lock of the user's."""

    __slots__ = ("_op_check_due", "_op_lock")

    _op_check_due: bool
    _op_lock: LockLike | None

    @abstractmethod
    def try_complete(self) -> bool:
        """Check the condition; if it holds, call ``force_complete`` and return its result.

        False says that this call did not complete it. Where nothing is returned, what was done
        counts.
        """

    def run(self) -> None:
        """Expire: called by the timer. The condition is checked once more before."""
        self._op_resume()  # the timer comes again to what was broken off
        self._op_expiry_due = True
        self._op_serve()

    def _op_serve(self) -> bool:
        """Serve what is noted, if the locks are free. True if a check here completed it."""
        return self._op_serve_as([threading.get_ident()])

    def _op_serve_as(self, me: Me) -> bool:
        claims = self._op_claims
        try:
            completed = False
            lock = self._op_lock
            while True:  # with no condition, see ``turn``
                if (
                    self._op_outcome is not PENDING
                    or not (
                        self._op_check_due or self._op_expiry_due or self._op_verdict is not None
                    )
                    or claims.setdefault("server", me) is not me
                ):
                    break
                if lock is None:
                    completed = self._op_serve_noted() or completed
                    del claims["server"]
                    continue
                chain = this_thread.chain
                if chain.length >= LONGEST_CHAIN:
                    # Settled here, its callbacks would run later, and without the user's lock.
                    chain.left.append((self, self._op_serve, self._op_books))
                    del claims["server"]
                    break
                found = do_under(lock, chain, self._op_serve_noted)
                retry = self._op_retry_later() if found is None else None
                del claims["server"]
                if retry is not None and self._op_waits_for(retry):
                    break
                completed = found or completed
        except BaseException:
            if "server" in claims and claims["server"] is me:
                del claims["server"]
            if self._op_books is not None:
                self._op_books.broken_off += ((self,),)
            self._op_hand_over()
            raise
        return completed

    def _op_check_else(self, f: Callable[[Any], object], me: Me) -> bool:
        self._op_check_due = True
        lock = self._op_lock
        claims = self._op_claims
        completed = False
        try:
            if claims.setdefault("server", me) is not me:
                f(self)
                self._op_check_due = True
                return self._op_serve()
            if lock is None:
                completed = self._op_check_twice(f)
            elif (chain := this_thread.chain).length >= LONGEST_CHAIN or (
                found := do_under(lock, chain, partial(self._op_check_twice, f))
            ) is None:
                f(self)
                self._op_check_due = True
            else:
                completed = found
            del claims["server"]
            # The look after the release; the condition is that of _op_serve_as, written out, since
            # nearly always there is nothing to see.
            if self._op_check_due or self._op_expiry_due or self._op_verdict is not None:
                completed = self._op_serve() or completed
            return completed
        except BaseException:
            if "server" in claims and claims["server"] is me:
                del claims["server"]
            if self._op_books is not None:
                self._op_books.broken_off += ((self,),)
            self._op_hand_over()
            raise

    def _op_check_twice(self, f: Callable[[Any], object]) -> bool:
        if self._op_serve_noted():
            return True
        if self._op_outcome is PENDING and f(self) is REFUSED:
            return False
        self._op_check_due = True
        return self._op_serve_noted()

    def _op_serve_noted(self) -> bool:
        """Under the locks: check, else expire or fail, as noted. True if a check completed it."""
        completed: Any  # whatever its user returns
        expiring = False
        while self._op_check_due or (self._op_expiry_due and not expiring):
            if self._op_outcome is not PENDING:
                return False
            unasked = not self._op_check_due  # no event asks for this check, only the expiry does
            # Noted before the check: an expiry counts only with a check that began after it.
            expiring = self._op_expiry_due
            self._op_check_due = False
            try:
                completed = self.try_complete()
                if completed is not False and not completed:
                    # It may be a forgotten `return`: what counts is what was done.
                    was_us = self._op_settler == threading.get_ident()
                    completed = self._op_outcome is COMPLETED and was_us
                elif completed and self._op_outcome is PENDING and "settler" not in self._op_claims:
                    raise RuntimeError(
                        f"{type(self).__name__}.try_complete returned True without force_complete: "
                        "when the condition holds, it must `return self.force_complete()`"
                    )
            except FAULTS as error:
                self._op_report("try_complete", error)
                self._op_settle(FAILED, error)
                raised = error
            except BaseException as interrupt:
                # Left pending, it would have lost this check, and perhaps its expiry.
                self._op_settle(FAILED, interrupt)
                raise
            else:
                if not completed:
                    continue
                if unasked and self._op_books is not None:
                    self._op_books.count_missed_wakeup()
                    self._op_log("warning", "missed_wakeup")
                return True
            drop_tracebacks(raised)
            return False
        verdict = (EXPIRED, None) if expiring else self._op_verdict
        if verdict is None:
            return False
        if self._op_was_let_go():  # by the check
            self._op_expiry_due = False
            self._op_verdict = None
            return False
        outcome, reason = verdict
        return self._op_settle(outcome, reason) and outcome is COMPLETED

    def _op_serve_by(self, work: Callable[[], object]) -> None:
        """Do ``work`` as its server, unless it has another."""
        claims = self._op_claims
        me = [threading.get_ident()]
        try:
            if claims.setdefault("server", me) is me:
                work()
                del claims["server"]
        except BaseException:
            if "server" in claims and claims["server"] is me:
                del claims["server"]
            if self._op_books is not None:
                self._op_books.broken_off += ((self,),)
            self._op_hand_over()
            raise

    def _op_claim_for_good(self) -> bool:
        """Become its server, and stay it, unless somebody is at it."""
        return self._op_claims.setdefault("server", _LET_GO) is _LET_GO

    def _op_is_at_work(self, thread: int) -> bool:
        """Whether ``thread`` is in the middle of checking or settling it."""
        claims = self._op_claims
        # Once it is settled, its settler may have ended, and a new thread have got its number.
        settler = None if self._op_stage == SETTLED else claims.get("settler")
        server = claims.get("server")
        return bool((server and server[0] == thread) or (settler and settler[0] == thread))

    def _op_is_served(self) -> bool:
        """Whether a thread is in the middle of checking it."""
        return self._op_claims.get("server", _LET_GO) is not _LET_GO

    # What the layers above do, which are there once for all cores.

    @abstractmethod
    def _op_retry_later(self) -> RetryTask:
        """Put a retry on the timer, unless one is there."""

    @abstractmethod
    def _op_waits_for(self, retry: RetryTask) -> bool:
        """Whether what is noted is left to ``retry``, or to nobody."""


def check_each(operations: Iterable[Checked], me: Me) -> int:
    """Check these, and return how many that completed; ``me`` is what the caller took a turn by."""
    completed = 0
    for operation in operations:
        # operation.maybe_try_complete(), written out.
        operation._op_check_due = True
        if operation._op_serve_as(me):
            completed += 1
    return completed
