"""What nearly all requests of clients are, read by layouts written out: Produce, Fetch,
ConsumerGroupHeartbeat without news, AddPartitionsToTxn (of one transaction) and EndTxn.

The codec of all other APIs (`wire`) goes over each field by its description, and then makes objects
that check themselves; that costs more than to append a record. Here a run of numbers is one
`Struct`, and where versions differ stands at each field.

A request that is in any way unusual is left to that codec, which understands or refuses it: one
that is cut off or too long, with null where nothing may be null, with tagged fields, forgotten
topics, or arrays of more than ``_FEW`` elements; a sign of life of a member with news. What is read
here has the names and the values that it has there.

Ground rules
------------
* No state but a cache of durations.
* Offsets only grow, and each element of an array takes bytes of the frame, so reading takes
  O(bytes) at most, whatever an array claims to have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

PRODUCE_FLEXIBLE = 9
FETCH_FLEXIBLE = 12
END_FLEXIBLE = 3
END_RAISES = 5
"""The version of EndTxn from which on it raises the producer's epoch."""
"""From these versions on lengths are compact, and structures end with tagged fields."""
PRODUCE_BY_IDS = 13
FETCH_BY_IDS = 13
"""From these versions on topics are named by their ids."""
_FETCH_WITHOUT_REPLICA = 15  # from there on the follower that asks stands in a tagged field
_FEW = 400  # squared, for topics with their partitions, it is below `frame_check.MOST_ELEMENTS`
_HEADER_BYTES = 8  # the API, its version, the request's number
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_ONE_TOPIC = struct.Struct(">hiih")  # acks, timeout, topics, the name's length
_ONE_PARTITION = struct.Struct(">iii")  # partitions, index, the records' length
_NO_STRING = b"\xff\xff"
_FETCH_TERMS = struct.Struct(">iiiib")
_CONSUMER = struct.pack(">i", -1)
_ID_BYTES = 16
_NO_ID = bytes(_ID_BYTES)
_SESSION = struct.Struct(">ii")
PRODUCER = struct.Struct(">qh")
_ADDED_TO_ONE = 3  # up to this version partitions are added to one transaction


@dataclass(slots=True)
class ProducedPartition:
    """What a produce has for one partition."""

    index: int
    records: bytes | None


@dataclass(slots=True)
class ProducedTopic:
    """What a produce has for one topic."""

    name: str
    partition_data: tuple[ProducedPartition, ...]


@dataclass(slots=True)
class ProducedTopicById:
    """What a produce has for one topic, named by its id; None stands for the id 0."""

    topic_id: UUID | None
    partition_data: tuple[ProducedPartition, ...]


@dataclass(slots=True)
class ProduceBody:
    """A produce."""

    transactional_id: str | None
    acks: int
    timeout: timedelta
    topic_data: tuple[ProducedTopic | ProducedTopicById, ...]


@dataclass(slots=True)
class FetchedPartition:
    """What a fetch asks of one partition."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    replica_directory_id: None = None
    high_watermark: int = 2**63 - 1


@dataclass(slots=True)
class FetchedTopic:
    """What a fetch asks of one topic."""

    topic: str
    partitions: tuple[FetchedPartition, ...]


@dataclass(slots=True)
class FetchedTopicById:
    """What a fetch asks of one topic, named by its id; None stands for the id 0."""

    topic_id: UUID | None
    partitions: tuple[FetchedPartition, ...]


@dataclass(slots=True, frozen=True)
class ReplicaState:
    """The follower that fetches: none does, by the wire."""

    replica_id: int = -1
    replica_epoch: int = -1


_NO_FOLLOWER = ReplicaState()


@dataclass(slots=True)
class FetchBody:
    """A fetch."""

    replica_id: int
    max_wait: timedelta
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: tuple[FetchedTopic | FetchedTopicById, ...]
    rack_id: str
    forgotten_topics_data: tuple[()] = ()
    cluster_id: None = None
    replica_state: ReplicaState = _NO_FOLLOWER


@dataclass(slots=True)
class HeartbeatBody:
    """A sign of life of a member of a consumer group that has nothing new to say."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: None = None
    rebalance_timeout: timedelta = timedelta(milliseconds=-1)
    subscribed_topic_names: None = None
    subscribed_topic_regex: None = None
    server_assignor: None = None
    topic_partitions: None = None


