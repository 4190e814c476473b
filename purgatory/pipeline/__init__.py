"""The analysis of traces with Spark: waits, occupancy and the audit, as tables and pages.

`engines.run.run_job` runs a whole job. The functions here, from data frames to data frames, are its
parts, for notebooks and programs; `audit` takes a connection of DuckDB as well.

A trace from any source that keeps to the documented columns can be analyzed: nothing here reads
more than its files. Importing this package imports neither Spark nor a plotting library: a function
is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from purgatory.former_names import check_former
from purgatory.import_names import needs_extra

if TYPE_CHECKING:
    from purgatory.pipeline.engines.run import audit as audit
    from purgatory.pipeline.engines.spark.frames import hot_keys as hot_keys
    from purgatory.pipeline.engines.spark.frames import occupancy as occupancy
    from purgatory.pipeline.engines.spark.frames import occupancy_of_keys as occupancy_of_keys
    from purgatory.pipeline.engines.spark.frames import peaks as peaks
    from purgatory.pipeline.engines.spark.frames import slowest as slowest
    from purgatory.pipeline.engines.spark.frames import waits as waits
    from purgatory.pipeline.ingest.spark_reader import read_traces as read_traces


__all__ = [
    "audit",
    "hot_keys",
    "occupancy",
    "occupancy_of_keys",
    "peaks",
    "read_traces",
    "slowest",
    "waits",
]

FUNCTIONS = {
    "audit": "engines.run",
    "hot_keys": "engines.spark.frames",
    "occupancy": "engines.spark.frames",
    "occupancy_of_keys": "engines.spark.frames",
    "peaks": "engines.spark.frames",
    "read_traces": "ingest.spark_reader",
    "slowest": "engines.spark.frames",
    "waits": "engines.spark.frames",
}
"""The module of this package that has each function."""

if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        if name not in FUNCTIONS:
            check_former(__name__, name)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needs_extra(f"{__name__}.{name}", "spark"):
            return getattr(import_module(f"{__name__}.{FUNCTIONS[name]}"), name)
