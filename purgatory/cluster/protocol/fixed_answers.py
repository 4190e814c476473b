"""The answers to Produce and Fetch written by layouts written out, as their requests are read.

Ground rules: no state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from purgatory.cluster.protocol.fixed_requests import FETCH_FLEXIBLE, PRODUCE_FLEXIBLE
from purgatory.kafka import PartitionFetchResponse, PartitionProduceResponse, TopicPartition
from purgatory.kafka.record_batch import bytes_of

A = TypeVar("A", PartitionProduceResponse, PartitionFetchResponse)

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_APPENDED = struct.Struct(">ihqq")
_APPENDED_AND_START = struct.Struct(">ihqqq")
_FETCHED = struct.Struct(">ihqq")
_FETCHED_AND_START = struct.Struct(">ihqqq")
_FETCH_HEAD = struct.Struct(">ihi")
_TRANSACTION = struct.Struct(">qq")
_DIVERGING = struct.Struct(">BBBiqB")
_NO_TIME = -1
_NO_REPLICA = _INT.pack(-1)


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


_WRITE_PLAIN = _Writing(_write_plain_string, _INT.pack, b"")
_WRITE_COMPACT = _Writing(_write_compact_string, _write_compact_length, b"\0")


def produce_answer(
    version: int, answers: Mapping[TopicPartition, PartitionProduceResponse]
) -> bytes:
    """Return the body of the answer to a produce. O(answers)."""
    string, length, end = _WRITE_COMPACT if version >= PRODUCE_FLEXIBLE else _WRITE_PLAIN
    topics = _by_topic(answers)
    parts = [length(len(topics))]
    for topic, partitions in topics.items():
        parts += string(topic), length(len(partitions))
        for partition, answer in partitions:
            error, base_offset = answer.error, answer.base_offset
            if version < 5:
                parts.append(_APPENDED.pack(partition, error, base_offset, _NO_TIME))
                continue
            start = answer.log_start_offset
            parts.append(_APPENDED_AND_START.pack(partition, error, base_offset, _NO_TIME, start))
            if version >= 8:
                parts += length(0), string(answer.message), end
        parts.append(end)
    parts += _INT.pack(0), end  # throttled for 0 ms
    return b"".join(parts)


def fetch_answer(version: int, answers: Mapping[TopicPartition, PartitionFetchResponse]) -> bytes:
    """Return the body of the answer to a fetch, outside of any session. O(bytes)."""
    string, length, end = _WRITE_COMPACT if version >= FETCH_FLEXIBLE else _WRITE_PLAIN
    topics = _by_topic(answers)
    head = _FETCH_HEAD.pack(0, 0, 0)  # throttled for 0 ms, no error, no session
    parts = [head if version >= 7 else head[:4], length(len(topics))]
    for topic, partitions in topics.items():
        parts += string(topic), length(len(partitions))
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
                parts.append(_NO_REPLICA)
            records = bytes_of(answer.batches)
            parts += length(len(records)), records
            if answer.diverging_epoch is not None and end:
                # One tagged field, number 0, of 13 bytes.
                parts.append(_DIVERGING.pack(1, 0, 13, *answer.diverging_epoch, 0))
            else:
                parts.append(end)
        parts.append(end)
    parts.append(end)
    return b"".join(parts)


def _by_topic(answers: Mapping[TopicPartition, A]) -> dict[str, list[tuple[int, A]]]:
    topics: dict[str, list[tuple[int, A]]] = {}
    for (topic, partition), answer in answers.items():
        topics.setdefault(topic, []).append((partition, answer))
    return topics
