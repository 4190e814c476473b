"""The estimate of a law by simulation, over independent seeds, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from purgatory.pipeline.report.comparison import t_quantile
from purgatory.simulation import Simulation, with_overrides
from purgatory.theory.experiments import EXPERIMENTS, Experiment
from purgatory.theory.kept_run import run

CONFIDENCE = 0.95
MOST_SEEDS = 1_000


@dataclass(frozen=True)
class Comparison:
    """What theory and simulation say of one value.

    Args:
        experiment: its name.
        value: of what is varied.
        theory: what the law says; the mean, where it says something of each run.
        simulated: the mean over the seeds.
        standard_error: of the mean of the differences between the two.
        seeds: how many.
        sends: how many sends of records all runs had.
    """

    experiment: str
    value: float
    theory: float
    simulated: float
    standard_error: float
    seeds: int
    sends: int

    @property
    def difference(self) -> float:
        """How much more the simulation says."""
        return self.simulated - self.theory

    def half_width(self, confidence: float = CONFIDENCE) -> float:
        """Half of the interval of confidence around `simulated`, by Student's t."""
        return t_quantile((1 + confidence) / 2, self.seeds - 1) * self.standard_error

    def covers(self, confidence: float = CONFIDENCE) -> bool:
        """Whether the interval of confidence has what theory says in it."""
        return abs(self.difference) <= self.half_width(confidence)


def compare(
    experiment: Experiment,
    *,
    seeds: int,
    duration_ms: int | None = None,
    on_begin: Callable[[Simulation], object] | None = None,
) -> Iterator[Comparison]:
    """Simulate an experiment, value by value.

    The seeds of no two values are the same, in all of `EXPERIMENTS`.

    Args:
        experiment: what to compare.
        seeds: how many runs for each value, from 2 to `MOST_SEEDS`.
        duration_ms: another duration than that of the scenarios.
        on_begin: is given each run before it begins; `interrupt` ends it.

    Raises:
        Interrupted: a run was ended.
        ScenarioError: the duration can't be.
        ValueError: it is over before a record arrives after the warm-up.
    """
    place = EXPERIMENTS.index(experiment) if experiment in EXPERIMENTS else 0
    first = 1 + MOST_SEEDS * sum(len(one.values) for one in EXPERIMENTS[:place])
    for number, value in enumerate(experiment.values):
        seeded = range(first + MOST_SEEDS * number, first + MOST_SEEDS * number + seeds)
        yield _compare(experiment, value, seeded, duration_ms, on_begin)


def joint_confidence(comparisons: Sequence[Comparison]) -> float:
    """How wide an interval of each must be, so that all hold at once (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / len(comparisons)


def _compare(
    experiment: Experiment,
    value: float,
    seeds: Sequence[int],
    duration_ms: int | None,
    on_begin: Callable[[Simulation], object] | None,
) -> Comparison:
    loaded = experiment.scenario(value)
    simulated, expected, sends = [], [], 0
    for seed in seeds:
        kept = run(with_overrides(loaded, seed=seed, duration_ms=duration_ms), on_begin)
        simulated.append(experiment.estimate(kept))
        expected.append(experiment.expected(value, kept))
        sends += len(kept.sends)
    differences = [one - other for one, other in zip(simulated, expected, strict=True)]
    error = stdev(differences) / math.sqrt(len(seeds))
    return Comparison(
        experiment.name, value, fmean(expected), fmean(simulated), error, len(seeds), sends
    )
