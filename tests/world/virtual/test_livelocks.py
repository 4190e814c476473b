"""Programs that spin: a limit of steps without progress of time names them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from inspect import signature
from typing import Any

import pytest

from purgatory.virtual import LivelockError, World

Program = Callable[[], Coroutine[Any, Any, Any]]
_kept: list[Any] = []


async def _yields() -> None:
    while True:
        await asyncio.sleep(0)


async def _sleeps_a_nanosecond() -> None:
    while True:
        await asyncio.sleep(1e-9)


async def _waits_for_the_past() -> None:
    loop = asyncio.get_running_loop()
    while True:
        waiter = loop.create_future()
        loop.call_at(loop.time() - 1, waiter.set_result, None)
        await waiter


async def _times_out_at_once() -> None:
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0)


async def _awaits_tasks() -> None:
    async def nothing() -> None:
        pass

    while True:
        await asyncio.gather(asyncio.create_task(nothing()), return_exceptions=True)


async def _calls_itself() -> None:
    loop = asyncio.get_running_loop()

    def again() -> None:
        loop.call_soon(again)

    again()
    await asyncio.sleep(1e6)


_PROGRAMS = [
    _yields,
    _sleeps_a_nanosecond,
    _waits_for_the_past,
    _times_out_at_once,
    _awaits_tasks,
    _calls_itself,
]


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("program", _PROGRAMS)
def test_spinning_program_is_named(program: Program, beside: bool) -> None:
    async def ticks() -> None:
        while True:
            await asyncio.sleep(0.5)

    async def main() -> None:
        if beside:
            _kept.append(asyncio.create_task(ticks()))
        await program()

    name = "again()" if program is _calls_itself else "main() #1"
    with pytest.raises(LivelockError) as caught, World(max_steps=2_000) as world:
        world.run(main())
    assert "2,000 steps without progress of time" in str(caught.value)
    assert f"{name} at test_livelocks.py:" in str(caught.value).partition("Waiting tasks:")[0]
    assert program.__name__ in str(caught.value)


def test_spinning_host_is_named() -> None:
    async def main() -> None:
        world.host("billing", _yields)
        await asyncio.sleep(10)

    with pytest.raises(LivelockError, match="billing"), World(max_steps=2_000) as world:
        world.run(main())


def test_limit_is_a_second_or_two_by_default() -> None:
    assert signature(World).parameters["max_steps"].default == 1_000_000


def test_progress_of_time_begins_another_count() -> None:
    async def main() -> None:
        for _ in range(10):
            for _ in range(500):
                await asyncio.sleep(0)
            await asyncio.sleep(0.001)

    with World(max_steps=1_000) as world:
        world.run(main())


def test_no_limit_leaves_the_timeout() -> None:
    with pytest.raises(TimeoutError), World(max_steps=None) as world:
        world.run(_yields(), "100ms")
