"""Promises of every relay, by real servers: Unix sockets, PostgreSQL, Redis and its cluster."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from purgatory import PurgatoryClosedError
from purgatory.shared import PostgresRelay, RedisRelay, Relay, RelayError, SharedPurgatory
from purgatory.shared.redis_relay import _begin
from purgatory.shared.relay import LONGEST_KEY, MOST_UNSENT, sent_key
from purgatory.shared.unix_relay import UnixRelay
from tests.databases.shared.servers import (
    PausablePostgres,
    Redis,
    RedisCluster,
    running_cluster,
    running_pausable_postgres,
    running_redis,
)
from tests.databases.shared.store import HOUR_S, Store, eventually, in_time, on_loop

_NUMBERS = count(1)

pytestmark = pytest.mark.timeout(60)


class Network:
    """Processes that hear each other: a folder of sockets, or one channel of a server."""

    def __init__(self, make: Callable[[], Relay]) -> None:
        self.make = make

    def connections(self) -> int:
        """Return how many connections, or sockets, all relays have together."""
        raise NotImplementedError

    def write(self, key: str, texts: list[bytes]) -> None:
        """Write texts, in this order, to where messages of a key arrive."""
        raise NotImplementedError

    def garbage(self) -> list[bytes]:
        """Messages that no relay sends."""
        raise NotImplementedError

    def message(self, key: str, number: int) -> bytes:
        """Messages of a relay."""
        raise NotImplementedError


_DOCUMENTS = [
    *(b"", b"x", b"5", b"null", b"NaN", b"[]", b"{}", b"[[]]", b'"k"', b'["Fetch:k"]', b"[1, 2]"),
    *(
        b'["Fetch:k", "1"]',
        b'["Fetch:k", 1.5]',
        b'["Fetch:k", NaN]',
        b'["Fetch:k", true]',
        b'[["Fetch:k"], 1]',
        b'["Fetch:k", 1, 1]',
    ),
    *(b'{"Fetch:k": 1}', b'["Fetch:k", [1]]', b"[" * 7000),
]


class UnixNetwork(Network):
    """A folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lambda: UnixRelay(folder))
        self.folder = folder

    def connections(self) -> int:
        return len(os.listdir(self.folder))

    def write(self, key: str, texts: list[bytes]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for text in texts:  # a full buffer lets this wait, on the thread that is to empty it
                for name in os.listdir(self.folder):
                    sender.sendto(text, os.fspath(self.folder / name))

    def garbage(self) -> list[bytes]:
        wrapped = [b"[%b]" % document for document in _DOCUMENTS]
        return [*_DOCUMENTS, *wrapped, b"\xff\xfe", b'[["Fetch:k", 0], 5]']

    def message(self, key: str, number: int) -> bytes:
        return json.dumps([[sent_key("Fetch", key), number]]).encode()


class PostgresNetwork(Network):
    """A channel."""

    def __init__(self, server: PausablePostgres) -> None:
        self.channel = f"channel {next(_NUMBERS)}"
        super().__init__(lambda: PostgresRelay(server.url(), self.channel))
        self.server = server

    def connections(self) -> int:
        return self.server.connections()

    def write(self, key: str, texts: list[bytes]) -> None:
        for text in texts:
            self.server.call("SELECT pg_notify(%s, %s)", self.channel, text.decode())

    def garbage(self) -> list[bytes]:
        return _DOCUMENTS

    def message(self, key: str, number: int) -> bytes:
        return json.dumps([sent_key("Fetch", key), number]).encode()


class RedisNetwork(Network):
    """A prefix of channels."""

    def __init__(self, server: Redis | RedisCluster) -> None:
        self.prefix = f"test {next(_NUMBERS)}:"
        is_cluster = isinstance(server, RedisCluster)
        super().__init__(lambda: RedisRelay(server.url(), self.prefix, cluster=is_cluster))
        self.server = server

    def nodes(self) -> list[Redis]:
        """All servers."""
        return self.server.nodes if isinstance(self.server, RedisCluster) else [self.server]

    def connections(self) -> int:
        return sum(node.subscribers() for node in self.nodes())

    def subscriptions(self, key: str) -> int:
        """Return how many relays subscribe to a key."""
        channel = f"{self.prefix}@0:{sent_key('Fetch', key)}"
        if isinstance(self.server, RedisCluster):
            found = self.server.node_of(channel).call("PUBSUB", "SHARDNUMSUB", channel)
        else:
            found = self.server.call("PUBSUB", "NUMSUB", channel)
        return int(dict(found)[channel.encode()] if isinstance(found[0], tuple) else found[1])

    def write(self, key: str, texts: list[bytes]) -> None:
        channel = f"{self.prefix}@0:{sent_key('Fetch', key)}"
        for text in texts:
            if isinstance(self.server, RedisCluster):
                self.server.node_of(channel).call("SPUBLISH", channel, text)
            else:
                self.server.call("PUBLISH", channel, text)

    def garbage(self) -> list[bytes]:
        return [
            b"x",
            b"1.5",
            b"nan",
            b"True",
            b"\xff\xfe",
            b"[1]",
            b'{"Fetch:k": 1}',
            b"9" * 5000,
            b"\0",
        ]

    def message(self, key: str, number: int) -> bytes:
        return str(number).encode()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PausablePostgres]:
    """One server for all tests of this module."""
    with running_pausable_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """One server for all tests of this module."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """One cluster for all tests of this module."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture(
    params=["unix", "postgres", "redis", pytest.param("cluster", marks=pytest.mark.exhaustive)]
)
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Network:
    """Each kind."""
    if request.param == "unix":
        return UnixNetwork(tmp_path / "s")
    server: Any = request.getfixturevalue(request.param)
    if request.param == "postgres":
        return PostgresNetwork(server)
    return RedisNetwork(server)


