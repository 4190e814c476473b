"""The row's clients where these are aiokafka's."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from tests.world.wire_members import GROUP_ID, HEARTBEAT_S, REBALANCE_S, SESSION_S, TOPIC
from tests.world.wire_producer import INTERVAL_S, SIDE_TOPIC, TRANSACTIONAL_ID

_KEYS = 7
_AGAIN_S = 0.3


async def _committed(consumer: AIOKafkaConsumer) -> None:
    """Commit the positions; if cancelled, first wait for the end.

    aiokafka retrieves no error of a commit for which nobody waits.
    """
    commit = asyncio.ensure_future(consumer.commit())
    try:
        await asyncio.shield(commit)
    except asyncio.CancelledError:
        await asyncio.gather(commit, return_exceptions=True)
        raise


async def _started(client: AIOKafkaProducer | AIOKafkaConsumer) -> None:
    while True:
        try:
            await client.start()
            return
        except KafkaError:
            await asyncio.sleep(1)


class AiokafkaMember:
    """A member of a classic group, or a reader without a group.

    Args:
        common: arguments of the client: addresses, name and security.
        group_id: None: it has no group.
        instance_id: of a static member.
    """

    def __init__(
        self, common: dict[str, Any], group_id: str | None, instance_id: str | None
    ) -> None:
        self._arguments = {
            **common,
            "group_id": group_id,
            "group_instance_id": instance_id,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "isolation_level": "read_committed",
            "session_timeout_ms": round(SESSION_S * 1_000),
            "heartbeat_interval_ms": round(HEARTBEAT_S * 1_000),
            "max_poll_interval_ms": round(REBALANCE_S * 1_000),
            "rebalance_timeout_ms": round(REBALANCE_S * 1_000),
            "metadata_max_age_ms": 10_000,
            "fetch_max_wait_ms": 1_000,
        }
        self._has_group = group_id is not None
        self.consumed = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, leaves: bool) -> None:
        """End; aiokafka leaves its group then, unless its member is static."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        consumer = AIOKafkaConsumer(TOPIC, **self._arguments)
        await _started(consumer)
        committed: dict[TopicPartition, int] = {}
        try:
            while True:
                try:
                    records = await consumer.getmany(timeout_ms=1_000)
                    self.consumed += sum(map(len, records.values()))
                    positions = {part: await consumer.position(part) for part in records}
                    positions |= {part: await consumer.position(part) for part in committed}
                    if self._has_group and positions != committed:
                        await _committed(consumer)
                        committed = positions
                except (KafkaError, IllegalStateError):  # the latter of a partition that it lost
                    committed = {}
                    await asyncio.sleep(_AGAIN_S)
        finally:
            await asyncio.wait_for(consumer.stop(), 30)


class AiokafkaProducer:
    """A producer to all partitions of the topic.

    Args:
        common: arguments of the client: addresses, name and security.
        kind: "plain", "idempotent" or "transactional".
        commits: whether its transactions commit offsets of the readers' group, too.
    """

    def __init__(self, common: dict[str, Any], kind: str, commits: bool) -> None:
        self._kind = kind
        self._name = common["client_id"]
        self._arguments = {**common, "acks": "all", "request_timeout_ms": 15_000}
        if kind == "transactional":
            self._arguments |= {
                "transactional_id": TRANSACTIONAL_ID,
                "transaction_timeout_ms": 30_000,
            }
        else:
            self._arguments["enable_idempotence"] = kind == "idempotent"
        self._commits = commits
        self._number = 0
        self._transactions = 0
        self.acknowledged = 0
        self._stops = False

    def stop(self) -> None:
        """End after the current records."""
        self._stops = True

    async def run(self) -> None:
        """Send records until it is stopped."""
        producer: AIOKafkaProducer | None = None
        while not self._stops:
            if producer is None:
                producer = AIOKafkaProducer(**self._arguments)
                await _started(producer)
            try:
                if self._kind == "transactional":
                    await self._transact(producer)
                else:
                    await self._send_all(producer)
            except KafkaError:
                await producer.stop()
                producer = None
            await asyncio.sleep(INTERVAL_S)
        if producer is not None:
            await producer.stop()

    async def _send_all(self, producer: AIOKafkaProducer) -> None:
        sent = []
        for number in sorted(await producer.partitions_for(TOPIC)):
            value = f"{self._name} {self._number}".encode()
            key = b"%d" % (self._number % _KEYS)
            self._number += 1
            sent.append(await producer.send(TOPIC, value, key, partition=number))
        ended = await asyncio.gather(*sent, return_exceptions=True)
        errors = [error for error in ended if isinstance(error, BaseException)]
        self.acknowledged += len(ended) - len(errors)
        if errors:
            raise errors[0]

    async def _transact(self, producer: AIOKafkaProducer) -> None:
        self._transactions += 1
        commits = self._transactions % 4 != 0
        await producer.begin_transaction()
        await self._send_all(producer)
        if self._commits:
            offset = self._transactions + (0 if commits else 1_000_000)
            await producer.send_offsets_to_transaction(
                {TopicPartition(SIDE_TOPIC, 0): offset}, GROUP_ID
            )
        if commits:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
