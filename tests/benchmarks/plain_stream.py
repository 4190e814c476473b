"""The live waits and the live audit as one writes them first: a loop in one process, in memory.

    python -m tests.benchmarks.plain_stream SERVERS PREFIX

It consumes the three topics from their beginning, keeps a window of waits for each purgatory, tells
of duplicates at once and of reorderings when they are seen, and produces its findings to
``PREFIX.plain``. Its memory is in its process: killed, it begins anew, and counts and tells twice.
When it has its first rows, it prints a line.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

from tests.benchmarks.live_load import PARTITIONS

WINDOW_US = 10_000_000
REMEMBER_US = 150_000_000
_LATE_US = 30_000_000


class PlainStream:
    """What the loop remembers."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._places: dict[int, int] = {}
        self._by_time: deque[tuple[int, int]] = deque()
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        self._windows: dict[int, list[int]] = {}
        self.rows = 0

    def take(self, topic: str, row: dict[str, Any]) -> None:
        """Take in a row."""
        self.rows += 1
        if topic.endswith(".operations"):
            self._wait(row)
        elif topic.endswith(".sends"):
            self._sent(row)
        else:
            self._read(row)

    def _read(self, row: dict[str, Any]) -> None:
        value, offset, time_us = row["value_id"], row["offset"], row["time_us"]
        known = self._places.setdefault(value, offset)
        if known != offset:
            self._tell({"anomaly": "duplicate", "value_id": value, "offset": offset})
        self._by_time.append((time_us, value))
        while self._by_time[0][0] < time_us - REMEMBER_US:
            self._places.pop(self._by_time.popleft()[1], None)

    def _sent(self, row: dict[str, Any]) -> None:
        source = row["partition"], row["producer"]
        sequence, offset = row["sequence"], row["offset"]
        last_sequence, last_offset = self._last.get(source, (-1, -1))
        if sequence > last_sequence and offset is not None and offset < last_offset:
            self._tell({"anomaly": "nonmonotonic_send", "value_id": row["value_id"]})
        if offset is not None:
            self._last[source] = sequence, offset

    def _wait(self, row: dict[str, Any]) -> None:
        start_us = row["end_us"] - row["end_us"] % WINDOW_US
        self._windows.setdefault(start_us, []).append(row["wait_us"])
        for over in [one for one in self._windows if one + WINDOW_US + _LATE_US < row["end_us"]]:
            waits = sorted(self._windows.pop(over))
            self._tell({"start_us": over, "p99": waits[len(waits) * 99 // 100]})

    def _tell(self, finding: dict[str, Any]) -> None:
        self._producer.produce(self._topic, json.dumps(finding).encode(), partition=0)


def run(servers: str, prefix: str) -> None:
    """Follow the topics until the process is stopped."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    stream = PlainStream(producer, f"{prefix}.plain")
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "plain"})
    consumer.assign(
        [
            ClientPartition(f"{prefix}.{table}", partition, 0)
            for table in ("operations", "sends", "reads")
            for partition in range(PARTITIONS)
        ]
    )
    while True:
        told = stream.rows > 0
        for message in consumer.consume(5_000, 0.1):
            if message.error() is None:
                stream.take(message.topic() or "", json.loads(message.value() or b""))
        if stream.rows and not told:
            print("reading", flush=True)
        producer.poll(0)


if __name__ == "__main__":
    run(*sys.argv[1:])
