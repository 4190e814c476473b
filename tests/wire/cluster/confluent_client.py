"""confluent-kafka, which is librdkafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.wire.cluster.kafka_client import TIMEOUT_S, Record


class ConfluentClient:
    """A `KafkaClient`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        acks: str = "all",
        idempotent: bool = False,
        codec: str = "none",
        times_ms: Sequence[int] | None = None,
        **settings: Any,
    ) -> None:
        """As `KafkaClient`; ``times_ms`` are the records' own times."""
        errors = []

        def delivered(error: Any, message: Message) -> None:
            if error is not None:
                errors.append(error)

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "acks": acks,
                "enable.idempotence": idempotent,
                "compression.type": codec,
                "linger.ms": 20,
                **settings,
            }
        )
        for number, value in enumerate(values):
            time_ms = times_ms[number] if times_ms is not None else 0
            producer.produce(topic, value, partition=0, timestamp=time_ms, on_delivery=delivered)
        left = producer.flush(TIMEOUT_S)
        if errors:
            raise KafkaException(errors[0])
        assert left == 0, f"{left} records are not answered"

    def read(self, topic: str, start: int, count: int) -> list[Record]:
        consumer = self._consumer(f"reader of {topic}")
        try:
            consumer.assign([TopicPartition(topic, 0, start)])
            return self._take(consumer, count)
        finally:
            consumer.close()

    def read_from_time(self, topic: str, time_ms: int, count: int) -> list[Record]:
        consumer = self._consumer(f"reader of {topic}")
        try:
            found = consumer.offsets_for_times(
                [TopicPartition(topic, 0, time_ms)], timeout=TIMEOUT_S
            )
            consumer.assign([TopicPartition(topic, 0, 0)])
            consumer.seek(found[0])
            return self._take(consumer, count)
        finally:
            consumer.close()

    def read_in_group(self, group: str, topic: str, count: int) -> list[bytes]:
        consumer = self._consumer(group)
        try:
            consumer.subscribe([topic])
            records = self._take(consumer, count)
            consumer.commit(offsets=[TopicPartition(topic, 0, records[-1].offset + 1)])
            return [record.value for record in records]
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> int:
        """Return what a group committed for partition 0."""
        consumer = self._consumer(group)
        try:
            found = consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)
            return int(found[0].offset)
        finally:
            consumer.close()

    def _consumer(self, group: str, **settings: Any) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **settings,
            }
        )

    def _take(self, consumer: Consumer, count: int) -> list[Record]:
        records: list[Record] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(records) < count and time.monotonic() < deadline_s:
            for message in consumer.consume(count - len(records), 0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                offset, value = message.offset(), message.value()
                assert offset is not None and value is not None
                records.append(Record(offset, value))
        return records
