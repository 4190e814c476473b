"""Runs other projects' suites against this cluster, and prints the outcomes of their cases.

    make suites                                        # all, two hours
    make suites SHORT=1                                # a selection, as in .ci/run
    python -m tests.suites.run librdkafka --only 0103  # one

The status is 1 if a case failed that `expected.toml` has no reason for, or if less than 95% of a
suite's cases passed, without those that need a tool of Kafka's. A suite whose sources can't be had
is left out, unless it was named, or is of the selection.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import click
from rich.console import Console

from purgatory.cli.job_output import table
from tests.suites import (
    go_suites,
    kafka_python_suite,
    librdkafka_suite,
    pytest_suites,
    quixstreams_suite,
)
from tests.suites.outcomes import Outcome, Reason, Verdict, count, read_expected
from tests.suites.sources import AIOKAFKA, MissingError, python_source

_LEAST_SHARE = 0.95

_SUITES: Mapping[str, Callable[[str, bool], Iterator[Outcome]]] = {
    "librdkafka": librdkafka_suite.run,
    "kafka-python": kafka_python_suite.run,
    "exactly-once": quixstreams_suite.run,
    **{name: partial(pytest_suites.run, name) for name in pytest_suites.PROJECTS},
    **{name: partial(go_suites.run, name) for name in go_suites.SUITES},
}


@click.command()
@click.argument("suites", nargs=-1, help=", ".join(_SUITES))
@click.option("--only", default="", help="Cases with this in their names.")
@click.option("--short", is_flag=True, help="A selection of three minutes.")
def main(suites: Sequence[str], only: str, short: bool) -> None:
    """Run suites, all unless some are named."""
    # Clusters end with this process, also at SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    console = Console(soft_wrap=True)
    reasons = read_expected()
    outcomes: list[Outcome] = []
    for name in suites or _SUITES:
        try:
            for one in _SUITES[name](only, short):
                outcomes.append(one)
                _say(console, one, reasons)
        except MissingError as error:
            console.print(f"{name}: {error}", markup=False)
            if suites or short:
                raise click.exceptions.Exit(1) from None
    shown = table("Suites", ["suite"], ["passed", "failed", "expected", "skipped", "%", "s"])
    counts = count(outcomes, reasons)
    for suite, of_suite in counts.items():
        passed, failed, expected, _, skipped, took_s = of_suite
        numbers = map(str, (passed, failed, expected, skipped))
        shown.add_row(suite, *numbers, f"{100 * of_suite.share:.1f}", f"{took_s:.0f}")
    console.print(shown)
    if not suites and not short and not any(python_source("aiokafka", AIOKAFKA).rglob("test_*.py")):
        console.print(f"aiokafka {AIOKAFKA}: its source distribution has no tests.")
    bad = any(each.failed or each.share < _LEAST_SHARE for each in counts.values())
    raise click.exceptions.Exit(1 if bad or not outcomes else 0)


def _say(console: Console, one: Outcome, reasons: Mapping[str, Reason]) -> None:
    again = "" if one.tries == 1 else f" (try {one.tries})"
    console.print(f"{one.verdict:8}{one.took_s:6.1f} s  {one.case}{again}", markup=False)
    if one.verdict is Verdict.FAILED:
        console.print(f"    {one.why}", markup=False)
        if one.case in reasons:
            console.print(f"    expected: {reasons[one.case].text}", markup=False)


if __name__ == "__main__":
    main()
