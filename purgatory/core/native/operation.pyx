# cython: language_level=3
"""An operation that is checked by one server at a time and settled once, as
`purgatory.core.settling`, `checking` and `submitting` explain it.

Ground rules
------------
* Who claims an operation, as its server or its settler, does so in one step with the look whether
  it is free, and notes the number of its thread there: no call lies between, so the number is asked
  for before, and what a store lets go of is owned until after.
* Signals are handled by Python code, so an exception of a signal's handler comes out of a call of
  Python, and from nowhere else. Each such call lies in a ``try`` that gives back what is claimed,
  notes the operation in the books, and tries once to go on, as in pure Python.
* The order of an operation's stages, and what may follow what, is that of `purgatory.core.life`.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport SIZE_MAX, int64_t

from purgatory.core.native.books cimport CountedAs, NativeBooks
from purgatory.core.native.chain cimport NativeChain, this_chain, this_number
from purgatory.core.native.watching cimport NativeWatched, enter, leave
from timer.native.collector cimport PyTypeObject
from timer.native.core cimport add_task
from timer.native.task cimport leave as leave_list, set_delay

from functools import partial

from purgatory.core.error_frames import drop_tracebacks
from purgatory.core.errors import FAULTS
from purgatory.core.life import (
    CALLED_BACK as AFTER_CALLS,
    CALLING_BACK as IN_CALLS,
    OBSERVING as IN_OBSERVER,
    PUT_OFF as WHEN_PUT_OFF,
    SETTLED as WHEN_SETTLED,
)
from purgatory.core.lock_like import check_lock
from purgatory.core.outcome import Outcome
from purgatory.core.refusals import is_closed, is_full, is_no_operation, is_unfinished, was_submitted
from purgatory.core.timeout import FOREVER_MS
from purgatory.core.users_lock import do_under
from timer.errors import TimerClosedError, checked_delay_ms, no_init

cdef extern from "Python.h":
    PyObject* Py_False
    PyObject* PyObject_CallMethodNoArgs(object self, object name)

cdef str TRY_COMPLETE = "try_complete"
cdef object PENDING = Outcome.PENDING
cdef object COMPLETED = Outcome.COMPLETED
cdef object EXPIRED = Outcome.EXPIRED
cdef object CANCELLED = Outcome.CANCELLED
cdef object FAILED = Outcome.FAILED
cdef short PUT_OFF = WHEN_PUT_OFF
cdef short CALLING_BACK = IN_CALLS
cdef short CALLED_BACK = AFTER_CALLS
cdef short OBSERVING = IN_OBSERVER
cdef short SETTLED = WHEN_SETTLED
cdef int64_t FOREVER = FOREVER_MS
cdef tuple CANCEL = (CANCELLED, None)
cdef tuple NAMES = ("immediate", "completed", "expired", "cancelled", "failed", "rejected")
cdef Py_ssize_t LONGEST_CHAIN = 16  # as in `purgatory.core.callback_chain`
cdef size_t LET_GO = SIZE_MAX  # the server, for good, of what was let go of
cdef object PUT_ON_LISTS = object()  # what a submission has called between its two checks


cdef enum Found:  # by a check
    UNKNOWN = -1
    DID_NOT_HOLD
    HELD
    RAISED


cdef object taken(PyObject* result):
    """Return what C called Python for; raise what that raised (NULL)."""
    if result is NULL:
        raise_what_is_set()
    taken = <object> result
    Py_DECREF(taken)
    return taken


cdef int raise_what_is_set() except -1:
    return -1


cdef class NativeOperation(NativeWatched):
    """What `purgatory.DelayedOperation` is made of, in place of `purgatory.core.submitting`."""

    cdef public object _op_lock
    cdef public object _op_error
    cdef public object _op_verdict
    cdef public list _op_listeners
    cdef public object _op_retry
    cdef readonly NativeBooks _op_books
    cdef readonly int64_t _op_start_ns
    cdef readonly int64_t _op_wait_ns
    cdef size_t server  # the numbers of threads; 0: nobody
    cdef size_t settler
    cdef size_t settled_by
    cdef size_t submitter
    cdef public short _op_stage
    cdef public bint _op_check_due
    cdef public bint _op_expiry_due
    cdef bint is_refused

    # The `__init__` of operations: as a method, it costs less where super() calls it.
    def _op_init(self, delay_ms, lock=None):
        if self._op_books is not None:
            raise RuntimeError("an operation can't be made again after it was submitted")
        set_delay(self, delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms))
        if lock is not None:
            check_lock(lock)
        self._op_lock = lock
        self.is_whole = True

    @property
    def error(self):
        """Why it FAILED, or None. Raised by a callback, it has no traceback: that was logged."""
        return self._op_error

    def on_complete(self):
        pass

    def on_expiration(self):
        pass

    def on_failure(self, error):
        pass

    # What its users do.

    def force_complete(self):
        return self.settle(COMPLETED, None, False)

    def cancel(self):
        return self.settle(CANCELLED, None, False)

    def maybe_try_complete(self):
        self._op_check_due = True
        self._op_resume()
        return self.serve()

    def safe_try_complete_or_else(self, f):
        return self.check_else(f)

    def run(self):
        self._op_resume()  # the timer comes again to what was broken off
        self._op_expiry_due = True
        self.serve()

    # Settling.

    cdef bint settle(self, object outcome, object error, bint going_on) except -1:
        """Settle it, or, ``going_on``, finish that. True for the call that set the outcome."""
        cdef NativeChain chain
        cdef bint is_ours
        cdef size_t me = this_number()
        if not self.is_whole:
            raise no_init(self)
        if self.settler:
            # Whoever serves must not go round and round on these.
            self._op_expiry_due = False
            self._op_verdict = None
            return False
        if self._op_outcome is PENDING:
            self.settler = self.settled_by = me
            self._op_error = error
            self._op_outcome = outcome
        elif self._op_stage == SETTLED or (self._op_stage == PUT_OFF and not going_on):
            return False
        else:
            going_on = True
            self.settler = me
        is_ours = True
        try:
            chain = this_chain()
            if self._op_stage <= PUT_OFF:
                self.leave_all()
                if chain.length >= LONGEST_CHAIN:
                    chain.left.append((self, self._op_go_on, self._op_books))
                    self._op_stage = PUT_OFF
                    is_ours = False
                    self.settler = 0
                    return not going_on
            self.finish(chain)
            return not going_on
        except BaseException as interrupt:
            if is_ours:
                if self._op_stage == CALLING_BACK and self._op_outcome is not FAILED:
                    self._op_error = interrupt
                    self._op_outcome = FAILED
                self.settler = 0
                if self._op_stage == SETTLED:
                    self._op_hand_over()
                else:
                    self.break_off()
            raise

    cdef int leave_timer(self) except -1:
        if self.pending is not NULL:
            leave_list(self)
        elif self.entry is not NULL:
            entry = <object> self.entry  # of a wheel in pure Python
            entry.remove()
        return 0

    cdef int leave_all(self) except -1:
        """Take it off the timer and the lists."""
        cdef NativeBooks books = self._op_books
        self.leave_timer()
        retry = self._op_retry
        if retry is not None:
            retry.cancel()
            self._op_retry = None  # no cycle keeps the two alive
        if books is not None:
            key_error = books.leave_lists(self)
            if key_error is not None:
                self._op_log("error", "key_failed", exc_info=key_error)
            self._op_wait_ns = books.now() - self._op_start_ns
        return 0

    cdef int finish(self, NativeChain chain) except -1:
        """Run the callbacks of a settled operation, book it, tell those who wait."""
        cdef Py_ssize_t length = chain.length
        chain.length = length + 1
        try:
            self.finish_in_chain()
            chain.length = length
            if not length and chain.left:
                chain.run_left()
        except BaseException:
            chain.length = length
            if not length and chain.left:
                chain.run_left()
            raise
        return 0

    cdef int finish_in_chain(self) except -1:
        cdef NativeBooks books = self._op_books
        cdef CountedAs counted_as
        if self._op_outcome is not CANCELLED:
            self.call_back()
        if books is not None:
            counted_as = self.counted_as()
            if books.on_settled is not None and self._op_stage < OBSERVING:
                self._op_stage = OBSERVING
                books.observe(self, NAMES[<int> counted_as], self._op_wait_ns)
            if self.server and self.server != self.settler:
                books.note_still_checked(self)  # settled from outside, in the middle of a check
            books.count_settled(self, counted_as, self._op_wait_ns)
        self._op_stage = SETTLED
        if self._op_listeners is not None:
            self._op_tell()
        return 0

    cdef CountedAs counted_as(self) noexcept:
        if self.is_refused:
            return CountedAs.REJECTED
        if self._op_outcome is COMPLETED:
            if self.submitter and self.submitter == self.settled_by:
                return CountedAs.IMMEDIATE
            return CountedAs.COMPLETED
        if self._op_outcome is EXPIRED:
            return CountedAs.EXPIRED
        return CountedAs.CANCELLED if self._op_outcome is CANCELLED else CountedAs.FAILED

    cdef int call_back(self) except -1:
        kept = None
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
        return 0

    def _op_settle(self, outcome, error=None, going_on=False):
        return self.settle(outcome, error, going_on)

    def _op_resume(self):
        """Go on if who settled it was broken off, and nobody has gone on yet."""
        if not self.is_whole:
            raise no_init(self)
        if (
            self._op_outcome is not PENDING
            and self._op_stage not in (PUT_OFF, SETTLED)
            and not self.settler
        ):
            self._op_go_on()

    def _op_was_let_go(self):
        """Whether its purgatory was closed and left it pending: only that takes all its keys."""
        return self._op_books is not None and not self._op_keys

    # Serving.

    cdef bint serve(self) except -1:
        """Serve what is noted, if the locks are free. True if a check here completed it."""
        cdef NativeChain chain
        cdef bint completed = False, is_ours = False, is_broken_off = True
        cdef size_t me = this_number()
        try:
            while self._op_outcome is PENDING and is_noted(self) and not self.server:
                self.server = me
                is_ours = True
                retry = None
                if self._op_lock is None:
                    completed |= self.serve_noted()
                else:
                    chain = this_chain()
                    if chain.length >= LONGEST_CHAIN:
                        # Settled here, its callbacks would run later, and without the user's lock.
                        chain.left.append((self, self._op_serve, self._op_books))
                        self.server = 0
                        break
                    found = do_under(self._op_lock, chain, self._op_serve_noted)
                    if found is None:
                        retry = self._op_retry_later()
                    elif found:
                        completed = True
                self.server = 0
                is_ours = False
                if retry is not None and self._op_waits_for(retry):
                    break
            is_broken_off = False
        finally:
            if is_broken_off:
                if is_ours:
                    self.server = 0
                self.break_off()
        return completed

    cdef bint check_else(self, object f) except -1:
        """Check it, call ``f``, or what ``PUT_ON_LISTS`` stands for, check it again."""
        cdef NativeChain chain
        cdef bint completed = False, is_ours = False, is_broken_off = True
        cdef size_t me = this_number()
        if not self.is_whole:
            raise no_init(self)
        self._op_check_due = True
        try:
            if self.server:
                self.call(f)
                self._op_check_due = True
                completed = self.serve()
                is_broken_off = False
                return completed
            self.server = me
            is_ours = True
            if self._op_lock is None:
                completed = self.check_twice(f)
            else:
                found = None
                chain = this_chain()
                if chain.length < LONGEST_CHAIN:
                    found = do_under(self._op_lock, chain, partial(self._op_check_twice, f))
                if found is None:
                    self.call(f)
                    self._op_check_due = True
                else:
                    completed = found
            self.server = 0
            is_ours = False
            if is_noted(self):
                completed |= self.serve()
            is_broken_off = False
            return completed
        finally:
            if is_broken_off:
                if is_ours:
                    self.server = 0
                self.break_off()

    cdef bint call(self, object f) except -1:
        """Call ``f``; or put it on its lists: True if there is no place for it."""
        cdef NativeBooks books = self._op_books
        if f is not PUT_ON_LISTS:
            f()
        elif books.max_pending is not None and not books.has_place_for(self):
            self.is_refused = True
            return True
        else:
            books.watchers.put(self)
        return False

    cdef bint check_twice(self, object f) except -1:
        if self.serve_noted():
            return True
        if self._op_outcome is PENDING and self.call(f):
            return False
        self._op_check_due = True
        return self.serve_noted()

    cdef bint serve_noted(self) except -1:
        """Under the locks: check, else expire or fail, as noted. True if a check completed it."""
        cdef bint expiring = False, unasked
        cdef PyObject* answer
        cdef Found found
        while self._op_check_due or (self._op_expiry_due and not expiring):
            if self._op_outcome is not PENDING:
                return False
            unasked = not self._op_check_due  # no event asks for this check, only the expiry does
            # Noted before the check: an expiry counts only with a check that began after it.
            expiring = self._op_expiry_due
            self._op_check_due = False
            answer = PyObject_CallMethodNoArgs(self, TRY_COMPLETE)
            if answer is Py_False:
                Py_DECREF(<object> answer)
                continue
            found = self.judge(answer)
            if found == HELD and unasked and self._op_books is not None:
                self._op_books.count_missed_wakeup()
                self._op_log("warning", "missed_wakeup")
            if found != DID_NOT_HOLD:
                return found == HELD
        verdict = (EXPIRED, None) if expiring else self._op_verdict
        if verdict is None:
            return False
        if self._op_was_let_go():  # by the check
            self._op_expiry_due = False
            self._op_verdict = None
            return False
        outcome, reason = verdict
        return self.settle(outcome, reason, False) and outcome is COMPLETED

    cdef Found judge(self, PyObject* answer) except UNKNOWN:
        """Look at what ``try_complete`` returned, which is let go of, or raised (NULL)."""
        cdef bint is_ours
        raised = None
        try:
            completed = taken(answer)
            if not completed:
                # Anything but False may be a forgotten `return`: what counts is what was done.
                is_ours = self._op_outcome is COMPLETED and self.settled_by == this_number()
                return HELD if is_ours else DID_NOT_HOLD
            if self._op_outcome is PENDING and not self.settler:
                raise RuntimeError(
                    f"{type(self).__name__}.try_complete returned True without force_complete: "
                    "when the condition holds, it must `return self.force_complete()`"
                )
            return HELD
        except FAULTS as error:
            self._op_report("try_complete", error)
            self.settle(FAILED, error, False)
            raised = error
        except BaseException as interrupt:
            # Left pending, it would have lost this check, and perhaps its expiry.
            self.settle(FAILED, interrupt, False)
            raise
        drop_tracebacks(raised)
        return RAISED

    cdef int break_off(self) except -1:
        """Note that it was broken off, and try once to go on."""
        if self._op_books is not None:
            self._op_books.broken_off.append((self,))
        self._op_hand_over()
        return 0

    def _op_serve(self):
        return self.serve()

    def _op_serve_noted(self):
        return self.serve_noted()

    def _op_check_twice(self, f):
        return self.check_twice(f)

    def _op_serve_by(self, work):
        """Do ``work`` as its server, unless it has another."""
        cdef size_t me = this_number()
        if self.server:
            return
        self.server = me
        try:
            work()
        except BaseException:
            self.server = 0
            self.break_off()
            raise
        self.server = 0

    def _op_claim_for_good(self):
        """Become its server, and stay it, unless somebody is at it."""
        if not self.server:
            self.server = LET_GO
        return self.server == LET_GO

    def _op_is_at_work(self, size_t thread):
        """Whether ``thread`` is in the middle of checking or settling it."""
        # Once it is settled, its settler may have ended, and a new thread have got its number.
        return self.server == thread or (self._op_stage != SETTLED and self.settler == thread)

    def _op_is_served(self):
        """Whether a thread is in the middle of checking it."""
        return self.server not in (0, LET_GO)

    # Coming in.

    cdef int start_timeout(self, NativeBooks books) except -1:
        if not books.expires:
            return 0
        if self.delay.ms >= FOREVER if self.has_delay_ms else self.delay_ms >= FOREVER_MS:
            return 0
        try:
            if books.native_timer is not None:
                add_task(books.native_timer, self)
            else:
                books.timer.add(self)
        except TimerClosedError:
            if not books.is_closed:  # who closes comes to it himself
                raise
        if self._op_outcome is not PENDING or not self._op_keys:
            self.leave_timer()
        return 0


init_operation = NativeOperation._op_init


cdef inline bint is_noted(NativeOperation operation) noexcept:
    """Whether something is to be served."""
    return (
        operation._op_check_due
        or operation._op_expiry_due
        or operation._op_verdict is not None
    )


cdef bint submit(object submitted, NativeBooks books, tuple keys, dict thresholds) except -1:
    """Check it, put it on its lists, check it again; start its timeout. Whether it completed."""
    cdef NativeOperation operation
    cdef int64_t now_ns
    cdef bint entered, completed, is_taken = False
    cdef size_t me = this_number()
    if not isinstance(submitted, NativeOperation):
        raise is_no_operation(submitted)
    operation = <NativeOperation> submitted
    if not operation.is_whole:
        raise is_unfinished(operation)
    now_ns = books.now()
    entered = enter(books.turn)
    if operation._op_books is None:
        if books.is_closed:
            books.counters.rejected += 1
        else:
            is_taken = True
            keys_before = operation._op_keys
            thresholds_before = operation._op_thresholds
            operation._op_start_ns = now_ns
            operation.submitter = me
            operation._op_keys = keys
            operation._op_thresholds = thresholds
            operation._op_books = books
            if operation._op_outcome is PENDING:
                books.book(operation)
    leave(books.turn, entered)
    if not is_taken:
        if operation._op_books is not None:
            raise was_submitted(operation, operation._op_books.name)
        raise is_closed(operation, books.name)
    try:
        if now_ns > books.reaper_look_ns:
            books.look_after_reaper(now_ns)
        completed = operation.check_else(PUT_ON_LISTS)
        if operation.is_refused:
            refusal = is_full(operation, books.name, books.max_pending)
            books.log_full(operation)
            operation.cancel()
        elif not completed and operation._op_outcome is PENDING:
            operation.start_timeout(books)
        if operation._op_outcome is PENDING:
            operation.submitter = 0  # settled by now, it may have yet to be counted
    except BaseException:
        # A key that can't be compared, an interrupt: leave nothing behind.
        operation._op_verdict = CANCEL
        books.broken_off.append((operation,))
        operation.cancel()
        raise
    if operation.is_refused:
        raise refusal
    return completed


cdef int check_each(list operations) except -1:
    """Check these, and return how many that completed."""
    cdef int completed = 0
    for operation in operations:  # of that type all: it is not looked at once more
        (<NativeOperation> operation)._op_check_due = True
        completed += (<NativeOperation> operation).serve()
    return completed


# What is unreachable lets go of all that may lead back to it; what the methods need stays.

cdef int _clear(PyObject* self) noexcept:
    cdef NativeOperation operation = <NativeOperation> self
    operation._op_keys = ()
    operation._op_thresholds = operation._op_listeners = None
    operation._op_lock = operation._op_error = operation._op_verdict = operation._op_retry = None
    return 0


cdef PyTypeObject* _type = <PyTypeObject*> NativeOperation
_type.tp_clear = _clear
