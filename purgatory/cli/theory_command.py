"""``purgatory theory``: closed forms of queueing theory beside what is simulated."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import shared_options as options
from purgatory.cli.exit_status import BAD_INPUT
from purgatory.cli.interruptible import SIGNALLED, interruptible
from purgatory.cli.whole_number import whole_number
from purgatory.settings.typed_duration import Duration

if TYPE_CHECKING:
    from rich.console import Console

    from purgatory.simulation import Simulation
    from purgatory.theory.comparison import Comparison
    from purgatory.theory.experiments import Experiment

DIFFERENT = 1
QUICK_SEEDS, QUICK_MS = 3, 5_000


def theory(
    seeds: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(2, 1_000),
            metavar="N",
            help="How many seeds each comparison is run with: 10 by default.",
            show_default=False,
        ),
    ] = None,
    duration: Annotated[
        Duration | None, options.other_duration(least="5s", most="1000000s")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="By default 3 seeds, and 5s of each.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder to write the results into.")
    ] = None,
    overwrite: options.Overwrite = False,
) -> int:
    """Hold the simulation against queueing theory, law by law.

    Each law is compared with the mean of independent runs, by its 95 % confidence interval. One
    interval in twenty misses by chance. The status is 1 if one misses that is wide enough for all
    to be right at once in 95 % of the cases.
    """
    from rich.console import Console

    from purgatory.simulation.simulation import Interrupted
    from purgatory.theory.theory_files import check_folder, write_files

    _quiet_logs()
    duration_ms = QUICK_MS if quick else None
    if duration is not None:
        duration_ms = duration.whole_ms
    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    try:
        if out is not None:
            check_folder(out, overwrite=overwrite)
        runs = _Runs()
        with interruptible(runs.interrupt) as signals:
            seeds = seeds or (QUICK_SEEDS if quick else 10)
            found = _compare_all(console, seeds, duration_ms, runs)
        if out is not None:
            write_files(out, found)
            console.print(f"Results: {out}", markup=False, soft_wrap=True)
    except OSError as error:
        print(f"purgatory theory: {error}", file=sys.stderr)
        return BAD_INPUT
    except Interrupted:
        print("purgatory theory: interrupted; nothing was written", file=sys.stderr)
        return SIGNALLED + signals[0]
    return _judged(console, [row for rows in found.values() for row in rows])


class _Runs:
    """Knows which run is under way, to end it: that one, or the next."""

    def __init__(self) -> None:
        self._run: Simulation | None = None
        self._over = False

    def begin(self, run: Simulation) -> None:
        """A run begins."""
        self._run = run
        if self._over:
            run.interrupt()

    def interrupt(self) -> None:
        """End the comparison."""
        self._over = True
        if self._run is not None:
            self._run.interrupt()


def _compare_all(
    console: Console, seeds: int, duration_ms: int | None, runs: _Runs
) -> dict[str, list[Comparison]]:
    from purgatory.theory.comparison import compare
    from purgatory.theory.experiments import EXPERIMENTS

    found = {}
    for experiment in EXPERIMENTS:
        rows = list(compare(experiment, seeds=seeds, duration_ms=duration_ms, on_begin=runs.begin))
        found[experiment.name] = rows
        _print(console, experiment, rows)
    return found


def _print(console: Console, experiment: Experiment, rows: Sequence[Comparison]) -> None:
    from purgatory.cli.result_tables import table

    title = experiment.title
    if experiment.panel:
        title = f"{title}: {experiment.panel}, by {experiment.axis}"
    columns = ("theory", "simulated", "+-", "difference %", "covered")
    made = table(title, (), ("value", *columns))
    for row in rows:
        made.add_row(
            f"{row.value:g}",
            *(f"{figure:,.4f}" for figure in (row.theory, row.simulated, row.half_width())),
            f"{100 * row.difference / row.theory:+.2f}",
            "yes" if row.covers() else "no",
        )
    console.print(made)


def _judged(console: Console, rows: Sequence[Comparison]) -> int:
    from purgatory.theory.comparison import joint_confidence

    covered = sum(row.covers() for row in rows)
    console.print(
        f"{covered} of {len(rows)} intervals of 95 % confidence cover what theory says; if theory "
        f"is right, about {0.05 * len(rows):.0f} don't."
    )
    confidence = joint_confidence(rows)
    different = [row for row in rows if not row.covers(confidence)]
    for row in different:
        console.print(
            f"{row.experiment} at {row.value:g} differs by more than chance explains: "
            f"{row.simulated:.4f} +- {row.half_width(confidence):.4f} against {row.theory:.4f}"
        )
    if not different:
        console.print("No difference is more than chance explains.")
    return DIFFERENT if different else 0


def _quiet_logs() -> None:
    """Leave out the end of each simulated broker's purgatories."""
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
