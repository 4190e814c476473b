"""The command ``purgatory occupancy``: the parked operations over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import options
from purgatory.cli.exit_status import one_line_errors
from purgatory.cli.output import check_report, write_report
from purgatory.pipeline.engines.engine import choose_engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from purgatory.pipeline.engines.results import JobResults
    from purgatory.pipeline.result_rows import Row

_NOTHING = 1e-6
"""The part of a mean size up to which a difference comes from the rounding of sums."""


def occupancy(
    traces: options.Traces,
    out: options.OptionalOutLocation = None,
    report: options.ReportFile = None,
    hot_keys: Annotated[
        int, typer.Option(min=1, help="How many of the hottest keys of each purgatory.")
    ] = 10,
    engine: options.AnalysisEngine = None,
    master: options.Master = "local[*]",
    overwrite: options.Overwrite = False,
    progress: options.ShowProgress = None,
    mapping: options.ColumnMapping = None,
    strict: options.Strict = False,
    memory: options.Memory = None,
) -> None:
    """Tell how many requests were parked over time, the peaks with their causes, and hot keys."""
    check_report(report, out, overwrite, engine)
    chosen = choose_engine("occupancy", engine)
    with one_line_errors("occupancy", progress=progress, engine=chosen):
        from purgatory.pipeline.engines.engine import RunOptions
        from purgatory.pipeline.engines.run import run_job
        from purgatory.pipeline.ingest.stores import parse_location

        results = run_job(
            "occupancy",
            [parse_location(trace) for trace in traces],
            None if out is None else parse_location(out),
            engine=chosen,
            run_options=RunOptions(master, overwrite, progress, mapping, strict, memory),
            number=hot_keys,
            page=report is not None,
        )
        _print(results, out)
        write_report(report, out, results.page())


def _print(results: JobResults, out: str | None) -> None:
    from rich.console import Console
    from rich.markup import escape

    from purgatory.cli.output import show_location, show_quarantine, show_runs

    console = Console()
    for run_id in show_runs(console, results.run_ids, results.incomplete):
        law, peaks, keys = (
            [row for row in rows if row["run_id"] == run_id]
            for rows in (results.rows[name] for name in ("littles_law", "peaks", "hot_keys"))
        )
        if not law:
            console.print(f"{escape(run_id)}: nothing was parked")
            continue
        _print_law(console, run_id, law)
        _print_peaks(console, run_id, peaks)
        if keys:
            _print_keys(console, run_id, keys)
    show_quarantine(console, results.quarantine)
    show_location(console, "Tables", out)


def _print_law(console: Console, run_id: str, rows: Sequence[Row]) -> None:
    from rich.markup import escape

    from purgatory.cli.output import number, table
    from purgatory.pipeline.result_rows import milliseconds

    grid = table(
        f"Little's law in {run_id}: arrivals x mean wait = mean parked",
        ("purgatory", "broker"),
        ("entries", "per s", "wait ms", "product", "parked", "differs", "pending"),
    )
    for row in rows:
        grid.add_row(
            escape(row["purgatory"]),
            "all" if row["broker"] is None else str(row["broker"]),
            f"{row['entries']:,}",
            number(row["arrivals_per_s"], 1),
            milliseconds(row["mean_wait_us"], digits=2),
            number(row["arrivals_times_wait"], 3),
            number(row["mean_parked"], 3),
            number(row["discrepancy"], 4),
            f"{row['pending']:,}",
        )
    console.print(grid)
    if any(abs(row["unexplained"]) > _NOTHING * max(row["mean_parked"], 1) for row in rows):
        console.print(
            "[bold]The law does not hold[/bold], and what was pending at the end does not explain "
            "it: see the column unexplained in the table littles_law"
        )


def _print_peaks(console: Console, run_id: str, rows: Sequence[Row]) -> None:
    from rich.markup import escape

    console.print(f"[italic]Peaks in {escape(run_id)}[/italic]")
    for row in rows:
        console.print("\n".join(f"  {escape(line)}" for line in _peak_lines(row)), highlight=False)
    console.print()


def _peak_lines(peak: Row) -> Iterator[str]:
    """A peak in lines: its size, the parked operations, and its causes."""
    from purgatory.cli.output import number
    from purgatory.pipeline.result_rows import milliseconds

    yield (
        f"{peak['purgatory']}: {peak['size']:,} parked at {number(peak['at_us'] / 1e6, 3)} s, "
        f"the oldest for {milliseconds(peak['oldest_us'], digits=1)} ms"
    )
    yield (
        f"  {peak['arrivals_before']:,} came in the {milliseconds(peak['before_us'], digits=1)} ms "
        f"before, {number(peak['arrivals_usual'], 1)} is usual"
    )
    yield f"  {_format_counts(peak['kinds'])}; {_format_counts(peak['outcomes'])} in the end"
    yield f"  {_format_counts(peak['brokers'], 'on broker ')}"
    if peak["keys"]:
        yield f"  {_format_counts(peak['keys'], 'on ')}"
    if peak["faults"]:
        yield f"  at work: {', '.join(peak['faults'])}"


def _format_counts(counts: Sequence[Mapping[str, object]] | None, before: str = "") -> str:
    return ", ".join(f"{entry['parked']} {before}{entry['name']}" for entry in counts or [])


def _print_keys(console: Console, run_id: str, rows: Sequence[Row]) -> None:
    from rich.markup import escape

    from purgatory.cli.output import number, table
    from purgatory.pipeline.result_rows import milliseconds

    grid = table(
        f"Hot keys in {run_id}",
        ("purgatory", "key"),
        ("mean parked", "entries", "expired", "mean ms", "max ms"),
    )
    for row in rows:
        grid.add_row(
            escape(row["purgatory"]),
            escape(row["key"]),
            number(row["mean_parked"], 3),
            f"{row['entries']:,}",
            f"{row['expired']:,}",
            milliseconds(row["wait_mean_us"], digits=2),
            milliseconds(row["wait_max_us"], digits=2),
        )
    console.print(grid)
