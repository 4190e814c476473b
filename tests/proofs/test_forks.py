"""A process that forks while another thread is in the middle of a call of the table."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.processes.core.test_fork import status_of_child
from tests.proofs.calls import CALLS, COVER, STATES, Scene, calls_in
from tests.proofs.drawn import draw, failure, seed
from tests.unit.core import schedule_world
from tests.unit.core.probe import Probe

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")

ROWS = [
    f"{name}: {call}"
    for name, state in COVER.items()
    for call in (["watch"] if state.place == "new" else calls_in(state))
    if not CALLS[call].reads
]
WORLD = vars(schedule_world)
SHARE = 0.04
PLACES = (1, 3, 6)


@contextmanager
def held_at(number: int) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Hold a thread at its ``number``-th point; yield whether it is there, and what lets it go."""
    there, go = threading.Event(), threading.Event()
    main, left, before = threading.get_ident(), [number], WORLD["point"]

    def point() -> None:
        if threading.get_ident() == main:
            return
        left[0] -= 1
        if left[0] == 0:
            there.set()
            go.wait(60)

    WORLD["point"] = point
    try:
        yield there, go
    finally:
        WORLD["point"] = before


def use_in_child(scene: Scene) -> None:
    """Assert that the child's purgatory is empty, and works, unless it was closed."""
    purgatory = scene.world.purgatory
    assert (purgatory.num_delayed, purgatory.watched, scene.world.timer.size) == (0, 0, 0)
    if not purgatory.is_closed:
        purgatory.on_completed = None
        done, late = Probe(ready=True), Probe(delay_ms=5)
        assert purgatory.try_complete_else_watch(done, ["a"])
        assert not purgatory.try_complete_else_watch(late, ["a"])
        scene.world.pass_time(10)
        assert late.finished == ["on_complete", "on_expiration"]
    purgatory._check()


def assert_child_works(row: str, number: int) -> None:
    state, _, call = row.partition(": ")
    scene = Scene(STATES[state], (call,))
    with held_at(number) as (there, go):
        thread = threading.Thread(target=scene.act, args=(call,))
        thread.start()
        while thread.is_alive() and not there.wait(0.001):
            pass
        status = status_of_child(lambda: use_in_child(scene))
        go.set()
        thread.join(60)
    command = f"PURGATORY_SEED={seed()} pytest {__file__}"
    what = f"a child of a fork amid {call} at place {number} ({state})"
    assert status == 0, failure("purgatory.core", f"{what} ended with {status}", command)
    scene.finish()
    scene.assert_over()


def test_child_works_though_a_thread_was_inside() -> None:
    for number, row in enumerate(draw(ROWS, SHARE, "forks")):
        assert_child_works(row, PLACES[number % len(PLACES)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", PLACES)
def test_child_works_wherever_a_thread_was_inside(number: int) -> None:
    for row in ROWS:
        assert_child_works(row, number)
