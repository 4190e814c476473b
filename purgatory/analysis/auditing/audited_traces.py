"""What an audit of traces on disk gives to who asked for it, whichever engine did it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from purgatory.analysis.result_rows import Row


@dataclass(frozen=True)
class AuditedTraces:
    """The tables of an audit, and what a page needs beside them.

    Attributes:
        rows: those of the table `audit`, in its order.
        bad_rows: how many bad rows of which run it lacks.
        witnesses: rows of the table of that name, if they were asked for.
        heads: what the heads of the runs tell, as a page has it.
    """

    rows: Sequence[Row]
    bad_rows: Mapping[str, int]
    witnesses: Sequence[Row] = ()
    heads: Sequence[Row] = ()
