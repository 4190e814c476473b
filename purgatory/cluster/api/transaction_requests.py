"""The steps of a transaction: its partitions, its groups, its end, and markers.

Until what the controller decided is saved, nothing is acknowledged, as for produces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.made_batches import made_marker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.fixed_answers import end_transaction_answer
from purgatory.cluster.protocol.fixed_requests import END_RAISES
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import (
    EndTransaction,
    ErrorCode,
    InitAnswer,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
    write_markers,
)
from purgatory.kafka.errors import ClusterError

_UNSAVED = InitAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
_PRODUCER_FENCED_SINCE = 2
_SEVERAL_SINCE = 4

Codes = Mapping[TopicPartition, ErrorCode]


async def add_partitions_to_txn(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Take partitions into a transaction; since version 4 into several, or see what is in them."""
    body = request.body
    if request.api_version < _SEVERAL_SINCE:
        topics = body.v3_and_below_topics
        producer = ProducerIdentity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        codes = await _added(broker, body.v3_and_below_transactional_id, producer, topics)
        return {
            "throttle_time": 0,
            "results_by_topic_v3_and_below": _results(topics, codes, request.api_version),
        }
    return {
        "throttle_time": 0,
        "error_code": 0,
        "results_by_transaction": [
            {
                "transactional_id": one.transactional_id,
                "topic_results": _results(
                    one.topics, await _added_or_verified(broker, one), request.api_version
                ),
            }
            for one in body.transactions
        ],
    }


async def _added_or_verified(broker: Broker, asked: Any) -> Codes:
    producer = ProducerIdentity(asked.producer_id, asked.producer_epoch)
    if asked.verify_only:
        verify = broker.transactions.verify_partitions
        return verify(asked.transactional_id, producer, _partitions(asked.topics))
    return await _added(broker, asked.transactional_id, producer, asked.topics)


async def _added(
    broker: Broker, transactional_id: str, producer: ProducerIdentity, topics: Sequence[Any]
) -> Codes:
    partitions = _partitions(topics)
    unsaved = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if not broker.cluster.is_saved():
        return unsaved
    add = broker.transactions.add_partitions
    codes: Codes = await answer_of(partial(add, transactional_id, producer, partitions))
    return codes if broker.cluster.is_saved() else unsaved


def _partitions(topics: Sequence[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def _results(topics: Sequence[Any], codes: Codes, version: int) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": number,
                    "partition_error_code": _told(
                        codes[TopicPartition(topic.name, number)], version
                    ),
                }
                for number in topic.partitions
            ],
        }
        for topic in topics
    ]


def _told(code: ErrorCode, version: int) -> int:
    if code is ErrorCode.PRODUCER_FENCED and version < _PRODUCER_FENCED_SINCE:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return int(code)


async def add_offsets_to_txn(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Take the offsets of a group into a transaction."""
    body = request.body
    place = broker.groups.place_of(body.group_id)
    add = broker.transactions.add_partitions
    producer = ProducerIdentity(body.producer_id, body.producer_epoch)
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if broker.cluster.is_saved():
        codes: Codes = await answer_of(partial(add, body.transactional_id, producer, [place]))
        code = codes[place]
    if not broker.cluster.is_saved():
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return {"throttle_time": 0, "error_code": _told(code, request.api_version)}


async def end_txn(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Commit or abort; answered when the markers are on all partitions, since version 5 with who
    the producer is from then on."""
    body = request.body
    producer = ProducerIdentity(body.producer_id, body.producer_epoch)
    how = EndTransaction.COMMIT if body.committed else EndTransaction.ABORT
    version = request.api_version
    asked = body.transactional_id, producer, how
    answer = _UNSAVED
    if broker.cluster.is_saved():
        if version >= END_RAISES:
            answer = await _ended_anew(broker, *asked)
        else:
            code: ErrorCode = await answer_of(partial(broker.transactions.end, *asked))
            answer = InitAnswer(code)
    if not broker.cluster.is_saved():
        answer = _UNSAVED
    return end_transaction_answer(version, _told(answer.error, version), *answer[1:])


async def _ended_anew(
    broker: Broker, transactional_id: str, producer: ProducerIdentity, how: EndTransaction
) -> InitAnswer:
    end = partial(broker.transactions.end_anew, transactional_id, producer, how)
    try:
        return await answer_of(end)
    except ClusterError:  # no new id can be given out, which is in the log
        return _UNSAVED


async def write_txn_markers(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Write markers on behalf of an admin tool that ends a transaction which hangs."""
    results = []
    for asked in request.body.markers:
        how = EndTransaction.COMMIT if asked.transaction_result else EndTransaction.ABORT
        producer = ProducerIdentity(asked.producer_id, asked.producer_epoch)
        marker = made_marker(producer, how, asked.coordinator_epoch)
        markers = {
            TopicPartition(topic.name, number): marker
            for topic in asked.topics
            for number in topic.partition_indexes
        }
        codes: Codes = await answer_of(_writing(broker, markers))
        results.append(
            {
                "producer_id": asked.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {
                                "partition_index": number,
                                "error_code": int(codes[TopicPartition(topic.name, number)]),
                            }
                            for number in topic.partition_indexes
                        ],
                    }
                    for topic in asked.topics
                ],
            }
        )
    return {"throttle_time": 0, "markers": results}


def _writing(
    broker: Broker, markers: Mapping[TopicPartition, RecordBatch]
) -> Callable[[Callable[[Codes], object]], object]:
    return partial(write_markers, broker.manager, broker.groups, markers)
