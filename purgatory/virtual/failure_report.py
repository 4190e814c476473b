"""The report of a test that failed in a world, with the command that repeats it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING

import pytest

from purgatory.virtual.clocks import US_PER_S
from purgatory.virtual.errors import PropertyError
from purgatory.virtual.history import lines_with_apis
from purgatory.virtual.planned_faults import format_numbers
from purgatory.virtual.schedules import FIFO
from purgatory.virtual.world import World

if TYPE_CHECKING:
    from purgatory.kafka.faults.active_faults import ActiveFault

HASH_SEED = "PYTHONHASHSEED"


@dataclass(frozen=True)
class RepeatedTest:
    """A test and the parameters of its world.

    Args:
        node_id: pytest's.
        without: the numbers of excluded faults.
        plain_network: whether the network is simple, as `World` has it.
        schedule: as `World` has it.
        default_schedule: the test's without ``--virtual-schedule``.
    """

    node_id: str
    seed: int
    without: Sequence[int] = ()
    plain_network: bool = False
    schedule: str = FIFO
    default_schedule: str = FIFO

    @property
    def arguments(self) -> list[str]:
        """The arguments of pytest."""
        arguments = [self.node_id, "--virtual-seed", str(self.seed)]
        if self.without:
            arguments += ["--virtual-without", format_numbers(self.without)]
        if self.plain_network:
            arguments.append("--virtual-plain-network")
        if {self.schedule, self.default_schedule} != {FIFO}:
            arguments += ["--virtual-schedule", self.schedule]
        return arguments

    @property
    def command(self) -> str:
        """The command that repeats it, with the hash seed of this process, if set."""
        return f"{command_prefix()}pytest {shlex.join(self.arguments)}"


def command_prefix() -> str:
    """Return the prefix of a command for sets of strings to have this process's order."""
    hash_seed = os.environ.get(HASH_SEED, "")
    return f"{HASH_SEED}={hash_seed} " if hash_seed.isdecimal() else ""


@dataclass(frozen=True)
class WorldFailure:
    """A failure.

    Args:
        kind: as of `failure_kind`.
        planned_faults: the number of faults of the world, including excluded ones.
        begun_faults: the numbers of those that had begun.
        uses_network: whether the kept events have a sent message.
        deviations: see `Schedule.deviations`.
        report: the text of the report.
        summary: its first lines, which stand before the report of a smaller failure.
    """

    test: RepeatedTest
    kind: str
    planned_faults: int
    begun_faults: Sequence[int]
    uses_network: bool
    deviations: Mapping[int, int]
    report: str
    summary: str = ""


# The kind of a failure, which shrinking has to keep.

_PACKAGE_FOLDER = Path(__file__).parents[1]


def failure_kind(error: BaseException | None) -> str:
    """Return the kind of a failure; None: an expected exception was not raised.

    The kind is the type of the exception. For an assertion, or `pytest.fail`, it includes the
    location: the last line of the traceback outside of this package, so that two checks of a test
    differ. The kind of a group consists of those of its members.
    """
    if error is None:
        return "no error"
    if isinstance(error, PropertyError):
        return f"{_name(error)}: {error.property}"
    if isinstance(error, BaseExceptionGroup):
        kinds = sorted({failure_kind(member) for member in error.exceptions})
        return f"{_name(error)} of {'; '.join(kinds)}"
    if isinstance(error, AssertionError | pytest.fail.Exception):
        return f"{_name(error)} at {_location(error)}"
    return _name(error)


def _name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _location(error: BaseException) -> str:
    locations = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    user_locations = [
        location for location in locations if _PACKAGE_FOLDER not in Path(location[0]).parents
    ]
    path, line = (user_locations or locations or [("?", 0)])[-1]
    return f"{path}:{line}"


# The report.

_EVENTS = 40
_CONTEXT_EVENTS = 10
"""The number of events shown before a fault, and after it."""

_ALL = 10**9
_FAULTS = 20
_DEVIATIONS = 10


def world_failure(world: World, test: RepeatedTest, error: BaseException | None) -> WorldFailure:
    """Return the failure of a test, with its report.

    Args:
        world: the test's, in its state at the failure.
        error: the exception; None: an expected one was not raised.
    """
    begun_faults = _begun_faults(world)
    return WorldFailure(
        test,
        failure_kind(error),
        len(world.faults),
        begun_faults,
        _uses_network(world),
        dict(world.deviations),
        _report(world, test, begun_faults),
        _summary(world, test, begun_faults),
    )


