"""The report: the part of each run with its findings and sections, and the whole page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape

from purgatory.pipeline.jobs.audit.basis import left_out_text
from purgatory.pipeline.jobs.registry import MOST_PLOTTED_RUNS
from purgatory.pipeline.report.audit_section import audit_section, worst_verdict
from purgatory.pipeline.report.comparison import comparison_section, two_groups
from purgatory.pipeline.report.findings import Results, findings, findings_list
from purgatory.pipeline.report.page import (
    FILTERS,
    Column,
    PagePart,
    collapsible,
    page,
    section,
    table,
)
from purgatory.pipeline.report.plots import by_purgatory
from purgatory.pipeline.report.replication import replication_section
from purgatory.pipeline.report.sentences import fault_text
from purgatory.pipeline.report.throughput import throughput_section
from purgatory.pipeline.report.verdict import sums_section, verdict, verdict_html
from purgatory.pipeline.report.wait_sections import (
    distribution_section,
    expiry_section,
    keys_section,
    outcomes_section,
    over_time_section,
    peaks_section,
    sizes_section,
    slowest_section,
    waits_section,
)
from purgatory.pipeline.result_rows import Row, group_by, label_waits
from purgatory.settings.version import __version__


def count_operations(waits: Sequence[Row], outcome: str) -> int:
    """The operations with an outcome in rows of the table `waits`."""
    return sum(row["operations"] for row in waits if row["outcome"] == outcome)


def run_report(part: PagePart, results: Results, *, is_collapsed: bool = False) -> str:
    """The part of one run: findings, then sections.

    Args:
        results: the rows of this run only.
        is_collapsed: show only the findings at first.
    """
    (run,) = results.runs
    below = _sections(part, run, results)
    story = over_time_section(part, run, results.over_time)
    found = findings(results)
    kind = "story beside" if story else "story"
    return "\n".join(
        [
            verdict_html(run, verdict(results, found)),
            f'<div class="{kind}">{findings_list(part, found, story + below)}{story}</div>',
            _about(run, results.left_out),
            collapsible("Figures and plots", below) if is_collapsed else below,
        ]
    )


def _sections(part: PagePart, run: Row, results: Results) -> str:
    waits = label_waits(results.waits)
    parts = [sums_section(part, results)]
    parts.append(_facts(waits, results.occupancy) if waits else "")
    has_cases = any(row["count"] for row in results.audit)
    if not waits and not any((has_cases, results.attempts, results.slowest, results.peaks)):
        parts.append('<section><p class="note">This run has no operations.</p></section>')
    parts.append(waits_section(part, run, results.waits, results.latencies, results.attempts))
    if not part.plotted:
        parts.append(
            f'<p class="note">Plots are drawn for the first {MOST_PLOTTED_RUNS} runs; the tables '
            "have this one too.</p>"
        )
    cards = [
        throughput_section(part, run, results.throughput),
        replication_section(part, run, results.replication),
        sizes_section(part, run, results.occupancy),
        distribution_section(part, run, results.distribution, results.slowest),
        expiry_section(part, run, results.expiry),
        outcomes_section(part, run, results.waits),
        _faults(part, run["faults"]),
    ]
    parts.append(f'<div class="cards">{"".join(cards)}</div>' if any(cards) else "")
    parts += [
        peaks_section(part, results.peaks),
        keys_section(part, results.hot_keys),
        slowest_section(part, run, results.slowest),
    ]
    parts.append(audit_section(part, results.audit, results.witnesses))
    return "\n".join(filter(None, parts))


def _about(run: Row, left_out: Sequence[Row]) -> str:
    complete = run["complete"]
    seed = "" if run["seed"] is None else f"seed {run['seed']}, "
    mark = (
        '<span class="mark">complete</span>'
        if complete
        else '<span class="mark broken">incomplete</span>'
    )
    if left_out:
        mark += f' <span class="mark broken">left out: {escape(left_out_text(left_out))}</span>'
    return (
        f"<p>Scenario <strong>{escape(run['scenario'])}</strong>, {seed}"
        f"{run['duration_us'] / 1e6:,.3f} s. {mark}</p>"
    )


def _facts(waits: Sequence[Row], occupancy: Sequence[Row]) -> str:
    """The key figures of each purgatory of one run: produces and fetches are never mixed."""
    overall = [row for row in waits if row["kind"] == "all"]
    return "".join(
        f"<h3>{escape(purgatory)}</h3>{_purgatory_facts(rows, occupancy, purgatory)}"
        for purgatory, rows in by_purgatory(overall).items()
    )


def _purgatory_facts(overall: Sequence[Row], occupancy: Sequence[Row], purgatory: str) -> str:
    operations = count_operations(overall, "all")
    waited = operations - count_operations(overall, "immediate")
    expired = count_operations(overall, "expired")
    longest = max(
        (row["wait_max_us"] or 0 for row in overall if row["outcome"] == "all"), default=0
    )
    facts = [
        ("operations", f"{operations:,}", ""),
        ("had to wait", f"{waited:,}", f" {100 * waited / operations:.1f} %"),
        ("expired", f"{expired:,}", f" {100 * expired / operations:.1f} %"),
        ("longest wait", f"{longest / 1000:,.1f}", " ms"),
    ]
    of_all = [row for row in occupancy if (row["purgatory"], row["broker"]) == (purgatory, None)]
    if of_all:
        facts.append(("peak pending", f"{max(row['size_max'] for row in of_all):,}", ""))
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
    items = [f"<li>{escape(fault_text(fault))}</li>" for fault in faults]
    return section(
        "Injected faults",
        f"<ul>{''.join(items)}</ul>",
        anchor=part.anchor("faults"),
    )


# The report: one page of HTML over all runs of an analysis.
#
# Beside each plot, a table has its figures.


_MOST_UNFOLDED = 1


def report_page(
    results: Results,
    notes: Sequence[str] = (),
    *,
    roots: Sequence[str] = (),
    parquet: Mapping[str, str] | None = None,
    command: str = "",
) -> str:
    """The whole page as HTML.

    Args:
        notes: sections of HTML before those of the runs.
        roots: the folders on the command line; the runs of two are compared.
        parquet: links to the Parquet of tables, by their names.
        command: repeats the analysis.
    """
    runs = results.runs
    title = runs[0]["run_id"] if len(runs) == 1 else _count(len(runs), "run")
    by_run = results.by_run()
    parts = [_heading(title, results), FILTERS, _comparison(runs, roots, by_run), *notes]
    if len(runs) != 1:
        parts.append(
            _runs_table(runs, {run_id: run_results.audit for run_id, run_results in by_run.items()})
        )
    for number, run in enumerate(runs):
        run_id = run["run_id"]
        heading = "In short" if len(runs) == 1 else run_id
        parts.append(f'<h2 id="run-{number}">{escape(heading)}</h2>')
        part = PagePart(number, plotted=number < MOST_PLOTTED_RUNS, parquet=parquet or {})
        parts.append(run_report(part, by_run[run_id], is_collapsed=len(runs) > _MOST_UNFOLDED))
    parts.append(_footer(command))
    return page(f"What happened in {title}", parts)


def _footer(command: str) -> str:
    """The version that made the page, and the command to repeat."""
    again = f" Again: <code>{escape(command)}</code>" if command else ""
    return f'<footer class="note">purgatory {escape(__version__)}.{again}</footer>'


def _comparison(runs: Sequence[Row], roots: Sequence[str], by_run: Mapping[str, Results]) -> str:
    groups = two_groups(runs, roots)
    return comparison_section(PagePart(len(runs)), groups, by_run) if groups else ""


def _heading(title: str, results: Results) -> str:
    return (
        f"<header><h1>What happened in {escape(title)}</h1>{_summary(results)}"
        f"{_verdicts(results)}</header>"
    )


def _summary(results: Results) -> str:
    """The size of several runs, in a sentence."""
    if len(results.runs) == 1:
        return ""
    overall = [row for row in results.waits if row["kind"] == "all"]
    operations = count_operations(overall, "all")
    waited_count = operations - count_operations(overall, "immediate")
    share = f" ({100 * waited_count / operations:.1f} %)" if operations else ""
    waited = (
        f", {_count(operations, 'operation')}, of which {waited_count:,}{share} had to wait"
        if operations
        else ""
    )
    return f"<p>{_count(len(results.runs), 'run')}{waited}.</p>"


def _verdicts(results: Results) -> str:
    """The audit's verdict over several runs in a sentence; a single run has its own."""
    if not results.audit or len(results.runs) == 1:
        return ""
    by_run = group_by(results.audit, "run_id")
    violated = sum(worst_verdict(rows) == "violation" for rows in by_run.values())
    return (
        f"<p>Order and duplicates: {_count(violated, 'run')} of {len(results.runs):,} "
        f"{'violates a guarantee' if violated == 1 else 'violate guarantees'}.</p>"
    )


def _runs_table(runs: Sequence[Row], audit: Mapping[str, Sequence[Row]]) -> str:
    columns: list[Column] = [
        ("run", False, lambda row: row["run_id"]),
        ("scenario", False, lambda row: row["scenario"]),
        ("seed", True, lambda row: "" if row["seed"] is None else str(row["seed"])),
        ("trace", False, lambda row: "complete" if row["complete"] else "incomplete"),
        ("duration, s", True, lambda row: f"{row['duration_us'] / 1e6:,.3f}"),
        *(
            (name, True, partial(_number, name))
            for name in ("operations", "sends", "reads")
            if runs and name in runs[0]
        ),
    ]
    if audit:
        columns.append(("audit", False, lambda row: worst_verdict(audit.get(row["run_id"], ()))))
    return section("Runs", table("The traces that were read.", columns, runs), level=2)


def _number(name: str, row: Row) -> str:
    return f"{row[name]:,}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
