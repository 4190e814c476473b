"""The records inside batches: decompressed, searched by timestamp, compacted, and written.

A broker stores and delivers batches unread; only this module reads their records, and writes the
broker's own batches of internal topics (`new_batch`) and transaction markers (`new_marker`).

Ground rules
------------
* The decompressed size of a batch is bounded before it is decompressed: a few kilobytes may expand
  to gigabytes. No more memory than a few times a batch's own is reserved before it is filled.
* Clients wrote the records: each length in them is checked, and each record is behind the one
  before.
"""

from __future__ import annotations

import gzip
import mmap
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from operator import attrgetter
from typing import Any, NamedTuple

import cramjam
from crc32c import crc32c

from purgatory.cluster.errors import SwollenBatchError
from purgatory.core.recent_errors import Logger
from purgatory.kafka import Log, Partition, ProducerIdentity, RecordBatch, TransactionResult
from purgatory.kafka.errors import KafkaError
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET
from purgatory.kafka.log.log_cleaner import KeyedRecord
from purgatory.kafka.log.record_batch import (
    APPEND_TIME_BIT,
    CHECKSUM_OFFSET,
    HEADER_BYTES,
)
from timer.machine_time import time

_ATTRIBUTES_AT = 21
_ATTRIBUTES_AND_TIMES = struct.Struct(">hiqq")  # with the last record's number between them
_RECORDS_AT = 61
_CODEC_BITS = 0x07
_APPEND_TIME_BIT = 0x08
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BUFFER_IS_FULL = "failed to write whole buffer"
_LEAST_ROOM_BYTES, _USUAL_RATIO = 4_096, 5
"""The room for decompressed bytes: this, and so many times the compressed ones; then the limit."""

_MIN_RECORD_BYTES = 6
_VARINT_BITS = 70
_TIMESTAMP_RANGE_MS = range(-(2**63), 2**63)
MAX_DECOMPRESSED_BYTES = 100 * 1024 * 1024
"""The limit of decompressed bytes of a batch: that of an uncompressed request."""

RECORD_BYTES = 100
"""The bytes that each decoded record of a compressed batch counts for beside its own: each takes
time and memory."""


_LENGTH_AT, _LENGTH_END = 8, 12
"""The position of a batch's length."""


class CompressionError(ValueError):
    """A batch can't be decompressed."""


class DecompressionBudget:
    """The limit of decompressed bytes of the records of one request together.

    Args:
        remaining_bytes: the limit, in which each record counts for 100 bytes more.
    """

    __slots__ = ("remaining_bytes",)

    def __init__(self, remaining_bytes: int = MAX_DECOMPRESSED_BYTES) -> None:
        self.remaining_bytes = remaining_bytes

    def opened(self, codec: int, data: bytes, record_count: int) -> bytes:
        """Return a batch's records without compression. O(uncompressed bytes).

        Raises:
            SwollenBatchError: the records exceed the limit.
            CompressionError: the batch can't be decompressed.
        """
        if not codec:
            return data
        open_it = _CODECS.get(codec)
        if open_it is None:
            raise CompressionError(f"a batch with the unknown compression {codec}")
        self.charge(record_count)
        most = self.remaining_bytes
        try:
            found = open_it(data, most)
        except (OSError, EOFError, zlib.error, cramjam.DecompressionError) as error:
            raise CompressionError(f"a batch can't be decompressed: {error}") from error
        self.remaining_bytes = most - len(found)
        return found

    def charge(self, record_count: int) -> None:
        """Count compressed records that are decoded.

        Raises:
            SwollenBatchError: they exceed the limit.
        """
        self.remaining_bytes -= RECORD_BYTES * record_count
        if self.remaining_bytes <= 0:
            raise SwollenBatchError(f"{record_count} compressed records in one batch")


