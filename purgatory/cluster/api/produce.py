"""Produce: append what clients send; acks=all waits in the Produce purgatory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from crc32c import crc32c

from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.fixed_answers import produce_answer
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.cluster.record_contents import records_of
from purgatory.kafka import (
    ErrorCode,
    KafkaError,
    PartitionProduceResponse,
    RecordBatch,
    TopicPartition,
)

_ALL = -1
_HEADER_BYTES = 61
_LENGTH_FROM = 12

Answers = Mapping[TopicPartition, PartitionProduceResponse]

_REFUSED = PartitionProduceResponse(ErrorCode.NOT_ENOUGH_REPLICAS, message="a fault refuses it")
_WHY_UNSAVED = "the cluster's metadata can't be saved"
_UNSAVED = PartitionProduceResponse(ErrorCode.KAFKA_STORAGE_ERROR, message=_WHY_UNSAVED)
_UNSAVED_SINCE = PartitionProduceResponse(
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message=_WHY_UNSAVED
)


async def produce(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Append, and answer once the records are as safe as ``acks`` asks."""
    body, trace = request.body, broker.cluster.trace
    came_us = 0 if trace is None else trace.now_us()
    entries: dict[TopicPartition, list[RecordBatch]] = {}
    refused: dict[TopicPartition, PartitionProduceResponse] = {}
    for topic in body.topic_data:
        known = broker.cluster.controller.topics.get(topic.name)
        keeps_keys = not broker.may_drop(topic.name)
        for partition in topic.partition_data:
            topic_partition = TopicPartition(topic.name, partition.index)
            if known is not None and known.internal:
                refused[topic_partition] = PartitionProduceResponse(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, message=f"{topic.name} is the cluster's own"
                )
                continue
            try:
                batches = split_batches(partition.records or b"")
                if keeps_keys:
                    _check_keys(batches, topic_partition)
                entries[topic_partition] = batches
            except KafkaError as error:
                refused[topic_partition] = PartitionProduceResponse(
                    error.code, message=error.message
                )
    try:
        refusals = _refusals(broker, entries)
        answers: Answers
        if refusals is not None:
            answers = refusals
        else:
            timeout_ms, acks = milliseconds(body.timeout), body.acks
            answers = await answer_of(
                partial(broker.manager.append_records, timeout_ms, acks, entries)
            )
            if acks == _ALL and not broker.cluster.is_saved():
                answers = dict.fromkeys(answers, _UNSAVED_SINCE)
    except asyncio.CancelledError:  # the connection is gone; what was appended stays
        if trace is not None:
            trace.abandoned(request, entries, came_us)
        raise
    if trace is not None:
        trace.appended(connection, request, entries, answers, came_us)
    if body.acks == 0:
        return None
    return produce_answer(request.api_version, {**refused, **answers} if refused else answers)


def _check_keys(batches: list[RecordBatch], topic_partition: TopicPartition) -> None:
    """Refuse records without a key, of which compaction would not know which replaces which."""
    for batch in batches:
        try:
            keyless = [number for number, one in enumerate(records_of(batch)) if one.key is None]
        except ValueError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        if keyless:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{topic_partition} is compacted, and takes no records without a key: "
                f"{len(keyless)} of {batch.record_count} have none, the first is number "
                f"{keyless[0]}",
            )


def _refusals(broker: Broker, entries: Mapping[TopicPartition, object]) -> Answers | None:
    """Return the answers to what may not be appended now; None if it may."""
    if broker.cluster.fault.refuses_produce(broker.broker_id):
        return dict.fromkeys(entries, _REFUSED)
    return None if broker.cluster.is_saved() else dict.fromkeys(entries, _UNSAVED)


def split_batches(records: bytes) -> list[RecordBatch]:
    """Return the batches that a client sent for one partition, checked.

    Raises:
        KafkaError: CORRUPT_MESSAGE or INVALID_RECORD.
    """
    batches = []
    start = 0
    while start < len(records):
        if len(records) - start < _HEADER_BYTES:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{len(records) - start} bytes after the last batch"
            )
        length = int.from_bytes(records[start + 8 : start + _LENGTH_FROM], "big", signed=True)
        end = start + _LENGTH_FROM + length
        if length < _HEADER_BYTES - _LENGTH_FROM or end > len(records):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"a batch of {length + _LENGTH_FROM} bytes, of {len(records) - start} that came",
            )
        whole = records if start == 0 and end == len(records) else records[start:end]
        batches.append(RecordBatch.from_bytes(whole, checksum=crc32c))
        start = end
    if not batches:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a produce without records")
    return batches
