"""The whole analysis: traces in, tables and a page out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.auditing import RunConfiguration, audit
from purgatory.pipeline.auditing.witnesses import counts_order, witnesses_order
from purgatory.pipeline.distribution import DISTRIBUTION_ORDER, distribution
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.expiry import EXPIRY_ORDER, expiry
from purgatory.pipeline.occupancy import MOST_POINTS, SERIES, bucket_width_us, occupancy
from purgatory.pipeline.output import REPORT, check_output, output_folder
from purgatory.pipeline.report import Results, report_page
from purgatory.pipeline.rows import Row
from purgatory.pipeline.run_report import MOST_PLOTTED_RUNS
from purgatory.pipeline.session import spark_session
from purgatory.pipeline.traces import Trace, find_traces, read_table, spark_path
from purgatory.pipeline.waits import waits, waits_order

MOST_SMALL_OPERATIONS = 500_000
"""Up to how many operations an analysis spends more on starting Spark than on counting."""

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


@dataclass(frozen=True)
class Analysis:
    """The results: three of the tables as rows, and where the page is."""

    runs: Sequence[Row]
    waits: Sequence[Row]
    report: Path
    audit: Sequence[Row] = ()


def analyze(
    roots: Sequence[Path],
    out: Path,
    *,
    master: str = "local[*]",
    overwrite: bool = False,
    progress: bool | None = False,
) -> Analysis:
    """Analyze all traces in some folders, in a Spark session of its own.

    Args:
        roots: folders that are a trace each, or contain traces.
        out: the folder to make: Parquet in a folder per table, and `report.html`.
        master: the Spark master.
        overwrite: replace the results of an earlier analysis in `out`.
        progress: show on standard error how far Spark is; None does so on a terminal only.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    traces = find_traces(roots)
    check_output(out, [trace.folder for trace in traces], overwrite)
    small = sum(trace.rows["operations"] for trace in traces) <= MOST_SMALL_OPERATIONS
    with (
        output_folder(out) as folder,
        spark_session(master, small=small, progress=progress) as session,
    ):
        result = write_results(session, traces, folder)
    return Analysis(result.runs, result.waits, out / REPORT, result.audit)


def write_results(session: SparkSession, traces: Sequence[Trace], folder: Path) -> Analysis:
    """Compute everything with an open session, and write it into a folder that exists.

    Raises:
        TraceError: an operation that can't be.
    """
    operations = read_table(session, traces, "operations")
    runs = _runs(traces, _last_ends_us(operations, traces))
    spans = session.createDataFrame(
        runs.select(["run_id", "duration_us", "bucket_width_us"]).rename_columns(
            ["run_id", "end_us", "width_us"]
        )
    )
    _write(waits(operations), folder / "waits", waits_order())
    _write(occupancy(operations, spans), folder / "occupancy", [*SERIES, "bucket_start_us"])
    _write_audit(session, traces, folder)
    (folder / "runs").mkdir()
    pq.write_table(runs, folder / "runs" / "part-00000.parquet", compression="zstd")
    runs_rows = runs.to_pylist()
    plotted = runs_rows[:MOST_PLOTTED_RUNS]
    _write_drawn(operations, plotted, folder)
    results = _results(folder, runs_rows, [run["run_id"] for run in plotted])
    report = folder / REPORT
    report.write_text(report_page(results), encoding="utf-8")
    return Analysis(runs_rows, results.waits, report, results.audit)


def _write_audit(session: SparkSession, traces: Sequence[Trace], folder: Path) -> None:
    configuration = {trace.run_id: RunConfiguration(complete=trace.complete) for trace in traces}
    sends, reads = (read_table(session, traces, name) for name in ("sends", "reads"))
    with audit(sends, reads, configuration=configuration) as audited:
        _write(audited.audit, folder / "audit", counts_order())
        _write(audited.witnesses, folder / "witnesses", witnesses_order())


