"""Errors in answers: each API and version has a place for them, and the right one."""

from __future__ import annotations

import types
import typing
import uuid
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as WireError

from purgatory.cluster.api.registry import APIS, SUPPORTED
from purgatory.cluster.faulty_responses import (
    InjectedError,
    add_throttle_time,
    inject_error,
    lower_epochs,
)
from purgatory.cluster.protocol.fixed_layouts import ProduceResponse
from purgatory.cluster.protocol.wire import (
    Request,
    encode_body,
    encode_response,
    response_entity,
)
from purgatory.kafka import ErrorCode, PartitionProduceResponse, TopicPartition
from purgatory.kafka.faults import LoadCoordinator, ReturnError
from tests.wire.cluster.wire_values import ALL_VERSIONS, fill

_ERRORS = ["NOT_LEADER_OR_FOLLOWER", "NOT_COORDINATOR", "NOT_CONTROLLER", "UNKNOWN_MEMBER_ID"]
_SOME_ID = uuid.UUID(int=7)
_CARRIED_OUT = {"metadata", "fetch", "describe_log_dirs", "alter_replica_log_dirs"}


def _topic_of(topic_id: uuid.UUID) -> str | None:
    return "orders" if topic_id == _SOME_ID else None


def _inject(request: Request, fault: ReturnError) -> InjectedError | None:
    return inject_error(request, APIS[request.api_key], fault, _topic_of)


def _one_of_all(of: Any) -> Any:
    """Return an entity with one element in each array, and nothing left out."""
    return of(**{one.name: _one(typing.get_type_hints(of)[one.name], one) for one in fields(of)})


def _one(hint: Any, field: Any) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) is tuple:
        return (_one(typing.get_args(hint)[0], field),)
    if is_dataclass(hint):
        return _one_of_all(hint)
    values: Mapping[str | None, Any] = {
        "string": field.name,
        "bytes": b"bytes",
        "records": b"records",
        "bool": True,
        "uuid": _SOME_ID,
        "timedelta_i32": timedelta(seconds=1),
        "timedelta_i64": timedelta(seconds=1),
        "datetime_i64": datetime(2024, 1, 1, tzinfo=UTC),
        "error_code": WireError.none,
    }
    return values.get(field.metadata.get("kafka_type"), 3)


def _errors_in(entity: Any) -> list[WireError]:
    found: list[WireError] = []
    for field in fields(entity):
        value = getattr(entity, field.name)
        if isinstance(value, WireError) and value is not WireError.none:
            found.append(value)
        for one in value if isinstance(value, tuple) else (value,):
            found += _errors_in(one) if is_dataclass(one) else []
    return found


def _request(api_key: int, version: int, body: Any) -> Request:
    return Request(api_key, version, 1, "a-test", body)


@pytest.mark.parametrize("error", _ERRORS)
def test_error_response_exists_for_each_api_and_version(error: str) -> None:
    for api_key, version in ALL_VERSIONS:
        body = _one_of_all(load_request_schema(api_key, version))
        request = _request(api_key, version, body)
        injected = _inject(request, ReturnError(error=error))
        assert injected is not None, request.api_name
        done = _one_of_all(load_response_schema(api_key, version))
        answer = injected.apply(None if injected.remaining is None else done)
        assert _errors_in(answer) == [WireError[error.lower()]], answer
        written = encode_body(api_key, version, answer)
        assert response_entity(request, written) == answer, "it is one that clients can read"
        assert encode_response(api_key, version, 1, written)
        if request.api_name not in _CARRIED_OUT:
            assert injected.remaining is None


@pytest.mark.parametrize("error", _ERRORS)
def test_error_beside_the_result_exists_for_each_version(error: str) -> None:
    for api_key, version in ALL_VERSIONS:
        request = _request(api_key, version, _one_of_all(load_request_schema(api_key, version)))
        injected = _inject(request, ReturnError(error=error, after=True))
        assert injected is not None and injected.remaining == request.body
        done = _one_of_all(load_response_schema(api_key, version))
        assert _errors_in(injected.apply(done)) == [WireError[error.lower()]]


