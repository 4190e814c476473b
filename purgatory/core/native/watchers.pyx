# cython: language_level=3
"""Watch lists: the operations on each key, which wait for any event or for a number.

As `purgatory.core.watchers`, except for this.

Ground rules
------------
* An operation has a link for each of its keys in itself, on the list of that key, and, where it
  waits for a number, a place in the heap of that list. A list owns no reference: each operation on it
  is pending or being completed, and the state owns a reference to such ones.
* Code that does not call Python is one step: no other thread, signal or finalizer comes in between. All
  links of an operation are made in one such step, and taken off in one.
* Python is called where a key is hashed or compared, and may be where something is allocated or a
  reference is dropped (finalizers). Such calls come before or after those steps, under the
  state's lock, which lets its own thread in: a list that was found before is looked at again in the step.
* A list that is empty is taken out of the map, and ``is_dropped`` tells that to a call that found it
  before. A few stay there for the next operations on their keys, if these are strings: no user sees
  how long a string lives.
"""

cimport cython
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from purgatory.core.native.trampoline cimport system_thread
from timer.native.collector cimport PyTypeObject, traverseproc, visitproc
from timer.native.heap cimport NOWHERE, Ranked, make_room, push, remove
from timer.native.links cimport Link, append, start_empty, unlink
from timer.native.whole_numbers cimport within_64_bits

from contextlib import suppress
from time import sleep

