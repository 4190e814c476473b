"""The whole analysis: traces in, tables and a page out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Unpack

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.analysis.auditing.audit_results import write_audit
from purgatory.analysis.bucket_widths import MOST_POINTS, bucket_width_us
from purgatory.analysis.distribution import DISTRIBUTION_ORDER, distribution
from purgatory.analysis.engines import sorting
from purgatory.analysis.expiry import EXPIRY_ORDER, expiry
from purgatory.analysis.latencies import latencies, latencies_order
from purgatory.analysis.occupancy_job import occupancy
from purgatory.analysis.opened_traces import Running, opened_traces
from purgatory.analysis.reports.report import report_page
from purgatory.analysis.reports.report_results import Results
from purgatory.analysis.reports.run_report import MOST_PLOTTED_RUNS
from purgatory.analysis.result_folder import REPORT, write_sorted, write_table
from purgatory.analysis.result_rows import Row
from purgatory.analysis.traces.quarantine import checked, write_none
from purgatory.analysis.traces.row_check import RowCheck
from purgatory.analysis.traces.survey import Refused, Survey, Trace
from purgatory.analysis.traces.trace_rows import read_table
from purgatory.analysis.waiting_orders import OCCUPANCY_ORDERS, WAITS_ORDER
from purgatory.analysis.waits_job import waits

MOST_WINDOWS = 60
"""The most windows of time that a run's waits over time have."""

_RUNS = pa.schema(
    [
        ("run_id", pa.string()),
        ("scenario", pa.string()),
        ("seed", pa.int64()),
        ("complete", pa.bool_()),
        ("duration_us", pa.int64()),
        ("bucket_width_us", pa.int64()),
        ("operations", pa.int64()),
        ("sends", pa.int64()),
        ("reads", pa.int64()),
        (
            "faults",
            pa.list_(
                pa.struct(
                    [
                        ("kind", pa.string()),
                        ("at_ms", pa.int64()),
                        ("duration_ms", pa.int64()),
                        ("broker", pa.int64()),
                    ]
                )
            ),
        ),
        ("folder", pa.string()),
    ]
)

_COUNTED = ("operations", "sends", "reads")


@dataclass(frozen=True)
class Analysis:
    """The results: four of the tables as rows, and where the page is."""

    runs: Sequence[Row]
    waits: Sequence[Row]
    report: Path
    latencies: Sequence[Row] = ()
    audit: Sequence[Row] = ()
    quarantine: Sequence[Row] = ()
    """How much was left out: `table`, `reason`, `rows`, and `files` that were left out whole."""


