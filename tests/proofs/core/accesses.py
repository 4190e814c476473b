"""Accesses of a thread to shared data, as numbers.

The number encodes the *place* accessed (a flag's name, a lock, all dicts of the timer), whether it
is written, and whether the access is a *point*, before which another thread may be scheduled.
Places are names, not objects, but for the first few operations: more conflicts are found than
exist, never fewer.

Two *steps*, each one or more accesses, conflict if both touch one place, and one writes to it.
Steps of two threads that don't conflict can be exchanged without any effect.
"""

from __future__ import annotations

from collections.abc import Iterable

_PLACES: dict[str, int] = {}

OPERATION = 4
MOST_OPERATIONS = 4
"""The number of operations told apart: two made before the threads begin, two by them."""

_WRITES = 2
_NO_POINT = 1
_HALF = 150
"""In a mask the places that are touched stand below this bit, those that are written above it."""

_LOW = (1 << _HALF) - 1


def access(place: str, writes: bool) -> int:
    """Return the number of an access that is a point; one more is the same and no point."""
    return 4 * _PLACES.setdefault(place, len(_PLACES)) + writes * _WRITES


def access_of_operation(flag: str, writes: bool) -> int:
    """Return the number of an access to a flag of operation 0; ``OPERATION`` more is the same of
    the next."""
    first, *_ = [access(f"{flag} of operation {n}", writes) for n in range(MOST_OPERATIONS)]
    return first


def is_point(access: int) -> bool:
    """Whether another thread may run before it."""
    return not access & _NO_POINT


def place_of(access: int) -> int:
    """Return the number of the place."""
    return access // 4


GIVEN_AWAY = access("the baton", writes=False) + _NO_POINT
"""Notes that a thread waits, sleeps or has ended."""

USERS_POINT = access("what the program's own code shares", writes=True)


def mask(access: int) -> int:
    """Return the mask of a step that is this access."""
    place = 1 << place_of(access)
    return place | place << _HALF if access & _WRITES else place


def mask_of(accesses: Iterable[int]) -> int:
    """Return the mask of a step."""
    together = 0
    for one in accesses:
        together |= mask(one)
    return together


def conflict(one: int, other: int) -> bool:
    """Whether the steps of these masks conflict."""
    return bool(one & (other >> _HALF) or (one >> _HALF) & other & _LOW)
