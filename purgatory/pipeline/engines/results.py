"""The results of a job, from either engine: rows to show, the table `runs` and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.json

from purgatory.pipeline.engines.result_folder import (
    PARQUET_FILES,
    REPORT,
    OutputFolder,
    write_table,
    writing,
)
from purgatory.pipeline.jobs.registry import MOST_PLOTTED_RUNS
from purgatory.pipeline.jobs.run_spans import SPANS, run_window_us, span_rows
from purgatory.pipeline.result_rows import Row

if TYPE_CHECKING:
    from purgatory.pipeline.ingest.stores import Location, Uri
    from purgatory.pipeline.ingest.trace_set import Trace
    from purgatory.pipeline.jobs.registry import Job
    from purgatory.pipeline.report.findings import Results

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

_COUNT_COLUMNS = ("operations", "sends", "reads")


def run_rows(
    traces: Sequence[Trace],
    last_us: Mapping[str, int],
    good: Mapping[str, Mapping[str, int]],
) -> list[Row]:
    """The table `runs`.

    Args:
        traces: the runs.
        last_us: the end of the last operation of each run.
        good: the number of good rows by table and run.
    """
    spans: list[Row] = [dict(zip(SPANS, row, strict=True)) for row in span_rows(traces, last_us)]
    return [
        {
            "run_id": trace.run_id,
            "scenario": trace.scenario,
            "seed": trace.seed,
            "complete": trace.complete,
            "duration_us": max(span["end_us"], 0),
            "bucket_width_us": span["width_us"],
            **{table: good[table].get(trace.run_id, 0) for table in _COUNT_COLUMNS},
            "faults": [asdict(fault) for fault in trace.faults],
            "folder": str(trace.folder),
        }
        for trace, span in zip(traces, spans, strict=True)
    ]


@dataclass(frozen=True)
class JobResults:
    """The rows of a job that its caller shows; the output folder has all rows.

    Attributes:
        runs: a row per run, as a page shows it.
        rows: by the name of the view.
        truncated: the views that have more rows than these.
        quarantine: the number of `rows`, and of whole `files`, by `table` and `reason`.
        bad_rows: the number of quarantined rows by run.
        left_out: the same by `run_id`, `table` and `reason`, as `quarantine` has them.
        tables: the tables of which each run has rows.
        report: the page, if the job writes one.
    """

    job: Job
    runs: Sequence[Row]
    rows: Mapping[str, Sequence[Row]]
    truncated: Sequence[str] = ()
    quarantine: Sequence[Row] = ()
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    report: OutputFolder | Uri | None = None
    left_out: Sequence[Row] = ()
    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def run_ids(self) -> list[str]:
        """All runs."""
        return [run["run_id"] for run in self.runs]

    @property
    def incomplete(self) -> list[str]:
        """The runs that were interrupted, or of which files are missing or left out."""
        return [run["run_id"] for run in self.runs if not run["complete"]]

    def page(self) -> Results:
        """The rows that a page shows, without truncated views."""
        from purgatory.pipeline.report.findings import Results

        views = {name: view for name, view in self.job.views.items() if name in self.rows}
        rows_by_name = {
            view.page: self.rows[name]
            for name, view in views.items()
            if view.page is not None and name not in self.truncated
        }
        return Results(self.runs[: self.job.runs], left_out=self.left_out, **rows_by_name)


def write_runs(runs: Sequence[Row], folder: OutputFolder) -> None:
    """Write the table `runs`."""
    write_table(_runs_table(runs), folder / "runs")


def write_page(
    results: JobResults,
    folder: OutputFolder,
    notes: Sequence[str],
    roots: Sequence[Location],
    command: str = "",
) -> None:
    """Write the page beside the tables.

    Args:
        notes: sections of HTML before those of the runs.
        roots: the folders on the command line; the runs of two are compared.
        command: repeats the analysis.

    Raises:
        OutputError: there is no room for it.
    """
    names = [str(root) for root in roots]
    from purgatory.pipeline.report.replication import replication_results
    from purgatory.pipeline.report.report import report_page  # quicker where there is no page

    drawn = [run for run in results.runs[:MOST_PLOTTED_RUNS] if "://" not in run["folder"]]
    shown = replace(
        results.page(),
        replication=replication_results(drawn, lambda run: run_window_us(run["duration_us"])),
    )
    page = report_page(shown, notes, roots=names, parquet=PARQUET_FILES, command=command)
    with writing(folder / REPORT):
        (folder / REPORT).write_text(page, encoding="utf-8")


def _runs_table(runs: Sequence[Row]) -> pa.Table:
    """The table `runs`; through JSON, since Arrow imports pandas to look at Python's objects."""
    lines = "\n".join(map(json.dumps, runs)).encode("ascii")
    types = pa.json.ParseOptions(explicit_schema=_RUNS)
    return pa.json.read_json(pa.BufferReader(lines), parse_options=types)
