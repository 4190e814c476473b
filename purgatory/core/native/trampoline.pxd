cdef class NativeTrampoline:
    cdef public Py_ssize_t depth
    cdef public bint is_resuming
    cdef public object held
    cdef public object deferred


cdef extern from "Python.h":
    size_t system_thread "PyThread_get_thread_ident" () noexcept  # never 0


cdef size_t this_number() except 0
cdef NativeTrampoline this_trampoline()
