# cython: language_level=3
"""An operation that is checked by one owner at a time and completed once, as
`purgatory.core.operation` explains it.

Ground rules
------------
* A call claims an operation, as its owner or its completer, in one step with the look whether it is
  free, and notes the number of its thread there: no call lies between, so the number is asked for
  before, and an object that a store replaces is owned until after.
* Signals are handled by Python code, so an exception of a signal's handler comes out of a call of
  Python, and from nowhere else. Each such call lies in a ``try`` that gives back what is claimed,
  notes the operation in the state, and tries once to go on, as in pure Python.
* The order of an operation's stages is that of `purgatory.core.outcome`.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport SIZE_MAX, int64_t

from purgatory.core.native.state cimport CountedAs, NativeState
from purgatory.core.native.trampoline cimport NativeTrampoline, system_thread, this_number, this_trampoline
from purgatory.core.native.watchers cimport NativeWatched, enter, leave
from timer.native.collector cimport PyTypeObject
from timer.native.timer cimport add_task
from timer.native.task cimport leave as leave_list, set_delay

from functools import partial

from purgatory.core.errors import (
    FAULTS,
    closed_error,
    drop_tracebacks,
    full_error,
    reused_error,
    uninitialized_error as uninitialized_operation_error,
    wrong_type_error,
)
from purgatory.core.outcome import (
    CALLED_BACK as AFTER_CALLS,
    CALLING_BACK as IN_CALLS,
    OBSERVING as IN_OBSERVER,
    DEFERRED as WHEN_DEFERRED,
    DONE as WHEN_DONE,
    FOREVER_MS,
)
from purgatory.core.locks import check_lock
from purgatory.core.outcome import Outcome
from purgatory.core.locks import do_under
from timer.durations import checked_delay_ms
from timer.errors import TimerClosedError, uninitialized_error

cdef extern from "Python.h":
    PyObject* Py_False
    PyObject* Py_True


cdef extern from "Python.h":
    PyObject* ask "PyObject_CallMethodNoArgs" (object operation, object name)


cdef str TRY_COMPLETE = "try_complete"
cdef object PENDING = Outcome.PENDING
cdef object COMPLETED = Outcome.COMPLETED
cdef object EXPIRED = Outcome.EXPIRED
cdef object CANCELLED = Outcome.CANCELLED
cdef object FAILED = Outcome.FAILED
cdef short DEFERRED = WHEN_DEFERRED
cdef short CALLING_BACK = IN_CALLS
cdef short CALLED_BACK = AFTER_CALLS
cdef short OBSERVING = IN_OBSERVER
cdef short DONE = WHEN_DONE
cdef int64_t FOREVER = FOREVER_MS
cdef tuple CANCEL = (CANCELLED, None)
cdef tuple NAMES = ("immediate", "completed", "expired", "cancelled", "failed", "rejected")
cdef Py_ssize_t MAX_DEPTH = 16  # as in `purgatory.core.trampoline`
cdef size_t ABANDONED = SIZE_MAX  # the owner, for good, of abandoned operations
cdef object NO_CALL = object()  # between two checks: so there is only one
cdef object PUT_ON_LISTS = object()  # the call of a submission between its two checks


cdef enum Found:  # by a check
    UNKNOWN = -1
    DID_NOT_HOLD
    HELD
    RAISED


cdef object taken(PyObject* result):
    """Return the result of a call of Python from C; raise its error (NULL)."""
    if result is NULL:
        raise_what_is_set()
    taken = <object> result
    Py_DECREF(taken)
    return taken


cdef int raise_what_is_set() except -1:
    return -1


cdef class NativeOperation(NativeWatched):
    """The base of `purgatory.DelayedOperation`, in place of `_PureOperation`."""

    cdef public object _op_lock
    cdef public object _op_error
    cdef public object _op_forced_outcome
    cdef public list _op_listeners
    cdef public object _op_retry
    cdef readonly NativeState _op_state
    cdef readonly int64_t _op_start_ns
    cdef readonly int64_t _op_wait_ns
    cdef size_t owner  # the numbers of threads; 0: nobody
    cdef size_t completer
    cdef size_t moved_by  # the one that submits it; from its outcome on, the one that set that

    # The `__init__` of operations: as a method, it costs less where super() calls it.
    def _op_init(self, delay_ms, lock=None):
        if self._op_state is not None:
            raise RuntimeError("an operation can't be made again after it was submitted")
        if type(delay_ms) is not int:
            delay_ms = FOREVER_MS if delay_ms is None else checked_delay_ms(delay_ms)
        set_delay(self, delay_ms)
        if lock is not None:
            check_lock(lock)
        self._op_lock = lock
        self.is_whole = True

    @property
    def error(self):
        """Why it FAILED, or None. A callback's error has no traceback: that was logged."""
        return self._op_error

    @property
    def _op_stage(self):
        return self.stage

    @_op_stage.setter
    def _op_stage(self, short stage):
        self.stage = stage

    def on_complete(self):
        pass

    def on_expiration(self):
        pass

    def on_failure(self, error):
        pass

    # Users call these.

    def force_complete(self):
        return complete(self, COMPLETED, None, False)

    def cancel(self):
        return complete(self, CANCELLED, None, False)

    def maybe_try_complete(self):
        self._op_check_due = True
        self._op_resume_if_interrupted()
        return own(self, this_number(), NO_CALL, None)

    def safe_try_complete_or_else(self, f):
        if not self.is_whole:
            raise uninitialized_error(self)
        self._op_check_due = True
        return own(self, this_number(), f, None)

    def run(self):
        self._op_resume_if_interrupted()  # the timer comes again to what was interrupted
        self._op_expiry_due = True
        own(self, this_number(), NO_CALL, None)

    # 1. Completing it, once.

    def _op_complete(self, outcome, error=None, resuming=False):
        return complete(self, outcome, error, resuming)

    def _op_resume_if_interrupted(self):
        """Resume if its completer was interrupted, and no call has resumed yet."""
        if not self.is_whole:
            raise uninitialized_error(self)
        if (
            self._op_outcome is not PENDING
            and self.stage not in (DEFERRED, DONE)
            and not self.completer
        ):
            self._op_resume()

    def _op_was_abandoned(self):
        """Whether its purgatory was closed and left it pending: only that takes all its keys."""
        return self._op_state is not None and not self._op_keys

    # 2. Checking it, by one owner at a time.

    def _op_process(self):
        return own(self, this_number(), NO_CALL, None)

    def _op_do_due(self):
        return do_due(self)

    def _op_check_twice(self, between):
        return check_twice(self, between)

    def _op_own(self, me, between=NO_CALL, unlocked=None):
        return own(self, this_number(), between, unlocked)

    def _op_own_for_good(self):
        """Become its owner for good, unless another call owns it."""
        if not self.owner:
            self.owner = ABANDONED
        return self.owner == ABANDONED

    def _op_is_busy_on(self, size_t thread):
        """Whether ``thread`` is in the middle of checking or completing it."""
        # Once it is done, its completer may have ended, and a new thread have got its number.
        return self.owner == thread or (self.stage != DONE and self.completer == thread)

    def _op_has_owner(self):
        """Whether a thread is in the middle of checking it."""
        return self.owner not in (0, ABANDONED)

    # 4. Notifying its listeners.

    def call_when_completed(self, listener):
        cdef list listeners = [listener]  # made before the look: it may run a finalizer
        if self._op_listeners is None:
            self._op_listeners = listeners
        else:
            self._op_listeners.append(listener)
        self._op_resume_if_interrupted()
        if self._op_is_done():
            notify(self)

    def _op_notify(self):
        notify(self)

    def _op_is_done(self):
        return self.stage == DONE or self._op_was_abandoned()


