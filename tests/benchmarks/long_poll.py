"""Ten thousand parked HTTP long polls in one process, beside the same server on asyncio.Condition.

    python -m tests.benchmarks.long_poll

The server (``long_poll_server``, on uvicorn) runs in a process of its own; this one holds the
clients' connections. Measured at the server: memory for each parked request, CPU while all of them
wait. At the clients: when each got its answer after one event woke them all. At the end half of the
connections are opened again and cut: nothing of them may be left.

Each side needs a file descriptor for each connection; the limit is raised as far as the system
allows, and fewer connections are used where that is not enough.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.benchmarks.measurement import Figure, Size, run_alone, say

TIMEOUT_S = 600
SPARE_FILES = 200


class Poll(asyncio.Protocol):
    """One client that asks once and notes when it is answered."""

    def __init__(self, end: int, answered: list[float]) -> None:
        self.request = (
            f"GET /read?end={end}&wait={TIMEOUT_S} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ).encode()
        self.answered = answered
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.answered.append(time.perf_counter())
        assert self.transport is not None
        self.transport.close()


@dataclass
class Measured:
    """The measurements of one server."""

    parked: int
    idle_cpu_percent: float
    bytes_per_request: float
    vain_s: float
    p50_s: float
    p99_s: float
    max_s: float
    left_after_vanishing: int


class Server:
    """The server's process, and what the system says of it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)

    def waiting(self) -> int:
        return int(self.client.get("/waiting").text)

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1_024

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(way: str) -> Iterator[Server]:
    """Run the server that waits in this way."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = "-m uvicorn tests.benchmarks.long_poll_server:app --log-level error --backlog 4096"
    process = subprocess.Popen(
        [sys.executable, *command.split(), "--port", str(port)],
        env=os.environ | {"WAITS": way},
        cwd=Path(__file__).parents[2],
    )
    running = Server(process, port)
    try:
        while True:
            try:
                running.waiting()
                break
            except httpx.TransportError:
                assert process.poll() is None, "the server did not start"
                time.sleep(0.05)
        yield running
    finally:
        running.client.close()
        process.kill()
        process.wait()


async def park(running: Server, count: int, end: int, answered: list[float]) -> list[Poll]:
    """Open ``count`` connections that wait for the record ``end``; return when all wait."""
    loop = asyncio.get_running_loop()
    polls = [Poll(end, answered) for _ in range(count)]
    for start in range(0, count, 500):
        await asyncio.gather(
            *(
                loop.create_connection(lambda poll=poll: poll, "127.0.0.1", running.port)  # type: ignore[misc]
                for poll in polls[start : start + 500]
            )
        )
    await _until_waiting(running, count)
    return polls


async def _until_waiting(running: Server, count: int) -> None:
    for _ in range(600):
        if await asyncio.to_thread(running.waiting) == count:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{running.waiting()} wait, not {count}")


async def measure_server(running: Server, count: int, idle_s: float) -> Measured:
    """Park, let idle, wake all, let half of them vanish."""
    answered: list[float] = []
    before = running.rss_bytes()
    await park(running, count, 2, answered)
    parked_bytes = running.rss_bytes() - before
    await asyncio.sleep(1)
    cpu_s = running.cpu_s()
    await asyncio.sleep(idle_s)
    idle_cpu_s = running.cpu_s() - cpu_s
    vain_s = await asyncio.to_thread(_append_in_vain, running)
    start = time.perf_counter()
    await asyncio.to_thread(running.client.post, "/append")
    while len(answered) < count:
        await asyncio.sleep(0.01)
    waits = sorted(at - start for at in answered)
    await _until_waiting(running, 0)
    return Measured(
        count,
        100 * idle_cpu_s / idle_s,
        parked_bytes / count,
        vain_s,
        waits[count // 2],
        waits[int(0.99 * count)],
        waits[-1],
        await _left_after_vanishing(running, count // 2),
    )


def _append_in_vain(running: Server) -> float:
    """Append what nobody waits for; return seconds until the server has it behind itself."""
    start = time.perf_counter()
    running.client.post("/append")
    running.waiting()
    return time.perf_counter() - start


async def _left_after_vanishing(running: Server, count: int) -> int:
    for poll in await park(running, count, 10**9, []):
        assert isinstance(poll.transport, asyncio.Transport)
        poll.transport.abort()
    deadline = time.perf_counter() + 60
    while (left := await asyncio.to_thread(running.waiting)) and time.perf_counter() < deadline:
        await asyncio.sleep(0.1)
    return left


def connections(wanted: int) -> int:
    """Raise the limit of open files, and return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(hard, wanted + SPARE_FILES) if hard != resource.RLIM_INFINITY else wanted + 200
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    fitting = min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES)
    if fitting < wanted:
        say(f"only {fitting:,} connections: the limit of open files is {hard} (ulimit -Hn)")
    return fitting


def measure(size: Size = Size.USUAL) -> list[Figure]:
    count = connections(size.pick(20, 10_000))
    figures: list[Figure] = []
    for way in ("purgatory", "condition"):
        with server(way) as running:
            measured = asyncio.run(measure_server(running, count, size.pick(0.2, 10.0)))
        ours = way == "purgatory"
        name = f"{count:,} long polls, {way}"
        figures += [
            Figure(f"{name}: idle CPU", measured.idle_cpu_percent, "% core", 1 if ours else None),
            Figure(f"{name}: memory of one", measured.bytes_per_request / 1_024, "KiB"),
            Figure(f"{name}: an event that wakes none", measured.vain_s * 1_000, "ms"),
            Figure(f"{name}: one event wakes all, p50", measured.p50_s * 1_000, "ms"),
            Figure(f"{name}: one event wakes all, p99", measured.p99_s * 1_000, "ms"),
            Figure(f"{name}: one event wakes all, max", measured.max_s * 1_000, "ms"),
            Figure(
                f"{name}: left of {count // 2:,} that vanished",
                measured.left_after_vanishing,
                "polls",
                0 if ours else None,
            ),
        ]
    return figures


if __name__ == "__main__":
    run_alone(measure)
