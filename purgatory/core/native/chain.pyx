# cython: language_level=3
"""What a thread is in the middle of, as `purgatory.core.callback_chain` explains it.

Ground rules
------------
* All state is the thread's own, or its greenlet's: nothing is shared, nothing is locked.
* What asks for it may call Python, where there are greenlets: so it is asked first, before anything
  is looked at that must not change until it is claimed.
"""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject

import sys
import threading
from collections import deque
from types import BuiltinFunctionType

cdef extern from "Python.h":
    PyObject* PyThreadState_GetDict()


cdef class NativeChain:
    """What `purgatory.core.callback_chain.CallbackChain` is made of, in place of `PureChain`."""

    def __init__(self):
        self.left = deque()


cdef str _KEY = "_purgatory_chain"
cdef str _GREENLET = "greenlet"
cdef str _GET_IDENT = "get_ident"
cdef dict _threading = vars(threading)
cdef dict _modules = sys.modules
cdef object _builtin = BuiltinFunctionType
cdef object _new_chain = None


cdef class NativeThisThread:
    """What stands for the thread that asks, as in `purgatory.core.callback_chain`, but known natively.

    Args:
        new_chain: makes the chain of a thread, or greenlet, that has none yet.
    """

    def __init__(self, new_chain):
        global _new_chain
        _new_chain = new_chain

    @property
    def number(self):
        """What ``threading.get_ident`` says."""
        return this_number()

    @property
    def chain(self):
        """The chain that this thread is in."""
        return this_chain()

    @chain.setter
    def chain(self, NativeChain chain not None):
        greenlet = this_greenlet()
        if greenlet is None:
            of_thread()[_KEY] = chain
        else:
            setattr(greenlet, _KEY, chain)


cdef size_t this_number() except 0:
    """Return what ``threading.get_ident`` says: gevent makes it the number of a greenlet."""
    cdef PyObject* found = PyDict_GetItemWithError(_threading, _GET_IDENT)
    if found is NULL or type(<object> found) is _builtin:  # Python's own
        return system_thread()
    get_ident = <object> found
    return <size_t> get_ident()


cdef object this_greenlet():
    """Return the greenlet that this is, or None for a thread's own: that is the thread."""
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


cdef NativeChain this_chain():
    """Return the chain of this thread, or greenlet."""
    cdef dict kept
    cdef PyObject* found
    greenlet = this_greenlet()
    if greenlet is not None:
        chain = getattr(greenlet, _KEY, None)
        if chain is None:
            chain = _new_chain()
            setattr(greenlet, _KEY, chain)
        return chain
    kept = of_thread()
    found = PyDict_GetItemWithError(kept, _KEY)
    if found is NULL:
        return kept.setdefault(_KEY, _new_chain())
    return <NativeChain> found