def analyze(
    roots: Sequence[Path], out: Path, *, notes: Sequence[str] = (), **how: Unpack[Running]
) -> Analysis:
    """Analyze all traces in some folders, in a Spark session of its own.

    Args:
        roots, out, how: as `opened_traces` takes them; `out` gets Parquet in a folder per table,
            bad rows and files in `quarantine`, and `report.html`.
        notes: sections to stand in the report before those of the runs, as HTML.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    with opened_traces(roots, out, **how) as run:
        assert run.folder is not None, "there is a folder to write into"
        result = write_results(
            run.session,
            run.found.traces,
            run.folder,
            refused=run.found.refused,
            strict=run.strict,
            notes=notes,
        )
    return replace(result, report=out / REPORT)


def write_results(
    session: SparkSession,
    traces: Sequence[Trace],
    folder: Path,
    *,
    refused: Sequence[Refused] = (),
    strict: bool = False,
    notes: Sequence[str] = (),
) -> Analysis:
    """Compute everything with an open session, and write it into a folder that exists.

    Args:
        session: any open session.
        traces, refused: what a survey found.
        folder: where to.
        strict: stop at a bad row or file.
        notes: sections to stand in the report before those of the runs, as HTML.

    Raises:
        TraceError: strict, and a row or file is bad.
    """
    check = checked(session, Survey(traces, refused), folder=folder, strict=strict)
    if check.is_clean:
        write_none(folder)
    runs = _runs(traces, check)
    sends, operations = (read_table(session, traces, name) for name in ("sends", "operations"))
    spans = session.createDataFrame(
        runs.select(["run_id", "duration_us", "bucket_width_us"]).rename_columns(
            ["run_id", "end_us", "width_us"]
        )
    )
    of_waits = write_sorted(waits(operations), folder / "waits", sorting(WAITS_ORDER))
    of_latencies = write_sorted(latencies(sends), folder / "latencies", latencies_order())
    sizes = write_sorted(
        occupancy(operations, spans), folder / "occupancy", sorting(OCCUPANCY_ORDERS["occupancy"])
    )
    audit, witnesses = write_audit(session, traces, folder, damaged=check.by_run())
    write_table(runs, folder / "runs")
    rows = runs.to_pylist()
    plotted = rows[:MOST_PLOTTED_RUNS]
    of_plotted = pc.field("run_id").isin([run["run_id"] for run in plotted])
    results = Results(
        rows,
        waits=of_waits.to_pylist(),
        latencies=of_latencies.to_pylist(),
        occupancy=sizes.filter(of_plotted).to_pylist(),
        audit=audit.to_pylist(),
        witnesses=witnesses.filter(of_plotted).to_pylist(),
        **_write_drawn(operations, plotted, folder),
    )
    report = folder / REPORT
    report.write_text(report_page(results, notes), encoding="utf-8")
    return Analysis(rows, results.waits, report, results.latencies, results.audit, check.counts())


def _write_drawn(
    operations: DataFrame, plotted: Sequence[Row], folder: Path
) -> dict[str, Sequence[Row]]:
    """Write the tables that only plots show, of the runs that get plots; return their rows."""
    run_ids = [run["run_id"] for run in plotted]
    drawn = operations.where(f.col("run_id").isin(run_ids))
    bins = write_sorted(distribution(drawn), folder / "distribution", DISTRIBUTION_ORDER)
    expired = write_sorted(expiry(drawn), folder / "expiry", EXPIRY_ORDER)
    waited = drawn.where("outcome != 'immediate'")
    over_time = [
        waits(
            waited.where(f.col("run_id").isin([run["run_id"] for run in of_width])),
            window_us=width_us,
            percentiles="approximate",
        )
        for width_us, of_width in _by_window(plotted).items()
    ]
    windows = write_sorted(
        reduce(DataFrame.unionByName, over_time), folder / "waits_over_time", sorting(WAITS_ORDER)
    )
    return {
        "distribution": bins.to_pylist(),
        "expiry": expired.to_pylist(),
        "over_time": windows.to_pylist(),
    }


def _by_window(runs: Sequence[Row]) -> dict[int, list[Row]]:
    """Runs by the width of their windows of time: 1, 2 or 5 times a power of ten microseconds."""
    widths: dict[int, list[Row]] = {}
    for run in runs:
        width_us = bucket_width_us(math.ceil(run["duration_us"] * MOST_POINTS / MOST_WINDOWS))
        widths.setdefault(width_us, []).append(run)
    return widths


def _runs(traces: Sequence[Trace], check: RowCheck) -> pa.Table:
    rows = []
    for trace in traces:
        duration_us = max(trace.duration_ms * 1000, check.last_ends_us.get(trace.run_id, 0))
        rows.append(
            {
                "run_id": trace.run_id,
                "scenario": trace.scenario,
                "seed": trace.seed,
                "complete": trace.complete,
                "duration_us": duration_us,
                "bucket_width_us": bucket_width_us(duration_us),
                **{table: check.good[table].get(trace.run_id, 0) for table in _COUNTED},
                "faults": [asdict(fault) for fault in trace.faults],
                "folder": str(trace.folder),
            }
        )
    return pa.Table.from_pylist(rows, schema=_RUNS)
