"""Real clients write and read: every acks, every compression, by offset, by time, in groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from purgatory.cluster import ThreadedCluster
from purgatory.kafka import TopicPartition
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.conftest import CLIENTS, leader_of, require_client
from tests.wire.cluster.kafka_client import CODECS, KafkaClient

VALUES = [b"value-%03d" % number for number in range(100)]
FIRST_MS = 1_700_000_000_000


def stored_codecs(cluster: ThreadedCluster, topic: str) -> list[str]:
    """Return how the batches of partition 0 are compressed in the leader's log."""
    partition = TopicPartition(topic, 0)

    def look() -> list[str]:
        leader = cluster.running.brokers[leader_of(cluster.running, topic)]
        found = leader.manager.partition(partition)
        assert found is not None
        batches = found.log.read(0, 10_000_000, found.log_end_offset)
        return [CODECS[int.from_bytes(batch.to_bytes()[21:23], "big") & 7] for batch in batches]

    codecs: list[str] = cluster.call(look)
    return codecs


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_sent_with_any_acks_are_read_in_order(
    cluster: ThreadedCluster, client: KafkaClient, name: str, acks: str
) -> None:
    cluster.create_topic(name)
    client.produce(name, VALUES, acks=acks)
    read = client.read(name, 0, len(VALUES))
    assert [record.value for record in read] == VALUES
    assert [record.offset for record in read] == list(range(len(VALUES)))


def test_lost_response_leaves_no_duplicate_with_idempotence(
    cluster: ThreadedCluster, client: KafkaClient, name: str
) -> None:
    cluster.create_topic(name)
    leader = cluster.call(lambda: leader_of(cluster.running, name))
    with cluster.fault.lose_responses(broker=leader, count=1, api="produce") as lost:
        client.produce(name, VALUES, idempotent=True)
    assert lost.uses == 1
    # One more tells where the log ends.
    client.produce(name, [b"end"], idempotent=True)
    assert [record.value for record in client.read(name, 0, 101)] == [*VALUES, b"end"]


def test_every_client_reads_each_compression(
    cluster: ThreadedCluster, client: KafkaClient, name: str
) -> None:
    cluster.create_topic(name)
    for codec in CODECS:
        client.produce(name, VALUES, codec=codec)
    assert list(dict.fromkeys(stored_codecs(cluster, name))) == list(CODECS)
    for reader_name, new_reader in CLIENTS.items():
        require_client(reader_name)
        read = new_reader(cluster.bootstrap_servers).read(name, 0, 5 * len(VALUES))
        assert [record.value for record in read] == 5 * VALUES, f"read by {reader_name}"


def test_reading_begins_at_the_requested_offset(
    cluster: ThreadedCluster, client: KafkaClient, name: str
) -> None:
    cluster.create_topic(name)
    client.produce(name, VALUES)
    read = client.read(name, 42, 10)
    assert [(record.offset, record.value) for record in read] == [
        (offset, VALUES[offset]) for offset in range(42, 52)
    ]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_seeking_by_time_finds_the_first_record_at_or_after_it(
    cluster: ThreadedCluster, client: KafkaClient, name: str, codec: str
) -> None:
    cluster.create_topic(name)
    times_ms = [FIRST_MS + 10 * number for number in range(len(VALUES))]
    writer = ConfluentClient(cluster.bootstrap_servers)
    writer.produce(name, VALUES, codec=codec, times_ms=times_ms)
    for time_ms, offset in ((FIRST_MS - 1, 0), (FIRST_MS + 500, 50), (FIRST_MS + 501, 51)):
        found = [(offset + n, VALUES[offset + n]) for n in range(3)]
        assert client.read_from_time(name, time_ms, 3) == found


def test_group_resumes_at_its_committed_offset(
    cluster: ThreadedCluster, client: KafkaClient, name: str
) -> None:
    cluster.create_topic(name)
    client.produce(name, VALUES)
    assert client.read_in_group(name, name, 30) == VALUES[:30]
    assert client.read_in_group(name, name, 50) == VALUES[30:80]
    assert client.read_in_group(name, name, 20) == VALUES[80:]


def test_clients_resume_at_offsets_committed_by_others(cluster: ThreadedCluster, name: str) -> None:
    cluster.create_topic(name)
    clients: list[Callable[[str], KafkaClient]] = list(CLIENTS.values())
    require_client("kcat")
    clients[0](cluster.bootstrap_servers).produce(name, VALUES)
    read = [new(cluster.bootstrap_servers).read_in_group(name, name, 25) for new in clients]
    assert b"".join(map(b"".join, read)) == b"".join(VALUES)
