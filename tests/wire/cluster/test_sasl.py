"""Authentication by SASL/PLAIN, in both versions of the handshake, and by real clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from purgatory.cluster import Cluster, ClusterConfig, ThreadedCluster, TopicSpec
from tests.wire.cluster.conftest import CLIENTS, require_client
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import request_frame

_HANDSHAKE, _AUTHENTICATE, _METADATA = 17, 36, 3
_SOUND = b"\0ann\0secret"
_WRONG = [b"\0ann\0wrong", b"\0nobody\0secret", b"\0\0", b"", b"secret", b"\0ann", b"\xff\0\xff\0"]

_SETTINGS: dict[str, Any] = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ann",
    "sasl.password": "secret",
}


def _run(main: Callable[[Cluster, RawClient], Awaitable[None]], **options: object) -> None:
    async def run() -> None:
        config = ClusterConfig(brokers=1, **{"users": {"ann": "secret"}, **options})  # type: ignore[arg-type]
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            await main(cluster, client)

    asyncio.run(run())


def test_handshake_0_is_followed_by_raw_tokens() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        answer = await client.ask(_HANDSHAKE, 0, {"mechanism": "PLAIN"})
        assert (answer.error_code, answer.mechanisms) == (
            0,
            ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        )
        client.send(_SOUND)
        assert await client.receive() == b"", "nothing more is asked"
        assert (await client.ask(_METADATA, 8)).brokers

    _run(main)


def test_request_may_follow_the_raw_tokens_at_once() -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        client.send(request_frame(_HANDSHAKE, 0, 1, {"mechanism": "PLAIN"}))
        client.send(_SOUND)
        client.send(request_frame(_METADATA, 8, 2, {}))
        for start in (b"\0\0\0\1", b"", b"\0\0\0\2"):
            assert (await client.receive())[:4] == start

    _run(main)


@pytest.mark.parametrize("token", _WRONG, ids=repr)
def test_wrong_raw_credentials_end_the_connection(token: bytes) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await client.ask(_HANDSHAKE, 0, {"mechanism": "PLAIN"})
        with capture_logs() as logs:
            client.send(token)
            assert await client.wait_closed() == b""
        assert [log["event"] for log in logs] == ["authentication_failed", "bad_request"]
        async with await RawClient.to(cluster) as other:
            await other.ask(_HANDSHAKE, 1, {"mechanism": "PLAIN"})
            assert (await other.ask(_AUTHENTICATE, 2, {"auth_bytes": _SOUND})).error_code == 0

    _run(main)


@pytest.mark.parametrize("token", _WRONG, ids=repr)
def test_wrong_credentials_after_handshake_1_get_an_error(token: bytes) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        await client.ask(_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        answer = await client.ask(_AUTHENTICATE, 2, {"auth_bytes": token})
        assert answer.error_code == 58
        client.send(request_frame(_METADATA, 8, 9, {}))
        assert await client.wait_closed() == b"", "still nobody"

    _run(main)


@pytest.mark.parametrize("version", [0, 1])
def test_unknown_mechanism_is_refused_and_the_connection_stays(version: int) -> None:
    async def main(cluster: Cluster, client: RawClient) -> None:
        answer = await client.ask(_HANDSHAKE, version, {"mechanism": "GSSAPI"})
        assert (answer.error_code, answer.mechanisms) == (
            33,
            ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        )
        assert (await client.ask(18, 0)).error_code == 0, "a frame is a request as before"

    async def without_users(cluster: Cluster, client: RawClient) -> None:
        # ILLEGAL_SASL_STATE, as Kafka says where no authentication is required.
        assert (await client.ask(_HANDSHAKE, version, {"mechanism": "PLAIN"})).error_code == 34
        assert (await client.ask(_METADATA, 8)).brokers

    _run(main)
    _run(without_users, users=None)


@pytest.fixture(scope="module")
def serve_authorized() -> Iterator[ThreadedCluster]:
    config = ClusterConfig(brokers=1, users={"ann": "secret"}, topics=[TopicSpec("orders")])
    with ThreadedCluster(config) as running:
        yield running


@pytest.mark.parametrize("name", ["confluent-kafka", "kcat"])
def test_old_and_new_librdkafka_authenticate(serve_authorized: ThreadedCluster, name: str) -> None:
    require_client(name)
    client = CLIENTS[name](serve_authorized.bootstrap_servers)
    client.produce("orders", [b"by " + name.encode()], **_SETTINGS)


def test_kcat_with_a_wrong_password_is_refused(serve_authorized: ThreadedCluster) -> None:
    require_client("kcat")
    client = CLIENTS["kcat"](serve_authorized.bootstrap_servers)
    wrong = {**_SETTINGS, "sasl.password": "wrong", "message.timeout.ms": 2_000}
    with pytest.raises(RuntimeError, match="kcat ended with"):
        client.produce("orders", [b"x"], **wrong)
