"""What a terminal shows of the tables of waits and occupancy, whichever engine computed them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory.analysis.result_rows import Row
from purgatory.analysis.run_times import run_heads
from purgatory.analysis.waiting_words import ALL, ALL_TOPICS

if TYPE_CHECKING:
    from purgatory.analysis.traces.survey import Trace

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
