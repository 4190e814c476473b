"""An operation that waits for a condition or for its timeout, and is completed exactly once.

The life of one, in three classes: ``TimerTask`` <- ``OperationBase``, what is done for every
operation (``_operation_pure``, or native code) <- ``DelayedOperation``, what users derive from, and
what is done for few.

How it is completed once
------------------------
Kafka's ``completed.compareAndSet(false, true)`` is ``claims.setdefault("completer", me) is me``
here (``_op_complete``). Whoever wins it sets the outcome; nobody else ever does. Then, in this
order, each step seen by whoever sees the next::

    outcome = COMPLETED | EXPIRED | CANCELLED | FAILED      the claim was won
    DETACHING      timer cancelled; off all watch lists; pending -> completing
    CALLING_BACK   on_complete, on_expiration               raises: FAILED, on_failure
    OBSERVING      on_settled                               CANCELLED: no callback
    DONE           counted; listeners and waiting threads notified

An operation is put on a list only after its ``_op_state`` is set, and a list keeps only what is
PENDING. So either the list sees the outcome, or the completer finds the operation on the list. A
claim is given back only by a completion that is deferred, for the depth of the stack, or that an
exception broke off: who claims it again finds the outcome set, and goes on from the stage.

How no check is lost, though nobody waits
-----------------------------------------
Kafka's ``maybeTryComplete``. Whoever wants something of an operation first *notes* it
(``_op_check_due``, ``_op_expiry_due``, ``_op_forced_outcome``), then *tries* to be its one owner::

    requester:  note   try ..........          fails: the owner has yet to look
    owner:      ...... check  release   look

If the try fails, the release comes after it, hence after the note, and the look that follows the
release sees it. If it succeeds, the requester checks itself. An expiry is a check that, in vain,
ends as EXPIRED. A lock that the user passed in is tried by the owner; its holder knows nothing of
notes, so when it is taken they stay, and the owner puts a retry on the timer, unless one is there:
1 ms ahead, then 2, 4, up to 32, until it finds the lock free.

How it is abandoned
-------------------
``close("leave")`` becomes its owner for good, so nothing of ours touches it again. It loses its
keys, under the state's lock; a call that puts it on a list or on the timer meanwhile looks at
those. Last it is no longer pending: until then, the next close abandons it again.

Attributes start with ``_op_``: users derive from this class, and theirs must not collide.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from purgatory.core._operation_pure import DelayedOperation as PureOperation
from purgatory.core._operation_pure import ForcedOutcome
from purgatory.core.backend import NATIVE
from purgatory.core.errors import FAULTS
from purgatory.core.interrupts import NEEDS_REPAIR
from purgatory.core.locks import LockLike
from purgatory.core.recent_errors import log_safely
from purgatory.core.states import DONE, FAILED, FOREVER_MS, MOVES, PENDING, Outcome
from purgatory.core.trampoline import MAX_DEPTH, this_thread
from timer import SystemTimer, TimerClosedError, TimerTask, Wake
from timer.backend import describe_as
from timer.durations import checked_timeout_s
from timer.log import safe_repr

CALLBACKS = ("try_complete", "on_complete", "on_expiration", "on_failure")

_FIRST_RETRY_MS = 1
_LONGEST_RETRY_MS = 32

if NATIVE and not TYPE_CHECKING:
    from purgatory.core.native.operation import NativeOperation, init_operation

    class OperationBase(NativeOperation, TimerTask):
        """What is submitted once, checked by one owner at a time, and completed once."""

        __slots__ = ()

        __init__ = init_operation

        @abstractmethod
        def try_complete(self) -> bool:
            """Check the condition; if it holds, call ``force_complete`` and return its result."""

    describe_as(NativeOperation, PureOperation)
    describe_as(OperationBase, PureOperation)
else:  # last: the reference shows it
    from purgatory.core._operation_pure import DelayedOperation as OperationBase


class DelayedOperation(OperationBase):
    """Work to be finished when a condition holds, or when ``delay_ms`` have passed.

    Derive from it. ``try_complete`` is required; the other callbacks do nothing by default. The
    callbacks of one operation never overlap, unless you call ``force_complete`` yourself from
    another thread. None of them runs under the lock of the state, or of the timer. What one of them
    raises is logged and counted, and leaves the operation FAILED.

    Args:
        delay_ms: the longest wait, in milliseconds or as a timedelta, from when it is on the watch
            lists.
        lock: held whenever the library runs a callback, for conditions over state that other code
            guards by the same lock. The library never waits for it. Without one, none is used.

    Raises:
        TypeError: delay_ms is neither an integer nor a timedelta, or ``lock`` is not a lock.
    """

    __slots__ = ()

    _timer_may_run_again = True  # what is completed once passes over what was done
    _op_raises_to_waiter = False
    """Whether what ``try_complete`` raises is raised by the wait for it, and so is not logged."""

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
            trampoline.run_deferred()  # it may be among these, and nobody else will run them
        self._op_resume_if_interrupted()
        if self._op_stage != DONE:
            done = Wake()
            try:
                self.call_when_settled(done.set)
                done.wait(timeout_s)
                self._op_remove_listener(done.set)
            except BaseException:
                self._op_remove_listener(done.set)
                raise
        return self._op_outcome if self._op_stage == DONE else PENDING

    def _op_remove_listener(self, listener: Callable[[], object]) -> None:
        with suppress(ValueError):  # it was called
            (self._op_listeners or []).remove(listener)

    def _op_listener_failed(self, listener: Callable[[], object], error: BaseException) -> None:
        self._op_log("error", "listener_failed", exc_info=error)
        if isinstance(listener, WakeUp):
            listener()

    # Failing.

    def _op_become(self, outcome: Outcome) -> None:
        """Change an outcome that is not PENDING any more, as its completer."""
        if (self._op_stage, outcome) not in MOVES[self._op_stage, self._op_outcome]:
            raise RuntimeError(f"{self!r} can't become {outcome.name}")
        self._op_outcome = outcome

    def _op_fail_with(self, error: BaseException) -> None:
        if self._op_outcome is not FAILED:
            self._op_become(FAILED)
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

    # Going on with what was interrupted.

    def _op_resume(self) -> None:
        if self._op_outcome is PENDING:
            self._op_check_due = True
            self._op_process()
        elif self._op_stage != DONE:
            self._op_complete(self._op_outcome, resuming=True)
        elif self._op_listeners:
            self._op_notify()

    def _op_resume_once(self) -> None:
        trampoline = this_thread.trampoline
        if trampoline.is_resuming or (self._op_stage == DONE and not self._op_listeners):
            return
        try:
            trampoline.is_resuming = True
            self._op_resume()
            trampoline.is_resuming = False
        except BaseException:
            trampoline.is_resuming = False
            raise

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
        if state is not None and not retry.is_due:  # one that is must not be put off
            try:
                retry.has_run = False
                state.timer.add(retry)
            except TimerClosedError:
                if not state.is_closed:  # who closes tries the operation himself
                    raise
        return retry

    def _op_is_left_to(self, retry: RetryTask) -> bool:
        """Once it has no owner: whether what is due is left to ``retry``, or to nobody.

        A retry that came before has left it to the owner.
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
        # On a timer of the user's own nobody knows whether it waits, but that it has yet to come.
        return not (retry.has_run or isinstance(state.timer, SystemTimer))

    # What its purgatory does with it, and its closing.

    def _op_force(self, forced: ForcedOutcome | None, held: Collection[int]) -> None:
        """Note the ``forced`` outcome, or its expiry, and process it.

        Args:
            forced: None to expire it.
            held: the identities of the users' locks that this thread holds for callbacks: they may
                not be had twice.
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
            self._op_do_as_owner(self._op_do_due)

    def _op_fail_without_lock(self, error: BaseException) -> None:
        """Fail it although the user's lock is taken, unless it has an owner: that does what closing
        noted before, or, if it doesn't get the lock either, fails it."""
        self._op_do_as_owner(lambda: self._op_complete(FAILED, error))

    def _op_abandon_if_free(self) -> None:
        """Abandon it, unless somebody is at it."""
        if self._op_own_for_good():
            self._op_abandon()

    def _op_abandon(self) -> None:
        """Leave it pending for good, and notify those who wait."""
        state = self._op_state
        assert state is not None
        with state.lock:
            abandoned = self._op_outcome is PENDING
            if abandoned:
                # First: a repair takes off the lists who has no keys.
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
        self._op_notify()  # nobody else will wake those who wait for it
        state.forget_pending(self)


