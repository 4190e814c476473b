"""Libraries of asyncio's ecosystem in a world: the table of docs/virtual.md, row by row.

Each client speaks with a server on a host of its own. Each row shows that minutes of waiting take
no time, that a seed repeats its run, and that the client recovers from a fault as documented.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import confluent_kafka
import confluent_kafka.aio
import grpc
import grpc.aio
import httpcore  # noqa: F401 - which httpx imports late, and with it trio, which starts a process
import httpx
import nats
import nats.errors
import psycopg
import pytest
import redis.asyncio
import redis.exceptions
import uvicorn
from aiohttp import web
from confluent_kafka.admin import AdminClient
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from purgatory.virtual import SandboxError, World
from purgatory.virtual.refused_libraries import REFUSALS
from tests.world.virtual.stand_in_servers import NatsServer, PostgresServer, RedisServer

Scenario = Callable[[World], Awaitable[object]]


def _check_repeats(scenario: Scenario, least_s: float) -> None:
    """Run a scenario twice with one seed, and once with another."""
    runs = []
    for seed in (3, 3, 4):
        with World(seed) as world:
            result = world.run(_with_seed(scenario, world))
            assert world.now_s > least_s
            runs.append((result, world.now_s, world.events, world.digest))
    first, again, other = runs
    assert first == again
    assert first[-1] != other[-1]


async def _with_seed(scenario: Scenario, world: World) -> object:
    return await scenario(world)


# aiohttp


async def _serve_aiohttp() -> None:
    async def wait(request: web.Request) -> web.Response:
        await asyncio.sleep(float(request.query["for"]))
        return web.Response(text="waited")

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(10):
            await response.write(b"%d" % number)
            await asyncio.sleep(20)
        return response

    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    app = web.Application()
    app.router.add_get("/wait", wait)
    app.router.add_get("/stream", stream)
    app.router.add_get("/echo", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, port=80).start()
    await asyncio.Event().wait()


async def _use_aiohttp(world: World) -> object:
    service = world.host("service", _serve_aiohttp)
    await asyncio.sleep(1)
    async with aiohttp.ClientSession("http://service") as session:
        async with session.get("/wait?for=240") as response:
            assert await response.text() == "waited"
        async with session.get("/stream") as response:
            assert len(await response.read()) == 10
        with pytest.raises(TimeoutError):
            await session.get("/wait?for=31", timeout=aiohttp.ClientTimeout(total=30))

        response = await session.get("/stream")
        world.network.reset("client", "service")
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()

        socket = await session.ws_connect("/echo", heartbeat=60)
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"
        with world.network.partition("client", "service"):
            message = await socket.receive()
            assert isinstance(message.data, aiohttp.ServerTimeoutError)
            with pytest.raises(aiohttp.ConnectionTimeoutError):
                await session.get("/wait?for=0", timeout=aiohttp.ClientTimeout(connect=30))

        service.crash()
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get("/wait?for=0")
        service.restart()
        await asyncio.sleep(1)
        async with session.get("/wait?for=0") as response:
            return await response.text()


def test_aiohttp() -> None:
    _check_repeats(_use_aiohttp, least_s=240 + 200 + 30 + 90 + 30)


# httpx


async def _use_httpx(world: World) -> object:
    service = world.host("service", _serve_aiohttp)
    await asyncio.sleep(1)
    transport = httpx.AsyncHTTPTransport(retries=10)
    async with httpx.AsyncClient(
        base_url="http://service", timeout=300, transport=transport
    ) as client:
        assert (await client.get("/wait?for=240")).text == "waited"
        async with client.stream("GET", "/stream") as response:
            assert [text async for text in response.aiter_text()] == list("0123456789")
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/wait?for=31", timeout=30)

        asked = asyncio.create_task(client.get("/wait?for=60"))
        await asyncio.sleep(30)
        world.network.reset("client", "service")
        with pytest.raises(httpx.ReadError):
            await asked

        with world.network.partition("client", "service"), pytest.raises(httpx.ConnectTimeout):
            await client.get("/wait?for=0", timeout=5)

        service.crash()
        asyncio.get_running_loop().call_later(120, service.restart)
        return (await client.get("/wait?for=0")).text  # connects again after 0.5, 1, 2, 4 ... s


def test_httpx() -> None:
    _check_repeats(_use_httpx, least_s=240 + 200 + 30 + 30 + 120)


# uvicorn


async def _application(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that waits for the time in its path."""
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
        return
    await asyncio.sleep(float(scope["path"].strip("/")))
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"waited"})


