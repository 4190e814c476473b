"""Reading the records of a capture from a topic."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from purgatory.cdc import Record

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Captured:
    """One record, without the markers of captures that began."""

    partition: int
    offset: int
    key: dict[str, Any] | None
    value: dict[str, Any]

    @property
    def place(self) -> tuple[int, int, int]:
        """The binlog file's number, the byte in it, and the number in the transaction."""
        file, offset = self.value["position"].rsplit(":", 1)
        return int(file.rpartition(".")[2]), int(offset), int(self.value["xoffset"])


def read_topic(bootstrap_servers: str, topic: str = "changes") -> list[Captured]:
    """Return all records but markers, of one partition after the other, each in order."""
    found = [
        Captured(record.partition, record.offset, _json(record.key), _json(record.value))
        for record in read_records(bootstrap_servers, topic)
    ]
    return [captured for captured in found if captured.value["type"] != "heartbeat"]


def read_records(bootstrap_servers: str, topic: str = "changes") -> list[Record]:
    """Return all records as they are, of one partition after the other, each in order."""
    # Each fetch answers at once: by default the last one would wait for more for half a second.
    settings = {"enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "test", **settings})
    found: list[Record] = []
    try:
        count = len(consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions)
        places = [TopicPartition(topic, partition) for partition in range(count)]
        ends = [consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S) for place in places]
        left = {partition: high for partition, (low, high) in enumerate(ends) if low < high}
        consumer.assign([TopicPartition(topic, one, ends[one][0]) for one in left])
        while left:
            for message in consumer.consume(1_000, 0.1):
                assert message.error() is None, message.error()
                partition, offset = int(message.partition() or 0), int(message.offset() or 0)
                if partition not in left:
                    continue  # what came meanwhile
                place = (topic, partition, offset)
                found.append(Record(*place, _bytes(message.key()), _bytes(message.value())))
                if offset + 1 >= left[partition]:
                    del left[partition]
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)


def _json(text: Any) -> Any:
    return None if text is None else json.loads(text, parse_float=Decimal)


def in_source_order(records: list[Captured]) -> list[Captured]:
    """Return the records of rows, as the source made them."""
    return sorted((record for record in records if record.key), key=lambda record: record.place)


def rows_of(records: list[Captured], table: str) -> dict[Any, dict[str, Any]]:
    """Apply the changes of a table whose key is ``id``, each partition in order."""
    rows: dict[Any, dict[str, Any]] = {}
    for record in records:
        value = record.value
        if record.key is None or value["table"] != table:
            continue
        number = value["data"]["id"]
        if value["type"] == "delete":
            rows.pop(number, None)
        else:
            rows[number] = value["data"]
    return rows
