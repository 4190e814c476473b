"""A purgatory for delayed operations: keyed watch lists over a layered timing wheel.

    purgatory = DelayedOperationPurgatory("Fetch")
    purgatory.try_complete_else_watch(operation, ["some-key"])
    ...
    purgatory.check_and_complete("some-key")    # when something happened

An operation completes when an event on one of its keys finds its condition true, or expires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from purgatory import import_names as import_names  # first: it says so if `timer` is not ours
from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.closing import ClosePolicy
from purgatory.core.counters import CountersSnapshot
from purgatory.core.delayed_operation import DelayedOperation
from purgatory.core.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.core.errors import (
    OperationReusedError,
    PurgatoryClosedError,
    PurgatoryFullError,
    WaitCancelledError,
)
from purgatory.core.expired_operation_reaper import ExpiredOperationReaper
from purgatory.core.life import TRANSITIONS
from purgatory.core.lock_like import LockLike
from purgatory.core.operation_keys import (
    GroupJoinKey,
    GroupSyncKey,
    MemberKey,
    TopicKey,
    TopicPartitionOperationKey,
    TransactionKey,
)
from purgatory.core.outcome import Outcome
from purgatory.core.signals import close_on_signals
from purgatory.core.timeout import FOREVER_MS
from purgatory.core.watchers import WatcherList, Watchers

if TYPE_CHECKING:
    from purgatory.analysis.duckdb_engine.audit_folders import audit as audit

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
    "TransactionKey",
    "WaitCancelledError",
    "WatcherList",
    "Watchers",
    "__version__",
    "audit",
    "close_on_signals",
]

if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        """Import the audit, which needs the extra `analysis`, when it is first asked for."""
        if name != "audit":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from purgatory.analysis.duckdb_engine.audit_folders import audit

        return audit
