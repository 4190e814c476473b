"""The source's reading of transactions, from a real cluster, without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from purgatory.cluster import ThreadedCluster
from purgatory.kafka import TopicPartition
from purgatory.source.broker_client import BrokerClient
from purgatory.source.options import OffsetRange
from purgatory.source.partition_reader import PartitionReader
from tests.spark.pipeline.source.topics import offsets_of, options

_TIMEOUT_S = 60
_UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}


@pytest.fixture
def writer(cluster: ThreadedCluster, topic: str) -> Iterator[Producer]:
    """A producer in an open transaction, that has sent two records in it, at 9 and 10.

    Before these lie three of a committed one (0 to 2, and its marker), two of an aborted one (4, 5)
    and one of another committed one (7).
    """
    cluster.create_topic(topic)
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(_TIMEOUT_S)
    for count, is_committed in ((3, True), (2, False), (1, True)):
        _begin(producer, topic, count)
        if is_committed:
            producer.commit_transaction(_TIMEOUT_S)
        else:
            producer.abort_transaction(_TIMEOUT_S)
    _begin(producer, topic, 2)
    yield producer
    producer.abort_transaction(_TIMEOUT_S)


def _begin(producer: Producer, topic: str, count: int) -> None:
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(_TIMEOUT_S) == 0


def _end(cluster: ThreadedCluster, topic: str, given: dict[str, str]) -> int:
    client = BrokerClient(options(cluster.bootstrap_servers, {"subscribe": topic, **given}))
    try:
        topic_partition = TopicPartition(topic, 0)
        return client.ends([topic_partition])[topic_partition]
    finally:
        client.close()


def _read(
    cluster: ThreadedCluster, topic: str, start: int, end: int, given: dict[str, str]
) -> list[int]:
    asked = options(cluster.bootstrap_servers, {"subscribe": topic, **given})
    found = OffsetRange(TopicPartition(topic, 0), start, end)
    rows = [row for batch in PartitionReader(asked, found).batches() for row in batch.to_pylist()]
    return offsets_of(rows)


@pytest.mark.parametrize("given", [{}, {"kafka.isolation.level": "read_committed"}])
def test_read_committed_ends_at_the_first_open_transaction(
    cluster: ThreadedCluster, topic: str, writer: Producer, given: dict[str, str]
) -> None:
    end = _end(cluster, topic, given)
    assert end == 9
    assert _read(cluster, topic, 0, end, given) == [0, 1, 2, 7]
    # Ranges that begin or end among invisible records come to their ends as well.
    assert _read(cluster, topic, 3, 7, given) == []
    assert _read(cluster, topic, 4, 5, given) == []
    assert _read(cluster, topic, 5, 9, given) == [7]
    writer.commit_transaction(_TIMEOUT_S)
    _begin(writer, topic, 1)
    assert _end(cluster, topic, given) == 12
    assert _read(cluster, topic, end, 12, given) == [9, 10]


def test_read_uncommitted_has_aborted_and_open_transactions(
    cluster: ThreadedCluster, topic: str, writer: Producer
) -> None:
    end = _end(cluster, topic, _UNCOMMITTED)
    assert end == 11
    assert _read(cluster, topic, 0, end, _UNCOMMITTED) == [0, 1, 2, 4, 5, 7, 9, 10]
