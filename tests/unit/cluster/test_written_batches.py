"""Batches that the brokers themselves write: the bytes that `kio` writes."""

from __future__ import annotations

from datetime import UTC, datetime
from io import BytesIO
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch

from purgatory.cluster.records import new_batch, new_marker
from purgatory.kafka import ProducerIdentity, RecordBatch, TransactionResult

_NOW_MS = 1_700_000_000_123
_records = st.lists(
    st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=200)), min_size=1, max_size=99
)
_producers = st.builds(ProducerIdentity, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))


def _by_kio(
    records: list[tuple[bytes, bytes | None]], producer: ProducerIdentity, attributes: int
) -> bytes:
    now = datetime.fromtimestamp(_NOW_MS / 1_000, UTC)
    made = tuple(
        Record(
            attributes=0,  # type: ignore[arg-type]
            timestamp=now,  # type: ignore[arg-type]
            offset=number,  # type: ignore[arg-type]
            key=key,
            value=value,
            headers=(),
        )
        for number, (key, value) in enumerate(records)
    )
    buffer = BytesIO()
    write_batch(
        buffer,
        NewRecordBatch(
            producer_id=producer.producer_id,  # type: ignore[arg-type]
            producer_epoch=producer.producer_epoch,  # type: ignore[arg-type]
            base_sequence=-1,  # type: ignore[arg-type]
            attributes=attributes,  # type: ignore[arg-type]
            records=made,
        ),
    )
    return buffer.getvalue()


@given(_records, st.none() | _producers)
def test_records_are_written_as_kio_writes_them(
    records: list[tuple[bytes, bytes | None]], producer: ProducerIdentity | None
) -> None:
    with patch("purgatory.cluster.records.time.time_ns", lambda: _NOW_MS * 1_000_000):
        batch = new_batch(records, producer)
    attributes = 0 if producer is None else 0x10
    assert batch.payload == _by_kio(records, producer or ProducerIdentity(-1, -1), attributes)
    assert batch.transactional == (producer is not None)
    assert batch.record_count == len(records)


@given(_producers, st.sampled_from(TransactionResult), st.integers(-1, 2**31 - 1))
def test_marker_round_trips(
    producer: ProducerIdentity, how: TransactionResult, coordinator_epoch: int
) -> None:
    payload = new_marker(producer, how, coordinator_epoch).payload
    assert payload is not None
    marker = RecordBatch.from_bytes(payload)
    assert (marker.control, marker.coordinator_epoch) == (how, coordinator_epoch)
    assert (marker.producer_id, marker.producer_epoch) == producer