@pytest.fixture(params=["redis", pytest.param("cluster", marks=pytest.mark.exhaustive)])
def redis_network(request: pytest.FixtureRequest) -> RedisNetwork:
    """Redis, and its cluster."""
    return RedisNetwork(request.getfixturevalue(request.param))


def process(
    network: Network, store: Store, resync: float = HOUR_S, name: str = "Fetch"
) -> SharedPurgatory:
    """A worker process: a purgatory with a relay of its own."""
    return SharedPurgatory(name, network.make(), store.read, resync)


# Waits that end.


@on_loop
async def test_an_event_in_one_process_ends_a_wait_in_another(network: Network) -> None:
    store = Store()
    async with process(network, store) as one, process(network, store) as other:
        wait = asyncio.create_task(one.wait_for_threshold("log:7", 43, timeout=60))
        later = asyncio.create_task(one.wait_for_threshold("log:7", 44, timeout=60))
        await eventually(lambda: store.has_read("log:7"), "subscribed")
        assert await other.advance("log:7", 43) == 0  # nobody waits there
        assert await in_time(wait) == 43
        assert not later.done()
        assert await other.advance("log:7", 50) == 0
        assert await in_time(later) == 50
        await eventually(lambda: other.relay.counts.sent == 2, "two messages sent")
        assert one.relay.counts.received == 2
        one._check()
        other._check()


@on_loop
async def test_processes_that_send_at_the_same_moment_hear_each_other(network: Network) -> None:
    """A message that comes with the response to what was sent is none that waits for the next."""
    store = Store()
    async with process(network, store) as one, process(network, store) as other:
        kept = [
            asyncio.create_task(shared.wait_for_threshold(key, 10**9))
            for shared, key in ((one, "a"), (other, "b"))
        ]
        await eventually(lambda: store.has_read("a") and store.has_read("b"), "subscribed")
        for number in range(1, 401):
            waits = [
                asyncio.create_task(one.wait_for_threshold("a", number, 60)),
                asyncio.create_task(other.wait_for_threshold("b", number, 60)),
            ]
            await asyncio.sleep(0)
            await one.advance("b", number)
            await other.advance("a", number)
            for wait in waits:
                # Less than a heartbeat, which would find it.
                assert await asyncio.wait_for(wait, 4) == number
        for wait in kept:
            wait.cancel()
        await asyncio.gather(*kept, return_exceptions=True)


