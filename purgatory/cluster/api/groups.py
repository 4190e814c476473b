"""FindCoordinator, and the APIs of classic groups: join, sync, heartbeat, leave, describe."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from purgatory.cluster.api.acls import authorized_group_operations, with_operations
from purgatory.cluster.api.response_future import response_future
from purgatory.cluster.api.share_groups import delete_all_share_group_offsets
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.listeners import Listener
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import (
    ErrorCode,
    GroupRefusal,
    GroupState,
    JoinGroupRequest,
    JoinGroupResult,
    SyncGroupResult,
    TopicPartition,
)
from purgatory.kafka.groups.epoch_group import EpochGroup
from purgatory.kafka.groups.group import GroupProtocol, LeaveGroupResult

_GROUP_KEY, _TRANSACTION_KEY, _SHARE_KEY = 0, 1, 2

_COORDINATOR_PARTITIONS: Mapping[int, Callable[[BrokerServices, str], TopicPartition]] = {
    _GROUP_KEY: lambda broker, key: broker.groups.coordinator_partition(key),
    _TRANSACTION_KEY: lambda broker, key: broker.transactions.coordinator_partition(key),
    _SHARE_KEY: lambda broker, key: broker.share_coordinator.partition_of_coordinator_key(key),
}

_KEYS_MIN_VERSION = 4
"""Since this version of FindCoordinator several are asked for."""
_SHARE_KEY_MIN_VERSION = 6
_BYTES_OF_ID = 16
_MEMBER_ID_REQUIRED_MIN_VERSION = 4
_NULLABLE_PROTOCOL_MIN_VERSION = 7
_SKIP_ASSIGNMENT_MIN_VERSION = 9
_SYNC_PROTOCOL_MIN_VERSION = 5
"""Since this version of SyncGroup a member sends the group's protocol."""

_GROUP_ID_NOT_FOUND_MIN_VERSION = 6
"""Since this version of DescribeGroups an unknown group is an error; before, it is a dead group."""


# ---- coordinators


