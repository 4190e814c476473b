"""Transactional producers: InitProducerId, the steps of a transaction, markers, and descriptions.

Until the controller's decisions are saved, nothing is acknowledged, as for produces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from purgatory.cluster.api.response_future import response_future, saved_response
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.cluster.records import new_marker
from purgatory.kafka import (
    ErrorCode,
    InitProducerIdResult,
    ProducerIdentity,
    TopicPartition,
    TransactionRecord,
    TransactionRefusal,
    TransactionResult,
    TransactionState,
    write_markers,
)
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.groups.subscription import PatternError, TopicPattern
from purgatory.kafka.topics import invalid_topic_name_reason
from purgatory.kafka.transactions.transaction_metadata import TV1

_NO_PRODUCER = ProducerIdentity(-1, -1)
_INIT_PRODUCER_FENCED_MIN_VERSION = 4
_UNAVAILABLE = InitProducerIdResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)


async def init_producer_id(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return a new producer id, or that of a transactional id with the next epoch."""
    body = request.body
    requested = ProducerIdentity(
        getattr(body, "producer_id", -1), getattr(body, "producer_epoch", -1)
    )
    try:
        if (requested.producer_id < 0) is not (
            requested.producer_epoch < 0
        ) or body.transactional_id == "":
            result = InitProducerIdResult(ErrorCode.INVALID_REQUEST)
        elif body.transactional_id is None:
            result = InitProducerIdResult(ErrorCode.NONE, broker.cluster.new_producer_id(), 0)
        else:
            result = await _init_transactional(broker, body, requested)
    except ClusterError:  # logged already
        result = InitProducerIdResult(ErrorCode.KAFKA_STORAGE_ERROR)
    code = result.error
    if (
        code is ErrorCode.PRODUCER_FENCED
        and request.api_version < _INIT_PRODUCER_FENCED_MIN_VERSION
    ):
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return {
        "throttle_time": 0,
        "error_code": int(code),
        "producer_id": result.producer_id,
        "producer_epoch": result.producer_epoch,
    }


async def _init_transactional(
    broker: BrokerServices, body: Any, requested: ProducerIdentity
) -> InitProducerIdResult:
    init = partial(
        broker.transactions.init_producer_id,
        body.transactional_id,
        milliseconds(body.transaction_timeout),
        None if requested == _NO_PRODUCER else requested,
    )
    return await saved_response(broker.cluster, init, _UNAVAILABLE)


_PRODUCER_FENCED_MIN_VERSION = 2
_BATCHED_MIN_VERSION = 4
_EPOCH_BUMP_MIN_VERSION = 5
Codes = Mapping[TopicPartition, ErrorCode]


async def add_partitions_to_txn(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Add partitions to a transaction; since version 4 to several, or verify them."""
    body = request.body
    if request.api_version < _BATCHED_MIN_VERSION:
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
                "transactional_id": transaction.transactional_id,
                "topic_results": _results(
                    transaction.topics,
                    await _add_or_verify_partitions(broker, transaction),
                    request.api_version,
                ),
            }
            for transaction in body.transactions
        ],
    }


async def _add_or_verify_partitions(broker: BrokerServices, requested: Any) -> Codes:
    producer = ProducerIdentity(requested.producer_id, requested.producer_epoch)
    if requested.verify_only:
        verify = broker.transactions.verify_partitions
        return verify(requested.transactional_id, producer, _partitions(requested.topics))
    return await _added(broker, requested.transactional_id, producer, requested.topics)


async def _added(
    broker: BrokerServices, transactional_id: str, producer: ProducerIdentity, topics: Sequence[Any]
) -> Codes:
    return await _add_partitions(broker, transactional_id, producer, _partitions(topics))


async def _add_partitions(
    broker: BrokerServices,
    transactional_id: str,
    producer: ProducerIdentity,
    partitions: Sequence[TopicPartition],
) -> Codes:
    add = partial(broker.transactions.add_partitions, transactional_id, producer, partitions)
    unavailable = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return await saved_response(broker.cluster, add, unavailable)


def _partitions(topics: Sequence[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def _results(topics: Sequence[Any], codes: Codes, version: int) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": number,
                    "partition_error_code": _error_code(
                        codes[TopicPartition(topic.name, number)], version
                    ),
                }
                for number in topic.partitions
            ],
        }
        for topic in topics
    ]


def _error_code(code: ErrorCode, version: int) -> int:
    if code is ErrorCode.PRODUCER_FENCED and version < _PRODUCER_FENCED_MIN_VERSION:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return int(code)


async def add_offsets_to_txn(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Add the offsets of a group to a transaction."""
    body = request.body
    place = broker.groups.coordinator_partition(body.group_id)
    producer = ProducerIdentity(body.producer_id, body.producer_epoch)
    codes = await _add_partitions(broker, body.transactional_id, producer, [place])
    return {"throttle_time": 0, "error_code": _error_code(codes[place], request.api_version)}


async def end_txn(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Commit or abort; complete when the markers are on all partitions.

    Since version 5 the response has the producer's next id and epoch.
    """
    body = request.body
    producer = ProducerIdentity(body.producer_id, body.producer_epoch)
    outcome = TransactionResult.COMMIT if body.committed else TransactionResult.ABORT
    version = request.api_version
    requested = body.transactional_id, producer, outcome
    if version >= _EPOCH_BUMP_MIN_VERSION:
        end = partial(broker.transactions.end_and_bump_epoch, *requested)
    else:
        end = partial(_end, broker, *requested)
    try:
        result = await saved_response(broker.cluster, end, _UNAVAILABLE)
    except ClusterError:  # no new producer id could be saved, which is logged
        result = _UNAVAILABLE
    if broker.cluster.delays is not None and result.error is ErrorCode.NONE:
        broker.cluster.delays.begin_markers(body.transactional_id)
    return {
        "throttle_time": 0,
        "error_code": _error_code(result.error, version),
        "producer_id": result.producer_id,
        "producer_epoch": result.producer_epoch,
    }


def _end(
    broker: BrokerServices,
    transactional_id: str,
    producer: ProducerIdentity,
    result: TransactionResult,
    respond: Callable[[InitProducerIdResult], object],
) -> None:
    broker.transactions.end(
        transactional_id, producer, result, lambda code: respond(InitProducerIdResult(code))
    )


async def write_txn_markers(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Write markers, for an admin tool that ends a hanging transaction."""
    results = []
    for requested in request.body.markers:
        result = (
            TransactionResult.COMMIT if requested.transaction_result else TransactionResult.ABORT
        )
        producer = ProducerIdentity(requested.producer_id, requested.producer_epoch)
        marker = new_marker(producer, result, requested.coordinator_epoch)
        markers = {
            TopicPartition(topic.name, number): marker
            for topic in requested.topics
            for number in topic.partition_indexes
        }
        version = getattr(requested, "transaction_version", TV1)
        codes: Codes = await response_future(
            partial(write_markers, broker.manager, broker.groups, markers, version=version)
        )
        results.append(
            {
                "producer_id": requested.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {
                                "partition_index": number,
                                "error_code": _marker_code(
                                    codes[TopicPartition(topic.name, number)]
                                ),
                            }
                            for number in topic.partition_indexes
                        ],
                    }
                    for topic in requested.topics
                ],
            }
        )
    return {"throttle_time": 0, "markers": results}


