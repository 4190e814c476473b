"""Batches as compaction has to see them, and those that it leaves: by their bytes."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

from crc32c import crc32c

from purgatory.cluster.record_contents import (
    Room,
    codec_of,
    compressed,
    raw_records,
    records_data,
    records_of,
)
from purgatory.cluster.record_times import max_timestamp_ms
from purgatory.kafka import RecordBatch
from purgatory.kafka.log.log_cleaner import KeyedRecord
from purgatory.kafka.log.record_batch import APPEND_TIME_BIT, CHECKSUM_FROM, HEADER_BYTES

_HEADER = struct.Struct(">qiibIhiqqqhii")
_MAGIC = 2
_NO_TIME = -1
_NOBODY = -1


class StoredContents:
    """Looks into batches that have their bytes: `BatchContents` of the model."""

    def records(self, batch: RecordBatch) -> Iterator[KeyedRecord]:
        """Yield what compaction has to know of each record.

        Raises:
            ValueError: the batch can't be looked into.
        """
        for record in records_of(batch):
            yield KeyedRecord(record.offset, record.key, record.value is None)

    def retained(self, batch: RecordBatch, offsets: Collection[int]) -> RecordBatch:
        """Return the batch with these of its records alone: each as it was, byte for byte.

        Raises:
            ValueError: the batch can't be looked into.
        """
        data = batch.to_bytes()
        header = list(_HEADER.unpack_from(data))
        attributes = header[5]
        kept = [raw for offset, raw in raw_records(batch) if offset in offsets]
        times_ms = [record.timestamp_ms for record in records_of(batch) if record.offset in offsets]
        if not attributes & APPEND_TIME_BIT:
            header[8] = max(times_ms, default=_NO_TIME)
        header[12] = len(kept)
        return packed_batch(header, compressed(attributes, b"".join(kept)) if kept else b"")

    def empty(self, base_offset: int, next_offset: int, leader_epoch: int) -> RecordBatch:
        """Return a batch without records that takes these offsets."""
        last_delta = next_offset - base_offset - 1
        times_and_producer = [_NO_TIME, _NO_TIME, _NOBODY, _NOBODY, _NOBODY]
        return packed_batch(
            [base_offset, 0, leader_epoch, _MAGIC, 0, 0, last_delta, *times_and_producer, 0], b""
        )

    def max_timestamp_ms(self, batch: RecordBatch) -> int:
        """Return the latest time of its records, -1 for none."""
        return max_timestamp_ms(batch)


def recompressed(
    batch: RecordBatch, codec: int, level: int | None, room: Room | None = None
) -> RecordBatch:
    """Return a batch compressed by a codec, or itself where it is already. O(bytes).

    Raises:
        SwollenBatchError: more would come out of it than there is room for.
        ValueError: the batch can't be decompressed.
    """
    was = codec_of(batch)
    if was == codec:
        return batch
    header = list(_HEADER.unpack_from(batch.to_bytes()))
    header[5] += codec - was  # the attributes' lowest bits
    return packed_batch(header, compressed(codec, records_data(batch, room), level))


def packed_batch(header: list[int], records: bytes) -> RecordBatch:
    """Return the batch of a header, whose length and checksum are filled in, and records."""
    header[1] = HEADER_BYTES - 12 + len(records)
    header[4] = 0
    data = _HEADER.pack(*header) + records
    header[4] = crc32c(data[CHECKSUM_FROM:])
    return RecordBatch.from_bytes(_HEADER.pack(*header) + records, may_be_compacted=True)
