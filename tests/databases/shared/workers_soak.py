"""Long polls on four workers, while workers, the relay's server and the database die and stall.

    python -m tests.databases.shared.workers_soak --server uvicorn --relay redis --seconds 600

2,000 clients poll 500 rows of PostgreSQL, each for what is above the last value it has seen, and
others raise the values. Faults come at random moments: SIGKILL and SIGSTOP of a worker and of the
relay's server, and SIGKILL of the database's. Two things are checked, from outside:

* no poll returns a value that the row never had, or that the client had seen already;
* no poll returns later than promised: after the value was there, `resync`, the time to read,
  and the cost of the load (`SLACK_S`), not counting the time in which something was down.

The exit status is 1 if a check failed, and 2 if nothing was tested: no fault, or no response.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psycopg

from tests.databases.cdc.postgres import Postgres, running_postgres
from tests.databases.shared.servers import Redis, running_redis
from tests.processes.examples.conftest import free_port

ROOT = Path(__file__).parents[3]
WORKERS = 4
RESYNC_S = 2.0
SLACK_S = 4.0
WAIT_S = 20.0
SERVERS = {
    "uvicorn": (
        *("-m", "uvicorn", "tests.databases.shared.soak_app:app", "--port", "{port}"),
        *("--workers", str(WORKERS), "--log-level", "error"),
    ),
    "gunicorn": (
        *("-m", "gunicorn", "tests.databases.shared.soak_app:app", "--bind", "127.0.0.1:{port}"),
        *("--workers", str(WORKERS), "--worker-class", "uvicorn.workers.UvicornWorker"),
        *("--timeout", "10", "--log-level", "critical"),
    ),
}


class Soak:
    """The values that clients have seen, and their errors.

    Args:
        url: of the server.
        keys: how many rows.
        clients: how many poll at a time.
        until_s: when they end, by `time.monotonic`.
    """

    def __init__(self, url: str, keys: int, clients: int, until_s: float) -> None:
        self.url = url
        self.until_s = until_s
        self.clients = clients
        self.keys = [f"log:{number}" for number in range(keys)]
        self.tried: Counter[str] = Counter()
        """The number of times that a value was raised, or may have been: no answer may be above."""
        self.reached: dict[str, list[tuple[int, float]]] = {key: [] for key in self.keys}
        """The values of each key that were committed, and when that was known."""
        self.faults: list[tuple[str, float, float]] = []
        self.counts: Counter[str] = Counter()
        self.lateness_s: list[float] = []
        self.wrong: list[str] = []

    def down_s(self, start_s: float, end_s: float) -> float:
        """For how long something was down, or had just come back, between two moments."""
        spans = sorted((start, end + RESYNC_S + SLACK_S) for _, start, end in self.faults)
        down_s, from_s = 0.0, start_s
        for start, end in spans:
            first, last = max(start, from_s), min(end, end_s)
            if last > first:
                down_s += last - first
                from_s = last
        return down_s

    async def poll(self, session: aiohttp.ClientSession, key: str) -> None:
        """Poll one key until the end, each time for what is above the last value."""
        last = 0
        while time.monotonic() < self.until_s:
            asked_s = time.monotonic()
            params: dict[str, str | int | float] = {"key": key, "above": last, "wait": WAIT_S}
            try:
                async with session.get(f"{self.url}/poll", params=params) as response:
                    value = (await response.json())["value"] if response.status == 200 else None
                    counted = "polls" if response.status == 200 else "polls refused"
            except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
                self.counts["polls broken"] += 1  # their worker was killed
                await asyncio.sleep(random.random())
                continue
            self.counts[counted] += 1
            self.check(key, last, value, asked_s, time.monotonic())
            if value is None:
                await asyncio.sleep(0.05)
            else:
                self.counts["answers"] += 1
                last = value

    def check(
        self, key: str, last: int, value: int | None, asked_s: float, answered_s: float
    ) -> None:
        """Note what is wrong with an answer."""
        if value is not None and not last < value <= self.tried[key]:
            self.wrong.append(f"{key}: {value} after {last}, raised {self.tried[key]} times")
        there_s = next((at_s for number, at_s in self.reached[key] if number > last), None)
        if there_s is None:
            return
        since_s = max(there_s, asked_s)
        late_s = answered_s - since_s - self.down_s(since_s, answered_s)
        if value is not None:
            self.lateness_s.append(max(0.0, late_s))
        if late_s > RESYNC_S + SLACK_S:
            self.wrong.append(f"{key}: {value} after {last}, {late_s:.2f} s late")

    async def advance(self, session: aiohttp.ClientSession) -> None:
        """Raise values until shortly before the end."""
        while time.monotonic() < self.until_s - WAIT_S / 2:
            key = random.choice(self.keys)
            self.tried[key] += 1
            try:
                async with session.post(f"{self.url}/advance", params={"key": key}) as response:
                    value = (await response.json()).get("value")
            except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
                value = None
            if value is not None:
                self.counts["values"] += 1
                self.reached[key].append((value, time.monotonic()))
            await asyncio.sleep(random.expovariate(100))

    async def run(self, faults: list[Fault], every_s: float) -> None:
        """Poll, raise values and make faults until the end."""
        timeout = aiohttp.ClientTimeout(total=WAIT_S * 3)
        connector = aiohttp.TCPConnector(limit=0, force_close=False)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            tasks = [
                asyncio.create_task(self.poll(session, self.keys[number % len(self.keys)]))
                for number in range(self.clients)
            ]
            tasks += [asyncio.create_task(self.advance(session)) for _ in range(4)]
            if faults:
                tasks.append(asyncio.create_task(self.make_faults(faults, every_s)))
            await asyncio.gather(*tasks)

    async def make_faults(self, faults: list[Fault], every_s: float) -> None:
        while time.monotonic() < self.until_s - WAIT_S:
            await asyncio.sleep(random.uniform(0.5, 1.5) * every_s)
            name, begin, end, stays_s = random.choice(faults)
            start_s = time.monotonic()
            # Open until it is over: what is answered meanwhile is not late.
            self.faults.append((name, start_s, float("inf")))
            try:
                victim = await asyncio.to_thread(begin)
                await asyncio.sleep(random.uniform(0.2, 1) * stays_s)
                await asyncio.to_thread(end, victim)
            finally:
                self.faults[-1] = (name, start_s, time.monotonic())
            self.counts[name] += 1


Fault = tuple[str, Callable[[], Any], Callable[[Any], None], float]


def worker_faults(server: subprocess.Popen[bytes]) -> list[Fault]:
    """SIGKILL, after which the server starts another worker; and SIGSTOP for a while."""

    def pick(number: signal.Signals) -> int | None:
        listed = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(server.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        workers = [
            int(line.split()[0])
            for line in listed.stdout.splitlines()
            if "resource_tracker" not in line and "defunct" not in line
        ]
        victim = random.choice(workers) if workers else None
        if victim is not None:
            os.kill(victim, number)
        return victim

    def resume(victim: int | None) -> None:
        if victim is not None:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)

    return [
        ("worker killed", lambda: pick(signal.SIGKILL), lambda _: time.sleep(2), 1.0),
        ("worker paused", lambda: pick(signal.SIGSTOP), resume, 4.0),
    ]


def database_faults(postgres: Postgres) -> list[Fault]:
    def cut() -> None:
        with psycopg.connect(postgres.url(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )

    return [
        ("database killed", postgres.kill, lambda _: postgres.restart(), 2.0),
        ("connections cut", cut, lambda _: None, 0.5),
    ]


def redis_faults(server: Redis) -> list[Fault]:
    return [
        ("relay killed", server.kill, lambda _: server.start(), 2.0),
        ("relay paused", server.pause, lambda _: server.resume(), 4.0),
    ]


def main() -> int:
    """Run it, and print what came of it as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", choices=list(SERVERS), default="uvicorn")
    parser.add_argument("--relay", choices=["unix", "postgres", "redis"], default="unix")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=8.0, help="seconds between two faults")
    parser.add_argument("--clients", type=int, default=2_000)
    parser.add_argument("--keys", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    random.seed(asked.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        folder.chmod(0o755)
        (folder / "pg").mkdir()
        postgres = stack.enter_context(running_postgres(folder / "pg"))
        with psycopg.connect(postgres.url(), autocommit=True) as connection:
            connection.execute("CREATE TABLE counters (key text PRIMARY KEY, n bigint)")
        relay, faults = "postgres", database_faults(postgres)
        if asked.relay == "unix":
            relay = str(folder / "s")
        elif asked.relay == "redis":
            redis = stack.enter_context(running_redis(folder))
            relay = redis.url()
            faults += redis_faults(redis)
        port = free_port()
        server = subprocess.Popen(
            [sys.executable, *(part.format(port=port) for part in SERVERS[asked.server])],
            cwd=ROOT,
            env={
                **os.environ,
                "SOAK_DSN": postgres.url(),
                "SOAK_RELAY": relay,
                "SOAK_RESYNC": str(RESYNC_S),
            },
            start_new_session=True,
        )
        stack.callback(_end, server)
        faults += worker_faults(server)
        url = f"http://127.0.0.1:{port}"
        asyncio.run(_ready(url))
        soak = Soak(url, asked.keys, asked.clients, time.monotonic() + asked.seconds)
        asyncio.run(soak.run(faults if asked.every else [], asked.every))
    late = sorted(soak.lateness_s) or [0.0]
    print(
        json.dumps(
            {
                "server": asked.server,
                "relay": asked.relay,
                "seconds": asked.seconds,
                "seed": asked.seed,
                **soak.counts,
                "late_s": {
                    "p50": round(late[len(late) // 2], 4),
                    "p99": round(late[int(len(late) * 0.99)], 4),
                    "max": round(late[-1], 3),
                },
                "wrong": len(soak.wrong),
                "first_wrong": soak.wrong[:5],
            }
        )
    )
    if soak.wrong:
        return 1
    return 0 if soak.counts["answers"] and (soak.faults or not asked.every) else 2


async def _ready(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            with suppress(aiohttp.ClientError):
                async with session.get(f"{url}/state") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)
    raise AssertionError("the server did not come up within a minute")


def _end(server: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGCONT)
        os.killpg(server.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    sys.exit(main())
