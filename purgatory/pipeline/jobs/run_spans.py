"""The ends of runs, their faults, and the width of their buckets of time."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from purgatory.pipeline.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from purgatory.pipeline.ingest.trace_set import Trace
    from purgatory.pipeline.result_rows import Row


SPANS = {"run_id": "string", "end_us": "bigint", "width_us": "bigint"}
"""The columns of a table of runs, as the jobs on occupancy read it, and their types."""

WINDOWS = {"run_id": "string", "window_us": "bigint"}
"""The columns of a table of widths of windows, as the jobs on plotted runs read it."""

_FIRST_DATE_US = 946_684_800_000_000
"""The year 2000: no run lasts as long, so that a later time is a date."""

_LAST_DATE_US = 253_402_300_799_000_000

FAULTS = {
    "run_id": "string",
    "kind": "string",
    "broker": "bigint",
    "from_us": "bigint",
    "until_us": "bigint",
}
"""The columns of a table of faults, as the job on peaks reads it, and their types."""


def run_heads(traces: Sequence[Trace]) -> list[Row]:
    """The rows of runs from their heads, for jobs that count nothing else."""
    return [
        {
            "run_id": trace.run_id,
            "scenario": trace.scenario,
            "seed": trace.seed,
            "complete": trace.complete,
            "duration_us": us(trace.duration_ms),
            "faults": [asdict(fault) for fault in trace.faults],
            "folder": str(trace.folder),
        }
        for trace in traces
    ]


def fault_rows(traces: Sequence[Trace]) -> list[tuple[object, ...]]:
    """The faults of all runs, with the columns of `FAULTS`."""
    return [
        (
            trace.run_id,
            fault.kind,
            fault.broker,
            us(fault.at_ms),
            None if fault.duration_ms is None else us(fault.at_ms + fault.duration_ms),
        )
        for trace in traces
        for fault in trace.faults
    ]


def span_rows(traces: Sequence[Trace], last_us: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """The spans of runs, with the columns of `SPANS`.

    A run ends at the end in its head, or with its last operation if that ended later.

    Args:
        traces: the runs.
        last_us: the end of the last operation of each run.

    Raises:
        TraceError: an operation has a date, and no time since the start of its run.
    """
    for run_id, end_us in last_us.items():
        if end_us >= _FIRST_DATE_US:
            date = datetime.fromtimestamp(min(end_us, _LAST_DATE_US) // 10**6, UTC)
            raise TraceError(
                f"run {run_id}: an operation ends at {end_us} us, which is {date:%Y-%m-%d %H:%M:%S}"
                " UTC, and occupancy counts from the start of the run: subtract its start from "
                "start_us and end_us (purgatory waits and audit take dates)"
            )
    ends_us = {
        trace.run_id: max(us(trace.duration_ms), last_us.get(trace.run_id, -(2**62)))
        for trace in traces
    }
    return [(run_id, end_us, bucket_width_us(end_us)) for run_id, end_us in ends_us.items()]


def run_window_us(duration_us: int) -> int:
    """The width of a run's windows of waits over time: 1, 2 or 5 times a power of ten."""
    return bucket_width_us(math.ceil(duration_us * MOST_POINTS / MOST_WINDOWS))


def us(milliseconds: int) -> int:
    """Microseconds that fit 64 bits with room for a sum."""
    return max(-(2**62), min(milliseconds * 1000, 2**62))


# The width of a run's buckets of time, the same for both engines.


MOST_WINDOWS = 60
"""The most windows of time that a run's waits over time have."""

MOST_POINTS = 400
"""The most buckets of a run; a run has at least 2/5 of that, unless it is very short."""


def bucket_width_us(duration_us: int) -> int:
    """The width of a run's buckets: 1, 2 or 5 times a power of ten, at most `MOST_POINTS` of them.

    Args:
        duration_us: the length of the run, in microseconds.
    """
    unit = 1
    while True:
        for factor in (1, 2, 5):
            if factor * unit * MOST_POINTS >= duration_us:
                return factor * unit
        unit *= 10
