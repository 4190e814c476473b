"""Requests per second of a cluster, its latency to a waiting consumer, and its cost while idle.

    python -m tests.benchmarks.cluster_speed

Cluster and clients are processes of their own, on loopback; so two cores are shared by both. The
cost of the cluster itself is also measured in processor time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.cluster_clients import CONNECTIONS, TOPIC
from tests.benchmarks.measurement import Figure, Size, run_alone

ROOT = Path(__file__).parents[2]
IDLE_CONSUMERS = 1_000


class Process(NamedTuple):
    """A cluster that runs."""

    servers: str
    pid: int
    started_s: float

    def cpu_s(self) -> float:
        """Return the processor time that it has used."""
        return cpu_s(self.pid)


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, by the threads that it has now."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


@contextmanager
def cluster(
    *options: str,
    partitions: int = 3,
    quiet: bool = False,
    bytecode: Path | None = None,
    root: Path = ROOT,
) -> Iterator[Process]:
    """Run `purgatory cluster`.

    Args:
        options: of the command.
        partitions: of its topic.
        quiet: without its log.
        bytecode: where Python's is kept; by default where it is as this process is told.
        root: the tree whose command it is.
    """
    env = dict(os.environ)
    if root != ROOT:
        env["PYTHONPATH"] = str(root)
    if bytecode is not None:
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env["PYTHONPYCACHEPREFIX"] = str(bytecode)
    command = [sys.executable, "-m", "purgatory", "cluster", "--port", "0", "--control-port", "0"]
    start = time.monotonic()
    with subprocess.Popen(
        [*command, "--topic", f"{TOPIC}:{partitions}", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
        cwd=root,
        env=env,
    ) as process:
        assert process.stdout is not None
        servers = process.stdout.readline().strip().partition("=")[2]
        try:
            yield Process(servers, process.pid, start)
        finally:
            process.send_signal(signal.SIGINT)


def client(kind: str, servers: str, *numbers: float) -> dict[str, Any]:
    """Run one client to its end, and return what it measured."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.cluster_clients", kind, servers or "-"]
        + [str(number) for number in numbers],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def requests(seconds: float) -> list[Figure]:
    with cluster() as running:
        client("produce", running.servers, min(1, seconds))
        before_s = running.cpu_s()
        rate = client("produce", running.servers, seconds)["per_s"]
        spent_s = max(running.cpu_s() - before_s, 0.01)
    what = f"produce requests, acks=all, {CONNECTIONS} connections"
    per_core = rate * seconds / spent_s
    return [
        Figure(f"{what}, by the clock", rate, "per s"),
        Figure(f"{what}, per second of the cluster's core", per_core, "per s", 20_000, "higher"),
    ]


def wake(rounds: int) -> list[Figure]:
    with cluster() as running:
        waits = client("wake", running.servers, rounds)["ms"]
    return [
        Figure("a waiting consumer has the append, p50", waits[len(waits) // 2], "ms"),
        Figure("a waiting consumer has the append, p99", waits[int(len(waits) * 0.99)], "ms", 10),
    ]


def idle(count: int, seconds: float, max_wait_ms: int, target: float | None) -> Figure:
    with cluster() as running:
        command = [sys.executable, "-m", "tests.benchmarks.cluster_clients", "idle"]
        numbers = [str(count), str(seconds + 1), str(max_wait_ms)]
        with subprocess.Popen(
            [*command, running.servers, *numbers], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as consumers:
            assert consumers.stdout is not None
            assert consumers.stdout.readline() == "ready\n"
            before_s = running.cpu_s()
            time.sleep(seconds)
            share = (running.cpu_s() - before_s) / seconds
            consumers.stdout.read()  # it ends after printing its counts
    what = f"{count:,} idle consumers that ask every {max_wait_ms / 1_000:g} s"
    return Figure(what, 100 * share, "% of a core", target)


def measure(size: Size = Size.USUAL) -> list[Figure]:
    figures = requests(size.pick(0.3, 8))
    figures += wake(size.pick(10, 500))
    consumers, seconds = size.pick(10, IDLE_CONSUMERS), size.pick(0.3, 10)
    figures.append(idle(consumers, seconds, 30_000, 2))
    figures.append(idle(consumers, seconds, 500, None))
    return figures


if __name__ == "__main__":
    run_alone(measure)
