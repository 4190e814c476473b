"""Fields of Kafka's flexible versions, as bytes: lengths are one more than they are, 0 is null, and
each structure ends with tagged fields.


Records of consumer groups as bytes, in Kafka's own layout of the topic `__consumer_offsets`.

Keys begin with the kind of the record, and have strings of the old kind. Values are of version 0
and flexible: lengths are one more than they are, 0 is null, and each structure ends with tagged
fields, of which none is known here.


Committed offsets as records, in Kafka's own layout of the topic `__consumer_offsets`.

The key names group, topic and partition; the value has the offset, or is null where it was deleted.
They are replicated, stored and fetched like any records, so that the next leader of their partition
has them all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from kio.records.readers import read_batch

from purgatory.cluster.records import new_batch
from purgatory.kafka import CommittedOffset, OffsetKey, ProducerIdentity, RecordBatch, StoredEntry
from purgatory.kafka.groups.consumer_group_member import (
    CurrentAssignment,
    GroupRecordKey,
    GroupRecordValue,
    MemberState,
    RecordKind,
    Subscription,
)
from purgatory.kafka.topic_partition import NO_PARTITIONS, Partitions, TopicIdPartition, by_topic

NO_TAGS = b"\0"


class Writer:
    """Writes the fields of a flexible version one after the other."""

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, layout: str, *numbers: int) -> None:
        self.data += struct.pack(layout, *numbers)

    def varint(self, number: int) -> None:
        while number >= 0x80:
            self.data.append(number & 0x7F | 0x80)
            number >>= 7
        self.data.append(number)

    def length(self, length: int) -> None:
        self.varint(length + 1)

    def string(self, text: str | None) -> None:
        self.bytes(None if text is None else text.encode())

    def bytes(self, data: bytes | None) -> None:
        if data is None:
            self.varint(0)
        else:
            self.length(len(data))
            self.data += data


class Reader:
    """Reads what `Writer` wrote, or Kafka."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def raw(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.raw(struct.calcsize(layout)))

    def varint(self) -> int:
        number = place = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << place
            place += 7
            if byte < 0x80:
                return number

    def length(self) -> int:
        return self.varint() - 1

    def string(self) -> str | None:
        data = self.bytes()
        return None if data is None else data.decode()

    def bytes(self) -> bytes | None:
        length = self.length()
        return None if length < 0 else self.raw(length)

    def old_string(self) -> str:
        return self.raw(self.numbers(">h")[0]).decode()

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.raw(self.varint())


_OF_MEMBERS = (RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT)

_SHARE_NUMBERS = {
    RecordKind.MEMBER: 10,
    RecordKind.GROUP_EPOCH: 11,
    RecordKind.TARGET_EPOCH: 12,
    RecordKind.TARGET: 13,
    RecordKind.CURRENT: 14,
}

_SHARE_KINDS = {number: kind for kind, number in _SHARE_NUMBERS.items()}
_SHORT = struct.Struct(">h")


def encode_key(key: GroupRecordKey) -> bytes:
    """Return a record's key."""
    names = [key.group_id, key.member_id] if key.kind in _OF_MEMBERS else [key.group_id]
    encoded = [name.encode() for name in names]
    number = _SHARE_NUMBERS[key.kind] if key.is_share else key.kind
    return _SHORT.pack(number) + b"".join(_SHORT.pack(len(name)) + name for name in encoded)


def decode_key(data: bytes) -> GroupRecordKey | None:
    """Return what a record's key says; None if it is no record of a consumer group."""
    number = _SHORT.unpack_from(data)[0]
    is_share = number in _SHARE_KINDS
    kind = _SHARE_KINDS.get(number, number)
    if kind not in set(RecordKind):
        return None
    reader = Reader(data, _SHORT.size)
    group_id = reader.old_string()
    member_id = reader.old_string() if kind in _OF_MEMBERS else ""
    return GroupRecordKey(group_id, RecordKind(kind), member_id, is_share)


def encode_value(value: GroupRecordValue, is_share: bool = False) -> bytes:
    """Return a record's value."""
    writer = Writer()
    writer.number(">h", 0)
    match value:
        case Subscription() if is_share:
            for text in (value.rack_id, value.client_id, value.client_host):
                writer.string(text)
            _write_names(writer, value.topic_names)
        case CurrentAssignment() if is_share:
            writer.number(">iib", value.epoch, value.previous_epoch, value.state)
            _write_partitions(writer, value.assigned)
        case Subscription():
            _write_subscription(writer, value)
        case CurrentAssignment():
            writer.number(">iib", value.epoch, value.previous_epoch, value.state)
            _write_partitions(writer, value.assigned)
            _write_partitions(writer, value.revoking)
        case frozenset():
            _write_partitions(writer, value)
        case _:
            writer.number(">i", value)
    writer.data += NO_TAGS
    return bytes(writer.data)


