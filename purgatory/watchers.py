"""Who waits on which key.

Kafka splits this map into 512 shards, so that threads don't queue for one lock. Here one lock is
faster: the interpreter runs one thread at a time anyway, and an operation is put on the lists of
all its keys, or taken off them, in one critical section.

Ground rules
------------
* ``lock`` guards the map and everything in it; the purgatory guards its own books by the same lock.
  It is the innermost lock: nothing else is acquired, and no user code runs, while it is held;
  except a key's ``__hash__`` and ``__eq__``, which must be pure. It is reentrant, because a
  finalizer that the garbage collector runs in between may use the purgatory.
* Only what is PENDING is put on a list; who settles an operation sets its outcome first and then
  takes it off all its keys. Hence nothing settled stays on a list.
* Operations are held by identity: users may give theirs an ``__eq__``.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TypeAlias

from purgatory.delayed_operation import DelayedOperation
from purgatory.outcome import Outcome

_PENDING = Outcome.PENDING


Watchers: TypeAlias = dict[int, DelayedOperation]
"""The operations that wait on one key, by identity, in arrival order. Never left empty.

A plain dict: keys come and go with their operations, and a subclass takes twice as long to make."""


class WatcherList:
    """The map from key to watchers."""

    __slots__ = ("by_key", "entries", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_key: dict[Hashable, Watchers] = {}
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
        finally:
            lock.release()

    def unwatch(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        """Take ``operation`` off the lists, under the lock, and drop the empty ones. O(keys)."""
        by_key = self.by_key
        identity = id(operation)
        for key in keys:
            watchers = by_key.get(key)
            if watchers is not None and watchers.pop(identity, None) is not None:
                self.entries -= 1
                if not watchers:
                    del by_key[key]

    def operations_on(self, key: Hashable) -> list[DelayedOperation]:
        """Return who waits on ``key``, under the lock, in arrival order. O(watchers)."""
        watchers = self.by_key.get(key)
        return [] if watchers is None else list(watchers.values())

    def _check(self) -> None:
        """Assert all invariants, under the lock. O(entries)."""
        assert self.entries == sum(map(len, self.by_key.values()))
        for watchers in self.by_key.values():
            assert watchers, "an empty list is dropped"
            for identity, operation in watchers.items():
                assert identity == id(operation)
