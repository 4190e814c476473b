"""Heartbeats and descriptions of streams groups (KIP-1071), and the topics that they need.

A heartbeat that finds internal topics missing creates them, in the client's name. Why one could not
be created is told with the next heartbeats, for as long as it is not tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from purgatory.cluster.api.acls import authorized_group_operations, with_operations
from purgatory.cluster.api.authorization import authorization_context
from purgatory.cluster.api.response_future import response_future
from purgatory.cluster.api.topics import create_internal_topics
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import ErrorCode, GroupRefusal
from purgatory.kafka.features import STREAMS
from purgatory.kafka.groups.consumer_group_member import JOIN_EPOCH
from purgatory.kafka.groups.group_coordinator import check_group_id
from purgatory.kafka.groups.streams_group import EndpointPartitions, StreamsGroup
from purgatory.kafka.groups.streams_group_coordinator import (
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResult,
)
from purgatory.kafka.groups.streams_member import (
    StreamsMember,
    TaskId,
    TaskIds,
    Tasks,
    UserEndpoint,
    by_subtopology,
)
from purgatory.kafka.groups.streams_topology import (
    CopartitionGroup,
    InternalTopic,
    Status,
    StatusCode,
    Subtopology,
    Topology,
)
from purgatory.kafka.security.authorizer import Operation
from purgatory.kafka.topics import INTERNAL_TOPICS, invalid_topic_name_reason

_DEFAULT = -1
_SHOWN_ERRORS = 3


async def streams_group_heartbeat(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Handle a heartbeat; complete when its changes are replicated."""
    body = request.body
    if not broker.cluster.controller.feature_levels.get(STREAMS):
        return _response(StreamsGroupHeartbeatResult(ErrorCode.UNSUPPORTED_VERSION), 0)
    requested = _heartbeat(request, connection)
    wrong = unusable_topics(requested.topology)
    if wrong is not None:
        refused = StreamsGroupHeartbeatResult(ErrorCode.STREAMS_INVALID_TOPOLOGY, message=wrong)
        return _response(refused, 0)
    result: StreamsGroupHeartbeatResult = await response_future(
        partial(broker.groups.streams_heartbeat, requested)
    )
    settings = broker.cluster.group_settings(body.group_id)
    interval_ms = settings.milliseconds("streams.heartbeat.interval.ms")
    response = _response(result, interval_ms)
    if result.missing:
        details = _create_missing(broker, request, connection, result.missing, 2 * interval_ms)
        for status in response["status"]:
            if status["status_code"] == StatusCode.MISSING_INTERNAL_TOPICS:
                status["status_detail"] += details
    return response


def _heartbeat(request: Request, connection: Connection) -> StreamsGroupHeartbeat:
    body = request.body
    endpoint = body.user_endpoint
    return StreamsGroupHeartbeat(
        body.group_id,
        body.member_id,
        body.member_epoch,
        request.client_id or "",
        f"/{connection.host}",
        body.endpoint_information_epoch,
        body.instance_id,
        body.rack_id,
        milliseconds(body.rebalance_timeout),
        None if body.topology is None else _topology(body.topology),
        tuple(map(_tasks, (body.active_tasks, body.standby_tasks, body.warmup_tasks))),
        body.process_id,
        None if endpoint is None else UserEndpoint(endpoint.host, endpoint.port),
        None if body.client_tags is None else _pairs(sorted(body.client_tags, key=_key)),
        body.shutdown_application,
        (body.task_offsets, body.task_end_offsets) != (None, None),
    )


def _key(pair: Any) -> str:
    return str(pair.key)