def _begun_faults(world: World) -> list[int]:
    now_us = round(world.now_s * US_PER_S)
    return [
        fault.number
        for fault in world.faults
        if fault.at_us <= now_us and fault.number not in world.without
    ]


def _summary(world: World, test: RepeatedTest, begun_faults: Sequence[int]) -> str:
    return "\n".join(
        [
            _first_line(world),
            *[*_schedule_lines(world, test)][:1],
            *[*_fault_lines(world, begun_faults)][:1],
            f"repeat it: {test.command}",
        ]
    )


def _first_line(world: World) -> str:
    return f"seed {world.seed}, {world.now_s:.6f} s after the world began, digest {world.digest}"


def _report(world: World, test: RepeatedTest, begun_faults: Sequence[int]) -> str:
    """Describe a failure: the command to repeat it, its faults and the events before it."""
    lines = [
        _first_line(world),
        *([f"network: {world.network}"] if _uses_network(world) else []),
        *_schedule_lines(world, test),
        *_fault_lines(world, begun_faults),
        *_event_lines(world),
        f"repeat it: {test.command}",
    ]
    if not command_prefix():
        lines.append(
            f"(Where the program iterates over sets of strings, that needs {HASH_SEED} set, to "
            "the same in both runs.)"
        )
    return "\n".join(lines)


_OTHER_EVENTS = ("disk", "fault", "host", "job", "schedule")


def _uses_network(world: World) -> bool:
    return any(event.kind not in _OTHER_EVENTS for event in world.last_events(_ALL))


def _schedule_lines(world: World, test: RepeatedTest) -> Iterator[str]:
    if test.schedule == FIFO:
        return
    planned = test.schedule[0].isdecimal()
    name = "first in, first out" if planned else test.schedule
    deviations, choices = len(world.deviations), len(world.choices)
    count = deviations or "none"
    yield f"schedule: {name}; another than the first ran at {count} of {choices} choices"
    events = [event for event in world.last_events(_ALL) if event.kind == "schedule"]
    if len(events) > _DEVIATIONS:
        yield f"      ({len(events) - _DEVIATIONS} before these)"
    for event in events[-_DEVIATIONS:]:
        yield f"{event.at_us / US_PER_S:20.6f} s  {event.text}"


def _fault_lines(world: World, begun_faults: Sequence[int]) -> Iterator[str]:
    left_out = f", and {format_numbers(world.without)} left out" if world.without else ""
    if world.faults:
        yield f"faults: {len(begun_faults) or 'none'} of {len(world.faults)} had begun{left_out}"
    if len(begun_faults) > _FAULTS:
        yield f"      ({len(begun_faults) - _FAULTS} before these)"
    reported_faults = set(begun_faults[-_FAULTS:])
    faults = [fault for fault in world.faults if fault.number in reported_faults]
    yield from map(str, sorted(faults, key=lambda fault: fault.at_us))
    of_clusters = [fault for cluster in world.clusters for fault in cluster.fault.recent]
    active = [_fault_text(fault) for fault in of_clusters if fault.active]
    active += world.network.faults
    if active:
        yield f"faults in force: {'; '.join(active)}"
    # Planned ones are listed above.
    ended = [_fault_text(fault) for fault in of_clusters if not fault.active]
    if ended and not world.faults:
        yield f"faults that were over: {'; '.join(ended[-_FAULTS:])}"
    if not (world.faults or active or ended):
        yield "faults: none"


def _fault_text(fault: ActiveFault) -> str:
    settings = [
        f"{name}={value}" for name, value in fault.fault.settings.items() if value is not None
    ]
    uses = f", {fault.uses:,} times" if fault.uses else ""
    return f"{fault.fault.kind}({', '.join(settings)}){uses}"


def _event_lines(world: World) -> Iterator[str]:
    """The last events, preceded by those around the last fault if that was earlier."""
    events = world.last_events(_ALL)
    others = [event for event in events if event.kind != "schedule"]
    if len(world.deviations) > _DEVIATIONS or not others:  # these would hide the other events
        events = others
    if not events and world.deviations:
        return
    if not events:
        yield "nothing happened"
        return
    lines = lines_with_apis(events)
    faults = [index for index, event in enumerate(events) if event.kind == "fault"]
    if faults and faults[-1] < len(events) - _EVENTS:
        yield "around the last fault:"
        begin = max(0, faults[-1] - _CONTEXT_EVENTS)
        yield from lines[begin : faults[-1] + _CONTEXT_EVENTS + 1]
    yield "last events:"
    yield from lines[-_EVENTS:]
