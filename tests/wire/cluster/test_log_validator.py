"""Batches with records that their topic rejects: the response names each of these (KIP-467)."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from crc32c import crc32c

from purgatory.cluster import ThreadedCluster
from purgatory.cluster.log_validator import validated
from purgatory.cluster.records import DecompressionBudget, recompressed
from purgatory.kafka import ErrorCode, KafkaError, LogConfig, RecordBatch, TopicPartition
from purgatory.kafka.log.record_batch import APPEND_TIME_BIT, CHECKSUM_OFFSET
from tests.wire.cluster.kafka_client import TIMEOUT_S
from tests.wire.cluster.wire_values import RECORD_TIME_MS, keyed_batch

TO = TopicPartition("t", 0)
HOUR_MS = 3_600_000
COMPACTED = LogConfig(compacts=True)
LATE = LogConfig(timestamp_before_max_ms=HOUR_MS, timestamp_after_max_ms=None)
EARLY = LogConfig(timestamp_after_max_ms=HOUR_MS)
BOTH = LogConfig(compacts=True, timestamp_before_max_ms=HOUR_MS)
Row = tuple[bytes | None, int]

KEYED, KEYLESS = (b"k", 0), (None, 0)
OLD, NEW, TIMELESS = (b"k", -2 * HOUR_MS), (b"k", 2 * HOUR_MS), (b"k", -RECORD_TIME_MS - 1)
OLD_KEYLESS = (None, -2 * HOUR_MS)


def batch_of(*rows: Row, codec: int = 0) -> RecordBatch:
    """A batch of records with these keys, at these times after the broker's own."""
    batch = RecordBatch.from_bytes(
        keyed_batch([(key, RECORD_TIME_MS + after_ms) for key, after_ms in rows])
    )
    return recompressed(batch, codec, None)


def refusal(batch: RecordBatch, config: LogConfig) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        validated([batch], config, TO, lambda: RECORD_TIME_MS, DecompressionBudget())
    return caught.value


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(
    ("config", "rows", "code", "bad"),
    [
        (COMPACTED, [KEYLESS], ErrorCode.INVALID_RECORD, {0: "key"}),
        (COMPACTED, [KEYED, KEYLESS, KEYLESS], ErrorCode.INVALID_RECORD, {1: "key", 2: "key"}),
        (LATE, [KEYED, OLD, OLD, NEW], ErrorCode.INVALID_TIMESTAMP, {1: "time", 2: "time"}),
        (EARLY, [NEW, OLD], ErrorCode.INVALID_TIMESTAMP, {0: "time"}),
        (LATE, [TIMELESS, OLD], ErrorCode.INVALID_TIMESTAMP, {1: "time"}),
        (BOTH, [KEYED, KEYLESS, OLD], ErrorCode.INVALID_TIMESTAMP, {1: "key", 2: "time"}),
        (BOTH, [OLD_KEYLESS, KEYED], ErrorCode.INVALID_RECORD, {0: "key"}),
    ],
)
def test_error_names_each_invalid_record(
    codec: int, config: LogConfig, rows: list[Row], code: ErrorCode, bad: dict[int, str]
) -> None:
    error = refusal(batch_of(*rows, codec=codec), config)
    assert error.code is code
    assert [one.batch_index for one in error.record_errors] == list(bad)
    for one in error.record_errors:
        assert bad[one.batch_index] in one.message
    assert f"number {min(bad)}" in error.message


def _claiming_append_time() -> RecordBatch:
    data = bytearray(batch_of(KEYED, KEYED).to_bytes())
    data[CHECKSUM_OFFSET + 1] |= APPEND_TIME_BIT
    data[CHECKSUM_OFFSET - 4 : CHECKSUM_OFFSET] = crc32c(bytes(data[CHECKSUM_OFFSET:])).to_bytes(
        4, "big"
    )
    return RecordBatch.from_bytes(bytes(data))


def test_append_time_of_a_producer_is_refused() -> None:
    error = refusal(_claiming_append_time(), LogConfig(is_log_append_time=True))
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [one.batch_index for one in error.record_errors] == [0, 1]


@pytest.mark.parametrize("config", [LogConfig(), LATE])
def test_append_time_of_a_producer_is_none_by_create_time(config: LogConfig) -> None:
    batch = _claiming_append_time()
    (found,) = validated([batch], config, TO, lambda: RECORD_TIME_MS, DecompressionBudget())
    assert found.to_bytes() == batch_of(KEYED, KEYED).to_bytes()


def test_records_without_a_time_are_accepted() -> None:
    batch = batch_of(TIMELESS)
    assert validated([batch], LATE, TO, lambda: RECORD_TIME_MS, DecompressionBudget()) == [batch]


@pytest.mark.parametrize("config", [COMPACTED, LATE])
def test_batch_that_is_too_large_is_not_decoded(config: LogConfig) -> None:
    batch = batch_of(*[OLD_KEYLESS] * 100)
    small = replace(config, max_batch_bytes=batch.size_bytes - 1)
    error = refusal(batch, small)
    assert (error.code, error.record_errors) == (ErrorCode.MESSAGE_TOO_LARGE, ())


@pytest.mark.parametrize(
    ("settings", "key", "age_ms"),
    [
        ({"cleanup.policy": "compact"}, None, 0),
        ({"message.timestamp.before.max.ms": "60000"}, b"k", HOUR_MS),
    ],
)
def test_librdkafka_distinguishes_the_invalid_records_of_a_batch(
    cluster: ThreadedCluster,
    name: str,
    settings: dict[str, str],
    key: bytes | None,
    age_ms: int,
) -> None:
    cluster.create_topic(name, settings=settings)
    told: Counter[tuple[bytes, str]] = Counter()
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 500})

    def delivered(error: Any, message: Any) -> None:
        told[message.value(), error.name()] += 1

    def produce(value: bytes, key: bytes | None, time_ms: int) -> None:
        producer.produce(name, value, key, timestamp=time_ms, on_delivery=delivered)

    now_ms = time.time_ns() // 1_000_000
    for _ in range(10):
        produce(b"wrong", key, now_ms - age_ms)
    for _ in range(90):
        produce(b"right", b"k", now_ms)
    assert producer.flush(TIMEOUT_S) == 0
    assert told == {(b"wrong", "INVALID_RECORD"): 10, (b"right", "_INVALID_DIFFERENT_RECORD"): 90}