class Record(NamedTuple):
    """One record. The time is in milliseconds since 1970."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def read_records(batch: RecordBatch, data: bytes | None = None) -> Iterator[Record]:
    """Yield each record of a batch; none of a batch without bytes.

    Args:
        batch: the batch.
        data: its records, decompressed; None: they are yet to be, within 100 MiB.

    Raises:
        SwollenBatchError: the records exceed the limit.
        ValueError: the batch can't be decompressed, or its records are no records.
    """
    payload = batch.payload
    if payload is None:
        return
    attributes, _, base_ms, max_ms = _ATTRIBUTES_AND_TIMES.unpack_from(payload, _ATTRIBUTES_AT)
    if data is None:
        data = records_data(batch)
    for _, begin, end in _record_positions(data, batch.record_count):
        delta_ms, after = _varint(data, begin + 1)  # behind the attributes, one byte
        offset_delta, after = _varint(data, after)
        key, after = _bytes(data, after, end)
        value, after = _bytes(data, after, end)
        _check_headers(data, after, end)
        timestamp_ms = max_ms if attributes & _APPEND_TIME_BIT else base_ms + delta_ms
        if timestamp_ms not in _TIMESTAMP_RANGE_MS:
            raise ValueError("a record's time has more than 64 bits")
        yield Record(_offset(batch, offset_delta), timestamp_ms, key, value)


def whole_batches(records: bytes) -> Iterator[RecordBatch]:
    """Yield the whole batches of format 2; the last one may be cut off in a response."""
    at = 0
    while len(records) - at >= _LENGTH_END:
        length = int.from_bytes(records[at + _LENGTH_AT : at + _LENGTH_END], "big", signed=True)
        end = at + _LENGTH_END + length
        if length < 0 or end > len(records):
            return
        with suppress(KafkaError):  # of an older format, or damaged: it is skipped
            yield RecordBatch.from_bytes(records[at:end], may_be_compacted=True)
        at = end


def raw_records(batch: RecordBatch) -> Iterator[tuple[int, bytes]]:
    """Yield the offset of each record of a batch, and its bytes with their length before them.

    Raises:
        ValueError: as for ``read_records``.
    """
    data = records_data(batch)
    for at, begin, end in _record_positions(data, batch.record_count):
        _, after = _varint(data, begin + 1)  # the time
        offset_delta, _ = _varint(data, after)
        yield _offset(batch, offset_delta), data[at:end]


def codec_of(batch: RecordBatch) -> int:
    """Return by which of Kafka's codecs a batch is compressed, 0 for none."""
    assert batch.payload is not None, "it has bytes"
    return batch.payload[_ATTRIBUTES_AT + 1] & _CODEC_BITS  # the lower byte


def records_data(batch: RecordBatch, budget: DecompressionBudget | None = None) -> bytes:
    """Return the bytes of a batch's records, decompressed. O(bytes).

    Raises:
        ValueError: as for ``read_records``.
    """
    if batch.payload is None or not batch.record_count:
        return b""  # after compaction, whatever its attributes are
    data, codec = batch.payload[_RECORDS_AT:], codec_of(batch)
    return (
        (budget or DecompressionBudget()).opened(codec, data, batch.record_count) if codec else data
    )


def compressed(attributes: int, records: bytes, level: int | None = None) -> bytes:
    """Return records compressed as a batch's attributes say. O(bytes).

    Args:
        attributes: their lowest bits are the codec.
        records: their bytes.
        level: the codec's level, if it has any; None: its default.
    """
    levels = () if level is None else (level,)
    return bytes(_COMPRESSIONS[attributes & _CODEC_BITS](records, *levels))


def _gzip(data: bytes, max_bytes: int) -> bytes:
    with gzip.GzipFile(fileobj=BytesIO(data)) as file:
        found = file.read(max_bytes + 1)
    if len(found) > max_bytes:
        raise _too_large(max_bytes)
    return found


def _snappy(data: bytes, max_bytes: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data, max_bytes)
    # Java's framing: a header, then blocks with their lengths.
    out = bytearray()
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        begin = at + 4
        at = begin + int.from_bytes(data[at:begin], "big")
        out += _snappy_block(data[begin:at], max_bytes - len(out))
    return bytes(out)


