"""Who waits on which key: for any event on it, or until its value has reached a number.

Kafka splits this map into 512 shards, so that threads don't queue for one lock. Here one lock is
faster: the interpreter runs one thread at a time anyway, and an operation is put on the lists of
all its keys, or taken off them, in one critical section.

Ground rules
------------
* The maps and everything in them change in a ``turn``, as do the purgatory's own books. No user
  code runs in it, except a key's ``__hash__`` and ``__eq__``, which must be pure, and what the
  collector runs.
* The collector may run a finalizer wherever something is allocated or called, and that may use the
  purgatory on this very thread; hence a turn lets its own thread in. So there is no looking at a
  map and then changing it: each step is one call of the dict's (``setdefault``, ``pop``), and what
  it found is looked at afterwards.
* What stands on a list is the truth; ``entries`` is a count of it, an empty list is a leftover, and
  a number is one that the heap of its key has lost. What an interrupt leaves wrong of these,
  ``mend`` puts right.
* An operation stands in ``by_key`` under all its keys. If it waits for a number, it also stands in
  ``numbers_by_key``, until that number was reached.
* Only what is PENDING stays on a list. The settler of an operation sets its outcome first and then
  takes it off all its keys; the call that puts it there looks at its outcome afterwards.
* Operations are held by identity: users may give theirs an ``__eq__``.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Generic, TypeAlias, TypeVar

from purgatory.core.lists import check_lists
from purgatory.core.outcome import PENDING, Outcome
from purgatory.core.threshold_watchers import ThresholdWatchers
from purgatory.core.turn import Me, Turn
from timer import TimerTask

REFUSED: Me = []
"""What submitted an operation that its purgatory then did not take."""


class Watched(TimerTask):
    """What a watch list knows of an operation."""

    __slots__ = ("_op_keys", "_op_outcome", "_op_submitter", "_op_thresholds")

    _op_keys: tuple[Hashable, ...]
    """For any event and for numbers, each once; none once it was let go of."""
    _op_thresholds: Mapping[Hashable, int] | None
    _op_outcome: Outcome
    _op_submitter: Me | None
    """The call that submits it, until it is on the lists and the timer; or ``REFUSED``."""

    @property
    def outcome(self) -> Outcome:
        """What became of it. In a callback, what it is about to be."""
        return self._op_outcome

    @property
    def is_completed(self) -> bool:
        """Whether it is anything but PENDING."""
        return self._op_outcome is not PENDING


W = TypeVar("W", bound=Watched)

Watchers: TypeAlias = dict[int, W]
"""The operations that wait on one key, by identity, in arrival order. Never left empty.