class WakeUp(partial[None]):
    """A listener that somebody waits for, and that is called again if it raises: it may have been
    met by an interrupt, before its first step."""


class RetryTask(TimerTask):
    """Processes an operation again whose user's lock was taken; each time after twice as long, up
    to 32 ms, until it finds the lock free."""

    __slots__ = ("has_run", "process", "since_ns")

    _timer_may_run_again = True

    def __init__(self, process: Callable[[], object]) -> None:
        super().__init__(_FIRST_RETRY_MS)
        self.process = process
        self.has_run = True
        """Whether it came since it was last put on a timer: one of a user's own does not say
        whether a task still waits there."""
        self.since_ns: int | None = None
        """Since when the lock was found taken each time, by the timer's clock."""

    @property
    def operation(self) -> Any:
        """Whose it is."""
        return self.process.__self__  # type: ignore[attr-defined]

    @property
    def is_due(self) -> bool:
        """Whether it is on the timer, and has yet to look at what was noted."""
        return self._timer_waits

    def run(self) -> None:
        self.has_run = True
        self.delay_ms = min(2 * self.delay_ms, _LONGEST_RETRY_MS)
        self.process()
        if not self.is_due:
            self.delay_ms = _FIRST_RETRY_MS  # the lock was free: the next time begins anew
            self.since_ns = None


def _check_callbacks(cls: type[DelayedOperation]) -> None:
    """Raise TypeError if ``cls`` defines what the library can't call, or never would."""
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
    """Say what ``function`` is, if calling it only promises to do what it says."""
    if inspect.iscoroutinefunction(function):
        return "a coroutine function"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "a generator function"
    return None


def force_each(operations: Collection[DelayedOperation], forced: ForcedOutcome) -> None:
    """Note the outcome with these, and process it; with all of them, if that is interrupted."""
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


# What other packages read of an operation.


def submitted_ns(operation: DelayedOperation) -> int:
    """Return when ``operation`` was submitted, by the timer's clock."""
    return operation._op_start_ns


def watch_keys(operation: DelayedOperation) -> tuple[Hashable, ...]:
    """Return the keys that ``operation`` waits on; none once it was abandoned."""
    return operation._op_keys


def users_lock(operation: DelayedOperation) -> LockLike | None:
    """Return the lock that its user passed in with ``operation``."""
    return operation._op_lock
