"""Fixed layouts of the messages that take most of a broker's time: Produce, and the responses to
Fetch and to ConsumerGroupHeartbeat.

The general codec (`wire`) goes over each field by its description, and makes objects that check
themselves, which costs more than the append of a record. Here a run of numbers is one `Struct`, and
the code of each field names its versions.

The general codec decodes or rejects an unusual Produce: a truncated or overlong one, or one with
nulls in fields that are not nullable, tagged fields, or arrays of more than ``_MAX_FAST_ELEMENTS``
elements. Both codecs return the same names and values.

Ground rules
------------
* No state but caches of durations and names.
* Offsets only grow, and each element of an array takes bytes of the frame, so reading takes
  O(bytes) at most, whatever an array claims to have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from purgatory.kafka import (
    AbortedTransaction,
    EpochEndOffset,
    ErrorCode,
    PartitionFetchResponse,
    PartitionProduceResponse,
)
from purgatory.kafka.groups.consumer_group_coordinator import ConsumerGroupHeartbeatResult
from purgatory.kafka.log.record_batch import encode_batches

PRODUCE = 0
PRODUCE_BY_IDS = FETCH_BY_IDS = 13
"""From these versions on topics are named by their ids."""
_PRODUCE_FLEXIBLE = 9
_FETCH_FLEXIBLE = 12
"""From these versions on lengths are compact, and structures end with tagged fields."""
_MAX_FAST_ELEMENTS = (
    400  # squared, for topics with their partitions, it is below `frame_check.MAX_ELEMENTS`
)
_HEADER_BYTES = 8  # the API, its version, the request's number
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_ONE_TOPIC = struct.Struct(">hiih")  # acks, timeout, topics, the name's length
_ONE_PARTITION = struct.Struct(">iii")  # partitions, index, the records' length
_NO_STRING = b"\xff\xff"
_ID_BYTES = 16
_NO_ID = bytes(_ID_BYTES)


@dataclass(slots=True)
class ProducedPartition:
    """The batches of one partition in a produce."""

    index: int
    records: bytes | None


@dataclass(slots=True)
class ProducedTopic:
    """The partitions of one topic in a produce."""

    name: str
    partition_data: tuple[ProducedPartition, ...]


@dataclass(slots=True)
class ProducedTopicById:
    """The partitions of one topic in a produce, by its id; None stands for the id 0."""

    topic_id: UUID | None
    partition_data: tuple[ProducedPartition, ...]


@dataclass(slots=True)
class ProduceBody:
    """The body of a produce."""

    transactional_id: str | None
    acks: int
    timeout: timedelta
    topic_data: tuple[ProducedTopic | ProducedTopicById, ...]


class _UnusualError(Exception):
    """The request is left to the general codec."""


class _Reading(NamedTuple):
    """The readers of strings and lengths, which return the end position, too. ``flexible``: whether
    each structure ends with tagged fields."""

    string: Callable[[bytes, int], tuple[str | None, int]]
    length: Callable[[bytes, int], tuple[int, int]]
    flexible: bool


def _plain_string(data: bytes, at: int) -> tuple[str | None, int]:
    (size,) = _SHORT.unpack_from(data, at)
    at += 2
    if size >= 0:
        return data[at : at + size].decode(), at + size
    if size < -1:
        raise _UnusualError
    return None, at


def _compact_string(data: bytes, at: int) -> tuple[str | None, int]:
    size, at = _compact_length(data, at)
    if size >= 0:
        return data[at : at + size].decode(), at + size
    return None, at


def _plain_length(data: bytes, at: int) -> tuple[int, int]:
    return _INT.unpack_from(data, at)[0], at + 4


def _compact_length(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    number, shift = byte & 0x7F, 7
    while byte > 0x7F:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 28:
            raise _UnusualError
    return number - 1, at + 1


def _after_tags(data: bytes, at: int) -> int:
    if data[at]:
        raise _UnusualError
    return at + 1


_PLAIN = _Reading(_plain_string, _plain_length, False)
_COMPACT = _Reading(_compact_string, _compact_length, True)


def read_produce(version: int, frame: bytes) -> tuple[str | None, ProduceBody] | None:
    """Return the client id and the body of a Produce; None if only the general decoder reads it.

    Args:
        version: the request's version, a supported one.
        frame: the request without its size prefix.
    """
    reading = _COMPACT if version >= _PRODUCE_FLEXIBLE else _PLAIN
    try:
        client_id, at = _plain_string(frame, _HEADER_BYTES)
        if reading.flexible:
            at = _after_tags(frame, at)
        body, at = _read_body(frame, at, version, reading)
    except (_UnusualError, IndexError, UnicodeDecodeError, struct.error):
        return None
    return (client_id, body) if at <= len(frame) else None


def _read_body(frame: bytes, at: int, version: int, reading: _Reading) -> tuple[ProduceBody, int]:
    string, length, flexible = reading
    if not flexible:
        alone = _read_one_partition(frame, at)
        if alone is not None:
            return alone, len(frame)
    transactional_id, at = string(frame, at)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, at)
    topics: list[ProducedTopic | ProducedTopicById] = []
    topic_count, at = length(frame, at + 6)
    if not 0 <= topic_count <= _MAX_FAST_ELEMENTS:
        raise _UnusualError
    for _ in range(topic_count):
        by_id = version >= PRODUCE_BY_IDS
        name, at = _topic_id(frame, at) if by_id else _text(frame, at, string)
        partition_count, at = length(frame, at)
        if not 0 <= partition_count <= _MAX_FAST_ELEMENTS:
            raise _UnusualError
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT.unpack_from(frame, at)
            size, at = length(frame, at + 4)
            if size < 0:
                raise _UnusualError
            end = at + size
            partitions.append(ProducedPartition(index, frame[at:end]))
            at = _after_tags(frame, end) if flexible else end
        topics.append(
            ProducedTopic(name, tuple(partitions))
            if isinstance(name, str)
            else ProducedTopicById(name, tuple(partitions))
        )
        if flexible:
            at = _after_tags(frame, at)
    if flexible:
        at = _after_tags(frame, at)
    return ProduceBody(transactional_id, acks, _duration(timeout_ms), tuple(topics)), at


def _read_one_partition(frame: bytes, at: int) -> ProduceBody | None:
    """Read a produce for one partition in few steps; None if it has more. Most have only one, and
    take most of a broker's time."""
    has_id = frame[at : at + 2] != _NO_STRING
    transactional_id, at = _plain_string(frame, at) if has_id else (None, at + 2)
    name_at = at + _ONE_TOPIC.size
    if len(frame) < name_at:
        return None
    acks, timeout_ms, topics, name_bytes = _ONE_TOPIC.unpack_from(frame, at)
    partitions_at = name_at + name_bytes
    records_at = partitions_at + _ONE_PARTITION.size
    if topics != 1 or name_bytes < 0 or len(frame) < records_at:
        return None
    partitions, index, size = _ONE_PARTITION.unpack_from(frame, partitions_at)
    if partitions != 1 or records_at + size != len(frame):
        return None
    name = frame[name_at:partitions_at].decode()
    topic = ProducedTopic(name, (ProducedPartition(index, frame[records_at:]),))
    return ProduceBody(transactional_id, acks, _duration(timeout_ms), (topic,))


