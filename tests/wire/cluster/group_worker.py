"""A member of a consumer group, as a program: to be started, stopped, frozen and killed.

    python -m tests.wire.cluster.group_worker CLIENT SERVERS GROUP TOPIC SESSION_MS [INSTANCE_ID]

Prints ``assigned 0,2`` when it is given partitions and ``read PARTITION OFFSET VALUE`` for each
record, and commits after that. SIGTERM makes it leave.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

_STRATEGY = "roundrobin"
_HEARTBEAT_MS = 300
_REBALANCE_MS = 10_000
_COMMIT_EVERY = 50
_FOREVER_MS = 3_600_000

FENCED = 3
"""The exit status of a member that another one with its instance id took the place of."""

_ended = False


def _end(*_: object) -> None:
    global _ended  # noqa: PLW0603
    _ended = True


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _tell_assigned(partitions: Iterable[Any]) -> None:
    numbers = sorted(partition.partition for partition in partitions)
    print("assigned", ",".join(map(str, numbers)), time.monotonic(), flush=True)


def _tell_read(partition: int, offset: int, value: bytes) -> None:
    print("read", partition, offset, value.decode(), flush=True)


def run_confluent(
    servers: str, group: str, topic: str, session_ms: int, instance_id: str | None
) -> None:
    from confluent_kafka import Consumer

    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": group,
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": min(_HEARTBEAT_MS, session_ms // 5),
        "max.poll.interval.ms": max(_REBALANCE_MS, session_ms),
        "partition.assignment.strategy": _STRATEGY,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if instance_id is not None:
        settings["group.instance.id"] = instance_id
    consumer = Consumer(settings)
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: _tell_assigned(partitions),
        on_revoke=lambda *_: print("revoked", time.monotonic(), flush=True),
    )
    _read_with_confluent(consumer)


def _read_with_confluent(consumer: Any) -> None:
    from confluent_kafka import KafkaException

    uncommitted = 0
    while not _ended:
        # One at a time: a batch may hold records from before and after a rebalance.
        message = consumer.poll(0.1)
        if message is not None and message.error() is not None:
            error = message.error()
            print("error", error, flush=True)
            if error is not None and error.name() == "_FATAL":
                sys.exit(FENCED)
        elif message is not None:
            _tell_read(message.partition(), message.offset(), message.value())
            uncommitted += 1
        if uncommitted == _COMMIT_EVERY or (uncommitted and message is None):
            uncommitted = 0
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as failure:
                print("uncommitted", failure, flush=True)
    consumer.close()


def run_confluent_consumer_protocol(
    servers: str, group: str, topic: str, _: int, instance_id: str | None
) -> None:
    """The protocol of KIP-848: the coordinator says how long a session is."""
    from confluent_kafka import Consumer

    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if instance_id is not None:
        settings["group.instance.id"] = instance_id

    owned: dict[int, Any] = {}  # while it closes, the consumer doesn't tell

    def given(consumer: Any, partitions: Any) -> None:
        consumer.incremental_assign(partitions)
        owned.update((one.partition, one) for one in partitions)
        _tell_assigned(owned.values())

    def taken(consumer: Any, partitions: Any) -> None:
        consumer.incremental_unassign(partitions)
        for one in partitions:
            del owned[one.partition]
        _tell_assigned(owned.values())

    consumer = Consumer(settings)
    consumer.subscribe([topic], on_assign=given, on_revoke=taken)
    _read_with_confluent(consumer)


def run_kafka_python(
    servers: str, group: str, topic: str, session_ms: int, instance_id: str | None
) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            _tell_assigned(assigned)

    consumer = KafkaConsumer(
        bootstrap_servers=servers.split(","),
        group_id=group,
        group_instance_id=instance_id,
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=min(_HEARTBEAT_MS, session_ms // 5),
        max_poll_interval_ms=_REBALANCE_MS,
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.subscribe([topic], listener=Listener())
    # A poll of 3.0 that ends amid a rebalance loses the assignment: none ends before its time.
    signal.signal(signal.SIGTERM, _interrupt)
    with suppress(KeyboardInterrupt):
        _read_with_kafka_python(consumer)
    consumer.close()


def _read_with_kafka_python(consumer: Any) -> None:
    from kafka.errors import KafkaError

    while True:
        try:
            batches = consumer.poll(timeout_ms=_FOREVER_MS, max_records=100)
            for records in batches.values():
                for record in records:
                    _tell_read(record.partition, record.offset, record.value)
            if batches:
                consumer.commit()
        except KafkaError as error:
            print("uncommitted", repr(error), flush=True)


def run_aiokafka(
    servers: str, group: str, topic: str, session_ms: int, instance_id: str | None
) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            _tell_assigned(assigned)

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            group_instance_id=instance_id,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=min(_HEARTBEAT_MS, session_ms // 5),
            max_poll_interval_ms=_REBALANCE_MS,
            partition_assignment_strategy=[RoundRobinPartitionAssignor],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        consumer.subscribe([topic], listener=Listener())
        while not _ended:
            try:
                batches = await consumer.getmany(timeout_ms=100, max_records=100)
                for records in batches.values():
                    for record in records:
                        _tell_read(record.partition, record.offset, record.value)
                if batches:
                    await consumer.commit()
            except KafkaError as error:
                print("uncommitted", repr(error), flush=True)
        await consumer.stop()

    asyncio.run(run())


RUN = {
    "confluent-kafka": run_confluent,
    "consumer-protocol": run_confluent_consumer_protocol,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    client, servers, group, topic, session_ms, *instance_id = sys.argv[1:]
    RUN[client](servers, group, topic, int(session_ms), next(iter(instance_id), None))
