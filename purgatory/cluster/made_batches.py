"""Record batches that the brokers themselves write: into internal topics, and as markers."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

from purgatory.cluster.batch_contents import packed_batch
from purgatory.kafka import EndTransaction, ProducerIdentity, RecordBatch

_NOBODY = ProducerIdentity(-1, -1)
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_MAGIC, _NO_SEQUENCE = 2, -1
_MARKER_KEY = struct.Struct(">hh")  # version, type
_MARKER_VALUE = struct.Struct(">hi")  # version, the coordinator's epoch


def made_batch(
    records: Sequence[tuple[bytes, bytes | None]], producer: ProducerIdentity | None = None
) -> RecordBatch:
    """Return a batch of records, as keys and values; with a producer, of its transaction."""
    return _made(records, producer or _NOBODY, 0 if producer is None else _TRANSACTIONAL)


def made_marker(
    producer: ProducerIdentity, how: EndTransaction, coordinator_epoch: int
) -> RecordBatch:
    """Return the marker that ends a producer's transaction on a partition, in Kafka's layout."""
    key, value = _MARKER_KEY.pack(0, how.value), _MARKER_VALUE.pack(0, coordinator_epoch)
    return _made([(key, value)], producer, _TRANSACTIONAL | _CONTROL)


def _made(
    records: Sequence[tuple[bytes, bytes | None]], producer: ProducerIdentity, attributes: int
) -> RecordBatch:
    now_ms = time.time_ns() // 1_000_000
    count = len(records)
    header = [0, 0, 0, _MAGIC, 0, attributes, count - 1, now_ms, now_ms, *producer]
    data = b"".join(_record(number, *record) for number, record in enumerate(records))
    return packed_batch([*header, _NO_SEQUENCE, count], data)


def _record(number: int, key: bytes, value: bytes | None) -> bytes:
    # Its attributes and its time, none before the others', and at the end no headers.
    body = b"\0\0" + _varint(number) + _bytes(key) + _bytes(value) + b"\0"
    return _bytes(body)


def _bytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a number, of -1 or more, in zigzag."""
    number = number << 1 if number >= 0 else 1
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
