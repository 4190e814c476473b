"""A dead broker's ports: nobody else gets them, and who connects there is refused."""

from __future__ import annotations

import asyncio
import socket

import pytest

from purgatory.cluster import Cluster, ClusterConfig, ClusterError, ThreadedCluster


def _bind(place: tuple[str, int], reuse: int) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        other.bind(place)
        other.listen()


def test_nobody_gets_the_port_of_a_dead_broker() -> None:
    """Whoever is given the port that he connects to is connected to himself, and keeps it."""
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
    """Listen on some port such that nobody has the port before it."""
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