@on_loop
async def test_a_threshold_that_the_store_has_reached_ends_a_wait(network: Network) -> None:
    store = Store(k=5)
    async with process(network, store) as one:
        assert await in_time(one.wait_for_threshold("k", 5, timeout=60)) == 5
        assert store.reads == [["k"]]
        one._check()


@on_loop
async def test_a_resync_ends_a_wait_that_no_message_ends(network: Network) -> None:
    store = Store()
    async with process(network, store, resync=0.1) as one:
        wait = asyncio.create_task(one.wait_for_threshold("k", 5, timeout=60))
        await eventually(lambda: store.has_read("k"), "read")
        store.values["k"] = 6
        assert await in_time(wait) == 6


@on_loop
async def test_a_notify_in_one_process_checks_conditions_in_another(network: Network) -> None:
    store, found = Store(), [False, False]
    async with process(network, store) as one, process(network, store) as other:
        wait = asyncio.create_task(one.wait(["a", "b"], lambda: found[0], timeout=60))
        by_value = asyncio.create_task(one.wait(["c"], lambda: found[1], timeout=60))
        await asyncio.sleep(0)  # both have begun
        assert one.relay.watched_keys == 3
        await eventually(lambda: _is_subscribed(one), "subscribed")
        found[0] = True
        await other.notify("b")
        assert await in_time(wait) is True
        assert not by_value.done()
        found[1] = True
        await other.advance("c", 1)
        assert await in_time(by_value) is True
        one._check()


def _is_subscribed(one: SharedPurgatory) -> bool:
    relay = one.relay
    return not (one._unread or relay._added or relay._subscribing.locked())


@on_loop
async def test_a_long_key_is_sent_as_its_hash(network: Network) -> None:
    store = Store()
    keys = ["é" * 250, "é" * 249 + "e"]
    for key in keys:
        assert len(sent_key("Fetch", key).encode()) <= LONGEST_KEY
    async with process(network, store) as one, process(network, store) as other:
        waits = [asyncio.create_task(one.wait_for_threshold(key, 1, 60)) for key in keys]
        await eventually(lambda: store.has_read(*keys), "subscribed")
        await other.advance(keys[1], 2)
        assert await in_time(waits[1]) == 2
        assert not waits[0].done()
        await other.advance(keys[0], 3)
        assert await in_time(waits[0]) == 3
    assert one.relay._keys == {}


_ODD_KEYS = [
    *("", " ", "a\nb", "\r\n", "a\0b", "'", '"', "\\", "😀", "é" * 100, "e" * 200, "\x7f\x1b"),
    *("%s", "{x}", "}{", "[1]", '["k", 1]', "a b", "*", "sha256:", "\ud800", "\udcff", "null"),
]


@on_loop
async def test_a_key_may_have_any_characters(network: Network) -> None:
    store = Store()
    async with process(network, store) as one, process(network, store) as other:
        waits = {key: asyncio.create_task(one.wait_for_threshold(key, 1, 60)) for key in _ODD_KEYS}
        await eventually(lambda: store.has_read(*_ODD_KEYS), "subscribed")
        for number, key in enumerate(_ODD_KEYS, start=1):
            await other.advance(key, number)
        for number, key in enumerate(_ODD_KEYS, start=1):
            assert await in_time(waits[key]) == number, key
        assert other.relay.counts.lost == 0


@on_loop
async def test_two_thousand_waits_on_two_hundred_keys(network: Network) -> None:
    store = Store()
    keys = [f"log:{number}" for number in range(200)]
    async with process(network, store) as one, process(network, store) as other:
        waits = [
            asyncio.create_task(one.wait_for_threshold(key, threshold, 100))
            for key in keys
            for threshold in range(1, 11)
        ]
        await eventually(lambda: store.has_read(*keys), "subscribed")
        one._check()
        for value in range(1, 11):
            for key in keys:
                await other.advance(key, value)
            await asyncio.sleep(0)
        values = await in_time(asyncio.gather(*waits))
        assert all(value >= number % 10 + 1 for number, value in enumerate(values))
        # Numbers of a key that wait to be sent become one.
        assert 200 <= other.relay.counts.sent <= 2_000
        assert other.relay.counts.lost == 0
        assert one.local.core._state.values == {}
        one._check()


