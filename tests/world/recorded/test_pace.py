"""A run keeps to the times of another one: those of its steps, and of brokers' deaths."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from purgatory.virtual import World
from tests.recorded.recorder import Pace, Recorder

_KILL, _REVIVE = -1, -2
_STARTS_S = 5.0


class _Brokers:
    """Brokers that take their time to start."""

    async def kill(self, _: int) -> None:
        pass

    async def revive(self, _: int) -> None:
        await asyncio.sleep(_STARTS_S)


def _noted(kept_s: Mapping[int, float]) -> Mapping[int, float]:
    """Return the times of a step, a death, a return and a step."""
    pace = Pace(kept_s)

    async def run() -> None:
        recorder = Recorder("", 0, "run0000", _Brokers(), pace)
        await pace.begin(0)
        await recorder.kill(1)
        await recorder.revive(1)
        await pace.begin(1)

    with World(1) as world:
        world.run(run())
    return {number: round(at_s, 3) for number, at_s in pace.noted_s.items()}


def test_a_return_is_noted_once_the_broker_listens() -> None:
    assert _noted({}) == {0: 0.0, _KILL: 0.0, _REVIVE: _STARTS_S, 1: _STARTS_S}


def test_deaths_keep_the_pace_of_another_run() -> None:
    kept_s = {0: 0.0, _KILL: 20.0, _REVIVE: 60.0, 1: 90.0}
    assert _noted(kept_s) == {**kept_s, _REVIVE: 60.0 + _STARTS_S}
