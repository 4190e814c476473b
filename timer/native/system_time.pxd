"""The system's monotonic clock, which `time.monotonic_ns` reads, without a call of Python."""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    static int64_t system_time_ns(void) {
        PyTime_t now = 0;
        PyTime_MonotonicRaw(&now);
        return now;
    }
    #else
    #define system_time_ns() ((int64_t) _PyTime_GetMonotonicClock())
    #endif
    """
    int64_t system_time_ns() nogil
