"""From an event in one process to the end of a wait in another, beside a bare LISTEN or SUBSCRIBE.

    python -m tests.benchmarks.shared_relays [--full]

Two processes play ping-pong: one raises a value that the other waits for, which raises one in its
turn. A round is two events; half of it is what is shown. The rivals do the same by psycopg's and
redis-py's own calls, and by datagrams. They run in turns, each pair of processes for some rounds.

Also measured: the effect of a NOTIFY in each transaction on the commits of eight clients, and the
cost of a value that wakes 10,000 waits in this process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median

import psycopg
from redis import asyncio as redis

from purgatory.shared import PostgresRelay, RedisRelay, Relay, SharedPurgatory, UnixRelay
from tests.benchmarks.measurement import Figure, Size, run_alone, say
from tests.databases.cdc.postgres import running_postgres
from tests.databases.shared.servers import running_redis

TARGET = 1.3
ROOT = Path(__file__).parents[2]

Round = Callable[[int], Awaitable[None]]


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Return the latency of each relay, beside its rival's."""
    figures = []
    rounds, turns = size.pick(20, 500, 2_000), size.pick(1, 3, 5)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relays-")))
        folder.chmod(0o755)
        (folder / "pg").mkdir()
        postgres = stack.enter_context(running_postgres(folder / "pg"))
        server = stack.enter_context(running_redis(folder))
        places = {"unix": str(folder / "s"), "postgres": postgres.url(), "redis": server.url()}
        for name, place in places.items():
            own, bare = [], []
            for _ in range(turns):
                own.append(asyncio.run(_play(f"own {name}", place, rounds)))
                bare.append(asyncio.run(_play(f"bare {name}", place, rounds)))
            for share, title in ((0.5, "p50"), (0.99, "p99")):
                own_s = median(_quantile(times, share) for times in own)
                bare_s = median(_quantile(times, share) for times in bare)
                say(f"{name}, {title}: {own_s * 1e3:.3f} ms, bare {bare_s * 1e3:.3f} ms")
                figures.append(Figure(f"{name}: event, {title}", own_s * 1e3, "ms"))
                target = (
                    None if name == "unix" else TARGET
                )  # a datagram has no server to go through
                figures.append(Figure(f"{name}: {title} / bare", own_s / bare_s, "x", target))
        with psycopg.connect(postgres.url(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = on")  # as a server has it that is in use
            connection.execute("SELECT pg_reload_conf()")
        pairs = [
            (_commits(postgres.url(), True, size), _commits(postgres.url(), False, size))
            for _ in range(turns)
        ]
        for with_notify, without in pairs:
            say(f"commits a second with NOTIFY: {with_notify:,.0f}, without: {without:,.0f}")
        ratio = median(with_notify / without for with_notify, without in pairs)
        figures.append(Figure("commits of 8 clients with NOTIFY / without", ratio, "x"))
        figures += asyncio.run(_waiters(str(folder / "w"), size))
    return figures


def _quantile(times: list[float], share: float) -> float:
    return sorted(times)[int(share * (len(times) - 1))]


async def _play(kind: str, place: str, rounds: int) -> list[float]:
    """Half of each round's seconds, with a process that plays the other side."""
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.shared_relays", "--other", kind, place],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"ready\n"
        times: list[float] = []

        async def play(play_round: Round) -> None:
            for number in range(1, rounds + 21):
                start_s = time.perf_counter()
                await play_round(number)
                if number > 20:
                    times.append((time.perf_counter() - start_s) / 2)

        await _side(kind, place, "ping", "pong", play)
        return times
    finally:
        other.kill()
        other.communicate()


async def _echo(kind: str, place: str) -> None:
    async def play(play_round: Round) -> None:
        print("ready", flush=True)
        number = 1
        while True:
            await play_round(number)
            number += 1

    await _side(kind, place, "pong", "ping", play)


async def _side(
    kind: str, place: str, sends: str, waits: str, play: Callable[[Round], Awaitable[None]]
) -> None:
    """Play one side. The sender of `ping` begins; the other one waits first."""
    begins = sends == "ping"
    mode, name = kind.split()
    if mode == "own":
        values: dict[str, int] = {}
        shared = SharedPurgatory("Fetch", _relay(name, place), lambda _: values, resync=60)
        async with shared:
            while shared.relay.state.name != "live":
                await asyncio.sleep(0.01)

            async def play_own(number: int) -> None:
                if begins:
                    await shared.advance(sends, number)
                await shared.wait_for_threshold(waits, number, 60)
                if not begins:
                    await shared.advance(sends, number)

            # One wait is always pending, as in a server: the key stays subscribed.
            kept = asyncio.create_task(shared.wait_for_threshold(waits, 2**62))
            await asyncio.sleep(0.2)
            await play(play_own)
            kept.cancel()
        return
    async with _BARE[name](place, sends, waits) as (send, receive):

        async def play_bare(number: int) -> None:
            if begins:
                await send(number)
            await receive()
            if not begins:
                await send(number)

        await play(play_bare)


def _relay(name: str, place: str) -> Relay:
    if name == "unix":
        return UnixRelay(place)
    return PostgresRelay(place) if name == "postgres" else RedisRelay(place)


Calls = tuple[Callable[[int], Awaitable[object]], Callable[[], Awaitable[object]]]


class _BareUnix:
    def __init__(self, place: str, sends: str, waits: str) -> None:
        self._to, self._own = f"{place}-{sends}", f"{place}-{waits}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    async def __aenter__(self) -> Calls:
        with suppress(FileNotFoundError):
            os.unlink(self._own)
        self._socket.bind(self._own)
        loop = asyncio.get_running_loop()

        async def send(number: int) -> None:
            self._socket.sendto(str(number).encode(), self._to)

        return send, lambda: loop.sock_recv(self._socket, 100)

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()


class _BarePostgres:
    def __init__(self, place: str, sends: str, waits: str) -> None:
        self._place, self._sends, self._waits = place, sends, waits

    async def __aenter__(self) -> Calls:
        connect = psycopg.AsyncConnection.connect
        self._listening = await connect(self._place, autocommit=True)
        self._sending = await connect(self._place, autocommit=True)
        await self._listening.execute(f"LISTEN {self._waits}".encode())
        found = self._listening.notifies()

        async def send(number: int) -> None:
            await self._sending.execute("SELECT pg_notify(%s, %s)", (self._sends, str(number)))

        return send, found.__anext__

    async def __aexit__(self, *_: object) -> None:
        await self._listening.close()
        await self._sending.close()


class _BareRedis:
    def __init__(self, place: str, sends: str, waits: str) -> None:
        self._place, self._sends, self._waits = place, sends, waits

    async def __aenter__(self) -> Calls:
        self._client = redis.Redis.from_url(self._place)
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)
        await self._pubsub.subscribe(self._waits)
        await self._pubsub.get_message(timeout=1)

        async def receive() -> None:
            while await self._pubsub.get_message(timeout=60) is None:
                pass

        return lambda number: self._client.publish(self._sends, number), receive

    async def __aexit__(self, *_: object) -> None:
        await self._pubsub.aclose()  # type: ignore[no-untyped-call]
        await self._client.aclose()


_BARE: dict[str, type[_BareUnix] | type[_BarePostgres] | type[_BareRedis]] = {
    "unix": _BareUnix,
    "postgres": _BarePostgres,
    "redis": _BareRedis,
}


def _commits(dsn: str, notifies: bool, size: Size) -> float:
    """Commits a second of eight clients, each of which writes a row, with a NOTIFY or without."""
    seconds = size.pick(0.2, 3.0)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS written (n bigint)")
    until_s = time.monotonic() + seconds
    counts: list[int] = []

    def write(client: int) -> None:
        count = 0
        with psycopg.connect(dsn) as connection:
            while time.monotonic() < until_s:
                connection.execute("INSERT INTO written VALUES (%s)", (count,))
                if notifies:
                    connection.execute("SELECT pg_notify('purgatory', %s)", (f"k{client} {count}",))
                else:
                    connection.execute("SELECT %s::text", (f"k{client} {count}",))
                connection.commit()
                count += 1
        counts.append(count)

    threads = [threading.Thread(target=write, args=(client,)) for client in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


async def _waiters(folder: str, size: Size) -> list[Figure]:
    """The cost of 10,000 waits on 1,000 keys while nothing happens, and of waking them."""
    waiters, keys, idle_s = size.pick(100, 10_000), size.pick(10, 1_000), size.pick(0.1, 10.0)
    values: dict[str, int] = {}
    async with (
        SharedPurgatory("Fetch", UnixRelay(folder), lambda _: values, resync=5) as here,
        SharedPurgatory("Fetch", UnixRelay(folder), lambda _: values, resync=60) as there,
    ):
        waits = [
            asyncio.create_task(here.wait_for_threshold(f"k{number % keys}", 1, 600))
            for number in range(waiters)
        ]
        await asyncio.sleep(0.5)
        start_s = time.process_time()
        await asyncio.sleep(idle_s)
        idle_share = (time.process_time() - start_s) / idle_s
        start_s = time.process_time()
        for number in range(keys):
            await there.advance(f"k{number}", 1)
        await asyncio.gather(*waits)
        wake_s = time.process_time() - start_s
        sent = there.relay.counts.sent
        await asyncio.gather(*(there.advance("burst", number) for number in range(1, 1_001)))
        await asyncio.sleep(0.1)
        burst = there.relay.counts.sent - sent
    title = f"{waiters:,} who wait on {keys:,} keys"
    return [
        Figure(f"{title}: computing while idle, resync 5 s", idle_share * 1e3, "ms/s"),
        Figure(f"{title}: computing to wake each", wake_s / waiters * 1e6, "us"),
        Figure(f"messages to wake {keys:,} keys, each advanced once", sent, ""),
        Figure("messages for 1,000 advances of one key at once", burst, ""),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--other"]:
        asyncio.run(_echo(sys.argv[2], sys.argv[3]))
    else:
        run_alone(measure)
