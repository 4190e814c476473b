"""A real Kafka on this machine: its jars by Maven, and brokers that are controllers, too."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from purgatory.kafka.errors import ClusterError
from purgatory.real_kafka import jars
from purgatory.real_kafka.jars import KafkaFiles
from tests.recorded.replay import (
    BROKERS,
    MIN_SESSION_TIMEOUT_MS,
    OFFSETS_PARTITIONS,
    SUPER_USER,
    TRANSACTIONS_PARTITIONS,
)

HOST = "127.0.0.1"
DEFAULT_PORT = 26_000
_BUILD = Path(__file__).parents[2] / "build" / "real-kafka"
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
CONTROLLERS = 100
"""The distance of the controllers' ports from the brokers'."""

_More = Callable[[int], Mapping[str, object]]

_STARTS_S, _STOPS_S = 300.0, 20.0


class RealKafkaError(Exception):
    """Kafka could not be fetched or started."""


def fetch_jars(version: str) -> Path:
    """Return the folder of a version's jars; Maven fetches them, once.

    Raises:
        RealKafkaError: there is no Maven, or it failed.
    """
    folder = _BUILD / version
    try:
        return jars.fetch_jars(version, folder)
    except ClusterError as error:
        raise RealKafkaError(str(error)) from error


def clients_jar(version: str) -> Path:
    """Return the jar of the clients, which has the schemas of all messages."""
    return fetch_jars(version) / f"kafka-clients-{version}.jar"


class RealKafka:
    """Running brokers, whose ids count from 1.

    Args:
        libs: the folder of Kafka's jars.
        folder: that of the settings, logs and data.
        ports: the brokers' ports.
        more: settings of a broker, by its place, in place of the usual ones.
    """

    def __init__(self, libs: Path, folder: Path, ports: Sequence[int], more: _More) -> None:
        self.port = ports[0]
        self._libs = libs
        self._folder = folder
        self._ports = ports
        self._more = more
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> Sequence[int]:
        """The processes of the brokers that run."""
        return [process.pid for process in self._running.values()]

    def start(self) -> None:
        """Format the folders and start all brokers."""
        for number in range(len(self._ports)):
            settings = self._file(number + 1)
            values = {**_settings(self._folder, self._ports, number), **self._more(number)}
            settings.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
            _format(self._libs, settings)
        for number in range(len(self._ports)):
            self._run(number + 1)
        for number in range(len(self._ports)):
            self._await(number + 1)

    def _file(self, broker_id: int) -> Path:
        return self._folder / f"{broker_id}.properties"

    def _run(self, broker_id: int) -> None:
        settings = self._file(broker_id)
        with settings.with_suffix(".log").open("ab") as log:
            self._running[broker_id] = subprocess.Popen(
                _java(self._libs, "kafka.Kafka", str(settings)),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _await(self, broker_id: int) -> None:
        port = self._ports[broker_id - 1]
        _await_port(self._running[broker_id], port, self._folder)

    async def kill(self, broker_id: int) -> None:
        """Kill a broker by a signal that it can't handle."""
        process = self._running.pop(broker_id)
        process.kill()
        process.wait()

    async def revive(self, broker_id: int) -> None:
        """Start a broker again, and wait until it listens."""
        self._run(broker_id)
        await asyncio.to_thread(self._await, broker_id)

    def stop(self) -> None:
        """Stop all brokers."""
        _stop(list(self._running.values()))


@contextmanager
def real_kafka(
    version: str,
    first_port: int = DEFAULT_PORT,
    brokers: int = BROKERS,
    more: _More = lambda place: {},
) -> Iterator[RealKafka]:
    """Run brokers; the first has the first port, the others the ports after it.

    A broker's place counts from 0; ``more`` gives settings in place of the usual ones.

    Raises:
        RealKafkaError: a port is taken, or a broker does not start.
    """
    libs = fetch_jars(version)
    ports = [first_port + number for number in range(brokers)]
    for port in [*ports, *(port + CONTROLLERS for port in ports)]:
        if _listens(port):
            raise RealKafkaError(f"port {port} is taken: make record PORT=...")
    folder = Path(tempfile.mkdtemp(prefix="real-kafka-"))
    cluster = RealKafka(libs, folder, ports, more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _settings(folder: Path, ports: Sequence[int], number: int) -> Mapping[str, object]:
    def voter(place: int, port: int) -> str:
        return f"{place + 1}@{HOST}:{port + CONTROLLERS}"

    client = f"PLAINTEXT://{HOST}:{ports[number]}"
    replicas = min(len(ports), 3)
    in_sync = 2 if replicas > 1 else 1
    return {
        "process.roles": "broker,controller",
        "node.id": number + 1,
        "controller.quorum.voters": ",".join(voter(*place) for place in enumerate(ports)),
        "listeners": f"{client},CONTROLLER://{HOST}:{ports[number] + CONTROLLERS}",
        "advertised.listeners": client,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": folder / f"data{number + 1}",
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
        "transaction.state.log.num.partitions": TRANSACTIONS_PARTITIONS,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": MIN_SESSION_TIMEOUT_MS,
        "authorizer.class.name": _AUTHORIZER,
        "allow.everyone.if.no.acl.found": "true",
        "super.users": SUPER_USER,
    }


def _java(folder: Path, *arguments: str) -> Sequence[str]:
    return KafkaFiles(version="", jars=folder, java=Path("java")).command(*arguments)


def _format(libs: Path, settings: Path) -> None:
    tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings)]
    done = subprocess.run(_java(libs, *tool), check=False, capture_output=True, text=True)
    if done.returncode:
        raise RealKafkaError(f"the folder was not formatted:\n{done.stdout}{done.stderr}")


def _await_port(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    ends_s = time.monotonic() + _STARTS_S
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > ends_s:
            logs = "".join(log.read_text()[-3_000:] for log in sorted(folder.glob("*.log")))
            raise RealKafkaError(f"the broker of port {port} did not start:\n{logs}")
        time.sleep(0.1)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), 1):
        return True
    return False


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    ends_s = time.monotonic() + _STOPS_S
    for process in processes:
        try:
            process.wait(max(ends_s - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
