"""The operations that wait until the value of one key has reached a number.

With ten thousand requests parked on one partition, it costs too much to look at all of them at each
event. Here they stand by the number they wait for: an event finds those it concerns, and no others.

Ground rules
------------
* Everything here changes in a turn of the ``WatcherList`` that holds it; a finalizer may do so
  wherever something is allocated or called, as is said there.
* ``by_number`` holds those whose number was not reached. Each number there stands in ``numbers``, a
  heap. That may hold others too, of operations that are gone, and a number twice; they are swept
  out when they are more than half.
* An operation whose number was reached is not held here any more, and passed over by the next
  event. If it did not complete by it (it waits on another key too), a check of the key finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_NOBODY: tuple[dict[int, Any]] = ({},)
_values = dict.values

_FEW = 32
"""So many stale numbers are not worth a sweep."""


class ThresholdWatchers(Generic[T]):
    """Who waits on one key, by the number that its value shall reach. Never left empty."""

    __slots__ = ("by_number", "numbers")

    def __init__(self) -> None:
        self.by_number: dict[int, dict[int, T]] = {}
        self.numbers: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.by_number)

    def add(self, operation: T, number: int) -> None:
        """Let ``operation`` wait for ``number``. O(log numbers), and O(1) for the highest yet."""
        by_number = self.by_number
        identity = id(operation)
        made = {identity: operation}
        waiting = by_number.setdefault(number, made)
        while waiting is not made:
            waiting[identity] = operation
            if by_number.get(number) is waiting:
                return
            waiting = by_number.setdefault(number, made)  # it was emptied, and thrown away
        heappush(self.numbers, number)

    def remove(self, operation: T, number: int) -> bool:
        """Take ``operation`` off, and say whether it was there. O(1), amortized."""
        by_number = self.by_number
        waiting = by_number.get(number)
        if waiting is None or waiting.pop(id(operation), None) is None:
            return False
        if not waiting and number in by_number and by_number[number] is waiting:
            del by_number[number]
            self._sweep_if_stale()
        return True

    def take_reached(self, value: int, taken: list[T]) -> None:
        """Take off those whose number is ``value`` or less, by number: add them to ``taken``.

        O(log numbers) for each number that is reached, amortized; O(1) for none.
        """
        numbers = self.numbers
        before = len(taken)
        while (first := numbers[:1]) and first[0] <= value:
            # Taken off and put down in one step of the interpreter: no interrupt can lose them.
            popped = map(self.by_number.pop, first, _NOBODY)
            taken += chain.from_iterable(map(_values, popped))
            self._drop_first(first[0])
        if len(taken) > before:
            self._sweep_if_stale()

    def _drop_first(self, number: int) -> None:
        """Take ``number`` off the heap, unless a finalizer took it off or put it back since."""
        try:
            first = heappop(self.numbers)
        except IndexError:
            return
        if first != number or first in self.by_number:
            heappush(self.numbers, first)

    def pairs(self) -> Iterator[tuple[T, int]]:
        """Yield all who wait, with their numbers. O(n)."""
        for number, waiting in self.by_number.copy().items():
            for operation in list(waiting.values()):
                yield operation, number

    def mend(self) -> None:
        """Put right what an interrupt left wrong: a number of nobody, one that the heap has lost.
        O(n)."""
        for number, waiting in list(self.by_number.items()):
            if not waiting:
                del self.by_number[number]
        self._sweep()

    def _sweep_if_stale(self) -> None:
        if len(self.numbers) > 2 * len(self.by_number) + _FEW:
            self._sweep()

    def _sweep(self) -> None:
        self.numbers[:] = self.by_number
        heapify(self.numbers)

    def check(self) -> None:
        """Assert all invariants. O(n log n)."""
        heap = self.numbers
        assert all(heap[(n - 1) // 2] <= heap[n] for n in range(1, len(heap))), "a heap"
        assert set(self.by_number) <= set(heap)
        assert len(heap) <= 2 * len(self.by_number) + _FEW, "stale numbers are swept"
        assert all(self.by_number.values()), "an empty number is dropped"
