"""The records of Kafka's internal topics, in Kafka's own layout.

    __consumer_offsets     committed offsets, and groups of all kinds         `OffsetsRecords`
    __transaction_state    transactional ids                                  `TransactionsRecords`
    __share_group_state    share partitions, a snapshot in each record        `ShareStateRecords`

A key begins with the number of its kind, a value with its version. A null value deletes. The tables
below are their schemas, as in Kafka's message definitions.

Ground rules: no state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from uuid import UUID

from kio.records.readers import read_batch

from purgatory.cluster.record_fields import (
    COMPACT,
    INT8,
    INT16,
    INT32,
    INT64,
    INT_LENGTH,
    PLAIN_STRING,
    STRING,
    UINT16,
    UUID16,
    Array,
    Bytes,
    Nullable,
    Schema,
    Tagged,
)
from purgatory.cluster.records import new_batch, new_marker
from purgatory.cluster.streams_records import decode_streams_value, encode_streams_value
from purgatory.core.recent_errors import Logger
from purgatory.kafka import (
    CommittedOffset,
    OffsetKey,
    ProducerIdentity,
    RecordBatch,
    StoredEntry,
    TopicPartition,
    TransactionEntry,
    TransactionRecord,
    TransactionResult,
    TransactionState,
)
from purgatory.kafka.groups.consumer_group_member import (
    ClassicMetadata,
    CurrentAssignment,
    InitializedPartitions,
    MemberState,
    Subscription,
)
from purgatory.kafka.groups.group import ClassicGroupRecord, ClassicMemberRecord
from purgatory.kafka.groups.group_records import GroupRecordKey, GroupRecordValue, RecordKind
from purgatory.kafka.groups.offsets import NO_EXPIRY_MS
from purgatory.kafka.share_groups.share_state import (
    RecordState,
    ShareKey,
    ShareState,
    ShareStateEntry,
    StateBatch,
)
from purgatory.kafka.topic_partition import Partitions, TopicIdPartition, by_topic

_LOGGED_BYTES = 100
_log = Logger("purgatory.cluster")

# __consumer_offsets: committed offsets.

_OFFSET_KIND = 1
_NO_LEADER_EPOCH = -1
_OFFSET_VERSION, _EXPIRING_VERSION = 3, 1
"""The versions that are written, as by Kafka: the older one of an offset with its own expiry."""

_OFFSET_KEY = Schema(INT16, PLAIN_STRING, PLAIN_STRING, INT32)
"""Kind, group, topic, partition."""

_OFFSET_VALUE = Schema(INT16, INT64, INT32, PLAIN_STRING, INT64)
"""Version, offset, leader epoch, metadata, committed at (ms since 1970)."""

_EXPIRING_OFFSET_VALUE = Schema(INT16, INT64, PLAIN_STRING, INT64, INT64)
"""Version, offset, metadata, committed at, expires at (ms since 1970)."""

# __consumer_offsets: classic groups.


def _classic_group_value(version: int) -> Schema:
    """The fields of a version: version, type of the protocol, generation, protocol, leader, since
    when (ms since 1970); of each member its id, instance id, client id, host, rebalance timeout,
    session timeout, subscription, assignment."""
    is_flexible = version >= 4
    text, binary = (STRING, COMPACT) if is_flexible else (PLAIN_STRING, INT_LENGTH)
    member = Schema(
        text,
        *((text,) if version >= 3 else ()),
        *(text, text),
        *((INT32,) if version >= 1 else ()),
        INT32,
        *(Bytes(binary), Bytes(binary)),
        flexible=is_flexible,
    )
    return Schema(
        *(INT16, text, INT32, text, text),
        *((INT64,) if version >= 2 else ()),
        Array(binary, member),
        flexible=is_flexible,
    )


_CLASSIC_VALUES = [_classic_group_value(version) for version in range(5)]
_CLASSIC_VERSION = 3
"""The version that is written, as by Kafka, unless a text is too long for it."""

_FLEXIBLE_CLASSIC_VERSION = 4
_MAX_PLAIN_BYTES = 2**15 - 1

# __consumer_offsets: consumer groups and share groups.

_GROUP_KEY = Schema(INT16, PLAIN_STRING)
"""Kind, group."""

_MEMBER_KEY = Schema(INT16, PLAIN_STRING, PLAIN_STRING)
"""Kind, group, member."""

_MEMBER_KINDS = frozenset(
    {
        *(RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT),
        *(RecordKind.STREAMS_MEMBER, RecordKind.STREAMS_TARGET, RecordKind.STREAMS_CURRENT),
    }
)
_SHARE_NUMBERS = {
    RecordKind.MEMBER: 10,
    RecordKind.GROUP_EPOCH: 11,
    RecordKind.TARGET_EPOCH: 12,
    RecordKind.TARGET: 13,
    RecordKind.CURRENT: 14,
    RecordKind.SHARE_STATE: 15,
}
_SHARE_KINDS = {number: kind for kind, number in _SHARE_NUMBERS.items()}

_NAMES = Array(COMPACT, STRING)
_PARTITIONS = Array(COMPACT, Schema(UUID16, Array(COMPACT, INT32), flexible=True))
"""Topic ids, and the partitions of each."""

_EPOCH_VALUE = Schema(INT16, INT32, flexible=True)
"""Version, epoch."""

_CLASSIC_METADATA = Schema(
    INT32, Array(COMPACT, Schema(STRING, Bytes(COMPACT), flexible=True)), flexible=True
)
"""Session timeout; protocols, and the metadata of each."""

_MEMBER_VALUE = Schema(
    *(INT16, STRING, STRING, STRING, STRING, _NAMES, STRING, INT32, STRING),
    flexible=True,
    tags={"classic": Nullable(_CLASSIC_METADATA)},
)
"""Version, instance id, rack, client id, host, topics, expression, rebalance timeout, assignor."""

_SHARE_MEMBER_VALUE = Schema(INT16, STRING, STRING, STRING, _NAMES, flexible=True)
"""Version, rack, client id, host, topics."""

_TARGET_VALUE = Schema(INT16, _PARTITIONS, flexible=True)
"""Version, partitions."""

_OWNED = Schema(
    *(UUID16, Array(COMPACT, INT32)),
    flexible=True,
    tags={"assignment_epochs": Array(COMPACT, INT32)},
)
_OWNED_PARTITIONS = Array(COMPACT, Tagged(_OWNED))
"""Topic ids, and the partitions of each; tagged, the epochs that are not the member's."""

