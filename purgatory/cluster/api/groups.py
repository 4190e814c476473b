"""The APIs of consumer groups: who coordinates, joining, syncing, heartbeats, leaving, looking."""

from __future__ import annotations

from functools import partial
from typing import Any

from purgatory.cluster.api import permitted_operations
from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import (
    ErrorCode,
    GroupRefusal,
    GroupState,
    JoinAnswer,
    Joining,
    SyncAnswer,
)

_GROUP_KEY = 0
_INVALID_REQUEST = 42
_IDS_FIRST_SINCE = 4
_PROTOCOL_MAY_BE_NULL_SINCE = 7


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
    state = broker.cluster.controller.state_of(broker.groups.place_of(key))
    leader = None if state is None else broker.cluster.live_broker(state.leader)
    if leader is None:
        return {**nobody, "error_code": int(ErrorCode.COORDINATOR_NOT_AVAILABLE)}
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
    ids_first = request.api_version >= _IDS_FIRST_SINCE
    answer: JoinAnswer = await answer_of(
        partial(broker.groups.join, body.group_id, body.member_id, joined, ids_first)
    )
    may_be_null = request.api_version >= _PROTOCOL_MAY_BE_NULL_SINCE
    return {
        "throttle_time": 0,
        "error_code": int(answer.error),
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol if may_be_null else answer.protocol or "",
        "leader": answer.leader_id,
        "skip_assignment": False,
        "member_id": answer.member_id,
        "members": [
            {
                "member_id": one.member_id,
                "group_instance_id": one.instance_id,
                "metadata": one.metadata,
            }
            for one in answer.roster
        ],
    }


async def sync_group(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Take the leader's assignment, and give each member its own."""
    body = request.body
    answer: SyncAnswer = await answer_of(
        partial(
            broker.groups.sync,
            body.group_id,
            body.generation_id,
            body.member_id,
            getattr(body, "group_instance_id", None),
            {one.member_id: bytes(one.assignment) for one in body.assignments},
        )
    )
    return {
        "throttle_time": 0,
        "error_code": int(answer.error),
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }


async def heartbeat(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Take a sign of life."""
    body = request.body
    code = ErrorCode.NONE
    try:
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
        codes = broker.groups.leave(body.group_id, asked)
    except GroupRefusal as refusal:
        return {"throttle_time": 0, "error_code": int(refusal.code), "members": ()}
    return {
        "throttle_time": 0,
        "error_code": int(codes[0]) if request.api_version < 3 else 0,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": int(code)}
            for (member_id, instance_id), code in zip(asked, codes, strict=True)
        ],
    }


# ---- looking at groups


async def list_groups(broker: Broker, request: Request, connection: Connection) -> Answer:
    """List the groups that are coordinated here."""
    wanted = set(getattr(request.body, "states_filter", None) or ())
    return {
        "throttle_time": 0,
        "error_code": 0,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state.value,
            }
            for group in broker.groups.all_groups()
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
    try:
        group = broker.groups.describe(group_id)
    except GroupRefusal as refusal:
        return {
            "error_code": int(refusal.code),
            "group_id": group_id,
            "group_state": GroupState.DEAD.value,
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
        }
    return {
        "error_code": 0,
        "group_id": group_id,
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
    results = []
    for group_id in request.body.groups_names:
        code: ErrorCode = await answer_of(partial(broker.groups.delete, group_id))
        results.append({"group_id": group_id, "error_code": int(code)})
    return {"throttle_time": 0, "results": results}
