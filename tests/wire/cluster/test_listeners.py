"""Several listeners at each broker, by which real clients come: plain, TLS, SCRAM, mutual TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from structlog.testing import capture_logs

from purgatory.cluster import (
    AclSpec,
    Authorization,
    Cluster,
    ClusterConfig,
    ClusterError,
    Listener,
    ThreadedCluster,
    Tls,
    TopicSpec,
)
from purgatory.cluster.protocol.subject import certificate_subject
from tests.spark.pipeline.source.certificates import make_certificate
from tests.wire.cluster.certificates import make_client_certificate
from tests.wire.cluster.conftest import CLIENTS, require_client
from tests.wire.cluster.wire_values import request_frame

_TIMEOUT_S = 30
PATIENCE_S = 20
"""Less than asyncio waits for the end of a handshake."""


class Guarded(NamedTuple):
    """A cluster, and the files of its clients."""

    cluster: ThreadedCluster
    authority: Path
    ann: Path
    stranger: Path

    def servers(self, listener: str) -> str:
        return self.cluster.bootstrap_servers_of(listener)


@pytest.fixture(scope="module")
def serve_authorized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A cluster with all listeners. By mutual TLS, each may write to a topic of its own."""
    authority = make_certificate(tmp_path_factory.mktemp("authority"))
    ann = make_client_certificate(authority, "ann", "/C=DE/O=Ex, ample/CN=ann")
    stranger = make_certificate(tmp_path_factory.mktemp("stranger"))
    config = ClusterConfig(
        brokers=2,
        first_broker_id=0,
        topics=[TopicSpec("orders"), TopicSpec("anns")],
        users={"ann": "secret", "bob": "other"},
        listeners=[
            Listener("PLAIN"),
            Listener("TLS", tls=Tls(authority)),
            Listener("SCRAM", sasl=["SCRAM-SHA-256", "SCRAM-SHA-512"]),
            Listener("SCRAM_TLS", tls=Tls(authority), sasl=["SCRAM-SHA-512"]),
            Listener("MUTUAL", tls=Tls(authority, client_ca=authority)),
        ],
        authorization=Authorization(
            acls=[AclSpec(r"User:CN=ann,O=Ex\, ample,C=DE", "ALL", "TOPIC", "anns")]
        ),
    )
    with ThreadedCluster(config) as running:
        yield Guarded(running, authority, ann, stranger)


def settings_for(client: str, serve_authorized: Guarded, listener: str) -> dict[str, Any]:
    """A client's settings for a listener."""
    scram = listener.startswith("SCRAM")
    tls = listener in ("TLS", "SCRAM_TLS", "MUTUAL")
    certificate = serve_authorized.ann if listener == "MUTUAL" else None
    protocol = ("SASL_" if scram else "") + ("SSL" if tls else "PLAINTEXT")
    # Its newest one, or its first.
    mechanism = "SCRAM-SHA-256" if listener == "SCRAM" else "SCRAM-SHA-512"
    if client in ("confluent-kafka", "kcat"):
        chosen: dict[str, Any] = {"security.protocol": protocol}
        if scram:
            chosen |= {
                "sasl.mechanism": mechanism,
                "sasl.username": "ann",
                "sasl.password": "secret",
            }
        if tls:
            chosen["ssl.ca.location"] = str(serve_authorized.authority)
        if certificate:
            chosen["ssl.certificate.location"] = chosen["ssl.key.location"] = str(certificate)
        return chosen
    chosen = {"security_protocol": protocol}
    if scram:
        chosen |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "ann",
            "sasl_plain_password": "secret",
        }
    if tls:
        context = ssl.create_default_context(cafile=str(serve_authorized.authority))
        if certificate:
            context.load_cert_chain(certificate)
        chosen["ssl_context"] = context
    return chosen


# ---- clients that speak something else than their listener


