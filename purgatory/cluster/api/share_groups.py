"""ShareFetch, ShareAcknowledge, and the offsets of share groups.

Waits are decided in `purgatory.kafka.share_groups`. Offsets are altered and deleted in empty groups
only; the response is sent once the change is replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from purgatory.cluster.api.response_future import response_future, saved_response
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.cluster.traced_readers import SharedRecords
from purgatory.kafka import ErrorCode, GroupRefusal, KafkaError, TopicPartition
from purgatory.kafka.log.record_batch import encode_batches
from purgatory.kafka.share_groups.delayed_share_fetch import ShareFetchParams, ShareFetchResult
from purgatory.kafka.share_groups.share_session import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    ShareSession,
    ShareSessionKey,
)
from purgatory.kafka.share_groups.share_state import (
    UNKNOWN_START_OFFSET,
    Acknowledgement,
    ShareKey,
    ShareState,
)
from purgatory.kafka.topic_partition import NO_PARTITIONS, TopicIdPartition, by_topic

_MAX_BYTES = 4 * 1024 * 1024
"""The limit of one response, as of a fetch."""

_RECORD_LIMIT = 1
"""The mode in which the number of requested records is a hard limit."""

_MAX_MEMBER_ID = 36
_NO_ID = UUID(int=0)
_NO_LEADER = {"leader_id": 0, "leader_epoch": 0}
"""The leader in responses that tell of none, as in Kafka."""
_SUCCESS = (ErrorCode.NONE, None)
_Acknowledgements = dict[ShareKey, list[Acknowledgement]]
_Codes = Mapping[ShareKey, tuple[ErrorCode, str | None]]


async def share_fetch(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Handle acknowledgements, then acquire records, or wait for some."""
    body = request.body
    try:
        owner = _owner(body)
        acknowledgements = _acknowledgements(body)
        if body.share_session_epoch == FIRST_EPOCH and acknowledgements:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "a session can't begin with acknowledgements"
            )
        session = broker.shares.session(
            owner,
            body.share_session_epoch,
            connection,
            [
                ShareKey(owner.group_id, topic.topic_id or _NO_ID, partition.partition_index)
                for topic in body.topics
                for partition in topic.partitions
            ],
            [
                ShareKey(owner.group_id, topic.topic_id or _NO_ID, partition)
                for topic in body.forgotten_topics_data
                for partition in topic.partitions
            ],
        )
    except KafkaError as error:
        return _error_response(error)
    codes = await _acknowledged(broker, owner, acknowledgements)
    results: Mapping[ShareKey, ShareFetchResult] = {}
    if body.share_session_epoch == FINAL_EPOCH:
        broker.shares.end_session(owner)
    elif not getattr(body, "is_renew_ack", False):
        # As in Kafka, where another leader or other offsets were found with the acknowledgements,
        # the next fetch begins anew.
        fenced = {
            key for key, (code, _) in codes.items() if code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        }
        results = await _fetched(broker, body, session, fenced)
        _record_fetched(broker, request, connection, results)
    results_and_codes = {
        key: (results.get(key, ShareFetchResult()), codes.get(key, _SUCCESS))
        for key in dict.fromkeys((*results, *codes))
    }
    return {
        **_whole(broker, body),
        "responses": _by_topic(
            {
                key: {
                    "partition_index": key.partition,
                    "error_code": int(result.error),
                    "error_message": result.message,
                    "acknowledge_error_code": int(code),
                    "acknowledge_error_message": message,
                    "current_leader": _leader(broker, key, (result.error,)),
                    "records": encode_batches(result.batches),
                    "acquired_records": [
                        {
                            "first_offset": batch.first,
                            "last_offset": batch.last,
                            "delivery_count": batch.delivery_count,
                        }
                        for batch in result.acquired
                    ],
                }
                for key, (result, (code, message)) in results_and_codes.items()
            }
        ),
        "node_endpoints": _endpoints(
            broker,
            connection,
            {key: (result.error,) for key, (result, _) in results_and_codes.items()},
        ),
    }


