"""kafka-python."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

from tests.wire.cluster.kafka_client import TIMEOUT_S, Record


class KafkaPythonClient:
    """A `KafkaClient`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers.split(",")

    def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        acks: str = "all",
        idempotent: bool = False,
        codec: str = "none",
        **settings: Any,
    ) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap_servers,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            **settings,
        )
        try:
            sent = [producer.send(topic, value, partition=0) for value in values]
            producer.flush(TIMEOUT_S)
            for future in sent:
                future.get(TIMEOUT_S)
        finally:
            producer.close(TIMEOUT_S)

    def read(self, topic: str, start: int, count: int) -> list[Record]:
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek(TopicPartition(topic, 0), start)
            return self._take(consumer, count)

    def read_from_time(self, topic: str, time_ms: int, count: int) -> list[Record]:
        partition = TopicPartition(topic, 0)
        with self._consumer() as consumer:
            consumer.assign([partition])
            consumer.seek(partition, consumer.offsets_for_times({partition: time_ms})[partition][0])
            return self._take(consumer, count)

    def read_in_group(self, group: str, topic: str, count: int) -> list[bytes]:
        with self._consumer(group_id=group) as consumer:
            consumer.subscribe([topic])
            records = self._take(consumer, count)
            position = OffsetAndMetadata(records[-1].offset + 1, "", -1)
            consumer.commit({TopicPartition(topic, 0): position})
            return [record.value for record in records]

    def committed(self, group: str, topic: str) -> int:
        """Return what a group committed for partition 0."""
        with self._consumer(group_id=group) as consumer:
            return int(consumer.committed(TopicPartition(topic, 0)))

    @contextmanager
    def _consumer(self, **settings: Any) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap_servers,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **settings,
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def _take(self, consumer: KafkaConsumer, count: int) -> list[Record]:
        records: list[Record] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(records) < count:
            # As long as may be: a poll of 3.0 that ends amid a rebalance loses the assignment.
            remaining_ms = int(1_000 * (deadline_s - time.monotonic()))
            if remaining_ms <= 0:
                break
            polled = consumer.poll(timeout_ms=remaining_ms, max_records=count - len(records))
            for batch in polled.values():
                records += [Record(record.offset, record.value) for record in batch]
        return records
