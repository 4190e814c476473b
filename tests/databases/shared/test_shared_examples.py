"""The examples with some workers on each relay: what happens in one ends waits in all."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.databases.cdc.lasting_port import lasting_port
from tests.databases.shared.servers import (
    PausablePostgres,
    Redis,
    program,
    running_pausable_postgres,
    running_redis,
    until,
)
from tests.processes.examples.conftest import EXAMPLES, ROOT, free_port


@contextmanager
def running_example(
    name: str, relay: str, folder: Path, workers: int = 2, errors: Path | None = None
) -> Iterator[str]:
    """Run an example under uvicorn with some workers, and return its URL.

    Requests that wait when the context ends are waiting at SIGTERM.
    """
    port = free_port()
    command = ["-m", "uvicorn", f"{name}:app", "--app-dir", str(EXAMPLES), "--port", str(port)]
    with open(errors or os.devnull, "wb") as file:
        server = subprocess.Popen(
            [sys.executable, *command, "--workers", str(workers), "--log-level", "warning"],
            cwd=ROOT,
            env=os.environ | {"RELAY": relay, "COUNTERS": str(folder / "counters.db")},
            start_new_session=True,
            stderr=file if errors else None,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(_wait_until_ready(url, server))
        yield url
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


async def _wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(1_200):
            assert server.poll() is None, f"the server ended with status {server.returncode}"
            with suppress(aiohttp.ClientError):
                async with session.get(f"{url}/counters/none") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.05)
    raise AssertionError("the example did not answer within a minute")


@contextmanager
def running_nats() -> Iterator[str]:
    """A server of NATS, and its URL."""
    port = lasting_port()
    server = subprocess.Popen(
        [program("nats-server", "nats-server"), "--addr", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def listens() -> bool:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True

    try:
        until(listens, "it listens")
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def test_post_in_one_worker_completes_the_polls_of_all(tmp_path: Path) -> None:
    async def main(url: str) -> list[int | None]:
        # A connection of its own for each poll, so that they spread over the workers.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def poll(name: str) -> int | None:
                params = {"above": "0", "wait": "60"}
                async with session.get(f"{url}/counters/{name}", params=params) as response:
                    value: int | None = await response.json()
                    return value

            polls = [asyncio.create_task(poll(f"c{number % 20}")) for number in range(80)]
            await asyncio.sleep(1)
            for number in range(20):
                async with session.post(f"{url}/counters/c{number}") as response:
                    assert await response.json() == 1
            return list(await asyncio.gather(*polls))

    with running_example("shared_long_poll", str(tmp_path / "s"), tmp_path, 4) as url:
        assert Counter(asyncio.run(main(url))) == {1: 80}


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_two_workers_survive_a_lost_relay_and_answer_at_sigterm(kind: str, tmp_path: Path) -> None:
    errors, polls = tmp_path / "errors", 20
    servers: dict[str, Callable[[], AbstractContextManager[Redis | PausablePostgres]]] = {
        "redis": lambda: running_redis(tmp_path),
        "postgres": running_pausable_postgres,
    }

    async def get_all(url: str, queries: list[str]) -> list[tuple[int, object]]:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def get(query: str) -> tuple[int, object]:
                async with session.get(f"{url}/counters/{query}") as response:
                    return response.status, await response.json()

            return list(await asyncio.gather(*map(get, queries)))

    async def post(url: str, name: str) -> int:
        counter = f"{url}/counters/{name}"
        async with aiohttp.ClientSession() as session, session.post(counter) as done:
            assert done.status == 200
            number: int = await done.json()
            return number

    with servers[kind]() as relay, ThreadPoolExecutor(2) as pool:
        with running_example("shared_long_poll", relay.url(), tmp_path, errors=errors) as url:

            def later(queries: list[str]) -> Future[list[tuple[int, object]]]:
                waiting = pool.submit(asyncio.run, get_all(url, queries))
                time.sleep(3)  # until the workers have taken all of them
                return waiting

            bad = [f"a?{query}" for query in ("wait=nan", "wait=-1", f"above={2**70}", "above=x")]
            assert {status for status, _ in asyncio.run(get_all(url, bad))} == {422}
            waiting = later(["b?above=0&wait=60"] * polls)
            assert asyncio.run(post(url, "b")) == 1
            assert waiting.result(60) == [(200, 1)] * polls
            waiting = later(["a?above=0&wait=60"] * polls)
            relay.kill()
            assert asyncio.run(post(url, "a")) == 1
            # Without the relay the next read of the store tells: each 5 s.
            assert waiting.result(60) == [(200, 1)] * polls
            relay.start()
            waiting = later(["a?above=1&wait=60"] * polls)
        assert waiting.result(60) == [(200, None)] * polls  # at SIGTERM
    assert "Traceback" not in errors.read_text()


def test_events_resume_after_the_last_one_that_a_client_has_seen(tmp_path: Path) -> None:
    async def main(url: str) -> tuple[list[str], list[str]]:
        async with aiohttp.ClientSession() as session:

            async def read(last: int, number: int) -> list[str]:
                headers = {"Last-Event-ID": str(last)}
                found: list[str] = []
                async with session.get(f"{url}/counters/a/events", headers=headers) as response:
                    assert response.content_type == "text/event-stream"
                    async for line in response.content:
                        if line.startswith(b"data: "):
                            found.append(line.decode().strip())
                        if len(found) == number:
                            return found
                return found

            reading = asyncio.create_task(read(0, 1))
            await asyncio.sleep(0.5)
            for _ in range(3):
                async with session.post(f"{url}/counters/a"):
                    pass
            return await reading, await read(2, 1)

    with running_example("shared_events", str(tmp_path / "s"), tmp_path) as url:
        first, resumed = asyncio.run(asyncio.wait_for(main(url), 60))
    assert first[0] in {"data: 1", "data: 2", "data: 3"}
    assert resumed == ["data: 3"]


def test_the_relay_by_nats_that_the_documents_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from nats_relay import NatsRelay  # type: ignore[import-not-found, unused-ignore]

    from purgatory.shared import SharedPurgatory

    async def main(url: str) -> int:
        values: dict[str, int] = {}

        def read(keys: list[str]) -> dict[str, int]:
            return {key: values[key] for key in keys if key in values}

        async with (
            SharedPurgatory("Fetch", NatsRelay(url), read, resync=60) as first,
            SharedPurgatory("Fetch", NatsRelay(url), read, resync=60) as second,
        ):
            while {first.relay.state.name, second.relay.state.name} != {"live"}:
                await asyncio.sleep(0.01)
            poll = asyncio.create_task(first.wait_for_threshold("log:7", 43, timeout=30))
            while not first.relay.watched_keys or first.reads < 1:
                await asyncio.sleep(0.01)
            values["log:7"] = 43
            await second.advance("log:7", 43)
            return await poll

    with running_nats() as url:
        assert asyncio.run(asyncio.wait_for(main(url), 60)) == 43