_CURRENT_VALUE = Schema(
    *(INT16, INT32, INT32, INT8), _OWNED_PARTITIONS, _OWNED_PARTITIONS, flexible=True
)
"""Version, epoch, previous epoch, state, assigned, revoking."""

_SHARE_CURRENT_VALUE = Schema(INT16, INT32, INT32, INT8, _PARTITIONS, flexible=True)
"""Version, epoch, previous epoch, state, assigned."""

_SHARE_STATE_VALUE = Schema(
    INT16,
    *2 * (Array(COMPACT, Schema(UUID16, STRING, Array(COMPACT, INT32), flexible=True)),),
    Array(COMPACT, Schema(UUID16, STRING, flexible=True)),
    flexible=True,
)
"""Version; topics with the partitions whose state is being initialized, and is; topics whose state
is being deleted. Only the second are written."""

# __transaction_state.

_TRANSACTION_KEY = Schema(INT16, PLAIN_STRING)
"""Kind, transactional id."""

_TRANSACTION_VALUE = Schema(
    *(INT16, INT64, INT16, INT32, INT8),
    Array(INT_LENGTH, Schema(PLAIN_STRING, Array(INT_LENGTH, INT32))),
    *(INT64, INT64),
)
"""Version, producer id and epoch, timeout, state, topics with partitions, written at, begun at."""

_TAGGED_TRANSACTION_VALUE = Schema(
    *(INT16, INT64, INT16, INT32, INT8),
    Array(COMPACT, Schema(STRING, Array(COMPACT, INT32), flexible=True)),
    *(INT64, INT64),
    flexible=True,
    tags={"last_producer_id": INT64, "next_producer_id": INT64, "version": INT16},
)
"""The same of version 1, for producers whose epoch rises with each transaction."""

_TAG_DEFAULTS = {"last_producer_id": -1, "next_producer_id": -1, "version": 0}

# Kafka's numbers of the states; PrepareEpochFence is never written.
_STATES = (
    TransactionState.EMPTY,
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
    TransactionState.DEAD,
)

# __share_group_state.

_SNAPSHOT = 0
_SHARE_KEY = Schema(INT16, PLAIN_STRING, UUID16, INT32)
"""Kind, group, topic id, partition."""

_SHARE_VALUE = Schema(
    *(INT16, UINT16, INT32, INT32, INT64),
    Array(COMPACT, Schema(INT64, INT64, INT8, INT16, flexible=True)),
    flexible=True,
)
"""Version, snapshot epoch, state epoch, leader epoch, start offset; of each batch the first and the
last offset, the state, the delivery count. Kafka also has updates between snapshots, which are not
used here."""


def _kind_of(key: bytes) -> int:
    return int(INT16.read(key, 0)[0])