@dataclass(slots=True)
class AddedTopic:
    """Partitions of one topic that a transaction is to have."""

    name: str
    partitions: tuple[int, ...]


@dataclass(slots=True)
class AddPartitionsBody:
    """Partitions that a transaction is to have."""

    v3_and_below_transactional_id: str
    v3_and_below_producer_id: int
    v3_and_below_producer_epoch: int
    v3_and_below_topics: tuple[AddedTopic, ...]


@dataclass(slots=True)
class EndTransactionBody:
    """The end of a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


class _UnusualError(Exception):
    """The other codec is to say what this is."""


class _Reading(NamedTuple):
    """How strings and lengths are read: each returns where it ends. ``flexible``: whether tagged
    fields stand at the end of each structure."""

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


def read_request(api_key: int, version: int, frame: bytes) -> tuple[str | None, Body] | None:
    """Return the client's id and the body of a usual request of these APIs; None for all else.

    Args:
        api_key, version: as the frame says; one that is served.
        frame: without its length.
    """
    known = _READERS.get(api_key)
    if known is None:
        return None
    read, flexible_since = known
    reading = _COMPACT if version >= flexible_since else _PLAIN
    try:
        client_id, at = _plain_string(frame, _HEADER_BYTES)
        if reading.flexible:
            at = _after_tags(frame, at)
        body, at = read(frame, at, version, reading)
    except (_UnusualError, IndexError, UnicodeDecodeError, struct.error):
        return None
    return (client_id, body) if at == len(frame) else None


Body = ProduceBody | FetchBody | HeartbeatBody | AddPartitionsBody | EndTransactionBody
_ReadBody = Callable[[bytes, int, int, _Reading], tuple[Body, int]]


def _read_produce(
    frame: bytes, at: int, version: int, reading: _Reading
) -> tuple[ProduceBody, int]:
    string, length, flexible = reading
    if not flexible:
        alone = _read_one_partition(frame, at)
        if alone is not None:
            return alone, len(frame)
    transactional_id, at = string(frame, at)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, at)
    topics: list[ProducedTopic | ProducedTopicById] = []
    topic_count, at = length(frame, at + 6)
    if not 0 <= topic_count <= _FEW:
        raise _UnusualError
    for _ in range(topic_count):
        by_id = version >= PRODUCE_BY_IDS
        name, at = _topic_id(frame, at) if by_id else _text(frame, at, string)
        partition_count, at = length(frame, at)
        if not 0 <= partition_count <= _FEW:
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
    """Read a produce for one partition, with few looks; None if it has more. Most have no more, and
    their number is what a broker's time goes into."""
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


_ASKED = {
    version: struct.Struct(
        ">i" + "i" * (version >= 9) + "q" + "i" * (version >= 12) + "q" * (version >= 5) + "i"
    )
    for version in range(4, 19)
}


def _read_fetch(frame: bytes, at: int, version: int, reading: _Reading) -> tuple[FetchBody, int]:
    string, length, flexible = reading
    if version >= _FETCH_WITHOUT_REPLICA:
        terms = _CONSUMER + frame[at : at + _FETCH_TERMS.size - len(_CONSUMER)]
        at -= len(_CONSUMER)
    else:
        terms = frame[at : at + _FETCH_TERMS.size]
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation = _FETCH_TERMS.unpack(terms)
    at += _FETCH_TERMS.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(frame, at)
        at += _SESSION.size
    asked = _ASKED[version]
    by_id = version >= FETCH_BY_IDS
    topics: list[FetchedTopic | FetchedTopicById] = []
    topic_count, at = length(frame, at)
    if not 0 <= topic_count <= _FEW:
        raise _UnusualError
    for _ in range(topic_count):
        name, at = _topic_id(frame, at) if by_id else _text(frame, at, string)
        partition_count, at = length(frame, at)
        if not 0 <= partition_count <= _FEW:
            raise _UnusualError
        partitions = []
        for _ in range(partition_count):
            partitions.append(_fetched_partition(version, asked.unpack_from(frame, at)))
            at += asked.size
            if flexible:
                at = _after_tags(frame, at)
        topics.append(
            FetchedTopic(name, tuple(partitions))
            if isinstance(name, str)
            else FetchedTopicById(name, tuple(partitions))
        )
        if flexible:
            at = _after_tags(frame, at)
    rack_id: str | None = ""
    if version >= 7:
        forgotten, at = length(frame, at)
        if forgotten:
            raise _UnusualError
    if version >= 11:
        rack_id, at = string(frame, at)
    if rack_id is None:
        raise _UnusualError
    if flexible:
        at = _after_tags(frame, at)
    duration = _duration(max_wait_ms)
    limits = min_bytes, max_bytes, isolation, session_id, session_epoch
    return FetchBody(replica_id, duration, *limits, tuple(topics), rack_id), at


