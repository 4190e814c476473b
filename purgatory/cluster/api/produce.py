"""Produce: append records; with acks=all, wait in the Produce purgatory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from crc32c import crc32c

from purgatory.cluster.api.authorization import (
    TRANSACTIONAL_ID,
    AuthorizationContext,
    authorization_context,
)
from purgatory.cluster.api.metadata import leader_hints
from purgatory.cluster.api.response_future import coordinator_response, response_future
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.log_validator import validated
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.fixed_layouts import PRODUCE_BY_IDS, Key, ProduceResponse
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.cluster.records import (
    DecompressionBudget,
    codec_of,
    whole_batches,
)
from purgatory.cluster.request_traces import RequestTrace
from purgatory.core.recent_errors import Logger
from purgatory.kafka import (
    ErrorCode,
    KafkaError,
    PartitionProduceResponse,
    RecordBatch,
    TopicPartition,
)
from purgatory.kafka.client_quotas import PRODUCER_BYTE_RATE
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET
from purgatory.kafka.log.log import ZSTD
from purgatory.kafka.replication.delayed_produce import closes_connection, start_offset_with
from purgatory.kafka.security.authorizer import Operation
from purgatory.kafka.topics import Topic
from purgatory.kafka.transactions.transaction_verification import (
    VerificationErrors,
    add_partitions_to_txn,
    error_responses,
    verification_errors,
)

_log = Logger("purgatory.cluster")
_ALL_REPLICAS = -1
_LENGTH_COVERS_FROM = 12
_MIN_BYTES = 14
"""The least length of a batch, after its offset and length: that of the oldest format."""
_MAGIC_AT = 16
_OLD_MAGICS = (0, 1)
_ATTRIBUTES_AT, _TRANSACTIONAL = 22, 0x10
"""The position of the lower byte of a batch's attributes, and the bit of transactional ones."""
_WITH_ZSTD = 7
"""The first version of Produce in which batches may be compressed by zstd."""
_KNOWS_ABORTABLE_MIN_VERSION = 11
"""The first version of Produce that has TRANSACTION_ABORTABLE."""
_ADD_PARTITIONS_MIN_VERSION = 12
"""The first version of Produce in which leaders add partitions to transactions."""
_CONCURRENT_S, _CONCURRENT_AGAIN_S = 0.1, 0.02
"""How long a leader asks again, and how often, while a producer's transaction before is ended."""
_NO_ID = UUID(int=0)
Responses = Mapping[TopicPartition, PartitionProduceResponse]
_UNAUTHORIZED_TRANSACTION = PartitionProduceResponse(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
)
_TWO_PRODUCERS = PartitionProduceResponse(
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    message="transactional records of more than one producer in one request",
)
_UNAUTHORIZED = PartitionProduceResponse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_METADATA_ERROR_MESSAGE = "the cluster's metadata can't be saved"
_STORAGE_ERROR = PartitionProduceResponse(
    ErrorCode.KAFKA_STORAGE_ERROR, message=_METADATA_ERROR_MESSAGE
)
_STORAGE_ERROR_AFTER_APPEND = PartitionProduceResponse(
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message=_METADATA_ERROR_MESSAGE
)


