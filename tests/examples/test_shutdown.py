"""Each server at SIGTERM with requests that wait: all are answered, and the process is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.examples.conftest import EXAMPLES, ROOT, free_port, wait_until_ready

PARKED = 10
GONE_WITHIN_S = 1.0
TRIES = 8
"""The machine may be busy: one of them has to be so quick, and in each all are answered."""

UVICORN = (
    "-m",
    "uvicorn",
    "--app-dir",
    str(EXAMPLES),
    "--port",
    "{port}",
    "--log-level",
    "warning",
)
HYPERCORN = ("-m", "hypercorn", "--workers", "0", "--bind", "127.0.0.1:{port}")
SERVERS = {
    "uvicorn with Starlette": (*UVICORN, "long_poll_starlette:app"),
    "uvicorn with FastAPI": (*UVICORN, "long_poll_fastapi:app"),
    "hypercorn": (*HYPERCORN, "long_poll_starlette:app"),
    "hypercorn on uvloop": (*HYPERCORN, "--worker-class", "uvloop", "long_poll_fastapi:app"),
    "gunicorn": (
        *("-m", "gunicorn", "--preload", "--workers", "2", "--worker-class", "gthread"),
        *("--threads", "20", "--bind", "127.0.0.1:{port}", "--log-level", "error"),
        *("--config", str(EXAMPLES / "gunicorn_shutdown.py")),
        *("--chdir", str(EXAMPLES), "prefork_gunicorn:app"),
    ),
    "the standard library's threads": (str(EXAMPLES / "threaded_http.py"), "{port}"),
}
ENDED = {0, -signal.SIGTERM}  # uvicorn raises the signal once more when it is done


@contextmanager
def running(server: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """Start a server, and give its process and a client."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, *(part.format(port=port) for part in SERVERS[server])],
        cwd=EXAMPLES,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    # No connection is kept: gunicorn gives idle ones two seconds.
    limits = httpx.Limits(max_keepalive_connections=0)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, limits=limits)
    try:
        with client:
            wait_until_ready(client, "/worker" if server == "gunicorn" else "/metrics", process)
            yield process, client
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)


def parked(client: httpx.Client, server: str, seen: dict[int, int]) -> int:
    """Return how many requests wait; of gunicorn's workers, in those ``seen`` by now."""
    if server == "gunicorn":
        worker = client.get("/worker").json()
        seen[worker["worker"]] = worker["waiting"]
        return sum(seen.values())
    lines = client.get("/metrics").text.splitlines()
    (line,) = (one for one in lines if one.startswith("purgatory_pending_operations{"))
    return round(float(line.split()[-1]))


def stop_with_requests_parked(server: str) -> float:
    """Return how long the process took to end."""
    path = "/wait?seconds=20" if server == "gunicorn" else "/topics/news?wait=50"
    with running(server) as (process, client), ThreadPoolExecutor(PARKED) as pool:
        requests = [pool.submit(client.get, path) for _ in range(PARKED)]
        seen: dict[int, int] = {}
        deadline_s = time.monotonic() + 60
        while parked(client, server, seen) < PARKED:
            assert time.monotonic() < deadline_s, "they do not wait"
        start_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in ENDED
        took_s = time.monotonic() - start_s
        assert [request.result(60).status_code for request in requests] == [200] * PARKED
    return took_s


@pytest.mark.parametrize("server", SERVERS)
def test_at_sigterm_all_who_wait_are_answered_and_the_process_is_gone(server: str) -> None:
    took_s = [stop_with_requests_parked(server)]
    while took_s[-1] > GONE_WITHIN_S and len(took_s) < TRIES:
        took_s.append(stop_with_requests_parked(server))
    assert took_s[-1] <= GONE_WITHIN_S, took_s


def test_a_connection_that_says_nothing_does_not_hold_up_the_threaded_server() -> None:
    with running("the standard library's threads") as (process, client):
        address = (client.base_url.host, client.base_url.port)
        with httpx.Client(base_url=client.base_url) as keeping, socket.create_connection(address):
            assert keeping.get("/topics/news").status_code == 200  # and keeps its connection
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
