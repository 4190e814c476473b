"""The APIs of consumer groups: who coordinates, joining, syncing, heartbeats, leaving, looking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from purgatory.cluster.api import permitted_operations
from purgatory.cluster.groups import (
    OFFSETS_TOPIC,
    Group,
    GroupError,
    GroupRefusal,
    GroupState,
    Joining,
    MemberIdRequired,
    partition_of,
)
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import TopicPartition

if TYPE_CHECKING:
    from purgatory.cluster.broker import Broker

_GROUP_KEY = 0
_INVALID_REQUEST = 42
_IDS_FIRST_SINCE = 4
_DEAD = "Dead"


def coordinated_partition(broker: Broker, group_id: str) -> int:
    """Return the partition of the offsets' topic that a group belongs to, if it is led here.

    Raises:
        GroupRefusal: another broker coordinates the group.
    """
    partition = partition_of(group_id, broker.cluster.offsets_partitions())
    if not broker.offsets.leads(partition):
        raise GroupRefusal(GroupError.NOT_COORDINATOR)
    return partition


# ---- who coordinates


async def find_coordinator(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell which broker coordinates groups: who leads their partition of the offsets' topic."""
    body = request.body
    if request.api_version < 4:
        return {"throttle_time": 0, **_coordinator(broker, body.key, getattr(body, "key_type", 0))}
    return {
        "throttle_time": 0,
        "coordinators": [
            {"key": key, **_coordinator(broker, key, body.key_type)}
            for key in body.coordinator_keys
        ],
    }


def _coordinator(broker: Broker, key: str, key_type: int) -> dict[str, Any]:
    nobody = {"error_message": None, "node_id": -1, "host": "", "port": -1}
    if key_type != _GROUP_KEY:
        return {
            **nobody,
            "error_code": _INVALID_REQUEST,
            "error_message": "transactions are not served",
        }
    cluster = broker.cluster
    partition = partition_of(key, cluster.offsets_partitions())
    state = cluster.controller.state_of(TopicPartition(OFFSETS_TOPIC, partition))
    leader = None if state is None else cluster.live_broker(state.leader)
    if leader is None:
        return {**nobody, "error_code": int(GroupError.COORDINATOR_NOT_AVAILABLE)}
    return {
        "error_code": 0,
        "error_message": None,
        "node_id": leader.broker_id,
        "host": leader.host,
        "port": leader.port,
    }


# ---- belonging to a group