async def _use_uvicorn(world: World) -> object:
    servers: list[uvicorn.Server] = []

    async def serve() -> None:
        config = uvicorn.Config(_application, host="service", port=80, log_config=None)
        servers.append(uvicorn.Server(config))
        await servers[-1].serve()

    service = world.host("service", serve)
    await asyncio.sleep(1)
    async with httpx.AsyncClient(base_url="http://service", timeout=600) as client:
        assert (await client.get("/240")).text == "waited"
        await asyncio.sleep(10)  # the connection was idle for longer than uvicorn keeps it

        asked = asyncio.create_task(client.get("/60"))
        await asyncio.sleep(30)
        world.network.reset("client", "service")
        with pytest.raises(httpx.ReadError):
            await asked
        with world.network.partition("client", "service"), pytest.raises(httpx.ConnectTimeout):
            await client.get("/0", timeout=30)

        asked = asyncio.create_task(client.get("/60"))
        await asyncio.sleep(30)
        servers[0].should_exit = True  # the server ends once the request is done
        assert (await asked).text == "waited"
        await asyncio.sleep(1)
        with pytest.raises(httpx.ConnectError):
            await client.get("/0")
        service.restart()
        await asyncio.sleep(1)
        return (await client.get("/0")).text


def test_uvicorn() -> None:
    _check_repeats(_use_uvicorn, least_s=240 + 10 + 30 + 30 + 60)


# redis-py


async def _use_redis(world: World) -> object:
    server = RedisServer()
    host = world.host("redis", server.serve)
    await asyncio.sleep(1)
    retry = Retry(ExponentialBackoff(cap=60, base=1), retries=10)
    async with redis.asyncio.Redis(host="redis", socket_timeout=600, retry=retry) as client:
        await client.set("name", "value")
        assert await client.get("name") == b"value"

        assert await client.blpop("jobs", timeout=300) is None
        popped = asyncio.ensure_future(client.blpop("jobs", timeout=300))
        await asyncio.sleep(60)
        await client.rpush("jobs", "job")
        assert list(await popped or ()) == [b"jobs", b"job"]

        async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe("news")
            await pubsub.get_message(timeout=1)
            await client.publish("news", "first")
            assert (await pubsub.get_message(timeout=60))["data"] == b"first"
            assert await pubsub.get_message(timeout=60) is None
            world.network.reset("client", "redis")
            await pubsub.get_message(timeout=60)  # connects and subscribes again
            assert await client.publish("news", "second") == 1
            message = await pubsub.get_message(timeout=60)
            assert message["data"] == b"second"

        host.crash()
        asyncio.get_running_loop().call_later(200, host.restart)
        assert await client.get("name") == b"value"  # tries again after 1, 2, 4 ... 60 s
    return await _time_out_of_redis(world)


async def _time_out_of_redis(world: World) -> object:
    async with redis.asyncio.Redis(
        host="redis", socket_timeout=30, retry=Retry(ExponentialBackoff(), retries=0)
    ) as client:
        await client.ping()
        with (
            world.network.partition("client", "redis"),
            pytest.raises(redis.exceptions.TimeoutError),
        ):
            await client.get("name")
        return await client.get("name")


def test_redis_py() -> None:
    _check_repeats(_use_redis, least_s=300 + 60 + 60 + 200 + 30)


# nats-py


