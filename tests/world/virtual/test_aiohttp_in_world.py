"""aiohttp's client and server in a world: aiohttp passes connected sockets to the loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from purgatory.virtual import World


async def _greet(request: web.Request) -> web.Response:
    await asyncio.sleep(5)
    return web.Response(text=f"hello {request.query['name']}")


async def _count(request: web.Request) -> web.Response:
    return web.json_response(len(await request.read()))


async def _echo(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(heartbeat=10)
    await socket.prepare(request)
    async for message in socket:
        await socket.send_str(message.data)
    return socket


async def _serve(file: Path) -> web.AppRunner:
    async def send_file(request: web.Request) -> web.FileResponse:
        return web.FileResponse(file)

    app = web.Application(client_max_size=10**9)
    app.router.add_get("/greet", _greet)
    app.router.add_post("/count", _count)
    app.router.add_get("/echo", _echo)
    app.router.add_get("/file", send_file)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "localhost", 8080).start()
    return runner


def test_client_and_server_speak_to_each_other(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100_000)

    async def application() -> None:
        runner = await _serve(file)
        async with aiohttp.ClientSession("http://localhost:8080") as session:

            async def greet(name: str) -> str:
                async with session.get("/greet", params={"name": name}) as answer:
                    return await answer.text()

            greetings = await asyncio.gather(greet("a"), greet("b"))
            assert list(greetings) == ["hello a", "hello b"]
            async with session.post("/count", data=b"x" * 1_000_000) as answer:
                assert await answer.json() == 1_000_000
            async with session.get("/file") as answer:
                assert await answer.read() == file.read_bytes()
            async with session.ws_connect("/echo", heartbeat=5) as socket:
                await asyncio.sleep(3_600)
                await socket.send_str("still there")
                assert await socket.receive_str() == "still there"
            with pytest.raises(TimeoutError):
                await session.get("/greet?name=c", timeout=aiohttp.ClientTimeout(total=2))
            with pytest.raises(aiohttp.ClientConnectorError, match="refused"):
                await session.get("http://localhost:81/")
        await runner.cleanup()

    runs = set()
    for _ in range(2):
        with World(3) as world:
            world.run(application())
            assert world.now_s == pytest.approx(3_610, abs=1)
            runs.add((world.now_s, world.events, world.digest))
    assert len(runs) == 1  # the seed decides the masks of a WebSocket's frames, too
