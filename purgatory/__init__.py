"""A purgatory for delayed operations: keyed watch lists over a layered timing wheel.

    purgatory = DelayedOperationPurgatory("Fetch")
    purgatory.try_complete_else_watch(operation, ["some-key"])
    ...
    purgatory.check_and_complete("some-key")    # when something happened

An operation completes when an event on one of its keys finds its condition true, or expires.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from purgatory import import_names as import_names  # first: it says so if `timer` is not ours
from purgatory.former_names import check_former, install
from purgatory.settings.version import __version__ as __version__

install()

if TYPE_CHECKING:
    from purgatory.core.async_purgatory import AsyncPurgatory
    from purgatory.core.closing import ClosePolicy
    from purgatory.core.counters import CountersSnapshot
    from purgatory.core.errors import (
        OperationReusedError,
        PurgatoryClosedError,
        PurgatoryFullError,
        WaitCancelledError,
    )
    from purgatory.core.keys import (
        GroupJoinKey,
        GroupSyncKey,
        Keys,
        MemberKey,
        TopicKey,
        TopicPartitionOperationKey,
        TransactionKey,
    )
    from purgatory.core.locks import LockLike
    from purgatory.core.operation import DelayedOperation
    from purgatory.core.purgatory import DelayedOperationPurgatory
    from purgatory.core.reaper import ExpiredOperationReaper
    from purgatory.core.signals import close_on_signals
    from purgatory.core.states import FOREVER_MS, TRANSITIONS, Outcome
    from purgatory.core.watchers import WatcherList, Watchers
    from purgatory.debug.description import describe
    from purgatory.pipeline.engines.trace_audit import audit

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
    "Keys",
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
    "describe",
]

_HOMES = {
    "AsyncPurgatory": "core.async_purgatory",
    "ClosePolicy": "core.closing",
    "CountersSnapshot": "core.counters",
    "DelayedOperation": "core.operation",
    "DelayedOperationPurgatory": "core.purgatory",
    "ExpiredOperationReaper": "core.reaper",
    "FOREVER_MS": "core.states",
    "GroupJoinKey": "core.keys",
    "GroupSyncKey": "core.keys",
    "Keys": "core.keys",
    "LockLike": "core.locks",
    "MemberKey": "core.keys",
    "OperationReusedError": "core.errors",
    "Outcome": "core.states",
    "PurgatoryClosedError": "core.errors",
    "PurgatoryFullError": "core.errors",
    "TRANSITIONS": "core.states",
    "TopicKey": "core.keys",
    "TopicPartitionOperationKey": "core.keys",
    "TransactionKey": "core.keys",
    "WaitCancelledError": "core.errors",
    "WatcherList": "core.watchers",
    "Watchers": "core.watchers",
    "audit": "pipeline.engines.trace_audit",
    "close_on_signals": "core.signals",
    "describe": "debug.description",
}
"""The module of this package that has each name: it is imported when that is first asked for."""

if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        """Import what is asked for: most programs need little of it, and `audit` needs an extra."""
        if name not in _HOMES:
            check_former(__name__, name)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if name != "audit":
                raise
            # `from purgatory import *` and completion work without the extra: a call names it.
            return import_names.raises_when_called(f"{__name__}.{name}", "analysis", error)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return list(__all__)
