"""Others' suites on a real Kafka beside ours: no case passes there and fails here.

    python -m tests.suites.beside              # all that run on any broker, an hour and a half
    python -m tests.suites.beside kombu --only test_connect

Maven and Java 17 are needed, as for `make record`. The status is 1 if a case passes there and fails
here, and `expected.toml` has no reason for it.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from purgatory.cli.job_output import table
from tests.recorded.real_kafka import CONTROLLERS, HOST, RealKafkaError, real_kafka
from tests.recorded.recordings import NEWEST
from tests.suites import go_suites, pytest_suites
from tests.suites.outcomes import Outcome, Verdict, read_expected
from tests.suites.sources import MissingError


@contextmanager
def on_real(log: Path) -> Iterator[str]:
    """Run a real broker of the id 0 while the block runs; yield its address."""
    del log
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    voter = f"0@{HOST}:{port + CONTROLLERS}"
    settings = {"node.id": 0, "controller.quorum.voters": voter}
    with real_kafka(NEWEST, port, 1, lambda place: settings) as kafka:
        yield f"{HOST}:{kafka.port}"


def _titles() -> Mapping[str, str]:
    in_python = {one.name: one.title for one in pytest_suites.PROJECTS.values()}
    return {**in_python, **{one.name: one.title for one in go_suites.SUITES.values()}}


def _run_both(name: str, only: str) -> tuple[list[Outcome], list[Outcome]]:
    """Return a suite's outcomes on a real Kafka, and on ours."""
    if name in go_suites.SUITES:
        theirs = go_suites.run(name, only, False, go_suites.on_real)
        return [*theirs], [*go_suites.run(name, only, False)]
    theirs = pytest_suites.run(name, only, False, on_real)
    return [*theirs], [*pytest_suites.run(name, only, False)]


def worse_here(theirs: Sequence[Outcome], ours: Sequence[Outcome]) -> list[Outcome]:
    """Return our outcomes of the cases that passed there and did not here."""
    passed_there = {one.case for one in theirs if one.verdict is Verdict.PASSED}
    return [one for one in ours if one.case in passed_there and one.verdict is not Verdict.PASSED]


@click.command()
@click.argument("suites", nargs=-1, help=", ".join(_titles()))
@click.option("--only", default="", help="Cases with this in their names.")
def main(suites: Sequence[str], only: str) -> None:
    """Run suites at both, all unless some are named."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    console = Console(soft_wrap=True)
    columns = ["passed", "failed", "skipped", "s"]
    shown = table("Suites", ["suite", "on"], columns)
    worse: list[Outcome] = []
    for name in suites or _titles():
        try:
            theirs, ours = _run_both(name, only)
        except (MissingError, RealKafkaError) as error:
            console.print(f"{name}: {error}", markup=False)
            continue
        for on, outcomes in ((f"Kafka {NEWEST}", theirs), ("ours", ours)):
            verdicts = [one.verdict for one in outcomes]
            counts = [str(verdicts.count(each)) for each in Verdict]
            took_s = sum(one.took_s for one in outcomes)
            shown.add_row(_titles()[name], on, *counts, f"{took_s:.0f}")
            for one in outcomes:
                if one.verdict is Verdict.FAILED:
                    console.print(f"{on}: {one.case}\n    {one.why}", markup=False)
        worse += worse_here(theirs, ours)
    console.print(shown)
    for one in worse:
        console.print(f"it passes on Kafka alone: {one.case}", markup=False)
    reasons = read_expected()
    raise click.exceptions.Exit(any(one.case not in reasons for one in worse))


if __name__ == "__main__":
    main()