A plain dict: keys come and go with their operations, and a subclass takes twice as long to make."""


class WatcherList(Generic[W]):
    """The maps from key to watchers."""

    __slots__ = ("by_key", "entries", "numbers_by_key", "turn")

    def __init__(self) -> None:
        self.turn = Turn()
        self.by_key: dict[Hashable, Watchers[W]] = {}
        self.numbers_by_key: dict[Hashable, ThresholdWatchers[W]] = {}
        self.entries = 0

    def watch(self, operation: W) -> None:
        """Put ``operation`` on the list of each of its keys, unless it is settled. O(keys)."""
        by_key = self.by_key
        identity = id(operation)
        me = operation._op_submitter or [threading.get_ident()]
        turn = self.turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            keys = operation._op_keys  # none, if a purgatory that closed has let go of it
            count = len(keys)
            for key in keys:
                watchers = by_key.get(key)
                if watchers:  # nobody throws it away, since it is not empty
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
            del turn["holder"]
        except BaseException:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            raise

    def _put(self, key: Hashable, operation: W) -> None:
        """Put ``operation`` on the list of ``key``, and count it, unless it is there."""
        watchers = self.by_key.get(key)
        if watchers is None or id(operation) not in watchers:
            self._put_on_empty(key, operation)
            self.entries += 1

    def _put_on_empty(self, key: Hashable, operation: W) -> None:
        """Put ``operation`` on the list of ``key``, although a finalizer may throw that away.

        The caller counts it, once.
        """
        identity = id(operation)
        watchers = None
        while watchers is None or self.by_key.get(key) is not watchers:
            if watchers is not None and watchers.pop(identity, None) is None:
                self.entries += 1  # who settled it has taken it off, and counted that
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

    def unwatch(self, operation: W) -> Exception | None:
        """Take ``operation`` off the lists, in a turn, and drop the empty ones. O(keys).

        Returns:
            What a key raised when it was compared, if one did: all lists were searched then.
        """
        by_key = self.by_key
        identity = id(operation)
        left = 0
        try:
            for key in operation._op_keys:
                watchers = by_key.get(key)
                if watchers is not None and watchers.pop(identity, None) is not None:
                    left += 1
                    if not watchers:
                        watchers = by_key.pop(key, None)
                        if watchers:
                            self._put_back(key, watchers)
            self.entries -= left
            left = 0
            if operation._op_thresholds is not None:
                self._take_numbers(operation, operation._op_thresholds)
        except Exception as error:
            self.entries -= left
            self._search_and_unwatch(operation)
            return error
        return None

    def _take_numbers(self, operation: W, thresholds: Mapping[Hashable, int]) -> None:
        for key, number in thresholds.items():
            if key in self.numbers_by_key:  # its number was not reached, nor that of all others
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
        """Put back who came, by a finalizer, while an empty list was being thrown away."""
        for operation in list(watchers.values()):
            self.entries -= 1
            self._put(key, operation)
            if operation._op_outcome is not PENDING:
                self.unwatch(operation)

    def _search_and_unwatch(self, operation: W) -> None:
        """Take ``operation`` off whatever list it is on: its keys can't be compared. O(all keys).

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
        """How many keys have somebody who waits. O(1)."""
        return len(self.by_key)

    def keys_with_numbers(self) -> list[Hashable]:
        """Return the keys whose number somebody waits for, in a turn."""
        return list(self.numbers_by_key)

    def operations_on(self, key: Hashable) -> list[W]:
        """Return who waits on ``key``, in a turn, each once, in arrival order. O(watchers)."""
        watchers = self.by_key.get(key)
        return [] if watchers is None else list(watchers.values())

    def count_on(self, key: Hashable, limit: int) -> int:
        """Return how many wait on ``key``, or ``limit`` if it is more, in a turn. O(limit)."""
        return min(limit, len(self.by_key.get(key, ())))

    def take_reached(self, key: Hashable, value: int, taken: list[W]) -> None:
        """Add who waits for ``value`` or less on ``key`` to ``taken``, in a turn, each once only.

        An interrupt finds all there who will not be found here again.
        """
        waiting = self.numbers_by_key.get(key)
        if waiting is not None:
            waiting.take_reached(value, taken)
            if not waiting.by_number:
                self._drop_numbers(key)

    def wait_anew(self, key: Hashable) -> None:
        """Let all on ``key`` whose number was reached wait for it again, in a turn.

        O(watchers * log numbers).
        """
        for operation in self.operations_on(key):
            number = (operation._op_thresholds or {}).get(key)
            if number is not None:
                self._put_number(key, operation, number)

    def mend(self) -> None:
        """Put right what an interrupt left wrong, in a turn: empty lists, numbers, the count.

        Who waits for a number waits for it anew: a value that is known has to be told again.
        O(entries * log numbers).
        """
        for key, watchers in list(self.by_key.items()):
            with suppress(Exception):  # a key that can't be compared
                self._drop_if_empty(key, watchers)
        for key, waiting in list(self.numbers_by_key.items()):
            waiting.mend()
            with suppress(Exception):
                if not waiting:
                    self._drop_numbers(key)
        for key, watchers in list(self.by_key.items()):
            if any(one._op_thresholds for one in list(watchers.values())):
                with suppress(Exception):
                    self.wait_anew(key)
        self.entries = sum(map(len, list(self.by_key.values())))

    def check(self, operations: Iterable[W]) -> None:
        """Assert all invariants, in a turn; ``operations`` are all that wait. O(entries)."""
        on_lists = {key: list(watchers.values()) for key, watchers in self.by_key.items()}
        expected = [(key, operation) for operation in operations for key in operation._op_keys]
        check_lists(on_lists, expected, self.entries)
        assert all(self.numbers_by_key.values()), "an empty list is dropped"
        for key, waiting in self.numbers_by_key.items():
            waiting.check()
            for operation, number in waiting.pairs():
                assert id(operation) in self.by_key[key], "who waits for a number waits on its key"
                assert (operation._op_thresholds or {})[key] == number
