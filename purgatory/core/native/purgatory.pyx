# cython: language_level=3
"""What is called for every request and every event, as `purgatory.core.purgatory_core` explains it.

Ground rules
------------
* As there. What is read from the lists is read in a turn, since a key may be compared by Python
  code; it is checked after that.
"""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject

from purgatory.core.native.books cimport NativeBooks
from purgatory.core.native.operation cimport check_each, submit
from purgatory.core.native.watching cimport FEW, KeyWatchers, enter, leave

from purgatory.core.watch_keys import (
    check_hashable,
    checked_keys,
    checked_number,
    checked_thresholds,
)

cdef tuple _NO_KEYS = ()


cdef bint are_plain(object keys) except -1:
    """Whether these are a few strings in a tuple, of different hashes: they need no other look."""
    cdef Py_ssize_t count, number, other
    if type(keys) is not tuple:
        return False
    count = len(<tuple> keys)
    if not 0 < count <= FEW:
        return False
    for number in range(count):
        if type((<tuple> keys)[number]) is not str:
            return False
        for other in range(number):
            if hash((<tuple> keys)[number]) == hash((<tuple> keys)[other]):
                return False
    return True


cdef class NativePurgatoryCore:
    """What `purgatory.DelayedOperationPurgatory` is made of, in place of `PurePurgatoryCore`."""

    cdef NativeBooks books

    @property
    def _books(self):
        return books_of(self)

    @_books.setter
    def _books(self, NativeBooks books not None):
        self.books = books

    def try_complete_else_watch(self, operation, keys=_NO_KEYS, thresholds=None):
        cdef NativeBooks books = books_of(self)
        if thresholds is not None:
            thresholds = checked_thresholds(thresholds)
        if thresholds is not None or not are_plain(keys):
            keys = checked_keys(keys, thresholds)
        if books.broken_off:
            self._finish_broken_off()
        return submit(operation, books, keys, thresholds)

    def check_and_complete(self, key):
        cdef NativeBooks books = books_of(self)
        cdef KeyWatchers watchers
        cdef bint entered = False
        cdef list operations = None
        if books.broken_off:
            self._finish_broken_off()
        try:
            entered = enter(books.turn)
            watchers = books.watchers.on(key)
            if watchers is not None:
                operations = []
                watchers.collect(operations)
                books.counters.checks += len(operations)
            leave(books.turn, entered)
            entered = False
            return check_each(operations) if operations is not None else 0
        except BaseException as error:
            leave(books.turn, entered)
            for operation in operations or ():
                books.broken_off.append((operation,))
            if isinstance(error, TypeError):
                check_hashable(key)
            raise

    def advance(self, key, value):
        cdef NativeBooks books = books_of(self)
        cdef KeyWatchers watchers
        cdef bint entered = False
        cdef PyObject* found
        cdef list operations = None
        cdef dict values
        if type(value) is not int:
            value = checked_number("value", key, value)
        if books.broken_off:
            self._finish_broken_off()
        try:
            entered = enter(books.turn)
            values = books.values
            found = PyDict_GetItemWithError(values, key)
            known = None if found is NULL else <object> found  # owned while they are compared
            if known is None or value > known:
                values[key] = value
            watchers = books.watchers.on(key)
            if watchers is not None and watchers.reaches(value):
                operations = []
                watchers.take_reached(value, operations)
                books.counters.checks += len(operations)
            leave(books.turn, entered)
            entered = False
            return check_each(operations) if operations is not None else 0
        except BaseException as error:
            leave(books.turn, entered)
            books.broken_off.append((None,))
            for operation in operations or ():
                books.broken_off.append((operation,))
            if isinstance(error, TypeError):
                check_hashable(key)
            raise


cdef inline NativeBooks books_of(NativePurgatoryCore core):
    """Return its books, which one has whose ``__init__`` called ours."""
    if core.books is None:
        raise AttributeError(f"{type(core).__name__!r} object has no attribute '_books'")
    return core.books
