"""A long poll over HTTP, by FastAPI and httpx, which waits half a minute in virtual time."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from purgatory.virtual import World

_EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "long_poll_fastapi.py"


@pytest.fixture(scope="module")
def service() -> Iterator[ModuleType]:
    """The example of the documents, started before the worlds as its debug pages have a thread."""
    found = importlib.util.spec_from_file_location("long_poll_in_world", _EXAMPLE)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield module
    for number, handler in before.items():
        signal.signal(number, handler)


@asynccontextmanager
async def _client(service: ModuleType) -> AsyncIterator[httpx.AsyncClient]:
    service.topics.clear()
    app = service.app
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://service", timeout=None) as client,
    ):
        yield client


@pytest.mark.virtual(seeds=5)
async def test_long_poll_returns_empty_exactly_at_its_timeout(
    world: World, service: ModuleType
) -> None:
    async with _client(service) as client:
        began_s = world.now_s
        answer = await client.get("/topics/news", params={"wait": 30})
        assert answer.json() == {"records": [], "next": 0}
        assert world.now_s - began_s == pytest.approx(30, abs=0.002)


@pytest.mark.virtual(seeds=5)
async def test_long_poll_responds_at_the_moment_of_the_record(
    world: World, service: ModuleType
) -> None:
    answered_s: list[float] = []

    async def poll(client: httpx.AsyncClient, wait: float) -> object:
        answer = await client.get("/topics/news", params={"wait": wait})
        answered_s.append(world.now_s)
        return answer.json()["records"]

    async with _client(service) as client:
        polls = [asyncio.create_task(poll(client, wait)) for wait in (30, 30, 12)]
        await asyncio.sleep(25)
        appended = await client.post("/topics/news", content="hello")
        assert appended.json() == {"offset": 0}
        assert await asyncio.gather(*polls) == [["hello"], ["hello"], []]
    assert answered_s == pytest.approx([12, 25, 25], abs=0.002)


@pytest.mark.virtual(seeds=5)
async def test_waiting_requests_get_a_response_when_the_service_ends(
    world: World, service: ModuleType
) -> None:
    async with _client(service) as client:
        poll = asyncio.create_task(client.get("/topics/news", params={"wait": 60}))
        await asyncio.sleep(7)
        await service.app.state.purgatory.aclose()
        assert (await poll).json() == {"records": [], "next": 0}
    assert world.now_s == pytest.approx(7, abs=0.002)
