"""What an audit of traces on disk gives to who asked for it, whichever engine did it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from purgatory.analysis.result_rows import Row


@dataclass(frozen=True)
class AuditedTraces:
    """The rows of the table `audit` in its order, and how many bad rows of which run it lacks."""

    rows: Sequence[Row]
    bad_rows: Mapping[str, int]
