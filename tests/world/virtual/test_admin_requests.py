"""Bare requests of administrators: what answers hold, by Kafka's rules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from purgatory.cluster.api.registry import APIS
from purgatory.kafka import ErrorCode
from purgatory.kafka.settings.topic_settings import SETTINGS
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster
from tests.wire.cluster.wire_values import record_batch
from tests.world.security import security_of
from tests.world.wire_client import CREATE_TOPICS, FETCH, METADATA, PRODUCE, WireClient

_TOPIC = "orders"
_TIMEOUT = timedelta(seconds=10)
(
    _API_VERSIONS,
    _DELETE_TOPICS,
    _DESCRIBE_CONFIGS,
    _ELECT_LEADERS,
    _ALTER_CONFIGS,
    _DESCRIBE_QUOTAS,
    _ALTER_QUOTAS,
    _UPDATE_FEATURES,
    _DESCRIBE_CLUSTER,
    _LIST_CONFIG_RESOURCES,
    _DESCRIBE_PARTITIONS,
    _ALTER_SHARE_OFFSETS,
    _DESCRIBE_SHARE_OFFSETS,
) = 18, 20, 32, 43, 44, 48, 49, 57, 60, 74, 75, 91, 90
_TOPIC_TYPE, _METRICS_TYPE, _GROUP_TYPE = 2, 16, 32
_SET, _DELETE = 0, 1


@pytest.fixture
def cluster(world: World) -> WorldCluster:
    return world.cluster(brokers=2, topics=[_TOPIC])


@pytest.fixture
def client(cluster: WorldCluster) -> WireClient:
    return WireClient(cluster, "client", True, security_of("none"))


# Topics.


async def _create(client: WireClient, *names: str, **fields: Any) -> list[Any]:
    validate_only = fields.pop("validate_only", False)
    asked = [{"name": n, "num_partitions": 1, "replication_factor": 1, **fields} for n in names]
    request = {"topics": asked, "timeout": _TIMEOUT, "validate_only": validate_only}
    return list((await client.ask(1, CREATE_TOPICS, request)).topics)


@pytest.mark.parametrize("validate_only", [False, True])
def test_created_topic_tells_all_its_settings(
    world: World, client: WireClient, validate_only: bool
) -> None:
    configs = [{"name": "retention.ms", "value": "5000"}]

    async def main() -> Any:
        return await _create(client, "new", configs=configs, validate_only=validate_only)

    (created,) = world.run(main())
    assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 1, 1)
    assert created.topic_id is not None
    told = {one.name: (one.value, one.config_source) for one in created.configs}
    assert told.keys() == SETTINGS.keys()
    assert told["retention.ms"] == ("5000", 1)
    assert told["cleanup.policy"] == ("delete", 5)


def test_names_of_one_request_collide_with_older_ones_alone(
    world: World, client: WireClient
) -> None:
    async def main() -> list[int]:
        first = await _create(client, "a.b", "a_b")
        later = await _create(client, "a.b.c"), await _create(client, "a_b.c")
        return [one.error_code for one in (*first, *later[0], *later[1])]

    assert world.run(main()) == [0, 0, 0, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_topic_that_is_named_by_name_and_id_stays(
    world: World, client: WireClient, cluster: WorldCluster
) -> None:
    async def main() -> Any:
        topic_id = cluster.controller.topics[_TOPIC].topic_id
        parts = [{"name": None, "topic_id": topic_id}, {"name": _TOPIC, "topic_id": None}]
        asked = {"topics": parts, "timeout": _TIMEOUT}
        return (await client.ask(1, _DELETE_TOPICS, asked)).responses

    (refused,) = world.run(main())
    assert (refused.name, refused.error_code) == (_TOPIC, ErrorCode.INVALID_REQUEST)
    assert _TOPIC in cluster.controller.topics


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"timeout": timedelta()}, ErrorCode.REQUEST_TIMED_OUT),
        ({"election_type": 5}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_refused_election_tells_each_partition(
    world: World, client: WireClient, fields: dict[str, Any], code: ErrorCode
) -> None:
    async def elect(*partitions: int) -> Any:
        topics = [{"topic": _TOPIC, "partitions": partitions}] if partitions else []
        asked = {"election_type": 0, "timeout": _TIMEOUT, "topic_partitions": topics, **fields}
        return await client.ask(1, _ELECT_LEADERS, asked)

    async def main() -> Any:
        return await elect(0, 7), await elect()

    refused, of_none = world.run(main())
    assert refused.error_code == code
    (topic,) = refused.replica_election_results
    told = [(one.partition_id, one.error_code) for one in topic.partition_result]
    assert told == [(0, code), (7, code)]
    assert all(one.error_message for one in topic.partition_result)
    assert (of_none.error_code, of_none.replica_election_results) == (0, ())


def test_metadata_by_ids_ignores_names(
    world: World, client: WireClient, cluster: WorldCluster
) -> None:
    unknown = UUID(int=7)

    async def main() -> Any:
        topic_id = cluster.controller.topics[_TOPIC].topic_id
        topics = [
            {"name": None, "topic_id": topic_id},
            {"name": "other", "topic_id": None},
            {"name": None, "topic_id": unknown},
        ]
        return (await client.ask(1, METADATA, {"topics": topics})).topics

    found = {topic.name: topic.error_code for topic in world.run(main())}
    assert found == {_TOPIC: 0, None: ErrorCode.UNKNOWN_TOPIC_ID}
    assert "other" not in cluster.controller.topics


def test_leaderless_partition_has_an_eligible_leader(
    world: World, client: WireClient, cluster: WorldCluster
) -> None:
    async def main() -> tuple[Any, Any]:
        await _create(
            client,
            "single",
            assignments=[{"partition_index": 0, "broker_ids": [2]}],
            num_partitions=-1,
            replication_factor=-1,
        )
        await cluster.kill(2)
        topics = [{"name": "single", "topic_id": None}]
        told = (await client.ask(1, METADATA, {"topics": topics})).topics[0].partitions[0]
        asked = {"topics": topics, "response_partition_limit": 9, "cursor": None}
        described = await client.ask(1, _DESCRIBE_PARTITIONS, asked)
        return told, described.topics[0].partitions[0]

    told, described = world.run(main())
    assert (told.leader_id, told.isr_nodes, told.offline_replicas) == (-1, (), (2,))
    assert (described.isr_nodes, described.eligible_leader_replicas) == ((), (2,))


# The cluster.


def test_api_versions_tell_the_features(world: World, client: WireClient) -> None:
    software = {"client_software_name": "x", "client_software_version": "1.0"}

    async def main() -> tuple[Any, Any]:
        wrong = {**software, "client_software_name": "-x"}
        return (
            await client.ask(1, _API_VERSIONS, software),
            await client.ask(1, _API_VERSIONS, wrong),
        )

    told, refused = world.run(main())
    levels = {one.name: one.max_version_level for one in told.finalized_features}
    assert (levels["transaction.version"], levels["group.version"]) == (2, 1)
    assert levels.keys() <= {one.name for one in told.supported_features}
    served = {key for key, api in APIS.items() if api.is_served}
    assert {one.api_key for one in told.api_keys} == served
    assert (refused.error_code, refused.api_keys) == (ErrorCode.INVALID_REQUEST, ())


def test_updated_features_are_told(world: World, client: WireClient) -> None:
    def update(name: str, level: int, upgrade_type: int) -> dict[str, Any]:
        one = {"feature": name, "max_version_level": level, "upgrade_type": upgrade_type}
        return {"timeout": _TIMEOUT, "feature_updates": [one]}

    async def main() -> tuple[list[int], Any]:
        codes = [
            (await client.ask(1, _UPDATE_FEATURES, update(*one))).error_code
            for one in (
                ("share.version", 0, 1),
                ("share.version", 0, 2),
                ("group.version", 9, 1),
                ("nope", 1, 1),
            )
        ]
        software = {"client_software_name": "x", "client_software_version": "1.0"}
        return codes, await client.ask(1, _API_VERSIONS, software)

    codes, told = world.run(main())
    refused = ErrorCode.INVALID_UPDATE_VERSION
    assert codes == [refused, ErrorCode.NONE, refused, refused]
    levels = {one.name: one.max_version_level for one in told.finalized_features}
    assert "share.version" not in levels, "at 0 it is off"
    assert told.finalized_features_epoch == 1


def test_described_cluster_has_dead_brokers_where_asked(
    world: World, client: WireClient, cluster: WorldCluster
) -> None:
    async def main() -> list[Any]:
        await cluster.kill(2)
        return [
            await client.ask(1, _DESCRIBE_CLUSTER, {"endpoint_type": 1, **asked})
            for asked in (
                {},
                {"include_fenced_brokers": True},
                {"endpoint_type": 2},
                {"endpoint_type": 3},
            )
        ]

    alive, every, controllers, unknown = world.run(main())
    assert [(one.broker_id, one.is_fenced) for one in alive.brokers] == [(1, False)]
    assert [(one.broker_id, one.is_fenced) for one in every.brokers] == [(1, False), (2, True)]
    assert controllers.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert unknown.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    assert (unknown.brokers, unknown.controller_id) == ((), -1)


@pytest.mark.parametrize("api_key", [key for key, api in APIS.items() if not api.is_served])
def test_unserved_api_is_refused_in_its_answer(
    world: World, client: WireClient, api_key: int
) -> None:
    partition = {"partition": 0}
    topics = [{"topic_id": UUID(int=1), "partitions": [partition]}]

    async def main() -> Any:
        return await client.ask(1, api_key, {"group_id": "g", "topics": topics})

    answer = world.run(main())
    if not hasattr(answer, "error_code"):
        (answer,) = answer.results[0].partitions
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


# Settings.


async def _alter(client: WireClient, kind: int, name: str, *configs: tuple[str, int, Any]) -> Any:
    changes = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in configs
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": changes}
    return (await client.ask(1, _ALTER_CONFIGS, {"resources": [resource]})).responses[0]


async def _described(client: WireClient, kind: int, name: str) -> dict[str, tuple[str, int]]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = await client.ask(1, _DESCRIBE_CONFIGS, {"resources": [resource]})
    return {one.name: (one.value, one.config_source) for one in answer.results[0].configs}


def test_unknown_topic_setting_is_named_as_in_kafka(world: World, client: WireClient) -> None:
    async def main() -> tuple[Any, Any]:
        return (
            await _alter(client, _TOPIC_TYPE, _TOPIC, ("nope", _SET, "1")),
            await _alter(client, _TOPIC_TYPE, _TOPIC, ("nope", _DELETE, None)),
        )

    put, deleted = world.run(main())
    assert put.error_code == ErrorCode.INVALID_CONFIG
    assert put.error_message.startswith("Unknown topic config name: nope")
    assert deleted.error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("consumer.session.timeout.ms", "50000", 0),
        ("consumer.session.timeout.ms", "44999", 40),
        ("consumer.session.timeout.ms", "60001", 40),
        ("consumer.heartbeat.interval.ms", "16000", 40),
        ("share.record.lock.duration.ms", "14999", 40),
        ("share.delivery.count.limit", "10", 0),
        ("share.delivery.count.limit", "1", 40),
        ("share.partition.max.record.locks", "99", 40),
        ("share.renew.acknowledge.enable", "false", 0),
        ("share.renew.acknowledge.enable", "no", 40),
    ],
)
def test_setting_of_a_group_is_within_bounds(
    world: World, client: WireClient, setting: str, value: str, code: int
) -> None:
    async def main() -> tuple[Any, Any]:
        altered = await _alter(client, _GROUP_TYPE, "g", (setting, _SET, value))
        return altered, (await _described(client, _GROUP_TYPE, "g"))[setting]

    altered, (told, source) = world.run(main())
    assert altered.error_code == code, altered.error_message
    assert (source == 8, told == value) == (code == 0, code == 0)


def test_subscription_to_client_metrics_is_stored(world: World, client: WireClient) -> None:
    async def main() -> tuple[list[int], Any, Any]:
        codes = [
            (await _alter(client, _METRICS_TYPE, name, one)).error_code
            for name, one in (
                ("m", ("interval.ms", _SET, "1000")),
                ("m", ("interval.ms", _SET, "99")),
                ("m", ("nope", _SET, "1")),
                ("m", ("match", _SET, "client_id=x.*,nope=1")),
                ("", ("interval.ms", _SET, "1000")),
            )
        ]
        listed = await client.ask(1, _LIST_CONFIG_RESOURCES, {"resource_types": [_METRICS_TYPE]})
        return codes, await _described(client, _METRICS_TYPE, "m"), listed.config_resources

    codes, described, listed = world.run(main())
    bad = ErrorCode.INVALID_REQUEST
    assert codes == [0, bad, bad, ErrorCode.INVALID_CONFIG, bad]
    assert described["interval.ms"] == ("1000", 7)
    assert [one.resource_name for one in listed] == ["m"]


# Quotas.


def _quota(
    entity: Sequence[tuple[str, str | None]], key: str, value: float, remove: bool = False
) -> Any:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value, "remove": remove}],
    }


async def _quotas(client: WireClient, kind: str, match_type: int, name: str | None) -> Any:
    component = {"entity_type": kind, "match_type": match_type, "match": name}
    asked = {"components": [component], "strict": False}
    return await client.ask(1, _DESCRIBE_QUOTAS, asked)


def test_quotas_are_stored_and_removed(world: World, client: WireClient) -> None:
    async def main() -> list[Any]:
        ann = [("client-id", "ann")]
        entries = [
            _quota(ann, "producer_byte_rate", 1000.0),
            _quota([("client-id", None)], "consumer_byte_rate", 500.0),
            _quota(ann, "nope", 1.0),
            _quota([("client-id", "bob")], "producer_byte_rate", 0.0),
            _quota([("ip", "127.0.0.1"), ("user", "x")], "connection_creation_rate", 1.0),
        ]
        asked = {"entries": entries, "validate_only": False}
        altered = (await client.ask(1, _ALTER_QUOTAS, asked)).entries
        found = [
            await _quotas(client, "client-id", *one) for one in ((0, "ann"), (1, None), (2, None))
        ]
        gone = {"entries": [_quota(ann, "producer_byte_rate", 0.0, True)], "validate_only": False}
        await client.ask(1, _ALTER_QUOTAS, gone)
        found.append(await _quotas(client, "client-id", 0, "ann"))
        return [[one.error_code for one in altered], *(one.entries for one in found)]

    codes, ann, default, every, after = world.run(main())
    bad = ErrorCode.INVALID_REQUEST
    assert codes == [0, 0, bad, bad, bad]
    assert [(one.key, one.value) for one in ann[0].values] == [("producer_byte_rate", 1000.0)]
    assert [(one.key, one.value) for one in default[0].values] == [("consumer_byte_rate", 500.0)]
    assert (len(every), after) == (2, ())


def test_client_beyond_its_quota_is_told_to_wait(
    world: World, client: WireClient, cluster: WorldCluster
) -> None:
    async def main() -> tuple[list[timedelta], Any, Any]:
        batch = record_batch([bytes(3_000)])
        topic_id = cluster.controller.topics[_TOPIC].topic_id
        leader = await client.leader(_TOPIC, 0)
        entries = [
            _quota([("client-id", "client")], "producer_byte_rate", 500.0),
            _quota([("user", None)], "consumer_byte_rate", 500.0),
        ]
        await client.ask(1, _ALTER_QUOTAS, {"entries": entries, "validate_only": False})
        partition = {"index": 0, "records": batch}
        data = [{"topic_id": topic_id, "partition_data": [partition]}]
        produce = {"acks": 1, "timeout": _TIMEOUT, "topic_data": data}
        waits = [(await client.ask(leader, PRODUCE, produce)).throttle_time for _ in range(2)]
        part = {"partition": 0, "partition_max_bytes": 1 << 20, "fetch_offset": 0}
        part |= {"current_leader_epoch": -1, "last_fetched_epoch": -1}
        fetch = {
            "max_bytes": 1 << 20,
            "min_bytes": 1,
            "session_epoch": -1,
            "topics": [{"topic_id": topic_id, "partitions": [part]}],
        }
        fetched = [await client.ask(leader, FETCH, fetch) for _ in range(2)]
        return waits, *fetched

    waits, first, second = world.run(main())
    assert waits[0] == timedelta(0), "within the window"
    assert waits[1] > timedelta(seconds=1)
    assert len(first.responses[0].partitions[0].records) > 3_000
    assert first.throttle_time == timedelta(0)
    assert second.throttle_time > timedelta(seconds=1)
    assert not second.responses, "they come after the wait"


def test_clients_next_request_waits_for_the_throttle_time(
    world: World, client: WireClient, cluster: WorldCluster
) -> None:
    async def main() -> tuple[float, list[float]]:
        entry = _quota([("client-id", "client")], "producer_byte_rate", 1_000.0)
        await client.ask(1, _ALTER_QUOTAS, {"entries": [entry], "validate_only": False})
        leader = await client.leader(_TOPIC, 0)
        topic_id = cluster.controller.topics[_TOPIC].topic_id
        partition = {"index": 0, "records": record_batch([bytes(20_000)])}
        data = [{"topic_id": topic_id, "partition_data": [partition]}]
        produce = {"acks": 1, "timeout": _TIMEOUT, "topic_data": data}
        throttle_s = (await client.ask(leader, PRODUCE, produce)).throttle_time.total_seconds()
        times_s = [asyncio.get_running_loop().time()]
        for _ in range(2):
            await client.ask(leader, _DESCRIBE_QUOTAS, {"components": [], "strict": False})
            times_s.append(asyncio.get_running_loop().time())
        return throttle_s, times_s

    throttle_s, (sent_s, first_s, second_s) = world.run(main())
    # Ten full seconds are the least that a rate is measured over: 20,000 bytes are 2,000 a second.
    assert 9.9 <= throttle_s <= 10.5
    assert first_s - sent_s == pytest.approx(throttle_s, abs=0.1)
    assert second_s - first_s < 0.1


def test_client_in_debt_of_mutations_creates_no_topic(world: World, client: WireClient) -> None:
    async def main() -> list[tuple[int, float]]:
        entry = _quota([("client-id", "client")], "controller_mutation_rate", 2.0)
        await client.ask(1, _ALTER_QUOTAS, {"entries": [entry], "validate_only": False})
        answers = []
        for number, version in enumerate((None, None, 5, None)):
            topic = {"name": f"t{number}", "num_partitions": 25, "replication_factor": 1}
            topic |= {"assignments": [], "configs": []}
            body = {"topics": [topic], "timeout": _TIMEOUT, "validate_only": False}
            answer = await client.ask(1, CREATE_TOPICS, body, version=version)
            answers.append((answer.topics[0].error_code, answer.throttle_time.total_seconds()))
        return answers

    # 22 tokens at first, two more each second; clients of version 5 only wait for their debt.
    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    codes, waits_s = zip(*world.run(main()), strict=True)
    assert codes == (ErrorCode.NONE, refused, ErrorCode.NONE, ErrorCode.NONE)
    assert waits_s == pytest.approx((0, 1.5, 12.5, 0), abs=0.02)


def test_connections_beyond_their_rate_are_closed_after_a_while(
    world: World, client: WireClient, cluster: WorldCluster
) -> None:
    async def end_s(address: Any) -> float:
        began_s = asyncio.get_running_loop().time()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(5):
                await reader.read()
        writer.close()
        return asyncio.get_running_loop().time() - began_s

    async def main() -> list[float]:
        entry = _quota([("ip", None)], "connection_creation_rate", 1.0)
        await client.ask(1, _ALTER_QUOTAS, {"entries": [entry], "validate_only": False})
        address = cluster.brokers[1]
        return await asyncio.gather(*[end_s(address) for _ in range(12)])

    # Ten are one a second of the least time that a rate is measured over.
    assert sorted(map(round, world.run(main()))) == [1] * 2 + [5] * 10


# Share groups.


def test_offsets_of_a_share_group_make_it(world: World, client: WireClient) -> None:
    async def main() -> tuple[Any, Any]:
        partition = {"partition_index": 0, "start_offset": 0}
        topics = [{"topic_name": _TOPIC, "partitions": [partition]}]
        altered = await client.ask_coordinator(
            "g", 0, _ALTER_SHARE_OFFSETS, {"group_id": "g", "topics": topics}
        )
        asked = {"groups": [{"group_id": "g", "topics": None}]}
        return altered, await client.ask_coordinator("g", 0, _DESCRIBE_SHARE_OFFSETS, asked)

    altered, described = world.run(main())
    assert (altered.error_code, altered.responses[0].partitions[0].error_code) == (0, 0)
    (group,) = described.groups
    assert (group.error_code, group.topics[0].partitions[0].start_offset) == (0, 0)