def _write_drawn(operations: DataFrame, plotted: Sequence[Row], folder: Path) -> None:
    """Write the tables that only plots show, of the runs that get plots."""
    run_ids = [run["run_id"] for run in plotted]
    drawn = operations.where(f.col("run_id").isin(run_ids))
    _write(distribution(drawn), folder / "distribution", DISTRIBUTION_ORDER)
    _write(expiry(drawn), folder / "expiry", EXPIRY_ORDER)
    waited = drawn.where("outcome != 'immediate'")
    over_time = [
        waits(
            waited.where(f.col("run_id").isin([run["run_id"] for run in of_width])),
            window_us=width_us,
            percentiles="approximate",
        )
        for width_us, of_width in _by_window(plotted).items()
    ]
    _write(reduce(DataFrame.unionByName, over_time), folder / "waits_over_time", waits_order())


def _by_window(runs: Sequence[Row]) -> dict[int, list[Row]]:
    """Runs by the width of their windows of time: 1, 2 or 5 times a power of ten microseconds."""
    widths: dict[int, list[Row]] = {}
    for run in runs:
        width_us = bucket_width_us(math.ceil(run["duration_us"] * MOST_POINTS / MOST_WINDOWS))
        widths.setdefault(width_us, []).append(run)
    return widths


def _results(folder: Path, runs: Sequence[Row], plotted: Sequence[str]) -> Results:
    """The rows for the page, from the tables as they were written."""

    def rows(table: str, of_plotted: bool = False) -> list[Row]:
        chosen = pc.field("run_id").isin(plotted) if of_plotted else None
        found: list[Row] = pq.read_table(folder / table, filters=chosen).to_pylist()
        return found

    return Results(
        runs,
        waits=rows("waits"),
        occupancy=rows("occupancy", of_plotted=True),
        over_time=rows("waits_over_time"),
        distribution=rows("distribution"),
        expiry=rows("expiry"),
        audit=rows("audit"),
        witnesses=rows("witnesses", of_plotted=True),
    )


def _write(table: DataFrame, folder: Path, order: Sequence[str | Column]) -> None:
    """Write a result as one sorted file, from which it can be read without being computed again."""
    table.repartition(1).sortWithinPartitions(*order).write.parquet(spark_path(folder))


def _runs(traces: Sequence[Trace], last_ends_us: Mapping[str, int]) -> pa.Table:
    rows = []
    for trace in traces:
        duration_us = max(trace.duration_ms * 1000, last_ends_us.get(trace.run_id, 0))
        rows.append(
            {
                "run_id": trace.run_id,
                "scenario": trace.scenario,
                "seed": trace.seed,
                "complete": trace.complete,
                "duration_us": duration_us,
                "bucket_width_us": bucket_width_us(duration_us),
                **trace.rows,
                "faults": [asdict(fault) for fault in trace.faults],
                "folder": str(trace.folder),
            }
        )
    return pa.Table.from_pylist(rows, schema=_RUNS)


def _last_ends_us(operations: DataFrame, traces: Sequence[Trace]) -> dict[str, int]:
    """When the last operation of each run ended, after a look at all of them."""
    run_ids = {trace.run_id: trace.folder for trace in traces}
    impossible = f.coalesce(
        f.expr("start_us < 0 or end_us < start_us or wait_us != end_us - start_us"), f.lit(True)
    )
    for name in ("purgatory", "broker", "kind", "outcome"):
        impossible = impossible | f.col(name).isNull()
    found = operations.groupBy("run_id").agg(
        f.max("end_us").alias("end_us"), f.min(f.when(impossible, f.col("operation"))).alias("bad")
    )
    ends_us = {}
    for run_id, end_us, bad in found.collect():
        if run_id not in run_ids:
            raise TraceError(
                f"operations of the run {run_id!r} lie in the trace of another run; "
                f"the traces are {', '.join(map(str, run_ids.values()))}"
            )
        if bad is not None:
            raise TraceError(
                f"{run_ids[run_id]}: operation {bad} can't be: purgatory, broker, kind and outcome "
                "must be there, and 0 <= start_us <= end_us = start_us + wait_us"
            )
        ends_us[run_id] = end_us
    return ends_us
