"""The operations that wait until the value of one key has reached a number.

Scanning all who wait at each event is what makes ten thousand parked requests on one partition
dear. Here they stand by the number they wait for: an event finds those it concerns, and no others.

Ground rules
------------
* Everything here changes under the lock of the ``WatcherList`` that holds it.
* ``by_number`` holds those whose number was not reached; each number there stands once in
  ``numbers``, at or after ``head``, in ascending order. ``numbers`` may hold others, of operations
  that are gone; they are swept out when they are more than half.
* An operation whose number was reached, and that did not complete by it (it waits on another key
  too), goes to ``reached``: found by a check of the key, and passed over by the next event. When
  the value is forgotten, it waits for its number anew.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purgatory.delayed_operation import DelayedOperation

_FEW = 32
"""So many stale numbers are not worth a sweep."""


class ThresholdWatchers:
    """Who waits on one key, by the number that its value shall reach. Never left empty."""

    __slots__ = ("by_number", "head", "numbers", "reached")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.head = 0
        self.by_number: dict[int, dict[int, DelayedOperation]] = {}
        self.reached: dict[int, dict[int, DelayedOperation]] = {}

    def __bool__(self) -> bool:
        return bool(self.by_number or self.reached)

    def add(self, operation: DelayedOperation, number: int) -> None:
        """Let ``operation`` wait for ``number``. O(log numbers), and O(1) for the highest yet.

        A number between others moves those above it by one place, as ``list.insert`` does.
        """
        waiting = self.by_number.get(number)
        if waiting is None:
            waiting = self.by_number[number] = {}
            numbers = self.numbers
            if not numbers or number > numbers[-1]:
                numbers.append(number)
            else:
                place = bisect_left(numbers, number, self.head)
                if place == len(numbers) or numbers[place] != number:
                    numbers.insert(place, number)
        waiting[id(operation)] = operation

    def remove(self, operation: DelayedOperation, number: int) -> bool:
        """Take ``operation`` off, and say whether it was there. O(1), amortized."""
        if _remove(self.by_number, operation, number):
            self._sweep_if_stale()
            return True
        return _remove(self.reached, operation, number)

    def take_reached(self, value: int) -> list[DelayedOperation]:
        """Return those whose number is ``value`` or less, by number and arrival.

        They count as reached from now on. O(k + log numbers) for k that are returned, amortized;
        O(1) for none.
        """
        numbers, head = self.numbers, self.head
        if head == len(numbers) or numbers[head] > value:
            return []
        end = bisect_right(numbers, value, head)
        taken: list[DelayedOperation] = []
        for number in numbers[head:end]:
            waiting = self.by_number.pop(number, None)
            if waiting is not None:
                self.reached.setdefault(number, {}).update(waiting)
                taken.extend(waiting.values())
        self._drop_before(end)
        self._sweep_if_stale()
        return taken

    def wait_anew(self) -> None:
        """Let those whose number was reached wait for it again. O(k log numbers) for k of them."""
        reached, self.reached = self.reached, {}
        for number, operations in reached.items():
            for operation in operations.values():
                self.add(operation, number)

    def operations(self) -> list[DelayedOperation]:
        """Return all who wait on the key, the reached first, then by number. O(n log n)."""
        return [
            operation
            for by_number in (self.reached, self.by_number)
            for number in sorted(by_number)
            for operation in by_number[number].values()
        ]

    def _drop_before(self, place: int) -> None:
        # Cutting the list costs O(rest): it waits until it halves it.
        if 2 * place >= len(self.numbers):
            del self.numbers[:place]
            place = 0
        self.head = place

    def _sweep_if_stale(self) -> None:
        if len(self.numbers) - self.head > 2 * len(self.by_number) + _FEW:
            self.numbers = sorted(self.by_number)
            self.head = 0

    def _check(self) -> None:
        """Assert all invariants. O(n)."""
        waiting = self.numbers[self.head :]
        assert waiting == sorted(set(waiting)), "ascending, each once"
        assert set(self.by_number) <= set(waiting)
        assert len(waiting) <= 2 * len(self.by_number) + _FEW, "stale numbers are swept"
        assert all(self.by_number.values()), "an empty number is dropped"
        assert all(self.reached.values()), "an empty number is dropped"
        operations = self.operations()
        assert len(set(map(id, operations))) == len(operations), "each stands in one place"


def _remove(
    by_number: dict[int, dict[int, DelayedOperation]], operation: DelayedOperation, number: int
) -> bool:
    operations = by_number.get(number)
    if operations is None or operations.pop(id(operation), None) is None:
        return False
    if not operations:
        del by_number[number]
    return True
