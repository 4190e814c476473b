"""The command ``purgatory sweep``: thousands of simulations, spread by Spark over all cores."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING

import click

from purgatory.cli import options
from purgatory.cli.exit_status import exit_on_error
from purgatory.cli.job_commands import INCONCLUSIVE, command_of
from purgatory.cli.options import PATH
from purgatory.pipeline.jobs.registry import SWEEP

if TYPE_CHECKING:
    from pathlib import Path

    from purgatory.sweeps.plan import Plan
    from purgatory.sweeps.run import Sweep

MAX_PRINTED_FAILURES = 5
"""The most failed scenarios that are printed; the page has more, the table `points` all."""


def _sweep(
    file: Path,
    out: Path,
    master: str,
    retry_failed: bool,
    check: bool,
    plan_only: bool,
    progress: bool | None,
) -> int:
    results_note = f"results so far are in {out}; the same command continues"
    with exit_on_error("sweep", results_note=results_note):
        from purgatory.sweeps.plan import load_plan
        from purgatory.sweeps.run import check_folder, missing, sweep_all

        plan = load_plan(file)
        check_folder(out)
        remaining = len(missing(plan, out, retry_failed=retry_failed))
        print(_plan_text(plan, remaining), file=sys.stdout if plan_only else sys.stderr)
        if plan_only:
            return 0
        from purgatory.pipeline.engines.progress import EngineProgress, show_progress
        from purgatory.pipeline.engines.spark.session import spark_session

        last = deque([EngineProgress()], maxlen=1)
        with (
            spark_session(master, rows=plan.scenarios) as session,
            show_progress("Sweep", lambda: last[0], progress),
        ):
            done = sweep_all(session, plan, out, retry_failed=retry_failed, on_progress=last.append)
    _print(plan.sweep.name, done)
    if done.basis.nothing_judged:
        return INCONCLUSIVE
    return 1 if check and done.basis.failed else 0


sweep = command_of(
    SWEEP,
    _sweep,
    [
        click.argument(
            "file",
            type=PATH,
            metavar="SWEEP.toml",
            help="Settings to vary, repetitions, questions.",
        ),
        options.out_option(required=True, type=PATH),
        options.master,
    ],
    [
        options.flag("--check", "Exit with status 1 if a scenario failed."),
        options.flag("--plan", "Print the number of scenarios, and run none.", "plan_only"),
        options.show_progress,
    ],
)


def _plan_text(plan: Plan, remaining: int) -> str:
    done = plan.scenarios - remaining
    done_text = f", {done:,} of them done already" if done else ""
    return (
        f"{plan.sweep.name}: {plan.points:,} points x {plan.sweep.repetitions} seeds = "
        f"{plan.scenarios:,} scenarios{done_text}"
    )


def _print(name: str, done: Sweep) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    console.print(f"{escape(name)}: {done.basis}")
    for answer in done.answers:
        console.print(f"- {escape(answer.words())}")
    if failed := done.basis.failed:
        one_or_more = "1 scenario" if failed == 1 else f"{failed:,} scenarios"
        done_text = "is" if failed == 1 else "are"
        console.print(f"[bold]{one_or_more} failed[/bold] and {done_text} in no mean:")
        for failure in done.failures[:MAX_PRINTED_FAILURES]:
            console.print(
                f"  {escape(failure.settings)}, seed {failure.seed}: {escape(failure.error)}"
            )
        left_out = failed - MAX_PRINTED_FAILURES
        if left_out > 0:
            console.print(f"  ... and {left_out:,} more, in the table points")
    console.print(f"Report: {escape(str(done.report))}", soft_wrap=True)
