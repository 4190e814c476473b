"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets: how far share groups
are.

What is set or deleted is so once it is replicated. A group has to be without members for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import ErrorCode, GroupRefusal, TopicPartition
from purgatory.kafka.share_groups.share_state import NO_START, ShareKey, ShareState

_UNKNOWN = -1
_CANT_TELL = GroupRefusal(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, message="not all share coordinators are there"
)


async def describe_offsets(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell how far groups are."""
    return {
        "throttle_time": 0,
        "groups": [await _described(broker, asked) for asked in request.body.groups],
    }


async def _described(broker: Broker, asked: Any) -> dict[str, Any]:
    values = {"group_id": asked.group_id, "error_code": 0, "error_message": None}
    try:
        broker.groups.describe_shares(asked.group_id)
        states = await _states(broker, asked.group_id)
    except GroupRefusal as refusal:
        code, message = int(refusal.code), refusal.message
        return {**values, "topics": (), "error_code": code, "error_message": message}
    named = {}
    for key, state in states.items():
        topic = broker.cluster.topic_of(key.topic_id)
        if topic is not None:
            named[TopicPartition(topic.name, key.partition)] = state
    if asked.topics is None:
        wanted: dict[str, list[int]] = {}
        for topic_name, number in sorted(named):
            wanted.setdefault(topic_name, []).append(number)
    else:
        wanted = {one.topic_name: list(one.partitions) for one in asked.topics}
    return {
        **values,
        "topics": [
            _described_topic(broker, name, numbers, named) for name, numbers in wanted.items()
        ],
    }


def _described_topic(
    broker: Broker, name: str, numbers: list[int], states: Mapping[TopicPartition, ShareState]
) -> dict[str, Any]:
    topic = broker.cluster.topic_of(name)
    partitions = []
    for number in numbers:
        place = TopicPartition(name, number)
        is_known = broker.cluster.controller.state_of(place) is not None
        state = states.get(place, ShareState())
        code = ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partitions.append(
            {
                "partition_index": number,
                "start_offset": state.start_offset,
                "leader_epoch": max(0, state.leader_epoch),
                "lag": _lag(broker, place, state),
                "error_code": int(code),
            }
        )
    return {
        "topic_name": name,
        "topic_id": None if topic is None else topic.topic_id,
        "partitions": partitions,
    }


def _lag(broker: Broker, place: TopicPartition, state: ShareState) -> int:
    """Return how many records are not done with, as far as this is known; -1 if it isn't."""
    led = broker.cluster.controller.state_of(place)
    leader = None if led is None else broker.cluster.live_broker(led.leader)
    partition = None if leader is None else leader.manager.partition(place)
    if partition is None or state.start_offset == NO_START:
        return _UNKNOWN
    done = sum(one.last - one.first + 1 for one in state.batches if one.state.is_final)
    return max(0, partition.high_watermark - state.start_offset - done)


async def alter_offsets(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Have a group go on from other offsets."""
    body = request.body
    values = {"throttle_time": 0, "error_code": 0, "error_message": None}
    try:
        _check_empty(broker, body.group_id)
    except GroupRefusal as refusal:
        return {**values, **_told(refusal), "responses": ()}
    responses = []
    for asked in body.topics:
        topic = broker.cluster.topic_of(asked.topic_name)
        partitions = []
        for one in asked.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if one.start_offset < 0:
                code = ErrorCode.INVALID_REQUEST
            elif topic is not None and 0 <= one.partition_index < len(topic.partitions):
                key = ShareKey(body.group_id, topic.topic_id, one.partition_index)
                code = await answer_of(
                    partial(broker.share_states.set_start, key, one.start_offset)
                )
            partitions.append({"partition_index": one.partition_index, "error_code": int(code)})
        responses.append(
            {
                "topic_name": asked.topic_name,
                "topic_id": None if topic is None else topic.topic_id,
                "partitions": partitions,
            }
        )
    return {**values, "responses": responses}


async def delete_offsets(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Have a group begin anew on some topics, as if it had never read them."""
    body = request.body
    values = {"throttle_time": 0, "error_code": 0, "error_message": None}
    try:
        _check_empty(broker, body.group_id)
        states = await _states(broker, body.group_id)
    except GroupRefusal as refusal:
        return {**values, **_told(refusal), "responses": ()}
    responses = []
    for asked in body.topics:
        topic = broker.cluster.topic_of(asked.topic_name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is not None:
            keys = [key for key in states if key.topic_id == topic.topic_id]
            code = await _deleted(broker, keys)
        responses.append(
            {
                "topic_name": asked.topic_name,
                "topic_id": None if topic is None else topic.topic_id,
                "error_code": int(code),
            }
        )
    return {**values, "responses": responses}


async def delete_all(broker: Broker, group_id: str) -> ErrorCode:
    """Delete how far a group is, if it is a share group that may be deleted."""
    if group_id not in broker.groups.shares.groups:
        return ErrorCode.NONE
    try:
        _check_empty(broker, group_id)
        return await _deleted(broker, list(await _states(broker, group_id)))
    except GroupRefusal as refusal:
        return refusal.code


async def _deleted(broker: Broker, keys: list[ShareKey]) -> ErrorCode:
    for key in keys:
        code: ErrorCode = await answer_of(partial(broker.share_states.delete, key))
        if code is not ErrorCode.NONE:
            return code
    return ErrorCode.NONE


def _check_empty(broker: Broker, group_id: str) -> None:
    if broker.groups.describe_shares(group_id).members:
        raise GroupRefusal(ErrorCode.NON_EMPTY_GROUP, message=f"{group_id} has members")


async def _states(broker: Broker, group_id: str) -> Mapping[ShareKey, ShareState]:
    states = await broker.share_states.of_group(group_id)
    if states is None:
        raise _CANT_TELL
    return states


def _told(refusal: GroupRefusal) -> dict[str, Any]:
    return {"error_code": int(refusal.code), "error_message": refusal.message}
