"""The audit of traces on disk: their configuration, and the tables of the result as Parquet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Unpack

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.engines.result_folder import (
    OutputFolder,
    sorted_rows,
    write_sorted,
    write_table,
)
from purgatory.pipeline.engines.results import AuditedTraces
from purgatory.pipeline.engines.spark.connect import local_table
from purgatory.pipeline.engines.spark.opened_traces import Running, opened_traces
from purgatory.pipeline.ingest.spark_quarantine import checked
from purgatory.pipeline.ingest.spark_reader import id_texts, read_table
from purgatory.pipeline.ingest.stores import Place
from purgatory.pipeline.ingest.trace_set import Trace
from purgatory.pipeline.jobs.audit.anomalies import AUDITED, OPTIONAL, WITNESSES
from purgatory.pipeline.jobs.audit.audit_job import Audit, audit
from purgatory.pipeline.jobs.audit.client_settings import configuration_of
from purgatory.pipeline.jobs.audit.witnesses import counts_order, witnesses_order
from purgatory.pipeline.jobs.run_spans import run_heads
from purgatory.pipeline.result_rows import Row, negative_ids, with_texts


def audit_traces(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    with_witnesses: bool = False,
    **how: Unpack[Running],
) -> AuditedTraces:
    """Audit all traces in some folders, in a Spark session of its own.

    Args:
        roots, out, how: as `opened_traces` takes them; `out` gets Parquet in `audit` and
            `witnesses`. The run of a row that is set aside is incomplete.
        expect: what is a violation even where a setting permits it, as `audit.audit` has it.
        witnesses: how many cases of each run and anomaly are written with their rows.
        with_witnesses: as `audit_traces.audit_traces` has it; they cost Spark a job of their own.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    with opened_traces(roots, out, ("sends", "reads"), **how) as run:
        check = checked(run.session, run.found, AUDITED, strict=run.strict)
        bad = check.by_run()
        traces, shown = run.found.traces, None
        if run.folder is None:
            with trace_audit(
                run.session, traces, expect=expect, witnesses=witnesses, damaged=bad
            ) as audited:
                counts = sorted_rows(audited.audit, counts_order())
                if with_witnesses:
                    shown = sorted_rows(audited.witnesses, witnesses_order())
        else:
            counts, shown = write_audit(
                run.session, traces, run.folder, expect=expect, witnesses=witnesses, damaged=bad
            )
        rows: Sequence[Row] = () if shown is None else shown.to_pylist()
        if check.has_texts:
            rows = told_texts(run.session, traces, rows, run.folder)
        rows = rows if with_witnesses else ()
        return AuditedTraces(counts.to_pylist(), bad, rows, run_heads(traces))


def told_texts(
    session: SparkSession,
    traces: Sequence[Trace],
    witnesses: Sequence[Row],
    folder: OutputFolder | None,
) -> Sequence[Row]:
    """Rows of `witnesses` with the ids that are texts; these go into the table `ids`, too."""
    numbers = local_table(session, [(one,) for one in negative_ids(witnesses)], "number bigint")
    found = id_texts(session, traces, AUDITED).join(f.broadcast(numbers), "number").distinct()
    texts = sorted_rows(found.where("cast(number AS string) <> text"), ["number"])
    if not texts.num_rows:
        return witnesses
    if folder is not None:
        write_table(texts, folder / "ids")
    return with_texts(witnesses, {row["number"]: row["text"] for row in texts.to_pylist()})


def write_audit(
    session: SparkSession,
    traces: Sequence[Trace],
    folder: OutputFolder,
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    damaged: Collection[str] = (),
) -> tuple[pa.Table, pa.Table]:
    """Audit traces with an open session, and write `audit` and `witnesses` into a folder.

    Returns:
        Both tables.
    """
    with trace_audit(
        session, traces, expect=expect, witnesses=witnesses, damaged=damaged
    ) as audited:
        rows = sorted_rows(audited.audit, counts_order())
        write_table(rows, folder / "audit")
        return rows, write_sorted(audited.witnesses, folder / "witnesses", witnesses_order())


def trace_audit(
    session: SparkSession,
    traces: Sequence[Trace],
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    damaged: Collection[str] = (),
) -> Audit:
    """The audit of traces, judged by the configuration that their heads tell.

    Args:
        session, traces: where to read, and what.
        expect, witnesses: as `audit.audit` has them.
        damaged: ids of runs of which rows were left out: they count as incomplete.

    Raises:
        TraceError: a configuration that contradicts itself.
    """
    tables = {name: read_table(session, traces, name) for name in ("sends", "reads")}
    for name in OPTIONAL:
        if any(part.rows != 0 for trace in traces for part in trace.files[name]):
            tables[name] = read_table(session, traces, name)
    return audit(
        tables["sends"],
        tables["reads"],
        tables.get("effects"),
        tables.get("commits"),
        transactions=tables.get("transactions"),
        configuration=configuration_of(traces, damaged),
        witnesses=witnesses,
        expect=expect,
    )
