# cython: language_level=3
"""What a purgatory's books do for every operation, as `purgatory.core.books` explains it.

Ground rules
------------
* The books own a reference to what is pending, and to what is settling. Each such operation stands
  on the one list or the other, by a link in itself; it goes from one to the other in one step.
* An operation is on watch lists only while it stands in the books.
* Whatever changes here without a call of Python is one step; what may call it is done in a turn.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX, int64_t

from purgatory.core.native.watching cimport (
    NativeTurn,
    NativeWatched,
    NativeWatcherList,
    enter,
    leave,
)
from timer.native.core cimport NativeTimerCore
from timer.native.links cimport Link, append, start_empty, unlink

from contextlib import suppress
from time import monotonic_ns
from weakref import WeakValueDictionary

from purgatory.core.counting import OUTCOMES, STAGES, WAIT_BOUNDS_NS

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    static int64_t books_monotonic_ns(void) {
        PyTime_t now = 0;
        PyTime_MonotonicRaw(&now);
        return now;
    }
    #else
    #define books_monotonic_ns() ((int64_t) _PyTime_GetMonotonicClock())
    #endif
    """
    int64_t books_monotonic_ns() nogil

cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject* told, void* arg) noexcept
    ctypedef int (*traverseproc)(PyObject* self, visitproc visit, void* arg) noexcept
    ctypedef int (*inquiry)(PyObject* self) noexcept
    ctypedef struct PyTypeObject:
        traverseproc tp_traverse
        inquiry tp_clear
    int64_t PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef int64_t LARGE = INT64_MAX // 4
cdef int64_t _BOUNDS_NS[BUCKETS - 1]
cdef Py_ssize_t _number
for _number in range(BUCKETS - 1):
    _BOUNDS_NS[_number] = WAIT_BOUNDS_NS[_number]
assert len(WAIT_BOUNDS_NS) == BUCKETS - 1


@cython.no_gc_clear  # a cycle through an operation has another link that can be cut
cdef class NativeBooked(NativeWatched):
    """What the books know of an operation."""


cdef class NativeOutcomeCounter:
    """How many operations were settled in one way, and how long they had waited."""

    def __cinit__(self):
        self.carried_ns = 0

    cdef int count(self, int64_t wait_ns) except -1:
        cdef Py_ssize_t bucket = 0
        while bucket < BUCKETS - 1 and wait_ns > _BOUNDS_NS[bucket]:
            bucket += 1
        self.buckets[bucket] += 1
        self.total += 1
        if wait_ns > LARGE or self.sum_ns > LARGE:
            self.carried_ns += self.sum_ns
            self.sum_ns = 0
        self.sum_ns += wait_ns
        return 0

    @property
    def bucket_counts(self):
        """How many waits were in each bucket; not cumulative."""
        return [self.buckets[bucket] for bucket in range(BUCKETS)]

    @property
    def wait_sum_ns(self):
        """All waits together."""
        return self.carried_ns + self.sum_ns


cdef class NativeCounters:
    """What `purgatory.core.counters.Counters` is made of, in place of `PureCounters`."""

    def __cinit__(self):
        self.by_outcome = {}
        for outcome in OUTCOMES:
            if outcome != "rejected":
                self.by_outcome[outcome] = NativeOutcomeCounter()
        self.counters = list(self.by_outcome.values())
        self.callback_errors = dict.fromkeys(STAGES, 0)


