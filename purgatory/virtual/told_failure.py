"""What is told of a test that failed in a world: what went wrong there, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator

from purgatory.virtual.fault_numbers import text_of
from purgatory.virtual.repeated_test import HASH_SEED, RepeatedTest, before_command
from purgatory.virtual.virtual_world import World
from purgatory.virtual.world_clock import US_PER_S

_EVENTS = 40
_FAULTS = 20


def repeated(world: World, node_id: str) -> RepeatedTest:
    """Return what repeats a test in such a world."""
    return RepeatedTest(node_id, world.seed, sorted(world.without), world.plain_network)


def begun_faults(world: World) -> list[int]:
    """Return the numbers of the faults that have begun."""
    now_us = world.now_s * US_PER_S
    return [
        fault.number
        for fault in world.faults
        if fault.at_us <= now_us and fault.number not in world.without
    ]


def told_of(world: World, node_id: str) -> str:
    """Say what is needed to repeat a failure, and what happened before it."""
    lines = [
        f"seed {world.seed}, {world.now_s:.6f} s after the world began, digest {world.digest}",
        f"network: {world.network}",
        *_told_faults(world),
        "last events:",
        *map(str, world.last_events(_EVENTS)),
        f"repeat it: {repeated(world, node_id).command}",
    ]
    if not before_command():
        lines.append(
            f"(Where the program iterates over sets of strings, that needs {HASH_SEED} set, to "
            "the same in both runs.)"
        )
    return "\n".join(lines)


def _told_faults(world: World) -> Iterator[str]:
    begun = begun_faults(world)
    left_out = f", and {text_of(world.without)} left out" if world.without else ""
    yield f"faults: {len(begun) or 'none'} of {len(world.faults)} had begun{left_out}"
    if len(begun) > _FAULTS:
        yield f"      ({len(begun) - _FAULTS} before these)"
    chosen = set(begun[-_FAULTS:])
    yield from (str(fault) for fault in world.faults if fault.number in chosen)
