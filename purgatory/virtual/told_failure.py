"""What is told of a test that failed in a world: what went wrong there, and how to repeat it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from kio.schema.index import api_key_map

from purgatory.cluster.protocol.wire import SUPPORTED
from purgatory.kafka.faults.active_faults import BegunFault
from purgatory.virtual.failure_kind import kind_of
from purgatory.virtual.fault_numbers import text_of
from purgatory.virtual.history import Event
from purgatory.virtual.repeated_test import HASH_SEED, RepeatedTest, before_command
from purgatory.virtual.virtual_world import World
from purgatory.virtual.world_clock import US_PER_S
from purgatory.virtual.world_failure import WorldFailure

_EVENTS = 40
_AROUND = 10
"""How many events are told before a fault, and as many after it."""
_ALL = 10**9
_LENGTH, _REQUEST, _ANSWER = struct.Struct(">i"), struct.Struct(">hhi"), struct.Struct(">i")
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
    if world.faults:
        yield f"faults: {len(begun) or 'none'} of {len(world.faults)} had begun{left_out}"
    if len(begun) > _FAULTS:
        yield f"      ({len(begun) - _FAULTS} before these)"
    chosen = set(begun[-_FAULTS:])
    told = [fault for fault in world.faults if fault.number in chosen]
    yield from map(str, sorted(told, key=lambda fault: fault.at_us))
    of_clusters = [fault for cluster in world.clusters for fault in cluster.fault.recent]
    in_force = [_fault_text(fault) for fault in of_clusters if fault.active]
    in_force += world.network.faults
    if in_force:
        yield f"faults in force: {'; '.join(in_force)}"
    # Those of a plan are told by it.
    over = [_fault_text(fault) for fault in of_clusters if not fault.active]
    if over and not world.faults:
        yield f"faults that were over: {'; '.join(over[-_FAULTS:])}"
    if not (world.faults or in_force or over):
        yield "faults: none"


def _fault_text(begun: BegunFault) -> str:
    given = [f"{name}={value}" for name, value in begun.fault.settings.items() if value is not None]
    uses = f", {begun.uses:,} times" if begun.uses else ""
    return f"{begun.fault.kind}({', '.join(given)}){uses}"


def _told_events(world: World) -> Iterator[str]:
    """The last events; and before them those around the last fault, where that was earlier."""
    events = world.last_events(_ALL)
    if not events:
        yield "nothing happened"
        return
    lines = _with_apis(events)
    faults = [place for place, event in enumerate(events) if event.kind == "fault"]
    if faults and faults[-1] < len(events) - _EVENTS:
        yield "around the last fault:"
        begin = max(0, faults[-1] - _AROUND)
        yield from lines[begin : faults[-1] + _AROUND + 1]
    yield "last events:"
    yield from lines[-_EVENTS:]


def _with_apis(events: Sequence[Event]) -> Sequence[str]:
    """Events as lines, in which data is told by the names of the APIs whose requests it is.

    What is encrypted, or the rest of a longer one, is told as so many bytes. O(bytes).
    """
    asked: dict[tuple[str, int], str] = {}
    lines = []
    for event in events:
        names = []
        source, arrow, target = event.text.partition(" > ")
        for frame in _frames(event.data) if event.kind == "data" and arrow else ():
            key, version, number = _REQUEST.unpack_from(frame)
            if answer := asked.pop((f"{target} > {source}", _ANSWER.unpack_from(frame)[0]), ""):
                names.append(f"{answer} response")
            elif key in SUPPORTED and version in range(SUPPORTED[key][1] + 1):
                name = "".join(word.capitalize() for word in api_key_map[key].split("_"))
                asked[event.text, number] = name
                names.append(f"{name} v{version}")
        line = str(event)
        size = f"{len(event.data)} bytes"
        named = f"{', '.join(names)}, {size}" if names else size
        lines.append(line.removesuffix(size) + named if event.data else line)
    return lines


def _frames(data: bytes) -> Iterator[bytes]:
    """The frames that begin in a segment, if it begins with one: their headers at least."""
    at = 0
    while len(data) - at >= _LENGTH.size + _REQUEST.size:
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length < _REQUEST.size:
            return
        yield data[at : at + length]
        at += length
