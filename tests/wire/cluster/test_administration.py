"""Administration by clients: reassignments, elections, log folders, deletion of offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import LogDirNotFoundError, NoError, UnknownTopicOrPartitionError
from kafka.structs import TopicPartitionReplica

from purgatory.cluster import Cluster, ClusterConfig, ThreadedCluster, TopicSpec
from purgatory.kafka import TopicPartition
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.wire.cluster.conftest import eventually
from tests.wire.cluster.kafka_client import TIMEOUT_S
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import RECORD_TIME_MS, record_batch

_VALUES = [b"value-%d" % number for number in range(10)]


@pytest.fixture
def admin(cluster: ThreadedCluster) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    yield client
    client.close()


def test_kafka_python_moves_a_partition_with_its_records(
    cluster: ThreadedCluster, admin: KafkaAdminClient, name: str
) -> None:
    cluster.create_topic(name, replication=1)
    client = ConfluentClient(cluster.bootstrap_servers)
    client.produce(name, _VALUES, acks="1")

    def state() -> tuple[tuple[int, ...], tuple[int, ...]]:
        found = cluster.running.controller.state_of(TopicPartition(name, 0))
        assert found is not None
        return found.replicas, found.adding

    (before,), _ = cluster.call(state)
    target = [number for number in (1, 2, 3) if number != before]
    admin.alter_partition_reassignments({KafkaPythonPartition(name, 0): target})
    while cluster.call(state) != (tuple(target), ()):
        admin.list_partition_reassignments()
    assert [record.value for record in client.read(name, 0, 10)] == _VALUES
    assert admin.list_partition_reassignments() in ({}, [])
    client.produce(name, [b"after"], acks="all")
    described = admin.describe_log_dirs()
    assert name not in str([one for one in described if one.get("broker") == before])


def test_reassignment_is_listed_until_replicas_are_in_sync(
    cluster: ThreadedCluster, admin: KafkaAdminClient, name: str
) -> None:
    """A small copy takes milliseconds: a held-up follower makes it visible."""
    cluster.create_topic(name, replication=1)
    state = cluster.call(lambda: cluster.running.controller.state_of(TopicPartition(name, 0)))
    assert state is not None
    (before,) = state.replicas
    to = before % 3 + 1
    with cluster.fault.stall_follower(to):
        admin.alter_partition_reassignments({KafkaPythonPartition(name, 0): [to]})
        listed = str(admin.list_partition_reassignments())
        assert name in listed and f"'adding_replicas': [{to}]" in listed, listed
    while admin.list_partition_reassignments():
        pass
    assert cluster.call(lambda: state.replicas) == (to,)


def test_auto_created_topics_have_the_configured_replicas() -> None:
    config = ClusterConfig(brokers=3, default_replication=2, topics=[TopicSpec("first")])
    with ThreadedCluster(config) as cluster:
        client = ConfluentClient(cluster.bootstrap_servers)
        client.produce("second", [b"x"])
        cluster.create_topic("third")
        assert client.read_in_group("g", "second", 1) == [b"x"]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        [made] = admin.create_topics([NewTopic("fourth")]).values()
        made.result()
        topics = admin.list_topics(timeout=TIMEOUT_S).topics
        replicas = {name: len(topics[name].partitions[0].replicas) for name in topics}
        own = {name: count for name, count in replicas.items() if name.startswith("__")}
        assert {**replicas, **own} == {
            **dict.fromkeys(("first", "second", "third", "fourth"), 2),
            **dict.fromkeys(own, 3),
        }
        assert own, "the groups' offsets have as many as may be, as in Kafka"
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        [told] = admin.describe_configs([resource]).values()
        assert told.result()["default.replication.factor"].value == "2"


def test_alter_replica_log_dirs_accepts_only_the_present_folder(
    cluster: ThreadedCluster, admin: KafkaAdminClient, name: str
) -> None:
    cluster.create_topic(name)
    described = admin.describe_log_dirs()
    folders = {one["broker"]: one["log_dirs"][0]["log_dir"] for one in described}
    here = TopicPartitionReplica(name, 0, 1)
    absent = TopicPartitionReplica(name, 7, 1)
    moved = admin.alter_replica_log_dirs({here: folders[1], absent: folders[1]})
    assert (moved[here], moved[absent]) == (NoError, UnknownTopicOrPartitionError)
    assert admin.alter_replica_log_dirs({here: "/elsewhere"})[here] is LogDirNotFoundError


def test_kafka_python_elects_the_preferred_leader(
    cluster: ThreadedCluster, admin: KafkaAdminClient, name: str
) -> None:
    cluster.create_topic(name)
    topic_partition = TopicPartition(name, 0)

    def put_another_first() -> None:
        state = cluster.running.controller.state_of(topic_partition)
        assert state is not None
        cluster.running.controller.reassign(topic_partition, state.replicas[::-1])

    def leads_preferred() -> bool:
        state = cluster.running.controller.state_of(topic_partition)
        assert state is not None
        return state.leader == state.replicas[0]

    cluster.call(put_another_first)
    assert not cluster.call(leads_preferred)
    admin.elect_leaders(0, {name: [0]})
    assert cluster.call(leads_preferred)


def test_confluent_kafka_elects_leaders_and_gets_errors(
    cluster: ThreadedCluster, name: str
) -> None:
    from confluent_kafka import ElectionType

    cluster.create_topic(name)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    asked = [ConfluentPartition(name, 0), ConfluentPartition(name, 7)]
    results = client.elect_leaders(ElectionType.PREFERRED, asked).result(TIMEOUT_S)
    codes = {key.partition: error and error.name() for key, error in results.items()}
    assert codes == {0: "ELECTION_NOT_NEEDED", 7: "UNKNOWN_TOPIC_OR_PART"}


def test_kafka_python_deletes_offsets_of_unsubscribed_topics(
    cluster: ThreadedCluster, admin: KafkaAdminClient, name: str
) -> None:
    cluster.create_topic(name)
    ConfluentClient(cluster.bootstrap_servers).produce(name, _VALUES)
    consumer = KafkaConsumer(
        name,
        bootstrap_servers=cluster.bootstrap_servers.split(","),
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    partition = KafkaPythonPartition(name, 0)
    try:
        while not consumer.poll(timeout_ms=1_000):
            pass
        consumer.commit()
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in _shown(admin.delete_group_offsets, name, [partition])
    finally:
        consumer.close()
    admin.delete_group_offsets(name, [partition])
    assert ConfluentClient(cluster.bootstrap_servers).committed(name, name) < 0


def _shown(call: Any, *arguments: Any) -> str:
    """Return the result of a call, or its error."""
    try:
        shown = str(call(*arguments))
    except Exception as error:
        shown = f"{type(error).__name__} {error}"
    return shown.replace("GroupSubscribedToTopicError", "GROUP_SUBSCRIBED_TO_TOPIC")


def test_topics_are_described_a_page_at_a_time() -> None:
    async def main() -> None:
        topics = [TopicSpec("a", 3), TopicSpec("b", 2), TopicSpec("c")]
        async with (
            Cluster(ClusterConfig(brokers=1, topics=topics)) as cluster,
            await RawClient.to(cluster) as client,
        ):
            seen, cursor = [], None
            while True:
                asked = {"topics": [], "response_partition_limit": 2, "cursor": cursor}
                answer = await client.ask(75, 0, asked)
                for topic in answer.topics:
                    assert topic.topic_id == cluster.controller.topics[topic.name].topic_id
                    assert topic.topic_authorized_operations > 0
                    seen += [(topic.name, one.partition_index) for one in topic.partitions]
                assert sum(len(topic.partitions) for topic in answer.topics) <= 2
                if answer.next_cursor is None:
                    break
                found = answer.next_cursor
                cursor = {
                    "topic_name": found.topic_name,
                    "partition_index": found.partition_index,
                }
            assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
            unknown = await client.ask(75, 0, {"topics": [{"name": "z"}, {"name": "not a name"}]})
            assert [one.error_code for one in unknown.topics] == [17, 3]

    asyncio.run(main())


def test_dead_broker_deletes_moved_replicas_at_its_return(tmp_path: Path) -> None:
    async def main() -> None:
        first = TopicPartition("t", 0)
        config = ClusterConfig(
            brokers=3, topics=[TopicSpec("t", 1, 2)], data_dir=tmp_path, replica_max_lag_ms=500
        )
        async with Cluster(config) as cluster:
            state = cluster.controller.state_of(first)
            assert state is not None
            leader, follower = state.replicas
            (other,) = {1, 2, 3} - {leader, follower}
            async with await RawClient.to(cluster, leader) as client:
                data = [{"index": 0, "records": record_batch([b"x"] * 5)}]
                topics = [{"name": "t", "partition_data": data}]
                await client.ask(0, 9, {"acks": -1, "topic_data": topics})
            await cluster.kill(follower)
            cluster.controller.reassign(first, (leader, other))
            await eventually(lambda: state.replicas == (leader, other))
            assert set(state.isr) == {leader, other}
            assert (tmp_path / f"broker-{follower}" / "t-0").exists()
            await cluster.revive(follower)
            assert not (tmp_path / f"broker-{follower}" / "t-0").exists()
            cluster.controller.reassign(first, (other,))
            await eventually(lambda: not (tmp_path / f"broker-{leader}" / "t-0").exists())
            moved = cluster.brokers[other].manager.partition(first)
            assert moved is not None and moved.is_leader and moved.log_end_offset == 5
        async with Cluster(config) as cluster:
            again = cluster.controller.state_of(first)
            assert again is not None and again.replicas == (other,)

    asyncio.run(main())


def test_cluster_is_described_with_racks() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=2, racks=("a", "b"))
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            told = await client.ask(60, 2, {"endpoint_type": 1})
            assert [(one.broker_id, one.rack) for one in told.brokers] == [(1, "a"), (2, "b")]
            refused = await client.ask(60, 2, {"endpoint_type": 2})
            assert (refused.error_code, refused.brokers) == (114, ())
            metadata = await client.ask(3, 12, {"topics": []})
            assert [(one.node_id, one.rack) for one in metadata.brokers] == [(1, "a"), (2, "b")]

    asyncio.run(main())


def test_list_offsets_returns_epochs_and_fences_old_ones() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=2, topics=[TopicSpec("t", 1, 2)])
        async with Cluster(config) as cluster:

            async def listed(leader: int, timestamp: int, epoch: int = -1) -> Any:
                asked = {"partition_index": 0, "timestamp": timestamp}
                asked["current_leader_epoch"] = epoch
                async with await RawClient.to(cluster, leader) as client:
                    topics = [{"name": "t", "partitions": [asked]}]
                    answer = await client.ask(2, 11, {"topics": topics})
                return answer.topics[0].partitions[0]

            state = cluster.controller.state_of(TopicPartition("t", 0))
            assert state is not None
            first, epoch = state.leader, state.leader_epoch
            data = [{"index": 0, "records": record_batch([b"x"])}]
            topics = [{"name": "t", "partition_data": data}]
            async with await RawClient.to(cluster, first) as client:
                await client.ask(0, 9, {"acks": -1, "topic_data": topics})
            await cluster.kill(first)
            second = state.leader
            found = await listed(second, RECORD_TIME_MS)
            assert (found.error_code, found.offset, found.leader_epoch) == (0, 0, epoch)
            found = await listed(second, -1)
            assert (found.offset, found.leader_epoch) == (1, epoch + 1)
            assert (await listed(second, -4)).offset == 0, "the first that is on this broker"
            assert (await listed(second, -5)).offset == -1, "nothing is in remote storage"
            assert (await listed(second, -1, epoch)).error_code == 74
            assert (await listed(second, -1, epoch + 2)).error_code == 75

    asyncio.run(main())


def test_latest_offset_never_goes_back_under_a_new_leader() -> None:
    async def main() -> None:
        topics = [TopicSpec("t", 1, 3)]
        async with Cluster(ClusterConfig(brokers=3, topics=topics)) as cluster:
            state = cluster.controller.state_of(TopicPartition("t", 0))
            assert state is not None
            first, second, third = state.replicas
            data = [{"index": 0, "records": record_batch([b"x"])}]
            produced = {"acks": -1, "topic_data": [{"name": "t", "partition_data": data}]}
            led = cluster.brokers[second].manager.partition(TopicPartition("t", 0))
            assert led is not None
            async with await RawClient.to(cluster, first) as client:
                # The followers have all records, and learn the high watermark by their next fetch.
                while led.high_watermark == led.log_end_offset:
                    await client.ask(0, 9, produced)
                stall = cluster.fault.stall_follower(third)
                await cluster.kill(first)
            end = led.log_end_offset
            assert state.leader == second and led.high_watermark < end

            async def listed(version: int, timestamp: int, committed: int = 0) -> tuple[int, int]:
                asked = {"partition_index": 0, "timestamp": timestamp}
                topics = [{"name": "t", "partitions": [asked]}]
                body = {"isolation_level": committed, "topics": topics}
                async with await RawClient.to(cluster, second) as client:
                    found = (await client.ask(2, version, body)).topics[0].partitions[0]
                return found.error_code, found.offset

            for version, code in ((4, 5), (5, 78), (11, 78)):
                for committed in (0, 1):
                    assert await listed(version, -1, committed) == (code, -1)
            assert await listed(11, -2) == (0, 0)
            assert await listed(11, RECORD_TIME_MS) == ((0, 0) if led.high_watermark else (78, -1))
            assert await listed(11, RECORD_TIME_MS + 1) == (0, -1), "there is none in all the log"
            stall.end()
            await eventually(lambda: led.high_watermark == end)
            assert await listed(11, -1) == (0, end)

    asyncio.run(main())


def test_confluent_kafka_creates_partitions_with_an_assignment(
    cluster: ThreadedCluster, name: str
) -> None:
    from confluent_kafka.cimpl import NewPartitions

    cluster.create_topic(name, replication=2)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    (future,) = client.create_partitions(
        [NewPartitions(name, 3, replica_assignment=[[3, 1], [2, 3]])]
    ).values()
    future.result(TIMEOUT_S)
    partitions = client.list_topics(name, TIMEOUT_S).topics[name].partitions
    assert [partitions[number].replicas for number in (1, 2)] == [[3, 1], [2, 3]]
    (future,) = client.create_partitions(
        [NewPartitions(name, 4, replica_assignment=[[1, 1]])]
    ).values()
    with pytest.raises(KafkaException, match="INVALID_REPLICA_ASSIGNMENT"):
        future.result(TIMEOUT_S)
