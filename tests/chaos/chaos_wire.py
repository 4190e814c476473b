"""Hours of a cluster and its real clients in virtual time, full of faults.

    make chaos-wire SEED=20261122            # for two minutes
    make chaos-wire SEED=17 HOURS=100 DISK=1
    make chaos-wire SEED=17 HOURS=0.2 WITHOUT=0-2,7    # without these faults

Each world has twelve minutes and a seed of its own: the first seed, the next one, and so on. What
is wrong is told with the seed and the command that repeats it; the exit status is 1 then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Annotated

import structlog
import typer

from purgatory.virtual.fault_numbers import numbers_of, text_of
from tests.chaos.wire_hour import WireHour, run_wire

_MINUTES = 12.0


def main(
    seed: Annotated[int, typer.Option(min=0, help="Of the first world.")],
    hours: Annotated[float | None, typer.Option(min=0.01, help="How many hours.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="For how long, without --hours.")] = 120,
    without: Annotated[str, typer.Option(help="Faults to leave out: 3,7 or 0-2,7.")] = "",
    disk: Annotated[bool, typer.Option(help="Brokers have disks that lose power.")] = False,
) -> None:
    """Run worlds, and tell what was wrong."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    left_out = _faults(without)
    began_s, worlds = time.monotonic(), list[WireHour]()
    while _goes_on(worlds, hours, began_s + seconds):
        world = run_wire(seed + len(worlds), _MINUTES, left_out, on_disk=disk)
        worlds.append(world)
        for problem in world.wrong:
            command = repeat_command(world.seed, left_out, disk)
            print(f"seed {world.seed}: {problem}", f"  {command}", sep="\n", flush=True)
    spent_s = time.monotonic() - began_s
    virtual_s = sum(one.seconds for one in worlds)
    wrong = sum(len(one.wrong) for one in worlds)
    print(
        f"chaos over the wire from seed {seed}: {virtual_s / 3_600:.1f} hours in {len(worlds)} "
        f"worlds, {virtual_s / spent_s:.0f} times as fast as time: "
        f"{sum(one.faults for one in worlds):,} faults, {sum(one.records for one in worlds):,} "
        f"records, {sum(one.requests for one in worlds):,} events; promises broken: {wrong}"
    )
    raise typer.Exit(1 if wrong else 0)


def repeat_command(seed: int, left_out: Sequence[int], disk: bool) -> str:
    """Return what repeats one world."""
    words = ["make chaos-wire", f"SEED={seed}", f"HOURS={_MINUTES / 60:g}"]
    if left_out:
        words.append(f"WITHOUT={text_of(left_out)}")
    if disk:
        words.append("DISK=1")
    return " ".join(words)


def _faults(text: str) -> Sequence[int]:
    try:
        return numbers_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--without") from None


def _goes_on(worlds: list[WireHour], hours: float | None, until_s: float) -> bool:
    if hours is None:
        return not worlds or time.monotonic() < until_s
    return sum(one.seconds for one in worlds) < hours * 3_600


if __name__ == "__main__":
    typer.run(main)