async def find_coordinator(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return the coordinators of groups, transactions or share partitions: the brokers that lead
    their partitions of the internal topics."""
    body = request.body
    if request.api_version < _KEYS_MIN_VERSION:
        key_type = getattr(body, "key_type", _GROUP_KEY)
        return {
            "throttle_time": 0,
            **_coordinator(broker, connection.listener, body.key, key_type, request.api_version),
        }
    return {
        "throttle_time": 0,
        "coordinators": [
            {
                "key": key,
                **_coordinator(
                    broker, connection.listener, key, body.key_type, request.api_version
                ),
            }
            for key in body.coordinator_keys
        ],
    }


def _coordinator(
    broker: BrokerServices, listener: Listener, key: str, key_type: int, api_version: int
) -> dict[str, Any]:
    # As in Kafka: the older versions have the error's name for a text, the newer ones an empty one.
    no_text = "" if api_version >= _KEYS_MIN_VERSION else "NONE"
    no_coordinator = {"error_message": None, "node_id": -1, "host": "", "port": -1}
    coordinator_partition = _COORDINATOR_PARTITIONS.get(key_type)
    if coordinator_partition is None or (
        key_type == _SHARE_KEY and api_version < _SHARE_KEY_MIN_VERSION
    ):
        return {
            **no_coordinator,
            "error_code": int(ErrorCode.INVALID_REQUEST),
            "error_message": f"there is no coordinator of {key!r} of the type {key_type}",
        }
    if key_type == _SHARE_KEY and not _is_share_key(key):
        return {
            **no_coordinator,
            "error_code": int(ErrorCode.INVALID_REQUEST),
            "error_message": "",
        }
    place, delays = coordinator_partition(broker, key), broker.cluster.delays
    state = broker.cluster.controller.state_of(place)
    leader = None if state is None else broker.cluster.live_broker(state.leader)
    is_hidden = delays is not None and delays.hides_topic(broker.broker_id, place.topic)
    if leader is None or is_hidden:
        return {**no_coordinator, "error_code": int(ErrorCode.COORDINATOR_NOT_AVAILABLE)}
    return {
        "error_code": 0,
        "error_message": no_text,
        "node_id": leader.broker_id,
        **leader.endpoint(listener)._asdict(),
    }


def _is_share_key(key: str) -> bool:
    """Whether a key names a share partition: GROUP:TOPIC:PARTITION, with the topic's id."""
    group, *place = key.rsplit(":", 2)
    if not group or len(place) != 2:
        return False
    try:
        return len(urlsafe_b64decode(f"{place[0]}==")) == _BYTES_OF_ID and int(place[1]) >= 0
    except ValueError:
        return False


# ---- members


async def join_group(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Join a group; complete when all members have joined."""
    body = request.body
    session_timeout_ms = milliseconds(body.session_timeout)
    # Version 0 has no rebalance timeout: the session timeout stands for it.
    rebalance_timeout_ms = milliseconds(getattr(body, "rebalance_timeout", body.session_timeout))
    joined = JoinGroupRequest(
        request.client_id or "",
        f"/{connection.host}",
        getattr(body, "group_instance_id", None),
        session_timeout_ms,
        rebalance_timeout_ms if rebalance_timeout_ms > 0 else session_timeout_ms,
        body.protocol_type,
        tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols),
        request.api_version >= _SKIP_ASSIGNMENT_MIN_VERSION,
    )
    require_known_member_id = request.api_version >= _MEMBER_ID_REQUIRED_MIN_VERSION
    result: JoinGroupResult = await response_future(
        partial(
            broker.groups.classic_requests.join,
            body.group_id,
            body.member_id,
            joined,
            require_known_member_id,
        )
    )
    may_be_null = request.api_version >= _NULLABLE_PROTOCOL_MIN_VERSION
    return {
        "throttle_time": 0,
        "error_code": int(result.error),
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol if may_be_null else result.protocol or "",
        "leader": result.leader_id,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in result.members
        ],
    }


async def sync_group(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Store the leader's assignments, and return the member's own."""
    body = request.body
    protocol = GroupProtocol(
        getattr(body, "protocol_type", None), getattr(body, "protocol_name", None)
    )
    if request.api_version >= _SYNC_PROTOCOL_MIN_VERSION and None in protocol:
        result = SyncGroupResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    else:
        sync = partial(
            broker.groups.classic_requests.sync,
            body.group_id,
            body.generation_id,
            body.member_id,
            getattr(body, "group_instance_id", None),
            {assignment.member_id: bytes(assignment.assignment) for assignment in body.assignments},
        )
        result = await response_future(lambda respond: sync(respond, protocol))
    return {
        "throttle_time": 0,
        "error_code": int(result.error),
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol,
        "assignment": result.assignment,
    }


async def heartbeat(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Handle a heartbeat."""
    body = request.body
    code = ErrorCode.NONE
    try:
        broker.groups.classic_requests.heartbeat(
            body.group_id,
            body.generation_id,
            body.member_id,
            getattr(body, "group_instance_id", None),
        )
    except GroupRefusal as refusal:
        code = refusal.code
    return {"throttle_time": 0, "error_code": int(code)}


async def leave_group(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Remove members from a group."""
    body = request.body
    requested = (
        [(body.member_id, None)]
        if request.api_version < 3
        else [(member.member_id, member.group_instance_id) for member in body.members]
    )
    result: LeaveGroupResult = await response_future(
        partial(broker.groups.classic_requests.leave, body.group_id, requested)
    )
    if result.error is not ErrorCode.NONE:
        return {"throttle_time": 0, "error_code": int(result.error), "members": ()}
    return {
        "throttle_time": 0,
        "error_code": int(result.codes[0]) if request.api_version < 3 else 0,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": int(code)}
            for (member_id, instance_id), code in zip(requested, result.codes, strict=True)
        ],
    }


# ---- descriptions and deletions


_FILTERS = {"NotReady": "not_ready"}
"""States that requests name otherwise than responses, as in Kafka."""


async def list_groups(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """List the groups that are coordinated here."""
    states = {name.lower() for name in getattr(request.body, "states_filter", ())}
    types = {name.lower() for name in getattr(request.body, "types_filter", ())}
    classic = [
        (group.group_id, group.protocol_type or "", group.state.value, "classic")
        for group in broker.groups.all_groups()
    ]
    kinds: Mapping[str, Mapping[str, EpochGroup[Any]]] = {
        "consumer": broker.groups.consumers.groups,
        "share": broker.groups.shares.groups,
        "streams": broker.groups.streams.groups,
    }
    other_groups = [
        (group.group_id, kind, group.state.value, kind)
        for kind, groups in kinds.items()
        for group in groups.values()
    ]
    return {
        "throttle_time": 0,
        "error_code": 0,
        "groups": [
            {"group_id": group_id, "protocol_type": kind, "group_state": state, "group_type": which}
            for group_id, kind, state, which in (*classic, *other_groups)
            if (not states or _FILTERS.get(state, state.lower()) in states)
            and (not types or which in types)
        ],
    }


async def describe_groups(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Describe some groups."""
    allowed = authorized_group_operations(request.body)
    return {
        "throttle_time": 0,
        "groups": [
            with_operations(_description(broker, group_id, request.api_version), allowed)
            for group_id in request.body.groups
        ],
    }


def _description(broker: BrokerServices, group_id: str, api_version: int) -> dict[str, Any]:
    try:
        group = broker.groups.describe(group_id)
        if group.state is GroupState.DEAD:
            raise GroupRefusal(
                ErrorCode.GROUP_ID_NOT_FOUND, message=f"there is no group {group_id}"
            )
    except GroupRefusal as refusal:
        is_not_found = refusal.code is ErrorCode.GROUP_ID_NOT_FOUND
        is_shown = not is_not_found or api_version >= _GROUP_ID_NOT_FOUND_MIN_VERSION
        return {
            "error_code": int(refusal.code) if is_shown else 0,
            "error_message": refusal.message,
            "group_id": group_id,
            "group_state": GroupState.DEAD.value,
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
        }
    # As in Kafka: while it rebalances, a group has no protocol, and members no metadata.
    protocol = (group.protocol or "") if group.state is GroupState.STABLE else ""
    return {
        "error_code": 0,
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.join_request.client_id,
                "client_host": member.join_request.client_host,
                "member_metadata": member.metadata_for(protocol) if protocol else b"",
                "member_assignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }


async def delete_groups(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Delete groups without members, with their offsets."""
    results = []
    for group_id in request.body.groups_names:
        code = await delete_all_share_group_offsets(broker, group_id)
        if code is ErrorCode.NONE:
            code = await response_future(partial(broker.groups.delete, group_id))
        results.append({"group_id": group_id, "error_code": int(code)})
    return {"throttle_time": 0, "results": results}
