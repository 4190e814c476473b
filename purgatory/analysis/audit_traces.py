"""The audit of traces on disk, by whichever engine is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from purgatory.analysis.auditing.audit_limits import WITNESSES
from purgatory.analysis.auditing.audited_traces import AuditedTraces
from purgatory.analysis.running import RunningAnywhere
from purgatory.analysis.uris.places import Place, require_one_file
from purgatory.analysis.which_engine import Engine


def audit_traces(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    engine: Engine = "spark",
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    with_witnesses: bool = False,
    master: str = "local[*]",
    partition_by: str | None = None,
    **how: Unpack[RunningAnywhere],
) -> AuditedTraces:
    """Audit all traces in some folders.

    Args:
        roots: folders that are a trace each, or contain traces; URIs of such as well, or,
            for Spark, tables of a catalog.
        out: the folder to make, at a URI as well, with Parquet in `audit` and
            `witnesses`; None writes nothing.
        engine: what computes; only that one is imported.
        expect, witnesses: as `auditing.audit_job.audit` has them.
        with_witnesses: whether the rows of the witnesses are given too, for a page.
        master: the Spark master; DuckDB has none.
        partition_by: the column by which Spark's tasks part each table of results.
        how: as `RunningAnywhere` has it.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    if engine == "spark":
        from purgatory.analysis.auditing import audit_results

        return audit_results.audit_traces(
            roots,
            out,
            expect=expect,
            witnesses=witnesses,
            with_witnesses=with_witnesses,
            master=master,
            partition_by=partition_by,
            **how,
        )
    require_one_file(partition_by)
    from purgatory.analysis.duckdb_engine import audit_folders

    return audit_folders.audit_traces(
        roots,
        out,
        expect=expect,
        witnesses=witnesses,
        with_witnesses=with_witnesses,
        **how,
    )
