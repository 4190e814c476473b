from __future__ import annotations

import struct
import zlib

import pytest

from purgatory.kafka import ErrorCode, KafkaError, RecordBatch, TransactionResult
from purgatory.kafka.log.record_batch import HEADER_BYTES, MAX_SEQUENCE, encode_batches


def real_batch(
    records: bytes = b"records",
    attributes: int = 0,
    magic: int = 2,
    record_count: int = 3,
    last_delta: int = 2,
) -> bytes:
    """A batch as a client sends it: offset 0, epoch -1. The checksum is zlib's, for the test."""
    covered = (
        struct.pack(">hiqqqhii", attributes, last_delta, 11, 22, 7, 4, 90, record_count) + records
    )
    length = 4 + 1 + 4 + len(covered)
    return struct.pack(">qiibI", 0, length, -1, magic, zlib.crc32(covered)) + covered


def control_record(kind: int) -> bytes:
    """One record with the key (version 0, type ``kind``): its numbers are zigzag varints."""
    key = struct.pack(">hh", 0, kind)
    value = struct.pack(">hi", 0, 5)
    body = b"\x00" + b"\x00" + b"\x00" + b"\x08" + key + b"\x0c" + value + b"\x00"
    return bytes([2 * len(body)]) + body


def test_a_header_has_61_bytes() -> None:
    assert HEADER_BYTES == 61
    assert len(real_batch(b"")) == 61


def test_from_bytes_reads_the_header() -> None:
    data = real_batch()

    batch = RecordBatch.from_bytes(data, checksum=zlib.crc32, tag="mine")

    assert (batch.base_offset, batch.last_offset, batch.record_count) == (0, 2, 3)
    assert batch.size_bytes == len(data)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 4, 90)
    assert batch.last_sequence == 92
    assert batch.leader_epoch == -1
    assert not batch.transactional
    assert batch.control is None
    assert batch.tag == "mine"
    assert batch.payload == data


def test_serialized_batch_differs_only_in_offset_and_epoch() -> None:
    data = real_batch()

    placed = RecordBatch.from_bytes(data).with_offset(1_000_000_007, 12)

    stamped = placed.to_bytes()
    assert struct.unpack_from(">qii", stamped) == (1_000_000_007, len(data) - 12, 12)
    assert stamped[16:] == data[16:]
    again = RecordBatch.from_bytes(stamped, checksum=zlib.crc32)
    assert (again.base_offset, again.leader_epoch) == (1_000_000_007, 12)


def test_placed_batch_shares_the_payload_of_the_original() -> None:
    batch = RecordBatch.from_bytes(real_batch(), tag=object())

    placed = batch.with_offset(40, 2)

    assert placed.payload is batch.payload
    assert placed.tag is batch.tag
    assert (batch.base_offset, batch.leader_epoch) == (0, -1)
    assert (placed.base_offset, placed.next_offset) == (40, 43)


def test_batch_without_payload_has_no_bytes() -> None:
    batch = RecordBatch(0, 1, 100)

    with pytest.raises(ValueError, match="without a payload"):
        batch.to_bytes()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes are fewer than a header's 61"),
        (real_batch()[:60], "60 bytes"),
        (real_batch()[:-1], "tells 68 bytes, there are 67"),
        (real_batch() + b"x", "tells 68 bytes, there are 69"),
        (real_batch(magic=1), "magic is 1"),
    ],
)
def test_bytes_that_are_no_batch_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(KafkaError, match=why) as failure:
        RecordBatch.from_bytes(data)

    assert failure.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (real_batch(record_count=0), "0 records"),
        (real_batch(last_delta=5), "3 records cannot end at offset 5"),
        (real_batch(records=b"no control record", attributes=0x20), "no end-transaction marker"),
        (real_batch(control_record(2), 0x20, 2, 1, 0), "no end-transaction marker"),
    ],
)
def test_header_that_contradicts_itself_is_refused(data: bytes, why: str) -> None:
    for may_be_compacted, code in (
        (False, ErrorCode.INVALID_RECORD),
        (True, ErrorCode.CORRUPT_MESSAGE),
    ):
        if may_be_compacted and "records" in why:
            continue  # compaction took them
        with pytest.raises(KafkaError, match=why) as failure:
            RecordBatch.from_bytes(data, may_be_compacted=may_be_compacted)

        assert failure.value.code is code


def test_wrong_checksum_is_refused() -> None:
    data = bytearray(real_batch())
    data[-1] ^= 1

    RecordBatch.from_bytes(bytes(data))
    with pytest.raises(KafkaError, match="checksum"):
        RecordBatch.from_bytes(bytes(data), checksum=zlib.crc32)


@pytest.mark.parametrize("how", list(TransactionResult))
def test_from_bytes_reads_an_end_transaction_marker(how: TransactionResult) -> None:
    data = real_batch(control_record(how.value), attributes=0x30, record_count=1, last_delta=0)

    batch = RecordBatch.from_bytes(data)

    assert batch.control is how
    assert batch.transactional


def test_sequence_numbers_wrap() -> None:
    batch = RecordBatch(0, 3, 100, producer_id=1, producer_epoch=0, base_sequence=MAX_SEQUENCE - 1)

    assert batch.last_sequence == 0


def test_a_batch_without_a_sequence_has_no_last_one() -> None:
    assert RecordBatch(0, 3, 100).last_sequence == -1


@pytest.mark.parametrize(("record_count", "size_bytes"), [(0, 100), (-1, 100), (1, 0)])
def test_empty_batch_is_refused(record_count: int, size_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"record_count={record_count}, size_bytes={size_bytes}"):
        RecordBatch(0, record_count, size_bytes)


def test_encode_batches_concatenates_the_bytes_of_each() -> None:
    batch = RecordBatch.from_bytes(real_batch())
    placed = [batch.with_offset(7, 1), batch.with_offset(1_000_000_007, 12)]
    assert encode_batches(placed) == placed[0].to_bytes() + placed[1].to_bytes()
    assert encode_batches([]) == b""
    with pytest.raises(ValueError, match="without a payload"):
        encode_batches([placed[0], RecordBatch(0, 1, 100)])
