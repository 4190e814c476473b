"""Relays whose server is killed, paused, cut off, not there yet, or set up wrongly."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from purgatory.shared import PostgresRelay, RedisRelay, Relay, RelayError, SharedPurgatory
from purgatory.shared.unix_relay import UnixRelay
from tests.databases.shared.servers import (
    PausablePostgres,
    Redis,
    RedisCluster,
    running_cluster,
    running_pausable_postgres,
    running_pgbouncer,
    running_redis,
)
from tests.databases.shared.store import HOUR_S, Store, eventually, in_time, on_loop

_NUMBERS = count(1)
_HEARTBEAT_S = 0.4
_MARGIN_S = 2.0
"""For a machine that does something else; less than what a client's own timeouts would take."""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PausablePostgres]:
    """One server for all tests of this module; each leaves it running."""
    with running_pausable_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """One server for all tests of this module; each leaves it running."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """One cluster for all tests of this module; each leaves it running."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


Server = PausablePostgres | Redis


class Network:
    """Processes that hear each other by one server, which can be made to fail."""

    def __init__(self, server: Server, make: Callable[[], Relay]) -> None:
        self.server = server
        self.make = make


@pytest.fixture(params=["postgres", "redis", pytest.param("cluster", marks=pytest.mark.exhaustive)])
def network(request: pytest.FixtureRequest) -> Network:
    """Each kind; of a cluster, the node that has all channels of the test fails."""
    name = f"{{test {next(_NUMBERS)}}}"
    server: Any = request.getfixturevalue(request.param)
    if request.param == "postgres":
        return Network(server, lambda: PostgresRelay(server.url(), name, _HEARTBEAT_S))
    if request.param == "redis":
        return Network(server, lambda: RedisRelay(server.url(), name, _HEARTBEAT_S))
    return Network(
        server.node_of(name), lambda: RedisRelay(server.url(), name, _HEARTBEAT_S, cluster=True)
    )


