"""Each server when clients hang up, and at SIGTERM with waiting requests.

Those of clients that hang up leave; the others get responses, and the process ends.
"""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.processes.examples.servers import ENDED, SERVERS, ParkedFetch, Server, running

PARKED = 10
GONE_WITHIN_S = {"gunicorn with Flask": 4.0, "gunicorn with gevent": 4.0}
"""One second for the others: gunicorn gives connections that are kept alive two more seconds, and
its gevent worker looks once a second whether it shall end, and once a second whether it may."""
TRIES = 8
"""The machine may be busy: one of them has to be so quick, and in each all are answered."""
UNNOTICED = {"gunicorn that forks", "the standard library's threads"}
"""These examples do not look for clients that go: their requests wait to their end."""
OF_EACH_DAY = {"uvicorn with Starlette", "gunicorn with Flask", *UNNOTICED}
"""One of each way to wait: on a loop, in a pool of threads, in forks, in a thread each. The others
change with the servers, not with this project."""


def hang_up(server: Server, client: httpx.Client) -> None:
    """Have clients wait and go; return when none of them waits."""
    assert client.base_url.port is not None
    parked = ParkedFetch(client, server)
    connections = [
        http.client.HTTPConnection("127.0.0.1", client.base_url.port) for _ in range(PARKED)
    ]
    for connection in connections:
        connection.request("GET", server.poll)
    wait_until(parked, PARKED, within_s=60)
    for connection in connections:
        connection.close()
    # Half of what they wait for at the least: then they did not leave by their timeout.
    wait_until(parked, 0, within_s=14)


def stop_with_requests_parked(
    server: Server, process: subprocess.Popen[bytes], client: httpx.Client
) -> float:
    """Return how long the process took to end."""
    with ThreadPoolExecutor(PARKED) as pool:
        requests = [pool.submit(client.get, server.poll) for _ in range(PARKED)]
        wait_until(ParkedFetch(client, server), PARKED, within_s=60)
        start_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in ENDED
        took_s = time.monotonic() - start_s
        assert [request.result(60).status_code for request in requests] == [200] * PARKED
    return took_s


def wait_until(parked: ParkedFetch, count: int, within_s: float) -> None:
    """Return when so many wait."""
    deadline_s = time.monotonic() + within_s
    while parked.count() != count:
        assert time.monotonic() < deadline_s, f"{parked.count()} wait, {count} should"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OF_EACH_DAY else pytest.mark.exhaustive)
        for name in SERVERS
    ],
)
def test_waiting_requests_end_when_clients_or_the_server_go(name: str, tmp_path: Path) -> None:
    server, errors = SERVERS[name], tmp_path / "stderr"
    with running(server, errors) as (process, client):
        if name not in UNNOTICED:
            hang_up(server, client)
        took_s = [stop_with_requests_parked(server, process, client)]
    said = [line for line in errors.read_text().splitlines() if "UVLOOP" not in line]
    assert [line for line in said if "Traceback" in line or "Error" in line] == []
    within_s = GONE_WITHIN_S.get(name, 1.0)
    while took_s[-1] > within_s and len(took_s) < TRIES:
        with running(server) as (process, client):
            took_s.append(stop_with_requests_parked(server, process, client))
    assert took_s[-1] <= within_s, took_s


def test_silent_connection_does_not_hold_up_the_threaded_server() -> None:
    with running(SERVERS["the standard library's threads"]) as (process, client):
        address = (client.base_url.host, client.base_url.port)
        with httpx.Client(base_url=client.base_url) as keeping, socket.create_connection(address):
            assert keeping.get("/topics/news").status_code == 200  # and keeps its connection
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
