# cython: language_level=3
"""What a thread is in the middle of, as `purgatory.core.callback_chain` explains it.

Ground rules
------------
* All state is the thread's own: nothing is shared, nothing is locked.
"""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject

from collections import deque

cdef extern from "Python.h":
    PyObject* PyThreadState_GetDict()


cdef class NativeChain:
    """What `purgatory.core.callback_chain.CallbackChain` is made of, in place of `PureChain`."""

    def __init__(self):
        self.left = deque()


cdef object _KEY = "purgatory.core.chain"
cdef object _new_chain = None


cdef class NativeThisThread:
    """What stands for the thread that asks; as a ``threading.local``, but known natively.

    Args:
        new_chain: makes the chain of a thread that has none yet.
    """

    def __init__(self, new_chain):
        global _new_chain
        _new_chain = new_chain

    @property
    def chain(self):
        """The chain that this thread is in."""
        return this_chain()

    @chain.setter
    def chain(self, NativeChain chain not None):
        (<object> PyThreadState_GetDict())[_KEY] = chain


cdef NativeChain this_chain():
    """Return the chain of this thread."""
    cdef PyObject* of_thread = PyThreadState_GetDict()
    cdef PyObject* found
    if of_thread is NULL:
        raise RuntimeError("a thread without a state can't run callbacks")
    found = PyDict_GetItemWithError(<object> of_thread, _KEY)
    if found is NULL:
        return (<dict> of_thread).setdefault(_KEY, _new_chain())
    return <NativeChain> found