def _text(
    data: bytes, at: int, string: Callable[[bytes, int], tuple[str | None, int]]
) -> tuple[str, int]:
    name, at = string(data, at)
    if name is None:
        raise _UnusualError
    return name, at


def _topic_id(data: bytes, at: int) -> tuple[UUID | None, int]:
    end = at + _ID_BYTES
    if end > len(data):
        raise _UnusualError
    content = data[at:end]
    return None if content == _NO_ID else UUID(bytes=content), end


@lru_cache(maxsize=256)
def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


# Responses.

Key = tuple[str | UUID, int]
"""A partition as its client names it: the topic's name, or its id, and the number."""


class NodeEndpoint(NamedTuple):
    """A broker's address."""

    node_id: int
    host: str
    port: int
    rack: str | None


class LeaderHints(NamedTuple):
    """The leaders and epochs of partitions that other brokers lead, and the addresses of these."""

    leaders: Mapping[Key, tuple[int, int]]
    endpoints: tuple[NodeEndpoint, ...]


NO_HINTS = LeaderHints({}, ())

R = TypeVar("R", PartitionProduceResponse, PartitionFetchResponse)
_APPENDED = struct.Struct(">ihqq")
_APPENDED_AND_START = struct.Struct(">ihqqq")
_FETCHED = struct.Struct(">ihqq")
_FETCHED_AND_START = struct.Struct(">ihqqq")
_FETCH_HEAD = struct.Struct(">ihi")
_TRANSACTION = struct.Struct(">qq")
_DIVERGING = struct.Struct(">BBiqB")  # the field's number, its bytes, the field, no tagged fields
_ERROR_ONLY = struct.Struct(">ih")  # no throttle time, the error
_NO_ASSIGNMENT = struct.Struct(">iibB")  # epoch, interval, null, no tagged fields
_FETCH_LEADER = struct.Struct(">BBiiB")
_LEADER = struct.Struct(">BBBiiB")  # one field, as above
_PRODUCE_HINTS = 10
_MAX_CACHED = 1_024
_FETCH_ENDPOINTS = 16