# No rack, timeout, topics, assignor and partitions; from version 1 on no expression; and no tags.
_NO_NEWS = {version: b"\0\xff\xff\xff\xff" + bytes(4 + version) for version in (0, 1)}


def _read_heartbeat(
    frame: bytes, at: int, version: int, reading: _Reading
) -> tuple[HeartbeatBody, int]:
    group_id, at = _compact_string(frame, at)
    member_id, at = _compact_string(frame, at)
    (epoch,) = _INT.unpack_from(frame, at)
    instance_id, at = _compact_string(frame, at + 4)
    if group_id is None or member_id is None or frame[at:] != _NO_NEWS[version]:
        raise _UnusualError
    return HeartbeatBody(group_id, member_id, epoch, instance_id), len(frame)


def _read_added(
    frame: bytes, at: int, version: int, reading: _Reading
) -> tuple[AddPartitionsBody, int]:
    string, length, flexible = reading
    if version > _ADDED_TO_ONE:
        raise _UnusualError
    transactional_id, at = _text(frame, at, string)
    producer_id, epoch = PRODUCER.unpack_from(frame, at)
    topics = []
    topic_count, at = length(frame, at + PRODUCER.size)
    if not 0 <= topic_count <= _FEW:
        raise _UnusualError
    for _ in range(topic_count):
        name, at = _text(frame, at, string)
        count, at = length(frame, at)
        if not 0 <= count <= _FEW:
            raise _UnusualError
        topics.append(AddedTopic(name, struct.unpack_from(f">{count}i", frame, at)))
        at += _INT.size * count
        if flexible:
            at = _after_tags(frame, at)
    if flexible:
        at = _after_tags(frame, at)
    return AddPartitionsBody(transactional_id, producer_id, epoch, tuple(topics)), at


def _read_end(
    frame: bytes, at: int, version: int, reading: _Reading
) -> tuple[EndTransactionBody, int]:
    transactional_id, at = _text(frame, at, reading.string)
    producer_id, epoch = PRODUCER.unpack_from(frame, at)
    at += PRODUCER.size
    committed = frame[at]
    if committed > 1:
        raise _UnusualError
    after = _after_tags(frame, at + 1) if reading.flexible else at + 1
    return EndTransactionBody(transactional_id, producer_id, epoch, committed == 1), after


_READERS: Mapping[int, tuple[_ReadBody, int]] = {
    0: (_read_produce, PRODUCE_FLEXIBLE),
    1: (_read_fetch, FETCH_FLEXIBLE),
    24: (_read_added, 3),
    26: (_read_end, END_FLEXIBLE),
    68: (_read_heartbeat, 0),
}
"""How each API is read, and since which version it is flexible."""


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
    given = data[at:end]
    return None if given == _NO_ID else UUID(bytes=given), end


def _fetched_partition(version: int, numbers: tuple[int, ...]) -> FetchedPartition:
    epoch = last_epoch = start = -1  # where a version hasn't got them
    if version >= 12:
        partition, epoch, offset, last_epoch, start, most_bytes = numbers
    elif version >= 9:
        partition, epoch, offset, start, most_bytes = numbers
    elif version >= 5:
        partition, offset, start, most_bytes = numbers
    else:
        partition, offset, most_bytes = numbers
    return FetchedPartition(partition, epoch, offset, last_epoch, start, most_bytes)


@lru_cache(maxsize=256)
def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)
