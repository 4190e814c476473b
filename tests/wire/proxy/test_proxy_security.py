"""TLS towards clients and brokers, and logins that pass through."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from confluent_kafka import KafkaException

from purgatory.cluster import ClusterConfig, ClusterError, Listener, ThreadedCluster, Tls
from purgatory.proxy import Proxy, ProxyConfig, ThreadedProxy, UpstreamTls
from tests.spark.pipeline.source.certificates import make_certificate
from tests.wire.cluster.aiokafka_client import AiokafkaClient
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.test_listeners import PATIENCE_S, begin_handshake

METADATA, SASL_HANDSHAKE = 3, 17


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def secured(certificate: Path) -> Iterator[ThreadedCluster]:
    """A cluster with a listener of each kind."""
    listeners = [
        Listener("TLS", tls=Tls(certificate)),
        Listener("LOGIN", sasl=["PLAIN", "SCRAM-SHA-256"]),
        Listener("BOTH", tls=Tls(certificate), sasl=["SCRAM-SHA-256"]),
    ]
    config = ClusterConfig(brokers=2, listeners=listeners, users={"ann": "secret"})
    with ThreadedCluster(config) as cluster:
        yield cluster


@pytest.mark.parametrize("listener", ["TLS", "LOGIN", "BOTH"])
@pytest.mark.parametrize("to_clients", [True, False], ids=["tls", "plain"])
def test_client_connects_by_each_kind_of_listener(
    secured: ThreadedCluster, certificate: Path, listener: str, to_clients: bool
) -> None:
    config = ProxyConfig(
        to=secured.bootstrap_servers_of(listener).split(","),
        tls=Tls(certificate) if to_clients else None,
        to_tls=UpstreamTls(certificate) if listener != "LOGIN" else None,
    )
    settings: dict[str, Any] = {}
    if listener != "TLS":
        settings = {
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "ann",
            "sasl.password": "secret",
        }
    if to_clients:
        settings["ssl.ca.location"] = str(certificate)
    protocol = ("SASL_" if listener != "TLS" else "") + ("SSL" if to_clients else "PLAINTEXT")
    topic = f"{listener}-{protocol}"
    secured.create_topic(topic)
    with ThreadedProxy(config) as proxy:
        client = ConfluentClient(proxy.bootstrap_servers)
        with proxy.fault.return_error(api="Produce", error="NOT_LEADER_OR_FOLLOWER", count=1):
            client.produce(topic, [b"one"], **{"security.protocol": protocol, **settings})
        assert {broker["id"] for broker in proxy.state()["brokers"]} == {1, 2}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_login_of_aiokafka_passes(secured: ThreadedCluster, mechanism: str) -> None:
    topic = f"aiokafka-{mechanism}"
    secured.create_topic(topic)
    with ThreadedProxy(ProxyConfig(to=secured.bootstrap_servers_of("LOGIN").split(","))) as proxy:
        AiokafkaClient(proxy.bootstrap_servers).produce(
            topic,
            [b"one"],
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username="ann",
            sasl_plain_password="secret",
        )


def test_a_login_without_headers_passes(secured: ThreadedCluster) -> None:
    """After SaslHandshake 0, tokens are frames of their own, and then requests come again."""

    async def run() -> None:
        config = ProxyConfig(to=secured.bootstrap_servers_of("LOGIN").split(","))
        async with Proxy(config) as proxy:
            host, _, port = proxy.bootstrap_servers.split(",")[0].rpartition(":")
            connected = await asyncio.open_connection(host, int(port))
            async with RawClient(*connected) as client:
                assert (await client.ask(SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})).error_code == 0
                client.send(b"\0ann\0secret")
                assert await client.receive() == b""
                assert (await client.ask(METADATA, 1)).brokers

    asyncio.run(run())


def test_a_broker_of_an_unknown_authority_is_not_trusted(
    secured: ThreadedCluster, tmp_path: Path
) -> None:
    stranger = make_certificate(tmp_path)
    config = ProxyConfig(
        to=[secured.bootstrap_servers_of("TLS").split(",")[0]], to_tls=UpstreamTls(stranger)
    )
    with pytest.raises(ClusterError, match=r"no broker can be connected to: .*certificate"):
        ThreadedProxy(config).start()


def test_a_connection_by_tls_does_not_outlive_its_proxy(certificate: Path) -> None:
    """The client is gone, and the broker doesn't close its side in turn."""

    def accept(listening: socket.socket) -> ssl.SSLSocket:
        return Tls(certificate).context().wrap_socket(listening.accept()[0], server_side=True)

    async def run(listening: socket.socket) -> None:
        host, port = listening.getsockname()
        config = ProxyConfig(to=[f"{host}:{port}"], to_tls=UpstreamTls(certificate))
        proxy = Proxy(config)
        starting = asyncio.create_task(proxy.start())
        with await asyncio.to_thread(accept, listening):
            pass  # it may not be asked for its brokers
        await starting
        host, _, port = proxy.bootstrap_servers.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        accepted = await asyncio.to_thread(accept, listening)
        with socket.socket(fileno=accepted.detach()) as broker:
            broker.settimeout(10)
            writer.close()
            while proxy.state()["brokers"][0]["connections"]:
                await asyncio.sleep(0.01)
            await proxy.stop()
            while await asyncio.to_thread(broker.recv, 1024):
                pass  # until it ends

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)
        asyncio.run(run(listening))


def test_a_wrong_password_stays_wrong(secured: ThreadedCluster) -> None:
    settings: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "wrong",
        "message.timeout.ms": 1_500,
    }
    with (
        ThreadedProxy(ProxyConfig(to=secured.bootstrap_servers_of("LOGIN").split(","))) as proxy,
        pytest.raises((KafkaException, AssertionError)),
    ):
        ConfluentClient(proxy.bootstrap_servers).produce("orders", [b"one"], **settings)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: UpstreamTls(Path("nowhere.pem")), "ca nowhere.pem"),
        (lambda: UpstreamTls(certificate=Path("nowhere.pem")), "certificate nowhere.pem"),
    ],
)
def test_invalid_certificate_files_are_named(wrong: type[UpstreamTls], named: str) -> None:
    with pytest.raises(ClusterError, match=f"{named}: can't be used"):
        ThreadedProxy(ProxyConfig(to=["127.0.0.1:1"], to_tls=wrong())).start()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_client_in_its_handshake_is_cut_when_the_proxy_stops(
    secured: ThreadedCluster, certificate: Path, new_loop: Any
) -> None:
    servers = secured.bootstrap_servers_of("LOGIN").split(",")
    errors: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
        async with Proxy(ProxyConfig(to=servers, tls=Tls(certificate))) as proxy:
            host, _, port = proxy.bootstrap_servers.partition(",")[0].rpartition(":")
            reader, writer = await begin_handshake(host, int(port))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()  # up to the end
        writer.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert not errors
