"""Sweeps: thousands of simulations on Spark, their table and surfaces, and answers in words.

A plan (`plan`) says which settings of a scenario vary; `run` spreads the simulations over the
executors in batches and keeps each result as a part, so that nothing is simulated twice;
`heatmaps` and `answers` have the results. Spark is imported when a sweep is asked for: to show
one in a report needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from purgatory.import_names import needs_extra

if TYPE_CHECKING:
    from purgatory.pipeline.sweeps.run import sweep as sweep


__all__ = ["sweep"]

if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        if name != "sweep":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needs_extra(f"{__name__}.sweep", "simulation,spark"):
            return import_module(f"{__name__}.run").sweep
