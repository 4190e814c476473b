"""Writing into topics, and reading from them, for the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Message, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import Row

from purgatory.cluster import ThreadedCluster
from purgatory.source.options import SourceOptions, parse_options

_TIMEOUT_S = 60.0
Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One record to write."""

    value: bytes | None
    partition: int = 0
    key: bytes | None = None
    time_ms: int = 1_000
    headers: Headers | None = None


def write(servers: str, topic: str, records: Iterable[Record], **settings: str | int) -> None:
    """Write records, and return when all are acknowledged."""
    errors: list[object] = []

    def delivered(error: object, _: Message) -> None:
        if error is not None:
            errors.append(error)

    config = {"bootstrap.servers": servers, "linger.ms": 5, "acks": "all", "log_level": 0}
    config |= settings
    producer = Producer(config)
    for record in records:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.time_ms,
            headers=list(record.headers or []),
            on_delivery=delivered,
        )
    assert producer.flush(_TIMEOUT_S) == 0
    assert errors == []


def numbered(count: int, partitions: int = 1, start: int = 0) -> list[Record]:
    """Return records whose values count, dealt out over partitions; one in each millisecond."""
    return [
        Record(b"%d" % number, number % partitions, time_ms=1_000 + number)
        for number in range(start, start + count)
    ]


def delete_before(cluster: ThreadedCluster, topic: str, offset: int, partition: int = 0) -> None:
    """Have records deleted, as retention does it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    asked = [ClientPartition(topic, partition, offset)]
    for answer in admin.delete_records(asked).values():
        answer.result()


def options(servers: str, given: Mapping[str, Any]) -> SourceOptions:
    """Return options as a query would have them; with `__` for the dots in names."""
    named = {name.replace("__", "."): str(value) for name, value in given.items()}
    return parse_options({"kafka.bootstrap.servers": servers, **named})


def offsets_of(rows: Sequence[Mapping[str, Any]] | Sequence[Row], partition: int = 0) -> list[int]:
    """Return the offsets of one partition, in the order of the rows."""
    return [row["offset"] for row in rows if row["partition"] == partition]
