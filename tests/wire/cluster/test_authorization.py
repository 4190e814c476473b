"""Every API has an authorization rule, and refuses clients without permissions."""

from __future__ import annotations

import asyncio
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map

from purgatory.cluster import AclSpec, Authorization, Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.api.authorization import Rule
from purgatory.cluster.api.registry import APIS, SUPPORTED
from purgatory.cluster.api.response_future import response_future
from purgatory.cluster.protocol.error_responses import (
    error_element,
    error_places,
    error_response,
)
from purgatory.cluster.protocol.wire import Request, encode_response
from purgatory.kafka.share_groups.share_state import ShareKey
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import ALL_VERSIONS, fill, read_response

_FOR_ANYBODY = {17, 18, 36, 60}
"""SaslHandshake, ApiVersions, SaslAuthenticate, DescribeCluster: as in Kafka."""
_LISTS = {16, 66}
"""ListGroups and ListTransactions leave out hidden entries, and refuse nothing."""
_WITHOUT_PLACE = {(35, 1), (35, 2)}
"""DescribeLogDirs up to version 2 is answered with no folder: there is no place for the code."""
_BY_ITSELF = {0, 34}
"""Produce, whose batches are transactional or not, and AlterReplicaLogDirs, which is asked by
folders and answers by topics, refuse by themselves."""
_REFUSALS = {29, 30, 31, 53, 100}
"""The codes of topics, groups, the cluster, transactional ids, and of ids that may not be known."""

_SECRET = "hidden-topic"
_UNSUPPORTED_VERSION = 35
_UNSERVED = {key for key, api in APIS.items() if not api.is_served}
"""APIs that are refused to everybody."""


def test_few_apis_need_no_permission() -> None:
    for_anybody = {key for key, api in APIS.items() if api.rule == Rule()}
    assert for_anybody == _FOR_ANYBODY | _UNSERVED | _BY_ITSELF


@pytest.mark.parametrize("api_key", APIS)
def test_each_rule_refuses_in_every_version_of_its_api(api_key: int) -> None:
    """As a whole, and in each of its parts."""
    for version in _versions(api_key):
        request_class = load_request_schema(api_key, version)
        body = fill(request_class, filled(request_class, UUID(int=7)))
        request = Request(api_key, version, 1, None, body)
        places = error_places(api_key, version, APIS[api_key].errors)
        whole = error_response(places, body, 29)
        is_refused = api_key not in _FOR_ANYBODY | _LISTS | _BY_ITSELF
        if is_refused and (api_key, version) not in _WITHOUT_PLACE:
            assert 29 in _read_codes(request, whole)
        for one in APIS[api_key].rule.parts:
            for element in getattr(body, one.request, None) or ():
                refused = error_element(places.arrays, element, 30)
                values = {places.arrays[0].response: (refused,)}
                answer = replace(error_response(places, body, 0), **values)
                assert 30 in _read_codes(request, answer)


def _versions(api_key: int) -> list[int]:
    [folder] = import_module(f"kio.schema.{api_key_map[api_key]}").__path__
    return [int(one.name[1:]) for one in Path(folder).iterdir() if one.name[1:].isdigit()]


def _read_codes(request: Request, answer: Any) -> set[int]:
    key, version = request.api_key, request.api_version
    frame = encode_response(key, version, 1, answer)
    return set(codes_in(read_response(key, version, frame[4:])[1]))


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Callable[[Cluster], Any]], Any]]:
    """Runs coroutines beside a cluster in which clients may do nothing."""
    config = ClusterConfig(
        brokers=1,
        topics=[TopicSpec(_SECRET)],
        authorization=Authorization(allow_everyone_if_no_acl_found=False),
    )
    with asyncio.Runner() as runner:
        cluster = Cluster(config)
        runner.run(cluster.start())
        yield lambda main: runner.run(main(cluster))
        runner.run(cluster.stop())


