"""Two or three concurrent calls on one operation in some state: all pairs, and any three.

The calls, the states, and what holds at the end are those of ``tests/proofs/calls.py``.

Loaded by ``fresh_core``, as the programs are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from purgatory.core.backend import NATIVE
from tests.proofs.calls import CALLS, COVER, NAMED, STATES, Scene, calls_in, pairs_in
from tests.unit.core.schedule_world import PROGRAMS, Program

__all__ = ["COVER", "PROGRAMS", "STATES", "Scene", "calls_in"]

OF_THREE_THREADS = [name for name, program in PROGRAMS.items() if len(program().threads) == 3]


def pairs() -> Iterator[str]:
    """Yield the names of all pairs of calls, in each of the named states."""
    for name in NAMED:
        yield from pairs_in(name)


def three_at_random(rng: random.Random) -> str:
    """Return the name of a program of three threads: any three calls, or now and then a written
    one."""
    if rng.random() < 0.1:
        return rng.choice(OF_THREE_THREADS)
    name, state = rng.choice(list(STATES.items()))
    calls = rng.choices([one for one in calls_in(state) if not CALLS[one].reads], k=3)
    if state.place == "new":
        calls[0] = "watch"
    return f"{name}: {', '.join(calls)}"


def random_triples(seed: int, count: int) -> Iterator[str]:
    """Yield the names of programs of three threads: any three calls in any state."""
    rng = random.Random(seed)
    for _ in range(count):
        yield three_at_random(rng)


def is_native() -> bool:
    """Whether the core under these programs is the native one."""
    return NATIVE


def is_program(name: str) -> bool:
    """Whether ``build`` knows it."""
    state, _, calls = name.partition(": ")
    known = state in STATES and all(call in CALLS for call in calls.split(", "))
    return known or name in PROGRAMS


def build(name: str) -> Callable[[], Program | SceneProgram]:
    """Return what makes the program of this name: a written one, or a state and its calls."""
    return PROGRAMS.get(name) or partial(_scene_program, name)


def _scene_program(name: str) -> SceneProgram:
    state_name, _, calls = name.partition(": ")
    names = tuple(calls.split(", "))
    scene = Scene(STATES[state_name], names)
    threads: dict[str, Callable[[], object]] = {
        f"{call} ({number})": partial(scene.act, call, number) for number, call in enumerate(names)
    }
    return SceneProgram(scene, threads)


@dataclass(frozen=True)
class SceneProgram:
    """Threads that make the calls of a scene."""

    scene: Scene
    threads: Mapping[str, Callable[[], object]]

    def assert_all(self) -> None:
        """Assert what holds once all calls have ended."""
        if self.scene.state.lock != "held":
            self.scene.world.assert_completed_are_off_the_timer()
        self.scene.finish()
        self.scene.assert_over()
