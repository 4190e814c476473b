"""Two groups of runs compared: the differences beyond chance, and their section.

The groups are two folders, two scenarios, or two runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from statistics import fmean

from purgatory.pipeline.confidence_intervals import welch_half_width
from purgatory.pipeline.report.findings import Results, findings_list
from purgatory.pipeline.report.page import Column, PagePart, row_links, section, table
from purgatory.pipeline.report.sentences import Finding, Severity
from purgatory.pipeline.result_rows import Row, group_by

Groups = Mapping[str, Sequence[Row]]
"""Rows of the table `runs` by the name of their group."""


def two_groups(runs: Sequence[Row], roots: Sequence[str] = ()) -> Groups:
    """Divide runs into two groups; empty if there are no two.

    Two folders on the command line are a group each. Otherwise two scenarios are, or two runs.

    Args:
        runs: rows of the table of that name.
        roots: the folders on the command line.
    """
    for groups in (_by_root(runs, roots), group_by(runs, "scenario"), group_by(runs, "run_id")):
        if len(groups) == 2:
            return _with_short_names(groups)
    return {}


def _by_root(runs: Sequence[Row], roots: Sequence[str]) -> Groups:
    if len(roots) != 2:
        return {}
    groups = {root: [run for run in runs if _is_in(run["folder"], root)] for root in roots}
    is_partition = sum(map(len, groups.values())) == len(runs)
    return groups if is_partition and all(groups.values()) else {}


def _is_in(folder: str, root: str) -> bool:
    inner = PurePath(folder)
    outer = {PurePath(root), Path(root).resolve()}
    return not outer.isdisjoint((inner, *inner.parents))


def _with_short_names(groups: Groups) -> Groups:
    """The groups under the shortest names that differ."""
    for names in _names(groups):
        if len(set(names)) == 2:
            return dict(zip(names, groups.values(), strict=True))
    return groups


def _names(groups: Groups) -> Iterator[Sequence[str]]:
    for column in ("scenario", "run_id"):
        values = [{run[column] for run in runs} for runs in groups.values()]
        if all(len(names) == 1 for names in values):
            yield [next(iter(names)) for names in values]


# The figures that are compared: outcomes, waits, latencies of clients, and anomalies.


@dataclass(frozen=True)
class Figure:
    """A number of a run.

    Attributes:
        name: in words, as the beginning of a sentence.
        unit: in words; empty if the name has it.
    """

    name: str
    unit: str

    @property
    def unit_of_difference(self) -> str:
        """The unit of the difference of two."""
        return "points" if self.unit == "%" else self.unit


def run_figures(results: Results) -> dict[Figure, float]:
    """The figures of one run; those without operations are missing."""
    return dict([*_waits(results), *_clients(results), *_anomalies(results)])


def _waits(results: Results) -> Iterator[tuple[Figure, float]]:
    overall = [row for row in results.waits if row["kind"] == "all"]
    for purgatory, rows in group_by(overall, "purgatory").items():
        by_outcome = {row["outcome"]: row for row in rows}
        share = {
            name: 100 * row["operations"] / by_outcome["all"]["operations"]
            for name, row in by_outcome.items()
        }
        for outcome, what in (("expired", "expired"), ("immediate", "did not wait")):
            name = f"The share of operations in {purgatory} that {what}"
            yield Figure(name, "%"), share.get(outcome, 0.0)
        for column, what in (("p50", "median"), ("p99", "p99")):
            wait_us = by_outcome["all"][f"wait_{column}_us"]
            if wait_us is not None:
                yield Figure(f"The {what} of waits in {purgatory}", "ms"), wait_us / 1000


def _clients(results: Results) -> Iterator[tuple[Figure, float]]:
    spans = group_by(results.latencies, "span")
    for span, what in (
        ("record", "a record was acknowledged"),
        ("attempt", "a send got its response"),
    ):
        rows = spans.get(span, [])
        count = sum(row["count"] for row in rows)
        if count:
            mean_us = sum(row["latency_mean_us"] * row["count"] for row in rows) / count
            yield Figure(f"The mean time until {what}", "ms"), mean_us / 1000
            p99_us = max(row["latency_p99_us"] for row in rows)
            yield Figure(f"The p99 until {what}, of the slowest group", "ms"), p99_us / 1000
    attempts = [row for row in results.attempts if row["error"] == "*"]
    count = {
        outcome: sum(row["attempts"] for row in rows)
        for outcome, rows in group_by(attempts, "outcome").items()
    }
    if count.get("all"):
        for outcome, what in (("unknown", "have an unknown outcome"), ("fail", "were refused")):
            name = f"The share of sends that {what}"
            yield Figure(name, "%"), 100 * count.get(outcome, 0) / count["all"]


def _anomalies(results: Results) -> Iterator[tuple[Figure, float]]:
    (run,) = results.runs
    if not run.get("sends"):
        return
    for anomaly, rows in group_by(results.audit, "anomaly").items():
        if anomaly == "lost_ack_duplicate":
            continue  # counted as a duplicate already
        count = sum(row["count"] for row in rows)
        name = f"The number of cases of {anomaly.replace('_', ' ')} per 1,000 sends"
        yield Figure(name, ""), 1000 * count / run["sends"]


# The comparison of two groups: differences beyond chance.
#
# All intervals hold at once with the confidence (Bonferroni), so that the number of figures does
# not make differences more likely.


CONFIDENCE = 0.95


@dataclass(frozen=True)
class Comparison:
    """One figure of two groups.

    Attributes:
        first, second: its value in each run that has it; neither is empty.
        half_width: half of the confidence interval of the difference; None: not enough runs.
    """

    figure: Figure
    first: Sequence[float]
    second: Sequence[float]
    half_width: float | None

    @property
    def means(self) -> tuple[float, float]:
        """The means of the two groups."""
        return fmean(self.first), fmean(self.second)

    @property
    def difference(self) -> float:
        """The second mean minus the first."""
        first, second = self.means
        return second - first

    @property
    def differs(self) -> bool:
        """Whether the difference is significant."""
        return self.half_width is not None and abs(self.difference) > self.half_width

    @property
    def change(self) -> float:
        """The difference as a share of the greater of the two, from 0 to 1."""
        greater = max(map(abs, self.means))
        return abs(self.difference) / greater if greater else 0.0


def compare(groups: Groups, by_run: Mapping[str, Results]) -> list[Comparison]:
    """Compare all figures that both groups have, except those that are 0 in all runs."""
    first, second = (
        _values([run_figures(by_run[run["run_id"]]) for run in runs]) for runs in groups.values()
    )
    common = [name for name in first if name in second and any((*first[name], *second[name]))]
    if not common:
        return []
    joint = 1 - (1 - CONFIDENCE) / len(common)
    return [
        Comparison(
            comparison,
            first[comparison],
            second[comparison],
            welch_half_width(first[comparison], second[comparison], joint),
        )
        for comparison in common
    ]


def _values(runs: Sequence[Mapping[Figure, float]]) -> dict[Figure, list[float]]:
    values: dict[Figure, list[float]] = {}
    for figures in runs:
        for figure, value in figures.items():
            values.setdefault(figure, []).append(value)
    return values


# The first section of a page of two groups: differences, then all figures.


_MAX_FINDINGS = 8
_SECTION = "comparison"


def comparison_section(part: PagePart, groups: Groups, by_run: Mapping[str, Results]) -> str:
    """The whole section; empty if the groups have no figure in common."""
    figures = compare(groups, by_run)
    if not figures:
        return ""
    rows = _rows(figures)
    caption = (
        "The means over the runs of each. All intervals of the differences hold at once with "
        f"{100 * CONFIDENCE:g} % confidence (Welch's t, Bonferroni)."
    )
    below = "".join(
        [
            f'<div id="{part.anchor(_SECTION)}">',
            table(caption, _columns(groups), rows),
            row_links(part, _SECTION, rows),
            "</div>",
        ]
    )
    first, second = groups
    findings = comparison_findings(groups, figures)
    return section(
        f"Differences from {first} to {second}",
        findings_list(part, findings, below),
        below,
        level=2,
    )


def comparison_findings(groups: Groups, figures: Sequence[Comparison]) -> list[Finding]:
    """The comparison in sentences: the differences beyond chance, and the confidence."""
    findings = [*_incomplete(groups)]
    if min(map(len, groups.values())) < 2:
        return [*findings, *_single_run_findings(groups, figures)]
    certain = sorted(
        (comparison for comparison in figures if comparison.differs),
        key=lambda comparison: -comparison.change,
    )
    counts = _counts(groups)
    if not certain:
        text = (
            f"None of {len(figures):,} figures differs significantly: {counts}. That does not show "
            "that they are the same; the table has the intervals."
        )
        return [*findings, _finding(text, Severity.FINE)]
    findings += [
        _finding(_difference(groups, comparison)) for comparison in certain[:_MAX_FINDINGS]
    ]
    more = len(certain) - _MAX_FINDINGS
    if more > 0:
        findings.append(_finding(f"{more:,} more differ significantly (see the table)."))
    others = len(figures) - len(certain)
    rest = f"{others:,} of {len(figures):,} figures do not differ significantly"
    return [*findings, _finding(f"{rest if others else 'All figures differ'}: {counts}.")]


def _finding(text: str, severity: Severity = Severity.NOTE) -> Finding:
    return Finding(text, severity, _SECTION)


def _incomplete(groups: Groups) -> list[Finding]:
    runs = [run for of_group in groups.values() for run in of_group]
    broken = sum(not run["complete"] for run in runs)
    if not broken:
        return []
    text = f"{broken:,} of {len(runs):,} runs are incomplete, and compared as far as they go."
    return [_finding(text, Severity.INCOMPLETE)]


def _counts(groups: Groups) -> str:
    return " and ".join(
        f"{len(runs):,} run{'' if len(runs) == 1 else 's'} of {name}"
        for name, runs in groups.items()
    )


def _single_run_findings(groups: Groups, figures: Sequence[Comparison]) -> list[Finding]:
    """The differences between two single runs, without significance."""
    text = (
        f"Significance is unknown with {_counts(groups)}: it takes at least two of each, with "
        "different seeds, and better five."
    )
    most = sorted(
        (comparison for comparison in figures if comparison.difference),
        key=lambda comparison: -comparison.change,
    )
    names = list(groups)
    return [
        _finding(text, Severity.DOUBT),
        *(
            _finding(f"{comparison.figure.name}: {_both_means(names, comparison)}, in these runs.")
            for comparison in most[:_MAX_FINDINGS]
        ),
    ]


def _difference(groups: Groups, comparison: Comparison) -> str:
    assert comparison.half_width is not None, "it differs by more than that"
    least, most = (
        abs(comparison.difference) - comparison.half_width,
        abs(comparison.difference) + comparison.half_width,
    )
    more = "more" if comparison.difference > 0 else "less"
    unit = comparison.figure.unit_of_difference
    between = f"{_number(least)} to {_number(most)}{unit and ' '}{unit} {more}"
    return f"{comparison.figure.name}: {_both_means(list(groups), comparison)}, which is {between}."


def _both_means(names: Sequence[str], comparison: Comparison) -> str:
    unit = comparison.figure.unit and f" {comparison.figure.unit}"
    return ", ".join(
        f"{_number(mean)}{unit} in {name}"
        for name, mean in zip(names, comparison.means, strict=True)
    )


def _rows(figures: Sequence[Comparison]) -> list[Row]:
    return [
        {
            "figure": comparison.figure.name,
            "unit": comparison.figure.unit,
            "first": comparison.means[0],
            "second": comparison.means[1],
            "first_runs": len(comparison.first),
            "second_runs": len(comparison.second),
            "difference": comparison.difference,
            "half_width": comparison.half_width,
            "differs": comparison.differs,
        }
        for comparison in figures
    ]


def _columns(groups: Groups) -> list[Column]:
    first, second = groups
    return [
        ("figure", False, lambda row: row["figure"].removeprefix("The ")),
        (first, True, lambda row: _with_unit(row["first"], row)),
        (second, True, lambda row: _with_unit(row["second"], row)),
        ("runs", True, lambda row: f"{row['first_runs']} and {row['second_runs']}"),
        ("difference", True, _interval),
        ("significant", False, _verdict),
    ]


def _with_unit(value: float, row: Row) -> str:
    return f"{_number(value)} {row['unit']}".rstrip()


def _interval(row: Row) -> str:
    around = "" if row["half_width"] is None else f" ± {_number(row['half_width'])}"
    return f"{'+' if row['difference'] > 0 else ''}{_number(row['difference'])}{around}"


def _verdict(row: Row) -> str:
    if row["half_width"] is None:
        return "unknown" if row["difference"] else "the same in all runs"
    return "yes" if row["differs"] else "not shown"


def _number(value: float) -> str:
    """A number with three significant digits."""
    digits = 0 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"
