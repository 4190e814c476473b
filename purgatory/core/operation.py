"""An operation that waits for a condition or for its timeout, and is completed exactly once.

``_PureOperation`` does the work for every operation, or ``NativeOperation`` where native code was
built. ``DelayedOperation``, from which users derive, adds the work for few to either.

How an operation is completed once
----------------------------------
Kafka's ``completed.compareAndSet(false, true)`` is ``claims.setdefault("completer", me) is me``
here (``_op_complete``). The winner sets the outcome; no other call ever does. Then, in this order,
each step seen by every thread that sees the next::

    outcome = COMPLETED | EXPIRED | CANCELLED | FAILED      the claim was won
    DETACHING      timer cancelled; off all watch lists; pending -> completing
    CALLING_BACK   on_complete, on_expiration               raises: FAILED, on_failure
    OBSERVING      on_completed                             CANCELLED: no callback
    DONE           counted; listeners and waiting threads notified

An operation is put on a list only after its ``_op_state`` is set, and a list keeps only PENDING
operations: either the list sees the outcome, or the completer finds the operation on the list. A
claim is given back only by a completion that is deferred, for the depth of the stack, or that an
exception interrupted: the next claimant sees the outcome and resumes at the recorded stage.

How no check is lost, though no thread waits
--------------------------------------------
Kafka's ``maybeTryComplete``. A requester first *notes* its request (``_op_check_due``,
``_op_expiry_due``, ``_op_forced_outcome``), then *tries* to become the one owner (``_op_own``)::

    requester:  note   try ..........          fails: the owner has yet to look
    owner:      ...... check  release   look

If the try fails, the release comes after it, hence after the note, and the look that follows the
release sees the note. If the try succeeds, the requester itself checks. An expiry is a check that,
in vain, ends as EXPIRED. A lock that the user passed in is tried by the owner. Its holder knows
nothing of notes, so while the lock is taken they stay, and the owner puts a retry on the timer,
unless one is there: 1 ms ahead, then 2, 4, up to 32, until the lock is free.

How an operation is abandoned
-----------------------------
``close("leave")`` becomes its owner for good, so the library never touches it again. The operation
loses its keys, under the state's lock; a call that puts it on a list or on the timer meanwhile
looks at those. Last, it is no longer pending: until then, the next close abandons it again.

Attributes start with ``_op_``: users derive from this class, and theirs must not collide.
"""

from __future__ import annotations

import inspect
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from operator import call, index
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from purgatory.core.backend import NATIVE
from purgatory.core.errors import (
    FAULTS,
    closed_error,
    drop_tracebacks,
    full_error,
    is_interrupt,
    reused_error,
    uninitialized_error,
    wrong_type_error,
)
from purgatory.core.interrupts import NEEDS_REPAIR, Caller, resume
from purgatory.core.locks import LockLike, check_lock, do_under
from purgatory.core.outcome import (
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
    Outcome,
)
from purgatory.core.recent_errors import log_safely
from purgatory.core.retry import RetryTask
from purgatory.core.state import REFUSED, PurgatoryState
from purgatory.core.trampoline import MAX_DEPTH, Trampoline, this_thread
from timer import SystemTimer, TimerClosedError, TimerTask
from timer.backend import describe_as
from timer.durations import checked_delay_ms, checked_timeout_s
from timer.former_names import FormerName
from timer.locks import module_lock
from timer.log import safe_repr
from timer.wake import Wake

CALLBACKS = ("try_complete", "on_complete", "on_expiration", "on_failure")

ForcedOutcome: TypeAlias = tuple[Outcome, BaseException | None]
"""The outcome of an operation whatever its condition says; and the error, if that is FAILED."""

_ABANDONED: Caller = [0]
"""The owner, for good, of abandoned operations. No thread has this number."""

_CANCEL: ForcedOutcome = (CANCELLED, None)
_FIRST = (0,)

_listeners_lock = module_lock()


