"""ListOffsets: the first and the last offset, or the first one at or after a timestamp.

A new leader doesn't know the high watermark of the former one (KIP-207): until it does, the last
offset is not available, since it might be below one that was returned before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.records import Record, find_by_timestamp, latest
from purgatory.core.recent_errors import Logger
from purgatory.kafka import ErrorCode, Partition, TopicPartition
from timer.machine_time import time

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6

_MIN_VERSIONS = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
"""By a negative timestamp that stands for an offset: the first version that supports it."""

_OFFSET_NOT_AVAILABLE_MIN_VERSION = 5
"""Clients of former versions don't know this error."""

_UNCOMMITTED, _COMMITTED = 0, 1
_DEBUGGING = -2
"""The replica id of consumers that look at any replica."""
_NO_EPOCH = -1
_NO_TIME = -1
_TIME_SLICE_S = 0.005
_NO_RECORD = Record(-1, _NO_TIME, None, None)
_log = Logger("purgatory.cluster")


async def list_offsets(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return one offset for each partition.

    Other clients are served between two partitions: a lookup by time may open a batch of many
    megabytes.
    """
    body = request.body
    isolation, followers = getattr(body, "isolation_level", 0), body.replica_id == _DEBUGGING
    counts = Counter(
        (topic.name, requested.partition_index)
        for topic in body.topics
        for requested in topic.partitions
    )
    topics = []
    slice_end_s = time.monotonic() + _TIME_SLICE_S
    for topic in body.topics:
        partitions = []
        for requested in {one.partition_index: one for one in topic.partitions}.values():
            if isolation not in (_UNCOMMITTED, _COMMITTED):
                response = _nothing(requested, ErrorCode.UNKNOWN_SERVER_ERROR)
            elif counts[topic.name, requested.partition_index] > 1:  # ambiguous, as in Kafka
                response = _nothing(requested, ErrorCode.INVALID_REQUEST)
            elif requested.timestamp < 0 and (
                _MIN_VERSIONS.get(requested.timestamp, request.api_version + 1)
                > request.api_version
            ):
                response = _nothing(requested, ErrorCode.UNSUPPORTED_VERSION)
            else:
                response = _offset(
                    broker,
                    topic.name,
                    requested,
                    isolation == _COMMITTED,
                    request.api_version,
                    followers,
                )
            partitions.append(response)
            if time.monotonic() >= slice_end_s:
                await asyncio.sleep(0)
                slice_end_s = time.monotonic() + _TIME_SLICE_S
        topics.append({"name": topic.name, "partitions": partitions})
    return {"throttle_time": 0, "topics": topics}


def _nothing(requested: Any, error: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": requested.partition_index,
        "error_code": int(error),
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }


def _offset(
    broker: BrokerServices,
    topic: str,
    requested: Any,
    committed_only: bool,
    version: int,
    from_followers: bool,
) -> dict[str, Any]:
    values = _nothing(requested, ErrorCode.NONE)
    topic_partition = TopicPartition(topic, requested.partition_index)
    partition = broker.manager.partition(topic_partition)
    if partition is None:
        return {**values, "error_code": int(broker.manager.absence_error(topic_partition)[0])}
    refused = _refusal(partition, getattr(requested, "current_leader_epoch", _NO_EPOCH))
    if from_followers and refused is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        refused = ErrorCode.NONE
    if refused is not ErrorCode.NONE:
        return {**values, "error_code": int(refused)}
    if requested.timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return values  # there is no remote tier
    try:
        found = _requested_offset(partition, requested.timestamp, committed_only)
    except ValueError as error:  # an unreadable batch
        _log.warning("times_unreadable", partition=str(topic_partition), reason=str(error))
        return {**values, "error_code": int(ErrorCode.CORRUPT_MESSAGE)}
    if found is None:
        known = version >= _OFFSET_NOT_AVAILABLE_MIN_VERSION
        code = ErrorCode.OFFSET_NOT_AVAILABLE if known else ErrorCode.LEADER_NOT_AVAILABLE
        return {**values, "error_code": int(code)}
    return {
        **values,
        "leader_epoch": _epoch_of(partition, found.offset),
        "offset": found.offset,
        "timestamp": found.timestamp_ms,
    }


def _epoch_of(partition: Partition, offset: int) -> int:
    """Return the epoch of a record, which may be a deleted one; -1 without a record."""
    known = offset if offset < 0 else max(offset, partition.log_start_offset)
    return partition.log.epochs.epoch_of(known)


def _refusal(partition: Partition, epoch: int) -> ErrorCode:
    if epoch != _NO_EPOCH and epoch != partition.leader_epoch:
        old = epoch < partition.leader_epoch
        return ErrorCode.FENCED_LEADER_EPOCH if old else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if partition.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _requested_offset(
    partition: Partition, timestamp_ms: int, committed_only: bool
) -> Record | None:
    """Return what is at the requested offset; None: a new leader doesn't know it yet."""
    if timestamp_ms in (_EARLIEST, _EARLIEST_LOCAL):
        return Record(partition.log_start_offset, _NO_TIME, None, None)
    end = partition.last_stable_offset if committed_only else partition.high_watermark
    is_behind = partition.high_watermark < partition.leader_epoch_start_offset
    if timestamp_ms == _LATEST:
        return None if is_behind else Record(end, _NO_TIME, None, None)
    # Kafka searches the whole log, and only then looks whether the client may see the record.
    log_end = partition.log_end_offset
    if timestamp_ms == _MAX_TIMESTAMP:
        found = latest(partition.log, log_end)
    else:
        found = find_by_timestamp(partition.log, timestamp_ms, log_end if is_behind else end)
    if found is not None and found.offset >= end:
        return None if is_behind else _NO_RECORD
    return found or _NO_RECORD