_Entry = TypeVar("_Entry")


def _decoded(
    batch: RecordBatch, decode: Callable[[bytes, bytes | None], _Entry | None]
) -> Iterator[_Entry]:
    """Yield the entries of a batch; an unreadable one is logged and skipped, so that a coordinator
    loads all others."""
    if batch.control is not None:
        return
    for record in read_batch(batch.to_bytes(), 0)[0].records:
        if record.key is None:
            continue
        try:
            entry = decode(record.key, record.value)
        except (struct.error, IndexError, TypeError, ValueError) as error:
            _log.error("record_unreadable", key=record.key[:_LOGGED_BYTES], reason=str(error))
        else:
            if entry is not None:
                yield entry


class OffsetsRecords:
    """The codec of committed offsets and of groups, for `GroupManager`."""

    def batch(
        self, entries: Sequence[StoredEntry], producer: ProducerIdentity | None = None
    ) -> RecordBatch:
        """Return a batch with a record for each entry; None as a value deletes the key."""
        return new_batch([_stored_record(key, value) for key, value in entries], producer)

    def entries(self, batch: RecordBatch) -> Iterator[StoredEntry]:
        """Return the entries of a batch, in order."""
        return _decoded(batch, _decode_stored)


def _decode_stored(key: bytes, value: bytes | None) -> StoredEntry | None:
    if _kind_of(key) == _OFFSET_KIND:
        _, *of = _OFFSET_KEY.read(key, 0)[0]
        committed = None
        if value is not None:
            committed = _decode_offset(value)
        return OffsetKey(*of), committed
    group_key = decode_group_key(key)
    if group_key is None:
        return None
    return group_key, None if value is None else decode_group_value(group_key, value)


def _decode_offset(data: bytes) -> CommittedOffset:
    if _kind_of(data) == _EXPIRING_VERSION:
        _, offset, *fields = _EXPIRING_OFFSET_VALUE.read(data, 0)[0]
        return CommittedOffset(offset, _NO_LEADER_EPOCH, *fields)
    _, *fields = _OFFSET_VALUE.read(data, 0)[0]
    return CommittedOffset(*fields)


def _encode_offset(committed: CommittedOffset) -> bytes:
    if committed.expire_ms == NO_EXPIRY_MS:
        return _OFFSET_VALUE.write((_OFFSET_VERSION, *committed[:-1]))
    offset, _, *fields = committed
    return _EXPIRING_OFFSET_VALUE.write((_EXPIRING_VERSION, offset, *fields))


def _stored_record(
    key: OffsetKey | GroupRecordKey, value: CommittedOffset | GroupRecordValue | None
) -> tuple[bytes, bytes | None]:
    if isinstance(key, GroupRecordKey):
        assert not isinstance(value, CommittedOffset), "the value belongs to an offset's key"
        return encode_group_key(key), None if value is None else encode_group_value(key, value)
    written = None
    if isinstance(value, CommittedOffset):
        written = _encode_offset(value)
    return _OFFSET_KEY.write((_OFFSET_KIND, *key)), written


def encode_group_key(key: GroupRecordKey) -> bytes:
    """Return the key of a record of a group."""
    number = _SHARE_NUMBERS[key.kind] if key.is_share else key.kind
    if key.kind in _MEMBER_KINDS:
        return _MEMBER_KEY.write((number, key.group_id, key.member_id))
    return _GROUP_KEY.write((number, key.group_id))


def decode_group_key(data: bytes) -> GroupRecordKey | None:
    """Decode a record's key; None: the record is of no group."""
    number = _kind_of(data)
    kind = _SHARE_KINDS.get(number, number)
    if kind not in set(RecordKind):
        return None
    layout = _MEMBER_KEY if kind in _MEMBER_KINDS else _GROUP_KEY
    _, group_id, *member = layout.read(data, 0)[0]
    member_id = member[0] if member else ""
    return GroupRecordKey(group_id, RecordKind(kind), member_id, number in _SHARE_KINDS)


