from purgatory.core.native.state cimport NativeState


cdef bint submit(object submitted, NativeState state, tuple keys, dict thresholds) except -1
cdef int check_each(list operations) except -1
