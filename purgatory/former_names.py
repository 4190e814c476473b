"""Names of earlier releases: each raises, with the name of today in the text, for two releases.

A module, or a name in a package, stands in `FORMER`. A name in a module that is no package needs
that module's `__getattr__` to call `check_former`, too. A method or an attribute of a class is a
`FormerName` in that class.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

from timer import former_names
from timer.former_names import FormerName, advice

__all__ = ["FORMER", "FormerName", "check_former", "install"]

FORMER: Mapping[str, str] = {
    "purgatory.ClosePolicy": "purgatory.core.closing.ClosePolicy",
    "purgatory.CountersSnapshot": "purgatory.core.counters.CountersSnapshot",
    "purgatory.FOREVER_MS": "delay_ms=None",
    "purgatory.GroupJoinKey": "purgatory.core.keys.GroupJoinKey",
    "purgatory.GroupSyncKey": "purgatory.core.keys.GroupSyncKey",
    "purgatory.Keys": "purgatory.core.keys.Keys",
    "purgatory.LockLike": "purgatory.core.locks.LockLike",
    "purgatory.MemberKey": "purgatory.core.keys.MemberKey",
    "purgatory.TRANSITIONS": "the docstrings of purgatory.Outcome",
    "purgatory.TopicKey": "purgatory.core.keys.TopicKey",
    "purgatory.TopicPartitionOperationKey": "purgatory.core.keys.TopicPartitionOperationKey",
    "purgatory.TransactionKey": "purgatory.core.keys.TransactionKey",
    "purgatory.WatcherList": "purgatory.core.watchers.WatcherList",
    "purgatory.changes": "purgatory.cdc",
    **former_names.FORMER,
}
"""The full name of a former module, or of a name in a module that still exists, and what to use."""


def check_former(module: str, name: str) -> None:
    """Raise ImportError if a module had this name in an earlier release."""
    former_names.check_former(FORMER, module, name)


class _FormerModules(MetaPathFinder):
    """The finder of last resort: the text for an import of a former module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        if name in FORMER:
            # With `name=`, `from package import name` would put a text of its own in its place.
            raise ModuleNotFoundError(advice(name, FORMER[name]))
        return None


def install() -> None:
    """Have imports of former modules say what to use."""
    if not any(type(finder).__name__ == _FormerModules.__name__ for finder in sys.meta_path):
        sys.meta_path.append(_FormerModules())