def _speak(place: tuple[str, int], what: str) -> None:
    """Connect, say how a protocol begins, and wait to be cut."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with ExitStack() as stack, suppress(OSError):
        plain = stack.enter_context(socket.create_connection(place, _TIMEOUT_S))
        connection: socket.socket = plain
        if "TLS" in what:
            connection = stack.enter_context(context.wrap_socket(plain))
        if what in _REQUESTS:
            frame = request_frame(*_REQUESTS[what], 1)
            connection.sendall(len(frame).to_bytes(4, "big") + frame)
        elif what != "TLS":
            method = what.removesuffix(" over TLS")
            connection.sendall(f"{method} / HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        while connection.recv(1024):
            pass


_REQUESTS = {"ApiVersions": (18, 0), "Metadata": (3, 8)}


def _spoken(config: ClusterConfig, what: str, new_loop: Any) -> list[Any]:
    """The log of a cluster about a client of its first listener."""

    async def main() -> list[Any]:
        async with Cluster(config) as cluster:
            place = cluster.brokers[1].endpoint(config.all_listeners[0])
            with capture_logs() as logs:
                await asyncio.to_thread(_speak, (place.host, place.port), what)
                await asyncio.sleep(0)
            return [one for one in logs if one["log_level"] != "info"]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    ("protocol", "what", "event", "said"),
    [
        ("PLAINTEXT", "TLS", "bad_request", "looks like TLS on a plaintext listener"),
        ("SASL_PLAINTEXT", "TLS", "bad_request", "security.protocol=SASL_PLAINTEXT"),
        ("PLAINTEXT", "GET", "bad_request", "looks like HTTP on a listener of Kafka's protocol"),
        ("PLAINTEXT", "POST", "bad_request", "looks like HTTP"),
        ("SSL", "OPTIONS over TLS", "bad_request", "looks like HTTP"),
        ("SSL", "GET", "tls_handshake_failed", "looks like HTTP on a TLS listener"),
        ("SSL", "ApiVersions", "tls_handshake_failed", "looks like a plaintext client on a TLS"),
        ("SASL_SSL", "ApiVersions", "tls_handshake_failed", "looks like a plaintext client"),
        ("SASL_PLAINTEXT", "Metadata", "bad_request", "before authentication"),
    ],
)
def test_client_of_another_protocol_is_logged_in_one_line(
    serve_authorized: Guarded, protocol: str, what: str, event: str, said: str, new_loop: Any
) -> None:
    tls = Tls(serve_authorized.authority) if protocol.endswith("SSL") else None
    sasl: Any = ["PLAIN"] if protocol.startswith("SASL") else ()
    listener = Listener("THIS", tls=tls, sasl=sasl)
    users = {"ann": "secret"} if sasl else None
    config = ClusterConfig(brokers=1, users=users, listeners=[listener])
    [line] = _spoken(config, what, new_loop)
    assert line["event"] == event
    assert said in line["reason"]
    assert "THIS" in (line["reason"] if event == "bad_request" else line["listener"])


async def begin_handshake(
    host: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and be in the middle of a TLS handshake: the server has said hello."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(outgoing.read())
    assert await reader.read(1)
    return reader, writer


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_client_in_its_handshake_is_cut_on_stop(serve_authorized: Guarded, new_loop: Any) -> None:
    listener = Listener("THIS", tls=Tls(serve_authorized.authority))
    errors: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
        async with Cluster(ClusterConfig(brokers=1, listeners=[listener])) as cluster:
            place = cluster.brokers[1].endpoint(cluster.config.all_listeners[0])
            reader, writer = await begin_handshake(*place)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()  # up to the end
        writer.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert not errors


def test_authentication_on_a_listener_without_sasl_is_logged(
    serve_authorized: Guarded,
) -> None:
    settings = settings_for("confluent-kafka", serve_authorized, "SCRAM")
    with capture_logs() as logs:
        admin = AdminClient({"bootstrap.servers": serve_authorized.servers("PLAIN"), **settings})
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=2)
    line = next(one for one in logs if one["event"] == "sasl_mechanism_refused")
    assert (line["listener"], line["mechanism"]) == ("PLAIN", "SCRAM-SHA-256")
    assert "security.protocol=PLAINTEXT" in line["reason"]


@pytest.mark.parametrize("listener", ["TLS", "SCRAM", "SCRAM_TLS", "MUTUAL"])
@pytest.mark.parametrize("name", CLIENTS)
def test_clients_connect_by_each_listener(
    serve_authorized: Guarded, name: str, listener: str
) -> None:
    require_client(name)
    client = CLIENTS[name](serve_authorized.servers(listener))
    topic = "anns" if listener == "MUTUAL" else "orders"
    client.produce(
        topic, [b"by " + name.encode()], **settings_for(name, serve_authorized, listener)
    )


def _admin(serve_authorized: Guarded, listener: str, **settings: str) -> AdminClient:
    chosen = settings_for("confluent-kafka", serve_authorized, listener)
    servers = serve_authorized.servers(listener)
    return AdminClient({"bootstrap.servers": servers, **chosen, **settings})


@pytest.mark.parametrize("listener", ["PLAIN", "TLS", "SCRAM", "SCRAM_TLS", "MUTUAL"])
def test_client_gets_the_addresses_of_its_listener(
    serve_authorized: Guarded, listener: str
) -> None:
    admin = _admin(serve_authorized, listener)
    told = admin.list_topics("orders", timeout=_TIMEOUT_S).brokers.values()
    assert {broker.id for broker in told} == {0, 1}
    asked = set(serve_authorized.servers(listener).split(","))
    assert {f"{broker.host}:{broker.port}" for broker in told} == asked
    nodes = admin.describe_cluster(request_timeout=_TIMEOUT_S).result().nodes
    assert {f"{node.host}:{node.port}" for node in nodes} == asked


def test_certificate_subject_is_the_principal(serve_authorized: Guarded) -> None:
    """Of the topic "anns" all others are kept out."""
    client = CLIENTS["confluent-kafka"](serve_authorized.servers("TLS"))
    with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
        client.produce("anns", [b"x"], **settings_for("confluent-kafka", serve_authorized, "TLS"))


@pytest.mark.parametrize("who", ["ann", "stranger", "nobody"])
def test_mutual_tls_accepts_only_signed_certificates(serve_authorized: Guarded, who: str) -> None:
    context = ssl.create_default_context(cafile=str(serve_authorized.authority))
    if who != "nobody":
        context.load_cert_chain(serve_authorized.ann if who == "ann" else serve_authorized.stranger)
    host, port = serve_authorized.servers("MUTUAL").split(",")[0].split(":")
    asked = request_frame(18, 0, 1)
    came = b""
    with (
        suppress(OSError),
        socket.create_connection((host, int(port)), _TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        secured.sendall(len(asked).to_bytes(4, "big") + asked)
        came = secured.recv(4)
    assert (len(came) == 4) is (who == "ann")


def test_scram_users_are_added_and_removed_at_run_time(serve_authorized: Guarded) -> None:
    admin: Any = _admin(serve_authorized, "PLAIN")
    sha_256, sha_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
    added = UserScramCredentialUpsertion("eve", ScramCredentialInfo(sha_512, 5_000), b"new", b"s")
    for done in admin.alter_user_scram_credentials([added]).values():
        done.result(_TIMEOUT_S)
    described = admin.describe_user_scram_credentials(["eve"])["eve"].result(_TIMEOUT_S)
    [info] = described.scram_credential_infos
    assert (info.mechanism, info.iterations) == (sha_512, 5_000)
    everybody = admin.describe_user_scram_credentials().result(_TIMEOUT_S)
    assert set(everybody) == {"ann", "bob", "eve"}
    client = CLIENTS["confluent-kafka"](serve_authorized.servers("SCRAM_TLS"))
    settings = settings_for("confluent-kafka", serve_authorized, "SCRAM_TLS")
    client.produce("orders", [b"x"], **{**settings, "sasl.username": "eve", "sasl.password": "new"})
    gone = admin.alter_user_scram_credentials([UserScramCredentialDeletion("eve", sha_512)])
    gone["eve"].result(_TIMEOUT_S)
    refusals = {
        UserScramCredentialDeletion("eve", sha_512): "RESOURCE_NOT_FOUND",
        UserScramCredentialUpsertion(
            "eve", ScramCredentialInfo(sha_256, 4_095), b"x"
        ): "UNACCEPTABLE_CREDENTIAL",
        UserScramCredentialUpsertion(
            "eve", ScramCredentialInfo(sha_256, 16_385), b"x"
        ): "UNACCEPTABLE_CREDENTIAL",
    }
    for alteration, error in refusals.items():
        [refused] = admin.alter_user_scram_credentials([alteration]).values()
        with pytest.raises(Exception, match=error):
            refused.result(_TIMEOUT_S)
    with pytest.raises(Exception, match="RESOURCE_NOT_FOUND"):
        admin.describe_user_scram_credentials(["eve"])["eve"].result(_TIMEOUT_S)


@pytest.mark.parametrize("name", ["confluent-kafka", "aiokafka", "kcat"])
def test_a_wrong_password_is_refused_by_scram(serve_authorized: Guarded, name: str) -> None:
    require_client(name)
    settings = settings_for(name, serve_authorized, "SCRAM")
    key = "sasl.password" if "sasl.password" in settings else "sasl_plain_password"
    limits = {"confluent-kafka": "message.timeout.ms", "kcat": "message.timeout.ms"}
    limit = {limits[name]: 1_500} if name in limits else {}
    client = CLIENTS[name](serve_authorized.servers("SCRAM"))
    with pytest.raises(Exception, match=r"(?i)wrong|authentic|timed.out|Unable"):
        client.produce("orders", [b"x"], **{**settings, key: "wrong", **limit})


# ---- what can be wrong with them


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ([[("countryName", "DE")], [("commonName", "ann")]], "CN=ann,C=DE"),
        ([[("commonName", "a"), ("userId", "7")]], "CN=a+UID=7"),
        ([[("commonName", ' a,b="c" ')]], r"CN=\ a\,b\=\"c\"\ "),
        ([[("emailAddress", "a@b")]], "emailAddress=a@b"),
        ([], ""),
    ],
)
def test_a_subject_is_written_as_in_rfc_2253(subject: Any, name: str) -> None:
    assert certificate_subject({"subject": subject}) == name


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        (lambda folder: Tls(folder / "none.pem"), "none.pem: can't be used: .*No such file"),
        (lambda folder: Tls(folder / "both.pem", client_ca=folder / "x"), "client_ca .*x: can't"),
        (lambda folder: Tls(Path(__file__)), "test_listeners.py: can't be used"),
    ],
)
def test_invalid_certificate_files_are_named(
    serve_authorized: Guarded, tls: Any, said: str
) -> None:
    config = ClusterConfig(brokers=1, tls=tls(serve_authorized.authority.parent))
    with pytest.raises(ClusterError, match=said), ThreadedCluster(config):
        pass


def test_unknown_listener_is_named(serve_authorized: Guarded) -> None:
    with pytest.raises(ClusterError, match="no listener X; there are PLAIN, TLS, SCRAM"):
        serve_authorized.cluster.bootstrap_servers_of("X")


def test_brokers_tell_their_advertised_host() -> None:
    config = ClusterConfig(brokers=1, host="0.0.0.0", advertised_host="127.0.0.1")
    with ThreadedCluster(config) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        (told,) = admin.list_topics(timeout=_TIMEOUT_S).brokers.values()
        assert f"{told.host}:{told.port}" == cluster.bootstrap_servers
        assert told.host == "127.0.0.1"