@on_loop
async def test_garbage_is_ignored(network: Network) -> None:
    store = Store()
    async with process(network, store) as one:
        wait = asyncio.create_task(one.wait_for_threshold("k", 1, 60))
        await eventually(lambda: store.has_read("k"), "subscribed")
        since = one.relay.state.since
        for text in network.garbage():
            await asyncio.to_thread(network.write, "k", [text])
            assert not wait.done()
        await asyncio.to_thread(network.write, "k", [network.message("k", 7)])
        assert await in_time(wait) == 7
        assert one.relay.state[:2] == ("live", since)
        assert one.relay.counts.reconnects == 0


@on_loop
async def test_a_number_sent_right_before_the_end_arrives(network: Network) -> None:
    store = Store()
    async with process(network, store) as one:
        waits = [asyncio.create_task(one.wait_for_threshold(key, 1, 60)) for key in "abc"]
        await eventually(lambda: store.has_read(*"abc"), "subscribed")
        for number, key in enumerate("abc"):
            async with process(network, store) as other:
                await other.advance(key, 1)
                for _ in range(number):
                    await asyncio.sleep(0)
            assert (other.relay.counts.sent, other.relay.counts.lost) == (1, 0)
        assert await in_time(asyncio.gather(*waits)) == [1, 1, 1]


# Channels.


@on_loop
async def test_purgatories_of_other_names_hear_nothing(network: Network) -> None:
    store = Store()
    async with (
        process(network, store) as fetches,
        process(network, store, name="Jobs") as jobs,
        process(network, store) as others,
    ):
        wait = asyncio.create_task(fetches.wait_for_threshold("7", 5, timeout=60))
        job = asyncio.create_task(jobs.wait_for_threshold("7", 9, timeout=60))
        await eventually(lambda: len(store.reads) == 2, "subscribed")
        await jobs.advance("7", 8)
        await others.advance("7", 4)
        await eventually(lambda: fetches.local.value("7") == 4, "heard")
        assert not wait.done()
        await others.advance("7", 10)
        assert await in_time(wait) == 10
        assert jobs.local.value("7") == 8
        job.cancel()


@on_loop
async def test_databases_of_one_redis_hear_nothing_of_each_other(redis: Redis) -> None:
    store, prefix = Store(), f"test {next(_NUMBERS)}:"

    def on_database(number: int) -> SharedPurgatory:
        relay = RedisRelay(f"{redis.url()}/{number}", prefix)
        return SharedPurgatory("Fetch", relay, store.read, HOUR_S)

    async with on_database(0) as one, on_database(3) as other, on_database(3) as third:
        wait = asyncio.create_task(third.wait_for_threshold("k", 5, timeout=60))
        await eventually(lambda: store.has_read("k"), "subscribed")
        await one.advance("k", 9)
        await other.advance("k", 4)
        await eventually(lambda: third.local.value("k") == 4, "heard")
        await other.advance("k", 5)
        assert await in_time(wait) == 5
        assert third.relay.counts.received == 2


@pytest.mark.parametrize("rest", ["/99", "?client_name=a%20b"])
@on_loop
async def test_url_that_redis_refuses_is_refused(redis: Redis, rest: str) -> None:
    one = SharedPurgatory("Fetch", RedisRelay(redis.url() + rest), Store().read)
    with pytest.raises(RelayError, match="Redis refuses the relay"):
        await one.__aenter__()


@on_loop
async def test_channel_of_any_characters_is_heard(postgres: PausablePostgres) -> None:
    store, channel = Store(), '"é" %s ' + "c" * 54
    dsn = f"{postgres.url()}?client_encoding=LATIN1"
    assert len(channel.encode()) == 62
    async with (
        SharedPurgatory("Fetch", PostgresRelay(dsn, channel), store.read, HOUR_S) as one,
        SharedPurgatory("Fetch", PostgresRelay(dsn, channel), store.read, HOUR_S) as other,
    ):
        wait = asyncio.create_task(one.wait_for_threshold("é", 5, timeout=60))
        await eventually(lambda: store.has_read("é"), "subscribed")
        await other.advance("é", 5)
        assert await in_time(wait) == 5


