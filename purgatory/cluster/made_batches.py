"""Record batches that the brokers themselves write: into internal topics, and as markers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from io import BytesIO

from crc32c import crc32c
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch

from purgatory.kafka import EndTransaction, ProducerIdentity, RecordBatch

_NOBODY = ProducerIdentity(-1, -1)
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
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
    now = datetime.now(UTC)
    buffer = BytesIO()
    write_batch(
        buffer,
        NewRecordBatch(
            producer_id=producer.producer_id,  # type: ignore[arg-type]
            producer_epoch=producer.producer_epoch,  # type: ignore[arg-type]
            base_sequence=-1,  # type: ignore[arg-type]
            attributes=attributes,  # type: ignore[arg-type]
            records=tuple(
                Record(
                    attributes=0,  # type: ignore[arg-type]
                    timestamp=now,  # type: ignore[arg-type]
                    offset=number,  # type: ignore[arg-type]
                    key=key,
                    value=value,
                    headers=(),
                )
                for number, (key, value) in enumerate(records)
            ),
        ),
    )
    return RecordBatch.from_bytes(buffer.getvalue(), checksum=crc32c)
