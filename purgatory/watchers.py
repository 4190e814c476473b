"""Who waits on which key: for any event on it, or until its value has reached a number.

Kafka splits this map into 512 shards, so that threads don't queue for one lock. Here one lock is
faster: the interpreter runs one thread at a time anyway, and an operation is put on the lists of
all its keys, or taken off them, in one critical section.

Ground rules
------------
* ``lock`` guards the maps and everything in them; the purgatory guards its own books by the same
  lock. It is the innermost lock: nothing else is acquired, and no user code runs, while it is held;
  except a key's ``__hash__`` and ``__eq__``, which must be pure. It is reentrant, because a
  finalizer that the garbage collector runs in between may use the purgatory.
* Only what is PENDING is put on a list; who settles an operation sets its outcome first and then
  takes it off all its keys. Hence nothing settled stays on a list.
* Operations are held by identity: users may give theirs an ``__eq__``.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping
from typing import TypeAlias

from purgatory.delayed_operation import DelayedOperation
from purgatory.outcome import Outcome
from purgatory.threshold_watchers import ThresholdWatchers

_PENDING = Outcome.PENDING


Watchers: TypeAlias = dict[int, DelayedOperation]
"""The operations that wait on one key, by identity, in arrival order. Never left empty.

A plain dict: keys come and go with their operations, and a subclass takes twice as long to make."""


class WatcherList:
    """The maps from key to watchers."""

    __slots__ = ("by_key", "entries", "lock", "thresholds_by_key")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_key: dict[Hashable, Watchers] = {}
        self.thresholds_by_key: dict[Hashable, ThresholdWatchers] = {}
        self.entries = 0

    def watch(self, operation: DelayedOperation) -> None:
        """Put ``operation`` on the list of each of its keys, unless it is settled. O(keys)."""
        by_key = self.by_key
        identity = id(operation)
        lock = self.lock
        lock.acquire()
        try:
            for key in operation._op_keys:  # none, if a purgatory that closed has let go of it
                # Looked at for each key: a key's __eq__ may let another thread in between.
                if operation._op_outcome is not _PENDING:
                    return
                watchers = by_key.get(key)
                if watchers is None:
                    watchers = by_key[key] = {}
                watchers[identity] = operation
                self.entries += 1
            if operation._op_thresholds is not None:
                self._watch_thresholds(operation, operation._op_thresholds)
        finally:
            lock.release()

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
        """Take ``operation`` off the lists, under the lock, and drop the empty ones. O(keys)."""
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
        """Return who waits on ``key``, under the lock: for any event first, in arrival order, then
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

    def take_reached(self, key: Hashable, value: int) -> list[DelayedOperation]:
        """Return who waits for ``value`` or less on ``key``, under the lock, each once only."""
        waiting = self.thresholds_by_key.get(key)
        return [] if waiting is None else waiting.take_reached(value)

    def wait_anew(self, key: Hashable) -> None:
        """Let those whose number was reached on ``key`` wait for it again, under the lock."""
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

    def _check(self) -> None:
        """Assert all invariants, under the lock. O(entries)."""
        assert self.entries == sum(1 for _ in self._pairs())
        assert all(self.by_key.values()), "an empty list is dropped"
        assert all(self.thresholds_by_key.values()), "an empty list is dropped"
        for waiting in self.thresholds_by_key.values():
            waiting._check()