def encode_group_value(key: GroupRecordKey, value: GroupRecordValue) -> bytes:
    """Return the value of a record of a group."""
    if key.kind.is_of_streams:
        return encode_streams_value(value)
    match value:
        case ClassicGroupRecord():
            return _encode_classic(value)
        case Subscription() if key.is_share:
            names = value.topic_names
            return _SHARE_MEMBER_VALUE.write(
                (0, value.rack_id, value.client_id, value.client_host, names)
            )
        case Subscription():
            return _MEMBER_VALUE.write((0, *value[:8]), {"classic": value.classic})
        case CurrentAssignment():
            state = value.epoch, value.previous_epoch, value.state
            if key.is_share:
                return _SHARE_CURRENT_VALUE.write((0, *state, _listed(value.assigned)))
            owned = (_owned(value, partitions) for partitions in (value.assigned, value.revoking))
            return _CURRENT_VALUE.write((0, *state, *owned))
        case frozenset():
            return _TARGET_VALUE.write((0, _listed(value)))
        case InitializedPartitions():
            numbers = by_topic(value.partitions)
            topics = [(topic_id, name, numbers[topic_id]) for topic_id, name in value.names]
            return _SHARE_STATE_VALUE.write((0, (), topics, ()))
    return _EPOCH_VALUE.write((0, value))


def decode_group_value(key: GroupRecordKey, data: bytes) -> GroupRecordValue:
    """Decode a record's value."""
    if key.kind.is_of_streams:
        return decode_streams_value(key.kind, data)
    match key.kind:
        case RecordKind.CLASSIC:
            return _decode_classic(data)
        case RecordKind.MEMBER if key.is_share:
            _, rack_id, client_id, host, names = _SHARE_MEMBER_VALUE.read(data, 0)[0]
            return Subscription(None, rack_id, client_id, host, tuple(names))
        case RecordKind.MEMBER:
            (_, *fields), tags, _ = _MEMBER_VALUE.read_with_tags(data, 0)
            fields[4] = tuple(fields[4])
            classic = None
            if tags.get("classic") is not None:
                timeout_ms, protocols = tags["classic"]
                classic = ClassicMetadata(timeout_ms, tuple(map(tuple, protocols)))
            return Subscription._make((*fields, None, classic))
        case RecordKind.SHARE_STATE:
            _, _, topics, _ = _SHARE_STATE_VALUE.read(data, 0)[0]
            names = tuple((topic_id, name) for topic_id, name, _ in topics)
            found = _partitions([(topic_id, numbers) for topic_id, _, numbers in topics])
            return InitializedPartitions(found, names)
        case RecordKind.TARGET:
            return _partitions(_TARGET_VALUE.read(data, 0)[0][1])
        case RecordKind.CURRENT:
            layout = _SHARE_CURRENT_VALUE if key.is_share else _CURRENT_VALUE
            _, epoch, previous_epoch, state, *partitions = layout.read(data, 0)[0]
            states = epoch, previous_epoch, MemberState(state)
            if key.is_share:
                return CurrentAssignment(*states, _partitions(partitions[0]))
            assigned, revoking = partitions
            epochs = _assignment_epochs([*assigned, *revoking])
            own, revoked = (_partitions([topic for topic, _ in topics]) for topics in partitions)
            return CurrentAssignment(*states, own, revoked, epochs)
    return int(_EPOCH_VALUE.read(data, 0)[0][1])


def _encode_classic(record: ClassicGroupRecord) -> bytes:
    texts = [record.protocol_type, record.protocol or "", record.leader_id or ""]
    for member in record.members:
        texts += (member.member_id, member.instance_id or "", member.client_id, member.client_host)
    is_long = any(len(text.encode()) > _MAX_PLAIN_BYTES for text in texts)
    version = _FLEXIBLE_CLASSIC_VERSION if is_long else _CLASSIC_VERSION
    return _CLASSIC_VALUES[version].write((version, *record))


def _decode_classic(data: bytes) -> ClassicGroupRecord:
    """Decode a generation of any version; older ones lack some fields."""
    version = _kind_of(data)
    _, *fields, members = _CLASSIC_VALUES[version].read(data, 0)[0]
    if version < 2:
        fields.append(-1)
    rows = tuple(_classic_member(version, row) for row in members)
    return ClassicGroupRecord._make((*fields, rows))


def _classic_member(version: int, fields: list[Any]) -> ClassicMemberRecord:
    if version < 3:
        fields.insert(1, None)
    if version < 1:
        fields.insert(4, fields[4])  # the session timeout stands for it
    elif fields[4] == -1:
        fields[4] = fields[5]
    return ClassicMemberRecord(*fields)


def _listed(partitions: Partitions) -> list[tuple[UUID, Sequence[int]]]:
    return list(by_topic(partitions).items())


def _owned(current: CurrentAssignment, partitions: Partitions) -> list[tuple[Any, Any]]:
    """Return topics with a member's partitions, and with those epochs that are not its own."""
    listed = []
    for topic_id, numbers in _listed(partitions):
        epochs = [
            current.epochs.get(TopicIdPartition(topic_id, number), current.epoch)
            for number in numbers
        ]
        is_own = all(epoch == current.epoch for epoch in epochs)
        listed.append(((topic_id, numbers), {} if is_own else {"assignment_epochs": epochs}))
    return listed


