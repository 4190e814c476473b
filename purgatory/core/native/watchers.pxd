from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from purgatory.core.native.trampoline cimport system_thread
from timer.native.heap cimport Heap, Ranked
from timer.native.links cimport Link
from timer.native.task cimport NativeTask

cdef enum:
    FEW = 3  # keys, for which there is room in the operation itself


cdef struct Watch:  # a place on the list of one key
    Link link
    PyObject* operation
    PyObject* watchers  # the list; the operation owns a reference to it


cdef union Watches:
    Watch few[FEW]
    Watch* many  # an array of their own, where it has more keys


cdef struct Threshold:  # a place in the heap of one key
    Ranked ranked  # by number, then by arrival. The first field.
    PyObject* operation  # NULL: there is none for this key


cdef enum Membership:  # where an operation stands in the state
    NOT_HELD
    IS_PENDING
    IS_COMPLETING


cdef class NativeLock:
    cdef size_t holder  # the system's number of the thread that has it, or 0

    cdef bint wait(self, size_t me) except -1


cdef class NativeHold:
    cdef NativeLock lock
    cdef bint entered  # False where this thread had it before

    cdef void give_back(self) noexcept


cdef inline bint enter(NativeLock lock) except -1:
    """Take the lock; False where this thread has it, even in another greenlet."""
    cdef size_t me = system_thread()
    if lock.holder == 0:
        lock.holder = me
        return True
    return lock.wait(me)


cdef inline void leave(NativeLock lock, bint entered) noexcept:
    """Give it back, if it was taken."""
    if entered:
        lock.holder = 0


cdef class KeyWatchers:
    cdef object key
    cdef Link root
    cdef Py_ssize_t count
    cdef bint is_dropped  # whether it is in no map any more
    cdef bint is_kept  # whether it stays in the map while it is empty
    cdef Heap numbers

    cdef int collect(self, list operations) except -1
    cdef bint reaches(self, int64_t value) noexcept
    cdef int pop_reached(self, int64_t value, list taken) except -1


cdef class NativeWatched(NativeTask):
    cdef public tuple _op_keys
    cdef public dict _op_thresholds
    cdef public object _op_outcome
    cdef Watches watches
    cdef Threshold* thresholds
    cdef Link state_link
    cdef int watch_count
    cdef char membership  # a Membership
    cdef public char _op_check_due
    cdef public char _op_expiry_due
    cdef char is_refused


cdef inline NativeWatched first_on(KeyWatchers watchers):
    """Return the first operation on a key, which has one."""
    return <NativeWatched> (<Watch*> watchers.root.next).operation


cdef inline Watch* watches_of(NativeWatched operation) noexcept:
    if operation.watch_count > FEW:
        return operation.watches.many
    return operation.watches.few


cdef class NativeWatcherList:
    cdef dict by_key
    cdef readonly NativeLock lock
    cdef list kept  # the lists that stay, in the order in which they were emptied
    cdef readonly Py_ssize_t entries
    cdef readonly Py_ssize_t key_count  # keys with a watcher
    cdef int64_t order

    cdef int watch(self, NativeWatched operation) except -1
    cdef bint link(
        self, NativeWatched operation, tuple keys, Watch* watches, Threshold* thresholds
    ) except -1
    cdef int find_lists(self, tuple keys, Watch* watches) except -1
    cdef object remove_from_lists(self, NativeWatched operation)
    cdef object release_lists(self, Watch* watches, Py_ssize_t count)
    cdef int drop_if_empty(self, KeyWatchers watchers) except -1
    cdef int restore(self, KeyWatchers watchers) except -1
    cdef KeyWatchers on(self, object key)
    cdef int rearm_all(self, KeyWatchers watchers) except -1
