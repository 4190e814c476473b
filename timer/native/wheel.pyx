# cython: language_level=3, cdivision=True
"""The layered timing wheel, and the queue of its buckets, as `timer.timing_wheel` explains them.

Ground rules: as in `task`. Nothing here knows tasks, or calls Python; only what allocates memory
can fail, and does so before it changes anything.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc, free

from timer.native.heap cimport NOWHERE, make_room, push
from timer.native.links cimport Link, append, start_empty

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
        free(self.queue.ranked)

    cdef Bucket* bucket_at(self, Py_ssize_t number) noexcept:
        """Return a bucket by its number, counted over all levels from the finest on."""
        return &self.levels[number // self.wheel_size].buckets[number % self.wheel_size]

    cdef Placed place(self, Link* link, int64_t expiration_ms, bint cascades) except FAILED:
        """Put what expires then into its bucket, behind what is there. O(m), m = levels."""
        cdef Level* level = self.levels
        cdef Bucket* bucket
        cdef Placed placed = PLACED
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
        # One that is in use is so for this very time: a level covers each of its buckets once.
        if bucket.ranked.place == NOWHERE:
            make_room(&self.queue)
            bucket.ranked.number = begin_ms
            push(&self.queue, &bucket.ranked)
            placed = PLACED if bucket.ranked.place else PLACED_FIRST
        append(&bucket.cascaded if cascades else &bucket.added, link)
        return placed

    cdef Bucket* first_due(self, int64_t now_ms) noexcept:
        """Return the first bucket if it is due, else NULL. O(1)."""
        if self.queue.size and self.queue.ranked[0].number <= now_ms:
            return <Bucket*> self.queue.ranked[0]
        return NULL

    cdef void advance(self, int64_t time_ms) noexcept:
        """Move all levels whose tick is over. O(m)."""
        cdef Py_ssize_t number
        cdef Level* level
        for number in range(self.level_count):
            level = &self.levels[number]
            if time_ms - level.tick_ms < level.current_ms:
                return
            self.move(level, time_ms)

    cdef int add_level(self, int64_t tick_ms, int64_t time_ms) except -1:
        cdef Level* level = &self.levels[self.level_count]
        cdef Bucket* bucket
        cdef Py_ssize_t index
        level.buckets = <Bucket*> calloc(self.wheel_size, sizeof(Bucket))
        if level.buckets is NULL:
            raise MemoryError
        level.tick_ms = tick_ms
        self.move(level, time_ms)
        for index in range(self.wheel_size):
            bucket = &level.buckets[index]
            start_empty(&bucket.cascaded)
            start_empty(&bucket.added)
            bucket.ranked.place = NOWHERE
            bucket.ranked.order = self.level_count * self.wheel_size + index
        self.level_count += 1
        return 0

    cdef void move(self, Level* level, int64_t time_ms) noexcept:
        """Let a level begin at that time, and end after all its buckets, or with the last time."""
        level.current_ms = time_ms - time_ms % level.tick_ms
        level.last_ms = INT64_MAX
        if level.tick_ms <= (INT64_MAX - level.current_ms) // self.wheel_size:
            level.last_ms = level.current_ms + level.tick_ms * self.wheel_size - 1
