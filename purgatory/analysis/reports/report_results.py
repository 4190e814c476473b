"""What a report shows: rows of the tables of an analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from purgatory.analysis.result_rows import Row, grouped


@dataclass(frozen=True)
class Results:
    """Rows of the tables of an analysis, in their order.

    Of the tables that are only drawn, which are all but `runs`, `waits`, `latencies`,
    `attempts` and `audit`, those of the first `MOST_PLOTTED_RUNS` runs are enough.
    """

    runs: Sequence[Row]
    waits: Sequence[Row] = ()
    latencies: Sequence[Row] = ()
    attempts: Sequence[Row] = ()
    occupancy: Sequence[Row] = ()
    over_time: Sequence[Row] = ()
    distribution: Sequence[Row] = ()
    expiry: Sequence[Row] = ()
    audit: Sequence[Row] = ()
    witnesses: Sequence[Row] = ()
    slowest: Sequence[Row] = ()
    littles_law: Sequence[Row] = ()
    peaks: Sequence[Row] = ()
    hot_keys: Sequence[Row] = ()

    def by_run(self) -> Mapping[str, Results]:
        """The same for each run by itself, by its id. O(rows)."""
        tables = {one.name: grouped(getattr(self, one.name), "run_id") for one in fields(self)}
        return {
            run_id: Results(**{name: rows.get(run_id, []) for name, rows in tables.items()})
            for run_id in tables["runs"]
        }