def _places(answer: Any, error: str) -> str:
    """Return where an answer has an error: "topics.partitions", or "" for the whole."""
    found = []
    for field in fields(answer):
        value = getattr(answer, field.name)
        if value is WireError[error.lower()]:
            found.append("")
        for one in value if isinstance(value, tuple) else ():
            if is_dataclass(one) and _errors_in(one):
                found.append(f"{field.name}.{_places(one, error)}".removesuffix("."))
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("api_key", "version", "error", "place"),
    [
        (0, 9, "NOT_LEADER_OR_FOLLOWER", "responses.partition_responses"),
        (1, 12, "OFFSET_OUT_OF_RANGE", "responses.partitions"),
        (1, 12, "FETCH_SESSION_ID_NOT_FOUND", ""),
        (1, 6, "FETCH_SESSION_ID_NOT_FOUND", "responses.partitions"),
        (3, 8, "UNKNOWN_TOPIC_OR_PARTITION", "topics"),
        (8, 8, "NOT_COORDINATOR", "topics.partitions"),
        (9, 1, "NOT_COORDINATOR", "topics.partitions"),
        (9, 7, "NOT_COORDINATOR", ""),
        (9, 7, "UNKNOWN_TOPIC_OR_PARTITION", "topics.partitions"),
        (9, 8, "NOT_COORDINATOR", "groups"),
        (9, 8, "UNSTABLE_OFFSET_COMMIT", "groups.topics.partitions"),
        (10, 3, "COORDINATOR_NOT_AVAILABLE", ""),
        (10, 4, "COORDINATOR_NOT_AVAILABLE", "coordinators"),
        (11, 9, "UNKNOWN_MEMBER_ID", ""),
        (13, 5, "UNKNOWN_MEMBER_ID", "members"),
        (13, 5, "NOT_COORDINATOR", ""),
        (13, 2, "UNKNOWN_MEMBER_ID", ""),
        (19, 6, "NOT_CONTROLLER", "topics"),
        (20, 5, "TOPIC_DELETION_DISABLED", "responses"),
        (32, 4, "CLUSTER_AUTHORIZATION_FAILED", "results"),
        (42, 2, "NON_EMPTY_GROUP", "results"),
    ],
)
def test_error_is_at_kafkas_place(api_key: int, version: int, error: str, place: str) -> None:
    request = _request(api_key, version, _one_of_all(load_request_schema(api_key, version)))
    injected = _inject(request, ReturnError(error=error))
    assert injected is not None
    assert _places(injected.apply(None), error) == place


def _produce(version: int = 9, **topics: list[int]) -> Request:
    data = [
        {
            "name": name,
            "partition_data": [{"index": number, "records": b"r"} for number in numbers],
        }
        for name, numbers in topics.items()
    ]
    values = {"acks": -1, "timeout": timedelta(seconds=1), "topic_data": data}
    return _request(0, version, fill(load_request_schema(0, version), values))


def _asked(body: Any) -> dict[str, list[int]]:
    return {one.name: [part.index for part in one.partition_data] for one in body.topic_data}


def test_targets_get_the_error_and_the_rest_is_executed() -> None:
    request = _produce(orders=[0, 1], other=[0])
    cases: list[tuple[dict[str, Any], dict[str, list[int]]]] = [
        ({"topic": "orders"}, {"other": [0]}),
        ({"topic": "orders", "partition": 1}, {"orders": [0], "other": [0]}),
        ({"partition": 0}, {"orders": [1]}),
        ({"topic": "other"}, {"orders": [0, 1]}),
    ]
    for chosen, left in cases:
        injected = _inject(request, ReturnError(error="NOT_LEADER_OR_FOLLOWER", **chosen))
        assert injected is not None and _asked(injected.remaining) == left
    assert _inject(request, ReturnError(error="NOT_LEADER_OR_FOLLOWER", topic="none")) is None
    assert _inject(request, ReturnError(error="NOT_LEADER_OR_FOLLOWER", group_id="g")) is None


def test_errors_are_added_to_results() -> None:
    request = _produce(orders=[0, 1], other=[0])
    injected = _inject(request, ReturnError(error="REQUEST_TIMED_OUT", topic="orders", partition=1))
    assert injected is not None
    done = PartitionProduceResponse(ErrorCode.NONE, base_offset=44)
    left = [
        TopicPartition(name, one)
        for name, all_ in _asked(injected.remaining).items()
        for one in all_
    ]
    answered = ProduceResponse(dict.fromkeys(left, done))
    answer = injected.apply(response_entity(request, answered))
    told = {
        (topic.name, one.index): (one.error_code.name, one.base_offset)
        for topic in answer.responses
        for one in topic.partition_responses
    }
    assert told == {
        ("orders", 0): ("none", 44),
        ("orders", 1): ("request_timed_out", -1),
        ("other", 0): ("none", 44),
    }


def _metadata(version: int, topics: Any) -> Request:
    return _request(3, version, fill(load_request_schema(3, version), {"topics": topics}))


def _described(version: int, *names: str) -> Any:
    topics = [
        {
            "error_code": 0,
            "name": name,
            "topic_id": _SOME_ID,
            "is_internal": False,
            "partitions": [
                {
                    "error_code": 0,
                    "partition_index": number,
                    "leader_id": 1,
                    "leader_epoch": 4,
                    "replica_nodes": [1],
                    "isr_nodes": [1],
                    "offline_replicas": [],
                }
                for number in range(2)
            ],
        }
        for name in names
    ]
    brokers = [{"node_id": 1, "host": "h", "port": 9092, "rack": None}]
    values = {"throttle_time": 0, "brokers": brokers, "controller_id": 1, "topics": topics}
    return response_entity(_metadata(version, ()), values)