def decode_value(kind: RecordKind, data: bytes, is_share: bool = False) -> GroupRecordValue:
    """Return what a record's value says."""
    reader = Reader(data, _SHORT.size)
    if kind is RecordKind.MEMBER:
        return _read_share_member(reader) if is_share else _read_subscription(reader)
    if kind is RecordKind.TARGET:
        return _read_partitions(reader)
    if kind is RecordKind.CURRENT:
        epoch, previous_epoch, state = reader.numbers(">iib")
        assigned = _read_partitions(reader)
        revoking = NO_PARTITIONS if is_share else _read_partitions(reader)
        return CurrentAssignment(epoch, previous_epoch, MemberState(state), assigned, revoking)
    return int(reader.numbers(">i")[0])


def _write_subscription(writer: Writer, said: Subscription) -> None:
    for text in (said.instance_id, said.rack_id, said.client_id, said.client_host):
        writer.string(text)
    _write_names(writer, said.topic_names)
    writer.string(said.topic_regex)
    writer.number(">i", said.rebalance_timeout_ms)
    writer.string(said.assignor)


def _read_subscription(reader: Reader) -> Subscription:
    instance_id, rack_id = reader.string(), reader.string()
    client_id, client_host = reader.string() or "", reader.string() or ""
    names = _read_names(reader)
    regex = reader.string()
    rebalance_timeout_ms = reader.numbers(">i")[0]
    assignor = reader.string()
    return Subscription(
        instance_id,
        rack_id,
        client_id,
        client_host,
        names,
        regex,
        rebalance_timeout_ms,
        assignor,
    )


def _read_share_member(reader: Reader) -> Subscription:
    rack_id, client_id, client_host = reader.string(), reader.string(), reader.string()
    return Subscription(
        rack_id=rack_id,
        client_id=client_id or "",
        client_host=client_host or "",
        topic_names=_read_names(reader),
    )


def _write_names(writer: Writer, names: Sequence[str]) -> None:
    writer.length(len(names))
    for name in names:
        writer.string(name)


def _read_names(reader: Reader) -> tuple[str, ...]:
    return tuple(reader.string() or "" for _ in range(reader.length()))


def _write_partitions(writer: Writer, partitions: Partitions) -> None:
    topics = by_topic(partitions)
    writer.length(len(topics))
    for topic_id, numbers in topics.items():
        writer.data += topic_id.bytes
        writer.length(len(numbers))
        writer.number(f">{len(numbers)}i", *numbers)
        writer.data += NO_TAGS


def _read_partitions(reader: Reader) -> Partitions:
    partitions: list[TopicIdPartition] = []
    for _ in range(reader.length()):
        topic_id = UUID(bytes=reader.raw(16))
        numbers = reader.numbers(f">{reader.length()}i")
        partitions += [TopicIdPartition(topic_id, number) for number in numbers]
        reader.skip_tags()
    return frozenset(partitions)


StoredKey = OffsetKey | GroupRecordKey
_KEY_VERSION = 1
_VALUE_VERSION = 3


class OffsetsRecords:
    """The codec of committed offsets and of consumer groups, for `GroupManager`."""

    def batch(
        self, entries: Sequence[StoredEntry], producer: ProducerIdentity | None = None
    ) -> RecordBatch:
        """Return a batch that says what is so; what is None is deleted."""
        return new_batch(
            [
                (
                    encode_key(key) if isinstance(key, GroupRecordKey) else _encode_key(key),
                    None if value is None else _encoded(key, value),
                )
                for key, value in entries
            ],
            producer,
        )

    def entries(self, batch: RecordBatch) -> Iterator[StoredEntry]:
        """Yield what a batch commits and deletes, in its order."""
        for record in read_batch(batch.to_bytes(), 0)[0].records:
            if record.key is None:
                continue
            if _SHORT.unpack_from(record.key)[0] == _KEY_VERSION:
                committed = None if record.value is None else _decode_value(record.value)
                yield _decode_key(record.key), committed
                continue
            key = decode_key(record.key)
            if key is not None:
                value = record.value
                said = None if value is None else decode_value(key.kind, value, key.is_share)
                yield key, said


def _encoded(key: StoredKey, value: CommittedOffset | GroupRecordValue) -> bytes:
    if isinstance(value, CommittedOffset):
        return _encode_value(value)
    return encode_value(value, isinstance(key, GroupRecordKey) and key.is_share)


def _encode_key(key: OffsetKey) -> bytes:
    return (
        _SHORT.pack(_KEY_VERSION)
        + _string(key.group_id)
        + _string(key.topic)
        + struct.pack(">i", key.partition)
    )


def _decode_key(data: bytes) -> OffsetKey:
    group_id, at = _read_string(data, _SHORT.size)
    topic, at = _read_string(data, at)
    return OffsetKey(group_id, topic, struct.unpack_from(">i", data, at)[0])


def _encode_value(committed: CommittedOffset) -> bytes:
    return (
        struct.pack(">hqi", _VALUE_VERSION, committed.offset, committed.leader_epoch)
        + _string(committed.metadata)
        + struct.pack(">q", committed.commit_ms)
    )


def _decode_value(data: bytes) -> CommittedOffset:
    _, offset, leader_epoch = struct.unpack_from(">hqi", data)
    metadata, at = _read_string(data, 14)
    return CommittedOffset(offset, leader_epoch, metadata, struct.unpack_from(">q", data, at)[0])


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    end = at + _SHORT.size + _SHORT.unpack_from(data, at)[0]
    return data[at + _SHORT.size : end].decode(), end
