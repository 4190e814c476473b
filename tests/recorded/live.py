"""Random sequences of requests at a real Kafka, started here, and at ours: `make judge`.

    make judge SEED=1 COUNT=20
    make judge SEED=17 COUNT=1     # one that differed
    make judge SHORT=1             # as in .ci/run: seeds without differences, for half a minute
    make judge AT_ONCE=6           # six sequences side by side: most of each is waiting

A seed that differs is to be added to `SEEDS` in programs/registry.py, and recorded: then the suite
replays it. The status is 1 if a sequence differs by more than the table has.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import click

from tests.recorded.comparison import Difference, compare
from tests.recorded.placement import place
from tests.recorded.programs.registry import SEQUENCES
from tests.recorded.real_kafka import DEFAULT_PORT, HOST, RealKafka, RealKafkaError, real_kafka
from tests.recorded.recorder import Pace, Step, run_program, warm_up
from tests.recorded.recordings import NEWEST
from tests.recorded.replay import our_placement, replay
from tests.recorded.sequences import REQUESTS, kills_brokers, random_program
from tests.recorded.table import entries_of_all

_SHOWN = 10
_STEPS = Path(__file__).parents[2] / "build" / "sequences"
"""The folder of all steps at both, in a file for each run."""

_SHORT_SEED, _SHORT_COUNT, _SHORT_S = 1, 3, 30.0
"""The seeds of the short run don't differ; none begins after so long, the start included."""


def _ours(
    seed: int, requests: int, kept_s: Mapping[int, float], run: str = "r006006"
) -> Sequence[Step]:
    return replay(random_program(seed, requests), run, Pace(kept_s))


async def differences_of(
    seed: int, kafka: RealKafka, requests: int, replays: Executor
) -> Mapping[Difference, float]:
    """Return the differences of a seed that no entry of a recorded sequence explains.

    Each has the seconds after the start at which its step began. What differs only in one of two
    runs is noise: timers of a busy real cluster end a moment earlier or later.
    """
    first, *_ = found = [await _differences(seed, kafka, requests, replays, "r")]
    if first:
        found.append(await _differences(seed, kafka, requests, replays, "s"))
    return {one: first[one] for one in first if all(one in other for other in found)}


async def _differences(
    seed: int, kafka: RealKafka, requests: int, replays: Executor, start: str
) -> Mapping[Difference, float]:
    run = f"{start}{seed % 10**6:06}"
    pace = Pace()
    program = random_program(seed, requests)
    theirs = await run_program(program, HOST, kafka.port, run, kafka, pace)
    ours = await asyncio.get_running_loop().run_in_executor(
        replays, _ours, seed, requests, pace.noted_s, run
    )
    entries = entries_of_all(SEQUENCES)
    _STEPS.mkdir(parents=True, exist_ok=True)
    (_STEPS / f"{run}.json").write_text(json.dumps({"theirs": theirs, "ours": ours}, indent=1))
    begun_s = {step.name: pace.noted_s.get(number, 0.0) for number, step in enumerate(theirs)}
    return {
        one: begun_s.get(one.step, 0.0)
        for one in compare(theirs, ours)
        if not any(entry.explains_elsewhere(one) for entry in entries)
    }


class _Comparison:
    """The seeds that were compared, and those that differ."""

    def __init__(self, kafka: RealKafka, requests: int, until_s: float) -> None:
        self.compared = 0
        self.differing: list[int] = []
        self._kafka = kafka
        self._requests = requests
        self._until_s = until_s

    async def run(self, seeds: Sequence[int], at_once: int) -> None:
        """Compare seeds, several side by side, but for those that kill brokers.

        Ours runs in a process, which holds none of them up.
        """
        together = [seed for seed in reversed(seeds) if not kills_brokers(seed)]
        alone = [seed for seed in reversed(seeds) if kills_brokers(seed)]
        with ProcessPoolExecutor(1, get_context("spawn")) as replays:
            placement = await asyncio.get_running_loop().run_in_executor(replays, our_placement)
            await place(HOST, self._kafka.port, placement)
            await warm_up(HOST, self._kafka.port)
            await asyncio.gather(*(self._take(together, replays) for _ in range(at_once)))
            await self._take(alone, replays)

    async def _take(self, left: list[int], replays: Executor) -> None:
        while left and time.monotonic() < self._until_s:
            seed = left.pop()
            differences = await differences_of(seed, self._kafka, self._requests, replays)
            self.compared += 1
            lines = [f"seed {seed}: {len(differences)} differences"]
            for (step, path, theirs, ours), begun_s in list(differences.items())[:_SHOWN]:
                lines.append(f"    {begun_s:.1f} s {step} {path}: theirs {theirs}, ours {ours}")
            click.echo("\n".join(lines))
            if differences:
                self.differing.append(seed)


@click.command()
@click.option("--seed", default=1, help="The first seed.")
@click.option("--count", default=20, help="How many seeds.")
@click.option("--requests", default=REQUESTS, help="The requests of a sequence.")
@click.option("--port", default=DEFAULT_PORT, help="The first broker's port.")
@click.option("--at-once", default=1, help="How many sequences side by side.")
@click.option("--short", is_flag=True, help="Few seeds, and none if Kafka can't be had.")
def main(seed: int, count: int, requests: int, port: int, at_once: int, short: bool) -> None:
    """Compare sequences."""
    until_s = math.inf
    if short:
        seed, count, until_s = _SHORT_SEED, _SHORT_COUNT, time.monotonic() + _SHORT_S
    compared, differing = 0, list[int]()
    try:
        with real_kafka(NEWEST, port) as kafka:
            comparison = _Comparison(kafka, requests, until_s)
            asyncio.run(comparison.run(range(seed, seed + count), at_once))
            compared, differing = comparison.compared, sorted(comparison.differing)
    except RealKafkaError as error:
        if not short:
            raise click.ClickException(str(error)) from None
        click.echo(f"no real Kafka to compare with: {str(error).splitlines()[0]}")
    click.echo(f"{compared} sequences, {len(differing)} differ: {differing}")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    main()
