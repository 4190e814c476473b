"""The speed of the live waits: rows per second that they keep up with, lateness, a restart.

    python -m tests.benchmarks.stream_speed [--full]

The whole way is measured: what makes the rows, the broker, Spark and this program share the
machine. How late a window is told is the time from when the watermark of a reader without any delay
would pass its end to when the broker gave the window in the topic of results. Beside it, a plain
loop.

The restart is timed to the first request for records that the broker gets. With ``--full`` it has
10,000,000 rows behind it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.pipeline.engines.spark.session import spark_session
from purgatory.stream.checkpoint import Settings
from purgatory.stream.metrics import StreamMetrics
from purgatory.stream.sinks import StreamConfig, open_sinks
from purgatory.stream.source import TopicSource
from purgatory.stream.stream import JAVA_OPTIONS, run_query
from tests.benchmarks.live_load import PARTITIONS, Load, producer_of
from tests.benchmarks.measurement import Figure, Size, run_alone, say

PREFIX = "live"
TARGET_ROWS_PER_S = 50_000
TARGET_LATENCY_S = 5.0
TARGET_RESTART_S = 15.0
_WINDOW_US = 1_000_000
_LATE_US = 1_000_000
_MOST_ROWS = 400_000
_GIVE_UP_S = 120.0
_WORKERS_END_S = 5.0


@dataclass(frozen=True)
class Plan:
    """The load: rows per second, for so long, counted from then on."""

    rows_per_s: int
    seconds: float
    count_from_s: float
    behind: int


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Return the rate and the lateness of both ways, and the time of a restart."""
    plan = size.pick(
        Plan(300, 5, 0, 0),
        Plan(TARGET_ROWS_PER_S, 90, 30, 1_000_000),
        Plan(TARGET_ROWS_PER_S, 180, 60, 10_000_000),
    )
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        _cluster() as cluster,
    ):
        with _stream(Path(folder), cluster.bootstrap_servers):
            rate, late_s = _told(cluster.bootstrap_servers, plan, f"{PREFIX}.found.waits")
        figures = [
            Figure("stream keeps up with, rows", rate, "/s", plan.rows_per_s * 0.99, "higher"),
            Figure("end of a window to its result, p95", late_s, "s", TARGET_LATENCY_S),
        ]
        if plan.behind:
            figures += _restarts(Path(folder), cluster, plan)
    with _cluster() as cluster:
        servers = cluster.bootstrap_servers
        with _plain(servers):
            rate, late_s = _told(servers, plan, f"{PREFIX}.plain")
        with _plain(servers) as reading_after_s:
            figures.append(Figure("its restart: first rows read", reading_after_s(), "s"))
    figures.append(Figure("a plain consumer's loop keeps up with, rows", rate, "/s"))
    figures.append(Figure("its end of a window to its result, p95", late_s, "s"))
    return figures


@contextmanager
def _cluster() -> Iterator[ThreadedCluster]:
    topics = [TopicSpec(f"{PREFIX}.operations", PARTITIONS)]
    topics += [TopicSpec(f"{PREFIX}.{name}", 1) for name in ("found.waits", "plain")]
    with ThreadedCluster(ClusterConfig(brokers=1, topics=topics)) as cluster:
        yield cluster


@contextmanager
def _stream(folder: Path, servers: str) -> Iterator[None]:
    """Run the query of ``purgatory stream`` from rows that are there already on."""
    producer = producer_of(servers)
    Load(producer, PREFIX).tick(200)
    producer.flush()
    config = StreamConfig(
        folder / "out",
        folder / "out" / "checkpoint",
        window_us=_WINDOW_US,
        watermark_delay_us=_LATE_US,
        to_topic=f"{PREFIX}.found",
        bootstrap_servers=servers,
    )
    source = TopicSource(servers, PREFIX, _MOST_ROWS)
    config.checkpoint.check(
        Settings(_WINDOW_US, _LATE_US, config.longest_wait_us, source.topic, source.check())
    )
    metrics, stop = StreamMetrics(), threading.Event()
    with spark_session("local[2]", java_options=JAVA_OPTIONS) as session:
        what = (session, source, config, open_sinks(config), metrics, stop)
        thread = threading.Thread(target=run_query, args=what)
        thread.start()
        try:
            _wait_for(lambda: _has_batch(metrics))
            yield
        finally:
            stop.set()
            thread.join()


def _has_batch(metrics: StreamMetrics) -> bool:
    labels = {"query": "waits"}
    return metrics.registry.get_sample_value("purgatory_live_batch", labels) is not None