init_operation = NativeOperation._op_init


# 1. Completing it, once.


cdef bint complete(NativeOperation operation, object outcome, object error, bint resuming) except -1:
    """Complete it, or, ``resuming``, go on. True for the call that set the outcome."""
    cdef NativeTrampoline trampoline
    cdef bint is_ours
    cdef size_t me = system_thread()
    if operation.owner != me:  # else this thread was asked for its number as it became the owner
        me = this_number()
    if not operation.is_whole:
        raise uninitialized_error(operation)
    if operation.completer:
        # The owner must not go round and round on these.
        operation._op_expiry_due = False
        operation._op_forced_outcome = None
        return False
    if operation._op_outcome is PENDING:
        operation.is_from_submitter = operation.moved_by == me
        operation.completer = operation.moved_by = me
        operation._op_error = error
        operation._op_outcome = outcome
    elif operation.stage == DONE or (operation.stage == DEFERRED and not resuming):
        return False
    else:
        resuming = True
        operation.completer = me
    is_ours = True
    try:
        trampoline = this_trampoline()
        if operation.stage <= DEFERRED:
            detach(operation)
            if trampoline.depth >= MAX_DEPTH:
                deferred = (operation, operation._op_resume, operation._op_state)
                trampoline.deferred.append(deferred)
                operation.stage = DEFERRED
                is_ours = False
                operation.completer = 0
                return not resuming
        finish(operation, trampoline)
        return not resuming
    except BaseException as interrupt:
        if is_ours:
            if operation.stage == CALLING_BACK and operation._op_outcome is not FAILED:
                operation._op_error = interrupt
                operation._op_outcome = FAILED
            operation.completer = 0
            if operation.stage == DONE:
                operation._op_resume_once()
            else:
                note_interrupted(operation)
        raise