@pytest.mark.parametrize(("api_key", "version"), ALL_VERSIONS)
def test_refused_client_learns_nothing(run: Any, api_key: int, version: int) -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            request = filled(load_request_schema(api_key, version), _id_of_secret(cluster))
            answer = await client.ask(api_key, version, request)
            await client.ask(18, 0)  # the connection serves on
        codes = set(codes_in(answer))
        if api_key in _FOR_ANYBODY:
            assert not codes & _REFUSALS
        elif api_key in _UNSERVED:
            assert codes - {0} == {_UNSUPPORTED_VERSION}
        elif api_key in _LISTS or (api_key, version) in _WITHOUT_PLACE:
            assert not codes - {0}
            told = {**vars_of(answer), "unknown_state_filters": ()}  # what was asked for
            assert not any(one for one in told.values() if isinstance(one, tuple))
        else:
            assert codes - {0}
            assert codes <= _REFUSALS | {0}
            assert 0 not in codes or _has_code_at_top(answer)
        assert list(cluster.controller.topics) == [_SECRET], "nothing was made or deleted"

    run(main)


@pytest.mark.parametrize("version", range(1, SUPPORTED[3][1] + 1))
def test_topics_without_describe_permission_are_hidden(run: Any, version: int) -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            everything = await client.ask(3, version, {"topics": None})
            assert everything.topics == ()
            assert everything.brokers
            names = [{"name": _SECRET}, {"name": "no-such-topic"}]
            answer = await client.ask(3, version, {"topics": names})
            hidden, absent = answer.topics
            assert (hidden.error_code, absent.error_code) == (29, 29)
            assert hidden.partitions == absent.partitions == ()
            assert getattr(hidden, "topic_id", None) is None

    run(main)


def filled(request_class: Any, topic_id: UUID) -> dict[str, Any]:
    """Return a request with one element in each list."""
    return {
        field.name: _value(field.name, hint, field.metadata.get("kafka_type"), topic_id)
        for field, hint in _fields(request_class)
        if field.name not in ("session_id", "session_epoch", "forgotten_topics_data", "cursor")
    }


def _value(name: str, hint: Any, kafka_type: Any, topic_id: UUID) -> Any:
    if isinstance(hint, types.UnionType):
        [hint] = [one for one in typing.get_args(hint) if one is not type(None)]
    if typing.get_origin(hint) is tuple:
        return [_value(name, typing.get_args(hint)[0], kafka_type, topic_id)]
    if is_dataclass(hint):
        return filled(hint, topic_id)
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return timedelta(seconds=1)
    named: dict[str, Any] = {"replica_id": -1, "acks": -1, "replica_epoch": -1}
    by_type: dict[Any, Any] = {
        "string": _SECRET,
        "bytes": b"x",
        "records": b"",
        "bool": False,
        "float64": 0.0,
        "uuid": topic_id,
    }
    # As a number of a partition there is no 2, as a type of a resource it is a topic's.
    return named.get(name, by_type.get(kafka_type, 2))


def _id_of_secret(cluster: Cluster) -> UUID:
    return cluster.controller.topics[_SECRET].topic_id


def _fields(entity_class: Any) -> list[tuple[Any, Any]]:
    hints = typing.get_type_hints(entity_class)
    return [(field, hints[field.name]) for field in fields(entity_class)]


def vars_of(entity: Any) -> dict[str, Any]:
    return {field.name: getattr(entity, field.name) for field in fields(entity)}


def codes_in(entity: Any) -> Iterator[int]:
    for field in fields(entity):
        value = getattr(entity, field.name)
        if field.metadata.get("kafka_type") == "error_code":
            if field.name in ("error_code", "partition_error_code"):
                yield int(value)
        elif isinstance(value, tuple):
            for one in value:
                if is_dataclass(one):
                    yield from codes_in(one)
        elif is_dataclass(value):
            yield from codes_in(value)


def _has_code_at_top(answer: Any) -> bool:
    return hasattr(answer, "error_code")


def test_responses_have_the_authorized_operations_of_the_client() -> None:
    acls = [
        AclSpec("User:ANONYMOUS", "READ", "TOPIC", "mine"),
        AclSpec("User:ANONYMOUS", "ALTER_CONFIGS", "TOPIC", "mine"),
        AclSpec("User:ANONYMOUS", "CREATE", "CLUSTER"),
        AclSpec("User:ANONYMOUS", "READ", "GROUP", "g"),
    ]
    authorization = Authorization(allow_everyone_if_no_acl_found=False, acls=acls)
    config = ClusterConfig(brokers=1, topics=[TopicSpec("mine")], authorization=authorization)
    asked = {
        "topics": None,
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }

    async def main() -> None:
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            told = await client.ask(3, 8, asked)
            [topic] = told.topics
            # READ 3, DESCRIBE 8, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11
            assert topic.topic_authorized_operations == 1 << 3 | 1 << 8 | 1 << 10 | 1 << 11
            assert told.cluster_authorized_operations == 0, "it may not describe the cluster"
            groups = {"groups": ["g", "h"], "include_authorized_operations": True}
            mine, other = (await client.ask(15, 5, groups)).groups
            assert mine.authorized_operations == 1 << 3 | 1 << 8
            assert other.error_code == 30

    asyncio.run(main())


