"""The answers to what `fixed_requests` reads, by layouts written out, too.

Ground rules: no state but a cache of names as they are written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar
from uuid import UUID

from purgatory.cluster.protocol.fixed_requests import (
    END_FLEXIBLE,
    END_RAISES,
    FETCH_FLEXIBLE,
    PRODUCE_FLEXIBLE,
    PRODUCER,
)
from purgatory.cluster.protocol.wire import NO_HINTS, Key, LeaderHints, NodeEndpoint
from purgatory.kafka import EpochEndOffset, PartitionFetchResponse, PartitionProduceResponse
from purgatory.kafka.groups.consumer_group_coordinator import ConsumerGroupHeartbeatResult
from purgatory.kafka.log.record_batch import bytes_of

A = TypeVar("A", PartitionProduceResponse, PartitionFetchResponse)
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_APPENDED = struct.Struct(">ihqq")
_APPENDED_AND_START = struct.Struct(">ihqqq")
_FETCHED = struct.Struct(">ihqq")
_FETCHED_AND_START = struct.Struct(">ihqqq")
_FETCH_HEAD = struct.Struct(">ihi")
_TRANSACTION = struct.Struct(">qq")
_DIVERGING = struct.Struct(">BBiqB")  # the field's number, its bytes, the field, no tagged fields
_FETCH_LEADER = struct.Struct(">BBiiB")
_ERROR_ALONE = struct.Struct(">ih")  # no throttle time, the error
_NO_ASSIGNMENT = struct.Struct(">iibB")  # epoch, interval, null, no tagged fields
_LEADER = struct.Struct(">BBBiiB")  # one field, as above
_NULL = -1
_PRODUCE_HINTS = 10
_KEPT = 1_024
_FETCH_ENDPOINTS = 16


class _Writing(NamedTuple):
    """How strings and lengths are written, and what stands at the end of each structure."""

    string: Callable[[str | None], bytes]
    length: Callable[[int], bytes]
    end: bytes


def _write_plain_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def _write_compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return _write_compact_length(len(data)) + data


def _write_compact_length(length: int) -> bytes:
    number = length + 1
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


# The same few topics are named all the time.
_WRITE_PLAIN = _Writing(lru_cache(_KEPT)(_write_plain_string), _INT.pack, b"")
_WRITE_COMPACT = _Writing(lru_cache(_KEPT)(_write_compact_string), _write_compact_length, b"\0")


def produce_answer(
    version: int,
    answers: Mapping[Key, PartitionProduceResponse],
    hints: LeaderHints = NO_HINTS,
) -> bytes:
    """Return the body of the answer to a produce. O(answers).

    Args:
        version: of the request.
        answers: by the names of the topics, or by their ids, as the version has it.
        hints: who leads, where the client is to go to another broker.
    """
    string, length, end = _WRITE_COMPACT if version >= PRODUCE_FLEXIBLE else _WRITE_PLAIN
    topics = _by_topic(answers)
    parts = [length(len(topics))]
    for topic, partitions in topics.items():
        name = string(topic) if isinstance(topic, str) else topic.bytes
        parts += name, length(len(partitions))
        for partition, answer in partitions:
            error, base_offset, time_ms = answer.error, answer.base_offset, answer.append_time_ms
            if version < 5:
                parts.append(_APPENDED.pack(partition, error, base_offset, time_ms))
                continue
            start = answer.log_start_offset
            parts.append(_APPENDED_AND_START.pack(partition, error, base_offset, time_ms, start))
            if version >= 8:
                parts.append(length(len(answer.record_errors)))
                for batch_index, message in answer.record_errors:
                    parts += _INT.pack(batch_index), string(message), end
                parts.append(string(answer.message))
                leader = hints.leaders.get((topic, partition))
                told = leader is not None and version >= _PRODUCE_HINTS
                parts.append(_LEADER.pack(1, 0, 9, *leader, 0) if told and leader else end)
        parts.append(end)
    endpoints = hints.endpoints if version >= _PRODUCE_HINTS else ()
    parts += _INT.pack(0), _endpoints(endpoints) or end  # throttled for 0 ms
    return b"".join(parts)


def fetch_answer(
    version: int,
    answers: Mapping[Key, PartitionFetchResponse],
    session_id: int = 0,
    error: int = 0,
    hints: LeaderHints = NO_HINTS,
) -> bytes:
    """Return the body of the answer to a fetch. O(bytes).

    Args:
        version: of the request.
        answers: by the names of the topics, or by their ids, as the version has it.
        session_id: of its session, 0 without one.
        error: why it is refused as a whole.
        hints: who leads, where the client is to go to another broker.
    """
    string, length, end = _WRITE_COMPACT if version >= FETCH_FLEXIBLE else _WRITE_PLAIN
    topics = _by_topic(answers)
    head = _FETCH_HEAD.pack(0, error, session_id)  # throttled for 0 ms
    parts = [head if version >= 7 else head[:4], length(len(topics))]
    for topic, partitions in topics.items():
        parts += _topic(topic, string), length(len(partitions))
        for partition, answer in partitions:
            numbers = partition, answer.error, answer.high_watermark, answer.last_stable_offset
            if version < 5:
                parts.append(_FETCHED.pack(*numbers))
            else:
                parts.append(_FETCHED_AND_START.pack(*numbers, answer.log_start_offset))
            parts.append(length(len(answer.aborted_transactions)))
            for aborted in answer.aborted_transactions:
                parts += _TRANSACTION.pack(aborted.producer_id, aborted.first_offset), end
            if version >= 11:
                parts.append(_INT.pack(answer.preferred_replica))
            records = bytes_of(answer.batches)
            parts += length(len(records)), records
            leader = hints.leaders.get((topic, partition))
            if end and (answer.diverging_epoch is not None or leader is not None):
                parts += _fetch_tags(answer.diverging_epoch, leader)
            else:
                parts.append(end)
        parts.append(end)
    parts.append(_endpoints(hints.endpoints if version >= _FETCH_ENDPOINTS else ()) or end)
    return b"".join(parts)


def _topic(topic: str | UUID, string: Callable[[str | None], bytes]) -> bytes:
    return string(topic) if isinstance(topic, str) else topic.bytes


def _fetch_tags(
    diverging: EpochEndOffset | None, leader: tuple[int, int] | None
) -> Iterator[bytes]:
    yield bytes([(diverging is not None) + (leader is not None)])
    if diverging is not None:
        yield _DIVERGING.pack(0, 13, *diverging, 0)
    if leader is not None:
        yield _FETCH_LEADER.pack(1, 9, *leader, 0)


def _endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Return one tagged field, number 0; nothing for none."""
    if not endpoints:
        return b""
    parts = [_write_compact_length(len(endpoints))]
    for node_id, host, port, rack in endpoints:
        parts += _INT.pack(node_id), _write_compact_string(host), _INT.pack(port)
        parts += _write_compact_string(rack), b"\0"
    field = b"".join(parts)
    return b"\1\0" + _write_compact_length(len(field) - 1) + field


