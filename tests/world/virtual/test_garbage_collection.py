"""Python's garbage collector in a world runs at iterations of the loop, and is restored after."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator

import pytest

from purgatory.virtual import World
from purgatory.virtual.determinism import ITERATIONS


@pytest.fixture(autouse=True)
def thresholds_as_they_were() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.enable()
    gc.set_threshold(*before)


class _Cycle:
    """Garbage that draws a random number of the world when it is collected."""

    def __init__(self, left: list[float]) -> None:
        self.itself = self
        self._left = left

    def __del__(self) -> None:
        self._left.append(random.random())


async def _make_garbage(left: list[float]) -> list[float]:
    for _ in range(ITERATIONS + 10):
        _Cycle(left)
        await asyncio.sleep(0)
    return [random.random() for _ in range(3)]


def _drawn(made_before: int) -> tuple[int, list[float]]:
    """Draw random numbers among garbage, beside so many other objects of the process."""
    gc.collect()
    kept = [[number] for number in range(made_before)]
    left: list[float] = []
    with World(3) as world:
        drawn = world.run(_make_garbage(left))
        count = len(left)
    assert len(kept) == made_before
    return count, drawn


def test_garbage_collection_is_deterministic() -> None:
    first, second = _drawn(0), _drawn(350)
    assert first == second
    assert 0 < first[0] <= ITERATIONS + 10


def test_garbage_collector_is_restored_after_a_world() -> None:
    gc.set_threshold(600, 7, 8)
    with World():
        assert gc.get_threshold()[0] > 600
    assert gc.get_threshold() == (600, 7, 8)


def test_disabled_collector_stays_disabled() -> None:
    gc.set_threshold(0)
    left: list[float] = []
    with World() as world:
        world.run(_make_garbage(left))
        assert not left and gc.get_threshold()[0] == 0
    gc.set_threshold(700)
    gc.disable()
    with World() as world:
        world.run(_make_garbage(left))
        assert not left
    gc.enable()
    gc.collect()
    assert len(left) == 2 * (ITERATIONS + 10)


def test_timers_leave_no_garbage() -> None:
    async def wait_and_cancel() -> int:
        loop = asyncio.get_running_loop()
        gc.collect()
        for _ in range(100):
            loop.call_later(5, print).cancel()
            await asyncio.sleep(0.001)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.create_future(), 0.001)
        return gc.collect()

    with World() as world:
        assert world.run(wait_and_cancel()) < 20