cdef int leave_timer(NativeOperation operation) except -1:
    if operation.pending is not NULL:
        leave_list(operation)
    elif operation.entry is not NULL:
        entry = <object> operation.entry  # of a wheel in pure Python
        entry.remove()
    return 0


cdef int detach(NativeOperation operation) except -1:
    """Take it off the timer and the lists."""
    cdef NativeState state = operation._op_state
    leave_timer(operation)
    retry = operation._op_retry
    if retry is not None:
        retry.cancel()
        operation._op_retry = None  # no cycle keeps the two alive
    if state is not None:
        key_error = state.detach(operation)
        if key_error is not None:
            operation._op_log("error", "key_failed", exc_info=key_error)
        operation._op_wait_ns = state.now() - operation._op_start_ns
    return 0


cdef int finish(NativeOperation operation, NativeTrampoline trampoline) except -1:
    """Run the callbacks, count it, notify its listeners."""
    cdef Py_ssize_t depth = trampoline.depth
    trampoline.depth = depth + 1
    try:
        finish_at_depth(operation)
        trampoline.depth = depth
        if not depth and trampoline.deferred:
            trampoline.run_deferred()
    except BaseException:
        trampoline.depth = depth
        if not depth and trampoline.deferred:
            trampoline.run_deferred()
        raise
    return 0


cdef int finish_at_depth(NativeOperation operation) except -1:
    cdef NativeState state = operation._op_state
    cdef CountedAs counted_as
    if operation._op_outcome is not CANCELLED:
        run_callbacks(operation)
    if state is not None:
        counted_as = kind_of_count(operation)
        observer = state.on_completed  # owned while it is called: its user may set another one
        if observer is not None and operation.stage < OBSERVING:
            state.call_observer(observer, operation, NAMES[<int> counted_as], operation._op_wait_ns)
        if operation.owner and operation.owner != operation.completer:
            state.note_still_checked(operation)  # completed from outside, amid a check
        state.count_done(operation, counted_as, operation._op_wait_ns)
    operation.stage = DONE
    if operation._op_listeners is not None:
        notify(operation)
    return 0


cdef CountedAs kind_of_count(NativeOperation operation) noexcept:
    if operation._op_outcome is COMPLETED:
        return CountedAs.IMMEDIATE if operation.is_from_submitter else CountedAs.COMPLETED
    if operation._op_outcome is EXPIRED:
        return CountedAs.EXPIRED
    if operation._op_outcome is not CANCELLED:
        return CountedAs.FAILED
    # A refusal counts only where it won: otherwise the operation has its response.
    if operation.is_refused and operation.is_from_submitter:
        return CountedAs.REJECTED
    return CountedAs.CANCELLED


