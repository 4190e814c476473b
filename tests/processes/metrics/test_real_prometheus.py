"""A real Prometheus scrapes a real server under load, and tells when its follower stalls.

Its configuration and alerts are those of ``docs/monitoring``, but for their times: ``REPLACED``.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.processes.metrics.produce_server import ProduceServer
from tests.unit.metrics.promtool import MONITORING, installed

T = TypeVar("T")

PATIENCE_S = 30
REPLACED = {
    "scrape_interval: 15s": "scrape_interval: 1s",
    "evaluation_interval: 15s": "evaluation_interval: 1s",
    "[5m]": "[5s]",
    "for: 2m": "for: 1s",
}
ALERT = "PurgatoryProducesExpire"


class Prometheus:
    """A running Prometheus' HTTP interface."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def get(self, path: str) -> Any:
        """Return the data of an answer; None while it doesn't listen yet."""
        try:
            with urllib.request.urlopen(self._url + path, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError):
            return None

    def query(self, expression: str) -> dict[str, float]:
        """Return the values of an expression by their outcome, stage or bound; '' without."""
        data = self.get("query?" + urllib.parse.urlencode({"query": expression}))
        found: dict[str, float] = {}
        for series in (data or {"result": []})["result"]:
            labels = series["metric"]
            one = next((labels[name] for name in ("outcome", "stage", "le") if name in labels), "")
            found[one] = float(series["value"][1])
        return found

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        alerts = (self.get("alerts") or {"alerts": []})["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Start a Prometheus on a free port that scrapes ``target``."""
    texts = {file: (MONITORING / file).read_text() for file in ("prometheus.yml", "alerts.yml")}
    for old, new in (REPLACED | {"localhost:9400": target}).items():
        assert any(old in text for text in texts.values()), f"{old!r} is in neither file any more"
        texts = {file: text.replace(old, new) for file, text in texts.items()}
    for file, text in texts.items():
        (folder / file).write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            installed("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ]
    )
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def until(what: str, look: Callable[[], T]) -> T:
    """Look ten times a second until there is something."""
    deadline_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not (found := look()):
        assert time.monotonic() < deadline_s, f"waited in vain: {what}"
        pause.wait(0.1)
    return found


@pytest.mark.slow
def test_prometheus_scrapes_and_alerts_on_a_stalled_follower(
    tmp_path: Path,
) -> None:
    installed("prometheus")
    with ProduceServer() as server, prometheus(tmp_path, server.address) as asked:
        rate = 'sum(rate(purgatory_operations_total{outcome="completed"}[5s]))'
        until("writes are copied", lambda: asked.query(rate).get("", 0) > 0)
        assert ALERT not in asked.firing()

        server.stall()
        until("the alert fires", lambda: ALERT in asked.firing())
        server.resume()
        until("the alert stops", lambda: ALERT not in asked.firing())

        server.stop_clients()
        counters = server.purgatory.counters
        total = "purgatory_operations_total"
        until("the last scrape", lambda: asked.query(total) == counters.outcomes)
        assert counters.outcomes["expired"] == server.answered[504] > 0
        completed = counters.outcomes["immediate"] + counters.outcomes["completed"]
        assert completed == server.answered[200] > 0
        assert asked.query("purgatory_wait_seconds_count") == {
            outcome: sum(waits.counts) for outcome, waits in counters.waits.items()
        }
        waited = asked.query("purgatory_wait_seconds_sum")
        assert waited == pytest.approx({o: w.sum_ns / 1e9 for o, w in counters.waits.items()})
        assert asked.query("purgatory_checks_total") == {"": counters.checks}
        assert asked.query("purgatory_callback_errors_total") == counters.callback_errors
        assert asked.query("purgatory_missed_wakeups_total") == {"": counters.missed_wakeups}
        assert asked.query("purgatory_pending_operations") == {"": 0}
        assert asked.query("purgatory_pending_operations_limit") == {"": 100}
