"""The gauges of a uvicorn worker that was killed vanish with it; those of the others stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.processes.examples.conftest import EXAMPLES, ROOT, free_port

LIMIT_S = 60.0
WAITS = 12

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The example under uvicorn, with two workers."""
    command = ["-m", "uvicorn", "uvicorn_metrics:app", "--app-dir", str(EXAMPLES), "--workers", "2"]
    server = subprocess.Popen(
        [sys.executable, *command, "--port", str(port), "--log-level", "warning"],
        cwd=ROOT,
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        yield server
    finally:
        kill(server)
        server.wait()


def kill(server: subprocess.Popen[bytes]) -> None:
    """Kill a server and its workers."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


def eventually(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while True:
        with suppress(httpx.TransportError):
            if condition():
                return
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


def pending(url: str) -> float:
    """Return the pending waits of all workers, from whichever takes the scrape."""
    with httpx.Client(timeout=LIMIT_S) as client:
        text = client.get(f"{url}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "purgatory_pending_operations"
    )


def test_gauges_of_a_killed_worker_vanish(server: subprocess.Popen[bytes], port: int) -> None:
    url = f"http://127.0.0.1:{port}"

    def wait(seconds: float) -> int | None:
        with suppress(httpx.TransportError), httpx.Client(timeout=LIMIT_S) as client:
            worker: int = client.get(f"{url}/wait", params={"seconds": seconds}).json()["worker"]
            return worker
        return None

    eventually(lambda: wait(0) is not None, "a worker responds")
    with ThreadPoolExecutor(WAITS) as pool:
        found: set[int] = set()

        def both_respond() -> bool:
            found.update(filter(None, pool.map(lambda _: wait(0.05), range(WAITS))))
            return len(found) == 2

        eventually(both_respond, "both workers respond")
        killed = min(found)
        waits = [pool.submit(wait, 25) for _ in range(WAITS)]
        eventually(lambda: pending(url) == WAITS, "all wait")
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: sum(one.done() for one in waits) >= 1, "its clients notice")
        eventually(lambda: pending(url) == sum(not one.done() for one in waits), "gone")
        kill(server)  # nobody waits for the other's clients
