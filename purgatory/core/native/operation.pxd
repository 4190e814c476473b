from purgatory.core.native.state cimport NativeState
from purgatory.core.native.watchers cimport NativeWatched


cdef bint submit(object submitted, NativeState state, tuple keys, dict thresholds) except -1
cdef int check_each(list operations) except -1
cdef int check_alone(NativeWatched operation) except -1
