"""Sweeps: thousands of simulations on Spark, their table and heat maps, and answers in words.

A sweep file (`sweep_file`) becomes a plan (`plan`) of all scenarios. `run` spreads them over the
executors in batches; tasks (`tasks`) keep each result as a part, so that nothing is simulated
twice. `heatmaps` and `answers` are computed from the results; `page` shows them. Spark is imported
only to run a sweep: a report shows one without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from purgatory.import_names import needs_extra

if TYPE_CHECKING:
    from purgatory.sweeps.run import sweep as sweep


__all__ = ["sweep"]

if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        if name != "sweep":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needs_extra(f"{__name__}.sweep", "simulation,spark"):
            return import_module(f"{__name__}.run").sweep
