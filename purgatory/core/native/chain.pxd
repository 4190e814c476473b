cdef class NativeChain:
    cdef public Py_ssize_t length
    cdef public bint is_going_on
    cdef public object held
    cdef public object left


cdef extern from "Python.h":
    size_t system_thread "PyThread_get_thread_ident" () noexcept  # never 0


cdef size_t this_number() except 0
cdef NativeChain this_chain()
