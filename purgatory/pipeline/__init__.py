"""The analysis of traces with Spark: waits, occupancy, the audit and sweeps, as tables and pages.

The jobs are functions from data frames to data frames, for notebooks and programs of one's own:

    from purgatory.pipeline import audit, hot_keys, littles_law, occupancy, peaks, slowest, waits

What only analyzes here reads the files of a trace and nothing else of the project, so that a trace
from any source that keeps to the documented columns can be analyzed. Importing this package
imports neither Spark nor a plotting library: a job is imported when it is first asked for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purgatory.pipeline.auditing import audit as audit
    from purgatory.pipeline.hot_keys import hot_keys as hot_keys
    from purgatory.pipeline.hot_keys import occupancy_of_keys as occupancy_of_keys
    from purgatory.pipeline.littles_law import littles_law as littles_law
    from purgatory.pipeline.occupancy import occupancy as occupancy
    from purgatory.pipeline.peaks import peaks as peaks
    from purgatory.pipeline.slowest import slowest as slowest
    from purgatory.pipeline.sweeping.sweep_run import sweep as sweep
    from purgatory.pipeline.traces.read_traces import read_traces as read_traces
    from purgatory.pipeline.waits import waits as waits

JOBS = {
    "audit": "auditing",
    "hot_keys": "hot_keys",
    "littles_law": "littles_law",
    "occupancy": "occupancy",
    "occupancy_of_keys": "hot_keys",
    "peaks": "peaks",
    "read_traces": "traces.read_traces",
    "slowest": "slowest",
    "sweep": "sweeping",
    "waits": "waits",
}
"""The jobs, and the module of this package that has each."""


class _Job:
    """The function of a job as an attribute of this package.

    Most jobs have the name of their module. The import system sets the module as an attribute of
    the package; here the function stays, and the module is where imports look for it, in
    `sys.modules`.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        return getattr(import_module(f"{__name__}.{self._module}"), self._name)

    def __set__(self, instance: object, value: object) -> None:
        if not isinstance(value, ModuleType):
            raise AttributeError(f"{__name__}.{self._name} can't be set")


def _with_jobs() -> type[ModuleType]:
    return type("Jobs", (ModuleType,), {name: _Job(module) for name, module in JOBS.items()})


sys.modules[__name__].__class__ = _with_jobs()
