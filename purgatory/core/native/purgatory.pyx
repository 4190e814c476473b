# cython: language_level=3
"""The calls of every request and every event, as `purgatory.core.purgatory` explains them.

Ground rules
------------
* As there. The lists are read under the lock, since a key may be compared by Python code; their
  operations are checked after that.
"""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from purgatory.core.native.state cimport NativeState
from purgatory.core.native.operation cimport check_alone, check_each, submit
from purgatory.core.native.watchers cimport FEW, KeyWatchers, NativeWatched, enter, first_on, leave

from purgatory.core.keys import (
    check_hashable,
    checked_keys,
    checked_number,
    checked_thresholds,
)

cdef tuple _NO_KEYS = ()


cdef bint are_plain(object keys) except -1:
    """Whether these are a few strings in a tuple, of different hashes: they need no other look."""
    cdef Py_ssize_t count, number, other
    cdef Py_hash_t hashes[FEW]
    if type(keys) is not tuple:
        return False
    count = len(<tuple> keys)
    if not 0 < count <= FEW:
        return False
    for number in range(count):
        if type((<tuple> keys)[number]) is not str:
            return False
        hashes[number] = hash((<tuple> keys)[number])
        for other in range(number):
            if hashes[number] == hashes[other]:
                return False
    return True


cdef class NativePurgatory:
    """The base of `purgatory.DelayedOperationPurgatory`, in place of `_PurePurgatory`."""

    cdef NativeState state

    @property
    def _state(self):
        return state_of(self)

    @_state.setter
    def _state(self, NativeState state not None):
        self.state = state

    def try_complete_else_watch(self, operation, keys=_NO_KEYS, thresholds=None):
        cdef NativeState state = state_of(self)
        if thresholds is not None:
            thresholds = checked_thresholds(thresholds)
        if type(keys) is list:
            keys = tuple(keys)
        if thresholds is not None or not are_plain(keys):
            keys = checked_keys(keys, thresholds)
        if state.interrupted:
            self._resume_interrupted()
        return submit(operation, state, keys, thresholds)

    def check_and_complete(self, key):
        cdef NativeState state = state_of(self)
        cdef KeyWatchers watchers
        cdef NativeWatched alone = None
        cdef bint entered = False
        cdef list operations = None
        if state.interrupted:
            self._resume_interrupted()
        try:
            entered = enter(state.lock)
            watchers = state.watchers.on(key)
            if watchers is not None and watchers.count == 1:  # no list is made for it
                alone = first_on(watchers)
                state.counters.checks += 1
            elif watchers is not None and watchers.count:
                operations = []
                watchers.collect(operations)
                state.counters.checks += len(operations)
            leave(state.lock, entered)
            entered = False
            if alone is not None:
                return check_alone(alone)
            return check_each(operations) if operations is not None else 0
        except BaseException as error:
            leave(state.lock, entered)
            for operation in (alone,) if alone is not None else operations or ():
                state.interrupted.append((operation,))
            if isinstance(error, TypeError):
                check_hashable(key)
            raise

    def advance(self, key, value):
        cdef NativeState state = state_of(self)
        cdef KeyWatchers watchers
        cdef bint entered = False
        cdef PyObject* found
        cdef list operations = None
        cdef dict values
        cdef int overflow = 1
        cdef int64_t number = 0
        if type(value) is int:
            number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            value = number = checked_number("value", key, value)
        if state.interrupted:
            self._resume_interrupted()
        try:
            entered = enter(state.lock)
            values = state.values
            found = PyDict_GetItemWithError(values, key)
            known = None if found is NULL else <object> found  # owned while they are compared
            if known is None or value > known:
                values[key] = value
            watchers = state.watchers.on(key)
            if watchers is not None and watchers.reaches(number):
                operations = []
                watchers.pop_reached(number, operations)
                state.counters.checks += len(operations)
            leave(state.lock, entered)
            entered = False
            return check_each(operations) if operations is not None else 0
        except BaseException as error:
            leave(state.lock, entered)
            state.interrupted.append((None,))
            for operation in operations or ():
                state.interrupted.append((operation,))
            if isinstance(error, TypeError):
                check_hashable(key)
            raise


cdef inline NativeState state_of(NativePurgatory core):
    """Return its state; an instance has none whose ``__init__`` did not call its base's."""
    if core.state is None:
        raise AttributeError(f"{type(core).__name__!r} object has no attribute '_state'")
    return core.state
