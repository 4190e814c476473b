"""Redis, a Redis Cluster, PostgreSQL and pgbouncer: started, paused, killed and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.databases.cdc.lasting_port import lasting_port
from tests.databases.cdc.postgres import Postgres, running_postgres

LIMIT_S = 30.0
"""For what takes a moment on a machine that does nothing else."""


def until(condition: Callable[[], object], what: str) -> None:
    """Return once a condition holds; what it raises counts as no."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        try:
            if condition():
                return
        except Exception:
            if time.monotonic() > end_s:
                raise
        if time.monotonic() > end_s:
            raise AssertionError(f"within {LIMIT_S:.0f} s: not {what}")
        time.sleep(0.02)


def program(name: str, package: str) -> str:
    """Return the path of a program; skip if there is none, but fail in CI."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if path is None:
        reason = f"{name} is missing: install the package {package}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


class Redis:
    """A redis-server on a port of its own, which keeps nothing."""

    def __init__(self, folder: Path, *options: str) -> None:
        pytest.importorskip("redis")
        self._program = program("redis-server", "redis-server")
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = lasting_port()

    def url(self) -> str:
        """The URL for clients."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, also after it was killed, and wait until it responds."""
        self._process = subprocess.Popen(
            [
                *(self._program, "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", str(self._folder), "--save", "", "--appendonly", "no"),
                *self._options,
            ],
            stdout=subprocess.DEVNULL,
        )
        until(self._responds, "redis-server has started")

    def _responds(self) -> bool:
        from redis.exceptions import AuthenticationError

        try:
            return self.call("PING") in (b"PONG", True)
        except AuthenticationError:
            return True

    def call(self, *command: object) -> Any:
        """Return the response to one command."""
        import redis

        with redis.Redis(port=self.port, socket_timeout=5) as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """SIGKILL, and wait until it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def cut_connections(self) -> None:
        """End the connections of all subscribers."""
        self.call("CLIENT", "KILL", "TYPE", "pubsub")

    def subscribers(self) -> int:
        """Return how many connections subscribe to channels."""
        found: bytes = self.call("CLIENT", "LIST", "TYPE", "pubsub")
        return len(found.splitlines())


@contextmanager
def running_redis(folder: Path, *options: str) -> Iterator[Redis]:
    """A server that runs in the block."""
    server = Redis(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class RedisCluster:
    """Three primaries, each with a third of the slots."""

    def __init__(self, folder: Path) -> None:
        self.nodes = []
        self._bus_ports = [lasting_port() for _ in range(3)]
        for number, bus_port in enumerate(self._bus_ports):
            (folder / str(number)).mkdir()
            self.nodes.append(
                Redis(
                    folder / str(number),
                    *("--cluster-enabled", "yes", "--cluster-port", str(bus_port)),
                    *("--cluster-node-timeout", "2000"),
                    *("--cluster-require-full-coverage", "no"),
                )
            )

    def url(self) -> str:
        """The URL of the first node, by which clients find the others."""
        return self.nodes[0].url()

    def start(self) -> None:
        """Start the nodes, and wait until each knows who has which slots."""
        for number, node in enumerate(self.nodes):
            node.start()
            first, last = number * 16384 // 3, (number + 1) * 16384 // 3 - 1
            node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node, bus_port in zip(self.nodes[1:], self._bus_ports[1:], strict=True):
            self.nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port, bus_port)
        until(lambda: all(self._is_ready(node) for node in self.nodes), "the cluster has formed")

    def _is_ready(self, node: Redis) -> bool:
        return len(node.call("CLUSTER", "SLOTS")) == 3 and _is_ok(node.call("CLUSTER", "INFO"))

    def node_of(self, channel: str) -> Redis:
        """The node that has the slot of a channel."""
        slot: int = self.nodes[0].call("CLUSTER", "KEYSLOT", channel)
        return self.nodes[slot * 3 // 16384]

    def kill(self) -> None:
        """SIGKILL for all nodes."""
        for node in self.nodes:
            node.kill()


def _is_ok(info: Any) -> bool:
    if isinstance(info, dict):
        return bool(info["cluster_state"] == "ok")
    return b"cluster_state:ok" in info


@contextmanager
def running_cluster(folder: Path) -> Iterator[RedisCluster]:
    """A cluster that runs in the block."""
    cluster = RedisCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


class PausablePostgres:
    """A PostgreSQL whose processes can be stopped, and what there is to ask it."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.folder = server._folder

    def url(self) -> str:
        """The URL for clients."""
        return self.server.url()

    def start(self) -> None:
        """Start it after it was killed."""
        self.server.restart()

    def kill(self) -> None:
        """SIGKILL for the server, and wait until all its processes have ended."""
        processes = self._processes()
        self.server.kill()
        until(lambda: not any(_is_running(one) for one in processes), "PostgreSQL has ended")

    def pause(self) -> None:
        """SIGSTOP for all its processes, so that none responds."""
        for process in self._processes():
            os.kill(process, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT for all of them."""
        for process in self._processes():
            os.kill(process, signal.SIGCONT)

    def _processes(self) -> list[int]:
        first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        found = [first]
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == first:
                found.append(int(status.parent.name))
        return found

    def call(self, statement: str, *arguments: object) -> list[Any]:
        """Return the rows of one statement."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), arguments)
            return cursor.fetchall() if cursor.description else []

    def connections(self) -> int:
        """Return how many connections relays have."""
        ((number,),) = self.call(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'purgatory %%'"
        )
        return int(number)

    def cut_connections(self) -> None:
        """End the connections of all relays."""
        self.call(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE 'purgatory %%'"
        )


def _is_running(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@contextmanager
def running_pausable_postgres() -> Iterator[PausablePostgres]:
    """A server that runs in the block."""
    # The server's user must get to it, and pytest's own folders are only for ours.
    folder = Path(tempfile.mkdtemp(prefix="purgatory-postgres-"))
    try:
        with running_postgres(folder) as server:
            yield PausablePostgres(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_pgbouncer(server: PausablePostgres, pool_mode: str) -> Iterator[str]:
    """A pgbouncer before a PostgreSQL in the block; yields its DSN."""
    path = program("pgbouncer", "pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="purgatory-pgbouncer-"))
    port = lasting_port()
    (folder / "pgbouncer.ini").write_text(
        "[databases]\n"
        f"postgres = host=127.0.0.1 port={server.server.port} user=postgres dbname=postgres\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {folder}/users\npool_mode = {pool_mode}\n"
    )
    (folder / "users").write_text('"postgres" ""\n')
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        user = pwd.getpwnam("postgres")
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(folder, user.pw_uid, user.pw_gid)
    process = subprocess.Popen(
        [path, str(folder / "pgbouncer.ini")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **as_user,
    )
    dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    try:
        until(lambda: _connects(dsn), "pgbouncer has started")
        yield dsn
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _connects(dsn: str) -> bool:
    with psycopg.connect(dsn, connect_timeout=5):
        return True