def _by_topic(answers: Mapping[Key, A]) -> dict[str | UUID, list[tuple[int, A]]]:
    if len(answers) == 1:
        ((topic, partition),) = answers
        return {topic: [(partition, answers[topic, partition])]}
    topics: dict[str | UUID, list[tuple[int, A]]] = {}
    for (topic, partition), answer in answers.items():
        topics.setdefault(topic, []).append((partition, answer))
    return topics


def heartbeat_answer(answer: ConsumerGroupHeartbeatResult, interval_ms: int) -> bytes:
    """Return the body of the answer to a sign of life, in any version, that assigns nothing new."""
    assert answer.assignment is None, "it would be left out"
    return (
        _ERROR_ALONE.pack(0, answer.error)
        + _write_compact_string(answer.message)
        + _write_compact_string(answer.member_id)
        + _NO_ASSIGNMENT.pack(answer.epoch, interval_ms, _NULL, 0)
    )


def end_transaction_answer(version: int, error: int, producer_id: int, epoch: int) -> bytes:
    """Return the body of the answer to the end of a transaction, with who the producer is then."""
    body = _ERROR_ALONE.pack(0, error)
    if version >= END_RAISES:
        body += PRODUCER.pack(producer_id, epoch)
    return body + (b"\0" if version >= END_FLEXIBLE else b"")