cdef class NativeBooks:
    """What `purgatory.core.books.Books` is made of, in place of `PureBooks`."""

    def __cinit__(self):
        start_empty(&self.pending)
        start_empty(&self.settling)
        # Never None, not even in what was made by __new__ alone: no method looks.
        self.watchers = NativeWatcherList()
        self.turn = self.watchers.turn
        self.counters = NativeCounters()
        self.broken_off = []
        self.placed = set()
        self.values = {}

    def __init__(self, name, timer, expires, on_settled, max_pending):
        self.name = name
        self.timer = timer
        self.expires = expires
        self.on_settled = on_settled
        self.max_pending = max_pending
        self.now_ns = timer.clock.now_ns
        self.reads_system_clock = self.now_ns is monotonic_ns
        if isinstance(timer, NativeTimerCore) and type(timer).add is NativeTimerCore.add:
            self.native_timer = timer

    @classmethod
    def __class_getitem__(cls, kind):
        return cls

    def __dealloc__(self):
        self.drop_all()

    def _start_empty(self, NativeCounters counters not None):
        """Forget all operations, and all that is known of keys."""
        self.drop_all()
        self.watchers = NativeWatcherList()
        self.turn = self.watchers.turn
        self.still_checked = WeakValueDictionary()
        self.broken_off = []
        self.placed = set()
        self.values = {}
        self.counters = counters
        self.reaper_look_ns = 0
        self.full_log_ns = 0

    cdef int64_t now(self) except? -1:
        """Read the timer's clock."""
        cdef int overflow = 0
        cdef int64_t now_ns
        if self.reads_system_clock:
            return books_monotonic_ns()
        now_ns = PyLong_AsLongLongAndOverflow(self.now_ns(), &overflow)
        return INT64_MAX if overflow else now_ns

    # Coming in, and going out.

    cdef int book(self, NativeBooked operation) except -1:
        """Note a new operation as pending; nothing here calls Python."""
        operation.place = PENDING
        append(&self.pending, &operation.booked)
        self.pending_count += 1
        Py_INCREF(operation)
        return 0

    cdef object leave_lists(self, NativeBooked operation):
        """Take a claimed operation off all lists; return what a key raised."""
        cdef bint entered = enter(self.turn)
        try:
            if operation.place == PENDING:
                unlink(&operation.booked)
                self.pending_count -= 1
                operation.place = SETTLING
                append(&self.settling, &operation.booked)
            if self.max_pending is not None:
                self.placed.discard(id(operation))
            key_error = self.watchers.take_off(operation)
        finally:
            leave(self.turn, entered)
        if key_error is not None:
            self.broken_off.append((None,))
        return key_error

    cdef int count_settled(
        self, NativeBooked operation, CountedAs counted_as, int64_t wait_ns
    ) except -1:
        """Book a settled operation, whose callbacks are done, and forget it."""
        cdef bint entered = enter(self.turn)
        try:
            if operation.place == SETTLING:
                if counted_as == REJECTED:
                    self.counters.rejected += 1
                else:
                    (<NativeOutcomeCounter> self.counters.counters[<int> counted_as]).count(wait_ns)
        finally:
            leave(self.turn, entered)
            self.forget(operation)
        return 0

    cdef void forget(self, NativeBooked operation) noexcept:
        """Let go of an operation, which the caller has a reference to."""
        if operation.place == NOWHERE:
            return
        if operation.place == PENDING:
            self.pending_count -= 1
        operation.place = NOWHERE
        unlink(&operation.booked)
        Py_DECREF(operation)

    def forget_pending(self, NativeBooked operation not None):
        """Let go of ``operation``, which stays pending."""
        if operation.place == PENDING:
            self.forget(operation)

    cdef int drop_all(self) except -1:
        """Let go of all operations, and take them off the lists. O(entries)."""
        cdef NativeBooked operation
        cdef NativeWatcherList watchers = self.watchers
        dropped = self.pending_operations() + self.settling_operations()
        for operation in dropped:
            self.forget(operation)
            with suppress(Exception):  # a key that can't be compared
                watchers.take_off(operation)
        return 0

    # What it holds, in a turn.

    def pending_operations(self):
        """Return what is pending, in the order in which it came."""
        return operations_on(&self.pending)

    def settling_operations(self):
        """Return what is claimed, and has yet to be booked."""
        return operations_on(&self.settling)

    def oldest(self):
        """Return the pending operation that came first, in a turn."""
        cdef Link* link = self.pending.next
        cdef NativeBooked operation
        while link is not &self.pending:
            operation = operation_of(link)
            if not operation.is_completed:
                return operation
            link = link.next
        return None


cdef Py_ssize_t _OFFSET = 0


cdef void _find_offset(NativeBooked operation) noexcept:
    global _OFFSET
    _OFFSET = <char*> &operation.booked - <char*> <PyObject*> operation


_find_offset(NativeBooked.__new__(NativeBooked))


cdef NativeBooked operation_of(Link* link):
    return <NativeBooked> <PyObject*> (<char*> link - _OFFSET)


cdef list operations_on(Link* root):
    cdef Link* link = root.next
    operations = []
    while link is not root:
        operations.append(operation_of(link))
        link = link.next
    return operations


# The garbage collector has to know of the operations, which no field of the books names.

cdef traverseproc _traverse_fields


cdef int _traverse_list(Link* root, visitproc visit, void* arg) noexcept:
    cdef Link* link = root.next
    cdef int told = 0
    while link is not root and not told:
        told = visit(<PyObject*> (<char*> link - _OFFSET), arg)
        link = link.next
    return told


cdef int _traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef NativeBooks books = <NativeBooks> self
    cdef int told = _traverse_fields(self, visit, arg)
    told = told or _traverse_list(&books.pending, visit, arg)
    return told or _traverse_list(&books.settling, visit, arg)


cdef int _clear(PyObject* self) noexcept:
    """Let go of all that may be part of a cycle; what the methods need stays."""
    cdef NativeBooks books = <NativeBooks> self
    books.drop_all()
    books.reaper = books.on_settled = books.now_ns = books.timer = None
    books.closing_error = books.gave_up_error = None
    return 0


cdef PyTypeObject* _type = <PyTypeObject*> NativeBooks
_traverse_fields = _type.tp_traverse
_type.tp_traverse, _type.tp_clear = _traverse, _clear
