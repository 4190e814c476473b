"""What is done for every operation, in pure Python; native code does the same where it was built.

The protocol is in ``operation``, whose names are used here; why an interrupt leaves nothing stuck,
in ``interrupts``. What is done for few operations is in ``operation``, over either base.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from purgatory.core.errors import (
    FAULTS,
    drop_tracebacks,
    is_closed,
    is_full,
    is_no_operation,
    is_unfinished,
    was_submitted,
)
from purgatory.core.interrupts import Caller
from purgatory.core.locks import LockLike, check_lock, do_under
from purgatory.core.states import (
    CALLED_BACK,
    CALLING_BACK,
    CANCELLED,
    COMPLETED,
    DEFERRED,
    DETACHING,
    DONE,
    EXPIRED,
    FAILED,
    FOREVER_MS,
    OBSERVING,
    PENDING,
    SHORT_DELAY_MS,
    Outcome,
)
from purgatory.core.trampoline import MAX_DEPTH, Trampoline, this_thread
from timer import TimerClosedError, TimerTask
from timer.durations import checked_delay_ms

if TYPE_CHECKING:
    from purgatory.core.operation import RetryTask
    from purgatory.core.state import PurgatoryState

ForcedOutcome: TypeAlias = tuple[Outcome, BaseException | None]
"""What an operation is to become, whether its condition holds or not; and why it failed."""

REFUSED: Caller = []
"""What submitted an operation that its purgatory then did not admit."""

_ABANDONED: Caller = [0]
"""The owner, for good, of what was abandoned. No thread has this number."""

_CANCEL: ForcedOutcome = (CANCELLED, None)
_FIRST = (0,)

_listeners_lock = threading.Lock()


# Named as the public class that is made of it: type checkers name this one in their messages.
class DelayedOperation(TimerTask):
    """What is submitted once, checked by one owner at a time, and completed once."""

    __slots__ = (
        *("_op_check_due", "_op_claims", "_op_completed_by", "_op_error", "_op_expiry_due"),
        *("_op_forced_outcome", "_op_keys", "_op_listeners", "_op_lock", "_op_outcome"),
        *("_op_retry", "_op_stage", "_op_start_ns", "_op_state", "_op_submitter"),
        *("_op_thresholds", "_op_wait_ns"),
    )

    _op_state: PurgatoryState[Any] | None
    """That of its purgatory, once it was submitted."""
    _op_keys: tuple[Hashable, ...]
    """For any event and for numbers, each once; none once it was abandoned."""
    _op_thresholds: Mapping[Hashable, int] | None
    _op_lock: LockLike | None
    _op_claims: dict[str, Caller]
    """Who is at it: "owner" and "completer"."""
    _op_check_due: bool
    _op_expiry_due: bool
    _op_forced_outcome: ForcedOutcome | None
    _op_outcome: Outcome
    _op_stage: int
    """How far its completion has come: see ``states``."""
    _op_error: BaseException | None
    _op_completed_by: int
    """The thread that set the outcome."""
    _op_submitter: Caller | None
    """The call that submits it, until it is on the lists and the timer; or ``REFUSED``."""
    _op_retry: RetryTask | None
    _op_listeners: list[Callable[[], object]] | None
    _op_start_ns: int
    _op_wait_ns: int

    def __init__(self, delay_ms: int | timedelta, lock: LockLike | None = None) -> None:
        self.delay_ms: int = delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms)
        self._timer_entry = None
        if lock is not None:
            check_lock(lock)
        self._op_lock = lock
        self._op_claims = {}
        self._op_stage = DETACHING
        self._op_outcome = PENDING
        self._op_error = None
        self._op_check_due = False
        self._op_expiry_due = False
        self._op_forced_outcome = None
        self._op_listeners = None
        self._op_state = None
        self._op_keys = ()
        self._op_thresholds = None
        self._op_retry = None
        self._op_start_ns = 0
        self._op_wait_ns = 0
        self._op_submitter = None
        self._op_completed_by = 0

    # What users define.

    @abstractmethod
    def try_complete(self) -> bool:
        """Check the condition; if it holds, call ``force_complete`` and return its result.

        False means that this call did not complete it. None means: as ``force_complete``
        returned, if it was called.
        """

    def on_complete(self) -> None:
        """Finish the work. Called once, when ``outcome`` is COMPLETED or EXPIRED."""

    def on_expiration(self) -> None:
        """Called after ``on_complete`` if the time was up, and not otherwise."""

    def on_failure(self, error: BaseException) -> None:
        """Called when the operation FAILED: the last chance to answer."""

    # What users call.

    @property
    def outcome(self) -> Outcome:
        """How it ended, or PENDING. In a callback, how it is about to end."""
        return self._op_outcome

    @property
    def is_completed(self) -> bool:
        """Whether the outcome is not PENDING."""
        return self._op_outcome is not PENDING

    @property
    def error(self) -> BaseException | None:
        """Why it FAILED, or None. A callback's error has no traceback: that was logged."""
        return self._op_error

    def force_complete(self) -> bool:
        """Complete the operation, whether its condition holds or not. O(keys).

        Returns:
            True for the one caller, of all threads, that completed it: timer stopped, off every
            watch list, ``on_complete`` run.
        """
        return self._op_complete(COMPLETED)

    def cancel(self) -> bool:
        """Take the operation off every list and off the timer; no callback runs. O(keys).

        Returns:
            True for the one caller that cancelled it while it was PENDING.
        """
        return self._op_complete(CANCELLED)

    def maybe_try_complete(self) -> bool:
        """Check the condition once more, from any thread. Never blocks.

        If another thread is checking it, that thread checks again; if the user's lock is taken,
        the timer retries soon.

        Returns:
            Whether this call completed the operation.
        """
        self._op_check_due = True
        self._op_resume_if_interrupted()
        return self._op_process()

    def safe_try_complete_or_else(self, f: Callable[[], object]) -> bool:
        """Under the operation's lock: check; if it isn't complete, call ``f`` and check again.

        Never blocks: if the lock is taken, ``f`` is called without it, and its holder or a retry
        checks.

        Returns:
            Whether this call completed the operation.
        """
        return self._op_check_or_else(lambda _: f(), [threading.get_ident()])

    # 1. Completing it, once.

    def _op_complete(
        self, outcome: Outcome, error: BaseException | None = None, resuming: bool = False
    ) -> bool:
        """Complete it, or, if that was interrupted, go on. True for who set the outcome.

        Args:
            resuming: whether callbacks that were deferred are to run now.
        """
        claims = self._op_claims
        me = [threading.get_ident()]
        try:
            if claims.setdefault("completer", me) is not me:
                # The winner may not have set the outcome yet: the owner must not go round and round
                # on these until he has.
                self._op_expiry_due = False
                self._op_forced_outcome = None
                return False
            won = self._op_outcome is PENDING
            if won:
                self._op_completed_by = me[0]
                self._op_error = error
                self._op_outcome = outcome
            elif self._op_stage == DONE or (self._op_stage == DEFERRED and not resuming):
                del claims["completer"]
                return False
            trampoline = this_thread.trampoline
            if self._op_stage <= DEFERRED:
                self._op_detach()
                if trampoline.depth >= MAX_DEPTH:
                    self._op_stage = DEFERRED
                    trampoline.deferred.append((self, self._op_resume, self._op_state))
                    del claims["completer"]
                    return won
            self._op_finish(trampoline, me)
            return won
        except BaseException as interrupt:
            if "completer" in claims and claims["completer"] is me:
                if self._op_outcome is PENDING:
                    self._op_error = error
                    self._op_outcome = outcome
                elif self._op_stage == CALLING_BACK and self._op_outcome is not FAILED:
                    self._op_error = interrupt
                    self._op_outcome = FAILED
                del claims["completer"]
                if self._op_state is not None and self._op_stage != DONE:
                    self._op_state.interrupted += ((self,),)
                self._op_resume_once()
            raise

    def _op_detach(self) -> None:
        """Take it off the timer and the lists."""
        TimerTask.cancel(self)
        retry = self._op_retry
        if retry is not None:
            retry.cancel()
            self._op_retry = None  # no cycle keeps the two alive
        state = self._op_state
        if state is not None:
            key_error = state.detach(self)
            if key_error is not None:
                self._op_log("error", "key_failed", exc_info=key_error)
            self._op_wait_ns = state.now_ns() - self._op_start_ns

    def _op_finish(self, trampoline: Trampoline, me: Caller) -> None:
        """Run the callbacks, count it, notify its listeners, run what others deferred to here."""
        depth = trampoline.depth
        state = self._op_state
        try:
            trampoline.depth = depth + 1
            if self._op_outcome is not CANCELLED:
                self._op_run_callbacks()
            if state is not None:
                counted_as = self._op_counted_as()
                if state.on_settled is not None and self._op_stage < OBSERVING:
                    self._op_stage = OBSERVING
                    state.call_observer(self, counted_as, self._op_wait_ns)
                owner = self._op_claims.get("owner")
                if owner is not None and owner[0] != me[0]:
                    state.note_still_checked(self)  # completed from outside, amid a check
                state.count_done(self, counted_as, self._op_wait_ns)
            self._op_stage = DONE
            if self._op_listeners is not None:
                self._op_notify()
            trampoline.depth = depth
            if trampoline.deferred and not depth:
                trampoline.run_deferred()
        except BaseException:
            trampoline.depth = depth
            if trampoline.deferred and not depth:
                trampoline.run_deferred()
            raise

    def _op_run_callbacks(self) -> None:
        kept: BaseException | None = None
        if self._op_stage < CALLING_BACK and self._op_outcome is not FAILED:
            callback = "on_complete"
            self._op_stage = CALLING_BACK
            try:
                self.on_complete()
                if self._op_outcome is EXPIRED:
                    callback = "on_expiration"
                    self.on_expiration()
            except FAULTS as error:
                self._op_report(callback, error)
                self._op_fail_with(error)
                kept = error
            else:
                self._op_stage = CALLED_BACK
        if self._op_outcome is FAILED and self._op_stage < CALLED_BACK:
            self._op_stage = CALLED_BACK
            self._op_call_on_failure()
        if kept is not None:
            drop_tracebacks(kept)

    def _op_counted_as(self) -> str:
        counted_as: str = self._op_outcome._value_
        submitter = self._op_submitter
        if submitter is REFUSED:
            return "rejected"
        if counted_as == "completed" and submitter and submitter[0] == self._op_completed_by:
            return "immediate"
        return counted_as

    # 2. Checking it, by one owner at a time.

    def run(self) -> None:
        """Expire, unless a last check finds the condition true. Called by the timer."""
        self._op_resume_if_interrupted()  # the timer comes again to what was interrupted
        self._op_expiry_due = True
        self._op_process()

    def _op_process(self) -> bool:
        """Own it, and do what is due, until nothing is. True if a check here completed it."""
        return self._op_process_as([threading.get_ident()])

    def _op_process_as(self, me: Caller) -> bool:
        claims = self._op_claims
        try:
            completed = False
            lock = self._op_lock
            while True:
                if (
                    self._op_outcome is not PENDING
                    or not (
                        self._op_check_due
                        or self._op_expiry_due
                        or self._op_forced_outcome is not None
                    )
                    or claims.setdefault("owner", me) is not me
                ):
                    break
                if lock is None:
                    completed = self._op_do_due() or completed
                    del claims["owner"]
                    continue
                trampoline = this_thread.trampoline
                if trampoline.depth >= MAX_DEPTH:
                    # Completed here, its callbacks would run later, and without the user's lock.
                    trampoline.deferred.append((self, self._op_process, self._op_state))
                    del claims["owner"]
                    break
                found = do_under(lock, trampoline, self._op_do_due)
                retry = self._op_schedule_retry() if found is None else None
                del claims["owner"]
                if retry is not None and self._op_is_left_to(retry):
                    break
                completed = found or completed
        except BaseException:
            if "owner" in claims and claims["owner"] is me:
                del claims["owner"]
            if self._op_state is not None:
                self._op_state.interrupted += ((self,),)
            self._op_resume_once()
            raise
        return completed

    def _op_check_or_else(self, f: Callable[[Any], object], me: Caller) -> bool:
        """Own it, check it, call ``f``, check it again; then do what is due."""
        self._op_check_due = True
        lock = self._op_lock
        claims = self._op_claims
        completed = False
        try:
            if claims.setdefault("owner", me) is not me:
                f(self)
                self._op_check_due = True
                return self._op_process()
            if lock is None:
                completed = self._op_check_twice(f)
            elif (trampoline := this_thread.trampoline).depth >= MAX_DEPTH or (
                found := do_under(lock, trampoline, partial(self._op_check_twice, f))
            ) is None:
                f(self)
                self._op_check_due = True
            else:
                completed = found
            del claims["owner"]
            # The look after the release, with the condition of _op_process_as: nearly always there
            # is nothing to see.
            if self._op_check_due or self._op_expiry_due or self._op_forced_outcome is not None:
                completed = self._op_process() or completed
            return completed
        except BaseException:
            if "owner" in claims and claims["owner"] is me:
                del claims["owner"]
            if self._op_state is not None:
                self._op_state.interrupted += ((self,),)
            self._op_resume_once()
            raise

    def _op_check_twice(self, f: Callable[[Any], object]) -> bool:
        if self._op_do_due():
            return True
        if self._op_outcome is PENDING and f(self) is REFUSED:
            return False
        self._op_check_due = True
        return self._op_do_due()

    def _op_do_due(self) -> bool:
        """As its owner, under the user's lock: check; else expire, or complete as forced.

        True if a check completed it.
        """
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
                    was_us = self._op_completed_by == threading.get_ident()
                    completed = self._op_outcome is COMPLETED and was_us
                elif (
                    completed and self._op_outcome is PENDING and "completer" not in self._op_claims
                ):
                    raise RuntimeError(
                        f"{type(self).__name__}.try_complete returned True without force_complete: "
                        "when the condition holds, it must `return self.force_complete()`"
                    )
            except FAULTS as error:
                self._op_report("try_complete", error)
                self._op_complete(FAILED, error)
                raised = error
            except BaseException as interrupt:
                # Left pending, it would have lost this check, and perhaps its expiry.
                self._op_complete(FAILED, interrupt)
                raise
            else:
                if not completed:
                    continue
                if unasked and self._op_state is not None:
                    self._op_state.count_missed_wakeup()
                    self._op_log("warning", "missed_wakeup")
                return True
            drop_tracebacks(raised)
            return False
        forced = (EXPIRED, None) if expiring else self._op_forced_outcome
        if forced is None:
            return False
        if self._op_was_abandoned():  # by the check
            self._op_expiry_due = False
            self._op_forced_outcome = None
            return False
        outcome, reason = forced
        return self._op_complete(outcome, reason) and outcome is COMPLETED

    def _op_do_as_owner(self, work: Callable[[], object]) -> None:
        """Do ``work`` as its owner, unless it has another."""
        claims = self._op_claims
        me = [threading.get_ident()]
        try:
            if claims.setdefault("owner", me) is me:
                work()
                del claims["owner"]
        except BaseException:
            if "owner" in claims and claims["owner"] is me:
                del claims["owner"]
            if self._op_state is not None:
                self._op_state.interrupted += ((self,),)
            self._op_resume_once()
            raise

    # 3. Submitting it.

    def _op_submit(
        self,
        state: PurgatoryState[Any],
        keys: tuple[Hashable, ...],
        thresholds: Mapping[Hashable, int] | None,
    ) -> bool:
        """Check it, put it on its lists, check it again; start its timeout. Whether it completed.

        If this raises it leaves nothing behind: the operation is cancelled, unless another call
        submitted it before. ``self`` may be anything that a user takes for an operation. There is
        no look at its class: as that is abstract, it would cost a thirtieth of all the rest.
        """
        identity = id(self)
        me = [threading.get_ident()]
        try:
            now_ns = state.now_ns()
            taken = False
            with state.lock:
                if self._op_state is None:
                    if state.is_closed:
                        state.counters.rejected += 1
                    else:
                        taken = True
                        self._op_start_ns = now_ns
                        self._op_submitter = me
                        self._op_keys = keys
                        self._op_thresholds = thresholds
                        self._op_state = state
                        if self._op_outcome is PENDING:
                            state.pending[identity] = self
            if not taken:
                raise _refusal(self, state.name)
            if now_ns > state.reaper_look_ns:
                state.check_reaper(now_ns)
            completed = self._op_check_or_else(state.watch, me)
            refusal = None
            if self._op_submitter is REFUSED:
                refusal = is_full(self, state.name, state.max_pending)
                state.log_full(self)
                self.cancel()
            elif not completed and self._op_outcome is PENDING:
                self._op_start_timeout(state)
            if self._op_outcome is PENDING:
                self._op_submitter = None  # completed by now, it may have yet to be counted
        except BaseException as error:
            try:
                is_ours = self._op_submitter is me or self._op_submitter is REFUSED
            except AttributeError:
                if isinstance(error, AttributeError):
                    raise _refusal(self, state.name) from None
                raise error from None
            if is_ours:  # a key that can't be compared, an interrupt: leave nothing behind
                self._op_forced_outcome = _CANCEL
                state.interrupted += ((self,),)
                self.cancel()
            raise
        if refusal is not None:
            raise refusal
        return completed

    def _op_start_timeout(self, state: PurgatoryState[Any]) -> None:
        if not state.expires or self.delay_ms >= FOREVER_MS:
            return
        if 0 < self.delay_ms < SHORT_DELAY_MS and not state.short_delay_logged:
            state.log_short_delay(self)
        try:
            state.timer.add(self)
        except TimerClosedError:
            if not state.is_closed:  # who closes comes to it himself
                raise
        # Completed or abandoned meanwhile, who did so has looked at the timer too early.
        if self._op_outcome is not PENDING or not self._op_keys:
            TimerTask.cancel(self)

    # 4. Notifying its listeners.

    def call_when_settled(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` once, when the outcome is known and the callbacks have run.

        The thread that completes the operation calls it; if that is over, this call does. It must
        be short, and its errors are logged. If the purgatory is closed and leaves the operation
        pending, it is called too, and ``outcome`` is PENDING.
        """
        listeners = self._op_listeners
        if listeners is None:
            made: list[Callable[[], object]] = []  # not under the lock: it may run a finalizer
            with _listeners_lock:
                listeners = self._op_listeners
                if listeners is None:
                    listeners = self._op_listeners = made
        # Noted first, then looked; the completer says DONE first, then looks for listeners.
        listeners.append(listener)
        self._op_resume_if_interrupted()
        if self._op_is_done():
            self._op_notify()

    def _op_notify(self) -> None:
        """Call the listeners, each once: by whoever pops it, who puts it back if interrupted."""
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
                if self._op_state is not None:
                    self._op_state.interrupted += ((self,),)
                self._op_resume_once()
                raise

    # Not written out above: between two ``try``, CPython covers an instruction by neither.
    def _op_call_listener(self, listener: Callable[[], object]) -> None:
        try:
            listener()
        except FAULTS as error:
            self._op_listener_failed(listener, error)

    # What is asked of it.

    def _op_is_done(self) -> bool:
        """Whether nothing is to come any more."""
        return self._op_stage == DONE or self._op_was_abandoned()

    def _op_resume_if_interrupted(self) -> None:
        if (
            self._op_outcome is not PENDING
            and self._op_stage not in (DEFERRED, DONE)
            and "completer" not in self._op_claims
        ):
            self._op_resume()

    def _op_was_abandoned(self) -> bool:
        """Whether its purgatory was closed and left it pending: only that takes all its keys."""
        return self._op_state is not None and not self._op_keys

    def _op_own_for_good(self) -> bool:
        """Become its owner, and stay it, unless somebody is at it."""
        return self._op_claims.setdefault("owner", _ABANDONED) is _ABANDONED

    def _op_has_owner(self) -> bool:
        """Whether a thread is in the middle of checking it."""
        return self._op_claims.get("owner", _ABANDONED) is not _ABANDONED

    def _op_is_busy_on(self, thread: int) -> bool:
        """Whether ``thread`` is in the middle of checking or completing it."""
        claims = self._op_claims
        # Once it is done, its completer may have ended, and a new thread have got its number.
        completer = None if self._op_stage == DONE else claims.get("completer")
        owner = claims.get("owner")
        return bool((owner and owner[0] == thread) or (completer and completer[0] == thread))

    # What ``operation`` does, over either base.

    @abstractmethod
    def _op_resume(self) -> None:
        """Finish what was interrupted, unless another call is at it."""

    @abstractmethod
    def _op_resume_once(self) -> None:
        """Try once to go on with what was interrupted, here and now."""

    @abstractmethod
    def _op_schedule_retry(self) -> RetryTask:
        """Put a retry on the timer, unless one is there."""

    @abstractmethod
    def _op_is_left_to(self, retry: RetryTask) -> bool:
        """Whether what is due is left to ``retry``, or to nobody."""

    @abstractmethod
    def _op_listener_failed(self, listener: Callable[[], object], error: BaseException) -> None:
        """Log what a listener raised; call it again if somebody waits for it."""

    @abstractmethod
    def _op_fail_with(self, error: BaseException) -> None:
        """Become FAILED by ``error``, unless it is."""

    @abstractmethod
    def _op_call_on_failure(self) -> None:
        """Call ``on_failure``."""

    @abstractmethod
    def _op_report(self, callback: str, error: BaseException) -> None:
        """Count and log what a callback raised."""

    @abstractmethod
    def _op_log(self, level: str, event: str, **values: object) -> None:
        """Log what happened to it."""


def check_each(operations: Iterable[DelayedOperation], me: Caller) -> int:
    """Check these, and return how many that completed."""
    completed = 0
    for operation in operations:
        # operation.maybe_try_complete(), written out.
        operation._op_check_due = True
        if operation._op_process_as(me):
            completed += 1
    return completed


def _refusal(operation: object, name: str) -> Exception:
    """Return why ``operation`` was not taken."""
    if not isinstance(operation, DelayedOperation):
        return is_no_operation(operation)
    if not hasattr(operation, "_op_state"):
        return is_unfinished(operation)
    taken_by = operation._op_state
    if taken_by is not None:
        return was_submitted(operation, taken_by.name)
    return is_closed(operation, name)
