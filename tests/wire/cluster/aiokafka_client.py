"""aiokafka, each call on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.wire.cluster.kafka_client import TIMEOUT_S, Record


class AiokafkaClient:
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
        **settings: Any,
    ) -> None:
        async def produce() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap_servers,
                acks=acks if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                compression_type=None if codec == "none" else codec,
                linger_ms=20,
                **settings,
            )
            try:
                await producer.start()
                sent = [await producer.send(topic, value, partition=0) for value in values]
                await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT_S)
            finally:
                await producer.stop()

        asyncio.run(produce())

    def read(self, topic: str, start: int, count: int) -> list[Record]:
        async def read() -> list[Record]:
            async with self._consumer() as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                consumer.seek(TopicPartition(topic, 0), start)
                return await self._take(consumer, count)

        return asyncio.run(read())

    def read_from_time(self, topic: str, time_ms: int, count: int) -> list[Record]:
        async def read() -> list[Record]:
            partition = TopicPartition(topic, 0)
            async with self._consumer() as consumer:
                consumer.assign([partition])
                found = await consumer.offsets_for_times({partition: time_ms})
                consumer.seek(partition, found[partition].offset)
                return await self._take(consumer, count)

        return asyncio.run(read())

    def read_in_group(self, group: str, topic: str, count: int) -> list[bytes]:
        async def read() -> list[bytes]:
            async with self._consumer(group_id=group) as consumer:
                consumer.subscribe([topic])
                records = await self._take(consumer, count)
                await consumer.commit({TopicPartition(topic, 0): records[-1].offset + 1})
                return [record.value for record in records]

        return asyncio.run(read())

    def committed(self, group: str, topic: str) -> int:
        """Return what a group committed for partition 0."""

        async def committed() -> int:
            async with self._consumer(group_id=group) as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                return int(await consumer.committed(TopicPartition(topic, 0)))

        return asyncio.run(committed())

    @asynccontextmanager
    async def _consumer(self, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap_servers,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **settings,
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    async def _take(self, consumer: AIOKafkaConsumer, count: int) -> list[Record]:
        records: list[Record] = []
        while len(records) < count:
            record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
            records.append(Record(record.offset, record.value))
        return records
