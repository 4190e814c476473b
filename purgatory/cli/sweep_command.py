"""The command ``purgatory sweep``: thousands of simulations, spread by Spark over all cores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import options
from purgatory.cli.exit_status import one_line_errors

if TYPE_CHECKING:
    from purgatory.sweeps.sweep_outputs import Sweep
    from purgatory.sweeps.sweep_plan import Plan
    from purgatory.sweeps.sweep_run import Progress

MOST_PRINTED_FAILURES = 5
"""How many scenarios that failed are printed; the page names more, the table `points` all."""

MOST_SMALL_SCENARIOS = 100_000
"""The scenarios up to which one task puts their tables together, in a Java that starts fast."""


def sweep(
    file: Annotated[
        Path,
        typer.Argument(metavar="SWEEP.toml", help="What to vary, how often, and the questions."),
    ],
    out: options.Out,
    master: options.Master = "local[*]",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run the failed scenarios of earlier runs again.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with status 1 if a scenario failed.")
    ] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Only print how many scenarios there are to run.")
    ] = False,
    progress: options.ShowProgress = None,
) -> int:
    """Simulate many variants of a scenario, and find the effects of its settings.

    Results are kept as they come: after Ctrl-C the same command goes on, and an extended sweep runs
    only what is new.
    """
    go_on = f"what is done is kept in {out}: the same command goes on with the rest"
    with one_line_errors("sweep", kept=go_on):
        from purgatory.sweeps.sweep_outputs import sweep_all
        from purgatory.sweeps.sweep_plan import load_plan
        from purgatory.sweeps.sweep_run import check_folder, missing

        plan = load_plan(file)
        check_folder(out)
        todo = len(missing(plan, out, retry_failed=retry_failed))
        print(_how_much(plan, todo), file=sys.stdout if plan_only else sys.stderr)
        if plan_only:
            return 0
        from purgatory.analysis.spark.session import spark_session

        # Java has little to do: the work is in Python, the tables have a row per scenario.
        small = plan.scenarios <= MOST_SMALL_SCENARIOS
        with spark_session(master, small=small) as session, _shown(progress) as on_progress:
            done = sweep_all(session, plan, out, retry_failed=retry_failed, on_progress=on_progress)
    _print(done)
    return 1 if check and done.failed else 0


def _how_much(plan: Plan, todo: int) -> str:
    done = plan.scenarios - todo
    left = f", {done:,} of them done already" if done else ""
    return (
        f"{plan.sweep.name}: {plan.points:,} points x {plan.sweep.repetitions} seeds = "
        f"{plan.scenarios:,} scenarios{left}"
    )


@contextmanager
def _shown(shown: bool | None) -> Iterator[Callable[[Progress], object] | None]:
    """A bar of scenarios on a terminal; elsewhere, if asked for, a line at each tenth."""
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
    """Progress as lines for a log, one at each tenth."""

    def __init__(self) -> None:
        self._told = 0

    def __call__(self, now: Progress) -> None:
        tenth = 10 * now.done // max(1, now.todo)
        if tenth > self._told:
            self._told = tenth
            print(f"{now.done:,} of {now.todo:,} scenarios done", file=sys.stderr, flush=True)


def _print(done: Sweep) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    for answer in done.answers:
        console.print(f"- {escape(answer.words())}")
    if done.failed:
        one_or_more = "1 scenario" if done.failed == 1 else f"{done.failed:,} scenarios"
        left = "is" if done.failed == 1 else "are"
        console.print(f"[bold]{one_or_more} failed[/bold] and {left} in no mean:")
        for one in done.failures[:MOST_PRINTED_FAILURES]:
            console.print(f"  {escape(one.settings)}, seed {one.seed}: {escape(one.error)}")
        left_out = done.failed - MOST_PRINTED_FAILURES
        if left_out > 0:
            console.print(f"  ... and {left_out:,} more, in the table points")
    console.print(f"Report: {escape(str(done.report))}", soft_wrap=True)
