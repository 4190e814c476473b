"""Holds the simulation against the laws, and draws the plot of `docs/theory.md`.

    python -m tests.theory.comparison --quick                          # half a minute
    python -m tests.theory.comparison --seeds 20 --out build/theory    # a quarter of an hour

Each law is compared with the mean of independent runs, by its interval of 95 % confidence. One
interval in twenty misses by chance. The status is 1 if one misses that is wide enough for all to be
right at once in 95 % of the cases.
"""

from __future__ import annotations

import csv
import io
import logging
import math
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean, stdev

import structlog

from purgatory.pipeline.confidence_intervals import t_quantile
from purgatory.simulation import apply_overrides
from tests.theory.experiments import EXPERIMENTS, Experiment, run

CONFIDENCE = 0.95
MOST_SEEDS = 1_000
QUICK_SEEDS, QUICK_MS = 3, 5_000
TABLE, PLOT = "theory.csv", "theory.svg"
COLUMNS = (
    "experiment",
    "value",
    "theory",
    "simulated",
    "low",
    "high",
    "covers",
    "standard_error",
    "seeds",
    "sends",
)
_COLORS = ("#0072b2", "#d55e00", "#009e73")
_WIDTH, _HEIGHT = 400, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 16, 34, 46
_LINE_POINTS = 40


@dataclass(frozen=True)
class Comparison:
    """One value by theory and by simulation.

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
        """The difference of the simulation from the law."""
        return self.simulated - self.theory

    def half_width(self, confidence: float = CONFIDENCE) -> float:
        """Half of the interval of confidence around `simulated`, by Student's t."""
        return t_quantile((1 + confidence) / 2, self.seeds - 1) * self.standard_error

    def covers(self, confidence: float = CONFIDENCE) -> bool:
        """Whether the interval of confidence has what theory says in it."""
        return abs(self.difference) <= self.half_width(confidence)


def compare(
    experiment: Experiment, *, seeds: int, duration_ms: int | None = None
) -> Iterator[Comparison]:
    """Simulate an experiment, value by value.

    The seeds of no two values are the same, in all of `EXPERIMENTS`.

    Args:
        experiment: what to compare.
        seeds: how many runs for each value, from 2 to `MOST_SEEDS`.
        duration_ms: another duration than that of the scenarios.

    Raises:
        ScenarioError: the duration can't be.
        ValueError: it is over before a record arrives after the warm-up.
    """
    place = EXPERIMENTS.index(experiment) if experiment in EXPERIMENTS else 0
    first = 1 + MOST_SEEDS * sum(len(one.values) for one in EXPERIMENTS[:place])
    for number, value in enumerate(experiment.values):
        seeded = range(first + MOST_SEEDS * number, first + MOST_SEEDS * number + seeds)
        yield _compare(experiment, value, seeded, duration_ms)


def joint_confidence(comparisons: Sequence[Comparison]) -> float:
    """The confidence of each interval with which all hold at once (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / len(comparisons)


def _compare(
    experiment: Experiment,
    value: float,
    seeds: Sequence[int],
    duration_ms: int | None,
) -> Comparison:
    loaded = experiment.scenario(value)
    simulated, expected, sends = [], [], 0
    for seed in seeds:
        kept = run(apply_overrides(loaded, seed=seed, duration_ms=duration_ms))
        simulated.append(experiment.estimate(kept))
        expected.append(experiment.expected(value, kept))
        sends += len(kept.sends)
    differences = [one - other for one, other in zip(simulated, expected, strict=True)]
    error = stdev(differences) / math.sqrt(len(seeds))
    return Comparison(
        experiment.name, value, fmean(expected), fmean(simulated), error, len(seeds), sends
    )


def compare_all(seeds: int, duration_ms: int | None = None) -> dict[str, list[Comparison]]:
    """Simulate all experiments, and print each when it is compared."""
    compared = {}
    for experiment in EXPERIMENTS:
        rows = list(compare(experiment, seeds=seeds, duration_ms=duration_ms))
        compared[experiment.name] = rows
        axis = f": {experiment.panel}, by {experiment.axis}" if experiment.panel else ""
        print(f"{experiment.title}{axis}")
        print("   value     theory  simulated       +- difference  covered")
        for row in rows:
            print(
                f"{row.value:8g} {row.theory:10,.4f} {row.simulated:10,.4f} "
                f"{row.half_width():8,.4f} {row.difference / row.theory:10.2%}  "
                f"{'yes' if row.covers() else 'no'}",
                flush=True,
            )
    return compared


def judge(rows: Sequence[Comparison]) -> int:
    """Print whether the laws hold.

    Returns:
        The exit status.
    """
    covered = sum(row.covers() for row in rows)
    print(
        f"{covered} of {len(rows)} intervals of 95 % confidence cover what theory says; if theory "
        f"is right, about {0.05 * len(rows):.0f} don't."
    )
    confidence = joint_confidence(rows)
    different = [row for row in rows if not row.covers(confidence)]
    for row in different:
        print(
            f"{row.experiment} at {row.value:g} differs by more than chance explains: "
            f"{row.simulated:.4f} +- {row.half_width(confidence):.4f} against {row.theory:.4f}"
        )
    if not different:
        print("No difference is more than chance explains.")
    return 1 if different else 0


def write_files(folder: Path, compared: Mapping[str, Sequence[Comparison]]) -> None:
    """Write table and plot into a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for rows in compared.values():
        table.writerows(_cells(row) for row in rows)
    (folder / TABLE).write_text(text.getvalue(), encoding="utf-8")
    (folder / PLOT).write_text(theory_svg(compared), encoding="utf-8")


