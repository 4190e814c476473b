"""Sweeps: thousands of simulations on Spark, their table and surfaces, and answers in words.

A plan (`sweep_plan`) says which settings of a scenario vary; `sweep_run` spreads the simulations
over the executors in batches and keeps each result as a part, so that nothing is simulated twice;
`surfaces` and `answers` tell what came out.
"""

from purgatory.sweeps.sweep_run import sweep

__all__ = ["sweep"]
