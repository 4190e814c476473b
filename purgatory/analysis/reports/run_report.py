"""The part of one run in a report: what happened, then latencies and waits, then all else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from purgatory.analysis.reports.audit_report import audit_section
from purgatory.analysis.reports.fault_words import fault_in_words
from purgatory.analysis.reports.opening import opening
from purgatory.analysis.reports.page import folded, section
from purgatory.analysis.reports.page_part import PagePart
from purgatory.analysis.reports.parked_sections import (
    keys_section,
    law_section,
    peaks_section,
    sizes_section,
)
from purgatory.analysis.reports.report_results import Results
from purgatory.analysis.reports.wait_sections import (
    distribution_section,
    expiry_section,
    outcomes_section,
    over_time_section,
    slowest_section,
    waits_section,
)
from purgatory.analysis.reports.what_happened import what_happened
from purgatory.analysis.result_rows import Row, shown_waits

MOST_PLOTTED_RUNS = 12
"""How many runs get plots; more would make a page that no browser opens with ease."""


def operations_of(waits: Sequence[Row], outcome: str) -> int:
    """How many operations some rows of the table `waits` count under one outcome."""
    return sum(row["operations"] for row in waits if row["outcome"] == outcome)


def run_report(part: PagePart, results: Results, *, is_folded: bool = False) -> str:
    """All of one run: the sentences, then the sections.

    Args:
        part: where it stands.
        results: its rows, and no other run's.
        is_folded: whether all but the sentences is folded away.
    """
    (run,) = results.runs
    below = _sections(part, run, results)
    opened = opening(part, what_happened(results), below)
    return "\n".join(
        [_about(run), opened, folded("Figures and plots", below) if is_folded else below]
    )


def _sections(part: PagePart, run: Row, results: Results) -> str:
    waits = shown_waits(results.waits)
    parts = [_facts(waits, results.occupancy) if waits else ""]
    found = any(row["count"] for row in results.audit)
    if not waits and not any((found, results.attempts, results.slowest, results.littles_law)):
        parts.append('<section><p class="note">This run has no operations.</p></section>')
    parts.append(waits_section(part, run, results.waits, results.latencies, results.attempts))
    if not part.plotted:
        parts.append(
            f'<p class="note">Plots are drawn for the first {MOST_PLOTTED_RUNS} runs; the tables '
            "have this one too.</p>"
        )
    cards = [
        over_time_section(part, run, results.over_time),
        sizes_section(part, run, results.occupancy),
        distribution_section(part, run, results.distribution),
        expiry_section(part, run, results.expiry),
        outcomes_section(part, run, results.waits),
        _faults(part, run["faults"]),
    ]
    parts.append(f'<div class="cards">{"".join(cards)}</div>' if any(cards) else "")
    parts += [
        peaks_section(part, results.peaks),
        law_section(part, results.littles_law),
        keys_section(part, results.hot_keys),
        slowest_section(part, results.slowest),
    ]
    parts.append(audit_section(part, results.audit, results.witnesses))
    return "\n".join(filter(None, parts))


def _about(run: Row) -> str:
    complete = run["complete"]
    seed = "" if run["seed"] is None else f"seed {run['seed']}, "
    mark = (
        '<span class="mark">complete</span>'
        if complete
        else '<span class="mark broken">incomplete</span>'
    )
    return (
        f"<p>Scenario <strong>{escape(run['scenario'])}</strong>, {seed}"
        f"{run['duration_us'] / 1e6:,.3f} s. {mark}</p>"
    )


def _facts(waits: Sequence[Row], occupancy: Sequence[Row]) -> str:
    """What matters most of one run, in figures that are seen at once."""
    overall = [row for row in waits if row["kind"] == "all"]
    operations = operations_of(overall, "all")
    facts = [("operations", f"{operations:,}", "")]
    waited = operations - operations_of(overall, "immediate")
    facts.append(("had to wait", f"{waited:,}", f" {100 * waited / operations:.1f} %"))
    expired = [row for row in overall if row["outcome"] == "expired"]
    of_each = " + ".join(f"{row['operations']:,} {row['purgatory']}" for row in expired)
    facts.append(("expired", f"{operations_of(overall, 'expired'):,}", f" {of_each}"))
    settled = [row for row in overall if row["outcome"] == "all"]
    longest = max((row["wait_max_us"] or 0 for row in settled), default=0)
    facts.append(("longest wait", f"{longest / 1000:,.1f}", " ms"))
    highest = [row["size_max"] for row in occupancy if row["broker"] is None]
    if highest:
        facts.append(("most that waited at once", f"{max(highest):,}", ""))
    return (
        '<dl class="facts">'
        + "".join(
            f"<div><dt>{label}</dt><dd>{figure}<small>{unit}</small></dd></div>"
            for label, figure, unit in facts
        )
        + "</dl>"
    )


def _faults(part: PagePart, faults: Sequence[Row]) -> str:
    if not faults:
        return ""
    items = [f"<li>{escape(fault_in_words(fault))}</li>" for fault in faults]
    return section(
        "What was made to go wrong",
        f"<ul>{''.join(items)}</ul>",
        anchor=part.anchor("faults"),
    )
