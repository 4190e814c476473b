"""Each server when clients hang up: their waiting requests leave, and nothing is logged."""

from __future__ import annotations

import http.client
import time
from pathlib import Path

import pytest

from tests.processes.examples.servers import SERVERS, ParkedFetch, running

PARKED = 10
UNNOTICED = {"gunicorn that forks", "the standard library's threads"}
"""These examples do not look for clients that go: their requests wait to their end."""


@pytest.mark.parametrize("name", [name for name in SERVERS if name not in UNNOTICED])
def test_requests_of_clients_that_hang_up_leave_the_purgatory(name: str, tmp_path: Path) -> None:
    server = SERVERS[name]
    errors = tmp_path / "stderr"
    with running(server, errors) as (process, client):
        port = client.base_url.port
        assert port is not None
        parked = ParkedFetch(client, server)
        connections = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(PARKED)]
        for connection in connections:
            connection.request("GET", server.poll)
        wait_until(parked, PARKED)
        for connection in connections:
            connection.close()
        wait_until(parked, 0)
        process.terminate()
        process.wait(60)
    said = [line for line in errors.read_text().splitlines() if "UVLOOP" not in line]
    assert [line for line in said if "Traceback" in line or "Error" in line] == []


def wait_until(parked: ParkedFetch, count: int) -> None:
    # Half of what they wait for at the least: then they did not leave by their timeout.
    deadline_s = time.monotonic() + 14
    while parked.count() != count:
        assert time.monotonic() < deadline_s, f"{parked.count()} wait, {count} should"
        time.sleep(0.02)