async def _fetched(
    broker: BrokerServices, body: Any, session: ShareSession, left_out: Collection[ShareKey]
) -> Mapping[ShareKey, ShareFetchResult]:
    max_bytes = min(body.max_bytes, _MAX_BYTES)
    params = ShareFetchParams(
        milliseconds(body.max_wait),
        min(body.min_bytes, max_bytes),
        max_bytes,
        body.max_records,
        getattr(body, "share_acquire_mode", 0) == _RECORD_LIMIT,
        body.batch_size,
    )
    epoch = body.share_session_epoch
    keys = [key for key in session.rotated(epoch) if key not in left_out]
    results: Mapping[ShareKey, ShareFetchResult] = await response_future(
        partial(broker.shares.fetch, session, keys, params)
    )
    return {
        key: result
        for key, result in results.items()
        if epoch == FIRST_EPOCH or session.must_tell(key, bool(result.error), bool(result.acquired))
    }


def _record_fetched(
    broker: BrokerServices,
    request: Request,
    connection: Connection,
    results: Mapping[ShareKey, ShareFetchResult],
) -> None:
    if broker.cluster.trace is not None and results:
        records = {
            TopicPartition(topic.name, key.partition): SharedRecords(
                result.batches, result.acquired
            )
            for key, result in results.items()
            if (topic := broker.cluster.topic_of(key.topic_id)) is not None
        }
        broker.cluster.trace.record_share_fetch(connection, request, records)