async def _use_nats(world: World) -> object:
    host = world.host("nats", NatsServer().serve)
    await asyncio.sleep(1)
    happened: list[tuple[str, int]] = []

    async def note_disconnect() -> None:
        happened.append(("disconnected", round(world.now_s)))

    async def note_reconnect() -> None:
        happened.append(("reconnected", round(world.now_s)))

    client = await nats.connect(
        "nats://nats:4222",
        reconnect_time_wait=60,
        ping_interval=60,
        disconnected_cb=note_disconnect,
        reconnected_cb=note_reconnect,
    )

    async def double(message: Any) -> None:
        await asyncio.sleep(20)
        await message.respond(message.data * 2)

    await client.subscribe("double", cb=double)
    news = await client.subscribe("news")
    assert (await client.request("double", b"ab", timeout=30)).data == b"abab"
    with pytest.raises(nats.errors.TimeoutError):
        await client.request("double", b"ab", timeout=10)
    with pytest.raises(nats.errors.TimeoutError):
        await news.next_msg(timeout=600)

    host.crash()
    await asyncio.sleep(90)
    host.restart()
    await asyncio.sleep(60)
    assert [what for what, _ in happened] == ["disconnected", "reconnected"]
    await client.publish("news", b"first")
    assert (await news.next_msg(timeout=1)).data == b"first"

    with world.network.partition("client", "nats"):
        await asyncio.sleep(300)  # two pings are not answered: the connection is stale
        assert [what for what, _ in happened[2:]] == ["disconnected"]
    await asyncio.sleep(120)
    assert [what for what, _ in happened[3:]] == ["reconnected"]
    await client.publish("news", b"second")
    assert (await news.next_msg(timeout=1)).data == b"second"
    await client.drain()
    return happened


def test_nats_py() -> None:
    _check_repeats(_use_nats, least_s=600 + 90 + 60 + 300 + 120)


# asyncpg


async def _use_asyncpg(world: World) -> object:
    asyncpg: Any = sys.modules["asyncpg"]
    host = world.host("database", PostgresServer().serve)
    await asyncio.sleep(1)
    async with asyncpg.create_pool(
        "postgresql://user@database/data", min_size=1, max_size=1, command_timeout=300
    ) as pool:
        assert await pool.fetchval("SELECT pg_sleep(240)") == 240
        with pytest.raises(TimeoutError):
            await pool.fetchval("SELECT pg_sleep(31)", timeout=30)

        asked = asyncio.create_task(pool.fetchval("SELECT pg_sleep(60)"))
        await asyncio.sleep(30)
        world.network.reset("client", "database")
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await asked
        with world.network.partition("client", "database"), pytest.raises(TimeoutError):
            await pool.fetchval("SELECT pg_sleep(0)", timeout=30)

        host.crash()
        with pytest.raises(ConnectionRefusedError):
            await pool.fetchval("SELECT pg_sleep(0)")
        host.restart()
        await asyncio.sleep(1)
        return await pool.fetchval("SELECT pg_sleep(1)")


def test_asyncpg() -> None:
    pytest.importorskip("asyncpg")
    _check_repeats(_use_asyncpg, least_s=240 + 30 + 30 + 30)


# Libraries with sockets and threads of their own


def _refusals_of(connect: Callable[[], object]) -> str:
    """Return the error of a call on a world's loop."""

    async def call() -> None:
        connect()

    with World() as world, pytest.raises(SandboxError) as refusal:
        world.run(call())
    return str(refusal.value)


def test_grpcio() -> None:
    for name, connect in (
        ("grpc.aio.Channel", lambda: grpc.aio.insecure_channel("service:50051")),
        ("grpc.aio.Server", grpc.aio.server),
        ("grpc.Channel", lambda: grpc.insecure_channel("service:50051")),
        ("grpc.Server", lambda: grpc.server(ThreadPoolExecutor())),
    ):
        refusal = _refusals_of(connect)
        assert refusal.startswith(f"{name}: grpcio connects and serves with sockets and threads")
        assert "stand-in" in refusal
        assert ("allow=['sockets', 'threads']" in refusal) == (".aio" not in name)


def test_psycopg() -> None:
    async def connect() -> None:
        await psycopg.AsyncConnection.connect("host=database")

    with (
        World() as world,
        pytest.raises(SandboxError, match=r"^psycopg\.AsyncConnection: .*asyncpg"),
    ):
        world.run(connect())
    refusal = _refusals_of(lambda: psycopg.connect("host=database"))
    assert refusal.startswith("psycopg.Connection: psycopg connects by libpq")
    assert "allow=['sockets']" in refusal
    with World(allow=["sockets"]), pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect("host=127.0.0.1 port=1")


class _Producer(confluent_kafka.Producer):
    """A subclass as programs have it, without its own initializer."""