def _pairs(pairs: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((pair.key, pair.value) for pair in pairs)


def _tasks(listed: Sequence[Any] | None) -> TaskIds | None:
    if listed is None:
        return None
    return frozenset(
        TaskId(one.subtopology_id, number) for one in listed for number in one.partitions
    )


def _topology(topology: Any) -> Topology:
    return Topology(topology.epoch, tuple(map(_subtopology, topology.subtopologies)))


def _subtopology(one: Any) -> Subtopology:
    return Subtopology(
        one.subtopology_id,
        one.source_topics,
        one.source_topic_regex,
        _topics(one.state_changelog_topics),
        one.repartition_sink_topics,
        _topics(one.repartition_source_topics),
        tuple(
            CopartitionGroup(
                group.source_topics, group.source_topic_regex, group.repartition_source_topics
            )
            for group in one.copartition_groups
        ),
    )


def _topics(topics: Iterable[Any]) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(
            topic.name, topic.partitions, topic.replication_factor, _pairs(topic.topic_configs)
        )
        for topic in topics
    )


def unusable_topics(topology: Topology | None) -> str | None:
    """Return why a topology names topics that no application may use; None: it names none."""
    if topology is None:
        return None
    names = list(dict.fromkeys(name for one in topology.subtopologies for name in one.named_topics))
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        return (
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is "
            "prohibited."
        )
    invalid = [name for name in names if invalid_topic_name_reason(name, ()) is not None]
    return f"Topic names {','.join(invalid)} are not valid topic names." if invalid else None


def _response(result: StreamsGroupHeartbeatResult, interval_ms: int) -> dict[str, Any]:
    is_member = result.error is ErrorCode.NONE and result.epoch >= JOIN_EPOCH
    active, standby, warmup = (None, None, None) if result.tasks is None else result.tasks
    return {
        "throttle_time": 0,
        "error_code": int(result.error),
        "error_message": result.message,
        "member_id": result.member_id,
        "member_epoch": result.epoch,
        "heartbeat_interval": interval_ms if is_member else 0,
        "acceptable_recovery_lag": 0,
        "task_offset_interval": 0,
        "status": list(map(_status, result.status)),
        "active_tasks": _listed(active),
        "standby_tasks": _listed(standby),
        "warmup_tasks": _listed(warmup),
        "endpoint_information_epoch": result.endpoint_epoch,
        "partitions_by_user_endpoint": None
        if result.endpoints is None
        else list(map(_endpoint, result.endpoints)),
    }


def _status(status: Status) -> dict[str, Any]:
    return {"status_code": int(status.code), "status_detail": status.detail}


def _listed(tasks: TaskIds | None) -> list[dict[str, Any]] | None:
    if tasks is None:
        return None
    return [
        {"subtopology_id": name, "partitions": numbers}
        for name, numbers in by_subtopology(tasks).items()
    ]


def _endpoint(told: EndpointPartitions) -> dict[str, Any]:
    return {
        "user_endpoint": told.endpoint._asdict(),
        **{
            f"{kind}_partitions": [
                {"topic": topic, "partitions": numbers} for topic, numbers in topics
            ]
            for kind, topics in (("active", told.active), ("standby", told.standby))
        },
    }


def _create_missing(
    broker: BrokerServices,
    request: Request,
    connection: Connection,
    missing: Mapping[str, InternalTopic],
    keep_ms: int,
) -> str:
    """Create topics, and return what is to be told of those that can't be.

    Args:
        keep_ms: how long a topic that could not be created is not tried again.
    """
    context = authorization_context(broker, request, connection)
    if context is not None and not context.allows_cluster(Operation.CREATE):
        forbidden = [name for name in missing if not context.allows_topic(Operation.CREATE, name)]
        if forbidden:
            return f"; Unauthorized to CREATE on topics {', '.join(forbidden)}."
    now_ms = int(broker.manager.clock.now_ms())
    errors = broker.topic_errors
    for name in [name for name, (_, until_ms) in errors.items() if until_ms <= now_ms]:
        del errors[name]
    told = [f"{name} ({errors[name][0]})" for name in missing if name in errors]
    tried = [_creatable(topic) for name, topic in missing.items() if name not in errors]
    for name, message in create_internal_topics(broker, request, connection, tried).items():
        errors[name] = message, now_ms + keep_ms
    if not told:
        return ""
    more = f" and {len(told) - _SHOWN_ERRORS} more" if len(told) > _SHOWN_ERRORS else ""
    return f"; Creation failed: {', '.join(told[:_SHOWN_ERRORS])}{more}."


