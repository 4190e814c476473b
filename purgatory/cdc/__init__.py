"""Change data capture: captures a database's changes, and applies them exactly once to another.

    from purgatory.cdc import Record, apply_batch, open_target

    target = open_target("sqlite:///copy.db")
    target.prepare()
    apply_batch(target, "changes", 0, records)

Only `purgatory.cdc.apply.spark_engine` needs Spark, and only `purgatory.cdc.apply.local_engine` and
it need a Kafka client.
"""

from __future__ import annotations

from purgatory.cdc.apply.applier import apply_batch
from purgatory.cdc.apply.exactly_once import Applied
from purgatory.cdc.apply.options import ApplyOptions, TableSpec
from purgatory.cdc.change import Change, Record, parse_change
from purgatory.cdc.errors import ChangesError, QuarantineStopError, TargetError
from purgatory.cdc.quarantine import InvalidChangeError
from purgatory.cdc.targets import Target, open_target

__all__ = [
    "Applied",
    "ApplyOptions",
    "Change",
    "ChangesError",
    "InvalidChangeError",
    "QuarantineStopError",
    "Record",
    "TableSpec",
    "Target",
    "TargetError",
    "apply_batch",
    "open_target",
    "parse_change",
]
