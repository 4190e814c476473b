"""A run of confluent-kafka's transactional clients, for its trace and an audit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from purgatory.cluster import ThreadedCluster
from purgatory.proxy import ThreadedProxy
from tests.wire.cluster.kafka_client import TIMEOUT_S

INPUTS, RESULTS = "inputs", "results"
TOPICS = {INPUTS: 1, RESULTS: 2}
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
"""Both the isolation of a reader of the results and its name."""
AMID = "amid"
"""A reader with read_committed while a transaction is under way."""

Served = ThreadedCluster | ThreadedProxy
"""The target of the clients: a cluster, or a proxy in front of it."""

PRODUCERS: list[dict[str, Any]] = [
    {"group": name, "idempotence": True, "max_in_flight": 5, "single_writer": False}
    for name in ("source", "copier", "zombie", "successor")
]
CONSUMERS = [
    {"group": COMMITTED, "assignment": "assign", "isolation": COMMITTED},
    {"group": UNCOMMITTED, "assignment": "assign", "isolation": UNCOMMITTED},
    {"group": AMID, "assignment": "assign", "isolation": COMMITTED},
    {"group": "copies", "assignment": "subscribe", "isolation": COMMITTED},
]
"""The clients' settings, for the head of a trace."""


def producer(served: Served, name: str, **settings: Any) -> Producer:
    """A producer of this name; `init_transactions` is called where it has a transactional id."""
    made = Producer(
        {
            **_common(served, name),
            "enable.idempotence": True,
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            **settings,
        }
    )
    if "transactional.id" in settings:
        made.init_transactions(TIMEOUT_S)
    return made


def _common(served: Served, name: str) -> Mapping[str, Any]:
    return {"bootstrap.servers": served.bootstrap_servers, "client.id": name, "log_level": 0}


def _consumer(served: Served, name: str, isolation: str) -> Consumer:
    return Consumer(
        {
            **_common(served, name),
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )


def create_topics(cluster: ThreadedCluster) -> None:
    """Create the topics that the others use."""
    for topic, partitions in TOPICS.items():
        cluster.create_topic(topic, partitions)


def copy_in_transactions(served: Served, inputs: int = 8) -> None:
    """Copy inputs to two partitions of results, each with its offset in one transaction.

    Each third transaction is aborted, and its input copied again under another value.
    """
    source = producer(served, "source")
    for number in range(inputs):
        source.produce(INPUTS, b"input %d" % number, partition=0)
    source.flush(TIMEOUT_S)
    copier = producer(served, "copier", **{"transactional.id": "copier"})
    tries = 0
    with closing(_consumer(served, "copies", COMMITTED)) as consumer:
        consumer.subscribe([INPUTS])
        for _ in range(inputs):
            message = _next(consumer)
            committed = False
            while not committed:
                tries += 1
                committed = tries % 3 != 0
                _copy(copier, consumer, message, tries, committed)


def _next(consumer: Consumer) -> Message:
    message = consumer.poll(TIMEOUT_S)
    assert message is not None and message.error() is None
    return message


def _copy(
    copier: Producer, consumer: Consumer, message: Message, number: int, commit: bool
) -> None:
    copier.begin_transaction()
    for partition in range(TOPICS[RESULTS]):
        copier.produce(RESULTS, b"copy %d of %d" % (partition, number), partition=partition)
    at = [TopicPartition(INPUTS, 0, (message.offset() or 0) + 1)]
    copier.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), TIMEOUT_S)
    if commit:
        copier.commit_transaction(TIMEOUT_S)
    else:
        copier.flush(TIMEOUT_S)
        copier.abort_transaction(TIMEOUT_S)


def take_over(served: Served) -> None:
    """Have a producer's transaction aborted by a successor, after which it tries to continue."""
    zombie = producer(served, "zombie", **{"transactional.id": "taken over"})
    zombie.begin_transaction()
    zombie.produce(RESULTS, b"of the zombie", partition=0)
    zombie.flush(TIMEOUT_S)
    successor = producer(served, "successor", **{"transactional.id": "taken over"})
    successor.begin_transaction()
    successor.produce(RESULTS, b"of the successor", partition=0)
    successor.flush(TIMEOUT_S)
    with suppress(KafkaException):
        zombie.produce(RESULTS, b"too late", partition=0)
        zombie.flush(TIMEOUT_S)
        zombie.commit_transaction(TIMEOUT_S)
    successor.commit_transaction(TIMEOUT_S)


def read_results(served: Served, isolation: str) -> list[bytes]:
    """Read all results, up to the end of each partition."""
    values: list[bytes] = []
    left = TOPICS[RESULTS]
    with closing(_consumer(served, isolation, isolation)) as consumer:
        consumer.assign([TopicPartition(RESULTS, number, 0) for number in range(left)])
        while left:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"{left} partitions come to no end"
            if message.error() is None:
                values.append(message.value() or b"")
            else:
                left -= 1
    return values


def read_amid(served: Served) -> None:
    """Read a record with read_committed while its transaction is under way, which is no cluster's
    to show."""
    successor = producer(served, "successor", **{"transactional.id": "slow"})
    successor.begin_transaction()
    successor.produce(RESULTS, b"not yet", partition=1)
    successor.flush(TIMEOUT_S)
    with closing(_consumer(served, AMID, COMMITTED)) as consumer:
        consumer.assign([TopicPartition(RESULTS, 1, 0)])
        value = None
        while value != b"not yet":
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            value = None if message.error() else message.value()
    successor.commit_transaction(TIMEOUT_S)