def _creatable(topic: InternalTopic) -> SimpleNamespace:
    """Return a topic as CreateTopics has it."""
    return SimpleNamespace(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor or _DEFAULT,
        assignments=(),
        configs=[SimpleNamespace(name=name, value=value) for name, value in topic.configs],
    )


# Descriptions.


async def streams_group_describe(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Describe some streams groups."""
    allowed = authorized_group_operations(request.body)
    return {
        "throttle_time": 0,
        "groups": [
            with_operations(_description(broker, group_id), allowed)
            for group_id in request.body.group_ids
        ],
    }


def _description(broker: BrokerServices, group_id: str) -> dict[str, Any]:
    try:
        if not broker.cluster.controller.feature_levels.get(STREAMS):
            raise GroupRefusal(ErrorCode.UNSUPPORTED_VERSION)
        if not group_id:
            raise GroupRefusal(ErrorCode.INVALID_GROUP_ID)
        check_group_id(group_id)
        group = broker.groups.describe_streams(group_id)
    except GroupRefusal as refusal:
        return {
            "error_code": int(refusal.code),
            "error_message": refusal.message,
            "group_id": group_id,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "topology": None,
            "members": (),
        }
    return {
        "error_code": int(ErrorCode.NONE),
        "group_id": group_id,
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "topology": _described_topology(group),
        "members": [_member(group, member) for member in group.members.values()],
    }


def _described_topology(group: StreamsGroup) -> dict[str, Any] | None:
    """Describe the topology; with the partitions of internal topics, once all topics are there."""
    topology, found = group.topology, group.configured
    if topology is None:
        return None
    subtopologies = list(topology.by_id.values())
    if found is not None and found.is_ready and found.subtopologies is not None:
        subtopologies = [one.subtopology for one in found.subtopologies.values()]
    return {
        "epoch": topology.epoch,
        "subtopologies": [
            {
                "subtopology_id": one.subtopology_id,
                "source_topics": sorted(one.source_topics),
                "repartition_sink_topics": sorted(one.repartition_sink_topics),
                "state_changelog_topics": _described_topics(one.changelog_topics),
                "repartition_source_topics": _described_topics(one.repartition_source_topics),
            }
            for one in subtopologies
        ],
    }


def _described_topics(topics: Iterable[InternalTopic]) -> list[dict[str, Any]]:
    return [
        {**topic._asdict(), "topic_configs": _described_pairs(topic.configs)}
        for topic in sorted(topics)
    ]


def _described_pairs(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in pairs]


def _member(group: StreamsGroup, member: StreamsMember) -> dict[str, Any]:
    client, current = member.subscription, member.current
    endpoint = client.user_endpoint
    return {
        "member_id": member.member_id,
        "member_epoch": current.epoch,
        "instance_id": None,
        "rack_id": client.rack_id,
        "client_id": client.client_id,
        "client_host": client.client_host,
        "topology_epoch": client.topology_epoch,
        "process_id": client.process_id,
        "user_endpoint": None if endpoint is None else endpoint._asdict(),
        "client_tags": _described_pairs(client.client_tags),
        "task_offsets": (),
        "task_end_offsets": (),
        "assignment": _assignment(current.assigned),
        "target_assignment": _assignment(group.targets.get(member.member_id, Tasks())),
        "is_classic": False,
    }


def _assignment(tasks: Tasks) -> dict[str, Any]:
    return {f"{kind}_tasks": _listed(of_kind) for kind, of_kind in tasks._asdict().items()}
