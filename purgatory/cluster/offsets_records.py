"""Committed offsets as records, in Kafka's own layout of the topic `__consumer_offsets`.

The key names group, topic and partition; the value has the offset, or is null where it was deleted.
They are replicated, stored and fetched like any records, so that the next leader of their partition
has them all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from kio.records.readers import read_batch

from purgatory.cluster.group_records import decode_key, decode_value, encode_key, encode_value
from purgatory.cluster.made_batches import made_batch
from purgatory.kafka import (
    CommittedOffset,
    OffsetKey,
    ProducerIdentity,
    RecordBatch,
    StoredEntry,
)
from purgatory.kafka.groups.consumer_group_member import GroupRecordKey, GroupRecordValue

StoredKey = OffsetKey | GroupRecordKey
_KEY_VERSION = 1
_VALUE_VERSION = 3
_SHORT = struct.Struct(">h")


class OffsetsRecords:
    """The codec of committed offsets and of consumer groups, for `BrokerGroups`."""

    def batch(
        self, entries: Sequence[StoredEntry], producer: ProducerIdentity | None = None
    ) -> RecordBatch:
        """Return a batch that says what is so; what is None is deleted."""
        return made_batch(
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
