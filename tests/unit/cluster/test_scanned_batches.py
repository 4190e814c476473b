"""The leader's scan of produced batches: which are refused, and what it changes in the others."""

from __future__ import annotations

import gzip

import pytest
from crc32c import crc32c

from purgatory.cluster.log_validator import validated
from purgatory.cluster.records import (
    DecompressionBudget,
    codec_of,
    compressed,
    packed_batch,
    read_records,
)
from purgatory.kafka import ErrorCode, KafkaError, LogConfig, RecordBatch, TopicPartition
from tests.unit.kafka.log.test_record_scan import record

_TO = TopicPartition("t", 0)
_NOW_MS = 1_700_000_000_000
_TWO = record(0) + record(1)
CODECS = [0, 1, 2, 3, 4]


def _batch(
    records: bytes, count: int, codec: int = 0, last_delta: int | None = None, max_ms: int = _NOW_MS
) -> RecordBatch:
    last_delta = count - 1 if last_delta is None else last_delta
    header = [0, 0, 0, 2, 0, codec, last_delta, _NOW_MS, max_ms, -1, -1, -1, count]
    return packed_batch(header, records)


def _validated(batch: RecordBatch, config: LogConfig | None = None) -> RecordBatch:
    """Return the batch to append, read back as an intact one."""
    (found,) = validated(
        [batch], config or LogConfig(), _TO, lambda: _NOW_MS, DecompressionBudget()
    )
    return RecordBatch.from_bytes(found.to_bytes(), checksum=crc32c)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("records", "count"),
    [
        (_TWO, 1),
        (_TWO, 3),
        (record(headers=((None, b"v"),)), 1),
        (b"\0" * 10, 1),
        (b"\x02", 1),
        (_TWO[:-1], 2),
    ],
)
def test_batch_with_malformed_records_is_refused(codec: int, records: bytes, count: int) -> None:
    with pytest.raises(KafkaError) as caught:
        _validated(_batch(compressed(codec, records), count, codec))
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_record_of_a_wrong_length_is_refused() -> None:
    wrong = b"\x40" + record()[1:]
    with pytest.raises(KafkaError, match="INVALID_RECORD"):
        _validated(_batch(wrong, 1))
    with pytest.raises(KafkaError, match="INVALID_RECORD"):
        _validated(_batch(gzip.compress(wrong), 1, 1), LogConfig(codec=3))
    # Kafka skips the fields of a batch that stays compressed, and never looks at the length.
    assert _validated(_batch(gzip.compress(wrong), 1, 1)).record_count == 1


@pytest.mark.parametrize("codec", CODECS)
def test_right_batch_is_appended_as_it_came(codec: int) -> None:
    batch = _batch(compressed(codec, _TWO), 2, codec)
    assert validated([batch], LogConfig(), _TO, lambda: _NOW_MS, DecompressionBudget()) == [batch]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("claimed_ms", [-1, 5, _NOW_MS + 5])
def test_latest_time_of_a_batch_is_that_of_its_records(codec: int, claimed_ms: int) -> None:
    records = record(0, delta_ms=7) + record(1, delta_ms=-3)
    found = _validated(_batch(compressed(codec, records), 2, codec, max_ms=claimed_ms))
    assert found.max_timestamp_ms == _NOW_MS + 7
    assert [one.timestamp_ms for one in read_records(found)] == [_NOW_MS + 7, _NOW_MS - 3]


_MISNUMBERED = record(1, value=b"a") + record(1, value=b"b")


@pytest.mark.parametrize(("codec", "topic_codec"), [(0, 1), (1, 0), (3, 4)])
def test_records_of_a_rewritten_batch_are_numbered_anew(codec: int, topic_codec: int) -> None:
    batch = _batch(compressed(codec, _MISNUMBERED), 2, codec)
    found = _validated(batch, LogConfig(codec=topic_codec))
    read = [(one.offset, one.value) for one in read_records(found)]
    assert read == [(0, b"a"), (1, b"b")]
    assert codec_of(found) == topic_codec


def test_misnumbered_records_are_taken_uncompressed_alone() -> None:
    found = _validated(_batch(_MISNUMBERED, 2))
    assert [one.offset for one in read_records(found)] == [1, 1]
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
        _validated(_batch(compressed(2, _MISNUMBERED), 2, 2))


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5])
def test_batch_that_cannot_be_decompressed_is_refused(codec: int) -> None:
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
        _validated(_batch(b"garbage", 1, codec))


def test_decompressed_records_count_together() -> None:
    batch = _batch(gzip.compress(record(0, value=bytes(1_000))), 1, 1)
    budget = DecompressionBudget(1_500)
    validated([batch], LogConfig(), _TO, lambda: _NOW_MS, budget)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        validated([batch], LogConfig(), _TO, lambda: _NOW_MS, budget)