class _Writing(NamedTuple):
    """The writers of strings and lengths, and the end of each structure."""

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
    if number <= 0x7F:
        return _ONE_BYTE[number]
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


_ONE_BYTE = [bytes((number,)) for number in range(0x80)]

# Requests name the same few topics again and again.
_WRITE_PLAIN = _Writing(lru_cache(_MAX_CACHED)(_write_plain_string), _INT.pack, b"")
_WRITE_COMPACT = _Writing(
    lru_cache(_MAX_CACHED)(_write_compact_string), _write_compact_length, b"\0"
)


class FixedLayout:
    """A response that has a fixed layout, and the fields from which the general codec builds it.

    The connection encodes it; a fault that alters it needs its fields. It is no abstract class in
    Python's terms: each response is asked whether it is one, and of those that takes much longer.
    """

    __slots__ = ()

    def encode(self, version: int) -> bytes:
        """Return the body of the response, in a version of its API."""
        raise NotImplementedError

    def fields(self) -> Mapping[str, Any]:
        """Return the fields by their names in `kio`, those of all versions."""
        raise NotImplementedError


@dataclass(slots=True)
class ProduceResponse(FixedLayout):
    """The response to a Produce.

    Args:
        responses: by the names of the topics, or by their ids, as the request's version has it.
        hints: the leaders of partitions that other brokers lead.
        throttle_ms: how long the client is to wait, in milliseconds.
    """

    responses: Mapping[Key, PartitionProduceResponse]
    hints: LeaderHints = NO_HINTS
    throttle_ms: int = 0

    def encode(self, version: int) -> bytes:
        """Return the body of the response. O(partitions)."""
        string, length, end = _WRITE_COMPACT if version >= _PRODUCE_FLEXIBLE else _WRITE_PLAIN
        topics = _by_topic(self.responses)
        parts = [length(len(topics))]
        for topic, partitions in topics.items():
            name = string(topic) if isinstance(topic, str) else topic.bytes
            parts += name, length(len(partitions))
            for partition, response in partitions:
                error, base_offset = response.error, response.base_offset
                time_ms = response.append_time_ms
                if version < 5:
                    parts.append(_APPENDED.pack(partition, error, base_offset, time_ms))
                    continue
                start = response.log_start_offset
                parts.append(
                    _APPENDED_AND_START.pack(partition, error, base_offset, time_ms, start)
                )
                if version >= 8:
                    parts.append(length(len(response.record_errors)))
                    for batch_index, message in response.record_errors:
                        parts += _INT.pack(batch_index), string(message), end
                    parts.append(string(response.message))
                    leader = self.hints.leaders.get((topic, partition))
                    has_leader_hint = leader is not None and version >= _PRODUCE_HINTS
                    parts.append(
                        _LEADER.pack(1, 0, 9, *leader, 0) if has_leader_hint and leader else end
                    )
            parts.append(end)
        endpoints = self.hints.endpoints if version >= _PRODUCE_HINTS else ()
        parts += _INT.pack(self.throttle_ms), _endpoints(endpoints) or end
        return b"".join(parts)

    def fields(self) -> Mapping[str, Any]:
        def partition_fields(key: Key, response: PartitionProduceResponse) -> dict[str, Any]:
            time_ms = response.append_time_ms
            return {
                **_leader_fields(self.hints, key),
                "index": key[1],
                "error_code": response.error,
                "base_offset": response.base_offset,
                "log_append_time": None if time_ms < 0 else time_ms,
                "log_start_offset": response.log_start_offset,
                "record_errors": [
                    {"batch_index": number, "batch_index_error_message": message}
                    for number, message in response.record_errors
                ],
                "error_message": response.message,
            }

        return {
            "responses": _topic_fields(self.responses, "partition_responses", partition_fields),
            "throttle_time": self.throttle_ms,
            "node_endpoints": [endpoint._asdict() for endpoint in self.hints.endpoints],
        }