def test_targets_of_a_response_about_all_topics_get_the_error() -> None:
    request = _metadata(8, None)
    injected = _inject(request, ReturnError(error="LEADER_NOT_AVAILABLE", topic="orders"))
    assert injected is not None and injected.remaining == request.body
    answer = injected.apply(_described(8, "orders", "other"))
    told = [(one.name, one.error_code.name, len(one.partitions)) for one in answer.topics]
    assert told == [("orders", "leader_not_available", 0), ("other", "none", 2)]
    assert len(answer.brokers) == 1


def test_partition_that_only_the_response_lists_gets_the_error() -> None:
    request = _metadata(8, [{"name": "orders"}])
    fault = ReturnError(error="LEADER_NOT_AVAILABLE", topic="orders", partition=1)
    injected = _inject(request, fault)
    assert injected is not None
    [topic] = injected.apply(_described(8, "orders")).topics
    told = [(one.partition_index, one.error_code.name, one.leader_id) for one in topic.partitions]
    assert (topic.error_code.name, told) == (
        "none",
        [(0, "none", 1), (1, "leader_not_available", -1)],
    )


def test_topic_is_targeted_by_its_id() -> None:
    request = _metadata(12, [{"topic_id": _SOME_ID, "name": None}])
    fault = ReturnError(error="UNKNOWN_TOPIC_ID", topic="orders")
    injected = _inject(request, fault)
    assert injected is not None and injected.remaining.topics == ()
    [topic] = injected.apply(_described(12)).topics
    assert (topic.topic_id, topic.error_code.name) == (_SOME_ID, "unknown_topic_id")
    assert _inject(request, ReturnError(error="UNKNOWN_TOPIC_ID", topic="other")) is None


def _asked_of_coordinator(api_key: int, version: int, **values: Any) -> Request:
    return _request(api_key, version, fill(load_request_schema(api_key, version), values))


def test_group_ids_and_transactional_ids_are_distinguished() -> None:
    mine = LoadCoordinator(group_id="mine")
    assert _inject(_asked_of_coordinator(14, 4, group_id="mine"), mine) is not None
    assert _inject(_asked_of_coordinator(14, 4, group_id="other"), mine) is None
    both = _asked_of_coordinator(15, 5, groups=("mine", "other"))
    injected = _inject(both, mine)
    assert injected is not None and injected.remaining.groups == ("other",)
    keys = _asked_of_coordinator(10, 4, key_type=1, coordinator_keys=("mine",))
    not_there = ReturnError(error="COORDINATOR_NOT_AVAILABLE", group_id="mine")
    assert _inject(keys, not_there) is None, "that is a transaction of this name"
    keys = _asked_of_coordinator(10, 4, key_type=0, coordinator_keys=("other", "mine"))
    injected = _inject(keys, not_there)
    assert injected is not None and injected.remaining.coordinator_keys == ("other",)
    without = _asked_of_coordinator(22, 4, transactional_id=None)
    assert _inject(without, LoadCoordinator()) is None, "nobody coordinates that"
    assert _inject(replace(without, body=_one_of_all(type(without.body))), LoadCoordinator())


def test_coordinators_alone_return_load_in_progress() -> None:
    fault = LoadCoordinator()
    assert fault.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for api_key, api in APIS.items():
        version = api.versions[1]
        request = _request(api_key, version, _one_of_all(load_request_schema(api_key, version)))
        # A classic group's heartbeat gets no error while its coordinator loads.
        is_coordinated = api.redirect == ErrorCode.NOT_COORDINATOR and api_key != 12
        assert (_inject(request, fault) is not None) is is_coordinated


@pytest.mark.parametrize("version", range(SUPPORTED[24][0], SUPPORTED[24][1] + 1))
def test_fault_targets_a_transaction_in_each_version(version: int) -> None:
    request = _request(24, version, _one_of_all(load_request_schema(24, version)))
    name = next(one.name for one in fields(request.body) if "transaction" in one.name)
    transactional_id = name if version < 4 else "transactional_id"
    for chosen, is_injected in ((transactional_id, True), ("other", False)):
        fault = ReturnError(error="INVALID_PRODUCER_EPOCH", transactional_id=chosen)
        assert (_inject(request, fault) is not None) is is_injected


def test_lowered_epochs_concern_one_topic_and_stay_at_least_0() -> None:
    def epochs(answer: Any) -> list[list[int]]:
        return [[part.leader_epoch for part in one.partitions] for one in answer.topics]

    answer = _described(8, "orders", "other")
    assert epochs(lower_epochs(answer, 1, "orders", _topic_of)) == [[3, 3], [4, 4]]
    assert epochs(lower_epochs(answer, 9, None, _topic_of)) == [[0, 0], [0, 0]]
    assert lower_epochs(answer, 1, "none", _topic_of) is answer
    assert add_throttle_time(answer, 250).throttle_time == timedelta(milliseconds=250)


def test_error_responses_cover_all_served_apis() -> None:
    assert {api_key for api_key, _ in ALL_VERSIONS} == set(SUPPORTED)
