"""Starts the examples as processes, and stops them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples"

Start = Callable[..., httpx.Client]


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Return what starts a server, ``{port}`` filled in its command, and gives a client of it."""
    processes: list[subprocess.Popen[bytes]] = []
    clients: list[httpx.Client] = []

    def start_server(*command: str, ready: str) -> httpx.Client:
        port = free_port()
        processes.append(
            subprocess.Popen(
                [sys.executable, *(part.format(port=port) for part in command)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
            )
        )
        client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, limits=httpx.Limits(max_connections=50)
        )
        clients.append(client)
        wait_until_ready(client, ready, processes[-1])
        return client

    yield start_server
    for client in clients:
        client.close()
    for process in processes:
        process.send_signal(signal.SIGINT)
        # A worker that must be killed did not close: that is a fault of the example.
        assert process.wait(60) in {0, -signal.SIGINT}


def wait_until_ready(client: httpx.Client, path: str, process: subprocess.Popen[bytes]) -> None:
    """Return when the server answers, or fail if it ended."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        assert process.poll() is None, f"the server ended with status {process.returncode}"
        try:
            client.get(path)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"{client.base_url} did not answer within 60 s")
