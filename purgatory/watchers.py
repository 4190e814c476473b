"""Who waits on which key.

Ground rules
------------
* ``WatcherList.lock`` guards one shard of the map and everything in it. It is the innermost lock:
  nothing else is acquired, and no user code runs, while it is held; except a key's ``__hash__`` and
  ``__eq__``, which must be pure. It is reentrant, because a finalizer that the garbage collector
  runs in between may use the purgatory.
* Only what is PENDING is put on a list; who settles an operation sets its outcome first and then
  takes it off all its keys. Hence nothing settled stays on a list.
* Operations are held by identity: users may give theirs an ``__eq__``.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

from purgatory.delayed_operation import DelayedOperation
from purgatory.outcome import Outcome


class Watchers:
    """The operations that wait on one key, in arrival order. Never empty while it is in the map."""

    __slots__ = ("operations",)

    def __init__(self) -> None:
        self.operations: dict[int, DelayedOperation] = {}


class WatcherList:
    """One shard of the map from key to watchers."""

    __slots__ = ("entries", "lock", "watchers_by_key")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.watchers_by_key: dict[Hashable, Watchers] = {}
        self.entries = 0

    def watch(self, key: Hashable, operation: DelayedOperation) -> bool:
        """Put ``operation`` on the list of ``key`` unless it is settled; say whether. O(1)."""
        lock = self.lock
        lock.acquire()
        try:
            if operation._op_outcome is not Outcome.PENDING:
                return False
            watchers = self.watchers_by_key.get(key)
            if watchers is None:
                watchers = self.watchers_by_key[key] = Watchers()
            watchers.operations[id(operation)] = operation
            self.entries += 1
            return True
        finally:
            lock.release()

    def unwatch(self, key: Hashable, operation: DelayedOperation) -> None:
        """Take ``operation`` off the list of ``key`` if it is there; drop an empty list. O(1)."""
        lock = self.lock
        lock.acquire()
        try:
            watchers = self.watchers_by_key.get(key)
            if watchers is None or watchers.operations.pop(id(operation), None) is None:
                return
            self.entries -= 1
            if not watchers.operations:
                del self.watchers_by_key[key]
        finally:
            lock.release()

    def operations_on(self, key: Hashable) -> list[DelayedOperation]:
        """Return who waits on ``key`` now, in arrival order. O(watchers)."""
        lock = self.lock
        lock.acquire()
        try:
            watchers = self.watchers_by_key.get(key)
            return [] if watchers is None else list(watchers.operations.values())
        finally:
            lock.release()

    def _check(self) -> None:
        with self.lock:
            lists = self.watchers_by_key.values()
            assert self.entries == sum(len(watchers.operations) for watchers in lists)
            for watchers in lists:
                assert watchers.operations, "an empty list is dropped"
                for identity, operation in watchers.operations.items():
                    assert identity == id(operation)