async def produce(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Append records; complete when they are as safe as ``acks`` requires."""
    body, cluster = request.body, broker.cluster
    trace, request_traces = cluster.trace, cluster.request_traces
    received_us = 0 if trace is None else trace.now_us()
    followed_traces: list[RequestTrace] = []
    trace_received_us = 0 if request_traces is None else request_traces.now_us()
    entries: dict[TopicPartition, list[RecordBatch]] = {}
    refused: dict[Key, PartitionProduceResponse] = {}
    sent: dict[TopicPartition, list[RecordBatch]] = {}
    keys: dict[TopicPartition, Key] = {}
    is_transactional = False
    by_ids = request.api_version >= PRODUCE_BY_IDS
    budget = DecompressionBudget(cluster.config.limits.frame_bytes)
    authorization = authorization_context(broker, request, connection)
    for topic in body.topic_data:
        requested: Any = (topic.topic_id or _NO_ID) if by_ids else topic.name
        known = cluster.topic_of(requested)
        rejection = _refusal(requested, known) if known is None or known.internal else None
        if authorization is not None:
            name = None if by_ids and known is None else known.name if known else requested
            if name is not None and not authorization.allows_topic(Operation.WRITE, name):
                rejection = _UNAUTHORIZED
        for partition in topic.partition_data:
            records = partition.records or b""
            is_transactional = is_transactional or _is_transactional(records)
            if rejection is not None:
                refused[requested, partition.index] = rejection
                continue
            topic_partition = TopicPartition(
                known.name if by_ids and known else requested, partition.index
            )
            keys[topic_partition] = (requested, partition.index)
            try:
                batches = _validated(broker, topic_partition, records, request.api_version, budget)
                entries[topic_partition] = batches
            except KafkaError as error:
                refused[requested, partition.index] = PartitionProduceResponse(
                    error.code,
                    log_start_offset=_start_offset_of(broker, topic_partition, error),
                    message=error.message,
                    record_errors=error.record_errors,
                )
                if trace is not None:
                    sent[topic_partition] = list(whole_batches(records))
    refusal = _refusal_of_all(authorization, body, entries) if is_transactional else None
    if refusal is not None:
        sent |= entries
        entries = {}
        refused = dict.fromkeys((*refused, *keys.values()), refusal)
    try:
        if is_transactional and entries:
            if request.api_version >= _ADD_PARTITIONS_MIN_VERSION:
                unverified = await _added_errors(broker, body.transactional_id, entries)
            else:
                unverified = verification_errors(
                    broker.manager,
                    body.transactional_id,
                    entries,
                    cluster.coordinator_of,
                    knows_abortable=request.api_version >= _KNOWS_ABORTABLE_MIN_VERSION,
                )
            for topic_partition, verification_error in unverified.items():
                sent[topic_partition] = entries.pop(topic_partition)
                refused[keys[topic_partition]] = verification_error
        results: Responses
        # As `saved_response`, with another error once the records are appended.
        if cluster.is_saved():
            served_us = 0 if request_traces is None else request_traces.now_us()
            timeout_ms = milliseconds(body.timeout)
            responses: asyncio.Future[Responses] = response_future(
                partial(broker.manager.append_records, timeout_ms, body.acks, entries)
            )
            if request_traces is not None:
                followed_traces = request_traces.record_appended(
                    broker.manager, request.client_id, entries, trace_received_us, served_us
                )
            results = await responses
            if body.acks == _ALL_REPLICAS and not cluster.is_saved():
                results = dict.fromkeys(entries, _STORAGE_ERROR_AFTER_APPEND)
        else:
            results = dict.fromkeys(entries, _STORAGE_ERROR)
        results = _with_append_times(broker, results)
    except asyncio.CancelledError:  # the client has disconnected; appended records stay
        if trace is not None:
            trace.record_abandoned(request, entries, received_us)
        raise
    if request_traces is not None:
        request_traces.record_response(followed_traces, results)
    if trace is not None:
        sent_results = {place: refused[keys[place]] for place in sent} | dict(results)
        trace.record_append(connection, request, sent | entries, sent_results, received_us)
    for topic_partition, result in results.items():
        refused[keys[topic_partition]] = result
    if closes_connection(body.acks, refused.values()):
        _log.info(
            "failed_produce_closed_connection",
            peer=connection.peer,
            broker=broker.broker_id,
            errors={
                f"{topic}-{number}": response.error.name
                for (topic, number), response in refused.items()
            },
        )
        connection.abort()
    throttle_ms = 0
    if broker.quota_meter.is_needed:
        size_bytes = connection.request_bytes
        throttle_ms = broker.record_quota(connection, request, PRODUCER_BYTE_RATE, size_bytes)
    if body.acks == 0:
        return None
    hints = leader_hints(cluster, connection.listener, refused)
    return ProduceResponse(refused, hints, throttle_ms)


async def _added_errors(
    broker: BrokerServices,
    transactional_id: str,
    entries: Mapping[TopicPartition, Sequence[RecordBatch]],
) -> VerificationErrors:
    """Add partitions to a transaction; wait a little for the end of the one before."""
    now = asyncio.get_running_loop().time
    until_s = now() + _CONCURRENT_S
    while True:
        codes = await coordinator_response(
            partial(
                add_partitions_to_txn,
                broker.manager,
                transactional_id,
                entries,
                broker.cluster.coordinator_of,
            ),
            dict.fromkeys(entries, ErrorCode.NETWORK_EXCEPTION),
        )
        if ErrorCode.CONCURRENT_TRANSACTIONS not in codes.values() or now() >= until_s:
            return error_responses(transactional_id, codes)
        await asyncio.sleep(_CONCURRENT_AGAIN_S)


def _is_transactional(records: bytes) -> bool:
    """Whether the first batch of what a client sent is transactional, be it valid or not."""
    return (
        len(records) > _ATTRIBUTES_AT
        and records[_ATTRIBUTES_AT] & _TRANSACTIONAL != 0
        and records[_MAGIC_AT] not in _OLD_MAGICS
    )


def _refusal_of_all(
    authorization: AuthorizationContext | None,
    body: Any,
    entries: Mapping[TopicPartition, Sequence[RecordBatch]],
) -> PartitionProduceResponse | None:
    """Return the error of a whole request with transactional batches, or None."""
    transactional_id = body.transactional_id
    if transactional_id is None or (
        authorization is not None
        and not authorization.allows(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)
    ):
        return _UNAUTHORIZED_TRANSACTION
    producers = {
        (batch.producer_id, batch.producer_epoch)
        for (batch,) in entries.values()
        if batch.transactional and batch.producer_id >= 0
    }
    return _TWO_PRODUCERS if len(producers) > 1 else None


def _refusal(requested: str | UUID, known: Topic | None) -> PartitionProduceResponse | None:
    if known is None and isinstance(requested, UUID):
        message = f"no topic has the id {requested}"
        return PartitionProduceResponse(ErrorCode.UNKNOWN_TOPIC_ID, message=message)
    if known is not None and known.internal:
        message = f"{known.name} is the cluster's own"
        return PartitionProduceResponse(ErrorCode.INVALID_TOPIC_EXCEPTION, message=message)
    return None


def _validated(
    broker: BrokerServices,
    topic_partition: TopicPartition,
    records: bytes,
    version: int,
    budget: DecompressionBudget,
) -> list[RecordBatch]:
    batches = [sent_batch(records)]
    if version < _WITH_ZSTD and codec_of(batches[0]) == ZSTD:
        raise _NoBatchError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd is known from version {_WITH_ZSTD} of Produce on, not in {version}",
        )
    partition = broker.manager.partition(topic_partition)
    if partition is None or not partition.is_leader:
        return batches  # the append returns the error
    return validated(batches, partition.log.config, topic_partition, broker.now_ms, budget)


def _start_offset_of(
    broker: BrokerServices, topic_partition: TopicPartition, error: KafkaError
) -> int:
    """Return the log's start, as the response to a refused batch has it; -1: it was no batch."""
    if isinstance(error, _NoBatchError):
        return UNKNOWN_OFFSET
    return start_offset_with(error.code, broker.manager.partition(topic_partition))


def _with_append_times(broker: BrokerServices, results: Responses) -> Responses:
    """Add the append times: in topics with log append time, and those of duplicates' originals."""
    times_ms = {}
    partition_of = broker.manager.partition
    for topic_partition, result in results.items():
        partition = partition_of(topic_partition)
        if partition is None or not (result.duplicate or partition.log.config.is_log_append_time):
            continue
        offset = result.base_offset
        if partition.log.start_offset <= offset < partition.log.end_offset:
            batch = partition.log.read(offset, 1)[0]
            times_ms[topic_partition] = batch.max_timestamp_ms
    return (
        {
            key: replace(result, append_time_ms=times_ms[key]) if key in times_ms else result
            for key, result in results.items()
        }
        if times_ms
        else results
    )


def sent_batch(records: bytes) -> RecordBatch:
    """Return the one batch that a client sent for a partition, checked.

    Raises:
        KafkaError: INVALID_RECORD: there is no whole batch, or more than one, or its header is
            inconsistent; CORRUPT_MESSAGE: its checksum or its length is wrong.
    """
    size = len(records)
    if size < _LENGTH_COVERS_FROM:
        raise _invalid("no batch: a produce has exactly one for each partition")
    length = int.from_bytes(records[8:_LENGTH_COVERS_FROM], "big", signed=True)
    end = _LENGTH_COVERS_FROM + length
    if length < _MIN_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the length of its batch is {length}")
    if end > size:
        raise _invalid(f"a batch of {end} bytes, of which {size} came")
    magic = records[_MAGIC_AT]
    if magic in _OLD_MAGICS:
        raise _invalid(f"a batch of magic {magic}: only 2 is served")
    if _has_batch(records, end):
        raise _invalid(f"{size - end} bytes after the first batch: there may be only one")
    batch = RecordBatch.from_bytes(records[:end], checksum=crc32c)
    if batch.base_offset:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"its base offset is {batch.base_offset}: clients number from 0",
        )
    return batch


def _has_batch(records: bytes, begin: int) -> bool:
    """Whether there is a whole batch, or none at all, behind the first: Kafka ignores a part."""
    size = len(records) - begin
    if size < _LENGTH_COVERS_FROM:
        return False
    length = int.from_bytes(records[begin + 8 : begin + _LENGTH_COVERS_FROM], "big", signed=True)
    return length < _MIN_BYTES or _LENGTH_COVERS_FROM + length <= size


class _NoBatchError(KafkaError):
    """The client sent no batch, more than one, or one that the version doesn't have."""


def _invalid(error: str) -> KafkaError:
    return _NoBatchError(ErrorCode.INVALID_RECORD, error)