class WatchedStore(Store):
    """Records for each read in which session of a relay it was, and in which state."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self.relay = relay
        self.records: list[tuple[int, str, list[str]]] = []

    def read(self, keys: list[str]) -> dict[str, int]:
        self.records.append((self.relay._sessions, self.relay.state.name, keys))
        return super().read(keys)

    def read_while_deaf(self) -> set[str]:
        """The keys that were read in the newest session before its relay was live."""
        newest = self.relay._sessions
        return {
            key
            for session, state, keys in self.records
            if (session, state) == (newest, "deaf")
            for key in keys
        }


@contextmanager
def failing(server: Server, fault: str) -> Iterator[None]:
    """In the block, a server is down, or does not respond."""
    getattr(server, fault)()
    try:
        yield
    finally:
        (server.start if fault == "kill" else server.resume)()


@pytest.mark.parametrize("fault", ["kill", "pause"])
@on_loop
async def test_relay_is_deaf_while_its_server_is_down(network: Network, fault: str) -> None:
    relay, other_relay = network.make(), network.make()
    store = WatchedStore(relay)
    keys = {f"k{number}" for number in range(10)}
    async with (
        SharedPurgatory("Fetch", relay, store.read, HOUR_S) as patient,
        SharedPurgatory("Fetch", relay, store.read, 0.1, broker_id=1) as resyncing,
        SharedPurgatory("Fetch", other_relay, Store().read, HOUR_S, broker_id=2) as other,
    ):
        waits = {key: asyncio.create_task(patient.wait_for_threshold(key, 1, 100)) for key in keys}
        resynced = asyncio.create_task(resyncing.wait_for_threshold("x", 1, 100))
        await eventually(lambda: store.has_read("x", *keys), "subscribed")
        await eventually(lambda: other_relay.state.name == "live", "live")
        before = relay.counts
        began_s = time.monotonic()
        with failing(network.server, fault):
            await eventually(lambda: relay.state.name == "deaf", "deaf")
            assert time.monotonic() - began_s < 2 * _HEARTBEAT_S + _MARGIN_S
            assert relay.state.error is not None
            await eventually(lambda: other_relay.state.name == "deaf", "deaf")

            store.values["x"] = 5
            assert await in_time(resynced) == 5
            assert relay.state.name == "deaf"

            lost = other_relay.counts.lost
            await other.advance("k1", 1)  # to nobody, and the store does not have it
            await eventually(lambda: other_relay.counts.lost == lost + 1, "lost")
            store.values["k2"] = 7
            deaf_since = relay.state.since
        again = asyncio.create_task(resyncing.wait_for_threshold("k3", 1, 100))
        assert await in_time(waits["k2"]) == 7  # by the read after the return
        await eventually(lambda: relay.state.name == "live", "live")
        live_since = relay.state.since
        assert store.read_while_deaf() >= keys

        await eventually(lambda: other_relay.state.name == "live", "live")
        assert not waits["k1"].done()
        await other.advance("k3", 9)
        assert await in_time(asyncio.gather(waits["k3"], again)) == [9, 9]
        assert not waits["k4"].done()
        after = relay.counts
        assert after.reconnects == 1
        assert after.deaf_s - before.deaf_s == pytest.approx(live_since - deaf_since, abs=0.01)
        assert after.received > before.received
        assert after.lost == 0
        patient._check()
        resyncing._check()
        for wait in waits.values():
            wait.cancel()
        await asyncio.gather(*waits.values(), return_exceptions=True)


@on_loop
async def test_a_relay_whose_connection_is_cut_reads_all_before_it_is_live(
    network: Network,
) -> None:
    relay, other_relay = network.make(), network.make()
    store = WatchedStore(relay)
    keys = {f"k{number}" for number in range(10)}
    async with (
        SharedPurgatory("Fetch", relay, store.read, HOUR_S) as one,
        SharedPurgatory("Fetch", other_relay, Store().read, HOUR_S, broker_id=1) as other,
    ):
        waits = {key: asyncio.create_task(one.wait_for_threshold(key, 1, 100)) for key in keys}
        await eventually(lambda: store.has_read(*keys), "subscribed")
        await eventually(lambda: other_relay.state.name == "live", "live")
        store.values["k1"] = 3
        await asyncio.to_thread(network.server.cut_connections)
        assert await in_time(waits["k1"]) == 3
        for each in (relay, other_relay):
            await eventually(
                lambda each=each: each.counts.reconnects == 1 and each.state.name == "live",  # type: ignore[misc]
                "live again",
            )
        assert store.read_while_deaf() == keys
        await other.advance("k2", 4)
        assert await in_time(waits["k2"]) == 4
        assert not waits["k3"].done()
        assert relay.counts.reconnects == 1
        for wait in waits.values():
            wait.cancel()
        await asyncio.gather(*waits.values(), return_exceptions=True)


@on_loop
async def test_a_failing_store_keeps_a_relay_deaf_until_all_was_read(redis: Redis) -> None:
    relay = RedisRelay(redis.url(), f"test {next(_NUMBERS)}:", _HEARTBEAT_S)
    store, is_failing = Store(), False

    def read(keys: list[str]) -> dict[str, int]:
        if is_failing:
            raise OSError("the store is down")
        return store.read(keys)

    async with SharedPurgatory("Fetch", relay, read, HOUR_S) as one:
        wait = asyncio.create_task(one.wait_for_threshold("k", 1, 100))
        await eventually(lambda: store.has_read("k"), "subscribed")
        is_failing = True
        await asyncio.to_thread(redis.cut_connections)
        await eventually(lambda: one.read_failures >= 3, "read in vain")
        assert relay.state.name == "deaf"
        assert relay.counts.reconnects == 1
        store.values["k"] = 2
        is_failing = False
        assert await in_time(wait) == 2
        await eventually(lambda: relay.state.name == "live", "live")
        assert relay.counts.reconnects == 1


# At the start.


@on_loop
async def test_a_postgres_that_starts_later(postgres: PausablePostgres) -> None:
    store = Store()
    relay = PostgresRelay(postgres.url(), f"channel {next(_NUMBERS)}", _HEARTBEAT_S)
    await asyncio.to_thread(postgres.kill)
    try:
        async with asyncio.timeout(10):
            one = await SharedPurgatory("Fetch", relay, store.read, 0.1).__aenter__()
        assert relay.state.name == "deaf"
    finally:
        await asyncio.to_thread(postgres.start)
    await _works_once_the_server_is_there(one, store)


@on_loop
async def test_a_redis_that_starts_later(tmp_path: Path) -> None:
    store, server = Store(), Redis(tmp_path)
    relay = RedisRelay(server.url(), heartbeat=_HEARTBEAT_S)
    async with asyncio.timeout(10):
        one = await SharedPurgatory("Fetch", relay, store.read, 0.1).__aenter__()
    assert relay.state.name == "deaf"
    try:
        await asyncio.to_thread(server.start)
        await _works_once_the_server_is_there(one, store)
    finally:
        server.kill()


async def _works_once_the_server_is_there(one: SharedPurgatory, store: Store) -> None:
    await eventually(lambda: one.relay.state.name == "live", "live")
    assert one.relay.counts.reconnects == 0
    assert one.relay.counts.deaf_s > 0
    store.values["k"] = 1
    assert await in_time(one.wait_for_threshold("k", 1)) == 1
    await one.aclose()


@pytest.mark.parametrize(
    "kind", ["postgres", "redis", pytest.param("cluster", marks=pytest.mark.exhaustive)]
)
@on_loop
async def test_a_server_that_never_responds_keeps_no_process_from_starting(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        relay: Relay
        if kind == "postgres":
            relay = PostgresRelay(f"postgresql://postgres@127.0.0.1:{port}/x", "c", _HEARTBEAT_S)
        else:
            url = f"redis://127.0.0.1:{port}"
            relay = RedisRelay(url, "c", _HEARTBEAT_S, cluster=kind == "cluster")
        store = Store(k=5)
        began_s = time.monotonic()
        async with SharedPurgatory("Fetch", relay, store.read, 0.1) as one:
            assert time.monotonic() - began_s < 2 * _HEARTBEAT_S + _MARGIN_S
            assert relay.state.name == "deaf"
            assert await in_time(one.wait_for_threshold("k", 5)) == 5
            began_s = time.monotonic()
        assert time.monotonic() - began_s < _MARGIN_S


@on_loop
async def test_closing_does_not_wait_for_a_server_that_does_not_respond(network: Network) -> None:
    store = Store()
    one = await SharedPurgatory("Fetch", network.make(), store.read, HOUR_S).__aenter__()
    wait = asyncio.create_task(one.wait_for_threshold("k", 1))
    await eventually(lambda: store.has_read("k"), "subscribed")
    wait.cancel()
    with failing(network.server, "pause"):
        await one.advance("k", 1)
        began_s = time.monotonic()
        await one.aclose()
        assert time.monotonic() - began_s < 2 * _HEARTBEAT_S + _MARGIN_S
    gc.collect()  # what was not closed warns


async def _refusal(relay: Relay) -> str:
    """Return the one line of what entering a purgatory raises; nothing is left of it."""
    one = SharedPurgatory("Fetch", relay, Store().read)
    with pytest.raises(RelayError) as caught:
        async with asyncio.timeout(30):
            await one.__aenter__()
    await one.aclose()
    text = str(caught.value)
    assert "\n" not in text
    return text


@on_loop
async def test_errors_that_postgres_raises_end_the_relay(postgres: PausablePostgres) -> None:
    rules = postgres.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    address = f"127.0.0.1:{postgres.server.port}"
    rules.write_text(f"host all secret 127.0.0.1/32 scram-sha-256\n{before}")
    try:
        postgres.call("SELECT pg_reload_conf()")
        postgres.call("CREATE ROLE secret LOGIN PASSWORD 'right'")
        wrong = PostgresRelay(f"postgresql://secret:wrong@{address}/postgres")
        assert await _refusal(wrong) == (
            'PostgreSQL refuses the relay: password authentication failed for user "secret"; give '
            "PostgresRelay the DSN of a user and a database that are there, with the password"
        )
        none = PostgresRelay(f"postgresql://secret@{address}/postgres")
        assert "no password supplied; give PostgresRelay the DSN" in await _refusal(none)
        right = PostgresRelay(f"postgresql://secret:right@{address}/postgres")
        async with SharedPurgatory("Fetch", right, Store().read):
            assert right.state.name == "live"
    finally:
        rules.write_text(before)
        postgres.call("SELECT pg_reload_conf()")
    missing = PostgresRelay(f"postgresql://postgres@{address}/missing")
    assert 'database "missing" does not exist; give' in await _refusal(missing)
    nobody = PostgresRelay(f"postgresql://nobody@{address}/postgres")
    assert 'role "nobody" does not exist; give' in await _refusal(nobody)
    assert postgres.connections() == 0


@on_loop
async def test_a_pooler_of_transactions_is_refused(postgres: PausablePostgres) -> None:
    with running_pgbouncer(postgres, "transaction") as dsn:
        text = await _refusal(PostgresRelay(dsn))
        assert text.startswith("this DSN is a pooler's, and LISTEN does not work through one")
        assert "give PostgresRelay the server's own address, or session_pooling=True" in text
        missing = dsn.replace("/postgres", "/missing").replace("//missing", "//postgres")
        assert "no such database: missing; give" in await _refusal(PostgresRelay(missing))


@on_loop
async def test_a_pooler_of_sessions_works_if_it_is_declared(postgres: PausablePostgres) -> None:
    store, channel = Store(), f"channel {next(_NUMBERS)}"
    with running_pgbouncer(postgres, "session") as dsn:
        assert "session_pooling=True" in await _refusal(PostgresRelay(dsn))
        pooled = PostgresRelay(dsn, channel, session_pooling=True)
        direct = PostgresRelay(postgres.url(), channel)
        async with (
            SharedPurgatory("Fetch", pooled, store.read, HOUR_S) as one,
            SharedPurgatory("Fetch", direct, store.read, HOUR_S, broker_id=1) as other,
        ):
            wait = asyncio.create_task(one.wait_for_threshold("k", 1, 60))
            back = asyncio.create_task(other.wait_for_threshold("back", 1, 60))
            await eventually(lambda: store.has_read("k", "back"), "subscribed")
            await other.advance("k", 1)
            assert await in_time(wait) == 1
            await one.advance("back", 2)
            assert await in_time(back) == 2


@on_loop
async def test_errors_that_redis_raises_end_the_relay(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(
        "user default on nopass ~* &* +@all\n"
        "user locked on >right ~* &* +@all\n"
        "user deaf on >right ~* resetchannels +@all\n"
    )
    with running_redis(tmp_path, "--aclfile", str(tmp_path / "users")) as server:
        address = f"127.0.0.1:{server.port}"
        text = await _refusal(RedisRelay(f"redis://locked:wrong@{address}"))
        assert text.startswith("Redis refuses the relay: ")
        assert "password" in text
        text = await _refusal(RedisRelay(f"redis://deaf:right@{address}"))
        assert "No permissions" in text or "no permissions" in text
        relay = RedisRelay(f"redis://locked:right@{address}")
        async with SharedPurgatory("Fetch", relay, Store().read):
            assert relay.state.name == "live"
        text = await _refusal(RedisRelay(f"redis://{address}", cluster=True))
        assert text == (
            "there is no Redis Cluster at this URL: use RedisRelay without cluster=True"
        )


# A number that is part of a transaction.


@on_loop
async def test_a_transaction_notifies_when_it_commits(postgres: PausablePostgres) -> None:
    store, channel = Store(), f"channel {next(_NUMBERS)}"
    relays = [PostgresRelay(postgres.url(), channel) for _ in range(2)]
    async with (
        SharedPurgatory("Fetch", relays[0], store.read, HOUR_S) as one,
        SharedPurgatory("Fetch", relays[1], store.read, HOUR_S, broker_id=1) as other,
        await psycopg.AsyncConnection.connect(postgres.url()) as connection,
    ):
        key = "é" * 250
        wait = asyncio.create_task(one.wait_for_threshold(key, 1, 60))
        later = asyncio.create_task(one.wait_for_threshold("later", 2, 60))
        await eventually(lambda: store.has_read(key, "later"), "subscribed")

        async def all_has_arrived(number: int) -> None:
            await other.advance("later", number)
            await eventually(lambda: one.local.core.value("later") == number, "arrived")

        await other.relay.notify_in(connection, "Fetch", key, 5)  # type: ignore[attr-defined]
        await connection.rollback()
        await all_has_arrived(0)
        assert not wait.done()
        await other.relay.notify_in(connection, "Fetch", key, 7)  # type: ignore[attr-defined]
        await all_has_arrived(1)
        assert not wait.done()
        await connection.commit()
        assert await in_time(wait) == 7
        await connection.execute(
            "SELECT pg_notify(%s, %s)", relays[1].notify_args("Fetch", "later", 8)
        )
        await connection.commit()
        assert await in_time(later) == 8


# Other processes on Unix sockets.

_WORKER = """
import asyncio, sys
from purgatory.shared import SharedPurgatory, UnixRelay

