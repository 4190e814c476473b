"""The records inside batches, compressed or not: for seeks by time, and for traces.

A broker has no need to look into batches to store and deliver them; here is the one place where
this one does.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import cramjam

from purgatory.kafka import RecordBatch

_ATTRIBUTES_AT = 21
_BASE_TIMESTAMP_AT = 27
_RECORDS_AT = 61
_CODEC_BITS = 0x07
_APPEND_TIME_BIT = 0x08
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


class Record(NamedTuple):
    """One record. The time is in milliseconds since 1970."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def records_of(batch: RecordBatch) -> Iterator[Record]:
    """Yield each record of a batch; none, where it has no bytes.

    Raises:
        ValueError: the batch can't be decompressed, or its records are no records.
    """
    payload = batch.payload
    if payload is None:
        return
    (attributes,) = struct.unpack_from(">h", payload, _ATTRIBUTES_AT)
    base_ms, max_ms = struct.unpack_from(">qq", payload, _BASE_TIMESTAMP_AT)
    data = _records_data(batch, payload, attributes)
    at = 0
    for _ in range(batch.record_count):
        length, at = _varint(data, at)
        delta_ms, after = _varint(data, at + 1)  # behind the attributes, one byte
        offset_delta, after = _varint(data, after)
        key, after = _bytes(data, after)
        value, _ = _bytes(data, after)
        timestamp_ms = max_ms if attributes & _APPEND_TIME_BIT else base_ms + delta_ms
        yield Record(batch.base_offset + offset_delta, timestamp_ms, key, value)
        at += length


def raw_records(batch: RecordBatch) -> Iterator[tuple[int, bytes]]:
    """Yield the offset of each record of a batch, and its bytes with their length before them.

    Raises:
        ValueError: as for ``records_of``.
    """
    payload = batch.payload
    if payload is None:
        return
    (attributes,) = struct.unpack_from(">h", payload, _ATTRIBUTES_AT)
    data = _records_data(batch, payload, attributes)
    at = 0
    for _ in range(batch.record_count):
        length, begin = _varint(data, at)
        _, after = _varint(data, begin + 1)  # the time
        offset_delta, _ = _varint(data, after)
        yield batch.base_offset + offset_delta, data[at : begin + length]
        at = begin + length


def codec_of(batch: RecordBatch) -> int:
    """Return by which of Kafka's codecs a batch is compressed, 0 for none."""
    (attributes,) = struct.unpack_from(">h", batch.to_bytes(), _ATTRIBUTES_AT)
    return int(attributes & _CODEC_BITS)


def records_data(batch: RecordBatch) -> bytes:
    """Return the bytes of a batch's records, decompressed. O(bytes).

    Raises:
        ValueError: as for ``records_of``.
    """
    payload = batch.to_bytes()
    return _decompressed(codec_of(batch), payload[_RECORDS_AT:])


def compressed(attributes: int, records: bytes, level: int | None = None) -> bytes:
    """Return records compressed as a batch's attributes say. O(bytes).

    Args:
        attributes: their lowest bits are the codec.
        records: their bytes.
        level: how hard the codec tries, where it has levels; None: as it does by default.
    """
    levels = () if level is None else (level,)
    return bytes(_COMPRESSIONS[attributes & _CODEC_BITS](records, *levels))


def _records_data(batch: RecordBatch, payload: bytes, attributes: int) -> bytes:
    """Return the records' bytes, decompressed; a batch that lost all of them has none."""
    if not batch.record_count:
        return b""
    return _decompressed(attributes & _CODEC_BITS, payload[_RECORDS_AT:])


def _decompressed(codec: int, data: bytes) -> bytes:
    decompress = _CODECS.get(codec)
    if decompress is None:
        raise ValueError(f"a batch with the unknown compression {codec}")
    try:
        return decompress(data)
    except (OSError, EOFError, cramjam.DecompressionError) as error:
        raise ValueError(f"a batch can't be decompressed: {error}") from error


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


_COMPRESSIONS: Mapping[int, Callable[[bytes], Any]] = {
    0: bytes,
    1: gzip.compress,
    2: cramjam.snappy.compress_raw,
    3: cramjam.lz4.compress,
    4: cramjam.zstd.compress,
}


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    if length < 0:
        return None, at
    if at + length > len(data):
        raise ValueError("a record ends within a field")
    return data[at : at + length], at + length


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
