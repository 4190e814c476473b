"""The audit of traces on disk, in this process: the tables of the result, and as Parquet."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Unpack

from purgatory.analysis.auditing.anomalies import COUNTS_ORDER, WITNESSES_ORDER
from purgatory.analysis.auditing.audit_limits import WITNESSES
from purgatory.analysis.auditing.audited_tables import AUDITED
from purgatory.analysis.auditing.audited_traces import AuditedTraces
from purgatory.analysis.auditing.head_configuration import configuration_of
from purgatory.analysis.duckdb_engine.audit_tables import audit_tables
from purgatory.analysis.duckdb_engine.opened_tables import OpenedTables, opened_tables
from purgatory.analysis.duckdb_engine.ordered_results import rows_of, write_table
from purgatory.analysis.findings import Findings, findings_of
from purgatory.analysis.run_times import run_heads
from purgatory.analysis.running import RunningAnywhere
from purgatory.analysis.uris.places import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike

    from purgatory.analysis.row_order import Order
    from purgatory.analysis.uris.places import Place

_TABLES: Mapping[str, Order] = {"audit": COUNTS_ORDER, "witnesses": WITNESSES_ORDER}


def audit(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    **how: Unpack[RunningAnywhere],
) -> Findings:
    """Audit traces in this process, without Java.

    Args:
        paths: a folder or several, each a trace or with traces in it at any depth; `s3://` as
            well.
        expect: `order`, `once`, `no-loss`, `one-writer`: what is a violation even where the
            settings permit it.
        witnesses: how many cases of each run and anomaly come with their rows.
        how: as `opened_tables` takes it.

    Raises:
        TraceError: there are no traces there, or, strict, something in them is bad.
        ValueError: an unknown expectation, or a number below 0.
    """
    roots = [paths] if isinstance(paths, str) or hasattr(paths, "__fspath__") else list(paths)
    places = [place(os.fspath(root)) for root in roots]
    with _audited(places, None, expect, witnesses, **how) as (run, bad):
        audit, shown = (rows_of(run.connection, *table) for table in _TABLES.items())
        return findings_of(audit, run.with_texts(shown), bad, expect)


def audit_traces(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    with_witnesses: bool = False,
    **how: Unpack[RunningAnywhere],
) -> AuditedTraces:
    """Audit all traces in some folders; `auditing.audit_results.audit_traces` without Spark.

    Args:
        roots, out, how: as `opened_tables` takes them; `out` gets Parquet in `audit` and
            `witnesses`.
        expect, witnesses: as `auditing.audit_job.audit` has them.
        with_witnesses: as `audit_traces.audit_traces` has it.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    with _audited(roots, out, expect, witnesses, **how) as (run, bad):
        if run.folder is not None:
            for table, order in _TABLES.items():
                write_table(run.connection, table, order, run.folder)
        counts = rows_of(run.connection, "audit", COUNTS_ORDER)
        shown = run.with_texts(rows_of(run.connection, "witnesses", WITNESSES_ORDER))
        rows = shown if with_witnesses else ()
        return AuditedTraces(counts, bad, rows, run_heads(run.found.traces))


@contextmanager
def _audited(
    roots: Sequence[Place],
    out: Place | None,
    expect: Sequence[str],
    witnesses: int,
    **how: Unpack[RunningAnywhere],
) -> Iterator[tuple[OpenedTables, Mapping[str, int]]]:
    """The tables of traces, with those of their audit, and how many rows of which run are bad.

    The run of a bad row is incomplete.
    """
    with opened_tables(roots, out, AUDITED, "audit", **how) as run:
        bad = run.read.bad_rows()
        configuration = configuration_of(run.found.traces, bad)
        audit_tables(run.connection, configuration, witnesses, expect=expect)
        yield run, bad
