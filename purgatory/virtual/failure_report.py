"""The report of a test that failed in a world, with the command that repeats it."""

from __future__ import annotations

import json
import os
import shlex
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Self

import pytest

from purgatory.virtual.clocks import US_PER_S
from purgatory.virtual.history import Event
from purgatory.virtual.planned_faults import text_of
from purgatory.virtual.world import World

if TYPE_CHECKING:
    from purgatory.kafka.faults.active_faults import ActiveFault

HASH_SEED = "PYTHONHASHSEED"


@dataclass(frozen=True)
class RepeatedTest:
    """A test with what decides all that happens in its world.

    Args:
        node_id: of the test, as pytest takes it.
        seed: of its world.
        without: the faults that are left out.
        plain_network: whether the network stays simple.
    """

    node_id: str
    seed: int
    without: Sequence[int] = ()
    plain_network: bool = False

    @property
    def words(self) -> list[str]:
        """What pytest is given."""
        words = [self.node_id, "--virtual-seed", str(self.seed)]
        if self.without:
            words += ["--virtual-without", text_of(self.without)]
        if self.plain_network:
            words.append("--virtual-plain-network")
        return words

    @property
    def command(self) -> str:
        """What is typed to repeat it, with the hash seed of this process, where that is set."""
        return f"{before_command()}pytest {shlex.join(self.words)}"


def before_command() -> str:
    """Return what a command begins with so that Python orders sets of strings as it did here."""
    hash_seed = os.environ.get(HASH_SEED, "")
    return f"{HASH_SEED}={hash_seed} " if hash_seed.isdecimal() else ""


@dataclass(frozen=True)
class WorldFailure:
    """A failure.

    Args:
        test: which one failed, and how it is repeated.
        kind: of `kind_of`.
        planned: how many faults the world had, with those that were left out.
        begun: the numbers of those that had begun.
        told: all that is told of it.
    """

    test: RepeatedTest
    kind: str
    planned: int
    begun: Sequence[int]
    told: str

    def as_text(self) -> str:
        """Return it as a text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return what `as_text` made a text of.

        Raises:
            ValueError: it is none, as where whoever wrote it was ended.
        """
        values = json.loads(text)
        return cls(**{**values, "test": RepeatedTest(**values["test"])})


# The kind of a failure: shrinking has to keep it.

_OURS = Path(__file__).parents[1]


def kind_of(error: BaseException | None) -> str:
    """Return the kind of a failure; None: nothing was raised where something should be.

    It is the type of what was raised. Where that is an assertion, or `pytest.fail`, it is also the
    place: the last line on the way to it that is not this package's, so that two checks of a test
    differ. A group is of the kinds of all that is in it.
    """
    if error is None:
        return "no error"
    if isinstance(error, BaseExceptionGroup):
        kinds = sorted({kind_of(one) for one in error.exceptions})
        return f"{_name(error)} of {'; '.join(kinds)}"
    if isinstance(error, AssertionError | pytest.fail.Exception):
        return f"{_name(error)} at {_place(error)}"
    return _name(error)


def _name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _place(error: BaseException) -> str:
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    others = [place for place in places if _OURS not in Path(place[0]).parents]
    path, line = (others or places or [("?", 0)])[-1]
    return f"{path}:{line}"


# The report.

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


def _fault_text(begun: ActiveFault) -> str:
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
    try:
        from kio.schema.index import api_key_map

        from purgatory.cluster.api.registry import SUPPORTED
    except ModuleNotFoundError:  # without the extra `cluster` no program here speaks Kafka
        return [str(event) for event in events]
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
