"""Bytes that are no frame, from either side: one connection is closed, with one line in the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from purgatory.cluster import ThreadedCluster
from purgatory.cluster.protocol.wire import encode_response
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.faults import Throttle
from purgatory.proxy import Proxy, ProxyConfig
from purgatory.proxy.addresses import KNOWN_VERSIONS
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import read_response, request_frame

FETCH, METADATA, HEARTBEAT, API_VERSIONS = 1, 3, 12, 18


async def client_of(proxy: Proxy) -> RawClient:
    """Return a client that sends any bytes."""
    host, _, port = proxy.bootstrap_servers.partition(",")[0].rpartition(":")
    return RawClient(*await asyncio.open_connection(host, int(port)))


def prefixed(frame: bytes) -> bytes:
    """Return a frame with its length."""
    return len(frame).to_bytes(4, "big") + frame


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "this looks like HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "this looks like TLS"),
        (b"\xff\xff\xff\xff" + bytes(8), "a request of -1 bytes"),
        (prefixed(b"\x00\x12\x00"), "a request of 3 bytes is shorter than a header"),
        (prefixed(b"\x00\x12\x00\x00" + bytes(4) + b"\x7f\xff"), "a client id of 32767 bytes"),
        (prefixed(b"\x00\x12\x00\x00" + bytes(4) + b"\x00\x01\xff"), "no UTF-8"),
        (
            prefixed(b"\x00\x00\x00\x08" + bytes(4) + b"\xff\xff\x00"),
            "has no acks where they belong",
        ),
        (
            (2**20).to_bytes(4, "big")
            + b"\x00\x00\x00\x09"
            + bytes(4)
            + b"\xff\xff\x00\xff\xff\xff\x7f"
            + bytes(2**17),
            "has no acks where they belong",
        ),
        (prefixed(b"\x00\x03\x00\x01" + bytes(4) + b"\xff\xff\x7f\xff\xff\xff"), "an array of"),
    ],
)
def test_a_broken_request_closes_its_connection_alone(
    cluster: ThreadedCluster, sent: bytes, reason: str
) -> None:
    async def run() -> None:
        config = ProxyConfig(to=cluster.bootstrap_servers.split(","))
        async with Proxy(config) as proxy, await client_of(proxy) as bystander:
            assert (await bystander.ask(METADATA, 1)).brokers
            with capture_logs() as logs:
                async with await client_of(proxy) as client:
                    client.writer.write(sent)
                    assert await client.wait_closed() == b""
            (line,) = logs
            assert (line["event"], line["log_level"]) == ("bad_request", "warning")
            assert reason in line["reason"]
            assert (await bystander.ask(METADATA, 1)).brokers

    asyncio.run(run())


def test_too_large_token_is_refused_before_it_arrives() -> None:
    async def run() -> None:
        handshake = b"\x00\x11\x00\x00" + b"\x00\x00\x00\x01" + b"\xff\xff" + b"\x00\x05PLAIN"
        async with broker_that_replies(lambda frame: prefixed(frame[4:8])) as address:
            config = ProxyConfig(to=[address])
            async with Proxy(config) as proxy, await client_of(proxy) as client:
                client.send(handshake)
                await client.receive()
                with capture_logs() as logs:
                    client.writer.write((2**20).to_bytes(4, "big") + b"\xff" * 64)
                    assert await client.wait_closed() == b""
                (line,) = logs
                assert (line["event"], line["reason"]) == (
                    "bad_request",
                    "a token of SASL of 1048576 bytes",
                )

    asyncio.run(run())


@asynccontextmanager
async def broker_that_replies(reply: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """A broker that replies to requests, which have no length; by nothing, it hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while prefix := await reader.read(4):
                answer = reply(await reader.readexactly(int.from_bytes(prefix, "big")))
                if not answer:
                    break
                writer.write(answer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


@pytest.mark.parametrize(
    ("api_key", "reply", "reason"),
    [
        (HEARTBEAT, lambda frame: b"\xff\xff\xff\xff" + frame[4:8], "a response of -1 bytes"),
        (HEARTBEAT, lambda _: prefixed(b"\x00\x00\x7f\x7f"), "a response to request 32639"),
        (HEARTBEAT, lambda frame: prefixed(frame[4:8]) * 2, "of 4 bytes to no request"),
        (METADATA, lambda _: prefixed(b"\x00\x00\x7f\x7f"), "a response to request 32639"),
        (METADATA, lambda frame: prefixed(frame[4:8] + bytes(2)), "end within a number"),
        (
            METADATA,
            lambda frame: prefixed(frame[4:8] + b"\x7f\xff\xff\xff"),
            "metadata v1 can't be decoded: an array of 2147483647 elements",
        ),
    ],
)
def test_a_broken_response_closes_its_connection_alone(
    api_key: int, reply: Callable[[bytes], bytes], reason: str
) -> None:
    async def run() -> None:
        async with broker_that_replies(reply) as address:
            config = ProxyConfig(to=[address])
            async with Proxy(config) as proxy, await client_of(proxy) as client:
                with capture_logs() as logs:
                    client.send(request_frame(api_key, 1, 1))
                    await client.wait_closed()
                (line,) = logs
                assert (line["event"], line["broker"]) == ("bad_response", address)
                assert reason in line["reason"]

    asyncio.run(run())


def test_unknown_version_passes_unchanged_and_is_logged_once() -> None:
    answer = b"what only the two of them know"

    async def run() -> None:
        async with broker_that_replies(lambda frame: prefixed(frame[4:8] + answer)) as address:
            config = ProxyConfig(to=[address])
            with capture_logs() as logs:
                async with Proxy(config) as proxy, await client_of(proxy) as client:
                    for number in (b"\x00\x00\x00\x05", b"\x00\x00\x00\x06"):
                        client.send(b"\x00\x03\x00\x77" + number + b"\xff\xff" + b"anything")
                        assert await client.receive() == number + answer
            told = [one for one in logs if one["event"] == "version_is_unknown"]
            assert [(one["api"], one["version"]) for one in told] == [(METADATA, 0x77)]

    asyncio.run(run())


def test_older_apiversions_of_a_broker_passes_despite_faults() -> None:
    unsupported = b"\x00\x23" + bytes(4)  # in version 0, whatever was requested

    async def run() -> None:
        async with broker_that_replies(lambda frame: prefixed(frame[4:8] + unsupported)) as address:
            config = ProxyConfig(to=[address])
            async with Proxy(config) as proxy, await client_of(proxy) as client:
                await proxy.fault.begin(Throttle(throttle_ms=5))
                client.send(request_frame(API_VERSIONS, 4, 7))
                assert await client.receive() == (7).to_bytes(4, "big") + unsupported

    asyncio.run(run())


def test_versions_are_lowered_to_those_that_can_be_rewritten() -> None:
    newest = KNOWN_VERSIONS[METADATA][1]
    offered = {METADATA: (0, newest + 1), FETCH: (99, 100), HEARTBEAT: (0, 99), 999: (0, 1)}
    api_keys = [
        {"api_key": key, "min_version": oldest, "max_version": latest}
        for key, (oldest, latest) in offered.items()
    ]

    values = {"error_code": 0, "api_keys": api_keys, "throttle_time": 0}

    async def run(version: int) -> None:
        def reply(frame: bytes) -> bytes:
            number = int.from_bytes(frame[4:8], "big")
            return encode_response(API_VERSIONS, version, number, values)

        async with broker_that_replies(reply) as address:
            with capture_logs() as logs:
                async with Proxy(ProxyConfig(to=[address])) as proxy:
                    for _ in range(2):
                        async with await client_of(proxy) as client:
                            response = await client.ask(API_VERSIONS, version)
                            found = {
                                one.api_key: (one.min_version, one.max_version)
                                for one in response.api_keys
                            }
                            assert found == {**offered, METADATA: (0, newest)}
            told = [one for one in logs if one["event"] == "versions_are_lowered"]
            assert [(one["api"], one["offered"]) for one in told] == [("metadata", newest)]

    for version in (0, 4):
        asyncio.run(run(version))


def test_newer_apiversions_of_a_client_gets_the_newest_known_version() -> None:
    async def run() -> None:
        async with broker_that_replies(lambda _: b"") as address:
            config = ProxyConfig(to=[address])
            async with Proxy(config) as proxy, await client_of(proxy) as client:
                client.send(b"\x00\x12\x00\x77" + b"\x00\x00\x00\x05" + b"\xff\xff\x00\x01")
                number, body = read_response(API_VERSIONS, 0, await client.receive())
                assert (number, body.error_code) == (5, ErrorCode.UNSUPPORTED_VERSION)
                found = [(one.api_key, one.max_version) for one in body.api_keys]
                assert found == [(API_VERSIONS, KNOWN_VERSIONS[API_VERSIONS][1])]

    asyncio.run(run())


def test_unreachable_broker_is_one_log_line() -> None:
    async def run() -> None:
        async with broker_that_replies(lambda _: b"") as address:
            proxy = Proxy(ProxyConfig(to=[address]))
            await proxy.start()
        with capture_logs() as logs:
            async with await client_of(proxy) as client:
                assert await client.wait_closed() == b""
        (line,) = logs
        assert (line["event"], line["address"]) == ("broker_unreachable", address)
        await proxy.stop()

    asyncio.run(run())
