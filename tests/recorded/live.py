"""Random sequences of requests at a real Kafka, started here, and at ours: `make judge`.

    make judge SEED=1 COUNT=20
    make judge SEED=17 COUNT=1     # one that differed
    make judge SHORT=1             # as in .ci/run: seeds without differences, for half a minute

A seed that differs is to be added to `SEEDS` in programs/registry.py, and recorded: then the suite
replays it. The status is 1 if a sequence differs by more than the table has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import click

from tests.recorded.comparison import Difference, compare
from tests.recorded.programs.registry import SEQUENCES
from tests.recorded.real_kafka import DEFAULT_PORT, HOST, RealKafkaError, real_kafka
from tests.recorded.recorder import run_program, warm_up
from tests.recorded.recordings import NEWEST
from tests.recorded.replay import replay
from tests.recorded.sequences import REQUESTS, random_program
from tests.recorded.table import entries_of_all

_SHOWN = 10
_SHORT_SEED, _SHORT_COUNT, _SHORT_S = 1, 3, 30.0
"""The seeds of the short run don't differ; none begins after so long, the start included."""


def differences_of(seed: int, port: int, requests: int) -> Sequence[Difference]:
    """Return the differences of a seed that no entry of a recorded sequence explains."""
    program = random_program(seed, requests)
    theirs = asyncio.run(run_program(program, HOST, port, f"r{seed % 10**6:06}"))
    differences = compare(theirs, replay(program, f"r{seed % 10**6:06}"))
    entries = entries_of_all(SEQUENCES)
    return [one for one in differences if not any(e.explains_elsewhere(one) for e in entries)]


@click.command()
@click.option("--seed", default=1, help="The first seed.")
@click.option("--count", default=20, help="How many seeds.")
@click.option("--requests", default=REQUESTS, help="The requests of a sequence.")
@click.option("--port", default=DEFAULT_PORT, help="The first broker's port.")
@click.option("--short", is_flag=True, help="Few seeds, and none if Kafka can't be had.")
def main(seed: int, count: int, requests: int, port: int, short: bool) -> None:
    """Compare sequences."""
    began_s, compared, differing = time.monotonic(), 0, []
    if short:
        seed, count = _SHORT_SEED, _SHORT_COUNT
    try:
        with real_kafka(NEWEST, port) as kafka:
            asyncio.run(warm_up(HOST, kafka.port))
            for one in range(seed, seed + count):
                if short and time.monotonic() - began_s > _SHORT_S:
                    break
                compared += 1
                differences = differences_of(one, kafka.port, requests)
                click.echo(f"seed {one}: {len(differences)} differences")
                for step, path, theirs, ours in differences[:_SHOWN]:
                    click.echo(f"    {step} {path}: theirs {theirs}, ours {ours}")
                if differences:
                    differing.append(one)
    except RealKafkaError as error:
        if not short:
            raise click.ClickException(str(error)) from None
        click.echo(f"no real Kafka to compare with: {str(error).splitlines()[0]}")
    click.echo(f"{compared} sequences, {len(differing)} differ: {differing}")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    main()
