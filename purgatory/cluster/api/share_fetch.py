"""ShareFetch and ShareAcknowledge: records for the members of share groups, and what becomes of
them.

What waits, and for what, is decided in `purgatory.kafka.share_groups`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import ErrorCode, KafkaError, TopicPartition
from purgatory.kafka.log.record_batch import bytes_of
from purgatory.kafka.share_groups.delayed_share_fetch import ShareAnswer, ShareFetchParams
from purgatory.kafka.share_groups.share_partition_manager import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    SessionOwner,
    ShareSession,
)
from purgatory.kafka.share_groups.share_state import Acknowledgement, ShareKey

_MAX_BYTES = 4 * 1024 * 1024
"""Of one answer, as of a fetch."""
_RECORD_LIMIT = 1
"""The mode in which no more records come than are asked for."""
_NO_ID = UUID(int=0)
_NO_LEADER = {"leader_id": -1, "leader_epoch": -1}
_DONE = (ErrorCode.NONE, None)

_Said = dict[ShareKey, list[Acknowledgement]]
_Codes = Mapping[ShareKey, tuple[ErrorCode, str | None]]


async def share_fetch(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Take acknowledgements, then acquire records, waiting until there are any."""
    body = request.body
    try:
        owner = _owner(body)
        said = _said(body)
        if body.share_session_epoch == FIRST_EPOCH and said:
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
        return _refused(broker, body, error)
    codes = await _acknowledged(broker, owner, said)
    answers: Mapping[ShareKey, ShareAnswer] = {}
    if body.share_session_epoch == FINAL_EPOCH:
        broker.shares.end_session(owner)
    elif not getattr(body, "is_renew_ack", False):
        answers = await _fetched(broker, body, session)
    told = {
        key: (answers.get(key, ShareAnswer()), codes.get(key, _DONE))
        for key in dict.fromkeys((*answers, *codes))
    }
    return {
        **_whole(broker, body),
        "responses": _by_topic(
            {
                key: {
                    "partition_index": key.partition,
                    "error_code": int(answer.error),
                    "error_message": answer.message,
                    "acknowledge_error_code": int(code),
                    "acknowledge_error_message": message,
                    "current_leader": _leader(broker, key, (answer.error, code)),
                    "records": bytes_of(answer.batches),
                    "acquired_records": [
                        {
                            "first_offset": one.first,
                            "last_offset": one.last,
                            "delivery_count": one.delivery_count,
                        }
                        for one in answer.acquired
                    ],
                }
                for key, (answer, (code, message)) in told.items()
            }
        ),
        "node_endpoints": _endpoints(
            broker, connection, {key: (one.error, code) for key, (one, (code, _)) in told.items()}
        ),
    }


async def _fetched(
    broker: Broker, body: Any, session: ShareSession
) -> Mapping[ShareKey, ShareAnswer]:
    params = ShareFetchParams(
        milliseconds(body.max_wait),
        body.min_bytes,
        min(body.max_bytes, _MAX_BYTES),
        body.max_records,
        getattr(body, "share_acquire_mode", 0) == _RECORD_LIMIT,
    )
    answers: Mapping[ShareKey, ShareAnswer] = await answer_of(
        partial(broker.shares.fetch, session.owner.member_id, session.rotated(), params)
    )
    return {key: one for key, one in answers.items() if one.error or one.acquired}


async def share_acknowledge(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Take acknowledgements; answered once they are kept."""
    body = request.body
    try:
        owner = _owner(body)
        said = _said(body)
        if body.share_session_epoch == FIRST_EPOCH:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, "an acknowledgement begins no session"
            )
        broker.shares.session(owner, body.share_session_epoch, connection)
    except KafkaError as error:
        return _refused(broker, body, error)
    codes = await _acknowledged(broker, owner, said)
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


def _owner(body: Any) -> SessionOwner:
    if not body.group_id or not body.member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a member has a group and a member id")
    return SessionOwner(body.group_id, body.member_id)


def _said(body: Any) -> _Said:
    said: _Said = {}
    for topic in body.topics:
        for partition in topic.partitions:
            key = ShareKey(body.group_id, topic.topic_id or _NO_ID, partition.partition_index)
            for one in partition.acknowledgement_batches:
                said.setdefault(key, []).append(
                    Acknowledgement(one.first_offset, one.last_offset, one.acknowledge_types)
                )
    return said


async def _acknowledged(broker: Broker, owner: SessionOwner, said: _Said) -> _Codes:
    if not said:
        return {}
    saved = broker.cluster.is_saved()
    codes: _Codes = await answer_of(partial(broker.shares.acknowledge, owner, said))
    if saved and broker.cluster.is_saved():
        return codes
    return dict.fromkeys(said, (ErrorCode.KAFKA_STORAGE_ERROR, "the metadata can't be saved"))


# The parts of answers.


def _whole(broker: Broker, body: Any) -> dict[str, Any]:
    settings = broker.cluster.group_settings(body.group_id or "")
    return {
        "throttle_time": 0,
        "error_code": 0,
        "error_message": None,
        "acquisition_lock_timeout": settings.milliseconds("share.record.lock.duration.ms"),
    }


def _refused(broker: Broker, body: Any, error: KafkaError) -> Answer:
    return {
        **_whole(broker, body),
        "error_code": int(error.code),
        "error_message": error.message,
        "responses": (),
        "node_endpoints": (),
    }


def _by_topic(partitions: Mapping[ShareKey, dict[str, Any]]) -> list[dict[str, Any]]:
    topics: dict[UUID, list[dict[str, Any]]] = {}
    for key, partition in partitions.items():
        topics.setdefault(key.topic_id, []).append(partition)
    return [{"topic_id": topic_id, "partitions": those} for topic_id, those in topics.items()]


def _leader(broker: Broker, key: ShareKey, codes: Collection[ErrorCode]) -> dict[str, int]:
    """Return who leads a partition, if the client is to go there."""
    if ErrorCode.NOT_LEADER_OR_FOLLOWER not in codes:
        return _NO_LEADER
    topic = broker.cluster.topic_of(key.topic_id)
    place = topic and TopicPartition(topic.name, key.partition)
    state = place and broker.cluster.controller.state_of(place)
    if not state:
        return _NO_LEADER
    return {"leader_id": state.leader, "leader_epoch": state.leader_epoch}


def _endpoints(
    broker: Broker, connection: Connection, codes: Mapping[ShareKey, Collection[ErrorCode]]
) -> list[dict[str, Any]]:
    leaders = {_leader(broker, key, those)["leader_id"] for key, those in codes.items()}
    return [
        {"node_id": leader.broker_id, **leader.place(connection.listener)._asdict(), "rack": None}
        for leader_id in sorted(leaders)
        if (leader := broker.cluster.live_broker(leader_id)) is not None
    ]
