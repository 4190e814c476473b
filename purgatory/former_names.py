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
    "purgatory.analysis": "purgatory.pipeline",
    "purgatory.cdc.BadChangeError": "purgatory.cdc.InvalidChangeError",
    "purgatory.cdc.StoppedOnBadError": "purgatory.cdc.QuarantineStopError",
    "purgatory.cdc.apply.row_by_row": "purgatory.cdc.apply.applier",
    "purgatory.cdc.apply.streaming": "purgatory.cdc.apply.spark_engine",
    "purgatory.changes": "purgatory.cdc",
    "purgatory.client": "purgatory.source",
    "purgatory.kafka.faults.Answer": "ReturnError",
    "purgatory.kafka.faults.DelayAnswers": "DelayResponses",
    "purgatory.kafka.faults.DuplicateAnswers": "DuplicateResponses",
    "purgatory.kafka.faults.ErrorFault": "ReturnError",
    "purgatory.kafka.faults.LoseAnswers": "LoseResponses",
    "purgatory.kafka.faults.SlowAnswers": "SlowResponses",
    "purgatory.kafka.faults.TearAnswers": "TruncateResponses",
    "purgatory.kafka.faults.TurnBackEpochs": "LowerLeaderEpochs",
    "purgatory.kafka.replication.fetch": "purgatory.kafka.replication.replica_manager",
    "purgatory.kafka.replication.log_read": "purgatory.kafka.replication.partition",
    "purgatory.kafka.replication.partition_registry": "purgatory.kafka.replication.replica_manager",
    "purgatory.kafka.replication.replica": "purgatory.kafka.replication.partition",
    "purgatory.live": "purgatory.stream",
    "purgatory.pipeline.analyze": "purgatory.pipeline.engines.run.run_job",
    "purgatory.pipeline.auditing": "purgatory.pipeline.jobs.audit",
    "purgatory.pipeline.littles_law": "the functions occupancy and waits beside it",
    "purgatory.pipeline.source": "purgatory.source",
    "purgatory.pipeline.stream": "purgatory.stream",
    "purgatory.pipeline.sweeps": "purgatory.sweeps",
    "purgatory.pipeline.waiting_runs": "purgatory.pipeline.engines.spark.frames",
    "purgatory.sweeps.project_package": "purgatory.sweeps.run.write_package",
    "purgatory.sweeps.surfaces": "purgatory.sweeps.heatmaps",
    "purgatory.sweeps.sweep_plan": "purgatory.sweeps.plan",
    "purgatory.sweeps.sweep_run": "purgatory.sweeps.run",
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
