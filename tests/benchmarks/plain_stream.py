"""The live waits as one writes them first: a loop in one process, in memory.

    python -m tests.benchmarks.plain_stream SERVERS PREFIX WINDOW_US LATE_US

It consumes the topic of operations from its beginning, keeps the waits of each window, and produces
a window that is over to ``PREFIX.plain``. Its memory is in its process: killed, it begins anew, and
counts and tells twice. When it has its first rows, it prints a line.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

from tests.benchmarks.live_load import PARTITIONS


def run(servers: str, prefix: str, window_us: int, late_us: int) -> None:
    """Follow the topic until the process is stopped."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "plain"})
    consumer.assign([ClientPartition(f"{prefix}.operations", at, 0) for at in range(PARTITIONS)])
    windows: dict[int, list[int]] = {}
    newest_us = 0
    while True:
        for message in consumer.consume(5_000, 0.1):
            if message.error() is not None:
                continue
            row = json.loads(message.value() or b"")
            if not newest_us:
                print("reading", flush=True)
            end_us = row["started_us"] + row["end_us"]
            newest_us = max(newest_us, end_us)
            windows.setdefault(end_us - end_us % window_us, []).append(row["wait_us"])
        for over in [at for at in windows if at + window_us + late_us <= newest_us]:
            waits = sorted(windows.pop(over))
            end = datetime.fromtimestamp((over + window_us) / 1e6, UTC)
            result = {"table": "waits", "window_end": end.isoformat(), "operations": len(waits)}
            result["wait_p99_us"] = waits[len(waits) * 99 // 100]
            producer.produce(f"{prefix}.plain", json.dumps(result).encode(), partition=0)
        producer.poll(0)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
