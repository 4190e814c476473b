"""What a terminal shows of the tables of waits and occupancy, whichever engine computed them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory.pipeline.jobs.run_spans import run_heads
from purgatory.pipeline.jobs.tables import ALL, ALL_TOPICS
from purgatory.pipeline.result_rows import Row

if TYPE_CHECKING:
    from purgatory.pipeline.ingest.trace_set import Trace
import json
import math
from collections.abc import Mapping
from dataclasses import asdict

import pyarrow as pa
import pyarrow.json

from purgatory.pipeline.engines.result_folder import (
    PARQUET_FILES,
    REPORT,
    OutputFolder,
    write_table,
)
from purgatory.pipeline.ingest.stores import Place, Uri
from purgatory.pipeline.jobs.run_spans import MOST_POINTS, SPANS, bucket_width_us, span_rows
from purgatory.pipeline.report.findings import Results
from purgatory.pipeline.report.report import report_page

MOST_SHOWN_RUNS = 10
"""How many runs are shown on a terminal; the tables have them all."""

MOST_SHOWN_ROWS = 1_000
"""How many rows of a table are fetched for a terminal."""

MOST_SHOWN_WINDOWS = 60
"""How many rows of windows are shown, over all runs."""

MOST_SHOWN_TOPICS = 20
"""How many rows of topics are shown, over all runs."""

_MOST_DRAWN_SIZES = 12_000
"""How many rows of sizes a page gets: of ten runs with three purgatories all."""


@dataclass(frozen=True)
class WaitResults:
    """What a terminal shows of the tables.

    Incomplete are the runs that were interrupted; `quarantine` counts what was set aside; `cut`
    names what has more rows than are here.
    """

    runs: Sequence[str]
    incomplete: Sequence[str]
    quarantine: Sequence[Row]
    waits: Sequence[Row]
    topics: Sequence[Row]
    windows: Sequence[Row]
    slowest: Sequence[Row]
    cut: Sequence[str] = ()
    heads: Sequence[Row] = ()
    """Of the runs that are shown: what their heads tell, as a page has it."""
    expiry: Sequence[Row] = ()
    """When and where operations expired, where that was asked for."""


@dataclass(frozen=True)
class OccupancyResults:
    """What a terminal shows of the tables. Incomplete are the runs that were interrupted."""

    runs: Sequence[str]
    incomplete: Sequence[str]
    quarantine: Sequence[Row]
    littles_law: Sequence[Row]
    peaks: Sequence[Row]
    hot_keys: Sequence[Row]
    heads: Sequence[Row] = ()
    """As of `WaitResults`."""
    occupancy: Sequence[Row] = ()
    """Sizes over all brokers, where they were asked for."""


Rows = Callable[[str, str, int], list[Row]]
"""Gives the first so many rows, of the runs that are shown, of a table for which a condition holds.

The condition is in SQL that both engines take.
"""

_WHOLE = "window_start_us IS NULL"
_OVER_TOPICS = f"coalesce(topic = '{ALL_TOPICS}', false)"
_OVERALL = f"kind = '{ALL}' AND outcome = '{ALL}'"


def shown_runs(traces: Sequence[Trace]) -> list[str]:
    """The ids of the runs of which rows are shown."""
    return [trace.run_id for trace in traces[:MOST_SHOWN_RUNS]]


def wait_results(
    traces: Sequence[Trace], quarantine: Sequence[Row], rows: Rows, *, with_expiry: bool
) -> WaitResults:
    """What is shown of the tables `waits` and `slowest`, and of `expiry` where there is one."""
    topics = rows("waits", f"NOT {_OVER_TOPICS} AND {_WHOLE} AND {_OVERALL}", MOST_SHOWN_TOPICS + 1)
    windows = rows(
        "waits", f"{_OVER_TOPICS} AND NOT {_WHOLE} AND {_OVERALL}", MOST_SHOWN_WINDOWS + 1
    )
    cut = {
        "topics": len(topics) > MOST_SHOWN_TOPICS,
        "windows": len(windows) > MOST_SHOWN_WINDOWS,
    }
    return WaitResults(
        *_runs(traces),
        quarantine,
        waits=rows("waits", f"{_OVER_TOPICS} AND {_WHOLE}", MOST_SHOWN_ROWS),
        topics=topics[:MOST_SHOWN_TOPICS],
        windows=windows[:MOST_SHOWN_WINDOWS],
        slowest=rows("slowest", "true", MOST_SHOWN_ROWS),
        cut=[name for name, is_cut in cut.items() if is_cut],
        heads=run_heads(traces[:MOST_SHOWN_RUNS]),
        expiry=rows("expiry", "true", MOST_SHOWN_ROWS) if with_expiry else [],
    )


def occupancy_results(
    traces: Sequence[Trace], quarantine: Sequence[Row], rows: Rows, *, with_sizes: bool
) -> OccupancyResults:
    """What is shown of the tables `littles_law`, `peaks` and `hot_keys`, and drawn of sizes."""
    names = ("littles_law", "peaks", "hot_keys")
    law, peaks, hot_keys = (rows(name, "true", MOST_SHOWN_ROWS) for name in names)
    heads = run_heads(traces[:MOST_SHOWN_RUNS])
    sizes = rows("occupancy", "broker IS NULL", _MOST_DRAWN_SIZES) if with_sizes else []
    return OccupancyResults(*_runs(traces), quarantine, law, peaks, hot_keys, heads, sizes)


def _runs(traces: Sequence[Trace]) -> tuple[list[str], list[str]]:
    """All runs, and those that were interrupted."""
    return (
        [trace.run_id for trace in traces],
        [trace.run_id for trace in traces if not trace.complete],
    )


# What an audit of traces on disk gives to who asked for it, whichever engine did it.


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


# The results of a whole analysis, whichever engine computed them: the runs, and the page.


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
