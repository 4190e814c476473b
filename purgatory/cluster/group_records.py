"""Records of consumer groups as bytes, in Kafka's own layout of the topic `__consumer_offsets`.

Keys begin with the kind of the record, and have strings of the old kind. Values are of version 0
and flexible: lengths are one more than they are, 0 is null, and each structure ends with tagged
fields; of these the one is known that tells what a member of the classic protocol said.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import UUID

from purgatory.cluster.flexible_fields import NO_TAGS, Reader, Writer
from purgatory.kafka.groups.consumer_group_member import (
    ClassicMember,
    CurrentAssignment,
    GroupRecordKey,
    GroupRecordValue,
    MemberState,
    RecordKind,
    Subscription,
)
from purgatory.kafka.topic_partition import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
    by_topic,
)

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
_CLASSIC_TAG = 0


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
    if not (isinstance(value, Subscription) and value.classic and not is_share):
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
    if said.classic is not None:
        classic = Writer()
        classic.data += b"\x01"  # it is not null
        classic.number(">i", said.classic.session_timeout_ms)
        classic.length(len(said.classic.protocols))
        for protocol, metadata in said.classic.protocols:
            classic.string(protocol)
            classic.bytes(metadata)
            classic.data += NO_TAGS
        classic.data += NO_TAGS
        writer.varint(1)
        writer.varint(_CLASSIC_TAG)
        writer.varint(len(classic.data))
        writer.data += classic.data


def _read_subscription(reader: Reader) -> Subscription:
    instance_id, rack_id = reader.string(), reader.string()
    client_id, client_host = reader.string() or "", reader.string() or ""
    names = _read_names(reader)
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


def _read_classic(reader: Reader) -> ClassicMember:
    session_timeout_ms = reader.numbers(">i")[0]
    protocols = []
    for _ in range(reader.length()):
        protocols.append((reader.string() or "", reader.bytes() or b""))
        reader.skip_tags()
    return ClassicMember(session_timeout_ms, tuple(protocols))


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
