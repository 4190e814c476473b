# cython: language_level=3
"""The context of a thread, as `purgatory.core.trampoline` explains it.

Ground rules
------------
* All state is the thread's own, or its greenlet's: nothing is shared, nothing is locked.
* The look-up may call Python, where there are greenlets: it comes first, before a look at anything
  that must not change until it is claimed.
"""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport UINT64_MAX, uint64_t

import sys
import threading
from collections import deque
from types import BuiltinFunctionType

cdef extern from "Python.h":
    ctypedef struct PyThreadState
    PyThreadState* PyThreadState_Get() noexcept
    uint64_t PyThreadState_GetID(PyThreadState*) noexcept  # of no other thread before or after it
    PyObject* PyThreadState_GetDict()


cdef class NativeTrampoline:
    """The base of `purgatory.core.trampoline.Trampoline`, in place of `_PureTrampoline`."""

    def __init__(self):
        self.deferred = deque()


cdef str _KEY = "_purgatory_trampoline"
cdef str _GREENLET = "greenlet"
cdef str _GET_IDENT = "get_ident"
cdef dict _threading = vars(threading)
cdef dict _modules = sys.modules
cdef object _builtin = BuiltinFunctionType
cdef object _new_trampoline = None
cdef uint64_t _last_thread = UINT64_MAX  # the one that asked last for its trampoline; and that
cdef NativeTrampoline _last_trampoline = None


cdef class NativeThisThread:
    """The calling thread, as in `purgatory.core.trampoline`, but known natively.

    Args:
        new_trampoline: makes the trampoline of a thread, or greenlet, that has none yet.
    """

    def __init__(self, new_trampoline):
        global _new_trampoline
        _new_trampoline = new_trampoline

    @property
    def number(self):
        """The result of ``threading.get_ident``."""
        return this_number()

    @property
    def trampoline(self):
        """The trampoline of this thread."""
        return this_trampoline()

    @trampoline.setter
    def trampoline(self, NativeTrampoline trampoline not None):
        greenlet = this_greenlet()
        if greenlet is None:
            of_thread()[_KEY] = trampoline
            keep_last(trampoline)
        else:
            setattr(greenlet, _KEY, trampoline)


cdef size_t this_number() except 0:
    """Return the result of ``threading.get_ident``: gevent makes it the number of a greenlet."""
    cdef PyObject* found = PyDict_GetItemWithError(_threading, _GET_IDENT)
    if found is NULL or type(<object> found) is _builtin:  # Python's own
        return system_thread()
    get_ident = <object> found
    return <size_t> get_ident()


cdef object this_greenlet():
    """Return the current greenlet, or None for a thread's own: that is the thread."""
    cdef PyObject* found = PyDict_GetItemWithError(_modules, _GREENLET)
    if found is NULL:
        return None
    module = <object> found
    get_current = getattr(module, "getcurrent", None)  # it may be in the middle of its import
    current = None if get_current is None else get_current()
    return None if current is None or current.parent is None else current


cdef dict of_thread():
    cdef PyObject* found = PyThreadState_GetDict()
    if found is NULL:
        raise RuntimeError("a thread without a state can't run callbacks")
    return <dict> found


cdef NativeTrampoline this_trampoline():
    """Return the trampoline of this thread, or greenlet."""
    cdef dict kept
    cdef PyObject* found
    greenlet = this_greenlet()
    if greenlet is not None:
        trampoline = getattr(greenlet, _KEY, None)
        if trampoline is None:
            trampoline = _new_trampoline()
            setattr(greenlet, _KEY, trampoline)
        return trampoline
    if _last_thread == PyThreadState_GetID(PyThreadState_Get()):
        return _last_trampoline
    kept = of_thread()
    found = PyDict_GetItemWithError(kept, _KEY)
    if found is NULL:
        trampoline = kept.setdefault(_KEY, _new_trampoline())
    else:
        trampoline = <object> found
    keep_last(trampoline)
    return trampoline


cdef int keep_last(NativeTrampoline trampoline) except -1:
    """Note the trampoline of this thread: the one that goes for it, goes last."""
    global _last_thread, _last_trampoline
    before = _last_trampoline
    _last_trampoline = trampoline
    _last_thread = PyThreadState_GetID(PyThreadState_Get())
    return 0
