"""The analysis of traces with Spark: waits, occupancy and the audit, as tables and pages.

The jobs are functions from data frames to data frames, for notebooks and programs of one's own:

    from purgatory.analysis import audit, hot_keys, littles_law, occupancy, peaks, slowest, waits

The code that only analyzes reads the files of a trace and nothing else of the project, so that a
trace from any source that keeps to the documented columns can be analyzed. Importing this package
imports neither Spark nor a plotting library: a job is imported when it is first asked for. `audit`
takes a connection of DuckDB just as well.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from purgatory.import_names import needs_extra

if TYPE_CHECKING:
    from purgatory.analysis.audit_of_tables import audit as audit
    from purgatory.analysis.hot_keys_job import hot_keys as hot_keys
    from purgatory.analysis.hot_keys_job import occupancy_of_keys as occupancy_of_keys
    from purgatory.analysis.littles_law_job import littles_law as littles_law
    from purgatory.analysis.occupancy_job import occupancy as occupancy
    from purgatory.analysis.peaks_job import peaks as peaks
    from purgatory.analysis.slowest_job import slowest as slowest
    from purgatory.analysis.traces.read_traces import read_traces as read_traces
    from purgatory.analysis.waits_job import waits as waits

__all__ = [
    "audit",
    "hot_keys",
    "littles_law",
    "occupancy",
    "occupancy_of_keys",
    "peaks",
    "read_traces",
    "slowest",
    "waits",
]

JOBS = {
    "audit": "audit_of_tables",
    "hot_keys": "hot_keys_job",
    "littles_law": "littles_law_job",
    "occupancy": "occupancy_job",
    "occupancy_of_keys": "hot_keys_job",
    "peaks": "peaks_job",
    "read_traces": "traces.read_traces",
    "slowest": "slowest_job",
    "waits": "waits_job",
}
"""The jobs, and the module of this package that has each."""

if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        if name not in JOBS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needs_extra(f"{__name__}.{name}", "spark"):
            return getattr(import_module(f"{__name__}.{JOBS[name]}"), name)