async def share_acknowledge(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Handle acknowledgements; complete when they are persisted."""
    body = request.body
    try:
        owner = _owner(body)
        acknowledgements = _acknowledgements(body)
        if body.share_session_epoch == FIRST_EPOCH:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, "an acknowledgement begins no session"
            )
        broker.shares.session(owner, body.share_session_epoch, connection)
    except KafkaError as error:
        return _error_response(error)
    codes = await _acknowledged(broker, owner, acknowledgements)
    if body.share_session_epoch == FINAL_EPOCH:
        broker.shares.end_session(owner)
    return {
        **_whole(broker, body),
        "responses": _by_topic(
            {
                key: {
                    "partition_index": key.partition,
                    "error_code": int(code),
                    "error_message": message,
                    "current_leader": _leader(broker, key, (code,)),
                }
                for key, (code, message) in codes.items()
            }
        ),
        "node_endpoints": _endpoints(
            broker, connection, {key: (code,) for key, (code, _) in codes.items()}
        ),
    }


def _owner(body: Any) -> ShareSessionKey:
    if body.group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a member has a group")
    if not body.member_id or len(body.member_id) > _MAX_MEMBER_ID:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"a member's id has 1 to {_MAX_MEMBER_ID} characters"
        )
    return ShareSessionKey(body.group_id, body.member_id)


def _acknowledgements(body: Any) -> _Acknowledgements:
    acknowledgements: _Acknowledgements = {}
    for topic in body.topics:
        for partition in topic.partitions:
            key = ShareKey(body.group_id, topic.topic_id or _NO_ID, partition.partition_index)
            for batch in partition.acknowledgement_batches:
                acknowledgements.setdefault(key, []).append(
                    Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                )
    return acknowledgements


async def _acknowledged(
    broker: BrokerServices, owner: ShareSessionKey, acknowledgements: _Acknowledgements
) -> _Codes:
    if not acknowledgements:
        return {}

    def acknowledge(respond: Callable[[_Codes], object]) -> None:
        def record_and_respond(codes: _Codes) -> None:
            if broker.cluster.trace is not None:
                taken = {
                    TopicPartition(topic.name, key.partition): ranges
                    for key, ranges in acknowledgements.items()
                    if codes[key][0] is ErrorCode.NONE
                    and (topic := broker.cluster.topic_of(key.topic_id)) is not None
                }
                broker.cluster.trace.record_acknowledgements(owner.group_id, taken)
            respond(codes)

        broker.shares.acknowledge(owner, acknowledgements, record_and_respond)

    unsaved = (ErrorCode.KAFKA_STORAGE_ERROR, "the metadata can't be saved")
    return await saved_response(
        broker.cluster, acknowledge, dict.fromkeys(acknowledgements, unsaved)
    )


# Parts of responses.


def _whole(broker: BrokerServices, body: Any) -> dict[str, Any]:
    settings = broker.cluster.group_settings(body.group_id or "")
    return {
        "throttle_time": 0,
        "error_code": 0,
        "error_message": None,
        "acquisition_lock_timeout": settings.milliseconds("share.record.lock.duration.ms"),
    }


def _error_response(error: KafkaError) -> Response:
    return {
        "throttle_time": 0,
        "error_code": int(error.code),
        "error_message": error.message,
        "acquisition_lock_timeout": 0,
        "responses": (),
        "node_endpoints": (),
    }


def _by_topic(responses: Mapping[ShareKey, dict[str, Any]]) -> list[dict[str, Any]]:
    topics: dict[UUID, list[dict[str, Any]]] = {}
    for key, response in responses.items():
        topics.setdefault(key.topic_id, []).append(response)
    return [
        {"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()
    ]


def _leader(broker: BrokerServices, key: ShareKey, codes: Collection[ErrorCode]) -> dict[str, int]:
    """Return the leader of a partition, if the client has to use another broker."""
    if ErrorCode.NOT_LEADER_OR_FOLLOWER not in codes:
        return _NO_LEADER
    topic = broker.cluster.topic_of(key.topic_id)
    place = topic and TopicPartition(topic.name, key.partition)
    state = place and broker.cluster.controller.state_of(place)
    if not state:
        return _NO_LEADER
    return {"leader_id": state.leader, "leader_epoch": state.leader_epoch}


def _endpoints(
    broker: BrokerServices, connection: Connection, codes: Mapping[ShareKey, Collection[ErrorCode]]
) -> list[dict[str, Any]]:
    leaders = {
        found["leader_id"]
        for key, key_codes in codes.items()
        if (found := _leader(broker, key, key_codes)) is not _NO_LEADER
    }
    return [
        {
            "node_id": leader.broker_id,
            **leader.endpoint(connection.listener)._asdict(),
            "rack": None,
        }
        for leader_id in sorted(leaders)
        if (leader := broker.cluster.live_broker(leader_id)) is not None
    ]


_UNKNOWN = -1

_NO_PARTITION = "This server does not host this topic-partition."
"""Kafka's text of UNKNOWN_TOPIC_OR_PARTITION, where its responses have one."""

_UNKNOWN_OFFSET_ERROR = GroupRefusal(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, message="not all share coordinators are there"
)


async def describe_share_group_offsets(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return the start offsets of groups, and their lags."""
    return {
        "throttle_time": 0,
        "groups": [await _described(broker, requested) for requested in request.body.groups],
    }


async def _described(broker: BrokerServices, requested: Any) -> dict[str, Any]:
    values = {"group_id": requested.group_id, "error_code": 0, "error_message": None}
    try:
        initialized = broker.groups.initialized_partitions(requested.group_id) or NO_PARTITIONS
        states = await _states(broker, requested.group_id)
    except GroupRefusal as refusal:
        return {**values, "topics": (), **_error_of(refusal)}
    topic_of = broker.cluster.topic_of
    if requested.topics is None:
        numbers = {
            topic.name: sorted(of_topic)
            for topic_id, of_topic in by_topic(initialized).items()
            if (topic := topic_of(topic_id)) is not None
        }
    else:
        numbers = {topic.topic_name: list(topic.partitions) for topic in requested.topics}
    topics = [
        _described_topic(broker, requested.group_id, name, numbers[name], states)
        for name in numbers
    ]
    return {**values, "topics": topics}


def _described_topic(
    broker: BrokerServices,
    group_id: str,
    name: str,
    numbers: list[int],
    states: Mapping[ShareKey, ShareState],
) -> dict[str, Any]:
    topic = broker.cluster.topic_of(name)
    topic_id = _NO_ID if topic is None else topic.topic_id
    partitions = []
    for number in numbers:
        state = states.get(ShareKey(group_id, topic_id, number), ShareState())
        partitions.append(
            {
                "partition_index": number,
                "start_offset": state.start_offset,
                "leader_epoch": max(0, state.leader_epoch),
                "lag": _lag(broker, TopicPartition(name, number), state),
                "error_code": 0,
            }
        )
    return {
        "topic_name": name,
        "topic_id": None if topic is None else topic_id,
        "partitions": partitions,
    }


def _lag(broker: BrokerServices, place: TopicPartition, state: ShareState) -> int:
    """Return the number of records that are not acknowledged; -1: unknown. A start offset beyond
    the log's end makes it negative, as in Kafka."""
    led = broker.cluster.controller.state_of(place)
    leader = None if led is None else broker.cluster.live_broker(led.leader)
    partition = None if leader is None else leader.manager.partition(place)
    if partition is None or state.start_offset == UNKNOWN_START_OFFSET:
        return _UNKNOWN
    done = sum(batch.last - batch.first + 1 for batch in state.batches if batch.state.is_final)
    return partition.high_watermark - state.start_offset - done


async def alter_share_group_offsets(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Reset the start offsets of a group; make it, if it isn't there."""
    body = request.body
    values = {"throttle_time": 0, "error_code": 0, "error_message": None}
    try:
        epoch = broker.groups.alterable_epoch(body.group_id)
    except GroupRefusal as refusal:
        return {**values, **_error_of(refusal), "responses": ()}
    responses = []
    altered = []
    for requested in body.topics:
        topic = broker.cluster.topic_of(requested.topic_name)
        partitions = []
        for partition in requested.partitions:
            number = partition.partition_index
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message: str | None = _NO_PARTITION
            if topic is not None and 0 <= number < len(topic.partitions):
                key = ShareKey(body.group_id, topic.topic_id, number)
                start_offset = max(partition.start_offset, UNKNOWN_START_OFFSET)
                initialize = partial(broker.share_states.initialize, key, epoch, start_offset)
                code, message = await response_future(initialize), None
                if code is ErrorCode.NONE:
                    altered.append(TopicIdPartition(topic.topic_id, number))
            partitions.append(
                {"partition_index": number, "error_code": int(code), "error_message": message}
            )
        responses.append(
            {
                "topic_name": requested.topic_name,
                "topic_id": None if topic is None else topic.topic_id,
                "partitions": partitions,
            }
        )
    if altered:
        add = partial(broker.groups.shares.add_initialized, body.group_id, altered)
        code = await response_future(add)
        if code is not ErrorCode.NONE:
            return {**values, "error_code": int(code), "responses": ()}
    return {**values, "responses": responses}


async def delete_share_group_offsets(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Delete the state of a group for some topics, as if it had never read them."""
    body = request.body
    values = {"throttle_time": 0, "error_code": 0, "error_message": None}
    try:
        _check_empty(broker, body.group_id)
        initialized = broker.groups.initialized_partitions(body.group_id)
    except GroupRefusal as refusal:
        return {**values, **_error_of(refusal), "responses": ()}
    if initialized is None:
        return {**values, "responses": ()}
    responses = []
    for requested in body.topics:
        topic = broker.cluster.topic_of(requested.topic_name)
        of_topic = NO_PARTITIONS
        if topic is not None:
            of_topic = frozenset(one for one in initialized if one.topic_id == topic.topic_id)
        topic_id = None
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        message: str | None = _NO_PARTITION
        if topic is not None and not of_topic:
            message = "There is no offset information to delete."
        elif topic is not None:
            keys = [ShareKey(body.group_id, *one) for one in sorted(of_topic)]
            topic_id, code, message = topic.topic_id, await _deleted(broker, keys), None
            if code is ErrorCode.NONE:
                remove = broker.groups.shares.remove_initialized
                code = await response_future(partial(remove, body.group_id, of_topic))
        responses.append(
            {
                "topic_name": requested.topic_name,
                "topic_id": topic_id,
                "error_code": int(code),
                "error_message": message,
            }
        )
    return {**values, "responses": responses}


async def delete_all_share_group_offsets(broker: BrokerServices, group_id: str) -> ErrorCode:
    """Delete the state of a group, if it is a share group that may be deleted."""
    if group_id not in broker.groups.shares.groups:
        return ErrorCode.NONE
    try:
        _check_empty(broker, group_id)
        return await _deleted(broker, list(await _states(broker, group_id)))
    except GroupRefusal as refusal:
        return refusal.code


async def _deleted(broker: BrokerServices, keys: list[ShareKey]) -> ErrorCode:
    for key in keys:
        code: ErrorCode = await response_future(partial(broker.share_states.delete, key))
        if code is not ErrorCode.NONE:
            return code
    return ErrorCode.NONE


def _check_empty(broker: BrokerServices, group_id: str) -> None:
    if broker.groups.describe_shares(group_id).members:
        raise GroupRefusal(ErrorCode.NON_EMPTY_GROUP, message=f"{group_id} has members")


async def _states(broker: BrokerServices, group_id: str) -> Mapping[ShareKey, ShareState]:
    states = await broker.share_states.group_state(group_id)
    if states is None:
        raise _UNKNOWN_OFFSET_ERROR
    return states


def _error_of(refusal: GroupRefusal) -> dict[str, Any]:
    return {"error_code": int(refusal.code), "error_message": refusal.message}