def _assignment_epochs(topics: Sequence[tuple[Any, Any]]) -> dict[TopicIdPartition, int]:
    return {
        TopicIdPartition(topic_id, number): epoch
        for (topic_id, numbers), tags in topics
        for number, epoch in zip(numbers, tags.get("assignment_epochs") or (), strict=False)
    }


def _partitions(topics: Sequence[tuple[UUID, Sequence[int]]]) -> Partitions:
    return frozenset(
        TopicIdPartition(topic_id, number) for topic_id, numbers in topics for number in numbers
    )


class TransactionsRecords:
    """The codec of transactional ids and markers, for `TransactionCoordinator`."""

    def batch(self, entries: Sequence[TransactionEntry]) -> RecordBatch:
        """Return a batch with a record for each id; None as a record deletes the id."""
        return new_batch(
            [
                (
                    _TRANSACTION_KEY.write((0, transactional_id)),
                    None if record is None else _encode_transaction(record),
                )
                for transactional_id, record in entries
            ]
        )

    def entries(self, batch: RecordBatch) -> Iterator[TransactionEntry]:
        """Return the entries of a batch, in order."""
        return _decoded(batch, _decode_transaction_entry)

    def marker(
        self, producer: ProducerIdentity, result: TransactionResult, coordinator_epoch: int
    ) -> RecordBatch:
        """Return the marker that ends a producer's transaction on a partition."""
        return new_marker(producer, result, coordinator_epoch)


def _decode_transaction_entry(key: bytes, value: bytes | None) -> TransactionEntry | None:
    if _kind_of(key) != 0:
        return None
    _, transactional_id = _TRANSACTION_KEY.read(key, 0)[0]
    return transactional_id, None if value is None else _decode_transaction(value)


def _encode_transaction(record: TransactionRecord) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(record.partitions):
        topics.setdefault(topic, []).append(partition)
    fields = (
        *(record.producer_id, record.producer_epoch, record.timeout_ms),
        _STATES.index(record.state),
        list(topics.items()) or None,
        *(record.update_ms, record.start_ms),
    )
    tags = {
        name: value
        for name, default in _TAG_DEFAULTS.items()
        if (value := getattr(record, name)) != default
    }
    if tags:
        return _TAGGED_TRANSACTION_VALUE.write((1, *fields), tags)
    return _TRANSACTION_VALUE.write((0, *fields))


def _decode_transaction(data: bytes) -> TransactionRecord:
    layout = _TAGGED_TRANSACTION_VALUE if _kind_of(data) else _TRANSACTION_VALUE
    fields, tags, _ = layout.read_with_tags(data, 0)
    _, producer_id, epoch, timeout_ms, state, topics, update_ms, start_ms = fields
    partitions = frozenset(
        TopicPartition(topic, number) for topic, numbers in topics or () for number in numbers
    )
    return TransactionRecord(_STATES[state], producer_id, epoch, timeout_ms)._replace(
        partitions=partitions, start_ms=start_ms, update_ms=update_ms, **tags
    )


class ShareStateRecords:
    """The codec of share partitions, for `ShareCoordinator`."""

    def batch(self, entries: Sequence[ShareStateEntry]) -> RecordBatch:
        """Return a batch with a record for each share partition; None deletes it."""
        return new_batch(
            [
                (
                    _SHARE_KEY.write((_SNAPSHOT, *key)),
                    None if state is None else _encode_share_state(state),
                )
                for key, state in entries
            ]
        )

    def entries(self, batch: RecordBatch) -> Iterator[ShareStateEntry]:
        """Return the entries of a batch, in order."""
        return _decoded(batch, _decode_share_entry)


def _decode_share_entry(key: bytes, value: bytes | None) -> ShareStateEntry | None:
    if _kind_of(key) != _SNAPSHOT:
        return None
    _, *of = _SHARE_KEY.read(key, 0)[0]
    return ShareKey(*of), None if value is None else _decode_share_state(value)


def _encode_share_state(state: ShareState) -> bytes:
    return _SHARE_VALUE.write(
        (0, 0, state.state_epoch, state.leader_epoch, state.start_offset, state.batches)
    )


def _decode_share_state(data: bytes) -> ShareState:
    _, _, state_epoch, leader_epoch, start_offset, found = _SHARE_VALUE.read(data, 0)[0]
    batches = (
        StateBatch(first, last, RecordState(state), deliveries)
        for first, last, state, deliveries in found
    )
    return ShareState(state_epoch, leader_epoch, start_offset, tuple(batches))
