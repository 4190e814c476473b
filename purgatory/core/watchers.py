"""Watch lists: the operations on each key, which wait for any event on it or until its value
reaches a number.

Kafka splits this map into 512 shards, so that threads don't queue for one lock. Here one lock is
faster: the interpreter runs one thread at a time anyway, and an operation is put on the lists of
all its keys, or taken off them, in one critical section.

With ten thousand requests parked on one partition, a look at all of them at each event costs too
much. Operations that wait for a number are listed by it as well: an event finds those it concerns.

Ground rules
------------
* The maps and everything in them change under the state's lock, which the caller holds.
* The collector may run a finalizer wherever something is allocated or called, and that may use the
  purgatory on this very thread. Hence no map is looked at and then changed: each step is one call
  of the dict's (``setdefault``, ``pop``), and its result is looked at afterwards.
* The lists are the truth; ``entries`` counts them, and the heaps of numbers are made of them. If an
  interrupt leaves a wrong count, an empty list, or a number that its heap has lost, ``repair`` puts
  it right.
* An operation stands in ``by_key`` under all its keys. If it waits for a number, it also stands in
  ``numbers_by_key``, until that number was reached. If it did not complete then (it waits on
  another key too), a check of the key finds it.
* Only PENDING operations stay on a list. The completer of an operation sets its outcome first and
  then takes it off all its keys; the call that puts it there looks at its outcome afterwards.
* Operations are held by identity: users may give theirs an ``__eq__``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from purgatory.core.outcome import PENDING, Outcome


class Watcher(Protocol):
    """An operation, as the lists and the state of its purgatory know it."""

    _op_keys: tuple[Hashable, ...]
    _op_thresholds: Mapping[Hashable, int] | None
    _op_outcome: Outcome
    _op_submitter: list[Any] | None
    _op_stage: int

    @property
    def is_completed(self) -> bool:
        """Whether the outcome is not PENDING."""


W = TypeVar("W", bound=Watcher)

Watchers: TypeAlias = dict[int, W]
"""The operations that wait on one key, by identity, in arrival order. Never empty.

