"""What is told of a test that failed in a world: what went wrong there, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from purgatory.virtual.failure_kind import kind_of
from purgatory.virtual.fault_numbers import text_of
from purgatory.virtual.repeated_test import HASH_SEED, RepeatedTest, before_command
from purgatory.virtual.virtual_world import World
from purgatory.virtual.world_clock import US_PER_S
from purgatory.virtual.world_failure import WorldFailure

_EVENTS = 40
_AROUND = 10
"""How many events are told before a fault, and as many after it."""
_ALL = 10**9
_FAULTS = 20


def failure_in(world: World, node_id: str, error: BaseException | None) -> WorldFailure:
    """Return the failure of a test, with all that is told of it.

    Args:
        world: its own, as it is just then.
        node_id: of the test, as pytest takes it where it was started.
        error: what was raised; None: nothing, where the test was to fail.
    """
    test = RepeatedTest(node_id, world.seed, sorted(world.without), world.plain_network)
    begun = _begun_faults(world)
    return WorldFailure(test, kind_of(error), len(world.faults), begun, _told(world, test, begun))


def _begun_faults(world: World) -> list[int]:
    now_us = round(world.now_s * US_PER_S)
    return [
        fault.number
        for fault in world.faults
        if fault.at_us <= now_us and fault.number not in world.without
    ]


def _told(world: World, test: RepeatedTest, begun: Sequence[int]) -> str:
    """Say what is needed to repeat a failure, and what happened before it."""
    lines = [
        f"seed {world.seed}, {world.now_s:.6f} s after the world began, digest {world.digest}",
        f"network: {world.network}",
        *_told_faults(world, begun),
        *_told_events(world),
        f"repeat it: {test.command}",
    ]
    if not before_command():
        lines.append(
            f"(Where the program iterates over sets of strings, that needs {HASH_SEED} set, to "
            "the same in both runs.)"
        )
    return "\n".join(lines)


def _told_faults(world: World, begun: Sequence[int]) -> Iterator[str]:
    left_out = f", and {text_of(world.without)} left out" if world.without else ""
    yield f"faults: {len(begun) or 'none'} of {len(world.faults)} had begun{left_out}"
    if len(begun) > _FAULTS:
        yield f"      ({len(begun) - _FAULTS} before these)"
    chosen = set(begun[-_FAULTS:])
    told = [fault for fault in world.faults if fault.number in chosen]
    yield from map(str, sorted(told, key=lambda fault: fault.at_us))


def _told_events(world: World) -> Iterator[str]:
    """The last events; and before them those around the last fault, where that was earlier."""
    events = world.last_events(_ALL)
    if not events:
        yield "nothing happened"
        return
    faults = [place for place, event in enumerate(events) if event.kind == "fault"]
    if faults and faults[-1] < len(events) - _EVENTS:
        yield "around the last fault:"
        begin = max(0, faults[-1] - _AROUND)
        yield from map(str, events[begin : faults[-1] + _AROUND + 1])
    yield "last events:"
    yield from map(str, events[-_EVENTS:])