cdef int run_callbacks(NativeOperation operation) except -1:
    kept = None
    if operation.stage < CALLING_BACK and operation._op_outcome is not FAILED:
        stage = "on_complete"
        operation.stage = CALLING_BACK
        try:
            operation.on_complete()
            if operation._op_outcome is EXPIRED:
                stage = "on_expiration"
                operation.on_expiration()
        except FAULTS as error:
            operation._op_report(stage, error)
            operation._op_fail_with(error)
            kept = error
        else:
            operation.stage = CALLED_BACK
    if operation._op_outcome is FAILED and operation.stage < CALLED_BACK:
        operation.stage = CALLED_BACK
        operation._op_call_on_failure()
    if kept is not None:
        drop_tracebacks(kept)
    return 0


# 2. Checking it, by one owner at a time.


cdef bint own(NativeOperation operation, size_t me, object between, object unlocked) except -1:
    """Own the operation and do what is due, until nothing is: the only loop of ownership.

    As ``_PureOperation._op_own``; ``between`` may be ``PUT_ON_LISTS``.
    """
    cdef NativeTrampoline trampoline
    cdef bint completed = False, is_ours = False, is_interrupted = True, is_too_deep
    try:
        while True:
            if between is NO_CALL and unlocked is None:
                if operation._op_outcome is not PENDING or not is_due(operation):
                    break
            if operation.owner:
                if between is NO_CALL:
                    break
                call(operation, between)
                between = NO_CALL
                operation._op_check_due = True
                continue
            operation.owner = me
            is_ours = True
            retry = None
            if unlocked is not None:
                unlocked()
                unlocked = None
            elif operation._op_lock is None:
                if between is NO_CALL:
                    completed |= do_due(operation)
                else:
                    completed = check_twice(operation, between)
                    between = NO_CALL
            else:
                trampoline = this_trampoline()
                is_too_deep = trampoline.depth >= MAX_DEPTH
                if is_too_deep and between is NO_CALL:
                    # Completed here, its callbacks would run later, and without the user's lock.
                    trampoline.deferred.append((operation, operation._op_process, operation._op_state))
                    operation.owner = 0
                    break
                found = None
                if not is_too_deep:
                    work = operation._op_do_due
                    if between is not NO_CALL:
                        work = partial(operation._op_check_twice, between)
                    found = do_under(operation._op_lock, trampoline, work)
                if found is not None:
                    completed |= found
                elif between is NO_CALL:
                    retry = operation._op_schedule_retry()
                else:
                    call(operation, between)
                    operation._op_check_due = True
                between = NO_CALL
            operation.owner = 0
            is_ours = False
            if retry is not None and operation._op_is_deferred_to(retry):
                break
        is_interrupted = False
    finally:
        if is_interrupted:
            if is_ours:
                operation.owner = 0
            note_interrupted(operation)
    return completed


cdef bint call(NativeOperation operation, object between) except -1:
    """Call ``between``; or put it on its lists: True if there is no place for it."""
    cdef NativeState state = operation._op_state
    if between is not PUT_ON_LISTS:
        between()
    elif state.max_pending is not None and not state.try_admit(operation):
        operation.is_refused = True
        return True
    else:
        state.watchers.watch(operation)
    return False


cdef bint check_twice(NativeOperation operation, object between) except -1:
    if do_due(operation):
        return True
    if operation._op_outcome is PENDING and call(operation, between):
        return False
    operation._op_check_due = True
    return do_due(operation)


