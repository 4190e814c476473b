cdef class NativeChain:
    cdef public Py_ssize_t length
    cdef public bint is_going_on
    cdef public object held
    cdef public object left


cdef unsigned long this_number() noexcept
cdef NativeChain this_chain()