# Leftovers.


@on_loop
async def test_subscriptions_end_with_the_last_wait(redis_network: RedisNetwork) -> None:
    network, store = redis_network, Store()

    def number_is(expected: int) -> Callable[[], Any]:
        async def is_expected() -> bool:
            return await asyncio.to_thread(network.subscriptions, "k") == expected

        return is_expected

    async with process(network, store) as one, process(network, store) as other:
        waits = [asyncio.create_task(one.wait_for_threshold("k", n, 60)) for n in (1, 2)]
        await eventually(number_is(1), "one subscription")
        await other.advance("k", 1)
        assert await in_time(waits[0]) == 1
        elsewhere = asyncio.create_task(other.wait_for_threshold("k", 2, 60))
        await eventually(number_is(2), "two subscriptions")
        await other.advance("k", 2)
        await in_time(asyncio.gather(waits[1], elsewhere))
        await eventually(number_is(0), "no subscription")


@on_loop
async def test_key_that_is_unwatched_at_once_leaves_no_subscription(
    redis_network: RedisNetwork,
) -> None:
    network, store = redis_network, Store()

    async def number() -> int:
        return await asyncio.to_thread(network.subscriptions, "k")

    async def is_subscribed() -> bool:
        return await number() == 1

    async def is_gone() -> bool:
        return await number() == 0

    async with process(network, store) as one:
        with one._watching(["k"], is_condition=False):
            await eventually(is_subscribed, "one subscription")
        with one._watching(["k"], is_condition=False):
            pass  # its end and a new beginning, and the end of that, before the relay looked
        await eventually(is_gone, "no subscription")
        with one._watching(["k"], is_condition=False):
            await eventually(is_subscribed, "one subscription")
            assert one.relay.state.name == "live"


@on_loop
async def test_values_are_forgotten_after_the_last_wait(network: Network) -> None:
    store = Store()
    async with process(network, store) as one, process(network, store) as other:
        values = one.local.core._state.values
        kept = asyncio.create_task(one.wait_for_threshold("kept", 1_000, 60))
        for number in range(50):
            key = f"log:{number}"
            wait = asyncio.create_task(one.wait_for_threshold(key, 1, 60))
            await eventually(lambda key=key: store.has_read(key), "subscribed")  # type: ignore[misc]
            await other.advance(f"nobody:{number}", 1)
            await other.advance("kept", number)
            await other.advance(key, 1)
            await in_time(wait)
            assert values.keys() <= {"kept"}
            one._check()
        await other.advance("kept", 1_000)
        await in_time(kept)
        assert values == {}
        assert other.local.core._state.values == {}
        assert one.relay._watched == {}
        assert one._waits == one._conditions == {}


@on_loop
async def test_two_purgatories_share_the_connection_of_a_relay(network: Network) -> None:
    store, relay = Store(), network.make()
    other = process(network, store)
    async with (
        other,
        SharedPurgatory("Fetch", relay, store.read, HOUR_S) as first,
    ):
        alone = network.connections()
        async with SharedPurgatory("Produce", relay, store.read, HOUR_S) as second:
            waits = [
                asyncio.create_task(purgatory.wait_for_threshold("k", 1, 60))
                for purgatory in (first, second)
            ]
            await eventually(lambda: len(store.reads) == 2, "each has read")
            assert network.connections() <= alone + (
                # A node of a cluster has one more, when it is the first of its keys.
                isinstance(network, RedisNetwork) and len(network.nodes()) > 1
            )
            await other.advance("k", 1)
            assert await in_time(waits[0]) == 1
            await second.advance("k", 2)
            assert await in_time(waits[1]) == 2
            last = asyncio.create_task(first.wait_for_threshold("k", 2, 60))
            await eventually(lambda: len(store.reads) == 3, "read")
        assert relay.state.name == "live"
        await other.advance("k", 2)
        assert await in_time(last) == 2
    assert (relay.state.name, relay.watched_keys) == ("closed", 0)