cdef bint do_due(NativeOperation operation) except -1:
    """As its owner, under the user's lock: check; else expire, or complete as forced."""
    cdef bint expiring = False, unasked
    cdef PyObject* answer
    cdef Found found
    while operation._op_check_due or (operation._op_expiry_due and not expiring):
        if operation._op_outcome is not PENDING:
            return False
        unasked = not operation._op_check_due  # no event asks for this check, only the expiry does
        # Noted before the check: an expiry counts only with a check that began after it.
        expiring = operation._op_expiry_due
        operation._op_check_due = False
        answer = ask(operation, TRY_COMPLETE)
        if answer is Py_False:
            Py_DECREF(<object> answer)
            continue
        found = look_at_result(operation, answer)
        if found == HELD and unasked and operation._op_state is not None:
            operation._op_state.count_missed_wakeup()
            operation._op_log("warning", "missed_wakeup")
        if found != DID_NOT_HOLD:
            return found == HELD
    forced = (EXPIRED, None) if expiring else operation._op_forced_outcome
    if forced is None:
        return False
    if operation._op_was_abandoned():  # by the check
        operation._op_expiry_due = False
        operation._op_forced_outcome = None
        return False
    outcome, reason = forced
    return complete(operation, outcome, reason, False) and outcome is COMPLETED


cdef bint end_check(NativeOperation operation, PyObject* answer) except -1:
    """As its owner, look at the result of ``try_complete``, or its error; then own it no more."""
    cdef bint completed = False, is_interrupted = True
    try:
        completed = look_at_result(operation, answer) == HELD
        is_interrupted = False
    finally:
        operation.owner = 0
        if is_interrupted:
            note_interrupted(operation)
    if is_due(operation):
        completed |= own(operation, this_number(), NO_CALL, None)
    return completed


cdef Found look_at_result(NativeOperation operation, PyObject* answer) except UNKNOWN:
    """Look at the result of ``try_complete``, which is released, or its error (NULL)."""
    cdef bint is_ours
    if answer is Py_True and operation._op_outcome is not PENDING:
        Py_DECREF(<object> answer)
        return HELD
    raised = None
    try:
        completed = taken(answer)
        if not completed:
            # Anything but False may be a forgotten `return`: the outcome counts.
            is_ours = operation._op_outcome is COMPLETED and operation.moved_by == this_number()
            return HELD if is_ours else DID_NOT_HOLD
        if operation._op_outcome is PENDING and not operation.completer:
            raise RuntimeError(
                f"{type(operation).__name__}.try_complete returned True without force_complete: "
                "when the condition holds, it must `return self.force_complete()`"
            )
        return HELD
    except FAULTS as error:
        operation._op_report("try_complete", error)
        complete(operation, FAILED, error, False)
        raised = error
    except BaseException as interrupt:
        # Left pending, it would have lost this check, and perhaps its expiry.
        complete(operation, FAILED, interrupt, False)
        raise
    drop_tracebacks(raised)
    return RAISED


cdef int note_interrupted(NativeOperation operation) except -1:
    """Note that it was interrupted, and try once to go on."""
    if operation._op_state is not None:
        operation._op_state.interrupted.append((operation,))
    operation._op_resume_once()
    return 0


# 3. Submitting it.


cdef int start_timeout(NativeOperation operation, NativeState state) except -1:
    if not state.expires:
        return 0
    if operation.delay.ms >= FOREVER if operation.has_delay_ms else operation.delay_ms >= FOREVER_MS:
        return 0
    try:
        if state.native_timer is not None:
            add_task(state.native_timer, operation)
        else:
            state.timer.add(operation)
    except TimerClosedError:
        if not state.is_closed:  # the close comes to it
            raise
    if operation._op_outcome is not PENDING or not operation._op_keys:
        leave_timer(operation)
    return 0


# 4. Notifying its listeners.


cdef int notify(NativeOperation operation) except -1:
    """Call the listeners, each once: the call that pops one puts it back if interrupted."""
    while operation._op_listeners:
        listener = operation._op_listeners.pop(0)
        try:
            try:
                listener()
            except FAULTS as error:
                operation._op_listener_failed(listener, error)
        except BaseException:
            operation._op_listeners.insert(0, listener)
            note_interrupted(operation)
            raise
    return 0


