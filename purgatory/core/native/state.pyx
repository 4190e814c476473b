# cython: language_level=3
"""The data of every operation, as `purgatory.core.state` explains it.

Ground rules
------------
* The state owns a reference to each operation that is pending or being completed. Such an operation
  stands on the one list or the other, by a link in itself; it goes from one to the other in one step.
* An operation is on watch lists only while it stands in the state.
* Changes without a call of Python are one step; code that may call it runs under the lock.
* A list that is made may be one, as `timer.native.timer` says: it is there before a link is read.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t

from purgatory.core.native.watchers cimport (
    IS_PENDING,
    IS_COMPLETING,
    NOT_HELD,
    NativeLock,
    NativeWatched,
    NativeWatcherList,
    enter,
    leave,
)
from timer.native.collector cimport PyTypeObject, traverseproc, visitproc
from timer.native.histogram cimport NativeHistogram
from timer.native.links cimport Link, append, start_empty, unlink
from timer.native.system_time cimport system_time_ns
from timer.native.whole_numbers cimport within_64_bits

from weakref import WeakValueDictionary

from purgatory.core.outcome import OUTCOMES, STAGES, WAIT_BOUNDS_MS, Outcome
from timer.machine_time import time
from timer.native.timer import NativeTimer

cdef object monotonic_ns = time.monotonic_ns
cdef object PENDING = Outcome.PENDING


cdef class NativeCounters:
    """The base of `purgatory.core.counters.Counters`, in place of `_PureCounters`."""

    def __cinit__(self):
        self.by_outcome = {
            outcome: NativeHistogram(WAIT_BOUNDS_MS)
            for outcome in OUTCOMES
            if outcome != "rejected"
        }
        self.histograms = list(self.by_outcome.values())
        self.callback_errors = dict.fromkeys(STAGES, 0)


cdef class NativeState:
    """The base of `purgatory.core.state.PurgatoryState`, in place of `_PureState`."""

    def __cinit__(self):
        start_empty(&self.pending)
        start_empty(&self.completing)
        # Not even in what was made by __new__ alone are these None: no method looks.
        self._reset(NativeCounters())

    @classmethod
    def __class_getitem__(cls, kind):
        return cls

    def __dealloc__(self):
        self.drop_all()

    def _reset(self, NativeCounters counters not None):
        """Forget all operations, and all that is known of keys."""
        self.drop_all()
        self.watchers = NativeWatcherList()
        self.lock = self.watchers.lock
        self.still_checked = WeakValueDictionary()
        self.interrupted = []
        self.admitted = set()
        self.values = {}
        self.counters = counters
        self.reaper_look_ns = 0
        self.full_log_ns = 0
        self.reads_system_clock = self.now_ns is monotonic_ns
        self.native_timer = None
        if isinstance(self.timer, NativeTimer) and type(self.timer).add is NativeTimer.add:
            self.native_timer = self.timer

    cdef int64_t now(self) except? -1:
        """Read the timer's clock."""
        return system_time_ns() if self.reads_system_clock else within_64_bits(self.now_ns())

    # Coming in, and going out.

    cdef int add_pending(self, NativeWatched operation) except -1:
        """Note a new operation as pending; nothing here calls Python."""
        operation.membership = IS_PENDING
        append(&self.pending, &operation.state_link)
        self.pending_count += 1
        Py_INCREF(operation)
        return 0

    cdef object detach(self, NativeWatched operation):
        """Take an operation that is being completed off all lists; return the error of a key."""
        cdef bint entered = enter(self.lock)
        try:
            if operation.membership == IS_PENDING:
                unlink(&operation.state_link)
                self.pending_count -= 1
                operation.membership = IS_COMPLETING
                append(&self.completing, &operation.state_link)
            if self.max_pending is not None:
                self.admitted.discard(id(operation))
            key_error = self.watchers.remove_from_lists(operation)
        finally:
            leave(self.lock, entered)
        if key_error is not None:
            self.interrupted.append((None,))
        return key_error

    cdef int count_done(
        self, NativeWatched operation, CountedAs counted_as, int64_t wait_ns
    ) except -1:
        """Count a completed operation, whose callbacks are done, and forget it."""
        cdef bint entered = enter(self.lock)
        try:
            if operation.membership == IS_COMPLETING:
                if counted_as == REJECTED:
                    self.counters.rejected += 1
                else:
                    (<NativeHistogram> self.counters.histograms[<int> counted_as]).count(wait_ns)
        finally:
            leave(self.lock, entered)
            self.forget(operation)
        return 0

    cdef void forget(self, NativeWatched operation) noexcept:
        """Drop an operation, which the caller has a reference to."""
        if operation.membership == NOT_HELD:
            return
        if operation.membership == IS_PENDING:
            self.pending_count -= 1
        operation.membership = NOT_HELD
        unlink(&operation.state_link)
        Py_DECREF(operation)

    def forget_pending(self, NativeWatched operation not None):
        """Forget ``operation``, which stays pending."""
        self.admitted.discard(id(operation))
        if operation.membership == IS_PENDING:
            self.forget(operation)

    cdef int drop_all(self) except -1:
        """Drop all operations, and take them off the lists. O(entries)."""
        cdef NativeWatched operation
        cdef NativeWatcherList watchers = self.watchers
        cdef list dropped = []
        # No name and no method is looked up here: when Python ends, both go before their objects.
        add_operations(&self.pending, dropped)
        add_operations(&self.completing, dropped)
        for operation in dropped:
            self.forget(operation)
            try:
                watchers.remove_from_lists(operation)
            except Exception:  # a key can't be compared
                pass
        return 0

    # Reading, under the lock.

    def pending_operations(self):
        """Return the pending operations, in the order in which they came."""
        cdef list operations = []
        add_operations(&self.pending, operations)
        return operations

    def pending_ends(self, Py_ssize_t limit):
        """Return the first and the last pending operations, under the lock. O(limit)."""
        cdef list first = [], last = []
        cdef Link* link
        cdef Py_ssize_t deferred = self.pending_count
        # From here on nothing calls Python: the lists are there.
        link = self.pending.next
        while link is not &self.pending and len(first) < limit:
            first.append(operation_of(link))
            link = link.next
        deferred = min(limit, deferred - len(first))
        link = self.pending.previous
        while link is not &self.pending and len(last) < deferred:
            last.append(operation_of(link))
            link = link.previous
        last.reverse()
        return first, last

    def completing_operations(self):
        """Return the operations that have their outcome, and have yet to be counted."""
        cdef list operations = []
        add_operations(&self.completing, operations)
        return operations

    def oldest(self):
        """Return the pending operation that came first, under the lock."""
        cdef Link* link = self.pending.next
        cdef NativeWatched operation
        while link is not &self.pending:
            operation = operation_of(link)
            if operation._op_outcome is PENDING:
                return operation
            link = link.next
        return None


