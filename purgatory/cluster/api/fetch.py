"""Fetch: read, or wait for bytes in the Fetch purgatory; and where leader epochs end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.fixed_answers import fetch_answer
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import (
    FetchIsolation,
    FetchParams,
    KafkaError,
    PartitionFetch,
    PartitionFetchResponse,
    TopicPartition,
)

_MAX_BYTES = 4 * 1024 * 1024
_MAX_BATCHES = 1_000
# Of one answer, whatever the client would take: while it is made, no other client is served, and
# while it isn't taken, it is held. There is more in the next one.

_NO_SESSION = 0
_FETCH_SESSION_ID_NOT_FOUND = 70
_NO_EPOCH = -1

Answers = Mapping[TopicPartition, PartitionFetchResponse]


async def fetch(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Read what is there, once it is ``min_bytes``, or the time is up.

    Incremental fetch sessions are refused: Kafka's way to say so is to give none.
    """
    body = request.body
    if getattr(body, "session_id", _NO_SESSION) != _NO_SESSION:
        return {
            "throttle_time": 0,
            "error_code": _FETCH_SESSION_ID_NOT_FOUND,
            "session_id": _NO_SESSION,
            "responses": (),
        }
    params = FetchParams(
        max_wait_ms=milliseconds(body.max_wait),
        min_bytes=body.min_bytes,
        max_bytes=min(body.max_bytes, _MAX_BYTES),
        isolation=(FetchIsolation.TXN_COMMITTED if body.isolation_level == 1 else _HIGH_WATERMARK),
    )
    fetches = {
        TopicPartition(topic.topic, partition.partition): PartitionFetch(
            partition.fetch_offset,
            partition.partition_max_bytes,
            _epoch(getattr(partition, "current_leader_epoch", _NO_EPOCH)),
            _epoch(getattr(partition, "last_fetched_epoch", _NO_EPOCH)),
        )
        for topic in body.topics
        for partition in topic.partitions
    }
    answers: Answers = await answer_of(partial(broker.manager.fetch_records, params, fetches))
    answers = bounded(answers)
    if broker.cluster.trace is not None:
        from_offsets = {key: asked.fetch_offset for key, asked in fetches.items()}
        broker.cluster.trace.fetched(connection, request, answers, from_offsets)
    return fetch_answer(request.api_version, answers)


_HIGH_WATERMARK = FetchIsolation.HIGH_WATERMARK


def bounded(answers: Answers, most: int = _MAX_BATCHES) -> Answers:
    """Leave out what would be more than ``most`` batches, but for one of each partition.

    Partitions that have records get equal parts, so that none of them stays behind. O(answers).
    """
    filled = sum(1 for answer in answers.values() if answer.batches)
    if sum(len(answer.batches) for answer in answers.values()) <= most:
        return answers
    part = max(1, most // filled)
    return {
        topic_partition: _cut(answer, part) if len(answer.batches) > part else answer
        for topic_partition, answer in answers.items()
    }


def _cut(answer: PartitionFetchResponse, part: int) -> PartitionFetchResponse:
    batches = answer.batches[:part]
    return answer._replace(batches=batches, size_bytes=sum(one.size_bytes for one in batches))


def _epoch(number: int) -> int | None:
    return None if number == _NO_EPOCH else number


async def offset_for_leader_epoch(
    broker: Broker, request: Request, connection: Connection
) -> Answer:
    """Tell where epochs end, so that a client finds out whether its log was cut."""
    return {
        "throttle_time": 0,
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _end_of_epoch(broker, topic.topic, partition) for partition in topic.partitions
                ],
            }
            for topic in request.body.topics
        ],
    }


def _end_of_epoch(broker: Broker, topic: str, asked: Any) -> dict[str, Any]:
    values = {"partition": asked.partition, "error_code": 0, "leader_epoch": -1, "end_offset": -1}
    try:
        epoch, end_offset = broker.manager.offset_for_leader_epoch(
            TopicPartition(topic, asked.partition),
            asked.leader_epoch,
            _epoch(asked.current_leader_epoch),
        )
    except KafkaError as error:
        return {**values, "error_code": int(error.code)}
    return {**values, "leader_epoch": epoch, "end_offset": end_offset}