async def join_group(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Join, and answer when all members have."""
    body = request.body
    session_timeout_ms = milliseconds(body.session_timeout)
    rebalance_timeout_ms = milliseconds(body.rebalance_timeout)
    joined = Joining(
        request.client_id or "",
        f"/{connection.peer.rpartition(':')[0]}",
        getattr(body, "group_instance_id", None),
        session_timeout_ms,
        rebalance_timeout_ms if rebalance_timeout_ms > 0 else session_timeout_ms,
        body.protocol_type,
        tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols),
    )
    member_id = body.member_id
    try:
        coordinated_partition(broker, body.group_id)
        return await broker.groups.join(
            body.group_id, member_id, joined, request.api_version >= _IDS_FIRST_SINCE
        )
    except GroupRefusal as refusal:
        if isinstance(refusal, MemberIdRequired):
            member_id = refusal.member_id
        return {
            "throttle_time": 0,
            "error_code": int(refusal.code),
            "generation_id": -1,
            "protocol_type": None,
            # A name that may be null came with version 7.
            "protocol_name": None if request.api_version >= 7 else "",
            "leader": "",
            "member_id": member_id,
            "members": (),
        }


async def sync_group(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Take the leader's assignment, and give each member its own."""
    body = request.body
    assignments = {one.member_id: bytes(one.assignment) for one in body.assignments}
    try:
        coordinated_partition(broker, body.group_id)
        return await broker.groups.sync(
            body.group_id,
            body.generation_id,
            body.member_id,
            getattr(body, "group_instance_id", None),
            assignments,
        )
    except GroupRefusal as refusal:
        return {
            "throttle_time": 0,
            "error_code": int(refusal.code),
            "protocol_type": None,
            "protocol_name": None,
            "assignment": b"",
        }


async def heartbeat(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Take a sign of life."""
    body = request.body
    code = GroupError.NONE
    try:
        coordinated_partition(broker, body.group_id)
        broker.groups.heartbeat(
            body.group_id,
            body.generation_id,
            body.member_id,
            getattr(body, "group_instance_id", None),
        )
    except GroupRefusal as refusal:
        code = refusal.code
    return {"throttle_time": 0, "error_code": int(code)}


async def leave_group(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Let members go."""
    body = request.body
    asked = (
        [(body.member_id, None)]
        if request.api_version < 3
        else [(one.member_id, one.group_instance_id) for one in body.members]
    )
    try:
        coordinated_partition(broker, body.group_id)
    except GroupRefusal as refusal:
        return {"throttle_time": 0, "error_code": int(refusal.code), "members": ()}
    codes = [_leave(broker, body.group_id, *one) for one in asked]
    return {
        "throttle_time": 0,
        "error_code": int(codes[0]) if request.api_version < 3 else 0,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": int(code)}
            for (member_id, instance_id), code in zip(asked, codes, strict=True)
        ],
    }


def _leave(broker: Broker, group_id: str, member_id: str, instance_id: str | None) -> GroupError:
    try:
        broker.groups.leave(group_id, member_id, instance_id)
    except GroupRefusal as refusal:
        return refusal.code
    return GroupError.NONE


# ---- looking at groups


async def list_groups(broker: Broker, request: Request, connection: Connection) -> Answer:
    """List the groups that are coordinated here."""
    wanted = set(getattr(request.body, "states_filter", None) or ())
    groups = [(group.group_id, group) for group in broker.groups.groups.values()]
    known = {group_id for group_id, _ in groups}
    only_offsets = [Group(one) for one in broker.offsets.groups() if one not in known]
    return {
        "throttle_time": 0,
        "error_code": 0,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state.value,
            }
            for group in [*(group for _, group in groups), *only_offsets]
            if not wanted or group.state.value in wanted
        ],
    }


async def describe_groups(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell all about some groups."""
    allowed = permitted_operations.of_group(request.body)
    return {
        "throttle_time": 0,
        "groups": [
            {**_description(broker, group_id), "authorized_operations": allowed}
            for group_id in request.body.groups
        ],
    }


def _description(broker: Broker, group_id: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "error_code": 0,
        "group_id": group_id,
        "group_state": _DEAD,
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
    }
    try:
        coordinated_partition(broker, group_id)
    except GroupRefusal as refusal:
        return {**values, "error_code": int(refusal.code)}
    group = broker.groups.groups.get(group_id)
    if group is None:
        state = GroupState.EMPTY.value if broker.offsets.of_group(group_id) else _DEAD
        return {**values, "group_state": state}
    return {
        **values,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": group.protocol or "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.joined.client_id,
                "client_host": member.joined.client_host,
                "member_metadata": member.metadata_for(group.protocol or ""),
                "member_assignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }


async def delete_groups(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Delete groups without members, with their offsets."""
    return {
        "throttle_time": 0,
        "results": [
            {"group_id": group_id, "error_code": int(await _delete(broker, group_id))}
            for group_id in request.body.groups_names
        ],
    }


async def _delete(broker: Broker, group_id: str) -> GroupError:
    try:
        partition = coordinated_partition(broker, group_id)
    except GroupRefusal as refusal:
        return refusal.code
    group = broker.groups.groups.get(group_id)
    if group is not None and group.members:
        return GroupError.NON_EMPTY_GROUP
    if group is None and not broker.offsets.of_group(group_id):
        return GroupError.GROUP_ID_NOT_FOUND
    code = await broker.offsets.delete(partition, group_id)
    if code is GroupError.NONE:
        broker.groups.forget(group_id)
    return code
