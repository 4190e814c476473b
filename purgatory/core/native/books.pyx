# cython: language_level=3
"""What a purgatory's books do for every operation, as `purgatory.core.books` explains it.

Ground rules
------------
* The books own a reference to what is pending, and to what is settling. Each such operation stands
  on the one list or the other, by a link in itself; it goes from one to the other in one step.
* An operation is on watch lists only while it stands in the books.
* Whatever changes here without a call of Python is one step; what may call it is done in a turn.
* A list that is made may be one, as `timer.native.core` says: it is there before a link is read.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t

from purgatory.core.native.watching cimport (
    IS_PENDING,
    IS_SETTLING,
    UNBOOKED,
    NativeTurn,
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

from time import monotonic_ns
from weakref import WeakValueDictionary

from purgatory.core.counting import OUTCOMES, STAGES, WAIT_BOUNDS_MS
from purgatory.core.outcome import Outcome
from timer.native.core import NativeTimerCore

cdef object PENDING = Outcome.PENDING


cdef class NativeCounters:
    """What `purgatory.core.counters.Counters` is made of, in place of `PureCounters`."""

    def __cinit__(self):
        self.by_outcome = {
            outcome: NativeHistogram(WAIT_BOUNDS_MS)
            for outcome in OUTCOMES
            if outcome != "rejected"
        }
        self.histograms = list(self.by_outcome.values())
        self.callback_errors = dict.fromkeys(STAGES, 0)


cdef class NativeBooks:
    """What `purgatory.core.books.Books` is made of, in place of `PureBooks`."""

    def __cinit__(self):
        start_empty(&self.pending)
        start_empty(&self.settling)
        # Not even in what was made by __new__ alone are these None: no method looks.
        self._start_empty(NativeCounters())

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
        self.reads_system_clock = self.now_ns is monotonic_ns
        self.native_timer = None
        if isinstance(self.timer, NativeTimerCore) and type(self.timer).add is NativeTimerCore.add:
            self.native_timer = self.timer

    cdef int64_t now(self) except? -1:
        """Read the timer's clock."""
        return system_time_ns() if self.reads_system_clock else within_64_bits(self.now_ns())

    # Coming in, and going out.

    cdef int book(self, NativeWatched operation) except -1:
        """Note a new operation as pending; nothing here calls Python."""
        operation.booked = IS_PENDING
        append(&self.pending, &operation.in_books)
        self.pending_count += 1
        Py_INCREF(operation)
        return 0

    cdef object leave_lists(self, NativeWatched operation):
        """Take a claimed operation off all lists; return what a key raised."""
        cdef bint entered = enter(self.turn)
        try:
            if operation.booked == IS_PENDING:
                unlink(&operation.in_books)
                self.pending_count -= 1
                operation.booked = IS_SETTLING
                append(&self.settling, &operation.in_books)
            if self.max_pending is not None:
                self.placed.discard(id(operation))
            key_error = self.watchers.take_off(operation)
        finally:
            leave(self.turn, entered)
        if key_error is not None:
            self.broken_off.append((None,))
        return key_error

    cdef int count_settled(
        self, NativeWatched operation, CountedAs counted_as, int64_t wait_ns
    ) except -1:
        """Book a settled operation, whose callbacks are done, and forget it."""
        cdef bint entered = enter(self.turn)
        try:
            if operation.booked == IS_SETTLING:
                if counted_as == REJECTED:
                    self.counters.rejected += 1
                else:
                    (<NativeHistogram> self.counters.histograms[<int> counted_as]).count(wait_ns)
        finally:
            leave(self.turn, entered)
            self.forget(operation)
        return 0

    cdef void forget(self, NativeWatched operation) noexcept:
        """Let go of an operation, which the caller has a reference to."""
        if operation.booked == UNBOOKED:
            return
        if operation.booked == IS_PENDING:
            self.pending_count -= 1
        operation.booked = UNBOOKED
        unlink(&operation.in_books)
        Py_DECREF(operation)

    def forget_pending(self, NativeWatched operation not None):
        """Let go of ``operation``, which stays pending."""
        if operation.booked == IS_PENDING:
            self.forget(operation)

    cdef int drop_all(self) except -1:
        """Let go of all operations, and take them off the lists. O(entries)."""
        cdef NativeWatched operation
        cdef NativeWatcherList watchers = self.watchers
        cdef list dropped = []
        # No name and no method is looked up here: when Python ends, both go before their objects.
        add_operations(&self.pending, dropped)
        add_operations(&self.settling, dropped)
        for operation in dropped:
            self.forget(operation)
            try:
                watchers.take_off(operation)
            except Exception:  # a key can't be compared
                pass
        return 0

    # What it holds, in a turn.

    def pending_operations(self):
        """Return what is pending, in the order in which it came."""
        cdef list operations = []
        add_operations(&self.pending, operations)
        return operations

    def pending_ends(self, Py_ssize_t limit):
        """Return those that came first and those that came last, in a turn. O(limit)."""
        cdef list first = [], last = []
        cdef Link* link
        cdef Py_ssize_t left = self.pending_count
        # From here on nothing calls Python: the lists are there.
        link = self.pending.next
        while link is not &self.pending and len(first) < limit:
            first.append(operation_of(link))
            link = link.next
        left = min(limit, left - len(first))
        link = self.pending.previous
        while link is not &self.pending and len(last) < left:
            last.append(operation_of(link))
            link = link.previous
        last.reverse()
        return first, last

    def settling_operations(self):
        """Return what is claimed, and has yet to be booked."""
        cdef list operations = []
        add_operations(&self.settling, operations)
        return operations

    def oldest(self):
        """Return the pending operation that came first, in a turn."""
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
    _OFFSET = <char*> &operation.in_books - <char*> <PyObject*> operation


_find_offset(NativeWatched.__new__(NativeWatched))


cdef NativeWatched operation_of(Link* link):
    return <NativeWatched> <PyObject*> (<char*> link - _OFFSET)


cdef int add_operations(Link* root, list operations) except -1:
    """Add who is on a list to ``operations``; nothing here calls Python."""
    cdef Link* link = root.next
    while link is not root:
        operations.append(operation_of(link))
        link = link.next
    return 0


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
    books.native_timer = books.closing_error = books.gave_up_error = None
    return 0


cdef PyTypeObject* _type = <PyTypeObject*> NativeBooks
_traverse_fields = _type.tp_traverse
_type.tp_traverse, _type.tp_clear = _traverse, _clear
