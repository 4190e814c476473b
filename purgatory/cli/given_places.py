"""Where traces are and results go, of what was given on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.ingest.stores import Place, TableName, place


def given_traces(traces: Sequence[str] | None, tables: Sequence[str] | None = None) -> list[Place]:
    """Where the traces are, of what was given as `Traces` and `FromTable`.

    Raises:
        PipelineError: it is nothing, or both, or a place that can't be.
    """
    if bool(traces) == bool(tables):
        raise PipelineError("give TRACE... or --from-table, one of both")
    return [*map(place, traces or ()), *map(TableName, tables or ())]


def given_output(out: str | None, database: str | None) -> Place | None:
    """Where the results go, of what was given as `OptionalOutPlace` and `ToTable`.

    Raises:
        PipelineError: it is both, or a place that can't be.
    """
    if out is not None and database is not None:
        raise PipelineError("give --out or --to-table, one of both")
    return TableName(database) if database is not None else None if out is None else place(out)
