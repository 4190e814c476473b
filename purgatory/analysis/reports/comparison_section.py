"""The section that leads the page of two groups of runs: what differs, then all figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from purgatory.analysis.reports.compared_groups import CONFIDENCE, Compared, compared
from purgatory.analysis.reports.opening import opening
from purgatory.analysis.reports.page import Column, section, table
from purgatory.analysis.reports.page_part import PagePart
from purgatory.analysis.reports.report_results import Results
from purgatory.analysis.reports.row_links import row_links
from purgatory.analysis.reports.run_groups import Groups
from purgatory.analysis.reports.severity import Said, Severity
from purgatory.analysis.result_rows import Row

_MOST_SAID = 8
_PLACE = "comparison"


def comparison_section(part: PagePart, groups: Groups, by_run: Mapping[str, Results]) -> str:
    """The whole section; nothing where the groups have no figure in common.

    Args:
        part: where it stands.
        groups: two of them.
        by_run: the rows of each run.
    """
    figures = compared(groups, by_run)
    if not figures:
        return ""
    rows = _rows(figures)
    caption = (
        "The means over the runs of each. All intervals of the differences hold at once with "
        f"{100 * CONFIDENCE:g} % confidence (Welch's t, Bonferroni)."
    )
    below = "".join(
        [
            f'<div id="{part.anchor(_PLACE)}">',
            table(caption, _columns(groups), rows),
            row_links(part, _PLACE, rows),
            "</div>",
        ]
    )
    first, second = groups
    said = what_differs(groups, figures)
    return section(
        f"What differs from {first} to {second}", opening(part, said, below), below, level=2
    )


def what_differs(groups: Groups, figures: Sequence[Compared]) -> list[Said]:
    """The comparison in sentences: what differs by more than chance, then how sure that is.

    Args:
        groups: two of them.
        figures: what `compared` gives of them; at least one.
    """
    said = [*_incomplete(groups)]
    if min(map(len, groups.values())) < 2:
        return [*said, *_of_single_runs(groups, figures)]
    certain = sorted((one for one in figures if one.differs), key=lambda one: -one.change)
    counts = _counts(groups)
    if not certain:
        text = (
            f"None of {len(figures):,} figures differs by more than chance makes runs differ: "
            f"{counts}. That does not show that they are the same; the table tells how much they "
            "may differ."
        )
        return [*said, _said(text, Severity.FINE)]
    said += [_said(_difference(groups, one)) for one in certain[:_MOST_SAID]]
    more = len(certain) - _MOST_SAID
    if more > 0:
        said.append(_said(f"{more:,} more differ by more than chance, as the table tells."))
    others = len(figures) - len(certain)
    rest = f"Of {others:,} of {len(figures):,} figures nothing tells that they differ"
    return [*said, _said(f"{rest if others else 'All figures differ'}: {counts}.")]


def _said(text: str, severity: Severity = Severity.NOTE) -> Said:
    return Said(text, severity, _PLACE)


def _incomplete(groups: Groups) -> list[Said]:
    runs = [run for of_group in groups.values() for run in of_group]
    broken = sum(not run["complete"] for run in runs)
    if not broken:
        return []
    text = f"{broken:,} of {len(runs):,} runs are incomplete, and compared as far as they go."
    return [_said(text, Severity.INCOMPLETE)]


def _counts(groups: Groups) -> str:
    return " and ".join(
        f"{len(runs):,} run{'' if len(runs) == 1 else 's'} of {name}"
        for name, runs in groups.items()
    )


def _of_single_runs(groups: Groups, figures: Sequence[Compared]) -> list[Said]:
    """What is so in these runs, and that nothing tells of others."""
    text = (
        f"Whether a difference is more than chance nobody can tell from {_counts(groups)}: it "
        "takes at least two of each, with different seeds, and better five."
    )
    most = sorted((one for one in figures if one.difference), key=lambda one: -one.change)
    names = list(groups)
    return [
        _said(text, Severity.DOUBT),
        *(
            _said(f"{one.figure.name}: {_both(names, one)}, in these runs.")
            for one in most[:_MOST_SAID]
        ),
    ]


def _difference(groups: Groups, one: Compared) -> str:
    assert one.half_width is not None, "it differs by more than that"
    least, most = abs(one.difference) - one.half_width, abs(one.difference) + one.half_width
    more = "more" if one.difference > 0 else "less"
    unit = one.figure.unit_of_difference
    between = f"{_number(least)} to {_number(most)}{unit and ' '}{unit} {more}"
    return f"{one.figure.name}: {_both(list(groups), one)}, which is {between}."


def _both(names: Sequence[str], one: Compared) -> str:
    unit = one.figure.unit and f" {one.figure.unit}"
    return ", ".join(
        f"{_number(mean)}{unit} in {name}" for name, mean in zip(names, one.means, strict=True)
    )


def _rows(figures: Sequence[Compared]) -> list[Row]:
    return [
        {
            "figure": one.figure.name,
            "unit": one.figure.unit,
            "first": one.means[0],
            "second": one.means[1],
            "first_runs": len(one.first),
            "second_runs": len(one.second),
            "difference": one.difference,
            "half_width": one.half_width,
            "differs": one.differs,
        }
        for one in figures
    ]


def _columns(groups: Groups) -> list[Column]:
    first, second = groups
    return [
        ("figure", False, lambda row: row["figure"].removeprefix("The ")),
        (first, True, lambda row: _measured(row["first"], row)),
        (second, True, lambda row: _measured(row["second"], row)),
        ("runs", True, lambda row: f"{row['first_runs']} and {row['second_runs']}"),
        ("difference", True, _interval),
        ("more than chance", False, _verdict),
    ]


def _measured(value: float, row: Row) -> str:
    return f"{_number(value)} {row['unit']}".rstrip()


def _interval(row: Row) -> str:
    around = "" if row["half_width"] is None else f" ± {_number(row['half_width'])}"
    return f"{'+' if row['difference'] > 0 else ''}{_number(row['difference'])}{around}"


def _verdict(row: Row) -> str:
    if row["half_width"] is None:
        return "nobody can tell" if row["difference"] else "the same in all runs"
    return "yes" if row["differs"] else "not shown"


def _number(value: float) -> str:
    """A number with three digits that count."""
    digits = 0 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"