async def main():
    relay = UnixRelay(sys.argv[1])
    async with SharedPurgatory("Fetch", relay, lambda keys: {}, 3600) as one:
        waits = [asyncio.create_task(one.wait_for_threshold(f"k{n}", 299)) for n in range(20)]
        while one._unread or not one._waits:
            await asyncio.sleep(0.01)
        print("ready", flush=True)
        await asyncio.gather(*waits)
        print("done", relay.counts.received, flush=True)

asyncio.run(main())
"""


@contextmanager
def _worker(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER, os.fspath(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@on_loop
async def test_the_socket_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    relay = UnixRelay(folder)
    async with SharedPurgatory("Fetch", relay, Store().read, HOUR_S) as one:
        own = set(os.listdir(folder))
        with _worker(folder) as process:
            assert len(os.listdir(folder)) == 2
            process.kill()
            process.wait()
        assert len(os.listdir(folder)) == 2
        await one.advance("k", 1)
        await eventually(lambda: set(os.listdir(folder)) == own, "removed")
        assert relay.counts.lost == 0
        await one.advance("k", 2)
        await eventually(lambda: relay.counts.sent == 2, "sent")
    assert os.listdir(folder) == []


@on_loop
async def test_stopped_process_blocks_no_other_and_gets_the_maxima(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "s"
    store = Store()
    keys = [f"k{number}" for number in range(20)]
    with _worker(folder) as process:
        async with (
            SharedPurgatory("Fetch", UnixRelay(folder), store.read, HOUR_S) as sender,
            SharedPurgatory("Fetch", UnixRelay(folder), store.read, HOUR_S, broker_id=1) as one,
        ):
            waits = [asyncio.create_task(one.wait_for_threshold(key, 299)) for key in keys]
            await eventually(lambda: store.has_read(*keys), "subscribed")
            os.kill(process.pid, signal.SIGSTOP)
            for value in range(300):
                for key in keys:
                    async with asyncio.timeout(5):
                        await sender.advance(key, value)
                await asyncio.sleep(0)
            assert await in_time(asyncio.gather(*waits)) == [299] * 20
            sent = sender.relay.counts.sent
            sent_keys = {f"Fetch:{key}" for key in keys}
            others = sender.relay._others.values()  # type: ignore[attr-defined]
            assert [other.unsent.keys() for other in others if other.is_sending] == [sent_keys]
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout is not None
            line = await in_time(asyncio.to_thread(process.stdout.readline))
            what, received = line.split()
            assert what == "done"
            assert 20 <= int(received) < sent  # what waited for the process became fewer messages


@pytest.mark.exhaustive
@pytest.mark.parametrize("told_first", ["old", "new"])
@on_loop
async def test_a_slot_that_moves_takes_its_keys_along(tmp_path: Path, told_first: str) -> None:
    """The old node unsubscribes who listens, and refuses who sends; both find the new one."""
    with running_cluster(tmp_path) as cluster:
        channel = "{here}@0:Fetch:k"
        relay = RedisRelay(cluster.url(), "{here}", _HEARTBEAT_S, cluster=True)
        other_relay = RedisRelay(cluster.url(), "{here}", _HEARTBEAT_S, cluster=True)
        store = Store()
        async with (
            SharedPurgatory("Fetch", relay, store.read, HOUR_S) as here,
            SharedPurgatory("Fetch", other_relay, Store().read, HOUR_S, broker_id=1) as there,
        ):
            wait = asyncio.create_task(here.wait_for_threshold("k", 2))
            kept = asyncio.create_task(here.wait_for_threshold("k", 2**40))
            await eventually(lambda: store.has_read("k"), "subscribed")
            await eventually(lambda: other_relay.state.name == "live", "live")
            await there.advance("k", 1)
            await eventually(lambda: relay.counts.received == 1, "heard")
            old = cluster.node_of(channel)
            new = next(node for node in cluster.nodes if node is not old)
            identity = new.call("CLUSTER", "MYID").decode()
            slot = new.call("CLUSTER", "KEYSLOT", channel)
            for node in (new, old) if told_first == "new" else (old, new):
                node.call("CLUSTER", "SETSLOT", slot, "NODE", identity)
            # Both have a session with the old node, which ends; then both have one with the new.
            await eventually(lambda: relay.counts.reconnects >= 1, "reconnected")
            await eventually(lambda: relay.state.name == "live", "live")

            async def advanced() -> None:
                number = 2
                while not wait.done():
                    await there.advance("k", number)
                    number += 1
                    await asyncio.sleep(0.1)

            await in_time(asyncio.create_task(advanced()))
            assert wait.result() >= 2
            assert subscribers_of(new, channel) == 1
            assert subscribers_of(old, channel) == 0
            kept.cancel()
            await asyncio.gather(kept, return_exceptions=True)


def subscribers_of(node: Redis, channel: str) -> int:
    """Connections that subscribe to a channel of this node; what is not its slot has none."""
    import redis

    try:
        found = node.call("PUBSUB", "SHARDNUMSUB", channel)
    except redis.ResponseError:
        return 0
    return int(dict(found)[channel.encode()] if isinstance(found, dict) else found[1])
