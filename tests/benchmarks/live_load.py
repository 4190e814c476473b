"""Rows of operations at a fixed rate, as a cluster would publish them.

    python -m tests.benchmarks.live_load SERVERS PREFIX ROWS_PER_S SECONDS

Prints a JSON object: how many rows there were, and how far they were ever behind the rate
(``behind_s``).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import Producer

PARTITIONS = 2
TICKS_PER_S = 10
_LOG_PARTITIONS = 6
_EARLIER_US = 1_000_000

_OPERATION = (
    '{"run_id":"load","started_us":%d,"broker":1,"purgatory":"Produce","operation":%d,"keys":1,'
    '"timeout_ms":30000,"start_us":%d,"end_us":%d,"wait_us":%d,"outcome":"completed",'
    '"kind":"writers","watch_keys":["orders-%d"]}'
)


class Load:
    """Makes rows.

    Args:
        producer: to which they go.
        prefix: of the topic's name.
    """

    def __init__(self, producer: Producer, prefix: str) -> None:
        self._producer = producer
        self._topic = f"{prefix}.operations"
        self._started_us = time.time_ns() // 1_000 - _EARLIER_US
        self.rows = 0

    def tick(self, rows: int) -> None:
        """Produce so many rows as of now."""
        now_us = time.time_ns() // 1_000 - self._started_us
        for _ in range(rows):
            self.rows += 1
            wait_us = 500 + self.rows * 7919 % 20_000
            times = (now_us - wait_us, now_us, wait_us)
            row = _OPERATION % (self._started_us, self.rows, *times, self.rows % _LOG_PARTITIONS)
            self._send(self.rows % PARTITIONS, row.encode())

    def _send(self, partition: int, row: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, row, partition=partition)
                return
            except BufferError:
                self._producer.poll(0.01)


def producer_of(servers: str) -> Producer:
    """Return a producer with the settings of the one that publishes rows."""
    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "linger.ms": 20,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
    }
    return Producer(settings)


def run(load: Load, producer: Producer, rows_per_s: int, seconds: float) -> float:
    """Produce at that rate for so long; return how far it was behind at most, in seconds."""
    start_s = time.monotonic()
    behind_s = 0.0
    for tick in range(round(seconds * TICKS_PER_S)):
        due_s = start_s + tick / TICKS_PER_S
        behind_s = max(behind_s, time.monotonic() - due_s)
        time.sleep(max(0.0, due_s - time.monotonic()))
        load.tick(rows_per_s // TICKS_PER_S)
        producer.poll(0)
    producer.flush()
    return behind_s


if __name__ == "__main__":
    servers, prefix, rows_per_s, seconds = sys.argv[1:]
    producer = producer_of(servers)
    load = Load(producer, prefix)
    behind_s = run(load, producer, int(rows_per_s), float(seconds))
    print(json.dumps({"rows": load.rows, "behind_s": behind_s}))
