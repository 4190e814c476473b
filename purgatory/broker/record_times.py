"""When records were made: looked up in batches, for clients that seek by time.

A batch's header has the latest time in it; the times of single records are inside, compressed or
not, which is the only place where this broker looks into records.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import cramjam

from purgatory.kafka import Log, RecordBatch

_ATTRIBUTES_AT = 21
_BASE_TIMESTAMP_AT = 27
_MAX_TIMESTAMP_AT = 35
_RECORDS_AT = 61
_CODEC_BITS = 0x07
_APPEND_TIME_BIT = 0x08
_READ_BYTES = 1024 * 1024
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


class TimedOffset(NamedTuple):
    """A record's offset and time, in milliseconds since 1970."""

    offset: int
    timestamp_ms: int


def max_timestamp_ms(batch: RecordBatch) -> int:
    """Return the latest time in a batch, from its header; -1 where it has none."""
    payload = batch.payload
    if payload is None:
        return -1
    return int.from_bytes(payload[_MAX_TIMESTAMP_AT : _MAX_TIMESTAMP_AT + 8], "big", signed=True)


def first_at_or_after(log: Log, timestamp_ms: int, upto_offset: int) -> TimedOffset | None:
    """Return the first record, below ``upto_offset``, that is not older. O(batches)."""
    for batch in _batches(log, upto_offset):
        if max_timestamp_ms(batch) >= timestamp_ms:
            for record in record_times(batch):
                if record.timestamp_ms >= timestamp_ms and record.offset >= log.start_offset:
                    return record
    return None


def latest(log: Log, upto_offset: int) -> TimedOffset | None:
    """Return the record with the latest time; the first of them, where several have it."""
    newest = max(_batches(log, upto_offset), key=max_timestamp_ms, default=None)
    if newest is None:
        return None
    return max(record_times(newest), key=lambda record: record.timestamp_ms, default=None)


def _batches(log: Log, upto_offset: int) -> Iterator[RecordBatch]:
    offset = log.start_offset
    while offset < upto_offset:
        batches = log.read(offset, _READ_BYTES, upto_offset)
        if not batches:
            return
        yield from batches
        offset = batches[-1].next_offset


def record_times(batch: RecordBatch) -> Iterator[TimedOffset]:
    """Yield each record's offset and time.

    Raises:
        ValueError: the batch can't be decompressed, or its records are no records.
    """
    payload = batch.payload
    if payload is None:
        return
    (attributes,) = struct.unpack_from(">h", payload, _ATTRIBUTES_AT)
    base_ms, max_ms = struct.unpack_from(">qq", payload, _BASE_TIMESTAMP_AT)
    if attributes & _APPEND_TIME_BIT:
        yield TimedOffset(batch.base_offset, max_ms)
        return
    records = _decompressed(attributes & _CODEC_BITS, payload[_RECORDS_AT:])
    at = 0
    for _ in range(batch.record_count):
        length, at = _varint(records, at)
        end = at + length
        delta_ms, after = _varint(records, at + 1)  # behind the attributes, one byte
        offset_delta, _ = _varint(records, after)
        yield TimedOffset(batch.base_offset + offset_delta, base_ms + delta_ms)
        at = end


def _decompressed(codec: int, data: bytes) -> bytes:
    decompress = _CODECS.get(codec)
    if decompress is None:
        raise ValueError(f"a batch with the unknown compression {codec}")
    return decompress(data)


def _snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    # Java's framing: a header, then blocks with their lengths.
    out = bytearray()
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        at += 4
        out += bytes(cramjam.snappy.decompress_raw(data[at : at + length]))
        at += length
    return bytes(out)


_CODECS: Mapping[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: gzip.decompress,
    2: _snappy,
    3: lambda data: bytes(cramjam.lz4.decompress(data)),
    4: lambda data: bytes(cramjam.zstd.decompress(data)),
}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number, and where it ends."""
    number = shift = 0
    while True:
        try:
            byte = data[at]
        except IndexError:
            raise ValueError("a record ends within a number") from None
        at += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