@pytest.mark.parametrize(
    ("heartbeat", "describe"),
    [((68, 1), (69, 0)), ((68, 1), (69, 1)), ((76, 1), (77, 1))],
)
def test_group_description_needs_permission_on_its_topics(
    heartbeat: tuple[int, int], describe: tuple[int, int]
) -> None:
    topic_acl = AclSpec("User:ANONYMOUS", "READ", "TOPIC", _SECRET)
    acls = [AclSpec("User:ANONYMOUS", "READ", "GROUP", "g"), topic_acl]
    authorization = Authorization(allow_everyone_if_no_acl_found=False, acls=acls)
    config = ClusterConfig(brokers=1, topics=[TopicSpec(_SECRET)], authorization=authorization)
    member = {"group_id": "g", "member_id": "m", "member_epoch": 0}
    subscription = {"rebalance_timeout": timedelta(minutes=1), "subscribed_topic_names": [_SECRET]}
    groups = {"group_ids": ["g", "none"]}

    async def main() -> None:
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            asked = {**member, **subscription, "topic_partitions": []}
            assert (await client.ask(*heartbeat, asked)).error_code == 0
            known, _ = (await client.ask(*describe, groups)).groups
            assert known.error_code == 0
            while not known.members[0].assignment.topic_partitions:
                await client.ask(*heartbeat, asked)  # a share group's partitions come later
                known, _ = (await client.ask(*describe, groups)).groups
            assert known.members[0].assignment.topic_partitions[0].topic_name == _SECRET
            cluster.security.change_acls([], [topic_acl.acl])
            hidden, _ = (await client.ask(*describe, groups)).groups
            assert (hidden.group_id, hidden.error_code, hidden.members) == ("g", 29, ())
            assert "not authorized to describe" in hidden.error_message

    asyncio.run(main())


def test_share_group_offsets_are_shown_for_describable_topics() -> None:
    acls = [
        AclSpec("User:ANONYMOUS", "READ", "GROUP", "g"),
        AclSpec("User:ANONYMOUS", "READ", "TOPIC", "mine"),
    ]
    authorization = Authorization(allow_everyone_if_no_acl_found=False, acls=acls)
    topics = [TopicSpec(_SECRET), TopicSpec("mine")]
    config = ClusterConfig(brokers=1, topics=topics, authorization=authorization)
    member = {"group_id": "g", "member_id": "m"}

    async def main() -> None:
        async with Cluster(config) as cluster, await RawClient.to(cluster) as client:
            joined = {**member, "member_epoch": 0, "subscribed_topic_names": ["mine"]}
            assert (await client.ask(76, 1, joined)).error_code == 0
            for name in (_SECRET, "mine"):
                key = ShareKey("g", cluster.controller.topics[name].topic_id, 0)
                states = cluster.brokers[1].share_states
                assert await response_future(partial(states.initialize, key, 2, 5)) == 0

            async def offsets(names: list[str] | None) -> list[tuple[str, int, int]]:
                asked = None
                if names is not None:
                    asked = [{"topic_name": name, "partitions": [0]} for name in names]
                groups = {"groups": [{"group_id": "g", "topics": asked}]}
                [group] = (await client.ask(90, 1, groups)).groups
                return [
                    (topic.topic_name, one.error_code, one.start_offset)
                    for topic in group.topics
                    for one in topic.partitions
                ]

            assert await offsets(None) == [("mine", 0, 5)]
            assert await offsets(["mine", _SECRET, "none"]) == [
                ("mine", 0, 5),
                (_SECRET, 29, -1),
                ("none", 29, -1),
            ]

    asyncio.run(main())
