"""Committed offsets as records, in Kafka's own layout of the topic `__consumer_offsets`.

The key names group, topic and partition; the value has the offset, or is null where it was deleted.
They are replicated, stored and fetched like any records, so that the next leader of their partition
has them all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from io import BytesIO

from crc32c import crc32c
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch

from purgatory.kafka import CommittedOffset, OffsetEntry, OffsetKey, RecordBatch

_KEY_VERSION = 1
_VALUE_VERSION = 3
_SHORT = struct.Struct(">h")


class OffsetsRecords:
    """The codec of committed offsets, for `BrokerGroups`."""

    def batch(self, entries: Sequence[OffsetEntry]) -> RecordBatch:
        """Return a batch that commits offsets, or deletes those that are None."""
        now = datetime.now(UTC)
        records = tuple(
            Record(
                attributes=0,  # type: ignore[arg-type]
                timestamp=now,  # type: ignore[arg-type]
                offset=number,  # type: ignore[arg-type]
                key=_encode_key(key),
                value=None if committed is None else _encode_value(committed),
                headers=(),
            )
            for number, (key, committed) in enumerate(entries)
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
        return RecordBatch.from_bytes(buffer.getvalue(), checksum=crc32c)

    def entries(self, batch: RecordBatch) -> Iterator[OffsetEntry]:
        """Yield what a batch commits and deletes, in its order."""
        for record in read_batch(batch.to_bytes(), 0)[0].records:
            if record.key is not None and _SHORT.unpack_from(record.key)[0] == _KEY_VERSION:
                value = None if record.value is None else _decode_value(record.value)
                yield _decode_key(record.key), value


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
