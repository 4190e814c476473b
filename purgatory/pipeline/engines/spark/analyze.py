"""The whole analysis by Spark: traces in, tables and a page out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Unpack

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.engines.result_folder import OutputFolder, write_sorted
from purgatory.pipeline.engines.results import (
    Analysis,
    run_rows,
    spans_of,
    window_us,
    write_report,
)
from purgatory.pipeline.engines.spark.audit import told_texts, write_audit
from purgatory.pipeline.engines.spark.connect import local_table
from purgatory.pipeline.engines.spark.opened_traces import Running, opened_traces
from purgatory.pipeline.ingest.spark_quarantine import checked, write_none
from purgatory.pipeline.ingest.spark_reader import read_table, spark_columns
from purgatory.pipeline.ingest.stores import Place
from purgatory.pipeline.ingest.trace_set import Refused, Survey, Trace
from purgatory.pipeline.jobs.expressions import sorting
from purgatory.pipeline.jobs.latencies import attempts, latencies
from purgatory.pipeline.jobs.occupancy import occupancy
from purgatory.pipeline.jobs.run_spans import SPANS
from purgatory.pipeline.jobs.tables import (
    ATTEMPTS_ORDER,
    DISTRIBUTION_ORDER,
    EXPIRY_ORDER,
    LATENCIES_ORDER,
    OCCUPANCY_ORDERS,
    WAITS_ORDER,
)
from purgatory.pipeline.jobs.waits import distribution, expiry, waits
from purgatory.pipeline.report.findings import Results
from purgatory.pipeline.report.report import MOST_PLOTTED_RUNS
from purgatory.pipeline.result_rows import Row, grouped


def tell_analysis(
    roots: Sequence[Place], out: Place, *, notes: Sequence[str] = (), **how: Unpack[Running]
) -> Analysis:
    """Analyze all traces in some folders, in a Spark session of its own.

    Args:
        roots, out, notes, how: as `analyze.analyze` has them.

    Raises:
        PipelineError: as `analyze.analyze` has it.
    """
    with opened_traces(roots, out, **how) as run:
        assert run.folder is not None, "there is a folder to write into"
        return write_results(
            run.session,
            run.found.traces,
            run.folder,
            refused=run.found.refused,
            strict=run.strict,
            notes=notes,
            roots=roots,
        )


def write_results(
    session: SparkSession,
    traces: Sequence[Trace],
    folder: OutputFolder,
    *,
    refused: Sequence[Refused] = (),
    strict: bool = False,
    notes: Sequence[str] = (),
    roots: Sequence[Place] = (),
) -> Analysis:
    """Compute everything with an open session, and write it into a folder that exists.

    Args:
        session: any open session.
        traces, refused: what a survey found.
        folder: where to.
        strict: stop at a bad row or file.
        notes: sections to stand in the report before those of the runs, as HTML.
        roots: the folders that were given, as the runs in two of them are compared.

    Raises:
        TraceError: strict, and a row or file is bad.
    """
    check = checked(session, Survey(traces, refused), folder=folder, strict=strict)
    if check.is_clean:
        write_none(folder)
    runs = run_rows(traces, check.last_ends_us, check.good)
    sends, reads, operations = (
        read_table(session, traces, name) for name in ("sends", "reads", "operations")
    )
    spans = local_table(session, spans_of(runs), spark_columns(SPANS))
    of_waits = write_sorted(waits(operations), folder / "waits", sorting(WAITS_ORDER))
    of_latencies = write_sorted(latencies(sends), folder / "latencies", sorting(LATENCIES_ORDER))
    of_attempts = write_sorted(attempts(sends, reads), folder / "attempts", sorting(ATTEMPTS_ORDER))
    sizes = write_sorted(
        occupancy(operations, spans), folder / "occupancy", sorting(OCCUPANCY_ORDERS["occupancy"])
    )
    audit, witnesses = write_audit(session, traces, folder, damaged=check.by_run())
    of_cases: Sequence[Row] = witnesses.to_pylist()
    if check.has_texts:
        of_cases = told_texts(session, traces, of_cases, folder)
    plotted = runs[:MOST_PLOTTED_RUNS]
    of_plotted = pc.field("run_id").isin([run["run_id"] for run in plotted])
    results = Results(
        runs,
        waits=of_waits.to_pylist(),
        latencies=of_latencies.to_pylist(),
        attempts=of_attempts.to_pylist(),
        occupancy=sizes.filter(of_plotted).to_pylist(),
        audit=audit.to_pylist(),
        witnesses=[row for row in of_cases if row["run_id"] in {run["run_id"] for run in plotted}],
        **_write_drawn(operations, plotted, folder),
    )
    return write_report(results, folder, notes, check.counts(), roots)


def _write_drawn(
    operations: DataFrame, plotted: Sequence[Row], folder: OutputFolder
) -> dict[str, Sequence[Row]]:
    """Write the tables that only plots show, of the runs that get plots; return their rows."""
    run_ids = [run["run_id"] for run in plotted]
    drawn = operations.where(f.col("run_id").isin(run_ids))
    bins = write_sorted(distribution(drawn), folder / "distribution", sorting(DISTRIBUTION_ORDER))
    expired = write_sorted(expiry(drawn), folder / "expiry", sorting(EXPIRY_ORDER))
    waited = drawn.where("outcome != 'immediate'")
    windows = [{**run, "window_us": window_us(run)} for run in plotted]
    over_time = [
        waits(
            waited.where(f.col("run_id").isin([run["run_id"] for run in of_width])),
            window_us=width_us,
            percentiles="approximate",
        )
        for width_us, of_width in grouped(windows, "window_us").items()
    ]
    told = write_sorted(
        reduce(DataFrame.unionByName, over_time), folder / "waits_over_time", sorting(WAITS_ORDER)
    )
    return {
        "distribution": bins.to_pylist(),
        "expiry": expired.to_pylist(),
        "over_time": told.to_pylist(),
    }
