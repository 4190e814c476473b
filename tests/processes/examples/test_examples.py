"""The examples, each as a real process with real clients."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.processes.examples.conftest import EXAMPLES, ROOT, Start

LONG_POLL_SERVERS = {
    "starlette": (
        *("-m", "uvicorn", "long_poll_starlette:app", "--app-dir", str(EXAMPLES)),
        *("--port", "{port}", "--log-level", "warning", "--timeout-graceful-shutdown", "5"),
    ),
    "fastapi": (
        *("-m", "uvicorn", "long_poll_fastapi:app", "--app-dir", str(EXAMPLES)),
        *("--port", "{port}", "--log-level", "warning", "--timeout-graceful-shutdown", "5"),
    ),
    "threads": (str(EXAMPLES / "threaded_http.py"), "{port}"),
}


@pytest.fixture(scope="module", params=LONG_POLL_SERVERS)
def topics(request: pytest.FixtureRequest, start: Start) -> httpx.Client:
    """A client of each of the long-poll servers: each test uses topics of its own."""
    return start(*LONG_POLL_SERVERS[request.param], ready="/topics/none")


def waiting(client: httpx.Client) -> float:
    """Return how many operations wait, by the server's metrics."""
    for line in client.get("/metrics").text.splitlines():
        if line.startswith('purgatory_pending_operations{purgatory="Fetch"}'):
            return float(line.split()[-1])
    raise AssertionError("no purgatory on /metrics")


def wait_for_waiting(client: httpx.Client, count: int) -> None:
    deadline_s = time.monotonic() + 60
    while waiting(client) != count:
        assert time.monotonic() < deadline_s, f"{waiting(client)} wait, not {count}"


def test_read_of_available_records_responds_at_once(topics: httpx.Client) -> None:
    assert topics.post("/topics/news", content="one").json() == {"offset": 0}
    assert topics.post("/topics/news", content="two").status_code == 201
    answer = topics.get("/topics/news", params={"offset": 1, "wait": 50}).json()
    assert answer == {"records": ["two"], "next": 2}


def test_long_polls_respond_when_the_record_arrives(topics: httpx.Client) -> None:
    with ThreadPoolExecutor(10) as pool:
        polls = [
            pool.submit(topics.get, "/topics/arriving", params={"offset": 0, "wait": 50})
            for _ in range(10)
        ]
        wait_for_waiting(topics, 10)
        topics.post("/topics/other", content="wakes nobody")
        assert waiting(topics) == 10
        topics.post("/topics/arriving", content="hello")
        answers = [poll.result(60).json() for poll in polls]
    assert answers == [{"records": ["hello"], "next": 1}] * 10
    assert waiting(topics) == 0


def test_a_long_poll_ends_empty_at_its_timeout(topics: httpx.Client) -> None:
    start_s = time.monotonic()
    answer = topics.get("/topics/empty", params={"offset": 0, "wait": 0.2}).json()
    assert answer == {"records": [], "next": 0}
    assert time.monotonic() - start_s >= 0.2


def test_invalid_request_is_refused_with_a_valid_form(topics: httpx.Client) -> None:
    for query in ({"offset": "first"}, {"offset": "1e3"}, {"wait": "soon"}, {"wait": "nan"}):
        answer = topics.get("/topics/news", params=query)
        assert answer.status_code in {400, 422}, query  # FastAPI's for what it finds by itself
        assert re.search("number|integer|greater", answer.text), answer.text


def test_body_that_is_no_text_is_refused_and_not_appended(topics: httpx.Client) -> None:
    answer = topics.post("/topics/words", content=b"caf\xe9")
    assert answer.status_code == 400
    assert "a record must be text in UTF-8" in answer.text
    assert topics.get("/topics/words").json() == {"records": [], "next": 0}
    assert topics.post("/topics/words", content="café").json() == {"offset": 0}


@pytest.mark.parametrize("topics", ["threads"], indirect=True)
def test_a_body_of_unknown_length_is_refused_by_the_threaded_server(topics: httpx.Client) -> None:
    answer = topics.post("/topics/chunks", content=iter([b"in", b"chunks"]))
    assert answer.status_code == 400
    assert "Content-Length" in answer.text


@pytest.mark.parametrize("topics", ["starlette", "fastapi"], indirect=True)
def test_vanished_client_leaves_nothing_behind(topics: httpx.Client) -> None:
    address = (topics.base_url.host, topics.base_url.port)
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET /topics/quiet?wait=50 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for_waiting(topics, 1)
    wait_for_waiting(topics, 0)  # long before its timeout


def test_quorum_write_names_replicas_without_acknowledgement() -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "quorum_write.py")],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("record")]
    assert lines == [
        "record 0 stored on north, south",
        "record 1 NOT acknowledged by south, west in time",
    ]


def fresh_get(client: httpx.Client, path: str) -> dict[str, object]:
    """Send a request over its own connection: any worker may take it."""
    with httpx.Client(base_url=client.base_url, timeout=60) as fresh:
        answer: dict[str, object] = fresh.get(path).json()
        return answer


@pytest.mark.slow
def test_forked_workers_expire_and_wake_on_their_own(start: Start) -> None:
    client = start(
        *("-m", "gunicorn", "--preload", "--workers", "3", "--worker-class", "gthread"),
        *("--threads", "20", "--bind", "127.0.0.1:{port}", "--log-level", "error"),
        *("--chdir", str(EXAMPLES), "prefork_gunicorn:app"),
        ready="/worker",
    )
    with ThreadPoolExecutor(30) as pool:
        # Each worker expires what waits in it; requests are sent until two have taken some.
        answers: list[dict[str, object]] = []
        while len({answer["worker"] for answer in answers}) < 2:
            answers += pool.map(lambda _: fresh_get(client, "/wait?seconds=0.3"), range(30))
        assert not any(answer["woken"] for answer in answers)
        # And each wakes it: signals are sent until they have met every worker.
        polls = [pool.submit(client.get, "/wait?seconds=20") for _ in range(10)]
        while not all(poll.done() for poll in polls):
            with httpx.Client(base_url=client.base_url) as fresh:  # any worker may take it
                fresh.post("/signal")
        assert any(poll.result().json()["woken"] for poll in polls)
    # Each of them has started a reaper, the parent's being the parent's.
    used = {answer["worker"] for answer in answers}
    seen: dict[object, object] = {}
    while not used <= seen.keys():
        worker = fresh_get(client, "/worker")
        seen[worker["worker"]] = worker["reapers"]
    assert [seen[worker] for worker in used] == [["ExpirationReaper-0-Signal"]] * len(used)


def test_forked_worker_refuses_invalid_requests(start: Start) -> None:
    client = start(
        *("-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--log-level", "error"),
        *("--chdir", str(EXAMPLES), "prefork_gunicorn:app"),
        ready="/worker",
    )
    for seconds in ("abc", "nan", "-inf"):
        answer = client.get("/wait", params={"seconds": seconds})
        assert (answer.status_code, answer.json()["error"]) == (400, "seconds must be a number")


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 100
