"""The gRPC examples, on a loop and on threads, as real processes with real clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.processes.examples.conftest import EXAMPLES, ROOT


class Client:
    """The example's process, and a channel to it."""

    def __init__(self, example: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / example), "0"],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.channel = grpc.insecure_channel(self.process.stdout.readline().strip())
        self._append = self.channel.unary_unary("/Topics/Append")
        self._read = self.channel.unary_unary("/Topics/Read")

    def append(self, **message: object) -> Any:
        return json.loads(self._append(json.dumps(message).encode(), timeout=60))

    def read(self, **message: object) -> Any:
        return self._read.future(json.dumps(message).encode(), timeout=60)

    def waiting(self) -> int:
        return int(json.loads(self.channel.unary_unary("/Topics/Waiting")(b"", timeout=60)))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


EXAMPLES_OF_GRPC = ["grpc_aio.py", "threaded_grpc.py"]


@pytest.fixture(scope="module", params=EXAMPLES_OF_GRPC)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of each example: each test uses topics of its own."""
    yield from running(request.param)


@pytest.fixture(params=EXAMPLES_OF_GRPC)
def stopped(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of an example that the test stops."""
    yield from running(request.param)


@pytest.fixture(scope="module")
def threaded() -> Iterator[Client]:
    """A client of an example in which nothing else waits."""
    yield from running("threaded_grpc.py")


def running(example: str) -> Iterator[Client]:
    client = Client(example)
    yield client
    client.channel.close()
    if client.process.poll() is None:
        client.stop()
    if client.process.stdout is not None:
        client.process.stdout.close()


def test_reads_wait_for_the_next_record(client: Client) -> None:
    assert client.append(topic="news", record="one") == {"offset": 0}
    assert json.loads(client.read(topic="news").result()) == {"records": ["one"], "next": 1}
    reads = [client.read(topic="news", offset=1, wait=50) for _ in range(80)]
    assert client.append(topic="news", record="two") == {"offset": 1}
    assert {read.result() for read in reads} == {b'{"records": ["two"], "next": 2}'}


def test_cancelled_read_does_not_affect_others(client: Client) -> None:
    gone, stays = (client.read(topic="cancelled", wait=50) for _ in range(2))
    client.append(topic="other", record="comes after them")
    assert gone.cancel()
    client.append(topic="cancelled", record="one")
    assert json.loads(stays.result())["records"] == ["one"]


def test_invalid_request_is_refused_with_a_valid_form(client: Client) -> None:
    nonsense = [
        {},
        {"topic": "news", "offset": "first"},
        {"topic": "news", "wait": "nan"},
        ["news"],
    ]
    for message in nonsense:
        for method in ("Read", "Append"):
            with pytest.raises(grpc.RpcError) as raised:
                client.channel.unary_unary(f"/Topics/{method}")(json.dumps(message).encode())
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert raised.value.details().startswith(f'{method} takes {{"topic": "news"')


def test_sigterm_ends_waiting_requests_with_responses_and_the_process(stopped: Client) -> None:
    client = stopped
    reads = []
    for _ in range(80):
        reads.append(client.read(topic="news", wait=50))
        client.append(topic="other", record="comes after it")
    # A call that has yet to begin is cancelled by gRPC itself: let the last ones begin as well.
    for _ in range(20):
        client.append(topic="other", record="comes after them")
    start_s = time.monotonic()
    assert client.stop() == 0
    took_s = time.monotonic() - start_s
    assert {read.result() for read in reads} == {b'{"records": [], "next": 0}'}
    assert took_s < 25, "half of what the reads wait for; the usual is 0.2 s"


def test_thread_pool_full_of_waiting_reads_accepts_the_waking_record(
    threaded: Client,
) -> None:
    reads = [threaded.read(topic="full", wait=50) for _ in range(150)]
    done = refused(reads, 60)
    assert threaded.append(topic="full", record="one") == {"offset": 0}
    results = [read.result() for read in reads if read not in done]
    assert results == [b'{"records": ["one"], "next": 1}'] * 90


def test_cancelled_reads_free_their_threads(threaded: Client) -> None:
    for _ in range(3):
        reads = [threaded.read(topic="news", wait=50) for _ in range(150)]
        refused(reads, 60)
        for read in reads:
            read.cancel()
        deadline_s = time.monotonic() + 25
        while threaded.waiting() != 0:
            assert time.monotonic() < deadline_s


def refused(reads: list[Any], count: int) -> list[Any]:
    """Return the reads that were refused since too many wait, once they are that many."""
    deadline_s = time.monotonic() + 25
    while len(done := [read for read in reads if read.done()]) < count:
        assert time.monotonic() < deadline_s, f"{len(done)} were refused"
        time.sleep(0.01)
    assert {read.code() for read in done} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    return done
