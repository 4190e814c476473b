"""Plain functions that anyio would call on threads: in a world they run on the loop's thread."""

from __future__ import annotations

import asyncio
import threading
import time

import anyio
import anyio.to_thread
import httpx
import pytest
from fastapi import FastAPI

from purgatory.virtual import World


def _sleep_on_thread(seconds: float) -> str:
    time.sleep(seconds)
    return threading.current_thread().name


@pytest.mark.virtual(seeds=5)
async def test_plain_endpoint_of_fastapi_does_not_block_others(world: World) -> None:
    app = FastAPI()

    @app.get("/slow")
    def slow(seconds: float) -> str:
        return _sleep_on_thread(seconds)

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        asked = [client.get("/slow", params={"seconds": one}) for one in (60, 60, 30)]
        answers = await asyncio.gather(*asked)
    assert [one.json() for one in answers] == [threading.current_thread().name] * 3
    assert world.now_s == pytest.approx(60, abs=0.01)


@pytest.mark.virtual(seeds=5)
async def test_executor_keeps_its_limit_of_threads(world: World) -> None:
    limiter = anyio.CapacityLimiter(2)
    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(lambda: anyio.to_thread.run_sync(time.sleep, 10, limiter=limiter))
    assert world.now_s == pytest.approx(30, abs=0.01)


async def test_exception_of_an_executor_call_reaches_the_caller(world: World) -> None:
    with pytest.raises(ZeroDivisionError):
        await anyio.to_thread.run_sync(lambda: 1 // 0)


@pytest.mark.parametrize(("abandoned", "took_s"), [(False, 10), (True, 1)])
async def test_cancelled_task_waits_for_its_executor_call(
    world: World, abandoned: bool, took_s: float
) -> None:
    with anyio.move_on_after(1):
        await anyio.to_thread.run_sync(time.sleep, 10, abandon_on_cancel=abandoned)
    assert world.now_s == pytest.approx(took_s, abs=0.01)


def test_anyio_uses_threads_again_after_a_world() -> None:
    names = []
    for seed in range(2):
        with World(seed) as world:
            world.run(anyio.to_thread.run_sync(_sleep_on_thread, 5))
            assert world.now_s >= 5
        names.append(anyio.run(anyio.to_thread.run_sync, _sleep_on_thread, 0))
    assert threading.current_thread().name not in names
