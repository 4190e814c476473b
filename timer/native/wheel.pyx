# cython: language_level=3, cdivision=True
"""The layered timing wheel, and the queue of its buckets, as `timer.timing_wheel` explains them.

Ground rules: as in `task`. Nothing here knows tasks, or calls Python; only what allocates memory
can fail, and does so before it changes anything.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc, free, realloc

from timer.native.links cimport Link, append, is_empty, start_empty

cdef int64_t IDLE_MS = -1
cdef Py_ssize_t MOST_LEVELS = 64  # of the smallest wheel, of two buckets


cdef class NativeWheel:
    """All levels of a wheel.

    Args:
        tick_ms: the width of the finest buckets.
        wheel_size: buckets for each level.
        start_ms: the time at the start.
    """

    def __cinit__(self, int64_t tick_ms, Py_ssize_t wheel_size, int64_t start_ms):
        if tick_ms < 1 or wheel_size < 1 or start_ms < 0:
            raise ValueError("a wheel has at least one bucket of at least 1 ms, from 0 on")
        self.wheel_size = wheel_size
        self.levels = <Level*> calloc(MOST_LEVELS, sizeof(Level))
        if self.levels is NULL:
            raise MemoryError
        self.add_level(tick_ms, start_ms)

    def __dealloc__(self):
        cdef Py_ssize_t number
        for number in range(self.level_count):
            free(self.levels[number].buckets)
        free(self.levels)
        free(self.queue)

    cdef Placed place(self, Link* link, int64_t expiration_ms, bint falls) except FAILED:
        """Put what expires then into its bucket, behind what is there. O(m), m = levels."""
        cdef Level* level = self.levels
        cdef Bucket* bucket
        cdef int64_t begin_ms, slot
        cdef Py_ssize_t number = 0
        if expiration_ms - level.tick_ms < level.current_ms:
            return EXPIRED
        while expiration_ms > level.last_ms:
            number += 1
            if number == self.level_count:
                self.add_level(level.last_ms - level.current_ms + 1, level.current_ms)
            level = &self.levels[number]
        slot = expiration_ms // level.tick_ms
        begin_ms = slot * level.tick_ms
        bucket = &level.buckets[slot % self.wheel_size]
        if bucket.expiration_ms == begin_ms:
            append(&bucket.fallen if falls else &bucket.added, link)
            return PLACED
        self.offer(bucket, begin_ms)
        append(&bucket.fallen if falls else &bucket.added, link)
        return PLACED_FIRST if self.queue[0] is bucket else PLACED

    cdef Bucket* first_due(self, int64_t now_ms) noexcept:
        """Return the first bucket if it is due, else NULL. O(1)."""
        if self.queued and self.queue[0].expiration_ms <= now_ms:
            return self.queue[0]
        return NULL

    cdef void advance(self, int64_t time_ms) noexcept:
        """Move all levels whose tick is over. O(m)."""
        cdef Py_ssize_t number
        cdef Level* level
        for number in range(self.level_count):
            level = &self.levels[number]
            if time_ms - level.tick_ms < level.current_ms:
                return
            level.current_ms = time_ms - time_ms % level.tick_ms
            level.last_ms = _last_ms(level, self.wheel_size)

    cdef int add_level(self, int64_t tick_ms, int64_t time_ms) except -1:
        cdef Level* level = &self.levels[self.level_count]
        cdef Py_ssize_t index
        level.buckets = <Bucket*> calloc(self.wheel_size, sizeof(Bucket))
        if level.buckets is NULL:
            raise MemoryError
        level.tick_ms = tick_ms
        level.current_ms = time_ms - time_ms % tick_ms
        level.last_ms = _last_ms(level, self.wheel_size)
        self.level_count += 1
        for index in range(self.wheel_size):
            start_empty(&level.buckets[index].fallen)
            start_empty(&level.buckets[index].added)
            level.buckets[index].expiration_ms = IDLE_MS
            level.buckets[index].level = self.level_count
            level.buckets[index].index = index
        return 0

    # The queue: a binary heap.

    cdef int offer(self, Bucket* bucket, int64_t expiration_ms) except -1:
        """Put in a bucket that comes into use. O(log buckets)."""
        cdef Py_ssize_t place = self.queued, above, room
        cdef Bucket** queue
        if place == self.queue_room:
            room = 2 * place + 16
            queue = <Bucket**> realloc(self.queue, room * sizeof(Bucket*))
            if queue is NULL:
                raise MemoryError
            self.queue = queue
            self.queue_room = room
        bucket.expiration_ms = expiration_ms
        while place:
            above = (place - 1) // 2
            if not _is_before(bucket, self.queue[above]):
                break
            self.queue[place] = self.queue[above]
            place = above
        self.queue[place] = bucket
        self.queued += 1
        return 0

    cdef void take_first(self) noexcept:
        """Take the first bucket, which is empty by now, out of the queue. O(log buckets)."""
        cdef Bucket** queue = self.queue
        cdef Bucket* last
        cdef Py_ssize_t place = 0, below
        queue[0].expiration_ms = IDLE_MS
        self.queued -= 1
        last = queue[self.queued]
        while True:
            below = 2 * place + 1
            if below >= self.queued:
                break
            if below + 1 < self.queued and _is_before(queue[below + 1], queue[below]):
                below += 1
            if _is_before(last, queue[below]):
                break
            queue[place] = queue[below]
            place = below
        queue[place] = last

    def _check(self):
        """Assert every invariant of all levels. O(buckets)."""
        cdef Py_ssize_t number, index
        cdef Level* level
        cdef Level* above
        cdef Bucket* bucket
        in_queue = {<size_t> self.queue[number] for number in range(self.queued)}
        assert len(in_queue) == self.queued, "a bucket is in the queue once"
        for number in range(1, self.queued):
            assert not _is_before(self.queue[number], self.queue[(number - 1) // 2])
        for number in range(self.level_count):
            level = &self.levels[number]
            assert level.current_ms % level.tick_ms == 0
            assert level.last_ms == _last_ms(level, self.wheel_size)
            if number + 1 < self.level_count:
                above = &self.levels[number + 1]
                assert above.tick_ms == level.tick_ms * self.wheel_size
                assert above.current_ms == level.current_ms - level.current_ms % above.tick_ms
            for index in range(self.wheel_size):
                bucket = &level.buckets[index]
                assert (<size_t> bucket in in_queue) == (bucket.expiration_ms != IDLE_MS)
                if bucket.expiration_ms == IDLE_MS:
                    assert is_empty(&bucket.fallen) and is_empty(&bucket.added)
                    continue
                assert bucket.expiration_ms // level.tick_ms % self.wheel_size == index
                assert level.current_ms <= bucket.expiration_ms <= level.last_ms


cdef inline bint _is_before(Bucket* one, Bucket* other) noexcept nogil:
    if one.expiration_ms != other.expiration_ms:
        return one.expiration_ms < other.expiration_ms
    if one.level != other.level:
        return one.level < other.level
    return one.index < other.index


cdef inline int64_t _last_ms(Level* level, Py_ssize_t wheel_size) noexcept nogil:
    """The end of what a level covers, or the last time there is."""
    if level.tick_ms > (INT64_MAX - level.current_ms) // wheel_size:
        return INT64_MAX
    return level.current_ms + level.tick_ms * wheel_size - 1
