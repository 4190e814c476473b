"""A call in the middle of another on the same thread: a finalizer's or a signal handler's.

The second call comes in each function of the user's that the first one calls: a key's hash and its
comparison, the clock, a callback, an observer, a listener.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count

import pytest

from tests.proofs.calls import COVER, STATES, Scene, pairs_in
from tests.proofs.drawn import draw, failure, seed
from tests.unit.core import schedule_world

PAIRS = [
    pair
    for pair in chain.from_iterable(map(pairs_in, COVER))
    if not pair.endswith(", stranger")  # which would wait for its own thread
]
WORLD = vars(schedule_world)
SHARE = 0.012


@contextmanager
def at_place(number: int, scene: Scene, call: str) -> Iterator[list[int]]:
    """Make ``call`` at the ``number``-th point of the body; yield a list that notes it."""
    came: list[int] = []
    left = [number]
    before = WORLD["point"]

    def point() -> None:
        left[0] -= 1
        if left[0] == 0:
            came.append(number)
            scene.act(call, 1)

    WORLD["point"] = point
    try:
        yield came
    finally:
        WORLD["point"] = before


def assert_harmless(pair: str) -> None:
    state, _, calls = pair.partition(": ")
    first, second = calls.split(", ")
    for number in count(1):
        scene = Scene(STATES[state], (first, second))
        scene.operation.may_overlap = True
        scene.is_nested = True
        try:
            with at_place(number, scene, second) as came:
                scene.act(first)
            if not came:
                return
            scene.finish()
            scene.assert_over()
        except Exception as error:
            what = f"{second} in {first} at place {number} ({state}): {error!r}"
            command = f"PURGATORY_SEED={seed()} pytest {__file__}"
            raise AssertionError(failure("purgatory.core", what, command)) from error


def test_call_in_the_middle_of_another_does_no_harm() -> None:
    for pair in draw(PAIRS, SHARE, "reentrance"):
        assert_harmless(pair)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("state", COVER)
def test_any_call_in_the_middle_of_another_does_no_harm(state: str) -> None:
    for pair in PAIRS:
        if pair.partition(": ")[0] == state:
            assert_harmless(pair)
