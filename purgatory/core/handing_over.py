"""What an operation hands over: to a retry where its user's lock is taken, to whoever comes next
where it was broken off, and to a close.

Ground rules
------------
* As in ``checking``: a retry is put on the timer by its server, and nothing of ours touches an
  operation that was let go.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from purgatory.core.books_core import LISTS
from purgatory.core.callback_chain import LONGEST_CHAIN, this_thread
from purgatory.core.life import SETTLED
from purgatory.core.lock_like import LockLike
from purgatory.core.outcome import FAILED, PENDING
from purgatory.core.retry_task import RetryTask
from purgatory.core.settling import Verdict
from purgatory.core.telling import Told
from timer import SystemTimer, TimerClosedError, TimerTask


class HandedOver(Told):
    """What is served later, or by another, or by nobody."""

    __slots__ = ()

    def _op_retry_later(self) -> RetryTask:
        """As its server, hence alone, put a retry on the timer, unless one is there."""
        retry = self._op_retry
        if retry is None:
            retry = self._op_retry = RetryTask(self._op_serve)
        books = self._op_books
        if books is not None and retry.since_ns is None:
            retry.since_ns = books.now_ns()
            books.retries.add(retry)
        if books is not None and not retry.is_due:  # one that is must not be put off
            try:
                retry.has_run = False
                books.timer.add(retry)
            except TimerClosedError:
                if not books.is_closed:  # who closes tries the operation himself
                    raise
        return retry

    def _op_waits_for(self, retry: RetryTask) -> bool:
        """Once it has no server: whether what is noted is left to ``retry``, or to nobody.

        One that came before has left it to the server.
        """
        # Put on the timer first, then looked: the settler sets the outcome first, and a close that
        # lets go of it takes its keys first; then both look for a retry to cancel.
        if self._op_outcome is not PENDING or self._op_was_let_go():
            retry.cancel()
            self._op_retry = None
            return True
        books = self._op_books
        if books is not None and books.gave_up_error is not None:
            self._op_fail_without_lock(books.gave_up_error)
            return True
        if retry.is_due or books is None or books.is_closed:
            return True
        # On a timer of the user's own nobody knows whether it waits, but that it has yet to come.
        return not (retry.has_run or isinstance(books.timer, SystemTimer))

    def _op_go_on(self) -> None:
        if self._op_outcome is PENDING:
            self._op_check_due = True
            self._op_serve()
        elif self._op_stage != SETTLED:
            self._op_settle(self._op_outcome, going_on=True)
        elif self._op_listeners:
            self._op_tell()

    # What the purgatory and its closing ask.

    def _op_submitted_ns(self) -> int:
        """Return when it was submitted, by the timer's clock."""
        return self._op_start_ns

    def _op_watch_keys(self) -> tuple[Hashable, ...]:
        """Return the keys that it waits on; none once it was let go of."""
        return self._op_keys

    def _op_users_lock(self) -> LockLike | None:
        """Return the lock that its user passed in."""
        return self._op_lock

    def _op_end(self, verdict: Verdict | None, held: Collection[int]) -> None:
        """Note the ``verdict``, or its expiry, and serve it.

        Args:
            verdict: None to expire it.
            held: the identities of the users' locks that this thread holds for callbacks: they may
                not be had twice.
        """
        if verdict is None:
            self._op_expiry_due = True
        else:
            self._op_note(verdict)
        if (
            id(self._op_lock) not in held
            or this_thread.chain.length >= LONGEST_CHAIN  # its callbacks would run without the lock
        ):
            self._op_serve()
        else:
            self._op_serve_by(self._op_serve_noted)

    def _op_note(self, verdict: Verdict) -> None:
        """Note what it is to become."""
        self._op_verdict = verdict

    def _op_fail_without_lock(self, error: BaseException) -> None:
        """Fail it although the user's lock is taken, unless it has a server: that serves what
        closing noted with it before, or, if it doesn't get the lock either, fails it."""
        self._op_serve_by(lambda: self._op_settle(FAILED, error))

    def _op_let_go_if_free(self) -> None:
        """Let it go, unless somebody is at it."""
        if self._op_claim_for_good():
            self._op_let_go()

    def _op_let_go(self) -> None:
        """Leave it pending for good, and tell those who wait."""
        books = self._op_books
        assert books is not None

        def take_keys() -> bool:
            if self._op_outcome is not PENDING:
                return False
            if books.watchers.unwatch(self) is not None:
                books.broken_off += LISTS
            self._op_keys = ()
            self._op_thresholds = None
            return True

        if not books.turn.run(take_keys):
            return
        TimerTask.cancel(self)
        retry = self._op_retry
        if retry is not None:
            retry.cancel()
        self._op_tell()  # nobody else will wake those who wait for it
        books.forget_pending(self)


def settle_each(operations: Collection[HandedOver], verdict: Verdict) -> None:
    """Note the verdict with these, and serve it; with all of them, if that is interrupted."""
    try:
        for operation in operations:
            operation._op_end(verdict, ())
    except BaseException:
        for operation in operations:
            operation._op_note(verdict)
        raise


# The same, for what is no operation itself.
end = HandedOver._op_end
fail_without_lock = HandedOver._op_fail_without_lock
go_on = HandedOver._op_go_on
is_at_work = HandedOver._op_is_at_work
is_served = HandedOver._op_is_served
let_go = HandedOver._op_let_go
let_go_if_free = HandedOver._op_let_go_if_free
resume = HandedOver._op_resume
submitted_ns = HandedOver._op_submitted_ns
users_lock = HandedOver._op_users_lock
watch_keys = HandedOver._op_watch_keys
