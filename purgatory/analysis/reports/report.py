"""The report: one page of HTML over all runs of an analysis.

Beside each plot, a table says in figures what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape

from purgatory.analysis.reports.audit_report import verdict_of
from purgatory.analysis.reports.comparison_section import comparison_section
from purgatory.analysis.reports.page import Column, page, section, table
from purgatory.analysis.reports.page_part import PagePart
from purgatory.analysis.reports.report_results import Results
from purgatory.analysis.reports.run_groups import two_groups
from purgatory.analysis.reports.run_report import (
    MOST_PLOTTED_RUNS,
    operations_of,
    run_report,
)
from purgatory.analysis.result_rows import Row, grouped

_MOST_UNFOLDED = 1


def report_page(
    results: Results,
    notes: Sequence[str] = (),
    *,
    roots: Sequence[str] = (),
    parquet: Mapping[str, str] | None = None,
) -> str:
    """The whole page, as text.

    Args:
        results: what it shows.
        notes: sections to stand before those of the runs, as HTML.
        roots: the folders that were given, as the runs in two of them are compared.
        parquet: where the page finds the Parquet of tables, by their names.
    """
    runs = results.runs
    title = runs[0]["run_id"] if len(runs) == 1 else _count(len(runs), "run")
    of_runs = results.by_run()
    parts = [_heading(title, results), _compared(runs, roots, of_runs), *notes]
    if len(runs) != 1:
        parts.append(_runs_table(runs, {run_id: one.audit for run_id, one in of_runs.items()}))
    for number, run in enumerate(runs):
        run_id = run["run_id"]
        heading = "In short" if len(runs) == 1 else run_id
        parts.append(f'<h2 id="run-{number}">{escape(heading)}</h2>')
        part = PagePart(number, plotted=number < MOST_PLOTTED_RUNS, parquet=parquet or {})
        parts.append(run_report(part, of_runs[run_id], is_folded=len(runs) > _MOST_UNFOLDED))
    return page(f"What happened in {title}", parts)


def _compared(runs: Sequence[Row], roots: Sequence[str], of_runs: Mapping[str, Results]) -> str:
    groups = two_groups(runs, roots)
    return comparison_section(PagePart(len(runs)), groups, of_runs) if groups else ""


def _heading(title: str, results: Results) -> str:
    return (
        f"<header><h1>What happened in {escape(title)}</h1>{_in_short(results)}"
        f"{_verdicts(results)}</header>"
    )


def _in_short(results: Results) -> str:
    """How much it is over several runs."""
    if len(results.runs) == 1:
        return ""
    overall = [row for row in results.waits if row["kind"] == "all"]
    operations = operations_of(overall, "all")
    waited_count = operations - operations_of(overall, "immediate")
    share = f" ({100 * waited_count / operations:.1f} %)" if operations else ""
    waited = (
        f", {_count(operations, 'operation')}, of which {waited_count:,}{share} had to wait"
        if operations
        else ""
    )
    return f"<p>{_count(len(results.runs), 'run')}{waited}.</p>"


def _verdicts(results: Results) -> str:
    """The audit's verdict over all runs in a sentence; a single one has its own."""
    if not results.audit or len(results.runs) == 1:
        return ""
    by_run = grouped(results.audit, "run_id")
    violated = sum(verdict_of(rows) == "violation" for rows in by_run.values())
    return (
        f"<p>Order and duplicates: {_count(violated, 'run')} of {len(results.runs):,} "
        f"{'breaks' if violated == 1 else 'break'} what was promised.</p>"
    )


def _runs_table(runs: Sequence[Row], audit: Mapping[str, Sequence[Row]]) -> str:
    columns: list[Column] = [
        ("run", False, lambda row: row["run_id"]),
        ("scenario", False, lambda row: row["scenario"]),
        ("seed", True, lambda row: "" if row["seed"] is None else str(row["seed"])),
        ("trace", False, lambda row: "complete" if row["complete"] else "incomplete"),
        ("duration, s", True, lambda row: f"{row['duration_us'] / 1e6:,.3f}"),
        *(
            (name, True, partial(_counted, name))
            for name in ("operations", "sends", "reads")
            if runs and name in runs[0]
        ),
    ]
    if audit:
        columns.append(("audit", False, lambda row: verdict_of(audit.get(row["run_id"], ()))))
    return section("Runs", table("The traces that were read.", columns, runs), level=2)


def _counted(name: str, row: Row) -> str:
    return f"{row[name]:,}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