def _snappy_block(data: bytes, max_bytes: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(data) > max_bytes:  # which it says itself, and keeps to
        raise _too_large(max_bytes)
    return bytes(cramjam.snappy.decompress_raw(data))


def _decompress_into(decompress: Callable[[bytes, Any], int]) -> Callable[[bytes, int], bytes]:
    """Return a decompressor whose memory grows with the decompressed bytes."""

    def bounded_decompress(data: bytes, max_bytes: int) -> bytes:
        # To map all that may come takes longer than to open a small batch.
        room = bytearray(min(max_bytes, _LEAST_ROOM_BYTES + _USUAL_RATIO * len(data)))
        try:
            return bytes(memoryview(room)[: decompress(data, room)])
        except cramjam.DecompressionError as error:
            if str(error) != _BUFFER_IS_FULL:
                raise
        with mmap.mmap(-1, max_bytes) as budget:
            try:
                return budget[: decompress(data, budget)]
            except cramjam.DecompressionError as error:
                if str(error) == _BUFFER_IS_FULL:
                    raise _too_large(max_bytes) from error
                raise

    return bounded_decompress


def _too_large(max_bytes: int) -> SwollenBatchError:
    return SwollenBatchError(f"more than {max_bytes} bytes come out of a compressed batch")


_lz4_any = _decompress_into(cramjam.lz4.decompress_into)
_LZ4_FLAGS_AT, _LZ4_INDEPENDENT = 4, 0x20


def _lz4_opened(data: bytes, max_bytes: int) -> bytes:
    """Decompress a frame; Java's clients and brokers read independent blocks alone."""
    if len(data) > _LZ4_FLAGS_AT and not data[_LZ4_FLAGS_AT] & _LZ4_INDEPENDENT:
        raise cramjam.DecompressionError("lz4: blocks depend on others: Java reads none such")
    return _lz4_any(data, max_bytes)


_CODECS: Mapping[int, Callable[[bytes, int], bytes]] = {
    1: _gzip,
    2: _snappy,
    3: _lz4_opened,
    4: _decompress_into(cramjam.zstd.decompress_into),
}


def _lz4(data: bytes, level: int | None = None) -> Any:
    # Java refuses blocks that depend on one another, which `cramjam.lz4.compress` makes.
    frame = cramjam.lz4.Compressor(level=level, block_linked=False)
    frame.compress(data)
    return frame.finish()


_COMPRESSIONS: Mapping[int, Callable[..., Any]] = {
    0: bytes,
    1: gzip.compress,
    2: cramjam.snappy.compress_raw,
    3: _lz4,
    4: cramjam.zstd.compress,
}


def _record_positions(data: bytes, record_count: int) -> Iterator[tuple[int, int, int]]:
    """Yield the positions of each record's length, begin and end."""
    at = 0
    for _ in range(record_count):
        length, begin = _varint(data, at)
        end = begin + length
        if length < _MIN_RECORD_BYTES or end > len(data):
            raise ValueError(f"a record of {length} bytes, {len(data) - begin} are there")
        yield at, begin, end
        at = end
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes after the last of {record_count} records")


def _offset(batch: RecordBatch, delta: int) -> int:
    if not 0 <= delta < batch.offset_count:
        raise ValueError(f"record {delta} of a batch of {batch.offset_count}")
    return batch.base_offset + delta


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    if length < 0:
        return None, at
    if at + length > end:
        raise ValueError("a record ends within a field")
    return data[at : at + length], at + length


def _check_headers(data: bytes, at: int, end: int) -> None:
    """Refuse headers that do not end where their record does, or that have no key."""
    headers, at = _varint(data, at)
    if not 0 <= headers <= end - at:
        raise ValueError(f"a record with {headers} headers in {end - at} bytes")
    for _ in range(headers):
        key, at = _bytes(data, at, end)
        if key is None:
            raise ValueError("a record's header has no key")
        _, at = _bytes(data, at, end)
    if at != end:
        raise ValueError(f"a record's fields end {end - at} bytes before its end")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number, and where it ends."""
    number = shift = 0
    while shift < _VARINT_BITS:
        try:
            byte = data[at]
        except IndexError:
            raise ValueError("a record ends within a number") from None
        at += 1
        if byte < 0x80 and not shift:  # as most are
            return (byte >> 1) ^ -(byte & 1), at
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise ValueError("a number in a record has more than 64 bits")


# By timestamp.

_READ_BYTES = 1024 * 1024
_log = Logger("purgatory.cluster")


def find_by_timestamp(log: Log, timestamp_ms: int, upto_offset: int) -> Record | None:
    """Return the first record, below ``upto_offset``, that is not older. O(batches).

    Raises:
        ValueError: a batch can't be looked into.
    """
    for batch in _batches(log, upto_offset):
        if batch.max_timestamp_ms >= timestamp_ms:
            for record in read_records(batch):
                if record.timestamp_ms >= timestamp_ms and record.offset >= log.start_offset:
                    return record
    return None


def earliest_offset_since(partition: Partition, since_ms: int) -> int:
    """Return the offset of the first committed record that is not older; -1: there is none.

    With an unreadable batch, it is the log's start. O(batches).
    """
    try:
        found = find_by_timestamp(partition.log, since_ms, partition.high_watermark)
    except ValueError as error:
        key = str(partition.topic_partition)
        _log.warning("times_unreadable", partition=key, reason=str(error))
        return partition.log_start_offset
    return UNKNOWN_OFFSET if found is None else found.offset


def latest(log: Log, upto_offset: int) -> Record | None:
    """Return the record with the largest timestamp; the first of several.

    Deleted ones count as long as their segment is there, as in Kafka.

    Raises:
        ValueError: a batch can't be looked into.
    """
    batches = (
        batch
        for segment in (*log.closed_segments(), log.active_segment)
        for batch in segment.batches
        if batch.base_offset < upto_offset
    )
    newest = max(batches, key=attrgetter("max_timestamp_ms"), default=None)
    if newest is None:
        return None
    return max(read_records(newest), key=lambda record: record.timestamp_ms, default=None)


def _batches(log: Log, upto_offset: int) -> Iterator[RecordBatch]:
    offset = log.start_offset
    while offset < upto_offset:
        batches = log.read(offset, _READ_BYTES, upto_offset)
        if not batches:
            return
        yield from batches
        offset = batches[-1].next_offset


# Compaction and recompression.

_HEADER = struct.Struct(">qiibIhiqqqhii")
_NO_TIME = -1
_UNKNOWN_PRODUCER = -1


class StoredContents:
    """Reads the records of batches that have their bytes (`BatchContents`)."""

    def records(self, batch: RecordBatch) -> Iterator[KeyedRecord]:
        """Yield the fields of each record that compaction needs.

        Raises:
            ValueError: the batch can't be looked into.
        """
        for record in read_records(batch):
            yield KeyedRecord(record.offset, record.key, record.value is None)

    def retain_records(self, batch: RecordBatch, offsets: Collection[int]) -> RecordBatch:
        """Return the batch with only these of its records, unchanged byte for byte.

        Raises:
            ValueError: the batch can't be looked into.
        """
        data = batch.to_bytes()
        header = list(_HEADER.unpack_from(data))
        attributes = header[5]
        kept = [raw for offset, raw in raw_records(batch) if offset in offsets]
        times_ms = [
            record.timestamp_ms for record in read_records(batch) if record.offset in offsets
        ]
        header[12] = len(kept)
        if not kept:  # no client decompresses nothing
            header[5] = attributes & ~_CODEC_BITS
            return packed_batch(header, b"")
        if not attributes & APPEND_TIME_BIT:
            header[8] = max(times_ms)
        return packed_batch(header, compressed(attributes, b"".join(kept)))

    def empty(self, base_offset: int, next_offset: int, leader_epoch: int) -> RecordBatch:
        """Return a batch without records that spans these offsets."""
        last_delta = next_offset - base_offset - 1
        times_and_producer = [
            _NO_TIME,
            _NO_TIME,
            _UNKNOWN_PRODUCER,
            _UNKNOWN_PRODUCER,
            _UNKNOWN_PRODUCER,
        ]
        return packed_batch(
            [base_offset, 0, leader_epoch, _MAGIC, 0, 0, last_delta, *times_and_producer, 0], b""
        )


def recompressed(
    batch: RecordBatch, codec: int, level: int | None, budget: DecompressionBudget | None = None
) -> RecordBatch:
    """Return a batch compressed by a codec, or itself where it is already. O(bytes).

    Raises:
        SwollenBatchError: the records exceed the limit.
        ValueError: the batch can't be decompressed.
    """
    if codec_of(batch) == codec:
        return batch
    return repacked(batch, records_data(batch, budget), codec, level)


def repacked(batch: RecordBatch, records: bytes, codec: int, level: int | None) -> RecordBatch:
    """Return a batch with other records, compressed by a codec. O(bytes)."""
    header = list(_HEADER.unpack_from(batch.to_bytes()))
    header[5] += codec - codec_of(batch)  # the attributes' lowest bits
    return packed_batch(header, compressed(codec, records, level))


def renumbered(data: bytes, record_count: int) -> bytes:
    """Return records with offsets numbered from the batch's first one on. O(bytes).

    Raises:
        ValueError: the records are no records.
    """
    written = []
    for number, (_, begin, end) in enumerate(_record_positions(data, record_count)):
        _, offset_at = _varint(data, begin + 1)  # behind the attributes, and the time
        _, after = _varint(data, offset_at)
        written.append(
            _written_bytes(data[begin:offset_at] + _written_varint(number) + data[after:end])
        )
    return b"".join(written)


def packed_batch(header: list[int], records: bytes) -> RecordBatch:
    """Return a batch of a header and records, with its length and checksum."""
    header[1] = HEADER_BYTES - 12 + len(records)
    header[4] = 0
    data = _HEADER.pack(*header) + records
    header[4] = crc32c(data[CHECKSUM_OFFSET:])
    return RecordBatch.from_bytes(_HEADER.pack(*header) + records, may_be_compacted=True)


# Batches of the broker's own.

_NO_PRODUCER = ProducerIdentity(-1, -1)
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_MAGIC, _NO_SEQUENCE = 2, -1
_MARKER_KEY = struct.Struct(">hh")  # version, type
_MARKER_VALUE = struct.Struct(">hi")  # version, the coordinator's epoch


def new_batch(
    records: Sequence[tuple[bytes, bytes | None]], producer: ProducerIdentity | None = None
) -> RecordBatch:
    """Return a batch of records, as keys and values; with a producer, of its transaction."""
    return _build_batch(
        records, producer or _NO_PRODUCER, 0 if producer is None else _TRANSACTIONAL
    )


def new_marker(
    producer: ProducerIdentity, result: TransactionResult, coordinator_epoch: int
) -> RecordBatch:
    """Return the marker that ends a producer's transaction on a partition, in Kafka's layout."""
    key, value = _MARKER_KEY.pack(0, result.value), _MARKER_VALUE.pack(0, coordinator_epoch)
    return _build_batch([(key, value)], producer, _TRANSACTIONAL | _CONTROL)


def _build_batch(
    records: Sequence[tuple[bytes, bytes | None]], producer: ProducerIdentity, attributes: int
) -> RecordBatch:
    now_ms = time.time_ns() // 1_000_000
    count = len(records)
    header = [0, 0, 0, _MAGIC, 0, attributes, count - 1, now_ms, now_ms, *producer]
    data = b"".join(_record(number, *record) for number, record in enumerate(records))
    return packed_batch([*header, _NO_SEQUENCE, count], data)


def _record(number: int, key: bytes, value: bytes | None) -> bytes:
    # Its attributes and its time, none before the others', and at the end no headers.
    body = b"\0\0" + _written_varint(number) + _written_bytes(key) + _written_bytes(value) + b"\0"
    return _written_bytes(body)


def _written_bytes(data: bytes | None) -> bytes:
    return _written_varint(-1) if data is None else _written_varint(len(data)) + data


def _written_varint(number: int) -> bytes:
    """Return a number, of -1 or more, in zigzag."""
    number = number << 1 if number >= 0 else 1
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
