"""A job's results on a terminal: first the runs, each with its tables, then the totals.

Most tables are rows of the job (`pipeline.jobs.registry`); tables with a form of their own are
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from purgatory.cli.output import show_location
from purgatory.pipeline.engines.results import JobResults
from purgatory.pipeline.ingest.trace_set import is_interrupted, quarantine_lines
from purgatory.pipeline.jobs.audit.basis import (
    basis_text,
    left_out_text,
    nothing_judged,
    operations_of,
    unchecked_of,
)
from purgatory.pipeline.jobs.registry import (
    ANALYZE,
    AUDIT,
    MOST_SHOWN_RUNS,
    Format,
    Job,
    TerminalTable,
)
from purgatory.pipeline.result_rows import Row, counted, group_by, label_waits, milliseconds

_MOST_DETAILS = 5
_PERCENTILES = {"p50": "p50", "p95": "p95", "p99": "p99", "p999": "p99.9", "max": "max"}


def print_results(
    results: JobResults, out: object, expected: Sequence[str] = (), *, has_page: bool = False
) -> None:
    """Print a job's results.

    Args:
        results: of the job.
        out: the folder of the results, if they were written.
        expected: the anomalies that the audit expects.
        has_page: a page shows them, too.
    """
    if results.job is AUDIT:
        _print_audit(results, out, expected, has_page)
        return
    console, job = Console(), results.job
    run_ids = results.run_ids[:MOST_SHOWN_RUNS]
    rows_by_run = {name: group_by(rows, "run_id") for name, rows in results.rows.items()}
    left_out = group_by(results.left_out, "run_id")
    without = runs_without_rows(results)
    for run_id in run_ids:
        bad = left_out.get(run_id, ())
        if job is ANALYZE:
            _print_basis(console, results, run_id)
        elif run_id in without and bad:
            console.print(
                f"{escape(run_id)}: nothing was judged: {left_out_text(bad)} left out",
                style="bold",
                markup=False,
            )
        elif run_id in without:
            console.print(
                f"{run_id}: nothing was judged: {job.nothing}{_other_tables(results, run_id)}",
                style="bold",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        elif bad:
            console.print(f"{escape(run_id)}: left out: {left_out_text(bad)}", soft_wrap=True)
        if job is not ANALYZE:
            _print_details(console, bad)
        for name, view in job.views.items():
            rows = rows_by_run.get(name, {}).get(run_id, [])
            if not rows:
                continue
            if view.terminal is not None:
                _print_table(console, view.terminal, run_id, rows)
            elif name in _CUSTOM_PRINTERS:
                _CUSTOM_PRINTERS[name](console, job, run_id, rows)
        if run_id in results.incomplete:
            console.print(
                f"[bold]incomplete[/bold]: {_UNFINISHED if is_interrupted(bad) else _LEFT_OUT}"
            )
    _print_excluded_rows(console, results.run_ids, "the report" if job is ANALYZE else None)
    if results.truncated:
        console.print(f"... and more {' and '.join(results.truncated)}, in the tables of --out")
    for line in quarantine_lines(results.quarantine):
        console.print(f"quarantined: {line}", markup=False, soft_wrap=True)
    if results.report is not None:
        show_location(console, "Report", results.report)
    else:
        show_location(console, "Tables", out)


_UNFINISHED = "this run was interrupted; pending operations are not counted"
_LEFT_OUT = "files of this run are missing, or left out"


def _other_tables(results: JobResults, run_id: str) -> str:
    """The tables of a run that its job does not read, the commands that do, and what it needs."""
    has = results.tables.get(run_id, ())
    if results.job is AUDIT:
        needed, others, judge = "sends and reads", ["operations"], "waits and occupancy judge"
    else:
        needed, others, judge = "the table operations", ["sends", "reads"], "audit judges"
    found = " and ".join(name for name in others if name in has)
    if not found:
        return ""
    return f"; it has {found}: purgatory {judge} those, and {results.job.name} needs {needed}"


def runs_without_rows(results: JobResults) -> Sequence[str]:
    """The runs, of those that are shown, of which the job had nothing to judge."""
    if results.job in (ANALYZE, AUDIT):
        waited = {row["run_id"] for row in results.rows.get("waits", ())}
        nothing = [row["run_id"] for row in results.rows["judged"] if nothing_judged(row)]
        return [run_id for run_id in nothing if run_id not in waited]
    first, *_ = results.job.views.values()
    found = {
        row["run_id"]
        for name, rows in results.rows.items()
        if results.job.views[name].table == first.table
        for row in rows
    }
    return [run_id for run_id in results.run_ids[:MOST_SHOWN_RUNS] if run_id not in found]


def _print_basis(console: Console, results: JobResults, run_id: str) -> None:
    """The first line of a run: what its verdicts rest on."""
    judged, left_out, audit, waits = (
        [row for row in rows if row["run_id"] == run_id]
        for rows in (
            results.rows["judged"],
            results.left_out,
            results.rows["audit"],
            results.rows.get("waits", ()),
        )
    )
    unchecked = unchecked_of(audit)
    text = basis_text(judged[0] if judged else {}, left_out, unchecked, operations_of(waits))
    if not left_out and run_id in runs_without_rows(results):
        other = _other_tables(results, run_id)
        text = f"nothing was judged: no sends and no reads{other}" if other else text
    console.print(f"{run_id}: {text}", markup=False, highlight=False, soft_wrap=True)
    _print_details(console, left_out)


def _print_details(console: Console, left_out: Sequence[Row]) -> None:
    """The faults of the first files that are left out as a whole."""
    details = [detail for row in left_out for detail in row["details"]]
    for detail in details[:_MOST_DETAILS]:
        console.print(f"  {detail}", markup=False, highlight=False, soft_wrap=True)


def _print_excluded_rows(console: Console, runs: Sequence[str], all_in: str | None = None) -> None:
    if len(runs) > MOST_SHOWN_RUNS:
        where = all_in or "the tables of --out"
        console.print(f"... and {len(runs) - MOST_SHOWN_RUNS} more runs, in {where}")


# Tables


def titled_table(title: str) -> Table:
    """An empty table without columns."""
    return Table(
        title=escape(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table with columns of text and then of numbers."""
    table = titled_table(title)
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def number(value: float | None, digits: int = 2) -> str:
    """A number as text; a dash for none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def short_ms(wait_us: float | None) -> str:
    """A wait as text, in milliseconds with the digits that matter; a dash for none."""
    if wait_us is None:
        return "-"
    return number(wait_us / 1000, 2 if wait_us < 99_995 else 1 if wait_us < 999_950 else 0)


def percent(share: float | None) -> str:
    """A share as text, in percent; a dash for none."""
    return "-" if share is None else f"{100 * share:.2f}"


_FORMATS: Mapping[Format, Callable[[Any], str]] = {
    "text": lambda value: "(unknown)" if value is None else escape(value),
    "texts": lambda value: "-" if value is None else escape(", ".join(value)),
    "any": lambda value: "all" if value is None else str(value),
    "id": str,
    "count": lambda value: f"{value:,}",
    "percent": percent,
    "ms": lambda value: milliseconds(value, digits=2),
    "short_ms": short_ms,
    "s": lambda value: number(value / 1_000_000, 3),
    "1": lambda value: number(value, 1),
    "3": lambda value: number(value, 3),
    "4": lambda value: number(value, 4),
}


def _print_table(
    console: Console, terminal_table: TerminalTable, run_id: str, rows: Sequence[Row]
) -> None:
    only_with = terminal_table.only_with
    if only_with is not None and all(row[only_with] is None for row in rows):
        return
    table = titled_table(terminal_table.title.format(run=run_id))
    for head, (_, form) in terminal_table.columns.items():
        if form in ("text", "texts", "any"):
            table.add_column(head)
        else:
            table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            *(_FORMATS[form](row[name]) for name, form in terminal_table.columns.values())
        )
    console.print(table)


# Tables with a form of their own


def _print_waits(console: Console, job: Job, run_id: str, rows: Sequence[Row]) -> None:
    """The waits by purgatory, kind and outcome."""
    percentiles = {name: _PERCENTILES[name] for name in _PERCENTILES if name != "p999"}
    percentiles = percentiles if job is ANALYZE else _PERCENTILES
    terminal_rows = table(
        f"Waits in {run_id}, in milliseconds",
        ("purgatory", "outcome"),
        ("count", "share %", *percentiles.values()),
    )
    previous_name = ""
    for row in label_waits(rows):
        terminal_rows.add_row(
            escape(row["label"]) if row["label"] != previous_name else "",
            escape(row["outcome"]),
            f"{row['operations']:,}",
            percent(row["share"]),
            *(short_ms(row[f"wait_{name}_us"]) for name in percentiles),
            end_section=row["outcome"] == "all",
        )
        previous_name = row["label"]
    console.print(terminal_rows)


def _print_latencies(console: Console, _job: Job, _run_id: str, rows: Sequence[Row]) -> None:
    names = ("mean", "p50", "p95", "p99", "max")
    terminal_rows = table(
        "Latencies of producers, in milliseconds", ("group", "span"), ("count", *names)
    )
    previous_name = None
    for row in rows:
        indent = "" if row["span"] in ("record", "attempt") else "  "
        terminal_rows.add_row(
            escape(row["group"]) if row["group"] != previous_name else "",
            indent + row["span"],
            f"{row['count']:,}",
            *(milliseconds(row[f"latency_{name}_us"], digits=2) for name in names),
        )
        previous_name = row["group"]
    console.print(terminal_rows)


def _print_verdict(console: Console, _job: Job, _run_id: str, rows: Sequence[Row]) -> None:
    from purgatory.pipeline.report.audit_section import verdict_line

    console.print(escape(f"Order and duplicates: {verdict_line(rows)}"), highlight=False)


def _print_peaks(console: Console, _job: Job, run_id: str, rows: Sequence[Row]) -> None:
    """The highest peaks of parked operations: time, operations, and the faults before."""
    console.print(f"[italic]Peaks in {escape(run_id)}[/italic]")
    for peak in rows:
        before_ms = milliseconds(peak["before_us"], digits=1)
        lines = [
            f"{peak['purgatory']}: {peak['size']:,} pending at {number(peak['at_us'] / 1e6, 3)} s, "
            f"the oldest for {milliseconds(peak['oldest_us'], digits=1)} ms",
            f"  {peak['arrivals_before']:,} arrived in the {before_ms} ms before, "
            f"{number(peak['arrivals_usual'], 1)} is usual",
            f"  {_format_counts(peak['kinds'])}; {_format_counts(peak['outcomes'])} in the end",
            f"  {_format_counts(peak['brokers'], 'on broker ')}",
        ]
        if peak["keys"]:
            lines.append(f"  {_format_counts(peak['keys'], 'on ')}")
        if peak["faults"]:
            lines.append(f"  faults: {', '.join(peak['faults'])}")
        console.print("\n".join(f"  {escape(line)}" for line in lines), highlight=False)
    console.print()


def _format_counts(counts: Sequence[Row] | None, before: str = "") -> str:
    return ", ".join(f"{count['parked']} {before}{count['name']}" for count in counts or [])


_CUSTOM_PRINTERS: Mapping[str, Callable[[Console, Job, str, Sequence[Row]], None]] = {
    "waits": _print_waits,
    "latencies": _print_latencies,
    "audit": _print_verdict,
    "peaks": _print_peaks,
}


def _print_audit(results: JobResults, out: object, expected: Sequence[str], has_page: bool) -> None:
    """The runs with violations first, then their number, and the undecided anomalies."""
    from purgatory.pipeline.jobs.audit.findings import undecided

    console = Console(highlight=False)
    rows = results.rows["audit"]
    runs = group_by(rows, "run_id")
    violations = {run_id: count_violations(run_rows) for run_id, run_rows in runs.items()}
    ordered_runs = sorted(runs, key=lambda run_id: not violations[run_id])
    without = runs_without_rows(results)
    for run_id in ordered_runs[:MOST_SHOWN_RUNS]:
        _print_basis(console, results, run_id)
        violated = [row for row in runs[run_id] if row["count"]]
        if violated:
            console.print(_anomalies_table(run_id, violated))
        elif run_id not in without:
            console.print(f"{escape(run_id)}: no anomalies")
    _print_excluded_rows(console, ordered_runs)
    violating_runs = sum(map(bool, violations.values()))
    console.print(
        f"{counted(count_violations(rows), 'violation')} in {violating_runs:,} of "
        f"{counted(len(runs), 'run')}"
        if violating_runs
        else f"No violations in {counted(len(runs) - len(without), 'run')}"
        + (f"; nothing was judged in {len(without):,}" if without else "")
    )
    for run_id, run_findings in group_by(undecided(rows, expected), "run_id").items():
        settings = ", ".join(dict.fromkeys(row["setting"] for row in run_findings))
        names = ", ".join(dict.fromkeys(row["anomaly"] for row in run_findings))
        console.print(escape(f"{run_id}: could not be decided: {names} ({settings})"))
    if out is None and not has_page and any(row["count"] for row in rows):
        console.print("The records of each case: in the page of --report, and the tables of --out")
    show_location(console, "Tables", out)


def count_violations(rows: Sequence[Row]) -> int:
    """The number of violations, each case counted once."""
    from purgatory.pipeline.report.sentences import dedupe_anomalies

    return sum(row["count"] for row in dedupe_anomalies(rows) if row["verdict"] == "violation")


def _anomalies_table(run_id: str, rows: Sequence[Row]) -> Table:
    table = titled_table(f"Order and duplicates in {run_id}")
    for name in ("anomaly", "group"):
        table.add_column(name, no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("by")
    for row in rows:
        table.add_row(
            row["anomaly"],
            escape(row["group"] or ""),
            f"{row['count']:,}",
            row["verdict"],
            escape(row["setting"] or ""),
            style="bold" if row["verdict"] == "violation" else None,
        )
    return table
