"""Hours of a cluster and its real clients in virtual time, full of faults.

    make chaos-wire SEED=20261122            # for two minutes
    make chaos-wire SEED=17 HOURS=100 JOBS=2
    make chaos-wire SEED=17 HOURS=0.2 WITHOUT=0-2,7    # without these faults

Each world has twelve minutes and a seed of its own: the first seed, the next one, and so on. With
an odd seed, brokers have disks, which lose power. Each problem is printed with the seed and the
command that repeats it; the exit status is 1 then.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count

import click
import structlog

from purgatory.virtual.planned_faults import format_numbers, parse_numbers
from tests.chaos.wire_hour import WireHour, run_wire

_MINUTES = 12.0
_WORLDS_PER_SUMMARY = 25


@click.command()
@click.option("--seed", type=click.IntRange(0), required=True, help="Seed of the first world.")
@click.option("--hours", type=click.FloatRange(0.01), help="Number of hours.")
@click.option("--seconds", type=click.FloatRange(1), default=120, help="Without --hours.")
@click.option("--without", default="", help="Faults to leave out: 3,7 or 0-2,7.")
@click.option(
    "--disk/--no-disk", default=None, help="Brokers have disks; by default those of odd seeds."
)
@click.option("--jobs", type=click.IntRange(1), default=1, help="Number of worlds at a time.")
def main(
    seed: int,
    hours: float | None,
    seconds: float,
    without: str,
    disk: bool | None,
    jobs: int,
) -> None:
    """Run worlds, and print the problems."""
    left_out = _faults(without)
    began_s, worlds = time.monotonic(), list[WireHour]()
    for world in _run_all(seed, hours, began_s + seconds, left_out, disk, jobs):
        worlds.append(world)
        for problem in world.wrong:
            command = repeat_command(world.seed, left_out, disk)
            print(f"seed {world.seed}: {problem}", f"  {command}", sep="\n", flush=True)
        if len(worlds) % _WORLDS_PER_SUMMARY == 0:
            print(_summary(seed, worlds, began_s), file=sys.stderr, flush=True)
    print(_summary(seed, worlds, began_s))
    raise click.exceptions.Exit(1 if any(one.wrong for one in worlds) else 0)


def repeat_command(seed: int, left_out: Sequence[int], disk: bool | None) -> str:
    """Return the command that repeats one world."""
    words = ["make chaos-wire", f"SEED={seed}", f"HOURS={_MINUTES / 60:g}"]
    if left_out:
        words.append(f"WITHOUT={format_numbers(left_out)}")
    if disk is not None:
        words.append(f"DISK={disk:d}")
    return " ".join(words)


def _summary(seed: int, worlds: Sequence[WireHour], began_s: float) -> str:
    virtual_s = sum(one.seconds for one in worlds)
    return (
        f"chaos over the wire from seed {seed}: {virtual_s / 3_600:.1f} hours in {len(worlds)} "
        f"worlds, {virtual_s / (time.monotonic() - began_s):.0f} times as fast as time: "
        f"{sum(one.faults for one in worlds):,} faults, {sum(one.records for one in worlds):,} "
        f"records, {sum(one.requests for one in worlds):,} events; "
        f"promises broken: {sum(len(one.wrong) for one in worlds)}"
    )


def _faults(text: str) -> Sequence[int]:
    try:
        return parse_numbers(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--without") from None


def _run_all(
    first_seed: int,
    hours: float | None,
    until_s: float,
    left_out: Sequence[int],
    disk: bool | None,
    jobs: int,
) -> Iterator[WireHour]:
    """Run worlds in processes of their own, and return each when it is done."""
    seeds = count(first_seed)
    begun: set[Future[WireHour]] = set()
    done = 0

    def are_enough() -> bool:
        worlds = done + len(begun)
        if hours is None:
            return worlds > 0 and time.monotonic() >= until_s
        return worlds * _MINUTES >= hours * 60

    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _be_quiet) as pool:
        while begun or not are_enough():
            while len(begun) < jobs and not are_enough():
                seed = next(seeds)
                on_disk = seed % 2 == 1 if disk is None else disk
                begun.add(pool.submit(run_wire, seed, _MINUTES, left_out, on_disk))
            ended, begun = wait(begun, return_when=FIRST_COMPLETED)
            done += len(ended)
            yield from sorted((one.result() for one in ended), key=lambda world: world.seed)


def _be_quiet() -> None:
    """Log neither injected errors nor exceptions that a client never retrieves."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for name in ("aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


if __name__ == "__main__":
    main()
