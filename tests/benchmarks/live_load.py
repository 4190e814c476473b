"""Rows of operations, sends and reads at a fixed rate, as a cluster would publish them.

    python -m tests.benchmarks.live_load SERVERS PREFIX ROWS_PER_S SECONDS NUMBER

Nine rows of twenty are sends and nine are their reads, of six partitions with a producer each; two
are operations. Ten times a second a record is read at a second place. Prints a JSON object: when
each of these duplicates was produced (``copied_at_s``: by value, in seconds since 1970), how many
rows there were, and how far the rows were ever behind the rate (``behind_s``).
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import Any

from confluent_kafka import Producer

LOG_PARTITIONS = 6
PARTITIONS = 2
TICKS_PER_S = 10
_EARLIER_US = 1_000_000

_SEND = (
    '{"run_id":"load","started_us":%d,"numbered_by":"partition","group":"writers","producer":%d,'
    '"sequence":%d,"attempt":1,"key":%d,"value_id":%d,"acks":-1,"outcome":"ok","error":null,'
    '"send_us":%d,"answer_us":%d,"topic":"orders","partition":%d,"offset":%d,"size_bytes":100}'
)
_READ = (
    '{"run_id":"load","started_us":%d,"group":"readers","consumer":1,"poll":%d,"topic":"orders",'
    '"partition":%d,"offset":%d,"value_id":%d,"time_us":%d,"applied":false}'
)
_OPERATION = (
    '{"run_id":"load","started_us":%d,"broker":1,"purgatory":"Produce","operation":%d,"keys":1,'
    '"timeout_ms":30000,"start_us":%d,"end_us":%d,"wait_us":%d,"outcome":"completed",'
    '"kind":"writers","watch_keys":["orders-%d"]}'
)


class Load:
    """Makes rows, and remembers which duplicates it made.

    Args:
        producer: to which they go.
        prefix: of the topics' names.
        first_value: below those of its records.
        lag: how many records later one is read at a second place.
    """

    def __init__(
        self, producer: Producer, prefix: str, first_value: int = 0, lag: int = 10_000
    ) -> None:
        self._producer = producer
        self._topics = [f"{prefix}.{name}" for name in ("sends", "reads", "operations")]
        self.started_us = time.time_ns() // 1_000 - _EARLIER_US
        self._next_offset = [0] * LOG_PARTITIONS
        self._sequence = [0] * LOG_PARTITIONS
        self._value = first_value
        self._operation = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=lag)
        self.copied_at_s: dict[int, float] = {}
        self.rows = 0

    def tick(self, rows: int) -> None:
        """Produce so many rows as of now, and one duplicate more."""
        now_us = time.time_ns() // 1_000 - self.started_us
        records = rows * 9 // 20
        for number in range(records):
            self._record(number % LOG_PARTITIONS, now_us)
        for _ in range(rows - 2 * records):
            self._wait(now_us)
        if len(self._recent) == self._recent.maxlen:
            self._copy(now_us)

    def _record(self, partition: int, now_us: int) -> None:
        self._value += 1
        value, offset, sequence = (
            self._value,
            self._next_offset[partition],
            self._sequence[partition],
        )
        self._next_offset[partition] += 1
        self._sequence[partition] += 1
        send = (self.started_us, partition, sequence, value % 997, value, now_us - 900, now_us)
        self._send(0, partition % PARTITIONS, _SEND % (*send, partition, offset))
        read = (self.started_us, sequence // 500, partition, offset, value, now_us)
        self._send(1, partition % PARTITIONS, _READ % read)
        self._recent.append((value, partition))

    def _copy(self, now_us: int) -> None:
        value, partition = self._recent[0]
        offset = self._next_offset[partition]
        self._next_offset[partition] += 1
        self._send(
            1,
            partition % PARTITIONS,
            _READ % (self.started_us, 0, partition, offset, value, now_us),
        )
        self.copied_at_s[value] = time.time()

    def _wait(self, now_us: int) -> None:
        self._operation += 1
        number = self._operation
        wait_us = 500 + number * 7919 % 20_000
        row = (self.started_us, number, now_us - wait_us, now_us, wait_us, number % LOG_PARTITIONS)
        self._send(2, number % PARTITIONS, _OPERATION % row)

    def _send(self, topic: int, partition: int, row: str) -> None:
        while True:
            try:
                self._producer.produce(self._topics[topic], row.encode(), partition=partition)
                break
            except BufferError:
                self._producer.poll(0.01)
        self.rows += 1


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
    load = Load(producer, prefix, lag=int(rows_per_s) // 3)
    behind_s = run(load, producer, int(rows_per_s), float(seconds))
    print(json.dumps({"copied_at_s": load.copied_at_s, "rows": load.rows, "behind_s": behind_s}))
