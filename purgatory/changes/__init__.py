"""A database's change log, applied to another database exactly once.

    from purgatory.changes import Record, apply_batch, open_target

    target = open_target("sqlite:///copy.db")
    target.prepare()
    apply_batch(target, "changes", 0, records)

None of this needs Spark, which is imported by `purgatory.changes.apply.streaming` alone.
"""

from __future__ import annotations

from purgatory.changes.apply.apply_options import ApplyOptions, TableSpec
from purgatory.changes.apply.exactly_once import Applied
from purgatory.changes.apply.row_by_row import apply_batch
from purgatory.changes.change import Change, parse_change
from purgatory.changes.errors import (
    BadChangeError,
    ChangesError,
    StoppedOnBadError,
    TargetError,
)
from purgatory.changes.record import Record
from purgatory.changes.targets import Target, open_target

__all__ = [
    "Applied",
    "ApplyOptions",
    "BadChangeError",
    "Change",
    "ChangesError",
    "Record",
    "StoppedOnBadError",
    "TableSpec",
    "Target",
    "TargetError",
    "apply_batch",
    "open_target",
    "parse_change",
]