@on_loop
async def test_one_purgatory_leaves_a_relay_while_another_comes(network: Network) -> None:
    store, relay = Store(), network.make()
    async with process(network, store) as other:
        for number in range(1, 8):
            old = SharedPurgatory("Fetch", relay, store.read, HOUR_S)
            new = SharedPurgatory("Fetch", relay, store.read, HOUR_S)
            await old.__aenter__()
            await old.advance("x", number)
            leaving = asyncio.create_task(old.aclose())
            for _ in range(number % 7):
                await asyncio.sleep(0)
            async with new:
                await leaving
                wait = asyncio.create_task(new.wait_for_threshold("k", number, 60))
                await eventually(lambda: relay.state.name == "live", "live")
                reads = number
                await eventually(lambda reads=reads: len(store.reads) >= reads, "read")  # type: ignore[misc]
                await other.advance("k", number)
                assert await in_time(wait) == number
            assert relay.state.name == "closed"


@on_loop
async def test_a_cancelled_wait_leaves_nothing(network: Network) -> None:
    store = Store()
    async with process(network, store) as one:
        waits = [
            *(asyncio.create_task(one.wait_for_threshold(f"k{n % 5}", 1)) for n in range(20)),
            *(asyncio.create_task(one.wait([f"k{n}", "x"], lambda: False)) for n in range(5)),
        ]
        await eventually(lambda: store.has_read("k0"), "read")
        one._check()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert all(wait.cancelled() for wait in waits)
        one._check()
        assert one._waits == one._conditions == one.relay._watched == {}
        assert one._unread == {}
        assert one.local.core._state.values == {}
        assert list(one.local.keys()) == []