@contextmanager
def _plain(servers: str) -> Iterator[Callable[[], float]]:
    """Run the loop; what is given waits until it reads, and says how long that took."""
    command = [sys.executable, "-m", "tests.benchmarks.plain_stream", servers, PREFIX]
    start_s = time.monotonic()
    with subprocess.Popen(
        [*command, str(_WINDOW_US), str(_LATE_US)], stdout=subprocess.PIPE
    ) as process:

        def reading_after_s() -> float:
            assert process.stdout is not None and process.stdout.readline()
            return time.monotonic() - start_s

        try:
            yield reading_after_s
        finally:
            process.kill()


def _told(servers: str, plan: Plan, topic: str) -> tuple[float, float]:
    """Return the rate that was kept up with, and the 95th percentile of the lateness of results."""
    command = [sys.executable, "-m", "tests.benchmarks.live_load", servers, PREFIX]
    command += [str(plan.rows_per_s), str(plan.seconds)]
    late_s: dict[float, float] = {}
    start_s = time.time()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "told", "log_level": 0})
    consumer.assign([ClientPartition(topic, 0, 0)])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        while load.poll() is None:
            _take_told(consumer, late_s)
        end_s = time.time()
        assert load.stdout is not None
        made = json.loads(load.stdout.read())
    # The watermark has passed the windows that ended as long before the last rows.
    last_s = end_s - (_WINDOW_US + _LATE_US) / 1e6 - 1.0
    give_up_s = time.monotonic() + _GIVE_UP_S
    while max(late_s, default=0.0) < last_s:
        _take_told(consumer, late_s)
        assert time.monotonic() < give_up_s, "the last windows are not told"
    consumer.close()
    counted = sorted(
        late for at_s, late in late_s.items() if at_s >= start_s + plan.count_from_s
    ) or sorted(late_s.values())
    say(
        f"{topic}: {made['rows']:,} rows in {end_s - start_s:.0f} s (the load at most "
        f"{made['behind_s']:.2f} s behind), {len(counted)} windows counted: p50 "
        f"{counted[len(counted) // 2]:.2f} s, max {counted[-1]:.2f} s"
    )
    rate = made["rows"] / (end_s - start_s)
    # Results that are missing at the end beyond the usual lateness are backlog.
    lag_s = max(0.0, late_s[max(late_s)] - TARGET_LATENCY_S)
    return rate * plan.seconds / (plan.seconds + lag_s), counted[len(counted) * 95 // 100]


def _take_told(consumer: Consumer, late_s: dict[float, float]) -> None:
    for message in consumer.consume(1_000, 0.2):
        if message.error() is None:
            result: dict[str, Any] = json.loads(message.value() or b"")
            if result["table"] == "waits":
                end_s = datetime.fromisoformat(result["window_end"]).timestamp()
                told_s = message.timestamp()[1] / 1_000
                late_s[end_s] = max(0.0, told_s - end_s - _LATE_US / 1e6)


def _restarts(folder: Path, cluster: ThreadedCluster, plan: Plan) -> list[Figure]:
    """Start the command again with rows behind it: when it reads, and when it has results."""
    producer = producer_of(cluster.bootstrap_servers)
    load = Load(producer, PREFIX)
    while load.rows < plan.behind:
        load.tick(5_000)
        producer.poll(0)
    producer.flush()
    options = [f"--window={_WINDOW_US}us", f"--watermark={_LATE_US}us"]
    options += [f"--out={folder / 'out'}", f"--bootstrap={cluster.bootstrap_servers}"]
    behind = f"restart with {load.rows:,} rows behind it"
    # The timed process is killed in a batch, as by a crash, not after the last one.
    _restart(cluster, options, to_results=False)
    reading_s, results_s = _restart(cluster, options, to_results=True)
    return [
        Figure(f"{behind}: reading", reading_s, "s", TARGET_RESTART_S),
        Figure(f"{behind}: first batch done", results_s, "s"),
    ]


def _restart(
    cluster: ThreadedCluster, options: list[str], *, to_results: bool
) -> tuple[float, float]:
    """Return after how many seconds a broker was asked for records, and a batch was done."""
    port = 29_475
    command = [sys.executable, "-m", "purgatory", "stream", f"--prefix={PREFIX}", *options]
    start_s = time.monotonic()
    with (
        # No other client reads here: the first counted request is the first of a task.
        cluster.fault.delay_responses(1, by_ms=0, count=1, api="fetch") as fetches,
        subprocess.Popen(
            [*command, f"--metrics-port={port}"],
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process,
    ):
        try:
            _wait_for(lambda: fetches.uses > 0)
            reading_s = time.monotonic() - start_s
            _wait_for(lambda: not to_results or 'batch{query="waits"}' in _page(port))
            return reading_s, time.monotonic() - start_s
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            # Its Python workers end when they see that, and could be taken for the next one's.
            time.sleep(_WORKERS_END_S)


def _page(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def _wait_for(there: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + _GIVE_UP_S
    while not there():
        assert time.monotonic() < give_up_s, "the query doesn't get ready"
        time.sleep(0.1)


if __name__ == "__main__":
    run_alone(measure)
