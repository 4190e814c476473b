"""Each server at SIGTERM with waiting requests: all get responses, and the process ends."""

from __future__ import annotations

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.processes.examples.servers import ENDED, SERVERS, ParkedFetch, running

PARKED = 10
GONE_WITHIN_S = {"gunicorn with Flask": 4.0, "gunicorn with gevent": 4.0}
"""One second for the others: gunicorn gives connections that are kept alive two more seconds, and
its gevent worker looks once a second whether it shall end, and once a second whether it may."""
TRIES = 8
"""The machine may be busy: one of them has to be so quick, and in each all are answered."""


def stop_with_requests_parked(name: str) -> float:
    """Return how long the process took to end."""
    server = SERVERS[name]
    with running(server) as (process, client), ThreadPoolExecutor(PARKED) as pool:
        requests = [pool.submit(client.get, server.poll) for _ in range(PARKED)]
        parked = ParkedFetch(client, server)
        deadline_s = time.monotonic() + 60
        while parked.count() < PARKED:
            assert time.monotonic() < deadline_s, "they do not wait"
        start_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in ENDED
        took_s = time.monotonic() - start_s
        assert [request.result(60).status_code for request in requests] == [200] * PARKED
    return took_s


@pytest.mark.parametrize("server", SERVERS)
def test_sigterm_ends_waiting_requests_with_responses_and_the_process(server: str) -> None:
    within_s = GONE_WITHIN_S.get(server, 1.0)
    took_s = [stop_with_requests_parked(server)]
    while took_s[-1] > within_s and len(took_s) < TRIES:
        took_s.append(stop_with_requests_parked(server))
    assert took_s[-1] <= within_s, took_s


def test_silent_connection_does_not_hold_up_the_threaded_server() -> None:
    with running(SERVERS["the standard library's threads"]) as (process, client):
        address = (client.base_url.host, client.base_url.port)
        with httpx.Client(base_url=client.base_url) as keeping, socket.create_connection(address):
            assert keeping.get("/topics/news").status_code == 200  # and keeps its connection
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