def _open_files() -> set[tuple[str, str]]:
    """The descriptors of this process, with what each is of."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))
    return found


@on_loop
async def test_closing_ends_all_waits_and_leaves_nothing(network: Network) -> None:
    store = Store()
    before = _open_files()
    purgatories = [process(network, store) for _ in range(3)]
    for one in purgatories:
        await one.__aenter__()
    waits = [
        asyncio.create_task(one.wait_for_threshold(f"k{n}", 1))
        for n, one in enumerate(purgatories * 10)
    ]
    await eventually(lambda: store.has_read("k29"), "read")
    assert await asyncio.to_thread(network.connections) >= 3
    for one in purgatories:
        assert await one.aclose() == 10
        assert await one.aclose() == 0
    for wait in waits:
        with pytest.raises(PurgatoryClosedError):
            await in_time(wait)
    assert asyncio.all_tasks() == {asyncio.current_task()}

    async def nothing_is_left() -> bool:
        return await asyncio.to_thread(network.connections) == 0

    await eventually(nothing_is_left, "all connections have ended")
    for one in purgatories:
        one.local.core._check()
        assert one.relay._watched == {}
        assert one.relay.state.name == "closed"
    await asyncio.get_running_loop().shutdown_default_executor()
    left = _open_files() - before

    def all_are_closed() -> bool:
        # A client of another test, which connects again and again, has others each time.
        left.intersection_update(_open_files())
        return not left

    await eventually(all_are_closed, "all files are closed")
    gc.collect()  # what was not closed warns


@on_loop
async def test_an_unused_relay_stays_live(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = network.make()
    if isinstance(network, UnixNetwork):
        pytest.skip("it has no heartbeat")
    monkeypatch.setattr(relay, "_heartbeat_s", 0.3)
    store = Store()
    async with SharedPurgatory("Fetch", relay, store.read, HOUR_S) as one:
        wait = asyncio.create_task(one.wait_for_threshold("k", 1, 60))
        await eventually(lambda: store.has_read("k"), "subscribed")
        wait.cancel()
        since = relay.state.since
        await asyncio.sleep(1.2)  # four heartbeats: an idle connection is none that has ended
        assert relay.state[:2] == ("live", since)
        assert relay.counts.reconnects == 0


# Unix sockets.


@on_loop
async def test_a_socket_bound_within_one_tick_of_the_clock_is_found(tmp_path: Path) -> None:
    network, store = UnixNetwork(tmp_path / "s"), Store()
    async with process(network, store) as sender:
        tick_ns = (network.folder.stat().st_mtime_ns + 10**9,) * 2
        os.utime(network.folder, ns=tick_ns)
        await sender.advance("k", 1)  # it looks who is there
        await eventually(lambda: sender.relay.counts.sent == 1, "sent")
        async with process(network, store) as one:
            os.utime(network.folder, ns=tick_ns)
            wait = asyncio.create_task(one.wait_for_threshold("k", 1, 60))
            await eventually(lambda: store.has_read("k"), "read")
            await sender.advance("k", 2)
            assert await in_time(wait) == 2


@on_loop
async def test_the_backlog_of_a_full_socket_is_bounded(tmp_path: Path) -> None:
    network = UnixNetwork(tmp_path / "s")
    relay = network.make()
    async with SharedPurgatory("Fetch", relay, Store().read, HOUR_S):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as silent:
            silent.bind(os.fspath(network.folder / "1-silent.sock"))
            for first in range(0, 5 * MOST_UNSENT, 1_000):
                relay.publish({f"{number}" * 20: 1 for number in range(first, first + 1_000)})
            (other,) = relay._others.values()  # type: ignore[attr-defined]
            assert other.is_sending
            assert len(other.unsent) == MOST_UNSENT
            assert relay.counts.lost > 0


@on_loop
async def test_a_folder_without_sockets_is_refused_in_words() -> None:
    one = SharedPurgatory("Fetch", UnixRelay("/proc"), Store().read)
    with pytest.raises(RelayError, match="needs a folder in which it can make a socket"):
        await one.__aenter__()
    await one.aclose()
    assert one.relay.state.name == "closed"


def test_a_long_path_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="short path, 70 bytes at most"):
        UnixRelay("/tmp/" + "x" * 80)


# Redis.


@on_loop
async def test_a_publisher_that_redis_has_cut_off_sends_all_the_same(redis: Redis) -> None:
    network, store = RedisNetwork(redis), Store()
    async with process(network, store) as one, process(network, store) as other:
        await other.advance("x", 1)
        await eventually(lambda: other.relay.counts.sent == 1, "sent")
        wait = asyncio.create_task(one.wait_for_threshold("k", 1, 60))
        await eventually(lambda: store.has_read("k"), "subscribed")
        await asyncio.to_thread(redis.call, "CLIENT", "KILL", "TYPE", "normal")
        await other.advance("k", 1)
        assert await in_time(wait) == 1
        assert other.relay.counts.lost == 0
        assert one.relay.state.name == other.relay.state.name == "live"


@on_loop
async def test_redis_hears_of_a_number_before_the_loop_turns(redis: Redis) -> None:
    import redis as client

    network, store = RedisNetwork(redis), Store()
    async with process(network, store) as one:
        await one.advance("other", 1)  # connects
        await eventually(lambda: one.relay.counts.sent == 1, "sent")
        with client.Redis(port=redis.port) as subscriber, subscriber.pubsub() as subscription:
            subscription.subscribe(f"{network.prefix}@0:Fetch:k")
            assert subscription.get_message(timeout=20)["type"] == "subscribe"
            sent = one.relay.publish({"Fetch:k": 7})
            message = subscription.get_message(timeout=20)  # nothing else runs meanwhile
            assert message is not None
            assert message["data"] == b"7"
        assert sent is not None
        await sent


@on_loop
async def test_a_send_that_begins_at_once_continues_in_its_task() -> None:
    steps: list[str] = []
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        steps.append("begun")
        await asyncio.sleep(0)
        try:
            await future
        finally:
            steps.append("ended")

    rest = _begin(work())
    assert steps == ["begun"]
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await rest
    assert steps == ["begun", "ended"]

    cancelled = asyncio.ensure_future(_begin(asyncio.sleep(60)))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled

    async def fail() -> None:
        raise ConnectionError("at once")

    failed = _begin(fail())
    with pytest.raises(ConnectionError, match="at once"):
        await failed


def test_all_processes_hash_a_key_alike() -> None:
    assert sent_key("Fetch", "k" * 194) == "Fetch:" + "k" * 194
    assert sent_key("Fetch", "k" * 195) == (
        "#07a39c397c7d0e100f68ebb5ab0e093e8eba6fcfe3ab5825e37ba2a5204122ef"
    )
