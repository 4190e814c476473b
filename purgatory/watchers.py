"""Who waits on which key: for any event on it, or until its value has reached a number.

Kafka splits this map into 512 shards, so that threads don't queue for one lock. Here one lock is
faster: the interpreter runs one thread at a time anyway, and an operation is put on the lists of
all its keys, or taken off them, in one critical section.

Ground rules
------------
* The maps and everything in them change in a ``turn``, as do the purgatory's own books. No user
  code runs in it, except a key's ``__hash__`` and ``__eq__``, which must be pure.
* Who stands on a list is the truth; ``entries`` is a count of it, and an empty list is a leftover.
  What an interrupt leaves wrong of these, ``mend`` puts right.
* Only what is PENDING is put on a list; who settles an operation sets its outcome first and then
  takes it off all its keys. Hence nothing settled stays on a list.
* Operations are held by identity: users may give theirs an ``__eq__``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from threading import get_ident
from typing import TypeAlias

from purgatory.delayed_operation import DelayedOperation
from purgatory.outcome import Outcome
from purgatory.threshold_watchers import ThresholdWatchers
from purgatory.turn import Turn

_PENDING = Outcome.PENDING


Watchers: TypeAlias = dict[int, DelayedOperation]
"""The operations that wait on one key, by identity, in arrival order. Never left empty.

A plain dict: keys come and go with their operations, and a subclass takes twice as long to make."""


class WatcherList:
    """The maps from key to watchers."""

    __slots__ = ("by_key", "entries", "thresholds_by_key", "turn")

    def __init__(self) -> None:
        self.turn = Turn()
        self.by_key: dict[Hashable, Watchers] = {}
        self.thresholds_by_key: dict[Hashable, ThresholdWatchers] = {}
        self.entries = 0

    def watch(self, operation: DelayedOperation) -> None:
        """Put ``operation`` on the list of each of its keys, unless it is settled. O(keys)."""
        by_key = self.by_key
        identity = id(operation)
        me = operation._op_submitter or [get_ident()]
        turn = self.turn
        try:
            if turn.setdefault("holder", me) is not me:
                turn = turn.wait(me)
            for key in operation._op_keys:  # none, if a purgatory that closed has let go of it
                # Looked at for each key: a key's __eq__ may let another thread in between.
                if operation._op_outcome is not _PENDING:
                    break
                watchers = by_key.get(key)
                if watchers is None:
                    watchers = by_key[key] = {}
                watchers[identity] = operation
                self.entries += 1
            if operation._op_thresholds is not None:
                self._watch_thresholds(operation, operation._op_thresholds)
            del turn["holder"]
        except BaseException:
            if "holder" in turn and turn["holder"] is me:
                del turn["holder"]
            raise

    def _watch_thresholds(
        self, operation: DelayedOperation, thresholds: Mapping[Hashable, int]
    ) -> None:
        for key, number in thresholds.items():
            if operation._op_outcome is not _PENDING:
                return
            watchers = self.thresholds_by_key.get(key)
            if watchers is None:
                watchers = self.thresholds_by_key[key] = ThresholdWatchers()
            watchers.add(operation, number)
            self.entries += 1

    def unwatch(self, operation: DelayedOperation) -> None:
        """Take ``operation`` off the lists, in a turn, and drop the empty ones. O(keys)."""
        by_key = self.by_key
        identity = id(operation)
        for key in operation._op_keys:
            watchers = by_key.get(key)
            if watchers is not None and watchers.pop(identity, None) is not None:
                self.entries -= 1
                if not watchers:
                    del by_key[key]
        if operation._op_thresholds is not None:
            self._unwatch_thresholds(operation, operation._op_thresholds)

    def _unwatch_thresholds(
        self, operation: DelayedOperation, thresholds: Mapping[Hashable, int]
    ) -> None:
        for key, number in thresholds.items():
            watchers = self.thresholds_by_key.get(key)
            if watchers is not None and watchers.remove(operation, number):
                self.entries -= 1
                if not watchers:
                    del self.thresholds_by_key[key]

    def operations_on(self, key: Hashable) -> list[DelayedOperation]:
        """Return who waits on ``key``, in a turn: for any event first, in arrival order, then
        for a number, in the order of numbers. An operation that does both is there once.
        O(watchers)."""
        watchers = self.by_key.get(key)
        if not self.thresholds_by_key:
            return [] if watchers is None else list(watchers.values())
        waiting = self.thresholds_by_key.get(key)
        if waiting is None:
            return [] if watchers is None else list(watchers.values())
        if watchers is None:
            return waiting.operations()
        others = (one for one in waiting.operations() if id(one) not in watchers)
        return [*watchers.values(), *others]

    def take_reached(self, key: Hashable, value: int, taken: list[DelayedOperation]) -> None:
        """Add who waits for ``value`` or less on ``key`` to ``taken``, in a turn, each once only.

        An interrupt finds in ``taken`` at least those who will not be returned again.
        """
        waiting = self.thresholds_by_key.get(key)
        if waiting is not None:
            taken += waiting.take_reached(value)

    def wait_anew(self, key: Hashable) -> None:
        """Let those whose number was reached on ``key`` wait for it again, in a turn."""
        waiting = self.thresholds_by_key.get(key)
        if waiting is not None:
            waiting.wait_anew()

    @property
    def keys(self) -> int:
        """How many keys somebody waits on."""
        both = self.by_key.keys() & self.thresholds_by_key.keys() if self.thresholds_by_key else ()
        return len(self.by_key) + len(self.thresholds_by_key) - len(both)

    def _pairs(self) -> Iterator[tuple[Hashable, DelayedOperation]]:
        for key, watchers in self.by_key.items():
            for identity, operation in watchers.items():
                assert identity == id(operation)
                yield key, operation
        for key, waiting in self.thresholds_by_key.items():
            for operation in waiting.operations():
                yield key, operation

    def mend(self) -> None:
        """Put right what an interrupt left wrong, in a turn: the count, empty lists. O(entries)."""
        for by_key in (self.by_key, self.thresholds_by_key):
            for key in [key for key, waiting in by_key.items() if not waiting]:
                del by_key[key]
        self.entries = sum(1 for _ in self._pairs())

    def _check(self) -> None:
        """Assert all invariants, in a turn. O(entries)."""
        assert self.entries == sum(1 for _ in self._pairs())
        assert all(self.by_key.values()), "an empty list is dropped"
        assert all(self.thresholds_by_key.values()), "an empty list is dropped"
        for waiting in self.thresholds_by_key.values():
            waiting._check()
