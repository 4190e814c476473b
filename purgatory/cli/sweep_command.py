"""The command ``purgatory sweep``: thousands of simulations, spread by Spark over all cores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import options
from purgatory.cli.exit_status import exit_on_error

if TYPE_CHECKING:
    from purgatory.pipeline.sweeps.plan import Plan
    from purgatory.pipeline.sweeps.run import Progress, Sweep

MAX_PRINTED_FAILURES = 5
"""The number of failed scenarios that are printed; the page has more, the table `points` all."""

MAX_SCENARIOS = 100_000
"""Up to this number of scenarios, one task writes the tables, in a Java set up to start fast."""


def sweep(
    file: Annotated[
        Path,
        typer.Argument(metavar="SWEEP.toml", help="Settings to vary, repetitions, questions."),
    ],
    out: options.Out,
    master: options.Master = "local[*]",
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="Run failed scenarios of earlier runs again."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with status 1 if a scenario failed.")
    ] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print the number of scenarios, and run none.")
    ] = False,
    progress: options.ShowProgress = None,
) -> int:
    """Simulate many variants of a scenario, and answer which settings keep a bound.

    Results are written as they come: after Ctrl-C the same command continues, and an extended sweep
    runs only new scenarios.
    """
    results_note = f"results so far are in {out}; the same command continues"
    with exit_on_error("sweep", results_note=results_note):
        from purgatory.pipeline.sweeps.plan import load_plan
        from purgatory.pipeline.sweeps.run import check_folder, missing, sweep_all

        plan = load_plan(file)
        check_folder(out)
        remaining = len(missing(plan, out, retry_failed=retry_failed))
        print(_plan_text(plan, remaining), file=sys.stdout if plan_only else sys.stderr)
        if plan_only:
            return 0
        from purgatory.pipeline.engines.spark.session import spark_session

        # Java has little to do: the work is in Python, the tables have a row per scenario.
        small = plan.scenarios <= MAX_SCENARIOS
        with (
            spark_session(master, small=small) as session,
            _progress_printer(progress) as on_progress,
        ):
            done = sweep_all(session, plan, out, retry_failed=retry_failed, on_progress=on_progress)
    _print(done)
    return 1 if check and done.failed else 0


def _plan_text(plan: Plan, remaining: int) -> str:
    done = plan.scenarios - remaining
    done_text = f", {done:,} of them done already" if done else ""
    return (
        f"{plan.sweep.name}: {plan.points:,} points x {plan.sweep.repetitions} seeds = "
        f"{plan.scenarios:,} scenarios{done_text}"
    )


@contextmanager
def _progress_printer(shown: bool | None) -> Iterator[Callable[[Progress], object] | None]:
    """A progress bar on a terminal; elsewhere, with --progress, a line for each tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if shown is False or (shown is None and not console.is_terminal):
        yield None
        return
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("scenarios"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("scenarios", total=None)
        yield lambda now: bars.update(bar, completed=now.done, total=now.todo)


class _Lines:
    """Progress as lines for a log, one for each tenth."""

    def __init__(self) -> None:
        self._tenth = 0

    def __call__(self, now: Progress) -> None:
        tenths = 10 * now.done // max(1, now.todo)
        if tenths > self._tenth:
            self._tenth = tenths
            print(f"{now.done:,} of {now.todo:,} scenarios done", file=sys.stderr, flush=True)


def _print(done: Sweep) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    for answer in done.answers:
        console.print(f"- {escape(answer.words())}")
    if done.failed:
        one_or_more = "1 scenario" if done.failed == 1 else f"{done.failed:,} scenarios"
        done_text = "is" if done.failed == 1 else "are"
        console.print(f"[bold]{one_or_more} failed[/bold] and {done_text} in no mean:")
        for failure in done.failures[:MAX_PRINTED_FAILURES]:
            console.print(
                f"  {escape(failure.settings)}, seed {failure.seed}: {escape(failure.error)}"
            )
        left_out = done.failed - MAX_PRINTED_FAILURES
        if left_out > 0:
            console.print(f"  ... and {left_out:,} more, in the table points")
    console.print(f"Report: {escape(str(done.report))}", soft_wrap=True)