def test_confluent_kafka() -> None:
    settings: Any = {"bootstrap.servers": "127.0.0.1:1", "group.id": "billing"}
    for kind in (
        confluent_kafka.Producer,
        confluent_kafka.Consumer,
        confluent_kafka.SerializingProducer,
        confluent_kafka.DeserializingConsumer,
        confluent_kafka.aio.AIOConsumer,
        AdminClient,
        _Producer,
    ):
        refusal = _refusals_of(partial(kind, settings))
        assert refusal.startswith("confluent_kafka.")
        assert ": confluent-kafka connects by librdkafka" in refusal
        assert "use aiokafka there" in refusal
        assert "allow=['sockets', 'threads']" in refusal
    with World(allow=["sockets", "threads"]):
        assert len(confluent_kafka.Producer({})) == 0


def test_refused_libraries_work_outside_of_a_world() -> None:
    begin = threading.Event()
    errors: list[Exception] = []

    def connect() -> None:
        begin.wait()
        try:
            psycopg.connect("host=127.0.0.1 port=1")
        except Exception as error:
            errors.append(error)

    class_type = type(confluent_kafka.Producer)
    thread = threading.Thread(target=connect)
    thread.start()
    with World():
        assert "_connect_gen" in vars(psycopg.Connection)
        assert type(confluent_kafka.Producer) is not class_type
        begin.set()
        thread.join()
    assert [type(error) for error in errors] == [psycopg.OperationalError]
    assert "_connect_gen" not in vars(psycopg.Connection)
    assert "__init__" not in vars(_Producer)
    assert type(confluent_kafka.Producer) is class_type


_LATE_IMPORTS = """
from purgatory.virtual import SandboxError, World
from purgatory.virtual.refused_libraries import REFUSALS

with World():
    import confluent_kafka, grpc, psycopg

    for connect in (
        lambda: confluent_kafka.Producer({}),
        lambda: grpc.insecure_channel("service:50051"),
        lambda: psycopg.connect("host=database"),
    ):
        try:
            connect()
        except SandboxError as error:
            print(error)
"""


def test_refused_library_is_refused_when_imported_in_a_world() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LATE_IMPORTS], capture_output=True, text=True, check=True
    )
    names = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert names == ["confluent_kafka.Producer", "grpc.Channel", "psycopg.Connection"]


# The table

_FASTAPI = "test_fastapi_in_world.py::test_long_poll_returns_empty_exactly_at_its_timeout"
_FASTSTREAM = "test_faststream_in_world.py::test_each_order_is_invoiced_despite_a_dead_broker"

TABLE = {
    "aiohttp": ("runs", "test_ecosystem.py::test_aiohttp"),
    "aiokafka": ("runs", "test_world_cluster.py::test_client_survives_the_death_of_a_broker"),
    "asyncpg": ("runs", "test_ecosystem.py::test_asyncpg"),
    "FastAPI": ("runs", _FASTAPI),
    "FastStream": ("runs", _FASTSTREAM),
    "httpx": ("runs", "test_ecosystem.py::test_httpx"),
    "nats-py": ("runs", "test_ecosystem.py::test_nats_py"),
    "redis-py": ("runs", "test_ecosystem.py::test_redis_py"),
    "uvicorn": ("runs", "test_ecosystem.py::test_uvicorn"),
    "confluent-kafka": ("is refused", "test_ecosystem.py::test_confluent_kafka"),
    "grpcio": ("is refused", "test_ecosystem.py::test_grpcio"),
    "psycopg": ("is refused", "test_ecosystem.py::test_psycopg"),
}
"""Each library, whether it runs in a world, and its test in this folder."""


def test_document_has_the_table_of_libraries() -> None:
    text = (Path(__file__).parents[3] / "docs" / "virtual.md").read_text(encoding="utf-8")
    section = text.partition("\n## Libraries in a world\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    head, *rows = cells
    assert head[0].strip() == "library"
    shown = {
        re.sub(r"\[(.*?)\]\(.*\)", r"\1", name.strip()): (verdict, test.strip(" `"))
        for name, verdict, _, test in rows
    }
    assert shown == TABLE


def test_each_library_of_the_table_has_a_test() -> None:
    for verdict, place in TABLE.values():
        file, _, name = place.partition("::")
        text = (Path(__file__).parent / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)
        assert verdict in ("runs", "is refused")


def test_refused_rows_are_those_of_the_product() -> None:
    refused = {name for name, (verdict, _) in TABLE.items() if verdict == "is refused"}
    named = {refusal.advice.partition(" ")[0] for refusal in REFUSALS}
    assert named == refused
