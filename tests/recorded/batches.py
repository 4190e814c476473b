"""Record batches whose every field can be wrong at will, and a reader of what a cluster returns."""

from __future__ import annotations

import gzip
import struct
import time
import zlib
from collections.abc import Sequence
from typing import Any

import cramjam
from crc32c import crc32c

Pair = tuple[bytes | None, bytes | None]
"""A record's key and value, or a header's."""

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
TRANSACTIONAL, CONTROL = 16, 32
_XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_HEADER_BYTES = 61
_LONG_VALUE = 60
_FIELDS = (
    *("Attributes", "LastOffsetDelta", "BaseTimestamp", "MaxTimestamp"),
    *("ProducerId", "ProducerEpoch", "BaseSequence", "Count"),
)


def now_ms() -> int:
    """Return the time of day in milliseconds."""
    return int(time.time() * 1000)


def varint(number: int) -> bytes:
    """Return a number as records have it."""
    number = ((number << 1) ^ (number >> 63)) & (1 << 64) - 1
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(
    place: int, pair: Pair, delta_ms: int = 0, headers: Sequence[Pair] = (), padding: bytes = b""
) -> bytes:
    """Return one record of a batch, at an offset within it."""
    head = b"\0" + varint(delta_ms) + varint(place) + _field(pair[0]) + _field(pair[1])
    with_headers = b"".join(_field(key) + _field(value) for key, value in headers)
    body = head + varint(len(headers)) + with_headers + padding
    return varint(len(body)) + body


def compress(codec: str, data: bytes) -> bytes:
    """Compress a batch's records as clients do."""
    if codec == "gzip":
        return gzip.compress(data, mtime=0)
    if codec == "snappy":
        block = bytes(cramjam.snappy.compress_raw(data))
        return _XERIAL + struct.pack(">i", len(block)) + block
    if codec == "lz4":
        return bytes(cramjam.lz4.compress(data))
    if codec == "zstd":
        return bytes(cramjam.zstd.compress(data))
    return data


def batch(
    pairs: Sequence[Pair] = ((b"k", b"v"),),
    *,
    base: int = 0,
    codec: str | int = "none",
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    at_ms: int | None = None,
    max_ms: int | None = None,
    deltas_ms: Sequence[int] = (),
    magic: int = 2,
    last_delta: int | None = None,
    count: int | None = None,
    leader_epoch: int = -1,
    bad_crc: bool = False,
    length: int | None = None,
    records: bytes | None = None,
    offsets: Sequence[int] = (),
    padding: bytes = b"",
    headers: Sequence[Pair] = (),
    behind: bytes = b"",
    cut: int = 0,
) -> bytes:
    """Return a batch.

    Args:
        pairs: the records' keys and values.
        base: the base offset, which brokers replace.
        codec: a codec's name, or any number.
        attributes: more bits.
        producer: the producer's id and epoch, and the first sequence.
        at_ms: the first timestamp; None: now.
        max_ms: the greatest one; None: as it is.
        deltas_ms: the records' times after the first one.
        magic: the version of the format.
        last_delta: the last offset's distance; None: right.
        count: the number of records; None: right.
        leader_epoch: the leader's epoch, which brokers replace.
        bad_crc: whether the checksum is wrong.
        length: the number of bytes after it; None: right.
        records: the bytes of all records instead.
        offsets: the records' places; empty: right.
        padding: bytes at the end of each record, within its length.
        headers: those of each record.
        behind: bytes after the batch.
        cut: how many bytes lack at the end.
    """
    at_ms = now_ms() if at_ms is None else at_ms
    body = records
    if body is None:
        body = b"".join(
            record(
                offsets[place] if offsets else place,
                pair,
                deltas_ms[place] if deltas_ms else 0,
                headers,
                padding,
            )
            for place, pair in enumerate(pairs)
        )
    if isinstance(codec, str):
        body = compress(codec, body)
        codec = CODECS[codec]
    tail = struct.pack(
        ">hiqqqhii",
        attributes | codec,
        len(pairs) - 1 if last_delta is None else last_delta,
        at_ms,
        at_ms + max(deltas_ms, default=0) if max_ms is None else max_ms,
        *producer,
        len(pairs) if count is None else count,
    )
    tail += body
    tail = struct.pack(">ibI", leader_epoch, magic, crc32c(tail) ^ bad_crc) + tail
    whole = struct.pack(">qi", base, len(tail) if length is None else length) + tail + behind
    return whole[:-cut] if cut else whole


def legacy_message(magic: int, key: bytes = b"k", value: bytes = b"v") -> bytes:
    """Return a message of the formats 0 and 1, which Kafka 4 no longer takes."""
    at_ms = struct.pack(">q", now_ms()) if magic else b""
    body = struct.pack(">bb", magic, 0) + at_ms
    body += struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


# Reading.


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (number >> 1) ^ -(number & 1), place


def _decompress(codec: int, data: bytes) -> bytes:
    if codec == CODECS["gzip"]:
        return gzip.decompress(data)
    if codec == CODECS["snappy"]:
        if data[:8] != _XERIAL[:8]:
            return bytes(cramjam.snappy.decompress_raw(data))
        place, out = len(_XERIAL), b""
        while place < len(data):
            (length,) = struct.unpack_from(">i", data, place)
            out += bytes(cramjam.snappy.decompress_raw(data[place + 4 : place + 4 + length]))
            place += 4 + length
        return out
    if codec == CODECS["lz4"]:
        return bytes(cramjam.lz4.decompress(data))
    if codec == CODECS["zstd"]:
        return bytes(cramjam.zstd.decompress(data))
    return data


def _shown(value: bytes | None) -> bytes | str | None:
    return value if value is None or len(value) < _LONG_VALUE else f"{len(value)} bytes"


def _read_records(codec: int, data: bytes, count: int) -> list[list[Any]]:
    data, place = _decompress(codec, data), 0
    records = []
    for _ in range(count):
        length, place = _read_varint(data, place)
        end = place + length
        delta_ms, place = _read_varint(data, place + 1)
        offset, place = _read_varint(data, place)
        fields: list[bytes | None] = []
        for _ in range(2):
            length, place = _read_varint(data, place)
            fields.append(None if length < 0 else data[place : place + length])
            place += max(length, 0)
        records.append([offset, delta_ms, *map(_shown, fields)])
        place = end
    return records


def read_batches(data: bytes) -> list[dict[str, Any]]:
    """Return the whole batches of a fetch. Kafka cuts the last one where its limit of bytes is."""
    found, place = [], 0
    while place + _HEADER_BYTES <= len(data):
        base, length = struct.unpack_from(">qi", data, place)
        end = place + 12 + length
        if end > len(data):
            break
        epoch, magic, crc = struct.unpack_from(">ibI", data, place + 12)
        fields = struct.unpack_from(">hiqqqhii", data, place + 21)
        one = {
            "BaseOffset": base,
            "LeaderEpoch": epoch,
            "Magic": magic,
            "IsCrcRight": crc == crc32c(data[place + 21 : end]),
        }
        one |= dict(zip(_FIELDS, fields, strict=True))
        try:
            records: Any = _read_records(
                fields[0] & 7, data[place + _HEADER_BYTES : end], fields[-1]
            )
        except Exception as error:
            records = f"unreadable: {type(error).__name__}"
        found.append(one | {"Pairs": records})
        place = end
    return found
