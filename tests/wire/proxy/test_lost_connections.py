"""Clients and brokers that go, or take nothing, in the middle of something."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from purgatory.cluster import Cluster, ClusterConfig, ClusterError, frozen_metadata
from purgatory.cluster.listeners import Endpoint, Listening
from purgatory.kafka.faults import DelayResponses, Pause, Throttle
from purgatory.proxy import Proxy, ProxyConfig
from purgatory.proxy.connection import ClientConnection
from tests.wire.cluster.conftest import eventually
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import request_frame
from tests.wire.proxy.test_broken_frames import broker_that_replies, client_of, prefixed

METADATA, HEARTBEAT, DELETE_GROUPS = 3, 12, 42
HOUR_MS = 3_600_000
UNKNOWN_API_VERSIONS = b"\x00\x12\x00\x77" + b"\x00\x00\x00\x05" + b"\xff\xff\x00\x01"


class SilentBroker:
    """A broker that takes what comes, says nothing, and hangs up when told to."""

    def __init__(self) -> None:
        self.received = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._writers:
            writer.close()  # to the proxy, which asks for brokers
        self._writers.append(writer)
        while data := await reader.read(65_536):
            self.received += len(data)
        writer.close()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def silent_broker() -> AsyncIterator[tuple[SilentBroker, str]]:
    broker = SilentBroker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1")
    async with server:
        host, port = server.sockets[0].getsockname()
        yield broker, f"{host}:{port}"


@asynccontextmanager
async def proxy_of_nobody() -> AsyncIterator[Proxy]:
    """A proxy to a broker that hangs up whatever it is asked."""
    async with (
        broker_that_replies(lambda _: b"") as address,
        Proxy(ProxyConfig(to=[address])) as proxy,
    ):
        yield proxy


def tasks_of_connections() -> list[str]:
    """The tasks that connections through a proxy have now."""
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return [name for name in names if name.startswith("ClientConnection")]


def test_a_client_is_closed_when_its_broker_died_while_it_was_paused() -> None:
    async def run() -> None:
        async with Cluster(ClusterConfig(brokers=1)) as cluster:
            config = ProxyConfig(to=[cluster.bootstrap_servers])
            async with Proxy(config) as proxy, await client_of(proxy) as client:
                assert (await client.ask(METADATA, 1)).brokers
                pause = await proxy.fault.begin(Pause(1))
                client.send(request_frame(HEARTBEAT, 1, 7))
                requests = proxy.brokers[1].requests
                await eventually(lambda: requests["heartbeat"] == 1)
                (connection,) = proxy.brokers[1].connections
                assert isinstance(connection, ClientConnection)
                await cluster.kill(1)
                await eventually(connection._writers[1].is_closing)
                pause.end()
                assert await client.wait_closed() == b""

    asyncio.run(run())


@pytest.mark.parametrize("is_whole", [False, True])
def test_broker_that_disconnects_during_a_request_closes_its_client(is_whole: bool) -> None:
    async def run() -> None:
        async with silent_broker() as (broker, address):
            config = ProxyConfig(to=[address])
            async with Proxy(config) as proxy, await client_of(proxy) as client:
                values = {"group_id": "g" * 100}  # longer than what is read of each request
                frames = (request_frame(HEARTBEAT, 1, one, values) for one in (1, 2))
                first, second = map(prefixed, frames)
                client.writer.write(first)
                await eventually(lambda: broker.received == len(first))
                # The second one is served once the first one's response is there.
                await proxy.fault.begin(Throttle(throttle_ms=5))
                client.writer.write(second if is_whole else second[:-1])
                await eventually(lambda: proxy.all_brokers[-1].requests["heartbeat"] == 2)
                broker.hang_up()
                assert await client.wait_closed() == b""

    asyncio.run(run())


@pytest.mark.parametrize("leaves", [True, False])
def test_late_response_outlives_neither_client_nor_proxy(leaves: bool) -> None:
    async def run() -> None:
        async with broker_that_replies(lambda frame: prefixed(frame[4:8] + bytes(6))) as address:
            proxy = Proxy(ProxyConfig(to=[address]))
            with capture_logs():  # that is no response to Metadata
                await proxy.start()
            late = await proxy.fault.begin(DelayResponses(by_ms=HOUR_MS, api="heartbeat"))
            async with await client_of(proxy) as client:
                client.send(request_frame(HEARTBEAT, 1, 7))
                await eventually(lambda: late.uses == 1)
                assert tasks_of_connections()
                if leaves:
                    client.writer.transport.abort()
                    await eventually(lambda: not tasks_of_connections())
                await proxy.stop()
                assert not tasks_of_connections()

    asyncio.run(run())


def test_late_responses_arrive_after_the_broker_disconnects() -> None:
    async def run() -> None:
        def reply(frame: bytes) -> bytes:
            return b"" if frame[1] == DELETE_GROUPS else prefixed(frame[4:8] + bytes(6))

        async with broker_that_replies(reply) as address:
            config = ProxyConfig(to=[address])
            async with Proxy(config) as proxy, await client_of(proxy) as client:
                late = await proxy.fault.begin(DelayResponses(by_ms=100, api="heartbeat"))
                client.send(request_frame(HEARTBEAT, 1, 7))
                client.send(request_frame(HEARTBEAT, 1, 8))
                client.send(request_frame(DELETE_GROUPS, 0, 9))
                await eventually(lambda: late.uses == 1)
                assert (await client.receive())[:4] == (7).to_bytes(4, "big")
                assert (await client.receive())[:4] == (8).to_bytes(4, "big")

    asyncio.run(run())


def test_client_that_reads_no_responses_is_not_served() -> None:
    count = 8_000

    async def run() -> None:
        async with proxy_of_nobody() as proxy:
            host, port = proxy.bootstrap_servers.split(":")
            ours = socket.socket()
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            ours.setblocking(False)
            await asyncio.get_running_loop().sock_connect(ours, (host, int(port)))
            client = RawClient(*await asyncio.open_connection(sock=ours, limit=1_024))
            async with client:
                connections = proxy.all_brokers[-1].connections
                await eventually(lambda: len(connections) == 1)
                (connection,) = connections
                assert isinstance(connection, ClientConnection)
                transport = connection._writers[0].transport
                theirs = transport.get_extra_info("socket")
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
                client.writer.write(prefixed(UNKNOWN_API_VERSIONS) * count)
                await eventually(lambda: transport.get_write_buffer_size() > 2**14)
                for _ in range(200):
                    await asyncio.sleep(0)
                    assert transport.get_write_buffer_size() < 2**17
                for end, option in ((ours, socket.SO_RCVBUF), (theirs, socket.SO_SNDBUF)):
                    end.setsockopt(socket.SOL_SOCKET, option, 2**20)
                for _ in range(count):
                    assert (await client.receive())[:4] == (5).to_bytes(4, "big")

    asyncio.run(run())


def test_invalid_host_name_is_an_unreachable_broker() -> None:
    async def run() -> None:
        with pytest.raises(ClusterError, match="no broker can be connected to"):
            async with Proxy(ProxyConfig(to=["a..b:9092"])):
                pass
        async with proxy_of_nobody() as proxy:
            proxy.all_brokers[-1].address = Endpoint("a..b", 9092)  # as a broker told it
            with capture_logs() as logs:
                async with await client_of(proxy) as client:
                    assert await client.wait_closed() == b""
            assert [one["event"] for one in logs] == ["broker_unreachable"]

    asyncio.run(run())


def test_listener_of_a_cancelled_start_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, started = Listening.start, []

    async def start_and_wait(listening: Listening, *arguments: Any) -> None:
        await start(listening, *arguments)
        started.append(listening)
        await asyncio.Event().wait()

    async def run() -> None:
        async with proxy_of_nobody() as proxy:
            monkeypatch.setattr(Listening, "start", start_and_wait)
            # As the task of a response does that tells of a broker, and is cancelled.
            learning = asyncio.create_task(proxy._addresses.learn(7, Endpoint("kafka-7", 9092)))
            await eventually(lambda: bool(started))
            learning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await learning
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*started[0].endpoint(proxy._listener))

    asyncio.run(run())


def test_warnings_about_unknown_versions_are_bounded() -> None:
    proxy = Proxy(ProxyConfig(to=["kafka-1:9092"]))
    with capture_logs() as logs:
        for version in range(2_000):
            proxy._addresses.warn_once("version_is_unknown", api=3, version=version)
    assert len(logs) == 1_000


def test_kept_metadata_responses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with Cluster(ClusterConfig(brokers=1)) as cluster:
            config = ProxyConfig(to=[cluster.bootstrap_servers])
            async with Proxy(config) as proxy, await client_of(proxy) as client:
                monkeypatch.setattr(frozen_metadata, "_MAX_RESPONSE_BYTES", 1_000)
                for number in range(100):
                    await client.ask(METADATA, 1, {"topics": [{"name": f"missing-{number}"}]})
                kept = proxy.fault.frozen_metadata._last
                assert 1 < len(kept) < 100
                assert kept.size_bytes <= 1_000

    asyncio.run(run())
