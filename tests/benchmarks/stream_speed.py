"""How fast the live audit is: rows per second that it keeps up with, how late it tells, a restart.

    python -m tests.benchmarks.stream_speed [--full]

The whole way is measured: what makes the rows, the broker, Spark and this program share the
machine. Ten times a second a record is read at a second place; how late that is known is the time
from when this row was produced to the time that the broker gave the finding in the topic of
results. Counting begins when as much is remembered as ever will be. Beside it, a plain loop.

The restart is timed to the first request for records that the broker gets: on a machine where
``purgatory prepare`` was never run, and after it.

With ``--full`` the restart has 10,000,000 rows behind it, and the time for which records are
remembered is what it is if nobody says: two minutes and a half in all.
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
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.pipeline.engines.spark.session import spark_session
from purgatory.pipeline.stream.metrics import StreamMetrics
from purgatory.pipeline.stream.publisher import published_topics
from purgatory.pipeline.stream.rows import topic_records
from purgatory.pipeline.stream.sinks import StreamConfig, open_sinks
from purgatory.pipeline.stream.stream import JAVA_OPTIONS, SETTINGS, run_queries
from tests.benchmarks.live_load import PARTITIONS, Load, producer_of
from tests.benchmarks.measurement import Figure, Size, run_alone, say

PREFIX = "live"
TARGET_ROWS_PER_S = 50_000
TARGET_LATENCY_S = 5.0
TARGET_RESTART_S = 15.0
_MOST_ROWS = 400_000
_GIVE_UP_S = 120.0
_WORKERS_END_S = 5.0


@dataclass(frozen=True)
class Plan:
    """What is measured: rows per second, for so long, counted from then on."""

    rows_per_s: int
    seconds: float
    count_from_s: float
    late_s: float
    remember_s: float
    behind: int


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Return the rate and the lateness of both ways, and the time of a restart."""
    plan = size.pick(
        Plan(300, 3, 0, 10, 20, 0),
        Plan(TARGET_ROWS_PER_S, 120, 60, 15, 30, 1_000_000),
        Plan(TARGET_ROWS_PER_S, 210, 155, 30, 120, 10_000_000),
    )
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        _cluster() as cluster,
    ):
        with _stream(Path(folder), cluster.bootstrap_servers, plan):
            rate, late_s = _told(cluster.bootstrap_servers, plan, f"{PREFIX}.found.order")
        figures = [
            Figure("stream keeps up with, rows", rate, "/s", plan.rows_per_s * 0.99, "higher"),
            Figure("append to result, p95", late_s, "s", TARGET_LATENCY_S),
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
    figures.append(Figure("its append to result, p95", late_s, "s"))
    return figures


@contextmanager
def _cluster() -> Iterator[ThreadedCluster]:
    topics = [TopicSpec(name, PARTITIONS) for name in published_topics(PREFIX).values()]
    topics += [TopicSpec(f"{PREFIX}.{name}", 1) for name in ("found.order", "found.waits", "plain")]
    with ThreadedCluster(ClusterConfig(brokers=1, topics=topics)) as cluster:
        yield cluster


@contextmanager
def _stream(folder: Path, servers: str, plan: Plan) -> Iterator[None]:
    """Run the jobs of ``purgatory stream`` from rows that are there already on."""
    producer = producer_of(servers)
    Load(producer, PREFIX, first_value=10**15).tick(200)
    producer.flush()
    config = StreamConfig(
        folder / "out",
        folder / "out" / "checkpoint",
        watermark_delay_us=int(plan.late_s * 1e6),
        state_ttl_us=int(plan.remember_s * 1e6),
        to_topic=f"{PREFIX}.found",
        bootstrap_servers=servers,
    )
    metrics, stop = StreamMetrics(), threading.Event()
    with spark_session("local[2]", java_options=JAVA_OPTIONS, settings=SETTINGS) as session:
        records = topic_records(session, servers, PREFIX, _MOST_ROWS, {})
        what = (session, records, config, open_sinks(config), metrics, stop)
        thread = threading.Thread(target=run_queries, args=what)
        thread.start()
        try:
            _wait_for(lambda: all(_batches(metrics).get(name, -1) >= 0 for name in _QUERIES))
            yield
        finally:
            stop.set()
            thread.join()


_QUERIES = ("waits", "order")


def _batches(metrics: StreamMetrics) -> dict[str, float]:
    return {
        sample.labels["query"]: sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "purgatory_live_batch"
    }


@contextmanager
def _plain(servers: str) -> Iterator[Callable[[], float]]:
    """Run the loop; what is given waits until it reads, and says how long that took."""
    command = [sys.executable, "-m", "tests.benchmarks.plain_stream", servers, PREFIX]
    start_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:

        def reading_after_s() -> float:
            assert process.stdout is not None and process.stdout.readline()
            return time.monotonic() - start_s

        try:
            yield reading_after_s
        finally:
            process.kill()


def _told(servers: str, plan: Plan, topic: str) -> tuple[float, float]:
    """Return the rate that was kept up with, and the 95th percentile of how late was told."""
    command = [sys.executable, "-m", "tests.benchmarks.live_load", servers, PREFIX]
    command += [str(plan.rows_per_s), str(plan.seconds)]
    told_at_s: dict[int, float] = {}
    start_s = time.time()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "told", "log_level": 0})
    consumer.assign([ClientPartition(topic, 0, 0)])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        while load.poll() is None:
            _take_told(consumer, told_at_s)
        end_s = time.time()
        assert load.stdout is not None
        made = json.loads(load.stdout.read())
    copied_at_s = {int(value): at_s for value, at_s in made["copied_at_s"].items()}
    give_up_s = time.monotonic() + _GIVE_UP_S
    while copied_at_s.keys() - told_at_s.keys():
        _take_told(consumer, told_at_s)
        assert time.monotonic() < give_up_s, f"{len(told_at_s)} of {len(copied_at_s)} are told of"
    consumer.close()
    counted = [value for value, at in copied_at_s.items() if at >= start_s + plan.count_from_s]
    late_s = sorted(told_at_s[value] - copied_at_s[value] for value in counted or copied_at_s)
    caught_up_s = max(max(told_at_s.values(), default=end_s), end_s) - start_s
    say(
        f"{topic}: {made['rows']:,} rows in {end_s - start_s:.0f} s (the load at most "
        f"{made['behind_s']:.2f} s behind), {len(late_s)} duplicates counted: p50 "
        f"{late_s[len(late_s) // 2]:.2f} s, max {late_s[-1]:.2f} s; all told {caught_up_s:.0f} s "
        "from the start"
    )
    rate = made["rows"] / (end_s - start_s)
    # What is still to be told at the end beyond the usual lateness was not kept up with.
    lag_s = max(0.0, caught_up_s - (end_s - start_s) - TARGET_LATENCY_S)
    return rate * plan.seconds / (plan.seconds + lag_s), late_s[len(late_s) * 95 // 100]


def _take_told(consumer: Consumer, told_at_s: dict[int, float]) -> None:
    for message in consumer.consume(1_000, 0.2):
        if message.error() is None:
            finding = json.loads(message.value() or b"")
            if finding.get("anomaly") == "duplicate":
                told_at_s.setdefault(finding["value_id"], message.timestamp()[1] / 1_000)


def _restarts(folder: Path, cluster: ThreadedCluster, plan: Plan) -> list[Figure]:
    """Start the command again with rows behind it: when it reads, and when it has results."""
    producer = producer_of(cluster.bootstrap_servers)
    load = Load(producer, PREFIX, first_value=2 * 10**15)
    while load.rows < plan.behind:
        load.tick(5_000)
        producer.poll(0)
    producer.flush()
    options = [f"--watermark={plan.late_s}s", f"--state-ttl={plan.remember_s}s"]
    options += [f"--out={folder / 'out'}", f"--bootstrap={cluster.bootstrap_servers}"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    behind = f"restart with {load.rows:,} rows behind it"
    # What is timed is killed in a batch, as a crash would, not after the last one.
    _restart(cluster, options, environment, to_results=False)
    reading_s, _ = _restart(cluster, options, environment, to_results=False)
    figures = [Figure(f"{behind}, not prepared: reading", reading_s, "s")]
    prepare = [sys.executable, "-m", "purgatory", "prepare"]
    subprocess.run(prepare, env=environment, check=True, capture_output=True)
    reading_s, results_s = _restart(cluster, options, environment, to_results=True)
    figures.append(Figure(f"{behind}: reading", reading_s, "s", TARGET_RESTART_S))
    return [*figures, Figure(f"{behind}: first batches done", results_s, "s")]


def _restart(
    cluster: ThreadedCluster, options: list[str], environment: dict[str, str], *, to_results: bool
) -> tuple[float, float]:
    """Return after how many seconds a broker was asked for records, and both queries had some."""
    port = 29_475
    command = [sys.executable, "-m", "purgatory", "stream", f"--prefix={PREFIX}", *options]
    start_s = time.monotonic()
    with (
        # Nobody else reads here: the first that is counted is the first request of a task.
        cluster.fault.delay_responses(1, by_ms=0, count=1, api="fetch") as fetches,
        subprocess.Popen(
            [*command, f"--metrics-port={port}"],
            env=environment,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process,
    ):
        try:
            _wait_for(lambda: fetches.uses > 0)
            reading_s = time.monotonic() - start_s
            _wait_for(
                lambda: (
                    not to_results
                    or all(f'batch{{query="{name}"}}' in _page(port) for name in _QUERIES)
                )
            )
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
        assert time.monotonic() < give_up_s, "the jobs don't get ready"
        time.sleep(0.1)


if __name__ == "__main__":
    run_alone(measure)
