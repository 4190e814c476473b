"""ListOffsets: the first and last offsets, and the first at or after a time."""

from __future__ import annotations

from typing import Any

from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.record_contents import Record
from purgatory.cluster.record_times import first_at_or_after, latest
from purgatory.core.fault_log import Logger
from purgatory.kafka import ErrorCode, Partition, TopicPartition

_LATEST = -1
_EARLIEST = -2
_OF_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_OF_REMOTE_STORAGE = (-5, -6)
"""The latest offset that is in remote storage, and the first that is to go there: none is."""
_NO_EPOCH = -1
_NO_TIME = -1
_NOTHING = Record(-1, _NO_TIME, None, None)

_log = Logger("purgatory.cluster")


async def list_offsets(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell one offset for each partition."""
    body = request.body
    committed_only = getattr(body, "isolation_level", 0) == 1
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _offset(broker, topic.name, asked, committed_only) for asked in topic.partitions
                ],
            }
            for topic in body.topics
        ],
    }


def _offset(broker: Broker, topic: str, asked: Any, committed_only: bool) -> dict[str, Any]:
    values = {
        "partition_index": asked.partition_index,
        "error_code": 0,
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }
    topic_partition = TopicPartition(topic, asked.partition_index)
    partition = broker.manager.partition(topic_partition)
    if partition is None:
        return {**values, "error_code": int(broker.manager.why_absent(topic_partition)[0])}
    refused = _why_refused(partition, getattr(asked, "current_leader_epoch", _NO_EPOCH))
    if refused is not ErrorCode.NONE:
        return {**values, "error_code": int(refused)}
    try:
        found = _asked_offset(partition, asked.timestamp, committed_only)
    except ValueError as error:  # a batch that can't be looked into
        _log.warning("times_unreadable", partition=str(topic_partition), reason=str(error))
        return {**values, "error_code": int(ErrorCode.CORRUPT_MESSAGE)}
    return {
        **values,
        "leader_epoch": partition.log.epochs.epoch_of(found.offset),
        "offset": found.offset,
        "timestamp": found.timestamp_ms,
    }


def _why_refused(partition: Partition, epoch: int) -> ErrorCode:
    if epoch != _NO_EPOCH and epoch != partition.leader_epoch:
        old = epoch < partition.leader_epoch
        return ErrorCode.FENCED_LEADER_EPOCH if old else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if partition.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _asked_offset(partition: Partition, timestamp_ms: int, committed_only: bool) -> Record:
    if timestamp_ms in _OF_REMOTE_STORAGE:
        return _NOTHING
    if timestamp_ms in (_EARLIEST, _EARLIEST_LOCAL):
        return Record(partition.log_start_offset, _NO_TIME, None, None)
    end = partition.last_stable_offset if committed_only else partition.high_watermark
    if timestamp_ms == _LATEST:
        return Record(end, _NO_TIME, None, None)
    if timestamp_ms == _OF_MAX_TIMESTAMP:
        return latest(partition.log, end) or _NOTHING
    return first_at_or_after(partition.log, timestamp_ms, end) or _NOTHING