A plain dict: keys come and go with their operations, and a subclass takes twice as long to make."""


class WatcherList(Generic[W]):
    """The maps from key to watchers."""

    __slots__ = ("by_key", "entries", "numbers_by_key")

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Watchers[W]] = {}
        self.numbers_by_key: dict[Hashable, ThresholdWatchers[W]] = {}
        self.entries = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.entries} entries on {len(self.by_key)} keys>"

    def watch(self, operation: W) -> None:
        """Put ``operation`` on the list of each of its keys, unless it is completed. O(keys)."""
        by_key = self.by_key
        identity = id(operation)
        keys = operation._op_keys  # none, if a purgatory that closed has abandoned it
        count = len(keys)
        for key in keys:
            watchers = by_key.get(key)
            if watchers:  # not empty, so it is not dropped meanwhile
                watchers[identity] = operation
                continue
            if watchers is None:
                made = {identity: operation}
                if by_key.setdefault(key, made) is made:
                    continue
            self._put_on_empty(key, operation)
        self.entries += count  # without a call in between
        if operation._op_thresholds is not None:
            for key, number in operation._op_thresholds.items():
                self._put_number(key, operation, number)
        if operation._op_outcome is not PENDING:
            self.unwatch(operation)

    def _put(self, key: Hashable, operation: W) -> None:
        """Put ``operation`` on the list of ``key``, and count it, unless it is there."""
        watchers = self.by_key.get(key)
        if watchers is None or id(operation) not in watchers:
            self._put_on_empty(key, operation)
            self.entries += 1

    def _put_on_empty(self, key: Hashable, operation: W) -> None:
        """Put ``operation`` on the list of ``key``, although a finalizer may drop that.

        The caller counts it, once.
        """
        identity = id(operation)
        watchers = None
        while watchers is None or self.by_key.get(key) is not watchers:
            if watchers is not None and watchers.pop(identity, None) is None:
                self.entries += 1  # its completer has taken it off, and counted that
            watchers = self.by_key.setdefault(key, {})
            watchers[identity] = operation

    def _put_number(self, key: Hashable, operation: W, number: int) -> None:
        numbers_by_key = self.numbers_by_key
        waiting = numbers_by_key.get(key)
        if waiting is not None:
            waiting.add(operation, number)
        while waiting is None or numbers_by_key.get(key) is not waiting:
            waiting = numbers_by_key.setdefault(key, ThresholdWatchers())
            waiting.add(operation, number)
        if operation._op_outcome is not PENDING:
            self._take_number(key, operation, number)

    def unwatch(self, operation: W, keys: tuple[Hashable, ...] | None = None) -> Exception | None:
        """Take ``operation`` off the lists, under the lock, and drop the empty ones. O(keys).

        Args:
            keys: its former keys, if they were taken from it.

        Returns:
            The error that a key raised when compared, if any: all lists were searched then.
        """
        by_key = self.by_key
        identity = id(operation)
        unwatched = 0
        try:
            for key in operation._op_keys if keys is None else keys:
                watchers = by_key.get(key)
                if watchers is not None and watchers.pop(identity, None) is not None:
                    unwatched += 1
                    if not watchers:
                        watchers = by_key.pop(key, None)
                        if watchers:
                            self._put_back(key, watchers)
            self.entries -= unwatched
            unwatched = 0
            if operation._op_thresholds is not None:
                self._take_numbers(operation, operation._op_thresholds)
        except Exception as error:
            self.entries -= unwatched
            self._search_and_unwatch(operation)
            return error
        return None

    def _take_numbers(self, operation: W, thresholds: Mapping[Hashable, int]) -> None:
        for key, number in thresholds.items():
            if key in self.numbers_by_key:  # not all numbers there were reached
                self._take_number(key, operation, number)

    def _take_number(self, key: Hashable, operation: W, number: int) -> None:
        waiting = self.numbers_by_key.get(key)
        if waiting is not None and waiting.remove(operation, number) and not waiting.by_number:
            self._drop_numbers(key)

    def _drop_numbers(self, key: Hashable) -> None:
        dropped = self.numbers_by_key.pop(key, None)
        if dropped is not None and dropped.by_number:
            for operation, number in dropped.pairs():
                self._put_number(key, operation, number)

    def _drop_if_empty(self, key: Hashable, watchers: Watchers[W]) -> None:
        if not watchers:
            dropped = self.by_key.pop(key, None)
            if dropped:
                self._put_back(key, dropped)

    def _put_back(self, key: Hashable, watchers: Watchers[W]) -> None:
        """Put back operations that came, by a finalizer, while an empty list was being dropped."""
        for operation in list(watchers.values()):
            self.entries -= 1
            self._put(key, operation)
            if operation._op_outcome is not PENDING:
                self.unwatch(operation)

    def _search_and_unwatch(self, operation: W) -> None:
        """Take ``operation`` off all lists: its keys can't be compared. O(all keys).

        If the list is empty then, it stays, until its key can be compared again.
        """
        for key, watchers in self.by_key.copy().items():
            if watchers.pop(id(operation), None) is not None:
                self.entries -= 1
            with suppress(Exception):
                self._drop_if_empty(key, watchers)
        numbers = (operation._op_thresholds or {}).values()
        for key, waiting in self.numbers_by_key.copy().items():
            for number in numbers:
                waiting.remove(operation, number)
            with suppress(Exception):
                if not waiting:
                    self._drop_numbers(key)

    @property
    def key_count(self) -> int:
        """Keys with a watcher. O(1)."""
        return len(self.by_key)

    def keys(self) -> list[Hashable]:
        """Return the keys with a watcher, under the lock."""
        return [key for key, watchers in self.by_key.copy().items() if watchers]

    def keys_with_numbers(self) -> list[Hashable]:
        """Return the keys with an operation that waits for a number, under the lock."""
        return list(self.numbers_by_key)

    def operations_on(self, key: Hashable) -> list[W]:
        """Return the operations on ``key``, under the lock, each once, in arrival order.
        O(watchers)."""
        watchers = self.by_key.get(key)
        return [] if watchers is None else list(watchers.values())

    def count_on(self, key: Hashable, limit: int) -> int:
        """Count the operations on ``key``, to ``limit`` at most, under the lock. O(limit)."""
        return min(limit, len(self.by_key.get(key, ())))

    def pop_reached(self, key: Hashable, value: int, taken: list[W]) -> None:
        """Add the operations that wait for ``value`` or less on ``key`` to ``taken``, under the
        lock.

        Each is added once only: an interrupt finds all there that will not be found here again.
        """
        waiting = self.numbers_by_key.get(key)
        if waiting is not None:
            waiting.pop_reached(value, taken)
            if not waiting.by_number:
                self._drop_numbers(key)

    def rearm(self, key: Hashable) -> None:
        """Have operations on ``key`` whose number was reached wait for it again, under the lock.

        O(watchers * log numbers).
        """
        for operation in self.operations_on(key):
            number = (operation._op_thresholds or {}).get(key)
            if number is not None:
                self._put_number(key, operation, number)

    def repair(self) -> None:
        """Put right what an interrupt left wrong, under the lock: empty lists, numbers, the count,
        abandoned operations.

        All waits for a number begin anew: a value that is known has to be reported again.
        O(entries * log numbers).
        """
        for key, watchers in list(self.by_key.items()):
            for operation in list(watchers.values()):
                if not operation._op_keys:
                    self._search_and_unwatch(operation)
            with suppress(Exception):  # a key that can't be compared
                self._drop_if_empty(key, watchers)
        for key, waiting in list(self.numbers_by_key.items()):
            waiting.repair()
            with suppress(Exception):
                if not waiting:
                    self._drop_numbers(key)
        for key, watchers in list(self.by_key.items()):
            if any(one._op_thresholds for one in list(watchers.values())):
                with suppress(Exception):
                    self.rearm(key)
        self.entries = sum(map(len, list(self.by_key.values())))

    def check(self, operations: Iterable[W]) -> None:
        """Assert all invariants, under the lock, given all pending operations. O(entries)."""
        on_lists = {key: list(watchers.values()) for key, watchers in self.by_key.items()}
        expected = [(key, operation) for operation in operations for key in operation._op_keys]
        check_lists(on_lists, expected, self.entries)
        assert all(self.numbers_by_key.values()), "an empty list is dropped"
        for key, waiting in self.numbers_by_key.items():
            waiting.check()
            for operation, number in waiting.pairs():
                assert id(operation) in self.by_key[key], "a wait for a number is a wait on its key"
                assert (operation._op_thresholds or {})[key] == number


T = TypeVar("T")

_NOBODY: tuple[dict[int, Any]] = ({},)
_values = dict.values

_FEW = 32
"""The number of stale numbers that are not worth a sweep."""


class ThresholdWatchers(Generic[T]):
    """Operations on one key, by the number that its value shall reach. Never empty.

    ``by_number`` has the operations whose number was not reached. Each number there stands in
    ``numbers``, a heap. The heap may hold a number twice, and those of operations that are gone:
    they are swept out when they are more than half.
    """

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
            waiting = by_number.setdefault(number, made)  # it was emptied, and dropped
        heappush(self.numbers, number)

    def remove(self, operation: T, number: int) -> bool:
        """Take ``operation`` off; return whether it was there. O(1), amortized."""
        by_number = self.by_number
        waiting = by_number.get(number)
        if waiting is None or waiting.pop(id(operation), None) is None:
            return False
        if not waiting and number in by_number and by_number[number] is waiting:
            del by_number[number]
            self._sweep_if_stale()
        return True

    def pop_reached(self, value: int, taken: list[T]) -> None:
        """Move operations whose number is ``value`` or less to ``taken``, ordered by number.

        O(log numbers) for each number that is reached, amortized; O(1) for none.
        """
        numbers = self.numbers
        before = len(taken)
        while (first := numbers[:1]) and first[0] <= value:
            # Popped and added in one step of the interpreter: no interrupt can lose them.
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
        """Yield all operations with their numbers. O(n)."""
        for number, waiting in self.by_number.copy().items():
            for operation in list(waiting.values()):
                yield operation, number

    def repair(self) -> None:
        """After an interrupt, drop an empty number and restore a lost one. O(n)."""
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


def check_lists(
    waiting: Mapping[Hashable, list[Any]], expected: Iterable[tuple[Hashable, Any]], entries: int
) -> None:
    """Assert the invariants of all watch lists. O(entries).

    Args:
        waiting: by key, the operations on its list.
        expected: each key of each pending operation, with the operation.
        entries: the count of entries.
    """
    found = [(key, id(operation)) for key in waiting for operation in waiting[key]]
    under_its_keys = {(key, id(operation)) for key, operation in expected}
    assert set(found) == under_its_keys, "the lists hold all pending operations"
    assert entries == len(found)
    assert all(waiting.values()), "an empty list is dropped"
