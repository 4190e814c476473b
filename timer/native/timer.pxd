from timer.native.task cimport NativeTask


cdef int add_task(object timer, NativeTask task) except -1
