"""An operation that waits for a condition or for its timeout, and is settled exactly once.

It is made in layers, each of which opens with its ground rules: what a watch list knows of it
(``watchers``), how it tells those who wait (``telling``), how it is settled (``settling``), how
what is noted with it is served (``checking``). Here is what its users see of it, and how it comes
into a purgatory.

Ground rules
------------
* What the rest of the core does with an operation are the functions at the end of those modules,
  beside what its users may do.
* Attributes start with ``_op_``: users derive from this class, and theirs must not collide.
* A submission that raises leaves nothing behind: the operation is cancelled, unless another call
  submitted it before.
* The call that puts an operation on the timer looks afterwards whether it was settled meanwhile, or
  let go of, which takes its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from threading import get_ident
from typing import NoReturn

from purgatory.core.books import Books
from purgatory.core.callback_check import check_callbacks
from purgatory.core.checking import Checked
from purgatory.core.errors import OperationReusedError, PurgatoryClosedError, PurgatoryFullError
from purgatory.core.life import LEAVING
from purgatory.core.lock_like import LockLike, check_lock
from purgatory.core.outcome import CANCELLED, COMPLETED, PENDING
from purgatory.core.turn import Me
from purgatory.core.watchers import REFUSED
from timer import TimerClosedError, TimerTask
from timer.errors import checked_delay_ms
from timer.safe_log import safe_repr

FOREVER_MS = 2**63 - 1
"""A delay that never ends: the operation waits for its condition alone."""

_CANCEL = (CANCELLED, None)


class DelayedOperation(Checked):
    """Work to be finished when a condition holds, or when ``delay_ms`` have passed.

    Derive from it. ``try_complete`` is required; the other callbacks do nothing by default. The
    callbacks of one operation never overlap, unless you call ``force_complete`` yourself from
    another thread. None of them runs in a turn of the lists, or under a lock of the timer. What
    one of them raises is logged and counted, and leaves the operation FAILED.

    Args:
        delay_ms: the longest wait, in milliseconds from when it is put on the watch lists.
        lock: held whenever the library runs a callback; for conditions over state that other code
            guards by the same lock. The library only ever tries it. Without one, no lock is used.

    Raises:
        TypeError: delay_ms is not an integer, or ``lock`` is no lock.
    """

    __slots__ = ()

    _timer_may_run_again = True  # what is settled once passes over what was done

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

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        check_callbacks(cls, DelayedOperation)

    @property
    def error(self) -> BaseException | None:
        """Why it FAILED, or None. Raised by a callback, it has no traceback: that was logged."""
        return self._op_error

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
        return self._op_check_else(lambda _: f(), [get_ident()])

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} can't be copied or pickled: it waits once; make a new one"
        )

    def __repr__(self) -> str:
        delay = "forever" if self.delay_ms >= FOREVER_MS else self.delay_ms
        return (
            f"<{type(self).__name__} {self._op_outcome.name} delay_ms={delay}"
            f"{f' keys={self._op_keys!r}' if self._op_keys else ''}>"
        )

    # Submitting.

    def _op_submit(
        self,
        books: Books[DelayedOperation],
        keys: tuple[Hashable, ...],
        thresholds: Mapping[Hashable, int] | None,
    ) -> bool:
        """Check it, put it on its lists, check it again; start its timeout. Whether it completed.

        ``self`` may be anything that a user takes for an operation. There is no look at its class:
        as that is abstract, it would cost a thirtieth of all the rest.
        """
        identity = id(self)
        me = [get_ident()]
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
            refused = self._op_submitter is REFUSED
            if refused:
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
        if refused:
            books.log_full(self)
            raise PurgatoryFullError(
                f"purgatory {books.name!r} is full: max_pending={books.max_pending} operations "
                f"wait, and it does not take {safe_repr(self)}"
            )
        return completed

    def _op_watch_if_not_full(self) -> Me | None:
        books = self._op_books
        assert books is not None
        if not books.has_place_for(self):
            self._op_submitter = REFUSED
            return REFUSED
        books.watchers.watch(self)
        return None

    def _op_start_timeout(self, books: Books[DelayedOperation]) -> None:
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
    if not isinstance(operation, DelayedOperation):
        return TypeError(f"operation must be a DelayedOperation, not {safe_repr(operation)}")
    if not hasattr(operation, "_op_books"):
        return TypeError(
            f"a {type(operation).__name__} can't wait: its __init__ must call "
            "super().__init__(delay_ms)"
        )
    taken_by = operation._op_books
    if taken_by is not None:
        return OperationReusedError(
            f"{safe_repr(operation)} was submitted before, to purgatory {taken_by.name!r}: make a "
            "new one"
        )
    return PurgatoryClosedError(
        f"purgatory {name!r} was closed: it does not take {safe_repr(operation)}"
    )


submit = DelayedOperation._op_submit
_watch_if_not_full = DelayedOperation._op_watch_if_not_full
