"""Seconds from the start of `purgatory apply` to its first commit, by each engine.

    python -m tests.benchmarks.apply_start [--full]

20,000 changes are in a topic with six partitions; each start has an empty database, and is killed
as soon as it has reported its first batch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from confluent_kafka import Producer

from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from tests.benchmarks.measurement import Figure, Size, run_alone, say

TOPIC = "changes"
PARTITIONS = 6
TARGET_S = 8.0
_WORKERS_END_S = 3.0

_COMMAND = ("-m", "purgatory")


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Return the median and the worst of both."""
    starts = size.pick(1, 5, 9)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ThreadedCluster(ClusterConfig(brokers=1, topics=[TopicSpec(TOPIC, PARTITIONS)])) as cluster,
    ):
        _fill(cluster.bootstrap_servers, size.pick(100, 20_000))
        environment = {**os.environ, "XDG_CACHE_HOME": str(Path(folder) / "cache")}
        figures = []
        for way, engine, most_s in (
            ("first commit", "local", TARGET_S),
            ("first commit by Spark", "spark", None),
        ):
            took = [
                _start_s(cluster.bootstrap_servers, engine, environment, Path(folder))
                for _ in range(starts)
            ]
            say(f"{way}: " + ", ".join(f"{one:.1f}" for one in took) + " s")
            figures += [
                Figure(f"{way}, median", median(took), "s", most_s),
                Figure(f"{way}, worst", max(took), "s", most_s),
            ]
    return figures


def _fill(servers: str, number: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    for key in range(number):
        document = {
            "database": "shop",
            "table": "orders",
            "type": "insert",
            "ts": 1_763_683_200,
            "xid": key,
            "commit": True,
            "position": f"binlog.000001:{key}",
            "primary_key_columns": ["id"],
            "data": {"id": key, "n": 1},
        }
        producer.produce(TOPIC, json.dumps(document), json.dumps({"id": key}))
        producer.poll(0)
    producer.flush()


def _start_s(servers: str, engine: str, environment: Mapping[str, str], folder: Path) -> float:
    """Start the command on an empty database, and kill it when it reports its first batch."""
    target = Path(tempfile.mkdtemp(dir=folder)) / "target.db"
    start_s = time.monotonic()
    with subprocess.Popen(
        [
            *(sys.executable, *_COMMAND, "apply", f"--to=sqlite:///{target}"),
            f"--engine={engine}",
            *(f"--bootstrap={servers}", f"--topic={TOPIC}"),
        ],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
            took_s = time.monotonic() - start_s
            assert " applied, 0 quarantined" in told, told + process.stderr.read()
            return took_s
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            # Its Python workers end when they see that, and could take from the next one's time.
            time.sleep(_WORKERS_END_S)


if __name__ == "__main__":
    run_alone(measure)
