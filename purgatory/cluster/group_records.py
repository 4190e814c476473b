"""Records of consumer groups as bytes, in Kafka's own layout of the topic `__consumer_offsets`.

Keys begin with the kind of the record, and have strings of the old kind. Values are of version 0
and flexible: lengths are one more than they are, 0 is null, and each structure ends with tagged
fields; of these the one is known that tells what a member of the classic protocol said.
"""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from purgatory.kafka.consumer_groups.consumer_member import (
    ClassicMember,
    CurrentAssignment,
    MemberState,
    Subscription,
)
from purgatory.kafka.consumer_groups.group_record import (
    GroupRecordKey,
    GroupRecordValue,
    RecordKind,
)
from purgatory.kafka.consumer_groups.topic_id_partition import (
    Partitions,
    TopicIdPartition,
    by_topic,
)

_OF_MEMBERS = (RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT)
_SHORT = struct.Struct(">h")
_NO_TAGS = b"\0"
_CLASSIC_TAG = 0


def encode_key(key: GroupRecordKey) -> bytes:
    """Return a record's key."""
    names = [key.group_id, key.member_id] if key.kind in _OF_MEMBERS else [key.group_id]
    encoded = [name.encode() for name in names]
    return _SHORT.pack(key.kind) + b"".join(_SHORT.pack(len(name)) + name for name in encoded)


def decode_key(data: bytes) -> GroupRecordKey | None:
    """Return what a record's key says; None if it is no record of a consumer group."""
    kind = _SHORT.unpack_from(data)[0]
    if kind not in set(RecordKind):
        return None
    reader = _Reader(data, _SHORT.size)
    group_id = reader.old_string()
    return GroupRecordKey(
        group_id, RecordKind(kind), reader.old_string() if kind in _OF_MEMBERS else ""
    )


def encode_value(value: GroupRecordValue) -> bytes:
    """Return a record's value."""
    writer = _Writer()
    writer.number(">h", 0)
    match value:
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
    if not (isinstance(value, Subscription) and value.classic):
        writer.data += _NO_TAGS
    return bytes(writer.data)


def decode_value(kind: RecordKind, data: bytes) -> GroupRecordValue:
    """Return what a record's value says."""
    reader = _Reader(data, _SHORT.size)
    if kind is RecordKind.MEMBER:
        return _read_subscription(reader)
    if kind is RecordKind.TARGET:
        return _read_partitions(reader)
    if kind is RecordKind.CURRENT:
        epoch, previous_epoch, state = reader.numbers(">iib")
        assigned, revoking = _read_partitions(reader), _read_partitions(reader)
        return CurrentAssignment(epoch, previous_epoch, MemberState(state), assigned, revoking)
    return int(reader.numbers(">i")[0])


def _write_subscription(writer: _Writer, said: Subscription) -> None:
    for text in (said.instance_id, said.rack_id, said.client_id, said.client_host):
        writer.string(text)
    writer.length(len(said.topic_names))
    for name in said.topic_names:
        writer.string(name)
    writer.string(said.topic_regex)
    writer.number(">i", said.rebalance_timeout_ms)
    writer.string(said.assignor)
    if said.classic is not None:
        classic = _Writer()
        classic.data += b"\x01"  # it is not null
        classic.number(">i", said.classic.session_timeout_ms)
        classic.length(len(said.classic.protocols))
        for protocol, metadata in said.classic.protocols:
            classic.string(protocol)
            classic.bytes(metadata)
            classic.data += _NO_TAGS
        classic.data += _NO_TAGS
        writer.varint(1)
        writer.varint(_CLASSIC_TAG)
        writer.varint(len(classic.data))
        writer.data += classic.data


def _read_subscription(reader: _Reader) -> Subscription:
    instance_id, rack_id = reader.string(), reader.string()
    client_id, client_host = reader.string() or "", reader.string() or ""
    names = tuple(reader.string() or "" for _ in range(reader.length()))
    regex = reader.string()
    rebalance_timeout_ms = reader.numbers(">i")[0]
    assignor = reader.string()
    classic = None
    for _ in range(reader.varint()):
        tag, size = reader.varint(), reader.varint()
        end = reader.at + size
        if tag == _CLASSIC_TAG and reader.numbers(">b")[0] == 1:
            classic = _read_classic(reader)
        reader.at = end
    return Subscription(
        instance_id,
        rack_id,
        client_id,
        client_host,
        names,
        regex,
        rebalance_timeout_ms,
        assignor,
        classic,
    )


def _read_classic(reader: _Reader) -> ClassicMember:
    session_timeout_ms = reader.numbers(">i")[0]
    protocols = []
    for _ in range(reader.length()):
        protocols.append((reader.string() or "", reader.bytes() or b""))
        reader.skip_tags()
    return ClassicMember(session_timeout_ms, tuple(protocols))


def _write_partitions(writer: _Writer, partitions: Partitions) -> None:
    topics = by_topic(partitions)
    writer.length(len(topics))
    for topic_id, numbers in topics.items():
        writer.data += topic_id.bytes
        writer.length(len(numbers))
        writer.number(f">{len(numbers)}i", *numbers)
        writer.data += _NO_TAGS


def _read_partitions(reader: _Reader) -> Partitions:
    partitions: list[TopicIdPartition] = []
    for _ in range(reader.length()):
        topic_id = UUID(bytes=reader.raw(16))
        numbers = reader.numbers(f">{reader.length()}i")
        partitions += [TopicIdPartition(topic_id, number) for number in numbers]
        reader.skip_tags()
    return frozenset(partitions)


class _Writer:
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


class _Reader:
    """Reads what `_Writer` wrote, or Kafka."""

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