cdef Py_ssize_t _OFFSET = 0


cdef void _find_offset(NativeWatched operation) noexcept:
    global _OFFSET
    _OFFSET = <char*> &operation.state_link - <char*> <PyObject*> operation


_find_offset(NativeWatched.__new__(NativeWatched))


cdef NativeWatched operation_of(Link* link):
    return <NativeWatched> <PyObject*> (<char*> link - _OFFSET)


cdef int add_operations(Link* root, list operations) except -1:
    """Add the operations on a list to ``operations``; nothing here calls Python."""
    cdef Link* link = root.next
    while link is not root:
        operations.append(operation_of(link))
        link = link.next
    return 0


# The garbage collector has to know of the operations, which no field of the state names.

cdef traverseproc _traverse_fields


cdef int _traverse_list(Link* root, visitproc visit, void* arg) noexcept:
    cdef Link* link = root.next
    cdef int told = 0
    while link is not root and not told:
        told = visit(<PyObject*> (<char*> link - _OFFSET), arg)
        link = link.next
    return told


cdef int _traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef NativeState state = <NativeState> self
    cdef int told = _traverse_fields(self, visit, arg)
    told = told or _traverse_list(&state.pending, visit, arg)
    return told or _traverse_list(&state.completing, visit, arg)


cdef int _clear(PyObject* self) noexcept:
    """Drop all that may be part of a cycle; the methods' own needs stay."""
    cdef NativeState state = <NativeState> self
    state.drop_all()
    state.reaper = state.on_completed = state.now_ns = state.timer = None
    state.native_timer = state.closing_error = state.gave_up_error = None
    return 0


cdef PyTypeObject* _type = <PyTypeObject*> NativeState
_traverse_fields = _type.tp_traverse
_type.tp_traverse, _type.tp_clear = _traverse, _clear
