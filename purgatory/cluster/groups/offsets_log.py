"""Committed offsets as records, in Kafka's own layout of the topic `__consumer_offsets`.

The key names group, topic and partition; the value has the offset, or is null where it was deleted.
They are replicated, stored and fetched like any records, so that who leads their partition next has
them all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from datetime import datetime
from io import BytesIO
from typing import NamedTuple

from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch

OFFSETS_TOPIC = "__consumer_offsets"

_KEY_VERSION = 1
_VALUE_VERSION = 3
_SHORT = struct.Struct(">h")


class OffsetKey(NamedTuple):
    """What an offset was committed for."""

    group_id: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """A committed offset: the next one to read. ``commit_ms`` is in milliseconds since 1970."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int


def encode_offsets(
    offsets: Iterable[tuple[OffsetKey, CommittedOffset | None]], now: datetime
) -> bytes:
    """Return one record batch that commits offsets, or deletes those that are None."""
    records = tuple(
        Record(
            attributes=0,  # type: ignore[arg-type]
            timestamp=now,  # type: ignore[arg-type]
            offset=number,  # type: ignore[arg-type]
            key=_encode_key(key),
            value=None if committed is None else _encode_value(committed),
            headers=(),
        )
        for number, (key, committed) in enumerate(offsets)
    )
    buffer = BytesIO()
    write_batch(
        buffer,
        NewRecordBatch(
            producer_id=-1,  # type: ignore[arg-type]
            producer_epoch=-1,  # type: ignore[arg-type]
            base_sequence=-1,  # type: ignore[arg-type]
            attributes=0,  # type: ignore[arg-type]
            records=records,
        ),
    )
    return buffer.getvalue()


def decode_offsets(batch: bytes) -> Iterator[tuple[OffsetKey, CommittedOffset | None]]:
    """Yield what a batch commits and deletes, in its order."""
    for record in read_batch(batch, 0)[0].records:
        if record.key is not None and _SHORT.unpack_from(record.key)[0] == _KEY_VERSION:
            value = None if record.value is None else _decode_value(record.value)
            yield _decode_key(record.key), value


def partition_of(group_id: str, partitions: int) -> int:
    """Return the partition that a group's offsets are in: Java's hash of the name, as in Kafka."""
    number = 0
    encoded = group_id.encode("utf-16-be")
    for at in range(0, len(encoded), 2):
        number = (31 * number + (encoded[at] << 8 | encoded[at + 1])) & 0xFFFFFFFF
    return (number & 0x7FFFFFFF) % partitions


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
