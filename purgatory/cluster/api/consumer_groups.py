"""Heartbeats and descriptions of consumer groups (KIP-848) and share groups (KIP-932)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from purgatory.cluster.api.acls import authorized_group_operations, with_operations
from purgatory.cluster.api.response_future import response_future
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.fixed_layouts import HeartbeatResponse
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import ErrorCode, GroupRefusal
from purgatory.kafka.groups.consumer_group import ConsumerGroup
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
)
from purgatory.kafka.groups.consumer_group_member import JOIN_EPOCH, ConsumerMember, Principal
from purgatory.kafka.groups.group_coordinator import check_group_id
from purgatory.kafka.topic_partition import NO_PARTITIONS, Partitions, TopicIdPartition, by_topic

_CLIENT_MEMBER_ID_MIN_VERSION = 1
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


def consumer_group_heartbeat(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response | Awaitable[Response]:
    """Handle a heartbeat; complete when its changes are replicated."""
    body = request.body
    names = body.subscribed_topic_names
    requested = ConsumerGroupHeartbeat(
        body.group_id,
        body.member_id,
        body.member_epoch,
        request.client_id or "",
        f"/{connection.host}",
        body.instance_id,
        body.rack_id,
        None if names is None else tuple(names),
        getattr(body, "subscribed_topic_regex", None),
        body.server_assignor,
        milliseconds(body.rebalance_timeout),
        _partitions(body.topic_partitions),
        generates_member_id=request.api_version >= _CLIENT_MEMBER_ID_MIN_VERSION,
        requester=Principal(connection.principal, connection.host),
    )
    settings = broker.cluster.group_settings(body.group_id)
    interval_ms = settings.milliseconds("consumer.heartbeat.interval.ms")
    pending: asyncio.Future[ConsumerGroupHeartbeatResult] = response_future(
        partial(broker.groups.consumer_heartbeat, requested)
    )
    if pending.done():
        return _response(pending.result(), interval_ms)
    return _later_response(pending, interval_ms)


async def _later_response(
    pending: asyncio.Future[ConsumerGroupHeartbeatResult], interval_ms: int
) -> Response:
    return _response(await pending, interval_ms)


def _response(result: ConsumerGroupHeartbeatResult, interval_ms: int) -> Response:
    if result.error is not ErrorCode.NONE or result.epoch < JOIN_EPOCH:
        interval_ms = 0  # as in Kafka: its field is left out, also for members that leave
    if result.assignment is None:
        return HeartbeatResponse(result, interval_ms)
    topics = by_topic(result.assignment)
    return {
        "throttle_time": 0,
        "error_code": int(result.error),
        "error_message": result.message,
        "member_id": result.member_id,
        "member_epoch": result.epoch,
        "heartbeat_interval": interval_ms,
        "assignment": {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": numbers}
                for topic_id, numbers in topics.items()
            ]
        },
    }


def _partitions(topics: Sequence[Any] | None) -> Partitions | None:
    if topics is None:
        return None
    return frozenset(
        TopicIdPartition(topic.topic_id, number)
        for topic in topics
        if topic.topic_id is not None
        for number in topic.partitions
    )


async def consumer_group_describe(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Describe some groups."""
    return _descriptions(broker, request, broker.groups.describe_consumers)


def _descriptions(
    broker: BrokerServices, request: Request, find: Callable[[str], ConsumerGroup]
) -> Response:
    allowed = authorized_group_operations(request.body)
    return {
        "throttle_time": 0,
        "groups": [
            with_operations(_description(broker, find, group_id), allowed)
            for group_id in request.body.group_ids
        ],
    }


def _description(
    broker: BrokerServices, find: Callable[[str], ConsumerGroup], group_id: str
) -> dict[str, Any]:
    """Describe a group, or return an error."""
    try:
        check_group_id(group_id)
        group = find(group_id)
    except GroupRefusal as refusal:
        return {
            "error_code": int(refusal.code),
            "error_message": refusal.message,
            "group_id": group_id,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "assignor_name": "",
            "members": (),
        }
    return {
        "error_code": int(ErrorCode.NONE),
        "group_id": group_id,
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor,
        "members": [_member(broker, group, member) for member in group.members.values()],
    }


def _member(broker: BrokerServices, group: ConsumerGroup, member: ConsumerMember) -> dict[str, Any]:
    subscription = member.subscription
    target = group.targets.get(member.member_id, NO_PARTITIONS)
    return {
        "member_id": member.member_id,
        "instance_id": subscription.instance_id,
        "rack_id": subscription.rack_id,
        "member_epoch": member.current.epoch,
        "client_id": subscription.client_id,
        "client_host": subscription.client_host,
        "subscribed_topic_names": subscription.topic_names,
        "subscribed_topic_regex": subscription.topic_regex or "",
        # As in Kafka: also what it has yet to revoke.
        "assignment": _assignment(broker, member.current.partitions),
        "target_assignment": _assignment(broker, target),
        "member_type": _CONSUMER_MEMBER if subscription.classic is None else _CLASSIC_MEMBER,
    }


def _assignment(broker: BrokerServices, partitions: Partitions) -> dict[str, Any]:
    """Return partitions with their topics' names, without those of deleted topics."""
    topic_of = broker.cluster.controller.topic_with_id
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": topic.name, "partitions": numbers}
            for topic_id, numbers in by_topic(partitions).items()
            if (topic := topic_of(topic_id)) is not None
        ]
    }


async def share_group_heartbeat(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Handle a heartbeat; complete when its changes are replicated."""
    body = request.body
    names, joins = body.subscribed_topic_names, body.member_epoch == JOIN_EPOCH
    requested = ConsumerGroupHeartbeat(
        body.group_id,
        body.member_id,
        body.member_epoch,
        request.client_id or "",
        f"/{connection.host}",
        rack_id=body.rack_id,
        topic_names=None if names is None else tuple(names),
        # A share consumer owns nothing, so that no revocation can time out.
        rebalance_timeout_ms=0 if joins else -1,
        owned=NO_PARTITIONS if joins else None,
        may_read_nothing=False,
    )
    result: ConsumerGroupHeartbeatResult = await response_future(
        partial(broker.groups.share_heartbeat, requested)
    )
    settings = broker.cluster.group_settings(body.group_id)
    return _response(result, settings.milliseconds("share.heartbeat.interval.ms"))


async def share_group_describe(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Describe some share groups."""

    def find(group_id: str) -> ConsumerGroup:
        if not group_id:
            raise GroupRefusal(ErrorCode.INVALID_GROUP_ID)
        return broker.groups.describe_shares(group_id)

    return _descriptions(broker, request, find)
