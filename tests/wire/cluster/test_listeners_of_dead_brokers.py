"""A dead broker's ports: no other process gets them, and connections are refused. Addresses of
IPv6, which stand in brackets wherever a port follows."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from purgatory.cli.main import main
from purgatory.cluster import Cluster, ClusterConfig, ClusterError, ThreadedCluster, TopicSpec
from purgatory.settings.addresses import host_and_port, split_host_and_port
from tests.wire.cluster.conftest import CLIENTS, require_client


def _bind(place: tuple[str, int], reuse: int) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        other.bind(place)
        other.listen()


def test_port_of_a_dead_broker_stays_bound() -> None:
    """A client with the port that it connects to is connected to itself, and keeps it."""
    with ThreadedCluster(ClusterConfig(brokers=2)) as cluster:
        host, port_text = cluster.bootstrap_servers.split(",")[0].split(":")
        place = (host, int(port_text))
        for _ in range(3):
            cluster.fault.kill(1)
            with pytest.raises(OSError, match="in use"):
                _bind(place, reuse=0)
            with pytest.raises(OSError, match="in use"):
                socket.create_connection(place, source_address=place)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(place)
            cluster.fault.revive(1)
            socket.create_connection(place).close()
        cluster.fault.kill(1)
    _bind(place, reuse=1)


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_broker_can_be_killed_at_each_step_of_its_start(steps: int) -> None:
    async def main() -> None:
        async with Cluster(ClusterConfig(brokers=2)) as cluster:
            host, port = cluster.bootstrap_servers.split(",")[0].split(":")
            await cluster.kill(1)
            reviving = asyncio.create_task(cluster.revive(1))
            for _ in range(steps):
                await asyncio.sleep(0)
            await cluster.kill(1)
            await reviving
            assert not cluster.brokers[1].alive
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)))
            await cluster.revive(1)
            socket.create_connection((host, int(port))).close()

    asyncio.run(main())


def _taken_behind_a_free_one() -> socket.socket:
    """Listen on some port such that the port before it is free."""
    while True:
        taken = socket.socket()
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        try:
            _bind(("127.0.0.1", taken.getsockname()[1] - 1), reuse=1)
        except OSError:
            taken.close()  # another program on this machine has it
        else:
            return taken


def test_a_cluster_that_could_not_start_keeps_no_port() -> None:
    with _taken_behind_a_free_one() as taken:
        port = taken.getsockname()[1] - 1
        with pytest.raises(ClusterError, match=f"broker 2 can't listen on 127.0.0.1:{port + 1}"):
            ThreadedCluster(ClusterConfig(brokers=2, first_port=port)).start()
        _bind(("127.0.0.1", port), reuse=1)


# ---- IPv6


@pytest.fixture
def ipv6() -> None:
    """Skip the test where the machine has no such address; under CI it must have one."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"::1 can't be listened on: {error}")
        pytest.skip(f"no IPv6 on this machine: {error}")


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("127.0.0.1", "9092", "127.0.0.1:9092"),
        ("localhost", "9092", "localhost:9092"),
        ("::1", "9092", "[::1]:9092"),
        ("fe80::1%eth0", "0", "[fe80::1%eth0]:0"),
    ],
)
def test_address_is_parsed_as_it_is_printed(host: str, port: str, text: str) -> None:
    assert host_and_port(host, int(port)) == text
    assert host_and_port(f"[{host}]", int(port)) == text
    assert split_host_and_port(text) == (host, port)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("host", ("host", "7")),
        ("::1", ("::1", "7")),
        ("[::1]", ("::1", "7")),
        ("[::1]:", ("::1", "7")),
        ("2001:db8::1:9092", ("2001:db8::1:9092", "7")),
    ],
)
def test_address_without_a_port_has_the_default_port(text: str, parts: tuple[str, str]) -> None:
    assert split_host_and_port(text, "7") == parts


@pytest.mark.parametrize("client_name", CLIENTS)
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_clients_find_all_brokers_by_ipv6(ipv6: None, client_name: str, host: str) -> None:
    require_client(client_name)
    config = ClusterConfig(brokers=2, host=host, topics=[TopicSpec("t")])
    with ThreadedCluster(config) as cluster:
        servers = cluster.bootstrap_servers
        assert all(one.startswith("[::1]:") for one in servers.split(","))
        client = CLIENTS[client_name](servers)
        client.produce("t", [b"a", b"b"])
        assert [one.value for one in client.read("t", 0, 2)] == [b"a", b"b"]
        assert client.read_in_group("g", "t", 1) == [b"a"]


def test_a_dead_broker_keeps_its_port_of_ipv6(ipv6: None) -> None:
    with ThreadedCluster(ClusterConfig(brokers=2, host="::1")) as cluster:
        host, port = split_host_and_port(cluster.bootstrap_servers.split(",")[0])
        cluster.fault.kill(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        cluster.fault.revive(1)
        socket.create_connection((host, int(port))).close()


def test_control_is_reached_by_ipv6(
    ipv6: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadedCluster(ClusterConfig(brokers=2)) as cluster:
        url = cluster.serve_control(host="[::1]").rstrip("/")
        port = int(url.rpartition(":")[2])
        assert url == f"http://[::1]:{port}"
        monkeypatch.delenv("PURGATORY_CONTROL", raising=False)
        for control in (url, f"[::1]:{port}"):
            for command in (["stall-follower", "2"], ["list"]):
                assert main(["fault", "--control", control, *command]) == 0
            assert "stall_follower" in capsys.readouterr().out


def test_unusable_ipv6_address_is_named_with_brackets(ipv6: None) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=rf"can't listen on \[::1\]:{port}: "):
            ThreadedCluster(ClusterConfig(brokers=1, host="::1", first_port=port)).start()


def test_a_name_with_addresses_of_both_families_has_one_port(
    ipv6: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def both(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host != "both.example":
            return look_up(host, port, *arguments, **options)
        kind = (socket.SOCK_STREAM, 6, "")
        return [
            (socket.AF_INET6, *kind, ("::1", port, 0, 0)),
            (socket.AF_INET, *kind, ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with ThreadedCluster(ClusterConfig(brokers=2, host="both.example")) as cluster:
        for one in cluster.bootstrap_servers.split(","):
            port = int(one.removeprefix("both.example:"))
            for address in ("::1", "127.0.0.1"):
                socket.create_connection((address, port)).close()
