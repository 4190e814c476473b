"""The workers of a pre-forking server add up, whichever of them is scraped: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[3]
PATIENCE_S = 30

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

Values = dict[tuple[str, str], float]
"""By the sample's name and its outcome, or ''."""


class Worker:
    """One worker of the server."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self._url = f"http://127.0.0.1:{port}"

    def work(self, **numbers: int) -> dict[str, int]:
        """Submit so many operations there; return what that worker has counted."""
        query = "&".join(f"{kind}={number}" for kind, number in numbers.items())
        return json.loads(self._get(f"/work?{query}"))  # type: ignore[no-any-return]

    def scrape(self) -> Values:
        """Return the values of a scrape of this worker."""
        return {
            (sample.name, sample.labels.get("outcome", "")): sample.value
            for family in text_string_to_metric_families(self._get("/metrics"))
            for sample in family.samples
            if not sample.name.endswith("_bucket")
        }

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._url + path, timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
            return text


class Server:
    """The server's master process."""

    def __init__(self, made: str, workers: int, folder: Path) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "tests/processes/metrics/prefork_server.py"),
                made,
                str(workers),
            ],
            cwd=ROOT,
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.workers = [self.next_worker() for _ in range(workers)]

    def next_worker(self) -> Worker:
        """Wait for the next worker to be ready."""
        line = self._line("started")
        return Worker(line["pid"], line["port"])

    def kill(self, worker: Worker) -> None:
        """Kill a worker, and wait until the master has noticed."""
        os.kill(worker.pid, signal.SIGKILL)
        assert self._line("ended")["pid"] == worker.pid

    def _line(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        line: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert line["event"] == event
        return line

    def close(self) -> None:
        """End all processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture(params=["before", "after"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Three workers, whose purgatory was made before the fork, or after it."""
    server = Server(request.param, 3, tmp_path)
    yield server
    server.close()


def scraped_until(worker: Worker, wanted: Values) -> Values:
    """Scrape until the others' values are there: each second they write one after the other."""
    deadline_s = time.monotonic() + PATIENCE_S
    values: Values = {}
    while not wanted.items() <= values.items():
        found = {name: values.get(name) for name in wanted}
        assert time.monotonic() < deadline_s, f"wanted {wanted}, found {found}"
        # prometheus-client fails at a file that another worker has just created.
        with suppress(RemoteDisconnected):
            values = worker.scrape()
    return values


def test_workers_add_up_and_the_dead_keep_their_counts(server: Server) -> None:
    pending, limit = (
        ("purgatory_pending_operations", ""),
        ("purgatory_pending_operations_limit", ""),
    )
    total = ("purgatory_operations_total", "immediate")
    counted = [
        worker.work(waiting=number + 1, immediate=10 * (number + 1))
        for number, worker in enumerate(server.workers)
    ]
    immediate = sum(one["immediate"] for one in counted)
    assert immediate == 60
    first, second, third = server.workers
    for worker in server.workers:
        values = scraped_until(
            worker,
            {
                pending: 6,
                total: immediate,
                ("purgatory_wait_seconds_count", "immediate"): immediate,
                limit: 300,
                ("purgatory_watch_keys", ""): 3,
                ("timer_tasks", ""): 6,
            },
        )
        assert abs(values["purgatory_reaper_last_advance_timestamp_seconds", ""] - time.time()) < 60

    server.kill(third)
    values = first.scrape()
    assert values[pending] == 3, "its waiting operations are gone"
    assert values[total] == immediate, "its counts stay"

    replacement = server.next_worker()
    replacement.work(waiting=4, immediate=5)
    scraped_until(second, {pending: 7, total: immediate + 5, limit: 300})


PROGRAM = """
import os, sys
folder, found, submitted, replaced = os.environ["PROMETHEUS_MULTIPROC_DIR"], *map(int, sys.argv[1:])
if found:  # the system gave this process the number of one that ended
    for kind in ("counter", "histogram"):
        os.rename(f"{folder}/{kind}_{found}.db", f"{folder}/{kind}_{os.getpid()}.db")
from tests.processes.metrics.prefork_server import Waiting, made, scrape
from prometheus_client import multiprocess
from purgatory import metrics
multiprocess.mark_process_dead(found)
purgatory = made()
for _ in range(submitted):
    purgatory.try_complete_else_watch(Waiting(True), ["key"])
purgatory.close()
if replaced:
    metrics.unregister(purgatory)
    purgatory = made()
    for _ in range(replaced):
        purgatory.try_complete_else_watch(Waiting(True), ["key"])
    purgatory.close()
    metrics.publish()
    sys.stderr.write(scrape().decode())
print(os.getpid())
"""


def run_program(folder: Path, found: int, submitted: int, replaced: int) -> tuple[int, str]:
    """Run ``PROGRAM`` to its end; return its number and what it scraped."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(found), str(submitted), str(replaced)],
        cwd=ROOT,
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return int(ran.stdout.split()[-1]), ran.stderr


def test_counters_never_go_back(tmp_path: Path) -> None:
    pid, _scraped = run_program(tmp_path, 0, 5, 0)
    _pid, scraped = run_program(tmp_path, pid, 2, 3)
    name = 'purgatory_operations_total{outcome="immediate",purgatory="Produce"}'
    assert f"{name} 10.0" in scraped, "5 at exit, 2 of the replaced purgatory, 3 of the next"
    assert 'purgatory_wait_seconds_count{outcome="immediate",purgatory="Produce"} 10.0' in scraped
    assert 'purgatory_pending_operations_limit{purgatory="Produce"} 100.0' in scraped
