"""A purgatory for delayed operations: keyed watch lists over a layered timing wheel.

    purgatory = DelayedOperationPurgatory("Fetch")
    purgatory.try_complete_else_watch(operation, ["some-key"])
    ...
    purgatory.check_and_complete("some-key")    # when something happened

An operation completes when an event on one of its keys finds its condition true, or expires.
"""

from purgatory import import_names as import_names  # first: it says so if `timer` is not ours
from purgatory.async_purgatory import AsyncPurgatory
from purgatory.closing import ClosePolicy
from purgatory.counters import CountersSnapshot
from purgatory.delayed_operation import FOREVER_MS, DelayedOperation
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.errors import (
    OperationReusedError,
    PurgatoryClosedError,
    PurgatoryFullError,
    WaitCancelledError,
)
from purgatory.expired_operation_reaper import ExpiredOperationReaper
from purgatory.lock_like import LockLike
from purgatory.operation_keys import (
    GroupJoinKey,
    GroupSyncKey,
    MemberKey,
    TopicKey,
    TopicPartitionOperationKey,
)
from purgatory.outcome import TRANSITIONS, Outcome
from purgatory.signals import close_on_signals
from purgatory.watchers import WatcherList, Watchers

__version__ = "0.1.0"

__all__ = [
    "FOREVER_MS",
    "TRANSITIONS",
    "AsyncPurgatory",
    "ClosePolicy",
    "CountersSnapshot",
    "DelayedOperation",
    "DelayedOperationPurgatory",
    "ExpiredOperationReaper",
    "GroupJoinKey",
    "GroupSyncKey",
    "LockLike",
    "MemberKey",
    "OperationReusedError",
    "Outcome",
    "PurgatoryClosedError",
    "PurgatoryFullError",
    "TopicKey",
    "TopicPartitionOperationKey",
    "WaitCancelledError",
    "WatcherList",
    "Watchers",
    "__version__",
    "close_on_signals",
]
