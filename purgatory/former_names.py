"""Names of earlier releases: each raises, with the name of today in the text, for two releases.

A module, or a name in a package, stands in `FORMER`. A name in a module that is no package needs
that module's `__getattr__` to call `check_former`, too. A method or an attribute of a class is a
`FormerName` in that class.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any, NoReturn

FORMER: Mapping[str, str] = {
    "purgatory.analysis": "purgatory.pipeline",
    "purgatory.cdc.BadChangeError": "purgatory.cdc.InvalidChangeError",
    "purgatory.cdc.StoppedOnBadError": "purgatory.cdc.QuarantineStopError",
    "purgatory.cdc.apply.row_by_row": "purgatory.cdc.apply.applier",
    "purgatory.cdc.apply.streaming": "purgatory.cdc.apply.spark_engine",
    "purgatory.changes": "purgatory.cdc",
    "purgatory.client": "purgatory.source",
    "purgatory.live": "purgatory.stream",
    "purgatory.pipeline.analyze": "purgatory.pipeline.engines.run.run_job",
    "purgatory.pipeline.auditing": "purgatory.pipeline.jobs.audit",
    "purgatory.pipeline.source": "purgatory.source",
    "purgatory.pipeline.stream": "purgatory.stream",
    "purgatory.pipeline.sweeps": "purgatory.sweeps",
    "purgatory.pipeline.waiting_runs": "purgatory.pipeline.engines.spark.frames",
    "purgatory.sweeps.project_package": "purgatory.sweeps.run.write_package",
    "purgatory.sweeps.surfaces": "purgatory.sweeps.heatmaps",
    "purgatory.sweeps.sweep_plan": "purgatory.sweeps.plan",
    "purgatory.sweeps.sweep_run": "purgatory.sweeps.run",
}
"""The full name of a former module, or of a name in a module that still exists, and what to use."""


def check_former(module: str, name: str) -> None:
    """Raise ImportError if a module had this name in an earlier release.

    An ImportError passes through `from module import name`, where Python puts a text of its own in
    place of an AttributeError's.
    """
    former = f"{module}.{name}"
    if former in FORMER:
        raise ImportError(_advice(former, FORMER[former]), name=module)


class FormerName:
    """A method or attribute of an earlier release, in its class: to get it raises AttributeError.

    Args:
        instead: what to use.
    """

    def __init__(self, instead: str) -> None:
        self._instead = instead
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(_advice(self._name, self._instead))


class _FormerModules(MetaPathFinder):
    """The finder of last resort: the text for an import of a former module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        if name in FORMER:
            # With `name=`, `from package import name` would put a text of its own in its place.
            raise ModuleNotFoundError(_advice(name, FORMER[name]))
        return None


def _advice(former: str, instead: str) -> str:
    return f"{former} is gone; use {instead}"


def install() -> None:
    """Have imports of former modules say what to use."""
    if not any(type(finder).__name__ == _FormerModules.__name__ for finder in sys.meta_path):
        sys.meta_path.append(_FormerModules())