def _marker_code(code: ErrorCode) -> int:
    """Return the error of a marker: an older epoch's is unknown, as in Kafka."""
    is_older = code is ErrorCode.INVALID_PRODUCER_EPOCH
    return int(ErrorCode.UNKNOWN_SERVER_ERROR if is_older else code)


_NO_TRANSACTION = TransactionRecord(TransactionState.DEAD, 0, 0, 0, start_ms=0)
_STATES = frozenset(state.value for state in TransactionState)


async def describe_transactions(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return the state of some transactional ids."""
    return {
        "throttle_time": 0,
        "transaction_states": [
            _description(broker, transactional_id)
            for transactional_id in request.body.transactional_ids
        ],
    }


def _description(broker: BrokerServices, transactional_id: str) -> dict[str, Any]:
    code = ErrorCode.NONE
    try:
        record = broker.transactions.describe(transactional_id)
    except TransactionRefusal as refusal:
        code, record = refusal.code, _NO_TRANSACTION
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(record.partitions):
        topics.setdefault(topic, []).append(partition)
    return {
        "error_code": int(code),
        "transactional_id": transactional_id,
        "transaction_state": record.state.value if code is ErrorCode.NONE else "",
        "transaction_timeout": record.timeout_ms,
        "transaction_start_time": record.start_ms,
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "topics": [
            {"topic": topic, "partitions": partitions} for topic, partitions in topics.items()
        ],
    }


async def list_transactions(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """List this coordinator's transactions.

    Filters: state, producer id, duration, and a pattern for the transactional id.
    """
    body = request.body
    states, producers = set(body.state_filters), set(body.producer_id_filters)
    lasted_ms = getattr(body, "duration_filter", -1)
    begun_until_ms = broker.now_ms() - lasted_ms
    regex = getattr(body, "transactional_id_pattern", None)
    try:
        pattern = TopicPattern(regex) if regex else None
    except PatternError:
        return {
            "throttle_time": 0,
            "error_code": int(ErrorCode.INVALID_REGULAR_EXPRESSION),
            "unknown_state_filters": (),
            "transaction_states": (),
        }
    return {
        "throttle_time": 0,
        "error_code": 0,
        "unknown_state_filters": sorted(states - _STATES),
        "transaction_states": [
            {
                "transactional_id": listing.transactional_id,
                "producer_id": listing.record.producer_id,
                "transaction_state": listing.record.state.value,
            }
            for listing in broker.transactions.all_transactions()
            if (not states or listing.record.state.value in states)
            and (not producers or listing.record.producer_id in producers)
            and (lasted_ms < 0 or listing.record.start_ms < begun_until_ms)
            and (pattern is None or pattern.matches(listing.transactional_id))
        ],
    }


async def describe_producers(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return the active producers of partitions, as known to these replicas."""
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _producers(broker, TopicPartition(topic.name, number))
                    for number in topic.partition_indexes
                ],
            }
            for topic in request.body.topics
        ],
    }


def _producers(broker: BrokerServices, topic_partition: TopicPartition) -> dict[str, Any]:
    partition = broker.manager.partition(topic_partition)
    code, message, active = ErrorCode.NONE, None, []
    invalid = invalid_topic_name_reason(topic_partition.topic)
    if invalid is not None:
        code, message = ErrorCode.INVALID_TOPIC_EXCEPTION, invalid
    elif partition is None:
        code, message = broker.manager.absence_error(topic_partition)
    else:
        states = partition.log.producers
        active = [
            {
                "producer_id": producer_id,
                "producer_epoch": entry.producer_epoch,
                "last_sequence": entry.last_sequence,
                "last_timestamp": entry.last_timestamp_ms,
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": states.ongoing.get(producer_id, -1),
            }
            for producer_id, entry in states.entries().items()
        ]
    return {
        "partition_index": topic_partition.partition,
        "error_code": int(code),
        "error_message": message,
        "active_producers": active,
    }
