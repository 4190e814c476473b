"""The results of a whole analysis, whichever engine computed them: the runs, and the page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.json

from purgatory.analysis.bucket_widths import MOST_POINTS, bucket_width_us
from purgatory.analysis.catalog.task_output import TaskOutput
from purgatory.analysis.reports.report import report_page
from purgatory.analysis.reports.report_results import Results
from purgatory.analysis.result_folder import PARQUET_FILES, REPORT, write_table
from purgatory.analysis.result_rows import Row
from purgatory.analysis.run_times import SPANS, span_rows
from purgatory.analysis.uris.places import Place, Uri
from purgatory.analysis.uris.uri_folder import OutputFolder

if TYPE_CHECKING:
    from purgatory.analysis.traces.survey import Trace

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
    report: OutputFolder | Uri
    latencies: Sequence[Row] = ()
    audit: Sequence[Row] = ()
    quarantine: Sequence[Row] = ()
    """How much was left out: `table`, `reason`, `rows`, and `files` that were left out whole."""


def run_rows(
    traces: Sequence[Trace],
    last_us: Mapping[str, int],
    good: Mapping[str, Mapping[str, int]],
) -> list[Row]:
    """The table `runs`.

    Args:
        traces: the runs.
        last_us: when the last operation of each run that has some ended.
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
            **{table: good[table].get(trace.run_id, 0) for table in _COUNTED},
            "faults": [asdict(fault) for fault in trace.faults],
            "folder": str(trace.folder),
        }
        for trace, span in zip(traces, spans, strict=True)
    ]


def spans_of(runs: Sequence[Row]) -> list[tuple[object, ...]]:
    """The spans of runs, with the columns of `SPANS`, from the table `runs`."""
    return [(run["run_id"], run["duration_us"], run["bucket_width_us"]) for run in runs]


def window_us(run: Row) -> int:
    """The width of a run's windows of time: 1, 2 or 5 times a power of ten."""
    return bucket_width_us(math.ceil(run["duration_us"] * MOST_POINTS / MOST_WINDOWS))


def write_report(
    results: Results,
    folder: OutputFolder,
    notes: Sequence[str],
    quarantine: Sequence[Row],
    roots: Sequence[Place] = (),
) -> Analysis:
    """Write the table `runs` and the page into a folder.

    Args:
        results: what the page shows.
        folder: where to.
        notes: sections to stand before those of the runs, as HTML.
        quarantine: what was left out, by table and reason.
        roots: the folders that were given, as the runs in two of them are compared.
    """
    write_table(_table_of(results.runs), folder / "runs")
    report = folder / REPORT
    assert not isinstance(report, TaskOutput), "a page needs a folder"
    shown = report_page(results, notes, roots=[str(root) for root in roots], parquet=PARQUET_FILES)
    report.write_text(shown, encoding="utf-8")
    return Analysis(
        results.runs, results.waits, report, results.latencies, results.audit, quarantine
    )


def _table_of(runs: Sequence[Row]) -> pa.Table:
    """The table `runs`; through JSON, since Arrow imports pandas to look at Python's objects."""
    lines = "\n".join(map(json.dumps, runs)).encode("ascii")
    types = pa.json.ParseOptions(explicit_schema=_RUNS)
    return pa.json.read_json(pa.BufferReader(lines), parse_options=types)
