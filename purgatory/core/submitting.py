"""How an operation comes into a purgatory, and what its users may do with it: the uppermost layer
of the core in pure Python.

Ground rules
------------
* A submission that raises leaves nothing behind: the operation is cancelled, unless another call
  submitted it before.
* The call that puts an operation on the timer looks afterwards whether it was settled meanwhile, or
  let go of, which takes its keys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from purgatory.core.books import Books
from purgatory.core.checking import Checked
from purgatory.core.life import LEAVING
from purgatory.core.lock_like import LockLike, check_lock
from purgatory.core.outcome import CANCELLED, COMPLETED, PENDING
from purgatory.core.refusals import (
    is_closed,
    is_full,
    is_no_operation,
    is_unfinished,
    was_submitted,
)
from purgatory.core.timeout import FOREVER_MS
from purgatory.core.turn import Me
from purgatory.core.watchers import REFUSED
from timer import TimerClosedError, TimerTask
from timer.errors import checked_delay_ms

_CANCEL = (CANCELLED, None)


class Submitted(Checked):
    """What is submitted once, and may be completed, cancelled and checked by its users."""

    __slots__ = ()

    # All layers' attributes are set here: else each would be one more call.
    def __init__(self, delay_ms: int, lock: LockLike | None = None) -> None:
        self.delay_ms = delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms)
        self._timer_entry = None
        if lock is not None:
            check_lock(lock)
        self._op_lock = lock
        self._op_claims = {}
        self._op_stage = LEAVING
        self._op_outcome = PENDING
        self._op_error = None
        self._op_check_due = False
        self._op_expiry_due = False
        self._op_verdict = None
        self._op_listeners = None
        self._op_books = None
        self._op_keys = ()
        self._op_thresholds = None
        self._op_retry = None
        self._op_start_ns = 0
        self._op_wait_ns = 0
        self._op_submitter = None
        self._op_settler = 0

    def force_complete(self) -> bool:
        """Complete the operation, whether its condition holds or not. O(keys).

        Returns:
            True for the one caller, of all threads, that completed it: timer stopped, off every
            watch list, ``on_complete`` run.
        """
        return self._op_settle(COMPLETED)

    def cancel(self) -> bool:
        """Take the operation off every list and off the timer; no callback runs. O(keys).

        Returns:
            True for the one caller that cancelled it while it was PENDING.
        """
        return self._op_settle(CANCELLED)

    def maybe_try_complete(self) -> bool:
        """Check the condition once more, from any thread. Never blocks.

        If another thread is at it, that thread checks again; if the user's lock is taken, a retry
        does, soon after.

        Returns:
            Whether this call completed the operation.
        """
        self._op_check_due = True
        self._op_resume()
        return self._op_serve()

    def safe_try_complete_or_else(self, f: Callable[[], object]) -> bool:
        """Under the operation's lock: check; if it isn't complete, call ``f`` and check again.

        Never blocks: where the lock is taken, ``f`` is called without it and the check is handed
        over.

        Returns:
            Whether this call completed the operation.
        """
        return self._op_check_else(lambda _: f(), [threading.get_ident()])

    def _op_submit(
        self,
        books: Books[Any],
        keys: tuple[Hashable, ...],
        thresholds: Mapping[Hashable, int] | None,
    ) -> bool:
        """Check it, put it on its lists, check it again; start its timeout. Whether it completed.

        ``self`` may be anything that a user takes for an operation. There is no look at its class:
        as that is abstract, it would cost a thirtieth of all the rest.
        """
        identity = id(self)
        me = [threading.get_ident()]
        turn = books.turn
        try:
            now_ns = books.now_ns()
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            taken = False
            if self._op_books is None:
                if books.is_closed:
                    books.counters.rejected += 1
                else:
                    taken = True
                    self._op_start_ns = now_ns
                    self._op_submitter = me
                    self._op_keys = keys
                    self._op_thresholds = thresholds
                    self._op_books = books
                    if self._op_outcome is PENDING:
                        books.pending[identity] = self
            del turn["holder"]
            if not taken:
                raise _refusal(self, books.name)
            if now_ns > books.reaper_look_ns:
                books.look_after_reaper(now_ns)
            watch = books.watchers.watch if books.max_pending is None else _watch_if_not_full
            completed = self._op_check_else(watch, me)
            refusal = None
            if self._op_submitter is REFUSED:
                refusal = is_full(self, books.name, books.max_pending)
                books.log_full(self)
                self.cancel()
            elif not completed and self._op_outcome is PENDING:
                self._op_start_timeout(books)
            if self._op_outcome is PENDING:
                self._op_submitter = None  # settled by now, it may have yet to be counted
        except BaseException as error:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            try:
                is_ours = self._op_submitter is me or self._op_submitter is REFUSED
            except AttributeError:
                if isinstance(error, AttributeError):
                    raise _refusal(self, books.name) from None
                raise error from None
            if is_ours:  # a key that can't be compared, an interrupt: leave nothing behind
                self._op_verdict = _CANCEL
                books.broken_off += ((self,),)
                self.cancel()
            raise
        if refusal is not None:
            raise refusal
        return completed

    def _op_watch_if_not_full(self) -> Me | None:
        books = self._op_books
        assert books is not None
        if not books.has_place_for(self):
            self._op_submitter = REFUSED
            return REFUSED
        books.watchers.watch(self)
        return None

    def _op_start_timeout(self, books: Books[Any]) -> None:
        if not books.expires or self.delay_ms >= FOREVER_MS:
            return
        try:
            books.timer.add(self)
        except TimerClosedError:
            if not books.is_closed:  # who closes comes to it himself
                raise
        if self._op_outcome is not PENDING or not self._op_keys:
            TimerTask.cancel(self)


def _refusal(operation: object, name: str) -> Exception:
    """Return why ``operation`` was not taken. Not in a turn: it asks for its repr."""
    if not isinstance(operation, Submitted):
        return is_no_operation(operation)
    if not hasattr(operation, "_op_books"):
        return is_unfinished(operation)
    taken_by = operation._op_books
    if taken_by is not None:
        return was_submitted(operation, taken_by.name)
    return is_closed(operation, name)


submit = Submitted._op_submit
_watch_if_not_full = Submitted._op_watch_if_not_full