def _cells(row: Comparison) -> list[object]:
    half = row.half_width()
    figures = (row.theory, row.simulated, row.simulated - half, row.simulated + half)
    return [
        row.experiment,
        f"{row.value:g}",
        *(f"{figure:.8g}" for figure in figures),
        str(row.covers()).lower(),
        f"{row.standard_error:.6g}",
        row.seeds,
        row.sends,
    ]


def theory_svg(found: Mapping[str, Sequence[Comparison]]) -> str:
    """Draw what was compared, by the name of the experiment, as one SVG with a panel per quantity.

    A point is the simulation's mean, and has its interval of 95 % confidence; a line is the law.
    """
    panels: dict[str, list[Experiment]] = {}
    for one in EXPERIMENTS:
        if one.panel and one.name in found:
            panels.setdefault(one.panel, []).append(one)
    width, height = 2 * _WIDTH, _HEIGHT * math.ceil(len(panels) / 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="11" '
        'fill="#1f2937" role="img">',
        "<title>Theory (lines) and simulation (points with intervals of 95 % confidence)</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (name, experiments) in enumerate(panels.items()):
        row, column = divmod(number, 2)
        parts.append(f'<g transform="translate({column * _WIDTH} {row * _HEIGHT})">')
        parts += _panel(name, experiments, found)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    name: str, experiments: Sequence[Experiment], found: Mapping[str, Sequence[Comparison]]
) -> Iterator[str]:
    rows = [row for one in experiments for row in found[one.name]]
    xs = _ticks(min(row.value for row in rows), max(row.value for row in rows))
    ys = _ticks(0, max(max(row.simulated + row.half_width(), row.theory) for row in rows))

    def x(value: float) -> float:
        inner = _WIDTH - _LEFT - _RIGHT
        return round(_LEFT + inner * (value - xs[0]) / (xs[-1] - xs[0]), 2)

    def y(value: float) -> float:
        inner = _HEIGHT - _TOP - _BOTTOM
        return round(_HEIGHT - _BOTTOM - inner * value / ys[-1], 2)

    yield f'<text x="8" y="18" font-weight="600">{escape(name)}</text>'
    for tick in ys:
        yield f'<path d="M{_LEFT} {y(tick)}H{_WIDTH - _RIGHT}" stroke="#e5e7eb"/>'
        yield f'<text x="{_LEFT - 6}" y="{y(tick) + 4}" text-anchor="end">{tick:g}</text>'
    for tick in xs:
        yield f'<text x="{x(tick)}" y="{_HEIGHT - 30}" text-anchor="middle">{tick:g}</text>'
    axis = escape(experiments[0].axis)
    yield f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{axis}</text>'
    for number, (one, color) in enumerate(zip(experiments, _COLORS, strict=False)):
        values = one.values
        steps = (n / _LINE_POINTS for n in range(_LINE_POINTS + 1))
        line = [values[0] + step * (values[-1] - values[0]) for step in steps]
        assert one.law is not None, "an experiment with a panel has a law to be drawn"
        path = " ".join(f"{x(value)},{y(one.law(value))}" for value in line)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
        for row in found[one.name]:
            at, half = x(row.value), row.half_width()
            low, high = y(max(0.0, row.simulated - half)), y(row.simulated + half)
            bar = f"M{at} {low}V{high}M{at - 3} {low}h6M{at - 3} {high}h6"
            yield f'<path d="{bar}" stroke="{color}"/>'
            yield f'<circle cx="{at}" cy="{y(row.simulated)}" r="3" fill="{color}"/>'
        down = _TOP + 10 + 16 * number
        yield f'<path d="M{_LEFT + 10} {down - 4}h18" stroke="{color}" stroke-width="2"/>'
        yield f'<text x="{_LEFT + 34}" y="{down}">{escape(one.title)}</text>'


def _ticks(least: float, most: float) -> list[float]:
    """Round numbers at even distances, from at most the one to at least the other."""
    rough = (most - least) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare as the options say; returns the exit status."""
    parser = ArgumentParser(prog="python -m tests.theory.comparison", description=__doc__)
    parser.add_argument("--seeds", type=int, help="runs for each value: 10 by default")
    parser.add_argument("--quick", action="store_true", help="by default 3 seeds, and 5 s of each")
    parser.add_argument("--out", type=Path, help=f"the folder to write {TABLE} and {PLOT} into")
    options = parser.parse_args(arguments)
    seeds = options.seeds or (QUICK_SEEDS if options.quick else 10)
    if not 2 <= seeds <= MOST_SEEDS:
        parser.error(f"--seeds: {seeds} is not from 2 to {MOST_SEEDS}")
    compared = compare_all(seeds, QUICK_MS if options.quick else None)
    if options.out is not None:
        write_files(options.out, compared)
    return judge([row for rows in compared.values() for row in rows])


if __name__ == "__main__":
    # The end of each simulated broker's purgatories is not worth a line.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    raise SystemExit(main())