cdef inline bint is_due(NativeOperation operation) noexcept:
    """Whether something is due."""
    return (
        operation._op_check_due
        or operation._op_expiry_due
        or operation._op_forced_outcome is not None
    )


cdef bint submit(object submitted, NativeState state, tuple keys, dict thresholds) except -1:
    """Check it, put it on its lists, check it again; start its timeout. Whether it completed."""
    cdef NativeOperation operation
    cdef int64_t now_ns
    cdef bint entered, completed, is_taken = False
    cdef size_t me = this_number()
    if not isinstance(submitted, NativeOperation):
        raise wrong_type_error(submitted)
    operation = <NativeOperation> submitted
    if not operation.is_whole:
        raise uninitialized_operation_error(operation)
    now_ns = state.now()
    entered = enter(state.lock)
    if operation._op_state is None:
        if state.is_closed:
            state.counters.rejected += 1
        else:
            is_taken = True
            keys_before = operation._op_keys
            thresholds_before = operation._op_thresholds
            operation._op_start_ns = now_ns
            if operation._op_outcome is PENDING:
                operation.moved_by = me
            else:
                operation.is_from_submitter = operation.moved_by == me
            operation._op_keys = keys
            operation._op_thresholds = thresholds
            operation._op_state = state
            if operation._op_outcome is PENDING:
                state.add_pending(operation)
    leave(state.lock, entered)
    if not is_taken:
        if operation._op_state is not None:
            raise reused_error(operation, operation._op_state.name)
        raise closed_error(operation, state.name)
    refusal = None
    try:
        if now_ns > state.reaper_look_ns:
            state.check_reaper(now_ns)
        operation._op_check_due = True
        completed = own(operation, me, PUT_ON_LISTS, None)
        if operation.is_refused:
            refusal = full_error(operation, state.name, state.max_pending)
            if complete(operation, CANCELLED, None, False):
                state.log_full(operation)
            else:
                refusal = None
        elif not completed and operation._op_outcome is PENDING:
            start_timeout(operation, state)
        if operation._op_outcome is PENDING:
            operation.moved_by = 0  # completed by now, it may have yet to be counted
    except BaseException:
        # A key that can't be compared, an interrupt: leave nothing behind.
        operation._op_forced_outcome = CANCEL
        state.interrupted.append((operation,))
        operation.cancel()
        raise
    if refusal is not None:
        raise refusal
    return completed


cdef int check_each(list operations) except -1:
    """Check these; return how many this completed."""
    cdef int completed = 0
    cdef size_t me = this_number()
    for one in operations:  # of that type all: it is not looked at once more
        completed += check_one(<NativeOperation> one, me)
    return completed


cdef int check_alone(NativeWatched operation) except -1:
    """Check this one; return how many this completed."""
    return check_one(<NativeOperation> operation, this_number())


cdef inline int check_one(NativeOperation operation, size_t me) except -1:
    cdef PyObject* answer
    if (
        operation._op_outcome is not PENDING
        or operation.owner
        or operation._op_lock is not None
        or operation._op_expiry_due
        or operation._op_forced_outcome is not None
    ):
        operation._op_check_due = True
        return own(operation, me, NO_CALL, None)
    # own(operation, me, NO_CALL, None), written out for most checks: the condition is false.
    operation.owner = me
    operation._op_check_due = False
    answer = ask(operation, TRY_COMPLETE)
    if answer is not Py_False:
        return end_check(operation, answer)
    Py_DECREF(<object> answer)
    operation.owner = 0
    if is_due(operation):
        return own(operation, me, NO_CALL, None)
    return 0


# An unreachable operation lets go of all that may lead back to it; the methods' own needs stay.

cdef int _clear(PyObject* self) noexcept:
    cdef NativeOperation operation = <NativeOperation> self
    operation._op_keys = ()
    operation._op_thresholds = operation._op_listeners = None
    operation._op_lock = operation._op_error = operation._op_forced_outcome = operation._op_retry = None
    return 0


cdef PyTypeObject* _type = <PyTypeObject*> NativeOperation
_type.tp_clear = _clear