@dataclass(slots=True)
class FetchResponse(FixedLayout):
    """The response to a Fetch.

    Args:
        responses: by the names of the topics, or by their ids, as the request's version has it.
        session_id: the id of the fetch session; 0: there is none.
        error: the error of the whole request.
        hints: the leaders of partitions that other brokers lead.
        throttle_ms: how long the client is to wait, in milliseconds.
        lists_aborted: whether the client asked for committed records alone. Without a list of
            aborted transactions, that of a partition is null.
    """

    responses: Mapping[Key, PartitionFetchResponse]
    session_id: int = 0
    error: int = 0
    hints: LeaderHints = NO_HINTS
    throttle_ms: int = 0
    lists_aborted: bool = True

    def encode(self, version: int) -> bytes:
        """Return the body of the response. O(bytes)."""
        string, length, end = _WRITE_COMPACT if version >= _FETCH_FLEXIBLE else _WRITE_PLAIN
        topics = _by_topic(self.responses)
        head = _FETCH_HEAD.pack(self.throttle_ms, self.error, self.session_id)
        parts = [head if version >= 7 else head[:4], length(len(topics))]
        for topic, partitions in topics.items():
            parts += _topic(topic, string), length(len(partitions))
            for partition, response in partitions:
                numbers = (
                    partition,
                    response.error,
                    response.high_watermark,
                    response.last_stable_offset,
                )
                if version < 5:
                    parts.append(_FETCHED.pack(*numbers))
                else:
                    parts.append(_FETCHED_AND_START.pack(*numbers, response.log_start_offset))
                transactions = self._aborted_transactions(response)
                parts.append(length(-1 if transactions is None else len(transactions)))
                for aborted in transactions or ():
                    parts += _TRANSACTION.pack(aborted.producer_id, aborted.first_offset), end
                if version >= 11:
                    parts.append(_INT.pack(response.preferred_replica))
                records = _records(response)
                parts += length(len(records)), records
                leader = self.hints.leaders.get((topic, partition))
                if end and (response.diverging_epoch is not None or leader is not None):
                    parts += _fetch_tags(response.diverging_epoch, leader)
                else:
                    parts.append(end)
            parts.append(end)
        parts.append(_endpoints(self.hints.endpoints if version >= _FETCH_ENDPOINTS else ()) or end)
        return b"".join(parts)

    def fields(self) -> Mapping[str, Any]:
        def partition_fields(key: Key, response: PartitionFetchResponse) -> dict[str, Any]:
            transactions = self._aborted_transactions(response)
            values = {
                **_leader_fields(self.hints, key),
                "partition_index": key[1],
                "error_code": response.error,
                "high_watermark": response.high_watermark,
                "last_stable_offset": response.last_stable_offset,
                "log_start_offset": response.log_start_offset,
                "aborted_transactions": None
                if transactions is None
                else [
                    {"producer_id": aborted.producer_id, "first_offset": aborted.first_offset}
                    for aborted in transactions
                ],
                "preferred_read_replica": response.preferred_replica,
                "records": _records(response),
            }
            if response.diverging_epoch is not None:
                epoch, end_offset = response.diverging_epoch
                values["diverging_epoch"] = {"epoch": epoch, "end_offset": end_offset}
            return values

        return {
            "throttle_time": self.throttle_ms,
            "error_code": self.error,
            "session_id": self.session_id,
            "responses": _topic_fields(self.responses, "partitions", partition_fields),
            "node_endpoints": [endpoint._asdict() for endpoint in self.hints.endpoints],
        }

    def _aborted_transactions(
        self, response: PartitionFetchResponse
    ) -> Sequence[AbortedTransaction] | None:
        """Return a partition's list, None for null; as in Kafka, it is empty where the partition
        was not looked for."""
        if self.error:
            return ()
        if response.error is ErrorCode.NONE and self.lists_aborted:
            return response.aborted_transactions
        return () if response.error in _NOT_LOOKED_FOR else None


