"""A binary heap of what has its place in it as its own first field, so that any may leave it."""

from libc.stdint cimport int64_t
from libc.stdlib cimport realloc

cdef enum:
    NOWHERE = -1  # the place of what is in no heap


cdef struct Ranked:
    int64_t number
    int64_t order  # of those with the same number
    Py_ssize_t place


cdef struct Heap:
    Ranked** ranked
    Py_ssize_t size
    Py_ssize_t room


cdef inline bint comes_before(Ranked* one, Ranked* other) noexcept nogil:
    return one.number < other.number or (one.number == other.number and one.order < other.order)


cdef inline int make_room(Heap* heap) except -1:
    """Make room for one more."""
    cdef Py_ssize_t room = 2 * heap.room + 4
    cdef Ranked** larger
    if heap.size < heap.room:
        return 0
    larger = <Ranked**> realloc(heap.ranked, room * sizeof(Ranked*))
    if larger is NULL:
        raise MemoryError
    heap.ranked = larger
    heap.room = room
    return 0


cdef inline void stand_at(Heap* heap, Ranked* one, Py_ssize_t place) noexcept nogil:
    heap.ranked[place] = one
    one.place = place


cdef inline void sift(Heap* heap, Py_ssize_t place) noexcept nogil:
    """Move what stands at `place` up or down to where it belongs."""
    cdef Ranked* moved = heap.ranked[place]
    cdef Py_ssize_t other = (place - 1) // 2
    while place and comes_before(moved, heap.ranked[other]):
        stand_at(heap, heap.ranked[other], place)
        place, other = other, (other - 1) // 2
    other = 2 * place + 1
    while other < heap.size:
        if other + 1 < heap.size and comes_before(heap.ranked[other + 1], heap.ranked[other]):
            other += 1
        if comes_before(moved, heap.ranked[other]):
            break
        stand_at(heap, heap.ranked[other], place)
        place, other = other, 2 * other + 1
    stand_at(heap, moved, place)


cdef inline void push(Heap* heap, Ranked* one) noexcept nogil:
    """Put one in; there is room. O(log n)."""
    heap.ranked[heap.size] = one
    heap.size += 1
    sift(heap, heap.size - 1)


cdef inline void remove(Heap* heap, Ranked* one) noexcept nogil:
    """Take one out, if it is there. O(log n)."""
    cdef Py_ssize_t place = one.place
    if place == NOWHERE:
        return
    one.place = NOWHERE
    heap.size -= 1
    if place < heap.size:
        heap.ranked[place] = heap.ranked[heap.size]
        sift(heap, place)
