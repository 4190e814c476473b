from purgatory.core.native.books cimport NativeBooks


cdef bint submit(object submitted, NativeBooks books, tuple keys, dict thresholds) except -1
cdef int check_each(list operations) except -1