from purgatory.core.watchers import check_lists
from purgatory.core.outcome import Outcome
from timer.errors import uninitialized_error

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define python_ends() Py_IsFinalizing()
    #else
    #define python_ends() _Py_IsFinalizing()
    #endif
    """
    bint python_ends() noexcept

cdef object PENDING = Outcome.PENDING
cdef double PAUSE_S = 50e-6
cdef Py_ssize_t MOST_KEPT = 128  # empty lists that stay in the map


cdef class NativeLock:
    """The lock of a purgatory's state, reentrant.

    No signal comes between its steps, so it needs no lock of the system's: a thread that finds it
    taken sleeps a moment, and the holder runs. A thread that is frozen at the interpreter's end holds up nobody.
    """

    cdef bint wait(self, size_t me) except -1:
        while self.holder != 0:
            # Or the holder will never run again; nothing can be looked up by its name then.
            if self.holder == me or python_ends():
                return False
            sleep(PAUSE_S)
        self.holder = me
        return True

    def __enter__(self):
        return None

    @property
    def __exit__(self):
        """Take it: `with` looks this up first, and holds it as long as what it gets, as `timer.locks` says."""
        cdef NativeHold hold = NativeHold.__new__(NativeHold)
        hold.entered = enter(self)
        hold.lock = self
        return hold

    def _is_owned(self):
        """Whether this thread has it."""
        return self.holder == system_thread()

    def __bool__(self):
        return self.holder != 0


@cython.freelist(8)
@cython.no_gc
cdef class NativeHold:
    """The hold by which `with` has the lock: it is given back at the end, or when this goes."""

    def __call__(self, kind, error, traceback):
        self.give_back()

    def __dealloc__(self):
        self.give_back()

    cdef inline void give_back(self) noexcept:
        if self.lock is not None:
            leave(self.lock, self.entered)
            self.entered = False


@cython.freelist(64)
cdef class KeyWatchers:
    """The operations that wait on one key, in arrival order, and those that wait for a number."""

    def __cinit__(self):
        start_empty(&self.root)

    def __dealloc__(self):
        free(self.numbers.ranked)

    cdef int collect(self, list operations) except -1:
        """Add all operations on the key to ``operations``."""
        cdef Link* link = self.root.next
        while link is not &self.root:
            operations.append(<object> watch_of(link).operation)
            link = link.next
        return 0

    cdef bint reaches(self, int64_t value) noexcept:
        """Whether an operation waits for ``value`` or less. O(1)."""
        return self.numbers.size and self.numbers.ranked[0].number <= value

    cdef int pop_reached(self, int64_t value, list taken) except -1:
        """Move operations whose number is ``value`` or less to ``taken``, ordered by number."""
        cdef Threshold* first
        while self.numbers.size and self.numbers.ranked[0].number <= value:
            first = <Threshold*> self.numbers.ranked[0]
            taken.append(<object> first.operation)
            remove(&self.numbers, &first.ranked)
        return 0


cdef inline Watch* watch_of(Link* link) noexcept:
    return <Watch*> link  # its first field


cdef int rearm_one(NativeWatched operation, KeyWatchers watchers, int64_t order) except -1:
    """Let ``operation`` wait for its number on that list again, if it has one and does not: as the
    one that came ``order``-th, or, if that is 0, where it was before."""
    cdef Py_ssize_t index
    cdef Threshold* threshold
    if operation.thresholds is NULL:
        return 0
    for index in range(operation.watch_count):
        threshold = &operation.thresholds[index]
        if watches_of(operation)[index].watchers is <PyObject*> watchers:
            if threshold.operation is not NULL and threshold.ranked.place == NOWHERE:
                make_room(&watchers.numbers)
                threshold.ranked.order = order or threshold.ranked.order
                push(&watchers.numbers, &threshold.ranked)
    return 0


@cython.no_gc_clear  # a cycle through an operation has another link that can be cut
cdef class NativeWatched(NativeTask):
    """An operation, as the watch lists know it."""

    def __cinit__(self):
        self._op_keys = ()
        self._op_outcome = PENDING

    @property
    def outcome(self):
        """The outcome, or PENDING. In a callback, the outcome that is about to be final."""
        if not self.is_whole:
            raise uninitialized_error(self)
        return self._op_outcome

    @property
    def is_completed(self):
        """Whether the outcome is not PENDING."""
        if not self.is_whole:
            raise uninitialized_error(self)
        return self._op_outcome is not PENDING


cdef class NativeWatcherList:
    """The maps from key to watchers."""

    def __cinit__(self):
        self.lock = NativeLock()
        self.by_key = {}
        self.kept = []

    cdef KeyWatchers on(self, object key):
        """Return the list of ``key``, or None."""
        cdef PyObject* found = PyDict_GetItemWithError(self.by_key, key)
        return None if found is NULL else <KeyWatchers> found

    cdef int watch(self, NativeWatched operation) except -1:
        """Put ``operation`` on the list of each of its keys, unless it is completed. O(keys).

        The caller sees to it that it lives until it is taken off.
        """
        cdef tuple keys = operation._op_keys  # none, if a purgatory that closed has abandoned it
        cdef Py_ssize_t count = len(keys), index
        cdef Watch* watches = operation.watches.few
        cdef Threshold* thresholds = NULL
        cdef bint entered = False, is_linked = False
        if operation.watch_count:
            raise RuntimeError(f"{operation!r} is on its lists")
        if operation._op_thresholds:
            thresholds = numbers_of(operation, keys)
        if count > FEW:
            watches = <Watch*> calloc(count, sizeof(Watch))
            if watches is NULL:
                free(thresholds)
                raise MemoryError
        for index in range(count):
            watches[index].watchers = NULL
        try:
            entered = enter(self.lock)
            is_linked = self.link(operation, keys, watches, thresholds)
        finally:
            try:
                if not is_linked:
                    free(thresholds)
                    self.release_lists(watches, count)
            finally:
                if not is_linked and count > FEW:
                    free(watches)
                leave(self.lock, entered)
        return 0

    cdef bint link(
        self, NativeWatched operation, tuple keys, Watch* watches, Threshold* thresholds
    ) except -1:
        """Find the lists, then put the operation on all of them; False: it is completed."""
        cdef Py_ssize_t count = len(keys), index
        cdef KeyWatchers watchers
        self.find_lists(keys, watches)
        while not are_kept(watches, count):
            self.find_lists(keys, watches)
        # From here on nothing calls Python. The state owns no reference for the lists to an operation that
        # is no longer pending there: it was completed, abandoned, or dropped in the child of a fork. One
        # that has its outcome and is pending yet will be taken off by its completer.
        if not count or operation.membership != IS_PENDING:
            return False
        if thresholds is not NULL:
            for index in range(count):
                make_room(&(<KeyWatchers> watches[index].watchers).numbers)
        for index in range(count):
            watchers = <KeyWatchers> watches[index].watchers
            watches[index].operation = <PyObject*> operation
            append(&watchers.root, &watches[index].link)
            self.key_count += watchers.count == 0
            watchers.count += 1
            if thresholds is not NULL and thresholds[index].operation is not NULL:
                self.order += 1
                thresholds[index].ranked.order = self.order
                push(&watchers.numbers, &thresholds[index].ranked)
        if count > FEW:
            operation.watches.many = watches
        operation.thresholds = thresholds
        operation.watch_count = count
        self.entries += count
        return True

    cdef int find_lists(self, tuple keys, Watch* watches) except -1:
        """Find the lists that are missing yet, or make them."""
        cdef Py_ssize_t index
        cdef PyObject* found
        cdef KeyWatchers watchers
        for index in range(len(keys)):
            if watches[index].watchers is not NULL:
                continue
            key = keys[index]
            found = PyDict_GetItemWithError(self.by_key, key)
            if found is not NULL:
                watchers = <KeyWatchers> found
            else:
                watchers = KeyWatchers.__new__(KeyWatchers)
                watchers.key = key
                watchers = self.by_key.setdefault(key, watchers)
            watchers.is_dropped = False  # it is in the map, whatever its key's comparison has done
            Py_INCREF(watchers)
            watches[index].watchers = <PyObject*> watchers
        return 0

    def unwatch(self, NativeWatched operation not None, keys=None):
        """Take ``operation`` off the lists, under the lock, and drop the empty ones. O(keys).

        Returns:
            The error of a key that could not be compared, if one could not.
        """
        return self.remove_from_lists(operation)

    cdef object remove_from_lists(self, NativeWatched operation):
        cdef Py_ssize_t count = operation.watch_count, index
        cdef Watch* watches = watches_of(operation)
        cdef Threshold* thresholds = operation.thresholds
        cdef KeyWatchers watchers
        cdef Watch few[FEW]
        if not count:
            return None
        for index in range(count):
            watchers = <KeyWatchers> watches[index].watchers
            unlink(&watches[index].link)
            watchers.count -= 1
            self.key_count -= watchers.count == 0
            if thresholds is not NULL and thresholds[index].operation is not NULL:
                remove(&watchers.numbers, &thresholds[index].ranked)
        operation.watch_count = 0
        operation.thresholds = NULL
        self.entries -= count
        free(thresholds)
        if count <= FEW:  # it lies in the operation, which may be in use again, or gone, before the lists are
            memcpy(few, watches, sizeof(few))
            return self.release_lists(few, count)
        try:
            return self.release_lists(watches, count)
        finally:
            free(watches)

    cdef object release_lists(self, Watch* watches, Py_ssize_t count):
        """Let go of the lists of one that is on none of them, and drop those that are empty.

        Returns:
            The error of a key that could not be compared, if one could not.
        """
        cdef Py_ssize_t index
        cdef KeyWatchers watchers
        key_error = None
        try:
            for index in range(count):
                if watches[index].watchers is NULL:
                    continue
                watchers = <KeyWatchers> watches[index].watchers
                if watchers.count == 0 and not watchers.is_kept:
                    try:
                        self.drop_if_empty(watchers)
                    except Exception as error:
                        key_error = error
        finally:
            for index in range(count):
                if watches[index].watchers is not NULL:
                    Py_DECREF(<KeyWatchers> watches[index].watchers)
        return key_error

    cdef int drop_if_empty(self, KeyWatchers watchers) except -1:
        """Take a list out of the map, or the one that was kept for longest in its place; not if
        an operation came meanwhile, by a key or a finalizer."""
        if watchers.is_dropped or watchers.is_kept:
            return 0
        if type(watchers.key) is str:
            self.kept.append(watchers)
            watchers.is_kept = True
            if len(self.kept) <= MOST_KEPT:
                return 0
            watchers = self.kept.pop(0)
            watchers.is_kept = False
            if watchers.count:
                return 0
        popped = self.by_key.pop(watchers.key, None)
        if popped is None or (popped is watchers and watchers.count == 0):
            watchers.is_dropped = watchers.count == 0
        else:
            self.restore(popped)
        return 0

    cdef int restore(self, KeyWatchers watchers) except -1:
        """Put a list back into the map, or its operations on the list that has its place now."""
        cdef KeyWatchers there = self.by_key.setdefault(watchers.key, watchers)
        if there is watchers:
            # To compare its key may have called what emptied it, and found it in no map.
            watchers.is_dropped = False
            if watchers.count == 0:
                self.drop_if_empty(watchers)
        else:
            operations = []
            watchers.collect(operations)
            for operation in operations:
                self.remove_from_lists(operation)
                self.watch(operation)
            if watchers.count == 0:
                watchers.is_dropped = True
        return 0

    # Reading, and repairing: under the lock.

    def keys(self):
        """Return the keys with a watcher, under the lock."""
        cdef KeyWatchers watchers
        found = []
        for watchers in list(self.by_key.values()):
            if watchers.root.next is not &watchers.root:
                found.append(watchers.key)
        return found

    def keys_with_numbers(self):
        """Return the keys with an operation that waits for a number, under the lock."""
        cdef KeyWatchers watchers
        return [watchers.key for watchers in list(self.by_key.values()) if watchers.numbers.size]

    def operations_on(self, key):
        """Return the operations on ``key``, under the lock, each once, in arrival order. O(watchers)."""
        cdef KeyWatchers watchers = self.on(key)
        operations = []
        if watchers is not None:
            watchers.collect(operations)
        return operations

    def count_on(self, key, Py_ssize_t limit):
        """Return the number of operations on ``key``, at most ``limit``, under the lock. O(limit)."""
        cdef KeyWatchers watchers = self.on(key)
        cdef Py_ssize_t count = 0
        cdef Link* link
        if watchers is not None:
            link = watchers.root.next
            while link is not &watchers.root and count < limit:
                count += 1
                link = link.next
        return count

    def rearm(self, key):
        """Have operations on ``key`` whose number was reached wait for it again, under the lock.

        O(watchers * log numbers).
        """
        cdef KeyWatchers watchers = self.on(key)
        if watchers is not None:
            self.rearm_all(watchers)

    cdef int rearm_all(self, KeyWatchers watchers) except -1:
        operations = []
        watchers.collect(operations)
        for operation in operations:
            self.order += 1
            rearm_one(operation, watchers, self.order)
        return 0

    def repair(self):
        """Take abandoned operations off, drop the empty lists whose keys could not be compared; and, as
        in pure Python, have all wait again for numbers that were reached. O(entries * log numbers)."""
        cdef KeyWatchers watchers
        cdef NativeWatched operation
        for watchers in list(self.by_key.values()):
            operations = []
            watchers.collect(operations)
            for operation in operations:
                if not operation._op_keys:
                    self.remove_from_lists(operation)
            if watchers.count == 0:
                with suppress(Exception):
                    self.drop_if_empty(watchers)
        for watchers in list(self.by_key.values()):
            self.rearm_all(watchers)

    def check(self, operations):
        cdef KeyWatchers watchers
        cdef Threshold* threshold
        cdef Threshold* above
        cdef Py_ssize_t place
        for key, watchers in list(self.by_key.items()):
            assert watchers.key is key and not watchers.is_dropped
            assert watchers.is_kept == (watchers in self.kept)
            place = 0
            while place < watchers.numbers.size:
                threshold = <Threshold*> watchers.numbers.ranked[place]
                assert threshold.ranked.place == place
                above = <Threshold*> watchers.numbers.ranked[max(0, place - 1) // 2]
                assert above.ranked.number <= threshold.ranked.number
                number = threshold.ranked.number
                operation = <object> threshold.operation
                assert operation._op_thresholds[key] == number
                place += 1
        assert len(self.kept) <= MOST_KEPT
        waiting = {
            key: self.operations_on(key)
            for key, watchers in list(self.by_key.items())
            if watchers.count or not watchers.is_kept
        }
        assert len(waiting) == self.key_count
        expected = [(key, operation) for operation in operations for key in operation._op_keys]
        check_lists(waiting, expected, self.entries)


cdef Threshold* numbers_of(NativeWatched operation, tuple keys) except NULL:
    """Return the numbers that ``operation`` waits for, beside its keys."""
    cdef Py_ssize_t index
    cdef Threshold* thresholds = <Threshold*> calloc(len(keys), sizeof(Threshold))
    if thresholds is NULL:
        raise MemoryError
    try:
        for index in range(len(keys)):
            number = operation._op_thresholds.get(keys[index])
            if number is not None:
                thresholds[index].ranked.number = within_64_bits(number)
                thresholds[index].ranked.place = NOWHERE
                thresholds[index].operation = <PyObject*> operation
    except BaseException:
        free(thresholds)
        raise
    return thresholds


cdef bint are_kept(Watch* watches, Py_ssize_t count) except -1:
    """Whether all these lists are in the map; those that are not are released."""
    cdef Py_ssize_t index
    cdef KeyWatchers watchers
    cdef bint kept = True
    for index in range(count):
        watchers = <KeyWatchers> watches[index].watchers
        if watchers.is_dropped:
            kept = False
            watches[index].watchers = NULL
            Py_DECREF(watchers)
    return kept


# The garbage collector has to know of the lists, which no field of the operation names.

cdef traverseproc _traverse_fields


cdef int _traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef NativeWatched operation = <NativeWatched> self
    cdef Py_ssize_t index
    cdef int told = _traverse_fields(self, visit, arg)
    for index in range(operation.watch_count):
        told = told or visit(watches_of(operation)[index].watchers, arg)
    return told


cdef PyTypeObject* _type = <PyTypeObject*> NativeWatched
_traverse_fields = _type.tp_traverse
_type.tp_traverse = _traverse