class _PureOperation(TimerTask):
    """The work for every operation, in pure Python; ``NativeOperation`` does the same."""

    __slots__ = (
        *("_op_check_due", "_op_claims", "_op_completed_by", "_op_error", "_op_expiry_due"),
        *("_op_forced_outcome", "_op_keys", "_op_listeners", "_op_lock", "_op_outcome"),
        *("_op_retry", "_op_stage", "_op_start_ns", "_op_state", "_op_submitter"),
        *("_op_thresholds", "_op_wait_ns"),
    )

    _op_state: PurgatoryState[Any] | None
    """The state of its purgatory, once it was submitted."""
    _op_keys: tuple[Hashable, ...]
    """The keys for any event and for numbers, each once; none once it was abandoned."""
    _op_thresholds: Mapping[Hashable, int] | None
    _op_lock: LockLike | None
    _op_claims: dict[str, Caller]
    """The claims of calls on it: "owner" and "completer"."""
    _op_check_due: bool
    _op_expiry_due: bool
    _op_forced_outcome: ForcedOutcome | None
    _op_outcome: Outcome
    _op_stage: int
    """The stage that its completion has reached: see ``outcome``."""
    _op_error: BaseException | None
    _op_completed_by: int
    """The number of the thread that set the outcome."""
    _op_submitter: Caller | None
    """The claim of the call that submits it, until it is on the lists and the timer. ``REFUSED`` is
    added to it if there is no place."""
    _op_retry: RetryTask | None
    _op_listeners: list[Callable[[], object]] | None
    _op_start_ns: int
    _op_wait_ns: int

    def __init__(self, delay_ms: int | timedelta | None, lock: LockLike | None = None) -> None:
        if getattr(self, "_op_state", None) is not None:
            raise RuntimeError("an operation can't be made again after it was submitted")
        if type(delay_ms) is not int:
            delay_ms = FOREVER_MS if delay_ms is None else checked_delay_ms(delay_ms)
        self.delay_ms: int = delay_ms
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

    # Users define these.

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

    # Users call these.

    @property
    def outcome(self) -> Outcome:
        """The outcome, or PENDING. In a callback, the outcome that is about to be final."""
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
        self._op_check_due = True
        return self._op_own([threading.get_ident()], lambda _: f())

    # 1. Completing it, once.

    def _op_complete(
        self, outcome: Outcome, error: BaseException | None = None, resuming: bool = False
    ) -> bool:
        """Complete it, or, if that was interrupted, go on. True for the call that set the outcome.

        Args:
            resuming: whether callbacks that were deferred are to run now.
        """
        claims = self._op_claims
        me = [threading.get_ident()]
        try:
            if resuming:
                claims["resumer"] = me  # whoever has the claim for a moment sees it then
            if claims.setdefault("completer", me) is not me:
                # The winner may not have set the outcome yet: the owner must not go round and round
                # on these until then.
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
                if self._op_stage == DEFERRED and "resumer" in claims:
                    self._op_complete(self._op_outcome, resuming=True)
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
            claims.pop("resumer", None)
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
                observer = state.on_completed  # read once: its user may set another one
                if observer is not None and self._op_stage < OBSERVING:
                    state.call_observer(observer, self, counted_as, self._op_wait_ns)
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
        if submitter and submitter[0] == self._op_completed_by:
            if counted_as == "completed":
                return "immediate"
            # A refusal counts only where it won: otherwise the operation has its response.
            if counted_as == "cancelled" and submitter[-1] is REFUSED:
                return "rejected"
        return counted_as

    # 2. Checking it, by one owner at a time.

    def run(self) -> None:
        """Expire, unless a last check finds the condition true. Called by the timer."""
        self._op_resume_if_interrupted()  # the timer comes again to what was interrupted
        self._op_expiry_due = True
        self._op_process()

    def _op_process(self) -> bool:
        """Own it, and do what is due, until nothing is. True if a check here completed it."""
        return self._op_own([threading.get_ident()])

    def _op_own(
        self,
        me: Caller,
        between: Callable[[Any], object] | None = None,
        unlocked: Callable[[], object] | None = None,
    ) -> bool:
        """Own the operation and do what is due, until nothing is: the only loop of ownership.

        Args:
            me: the claim of this call.
            between: called first, between two checks. If another call owns the operation, or the
                user's lock is taken, it is called without the checks, and one is due afterwards.
            unlocked: called first, without the user's lock, unless another call is the owner.

        Returns:
            Whether a check here completed the operation.
        """
        claims = self._op_claims
        lock = self._op_lock
        completed = False
        try:
            while True:
                if (
                    between is None
                    and unlocked is None
                    and (
                        self._op_outcome is not PENDING
                        or not (
                            self._op_check_due
                            or self._op_expiry_due
                            or self._op_forced_outcome is not None
                        )
                    )
                ):
                    break
                retry = None
                if claims.setdefault("owner", me) is not me:
                    if between is None:
                        break
                    between(self)
                    between = None
                    self._op_check_due = True
                elif unlocked is not None:
                    unlocked()
                    unlocked = None
                    del claims["owner"]
                elif lock is None:
                    if between is None:
                        completed = self._op_do_due() or completed
                    else:
                        completed = self._op_check_twice(between)
                        between = None
                    del claims["owner"]
                else:
                    trampoline = this_thread.trampoline
                    is_too_deep = trampoline.depth >= MAX_DEPTH
                    if is_too_deep and between is None:
                        # Completed here, its callbacks would run later, without the user's lock.
                        trampoline.deferred.append((self, self._op_process, self._op_state))
                        del claims["owner"]
                        break
                    found = None
                    if not is_too_deep:
                        work = self._op_do_due
                        if between is not None:
                            work = partial(self._op_check_twice, between)
                        found = do_under(lock, trampoline, work)
                    if found is not None:
                        completed = found or completed
                    elif between is None:
                        retry = self._op_schedule_retry()
                    else:
                        between(self)
                        self._op_check_due = True
                    between = None
                    del claims["owner"]
                if retry is not None and self._op_is_deferred_to(retry):
                    break
                retry = None  # on 3.14 the jump back of an `if` lies outside of the `try`
        except BaseException:
            if "owner" in claims and claims["owner"] is me:
                del claims["owner"]
            if self._op_state is not None:
                self._op_state.interrupted += ((self,),)
            self._op_resume_once()
            raise
        return completed

    def _op_check_twice(self, between: Callable[[Any], object]) -> bool:
        if self._op_do_due():
            return True
        if self._op_outcome is PENDING and between(self) is REFUSED:
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
                    # Perhaps a forgotten `return`: the outcome counts.
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

    # 3. Submitting it.

    def _op_submit(
        self,
        state: PurgatoryState[Any],
        keys: tuple[Hashable, ...],
        thresholds: Mapping[Hashable, int] | None,
    ) -> bool:
        """Check it, put it on its lists, check it again; start its timeout. Whether it completed.

        If this raises it leaves nothing behind: the operation is cancelled, unless another call
        submitted it before. ``self`` may be any object that a user passes. Its class is
        not looked at: as that is abstract, the look would cost a thirtieth of all the rest.
        """
        identity = id(self)
        me = [threading.get_ident()]
        try:
            now_ns = state.now_ns()
            if type(now_ns) is not int:  # before anything changes
                now_ns = index(now_ns)
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
                raise _refusal_error(self, state.name)
            if now_ns > state.reaper_look_ns:
                state.check_reaper(now_ns)
            self._op_check_due = True
            completed = self._op_own(me, state.watch)
            refusal = None
            if me[-1] is REFUSED:
                error = full_error(self, state.name, state.max_pending)
                if self.cancel():
                    refusal = error
                    state.log_full(self)
            elif not completed and self._op_outcome is PENDING:
                self._op_start_timeout(state)
            if self._op_outcome is PENDING:
                self._op_submitter = None  # completed by now, it may have yet to be counted
        except BaseException as error:
            try:
                is_ours = self._op_submitter is me
            except AttributeError:
                if isinstance(error, AttributeError):
                    raise _refusal_error(self, state.name) from None
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
        try:
            state.timer.add(self)
        except TimerClosedError:
            if not state.is_closed:  # the close comes to it
                raise
        # The call that completed or abandoned it meanwhile has looked at the timer too early.
        if self._op_outcome is not PENDING or not self._op_keys:
            TimerTask.cancel(self)

    # 4. Notifying its listeners.

    def call_when_completed(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` once, when the outcome is known and the callbacks have run.

        The thread that completes the operation calls it; if that is over, this call does. The
        listener must be short; its errors are logged. If the purgatory is closed and leaves the
        operation pending, the listener is called too, and ``outcome`` is PENDING.
        """
        try:
            self._op_listen(listener)
        except BaseException:
            if self._op_state is not None:
                self._op_state.interrupted += ((self,),)
            self._op_resume_once()
            raise

    def _op_listen(self, listener: Callable[[], object]) -> None:
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
        """Call the listeners, each once: the call that pops one puts it back if interrupted."""
        listeners = self._op_listeners
        while listeners:
            popped: list[Callable[[], object]] = []
            told: list[object] = []
            try:
                popped += map(listeners.pop, _FIRST)  # one step, which notes what it takes
                self._op_call_listener(popped[0], told)
            except BaseException as error:
                if not popped and error.__class__ is IndexError:
                    return  # another thread was faster
                if not told:
                    listeners[:0] = popped
                if self._op_state is not None:
                    self._op_state.interrupted += ((self,),)
                self._op_resume_once()
                raise

    # Not written out above: between two ``try``, CPython covers an instruction by neither.
    def _op_call_listener(self, listener: Callable[[], object], told: list[object]) -> None:
        # An interrupt comes before this ``try``, or in the listener: taken and told in one step.
        calls = map(call, (listener,))
        try:
            told += calls
        except FAULTS as error:
            if told:
                raise
            self._op_listener_failed(listener, error)

    # Questions about it.

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
        """Become its owner for good, unless another call owns it."""
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

    if TYPE_CHECKING:  # what is done for few, by `DelayedOperation`, over either base

        def _op_resume(self) -> None: ...
        def _op_resume_once(self) -> None: ...
        def _op_schedule_retry(self) -> RetryTask: ...
        def _op_is_deferred_to(self, retry: RetryTask) -> bool: ...
        def _op_listener_failed(
            self, listener: Callable[[], object], error: BaseException
        ) -> None: ...
        def _op_fail_with(self, error: BaseException) -> None: ...
        def _op_call_on_failure(self) -> None: ...
        def _op_report(self, callback: str, error: BaseException) -> None: ...
        def _op_log(self, level: str, event: str, **values: object) -> None: ...


if NATIVE and not TYPE_CHECKING:
    from purgatory.core.native.operation import NativeOperation, init_operation

    class OperationBase(NativeOperation, TimerTask):
        """The work for every operation, natively."""

        __slots__ = ()

        __init__ = init_operation

        @abstractmethod
        def try_complete(self) -> bool:
            """Check the condition; if it holds, call ``force_complete`` and return its result."""

    describe_as(NativeOperation, _PureOperation)
    describe_as(OperationBase, _PureOperation)
else:  # last, and as an import: the reference shows it
    from purgatory.core.operation import _PureOperation as OperationBase


class DelayedOperation(OperationBase):
    """Work to be finished when a condition holds, or when ``delay_ms`` have passed.

    Derive from it. ``try_complete`` is required; the other callbacks do nothing by default. The
    callbacks of one operation never overlap, unless you call ``force_complete`` yourself from
    another thread. None of them runs under the lock of the state, or of the timer. An exception in
    one is logged and counted, and leaves the operation FAILED.

    Args:
        delay_ms: the longest wait, in milliseconds or as a timedelta, from when the operation is on
            the watch lists; None for no timeout.
        lock: held whenever the library runs a callback, for conditions over state that other code
            guards by the same lock. The library never waits for it. Without one, none is used.

    Raises:
        TypeError: delay_ms is no integer, timedelta or None, or ``lock`` is not a lock.
    """

    __slots__ = ()

    call_when_settled = FormerName("call_when_completed")

    _timer_may_run_again = True  # a completed operation passes over a second run
    _op_raises_to_waiter = False
    """Whether the wait for it raises the errors of ``try_complete``, which are not logged then."""

    if not TYPE_CHECKING:
        __init__ = OperationBase.__init__  # here, where super() of a user's __init__ finds it first

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        _check_callbacks(cls)

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

    # Waiting for its completion.

    def wait(self, timeout: float | timedelta | None = None) -> Outcome:
        """Block this thread until the outcome is known and the callbacks have run.

        Args:
            timeout: seconds, or a timedelta; None waits for ever.

        Returns:
            The outcome; PENDING if the timeout came first, or if the purgatory was closed and left
            the operation as it was.
        """
        timeout_s = checked_timeout_s(timeout)
        trampoline = this_thread.trampoline
        if trampoline.deferred and self._op_stage != DONE:
            trampoline.run_deferred()  # it may be among these, and no other call will run them
        self._op_resume_if_interrupted()
        if self._op_stage != DONE:
            done = Wake()
            listener = WakeUp(done.set)
            try:
                self.call_when_completed(listener)
                done.wait(timeout_s)
                self._op_remove_listener(listener)
            except BaseException:
                self._op_remove_listener(listener)
                raise
        return self._op_outcome if self._op_stage == DONE else PENDING

    def _op_remove_listener(self, listener: Callable[[], object]) -> None:
        with suppress(ValueError):  # it was called
            (self._op_listeners or []).remove(listener)

    def _op_listener_failed(self, listener: Callable[[], object], error: BaseException) -> None:
        if is_interrupt(listener, error):
            raise error  # it is called again
        self._op_log("error", "listener_failed", exc_info=error)
        if isinstance(listener, WakeUp):
            listener()

    # Failing.

    def _op_fail_with(self, error: BaseException) -> None:
        if self._op_outcome is not FAILED:
            self._op_outcome = FAILED
            self._op_error = error

    def _op_call_on_failure(self) -> None:
        assert self._op_error is not None, "a failed operation says why"
        try:
            self.on_failure(self._op_error)
        except FAULTS as error:
            self._op_report("on_failure", error)

    def _op_report(self, callback: str, error: BaseException) -> None:
        if self._op_state is not None:
            self._op_state.count_callback_error(callback)
        self._op_log("error", "callback_failed", stage=callback, exc_info=error)

    def _op_log(self, level: str, event: str, **values: object) -> None:
        state = self._op_state
        name = None if state is None else state.name
        error = values.get("exc_info")
        if state is not None and isinstance(error, BaseException):
            callback = values.get("stage")
            state.faults.note(event, None if callback is None else str(callback), self, error)
        if not (self._op_raises_to_waiter and values.get("stage") == "try_complete"):
            log_safely(level, event, purgatory=name, operation=safe_repr(self), **values)

    # Resuming after an interrupt.

    def _op_resume(self) -> None:
        if self._op_outcome is PENDING:
            self._op_check_due = True
            self._op_process()
            if self._op_was_abandoned() and self._op_listeners:
                self._op_notify()
        elif self._op_stage != DONE:
            self._op_complete(self._op_outcome, resuming=True)
        elif self._op_listeners:
            self._op_notify()

    def _op_resume_once(self) -> None:
        if self._op_stage != DONE or self._op_listeners:
            resume(self._op_resume)

    # Retries where the user's lock is taken.

    def _op_schedule_retry(self) -> RetryTask:
        """As its owner, hence alone, put a retry on the timer, unless one is there."""
        retry = self._op_retry
        if retry is None:
            retry = self._op_retry = RetryTask(self._op_process)
        state = self._op_state
        if state is not None and retry.since_ns is None:
            retry.since_ns = state.now_ns()
            state.retries.add(retry)
        if state is not None and not retry.is_due:  # a due one must not be moved
            try:
                retry.has_run = False
                state.timer.add(retry)
            except TimerClosedError:
                if not state.is_closed:  # the close tries the operation
                    raise
        return retry

    def _op_is_deferred_to(self, retry: RetryTask) -> bool:
        """Once it has no owner: whether due work is deferred to ``retry``, or to no call.

        A retry that came before has deferred it to the owner.
        """
        # Put on the timer first, then looked: the completer sets the outcome first, and a close
        # that abandons it takes its keys first; then both look for a retry to cancel.
        if self._op_outcome is not PENDING or self._op_was_abandoned():
            retry.cancel()
            self._op_retry = None
            return True
        state = self._op_state
        if state is not None and state.gave_up_error is not None:
            self._op_fail_without_lock(state.gave_up_error)
            return True
        if retry.is_due or state is None or state.is_closed:
            return True
        # On a timer of the user's own only one thing is known: whether it has run.
        return not (retry.has_run or isinstance(state.timer, SystemTimer))

    # Its purgatory, and a close, call these.

    def _op_force(self, forced: ForcedOutcome | None, held: Collection[int]) -> None:
        """Note the ``forced`` outcome, or its expiry, and process it.

        Args:
            forced: None to expire it.
            held: the identities of the users' locks that this thread holds for callbacks, which may
                not be taken twice.
        """
        if forced is None:
            self._op_expiry_due = True
        else:
            self._op_forced_outcome = forced
        if (
            id(self._op_lock) not in held
            or this_thread.trampoline.depth >= MAX_DEPTH  # its callbacks would run without the lock
        ):
            self._op_process()
        else:
            self._op_own([threading.get_ident()], unlocked=self._op_do_due)

    def _op_fail_without_lock(self, error: BaseException) -> None:
        """Fail it although the user's lock is taken, unless it has an owner: that does the work
        which closing noted before, or, if it doesn't get the lock either, fails it."""
        me = [threading.get_ident()]
        self._op_own(me, unlocked=lambda: self._op_complete(FAILED, error))

    def _op_abandon_if_free(self) -> None:
        """Abandon it, unless another call owns it."""
        if self._op_own_for_good():
            self._op_abandon()

    def _op_abandon(self) -> None:
        """Leave it pending for good, and notify its listeners."""
        state = self._op_state
        assert state is not None
        with state.lock:
            abandoned = self._op_outcome is PENDING
            if abandoned:
                # First: a repair takes an operation without keys off the lists.
                keys, self._op_keys = self._op_keys, ()
                if state.watchers.unwatch(self, keys) is not None:
                    state.interrupted += NEEDS_REPAIR
                self._op_thresholds = None
        if not abandoned:
            return
        TimerTask.cancel(self)
        retry = self._op_retry
        if retry is not None:
            retry.cancel()
        self._op_notify()  # no other call will wake its waiters
        state.forget_pending(self)


class WakeUp(partial[None]):
    """A listener that wakes a waiter, and that is called again if it raises, however often: an
    interrupt may have met it anywhere."""


def _check_callbacks(cls: type[DelayedOperation]) -> None:
    """Raise TypeError if ``cls`` defines a callback that the library can't call, or never would."""
    for name in CALLBACKS:
        kind = _kind_of_promise(getattr(cls, name))
        if kind is not None:
            raise TypeError(
                f"{cls.__qualname__}.{name} is {kind}: the library calls it, and "
                "nobody would run what it returns; make it a plain function, which may start a task"
            )
    if cls.run is not DelayedOperation.run:
        raise TypeError(
            f"{cls.__qualname__} defines run, by which the timer expires an operation: "
            "name it otherwise; on_expiration is called when the time is up"
        )


def _kind_of_promise(function: object) -> str | None:
    """Return the kind of ``function``, if calling it only returns an object to be run."""
    if inspect.iscoroutinefunction(function):
        return "a coroutine function"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "a generator function"
    return None


def force_each(operations: Collection[DelayedOperation], forced: ForcedOutcome) -> None:
    """Note the outcome with these, and process it; note it with all, if that is interrupted."""
    try:
        for operation in operations:
            operation._op_force(forced, ())
    except BaseException:
        for operation in operations:
            operation._op_forced_outcome = forced
        raise


def is_new(operation: object) -> bool:
    """Whether ``operation`` is one, and was never submitted."""
    return getattr(operation, "_op_state", operation) is None


# Other packages read these of an operation.


def submitted_ns(operation: DelayedOperation) -> int:
    """Return when ``operation`` was submitted, by the timer's clock."""
    return operation._op_start_ns


def watch_keys(operation: DelayedOperation) -> tuple[Hashable, ...]:
    """Return the keys that ``operation`` waits on; none once it was abandoned."""
    return operation._op_keys


def users_lock(operation: DelayedOperation) -> LockLike | None:
    """Return the lock that its user passed in with ``operation``."""
    return operation._op_lock


def check_each(operations: Iterable[_PureOperation], me: Caller) -> int:
    """Check these; return how many this completed."""
    completed = 0
    for operation in operations:
        # operation.maybe_try_complete(), written out.
        operation._op_check_due = True
        if operation._op_own(me):
            completed += 1
    return completed


def _refusal_error(operation: object, name: str) -> Exception:
    """Return the error of a submission for ``operation``, which purgatory ``name`` refused."""
    if not isinstance(operation, _PureOperation):
        return wrong_type_error(operation)
    if not hasattr(operation, "_op_state"):
        return uninitialized_error(operation)
    submitted_to = operation._op_state
    if submitted_to is not None:
        return reused_error(operation, submitted_to.name)
    return closed_error(operation, name)
