"""A service that is forked from the process of its cluster keeps none of its sockets."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from purgatory.cluster import ClusterConfig, ClusterError, ThreadedCluster, TopicSpec
from purgatory.proxy import ProxyConfig, ThreadedProxy

pytestmark = pytest.mark.filterwarnings(
    # Python says so of each fork beside a thread, which is what is tested.
    "ignore:.*multi-threaded, use of fork:DeprecationWarning"
)
_FORK = multiprocessing.get_context("fork")
_WAIT_S = 30.0


@contextmanager
def _service(work: Callable[[Any], object] | None = None) -> Iterator[Any]:
    """A forked process; yields what it sends."""
    here, there = _FORK.Pipe()

    def serve() -> None:
        if work is not None:
            there.send(work(None))
        there.recv()  # until it is killed

    process = _FORK.Process(target=serve, daemon=True)
    process.start()
    try:
        yield here
    finally:
        process.kill()
        process.join()
        here.close()
        there.close()


def _endpoint(servers: str) -> tuple[str, int]:
    host, _, port = servers.partition(",")[0].rpartition(":")
    return host, int(port)


def _connected(endpoint: tuple[str, int]) -> socket.socket:
    """Return a connection that the other side has accepted."""
    connection = socket.create_connection(endpoint, _WAIT_S)
    request = b"\0\x12\0\0\0\0\0\1\xff\xff"  # ApiVersions
    connection.sendall(len(request).to_bytes(4, "big") + request)
    assert connection.recv(4)
    return connection


def _is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def _cluster() -> ThreadedCluster:
    return ThreadedCluster(ClusterConfig(brokers=2, topics=[TopicSpec("orders")]), recorded=True)


def test_killed_broker_is_gone_beside_a_forked_service() -> None:
    with _cluster() as cluster:
        endpoint = _endpoint(cluster.bootstrap_servers)
        with _connected(endpoint) as connection, _service():
            with cluster.fault.kill(1):
                assert _is_closed(connection)
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(endpoint, _WAIT_S)
            end_s = time.monotonic() + _WAIT_S
            while not cluster.state()["brokers"][0]["alive"]:
                assert time.monotonic() < end_s
                time.sleep(0.01)
            _connected(endpoint).close()


def test_cut_connections_are_cut_beside_a_forked_service() -> None:
    with (
        _cluster() as cluster,
        _connected(_endpoint(cluster.bootstrap_servers)) as connection,
        _service(),
    ):
        assert cluster.fault.cut_connections() == 1
        assert _is_closed(connection)


def test_stopped_cluster_is_gone_beside_a_forked_service() -> None:
    cluster = _cluster()
    cluster.start()
    endpoint = _endpoint(cluster.bootstrap_servers)
    page = urlsplit(cluster.serve_control())
    assert page.hostname and page.port
    control = socket.create_connection((page.hostname, page.port), _WAIT_S)
    control.sendall(b"GET /state HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert control.recv(4) == b"HTTP"
    with control, _connected(endpoint) as connection, _service():
        cluster.stop()
        assert _is_closed(connection)
        assert _is_closed(control)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((page.hostname, page.port), _WAIT_S)


def test_stopped_proxy_is_gone_beside_a_forked_service() -> None:
    with _cluster() as cluster:
        proxy = ThreadedProxy(ProxyConfig(to=cluster.bootstrap_servers.split(",")))
        proxy.start()
        with _connected(_endpoint(proxy.bootstrap_servers)) as connection, _service():
            proxy.stop()
            assert _is_closed(connection)
            end_s = time.monotonic() + _WAIT_S
            while sum(broker["connections"] for broker in cluster.state()["brokers"]):
                assert time.monotonic() < end_s, "the proxy's own connections are open"
                time.sleep(0.01)


def test_forked_service_is_refused_calls_of_the_cluster() -> None:
    with _cluster() as cluster:
        calls: list[Callable[[], object]] = [
            cluster.state,
            cluster.fault.end_all,
            cluster.fault.cut_connections,
            lambda: cluster.fault.kill(1),
            lambda: cluster.create_topic("more"),
            cluster.serve_control,
            cluster.audit,
        ]

        def work(_: object) -> list[str]:
            refusals = []
            for call in calls:
                try:
                    refusals.append(repr(call()))
                except ClusterError as error:
                    refusals.append(str(error))
            cluster.stop()
            return [*refusals, cluster.bootstrap_servers]

        with _service(work) as answer:
            assert answer.poll(_WAIT_S), "a call hangs"
            *refusals, servers = answer.recv()
        assert servers == cluster.bootstrap_servers
        assert len(refusals) == len(calls)
        assert set(refusals) == {
            f"the cluster runs in process {os.getpid()}, from which this one was forked: "
            "call it there"
        }
        assert len(cluster.state()["brokers"]) == 2


def test_forked_service_starts_a_cluster_of_its_own() -> None:
    prepared = _cluster()
    with _cluster():

        def work(_: object) -> int:
            with prepared as own:
                _connected(_endpoint(own.bootstrap_servers)).close()
                return len(own.state()["brokers"])

        with _service(work) as answer:
            assert answer.poll(_WAIT_S), "it hangs"
            assert answer.recv() == 2


def test_paused_connection_is_closed_in_a_forked_service() -> None:
    """A connection from which the broker doesn't read is in no selector."""
    with _cluster() as cluster:
        endpoint = _endpoint(cluster.bootstrap_servers)
        with _connected(endpoint) as connection:

            def pause() -> None:
                for broker in cluster.running.brokers.values():
                    for open_one in broker._connections:
                        transport: Any = open_one._transport
                        transport.pause_reading()

            cluster.call(pause)
            with _service():
                cluster.fault.cut_connections()
                assert _is_closed(connection)