_NOT_LOOKED_FOR = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}


def _records(response: PartitionFetchResponse) -> bytes:
    records = encode_batches(response.batches)
    return records + response.cut_batch if response.cut_batch else records


def _leader_fields(hints: LeaderHints, key: Key) -> dict[str, Any]:
    leader = hints.leaders.get(key)
    if leader is None:
        return {}
    leader_id, leader_epoch = leader
    return {"current_leader": {"leader_id": leader_id, "leader_epoch": leader_epoch}}


def _topic_fields(
    responses: Mapping[Key, R], array: str, partition_fields: Callable[[Key, R], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the topics of a response; each version takes the name or the id."""
    return [
        {
            "name": topic,
            "topic": topic,
            "topic_id": topic,
            array: [partition_fields((topic, number), response) for number, response in partitions],
        }
        for topic, partitions in _by_topic(responses).items()
    ]


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


def _by_topic(responses: Mapping[Key, R]) -> dict[str | UUID, list[tuple[int, R]]]:
    if len(responses) == 1:
        ((topic, partition),) = responses
        return {topic: [(partition, responses[topic, partition])]}
    topics: dict[str | UUID, list[tuple[int, R]]] = {}
    for (topic, partition), response in responses.items():
        topics.setdefault(topic, []).append((partition, response))
    return topics


@dataclass(slots=True)
class HeartbeatResponse(FixedLayout):
    """The response to a ConsumerGroupHeartbeat without a new assignment."""

    result: ConsumerGroupHeartbeatResult
    interval_ms: int

    def encode(self, version: int) -> bytes:
        """Return the body of the response."""
        result = self.result
        assert result.assignment is None, "the layout has no assignment"
        return (
            _ERROR_ONLY.pack(0, result.error)
            + _write_compact_string(result.message)
            + _write_compact_string(result.member_id)
            + _NO_ASSIGNMENT.pack(result.epoch, self.interval_ms, -1, 0)
        )

    def fields(self) -> Mapping[str, Any]:
        result = self.result
        return {
            "throttle_time": 0,
            "error_code": result.error,
            "error_message": result.message,
            "member_id": result.member_id,
            "member_epoch": result.epoch,
            "heartbeat_interval": self.interval_ms,
            "assignment": None,
        }
