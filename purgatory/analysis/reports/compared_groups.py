"""Two groups of runs compared: what differs by more than chance, as far as the runs tell.

All intervals hold at once with the confidence that is told (Bonferroni), so that of many figures
none is called different just because there are many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from purgatory.analysis.confidence import welch_half_width
from purgatory.analysis.reports.compared_figures import Figure, figures_of
from purgatory.analysis.reports.report_results import Results
from purgatory.analysis.reports.run_groups import Groups

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Compared:
    """One figure of two groups.

    Attributes:
        figure: what it is.
        first, second: its values, of each run that has it; neither is empty.
        half_width: half of the interval of confidence around the difference; None where nothing
            tells what is chance.
    """

    figure: Figure
    first: Sequence[float]
    second: Sequence[float]
    half_width: float | None

    @property
    def means(self) -> tuple[float, float]:
        """Those of the two groups."""
        return fmean(self.first), fmean(self.second)

    @property
    def difference(self) -> float:
        """How much more the second group has."""
        first, second = self.means
        return second - first

    @property
    def differs(self) -> bool:
        """Whether chance alone hardly makes such a difference."""
        return self.half_width is not None and abs(self.difference) > self.half_width

    @property
    def change(self) -> float:
        """The difference as a share of the greater of the two, from 0 to 1."""
        greater = max(map(abs, self.means))
        return abs(self.difference) / greater if greater else 0.0


def compared(groups: Groups, by_run: Mapping[str, Results]) -> list[Compared]:
    """All figures that runs of both groups have, but those that are 0 in all of them.

    Args:
        groups: two of them.
        by_run: the rows of each run.
    """
    first, second = (
        _values([figures_of(by_run[run["run_id"]]) for run in runs]) for runs in groups.values()
    )
    both = [name for name in first if name in second and any((*first[name], *second[name]))]
    if not both:
        return []
    joint = 1 - (1 - CONFIDENCE) / len(both)
    return [
        Compared(one, first[one], second[one], welch_half_width(first[one], second[one], joint))
        for one in both
    ]


def _values(runs: Sequence[Mapping[Figure, float]]) -> dict[Figure, list[float]]:
    values: dict[Figure, list[float]] = {}
    for figures in runs:
        for figure, value in figures.items():
            values.setdefault(figure, []).append(value)
    return values
