"""An operation that waits for a condition or for its timeout, and is settled exactly once.

How a check is never lost, and never waits
------------------------------------------
Whoever wants something of an operation first *notes* it (a flag: check, expire or fail), then
*tries* the operation's lock. Who gets it serves all that is noted, releases the lock, and then
*looks* at the flags again::

    requester:  note   try ..........          fails: the holder has yet to look
    holder:     ...... serve   release   look

If the try fails, the release comes after it, hence after the note, and the look that follows the
release sees it. If it succeeds, the requester serves itself. So nothing noted is lost, and nobody
ever waits. This is Kafka's ``maybeTryComplete``, with the note made before the try instead of after
it, and with expiry and failure handed over by the same rule.

How an interrupt leaves nothing stuck
-------------------------------------
An exception may come between any two instructions: a signal's handler raises, or the stack is too
deep. So all that is held is noted by the step that takes it, and settling is a series of stages
that stand in the operation, each of which may be begun again or is passed over. A call that is
broken off gives back what it holds, notes the operation with the purgatory, by stores alone, since
the next interrupt can only come at a call, and tries once to go on. If that is broken off as well,
whoever comes next goes on (``_op_go_on``): a call on the operation, or any call of its purgatory.

Ground rules
------------
* ``_op_claims`` says who is at it: "server" and "settler" are taken as a ``Turn`` is, by
  ``setdefault``, but never waited for.
* The server runs the callbacks one at a time, and looks at the flags when it is done.
* A lock that the user passed in is tried by the server. Its holder may be code that knows nothing
  of the flags, so when it is taken the flags stay set, and, once there is no server any more, a
  retry is put on the timer, unless one is there: 1 ms ahead, then 2, 4 and so on, until it finds
  the lock free.
* The settler is claimed once, for good, and only given back by a call that is broken off: the first
  one sets ``_op_outcome``, and whoever claims it again finds that set, and goes on from
  ``_op_stage``.
* Order, each step seen by whoever sees the next: outcome set; timer cancelled; taken off all watch
  lists; callbacks; told to those who wait.
* ``_op_purgatory`` is set before the operation is put on a list, and a list takes only what is
  PENDING. So either the list sees the outcome, or the settler finds the operation there.
* Attributes start with ``_op_``: users derive from this class, and theirs must not collide.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock, get_ident
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from purgatory.core.callback_chain import LONGEST_CHAIN, CallbackChain, this_thread
from purgatory.core.callback_check import check_callbacks
from purgatory.core.error_frames import drop_tracebacks
from purgatory.core.errors import FAULTS
from purgatory.core.fault_log import log_safely
from purgatory.core.lock_like import LockLike, check_lock
from purgatory.core.outcome import TRANSITIONS, Outcome
from purgatory.core.retry_task import RetryTask
from purgatory.core.timeout import checked_timeout_s
from purgatory.core.turn import Me
from purgatory.core.users_lock import do_under
from timer import TimerTask, Wake
from timer.errors import checked_delay_ms
from timer.safe_log import safe_repr

if TYPE_CHECKING:
    from purgatory.core.delayed_operation_purgatory import DelayedOperationPurgatory

# Names of the module's, since before Python 3.12 an enum finds its members by a slow path.
_PENDING = Outcome.PENDING
_COMPLETED = Outcome.COMPLETED
_EXPIRED = Outcome.EXPIRED
_CANCELLED = Outcome.CANCELLED
_FAILED = Outcome.FAILED

Verdict: TypeAlias = tuple[Outcome, BaseException | None]
"""What an operation is told to become, whether its condition holds or not; and why it failed."""

FOREVER_MS = 2**63 - 1
"""A delay that never ends: the operation waits for its condition alone."""

REFUSED: Me = []
"""What submitted an operation that its purgatory then did not take."""

# How far settling has come, in this order.
_LEAVING = 0  # the timer, the lists: may be done again
_PUT_OFF = 1  # a chain of callbacks has it, and goes on at its end
_CALLING_BACK = 2  # on_complete, on_expiration: what breaks this off fails the operation
_CALLED_BACK = 3  # on_failure has begun, or nothing is left to call
_OBSERVING = 4  # the purgatory's on_settled
_COUNTING = 5  # and telling: may be done again

_FIRST = (0,)

_listeners_lock = Lock()


class DelayedOperation(TimerTask):
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

    __slots__ = (
        "_op_check_due",
        "_op_claims",
        "_op_error",
        "_op_expiry_due",
        "_op_keys",
        "_op_listeners",
        "_op_lock",
        "_op_outcome",
        "_op_purgatory",
        "_op_retry",
        "_op_settled",
        "_op_settler",
        "_op_stage",
        "_op_start_ns",
        "_op_submitter",
        "_op_thresholds",
        "_op_verdict",
        "_op_wait_ns",
    )

    _timer_may_run_again = True  # what is settled once passes over what was done

    def __init__(self, delay_ms: int, lock: LockLike | None = None) -> None:
        self.delay_ms = delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms)
        self._timer_entry = None
        if lock is not None:
            check_lock(lock)
        self._op_lock = lock
        self._op_claims: dict[str, Me] = {}
        self._op_stage = _LEAVING
        self._op_outcome = _PENDING
        self._op_error: BaseException | None = None
        self._op_check_due = False
        self._op_expiry_due = False
        self._op_verdict: Verdict | None = None
        self._op_settled = False
        self._op_listeners: list[Callable[[], object]] | None = None
        self._op_purgatory: DelayedOperationPurgatory | None = None
        self._op_keys: tuple[Hashable, ...] = ()  # for any event and for numbers, each once
        self._op_thresholds: Mapping[Hashable, int] | None = None
        self._op_retry: RetryTask | None = None
        self._op_start_ns = 0
        self._op_wait_ns = 0
        self._op_submitter: Me | None = None
        self._op_settler = 0

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        check_callbacks(cls, DelayedOperation)

    # What the user defines.

    @abstractmethod
    def try_complete(self) -> bool:
        """Check the condition; if it holds, call ``force_complete`` and return its result."""

    def on_complete(self) -> None:
        """Finish the work. Called once, when ``outcome`` is COMPLETED or EXPIRED."""

    def on_expiration(self) -> None:
        """Called after ``on_complete`` if the time was up, and not otherwise."""

    def on_failure(self, error: BaseException) -> None:
        """Called when the operation FAILED: the last place to give an answer."""

    # What the user calls.

    @property
    def outcome(self) -> Outcome:
        """What became of it. In a callback, what it is about to be."""
        return self._op_outcome

    @property
    def error(self) -> BaseException | None:
        """Why it FAILED, or None. Raised by a callback, it has no traceback: that was logged."""
        return self._op_error

    @property
    def is_completed(self) -> bool:
        """Whether it is anything but PENDING."""
        return self._op_outcome is not _PENDING

    def force_complete(self) -> bool:
        """Complete the operation, whether its condition holds or not. O(keys).

        Returns:
            True for the one caller, of all threads, that completed it: timer stopped, off every
            watch list, ``on_complete`` run.
        """
        return self._op_settle(_COMPLETED)

    def cancel(self) -> bool:
        """Take the operation off every list and off the timer; no callback runs. O(keys).

        Returns:
            True for the one caller that cancelled it while it was PENDING.
        """
        return self._op_settle(_CANCELLED)

    def maybe_try_complete(self) -> bool:
        """Check the condition once more, from any thread. Never blocks.

        If another thread is at it, that thread checks again; if the user's lock is taken, a retry
        does, soon after.

        Returns:
            Whether this call completed the operation.
        """
        self._op_check_due = True
        if self._op_is_broken_off():
            self._op_go_on()
        return self._op_serve()

    def safe_try_complete_or_else(self, f: Callable[[], object]) -> bool:
        """Under the operation's lock: check; if it isn't complete, call ``f`` and check again.

        Never blocks: where the lock is taken, ``f`` is called without it and the check is handed
        over.

        Returns:
            Whether this call completed the operation.
        """
        return self._op_check_else(lambda _: f())

    def _op_check_else(self, f: Callable[[DelayedOperation], object]) -> bool:
        self._op_check_due = True
        lock = self._op_lock
        claims = self._op_claims
        me: Me = []
        completed = False
        try:
            if claims.setdefault("server", me) is not me:
                f(self)
                self._op_check_due = True
                return self._op_serve()
            if lock is None:
                completed = self._op_check_twice(f)
            elif (
                this_thread.chain.length >= LONGEST_CHAIN
                or (found := do_under(lock, partial(self._op_check_twice, f))) is None
            ):
                f(self)
                self._op_check_due = True
            else:
                completed = found
            del claims["server"]
            # The look after the release; the condition is that of _op_serve, written out, since
            # nearly always there is nothing to see.
            if self._op_check_due or self._op_expiry_due or self._op_verdict is not None:
                completed = self._op_serve() or completed
            return completed
        except BaseException:
            if "server" in claims and claims["server"] is me:
                del claims["server"]
            if self._op_purgatory is not None:
                self._op_purgatory._broken_off += ((self,),)
            self._op_hand_over()
            raise

    def _op_check_twice(self, f: Callable[[DelayedOperation], object]) -> bool:
        if self._op_serve_noted():
            return True
        if self._op_outcome is _PENDING and f(self) is REFUSED:
            return False
        self._op_check_due = True
        return self._op_serve_noted()

    def run(self) -> None:
        """Expire: called by the timer. The condition is checked once more before."""
        if self._op_is_broken_off():
            self._op_go_on()  # the timer comes again to what was broken off
        self._op_expiry_due = True
        self._op_serve()

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
        if chain.left and not self._op_settled:
            chain.run_left()  # what is waited for may be among it, and nobody else will run it
        if self._op_is_broken_off():
            self._op_go_on()
        if not self._op_settled:
            told = Wake()
            try:
                self.call_when_settled(told.set)
                told.wait(timeout_s)
                self._op_unlisten(told.set)
            except BaseException:
                self._op_unlisten(told.set)
                raise
        return self._op_outcome if self._op_settled else _PENDING

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
        if self._op_is_broken_off():
            self._op_go_on()
        # Noted first, then looked: the settler sets the flag first, then looks for listeners.
        if self._op_is_over():
            self._op_tell()

    def _op_unlisten(self, listener: Callable[[], object]) -> None:
        with suppress(ValueError):  # it was told
            (self._op_listeners or []).remove(listener)

    def _op_tell(self) -> None:
        """Call the listeners, each once: whoever pops it calls it; broken off, he puts it back."""
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
                if self._op_purgatory is not None:
                    self._op_purgatory._broken_off += ((self,),)
                self._op_hand_over()
                raise

    def _op_call_listener(self, listener: Callable[[], object]) -> None:
        try:
            listener()
        except FAULTS as error:
            self._op_log("error", "listener_failed", exc_info=error)

    def _op_is_over(self) -> bool:
        """Whether nothing is to come any more."""
        return self._op_settled or self._op_was_let_go()

    def _op_was_let_go(self) -> bool:
        """Whether its purgatory was closed and left it pending: only that takes all its keys."""
        return self._op_purgatory is not None and not self._op_keys

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

    # Serving what was noted.

    def _op_serve(self) -> bool:
        """Serve what is noted, if the locks are free. True if a check here completed it."""
        claims = self._op_claims
        me: Me = []
        try:
            completed = False
            lock = self._op_lock
            while True:  # with no condition, see ``turn``
                if (
                    self._op_outcome is not _PENDING
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
                if this_thread.chain.length >= LONGEST_CHAIN:
                    # Settled here, its callbacks would run later, and without the user's lock.
                    this_thread.chain.left.append((self, self._op_serve))
                    del claims["server"]
                    break
                found = do_under(lock, self._op_serve_noted)
                if found is None and self._op_retry is None:
                    self._op_retry = RetryTask(self)
                del claims["server"]
                if found is None:
                    # Only now: a retry that came while we were busy would have left everything to
                    # us.
                    self._op_retry_later()
                    break
                completed = found or completed
        except BaseException:
            if "server" in claims and claims["server"] is me:
                del claims["server"]
            if self._op_purgatory is not None:
                self._op_purgatory._broken_off += ((self,),)
            self._op_hand_over()
            raise
        return completed

    def _op_hand_over(self) -> None:
        """Try once to go on with what was broken off, here and now."""
        chain = this_thread.chain
        if chain.is_going_on or (
            self._op_settled and not self._op_listeners and self._op_outcome is not _PENDING
        ):
            return
        try:
            chain.is_going_on = True
            self._op_go_on()
            chain.is_going_on = False
        except BaseException:
            chain.is_going_on = False
            raise

    def _op_is_broken_off(self) -> bool:
        """Whether who settled it was broken off, and nobody has gone on yet."""
        return (
            self._op_outcome is not _PENDING
            and not self._op_settled
            and self._op_stage != _PUT_OFF
            and "settler" not in self._op_claims
        )

    def _op_go_on(self) -> None:
        """Finish what was broken off, unless another call is at it."""
        if self._op_outcome is _PENDING:
            self._op_check_due = True
            self._op_serve()
        elif not self._op_settled:
            self._op_settle(self._op_outcome, going_on=True)
        elif self._op_listeners:
            self._op_tell()

    def _op_serve_noted(self) -> bool:
        """Under the locks: check, else expire or fail, as noted. True if a check completed it."""
        expiring = False
        while self._op_check_due or (self._op_expiry_due and not expiring):
            if self._op_outcome is not _PENDING:
                return False
            unasked = not self._op_check_due  # no event asks for this check, only the expiry does
            # Noted before the check: an expiry counts only with a check that began after it.
            expiring = self._op_expiry_due
            self._op_check_due = False
            try:
                completed = self.try_complete()
                if completed and self._op_outcome is _PENDING and "settler" not in self._op_claims:
                    raise RuntimeError(
                        f"{type(self).__name__}.try_complete returned True without force_complete: "
                        "when the condition holds, it must `return self.force_complete()`"
                    )
            except FAULTS as error:
                self._op_report("try_complete", error)
                self._op_settle(_FAILED, error)
                raised = error
            except BaseException as interrupt:
                # Left pending, it would have lost this check, and perhaps its expiry.
                self._op_settle(_FAILED, interrupt)
                raise
            else:
                if not completed:
                    continue
                if unasked:
                    self._op_count_missed_wakeup()
                return True
            drop_tracebacks(raised)
            return False
        if expiring:
            self._op_settle(_EXPIRED)
        elif self._op_verdict is not None:
            outcome, reason = self._op_verdict
            return self._op_settle(outcome, reason) and outcome is _COMPLETED
        return False

    def _op_retry_later(self) -> None:
        purgatory, retry = self._op_purgatory, self._op_retry
        if purgatory is not None and retry is not None:
            if not retry.is_due:  # one that is finds what was noted, and must not be put off
                purgatory._retry_later(retry)
            # Put on the timer first, then looked: who settles it sets the outcome first, who lets
            # go of it takes its keys first, and then looks for a retry to cancel.
            if self._op_outcome is not _PENDING or self._op_was_let_go():
                retry.cancel()
                self._op_retry = None

    # Settling.

    def _op_settle(
        self, outcome: Outcome, error: BaseException | None = None, going_on: bool = False
    ) -> bool:
        """Settle it, or, ``going_on``, finish that. True for the call that set the outcome."""
        claims = self._op_claims
        me = [get_ident()]
        try:
            if claims.setdefault("settler", me) is not me:
                # The winner may not have set the outcome yet: whoever serves must not go round and
                # round on these until he has.
                self._op_expiry_due = False
                self._op_verdict = None
                return False
            if self._op_outcome is _PENDING:
                self._op_settler = me[0]
                self._op_error = error
                self._op_outcome = outcome  # anything may follow PENDING: no look at TRANSITIONS
            else:
                if self._op_settled or (self._op_stage == _PUT_OFF and not going_on):
                    del claims["settler"]
                    return False
                going_on = True
            chain = this_thread.chain
            if self._op_stage <= _PUT_OFF:
                self._op_leave(me)
                if chain.length >= LONGEST_CHAIN:
                    self._op_stage = _PUT_OFF
                    chain.left.append((self, self._op_go_on))
                    del claims["settler"]
                    return not going_on
            self._op_finish(chain, me)
            return not going_on
        except BaseException as interrupt:
            if "settler" in claims and claims["settler"] is me:
                if self._op_outcome is _PENDING:
                    self._op_error = error
                    self._op_outcome = outcome
                elif self._op_stage == _CALLING_BACK and self._op_outcome is not _FAILED:
                    self._op_error = interrupt
                    self._op_outcome = _FAILED
                del claims["settler"]
                if self._op_purgatory is not None and not self._op_settled:
                    self._op_purgatory._broken_off += ((self,),)
                self._op_hand_over()
            raise

    def _op_leave(self, me: Me) -> None:
        """Take it off the timer and the lists."""
        if self._timer_entry is not None:
            TimerTask.cancel(self)
        retry = self._op_retry
        if retry is not None:
            retry.cancel()
            self._op_retry = None  # no cycle keeps the two alive
        purgatory = self._op_purgatory
        if purgatory is not None:
            purgatory._unwatch(self, me)

    def _op_finish(self, chain: CallbackChain, me: Me) -> None:
        """Run the callbacks of a settled operation, book it, tell those who wait."""
        length = chain.length
        purgatory = self._op_purgatory
        try:
            chain.length = length + 1
            if self._op_outcome is not _CANCELLED:
                self._op_call_back()
            if purgatory is not None:
                counted_as = self._op_counted_as()
                if purgatory._on_settled is not None and self._op_stage < _OBSERVING:
                    self._op_stage = _OBSERVING
                    purgatory._observe(self, counted_as, purgatory._on_settled)
                purgatory._count_settled(self, counted_as, me)
            self._op_stage = _COUNTING
            self._op_settled = True
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

    def _op_become(self, outcome: Outcome) -> None:
        """Change an outcome that is not PENDING any more."""
        if outcome not in TRANSITIONS[self._op_outcome]:
            raise RuntimeError(f"{self!r} can't become {outcome.name}")
        self._op_outcome = outcome

    def _op_fail_without_lock(self, error: BaseException) -> None:
        """Fail it although the user's lock is taken; unless a callback of it is running: then what
        closing noted with it before is served after that."""
        self._op_serve_by(lambda: self._op_settle(_FAILED, error))

    def _op_serve_by(self, work: Callable[[], object]) -> bool:
        """Do ``work`` as its server, and say whether it has no other."""
        claims = self._op_claims
        me: Me = []
        try:
            if claims.setdefault("server", me) is not me:
                return False
            work()
            del claims["server"]
            return True
        except BaseException:
            if "server" in claims and claims["server"] is me:
                del claims["server"]
            if self._op_purgatory is not None:
                self._op_purgatory._broken_off += ((self,),)
            self._op_hand_over()
            raise

    def _op_call_back(self) -> None:
        kept: BaseException | None = None
        if self._op_stage < _CALLING_BACK and self._op_outcome is not _FAILED:
            stage = "on_complete"
            self._op_stage = _CALLING_BACK
            try:
                self.on_complete()
                if self._op_outcome is _EXPIRED:
                    stage = "on_expiration"
                    self.on_expiration()
                self._op_stage = _CALLED_BACK
            except FAULTS as error:
                self._op_report(stage, error)
                self._op_become_failed(error)
                kept = error
        if self._op_outcome is _FAILED and self._op_stage < _CALLED_BACK:
            self._op_stage = _CALLED_BACK
            self._op_call_on_failure()
        if kept is not None:
            drop_tracebacks(kept)

    def _op_call_on_failure(self) -> None:
        assert self._op_error is not None, "a failed operation says why"
        try:
            self.on_failure(self._op_error)
        except FAULTS as error:
            self._op_report("on_failure", error)

    def _op_become_failed(self, error: BaseException) -> None:
        if self._op_outcome is not _FAILED:
            self._op_become(_FAILED)
            self._op_error = error

    def _op_report(self, stage: str, error: BaseException) -> None:
        purgatory = self._op_purgatory
        if purgatory is not None:
            purgatory._count_callback_error(stage)
        self._op_log("error", "callback_failed", stage=stage, exc_info=error)

    def _op_count_missed_wakeup(self) -> None:
        purgatory = self._op_purgatory
        if purgatory is not None:
            purgatory._count_missed_wakeup()
            self._op_log("warning", "missed_wakeup")

    def _op_log(self, level: str, event: str, **values: object) -> None:
        purgatory = self._op_purgatory
        name = None if purgatory is None else purgatory.name
        log_safely(level, event, purgatory=name, operation=safe_repr(self), **values)
