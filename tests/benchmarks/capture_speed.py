"""The rate of `purgatory capture`, beside Debezium's in Kafka Connect: a snapshot, and the binlog.

    python -m tests.benchmarks.capture_speed [--full]

A MariaDB, a broker in a process of its own, and the capture share the machine. Time counts from the
start of the command until its last row is in the topic, so the start of Python and Java is part of
it. With ``--full``, Connect does the same with the same source and cluster, if Maven can get it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from tests.benchmarks.measurement import Figure, Size, run_alone, say
from tests.databases.cdc.debezium.connect import (
    TOPIC,
    connector_settings,
    require_connect,
    running_worker,
)
from tests.databases.cdc.mariadb import MariaDb, numbers
from tests.suites.cluster_process import running_cluster

_GIVE_UP_S = 1_200
_TABLE = (
    "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(40), state VARCHAR(10), amount INT,"
    " total DECIMAL(10,2), made DATETIME, note TEXT)"
)
_ROWS = (
    "INSERT INTO shop.orders SELECT seq + {0}, CONCAT('customer ', seq), 'new', seq % 1000,"
    " seq / 7, '2026-11-21 10:00:00', NULL FROM {1} ORDER BY seq"
)
_STEP = 50_000


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Return the times of both, and of Debezium's snapshot if the size is full."""
    count = size.pick(300, 100_000, 300_000)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, MariaDb() as source:
        folder = Path(name)
        source.run("CREATE DATABASE shop", _TABLE)
        for first in range(0, count, _STEP):
            source.run(_ROWS.format(first, numbers(1, min(_STEP, count - first))))
        with running_cluster(folder / "cluster.log", "--brokers", "1") as servers:
            snapshot = _capture(source, servers, "--snapshot")
            source.run("UPDATE shop.orders SET state = 'paid'")
            binlog = _capture(source, servers)
        say(
            f"snapshot {snapshot[0]:.1f} s, processor {snapshot[1]:.1f} s; binlog {binlog[0]:.1f} s"
        )
        figures = [
            Figure(f"snapshot of {count:,} rows", count / snapshot[0], "/s", None, "higher"),
            Figure(f"{count:,} updates from the binlog", count / binlog[0], "/s", None, "higher"),
        ]
        if size is Size.FULL:
            figures += _beside_debezium(source, folder, count, snapshot)
    return figures


def _capture(source: MariaDb, servers: str, *options: str) -> tuple[float, float]:
    """Run the command up to the end of the binlog; its seconds by the clock and processor."""
    command = [sys.executable, "-m", "purgatory", "capture", f"--from={source.url}/shop"]
    begun_s = time.monotonic()
    process = subprocess.Popen([*command, f"--bootstrap={servers}", "--once", *options])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"the capture ended with {status}")
    return time.monotonic() - begun_s, usage.ru_utime + usage.ru_stime


def _beside_debezium(
    source: MariaDb, folder: Path, count: int, own: tuple[float, float]
) -> list[Figure]:
    jars = require_connect(folder / "jars")
    # Debezium's JSON takes a gigabyte of schemas for 300,000 rows.
    data = f"--data-dir={folder / 'connect-logs'}"
    with running_cluster(folder / "connect-cluster.log", "--brokers", "1", data) as servers:
        begun_s = time.monotonic()
        with running_worker(jars, folder, servers, {}) as worker, _end_of(servers) as end:
            worker.create("shop", connector_settings(source, servers))
            while end() < count:
                if time.monotonic() > begun_s + _GIVE_UP_S:
                    raise TimeoutError(worker.log)
                time.sleep(0.1)
            elapsed_s = time.monotonic() - begun_s
            worker.process.kill()
            _, _, usage = os.wait4(worker.process.pid, 0)
            worker.process.returncode = -9
    processor_s = usage.ru_utime + usage.ru_stime
    say(f"Debezium: {elapsed_s:.1f} s, processor {processor_s:.1f} s")
    return [
        Figure("snapshot's time to Debezium's", own[0] / elapsed_s, "x", 1.0),
        Figure("snapshot's processor time to Debezium's", own[1] / processor_s, "x", 1.0),
    ]


@contextmanager
def _end_of(servers: str) -> Iterator[Callable[[], int]]:
    """A function that returns the end of the topic; 0 while there is none."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "end", "log_level": 0})

    def end() -> int:
        if TOPIC not in consumer.list_topics(timeout=30).topics:
            return 0
        return int(consumer.get_watermark_offsets(ClientPartition(TOPIC, 0), timeout=30)[1])

    try:
        yield end
    finally:
        consumer.close()


if __name__ == "__main__":
    run_alone(measure)
