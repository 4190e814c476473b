"""Doubly linked lists of objects with links of their own: no allocation, and any may leave.

A list is a root that is linked to itself while it is empty.
"""

cdef struct Link:
    Link* previous
    Link* next


cdef inline void start_empty(Link* root) noexcept nogil:
    root.previous = root
    root.next = root


cdef inline bint is_empty(Link* root) noexcept nogil:
    return root.next is root


cdef inline void append(Link* root, Link* link) noexcept nogil:
    cdef Link* last = root.previous
    link.previous = last
    link.next = root
    last.next = link
    root.previous = link


cdef inline void unlink(Link* link) noexcept nogil:
    link.previous.next = link.next
    link.next.previous = link.previous


cdef inline void move_all(Link* source, Link* target) noexcept nogil:
    """Put all of `source` behind what `target` has. O(1)."""
    if is_empty(source):
        return
    source.next.previous = target.previous
    target.previous.next = source.next
    source.previous.next = target
    target.previous = source.previous
    start_empty(source)
