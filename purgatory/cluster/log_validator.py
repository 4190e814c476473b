"""A leader's checks of a client's records before the append, and the changes that their topic asks
for: the time of the append, and another compression.

Records are decoded only for topics that need it, which most don't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crc32c import crc32c

from purgatory.cluster.errors import SwollenBatchError
from purgatory.cluster.records import DecompressionBudget, read_records, recompressed
from purgatory.kafka import ErrorCode, KafkaError, LogConfig, RecordBatch, TopicPartition
from purgatory.kafka.errors import RecordError
from purgatory.kafka.log.record_batch import APPEND_TIME_BIT, CHECKSUM_OFFSET
from purgatory.kafka.replication.partition import check_size

_ATTRIBUTES_AT = CHECKSUM_OFFSET + 1
"""The position of the lower byte of the attributes."""

_NO_TIME = -1
_NO_KEY = "it has no key, and the topic is compacted"

_APPEND_TIME = (
    "its batch claims the time of its append: producers can't know it, and the topic's "
    "message.timestamp.type decides it"
)


def validated(
    batches: list[RecordBatch],
    config: LogConfig,
    to: TopicPartition,
    now_ms: Callable[[], int],
    budget: DecompressionBudget,
) -> list[RecordBatch]:
    """Validate batches, and return those to append. O(batches), or O(bytes) if they change.

    Args:
        batches: with their bytes.
        config: of the log.
        to: the log's partition.
        now_ms: returns the time, in milliseconds since 1970.
        budget: the limit of decompressed bytes; decoded records use it up.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE: a batch exceeds the budget; Java's producers then send it in
            parts. With the invalid records (KIP-467): INVALID_RECORD, for records without a key in
            a compacted topic; INVALID_TIMESTAMP, which takes precedence. INVALID_RECORD also for a
            batch that can't be decoded.
    """
    for batch in batches:
        assert batch.payload is not None, "it came from a client"
        checks_times = _may_be_far(batch, config, now_ms)
        if config.compacts or checks_times or batch.payload[_ATTRIBUTES_AT] & APPEND_TIME_BIT:
            check_size(batch, config)  # before it is decoded
            _check_records(batch, config, to, now_ms() if checks_times else None, budget)
    if config.codec is not None:
        codec, level = config.codec, config.codec_level
        with _raise_invalid():
            batches = [recompressed(batch, codec, level, budget) for batch in batches]
    if config.is_log_append_time:
        append_ms = now_ms()
        return [batch.with_append_time(append_ms, crc32c) for batch in batches]
    return batches


def _may_be_far(batch: RecordBatch, config: LogConfig, now_ms: Callable[[], int]) -> bool:
    """Whether a record's time may be too far from the broker's: no later one is there than the
    batch's latest."""
    if config.is_log_append_time or not config.has_timestamp_limits:
        return False
    ahead_ms = config.timestamp_after_max_ms
    return config.timestamp_before_max_ms is not None or (
        ahead_ms is not None and batch.max_timestamp_ms > now_ms() + ahead_ms
    )


def _check_records(
    batch: RecordBatch,
    config: LogConfig,
    to: TopicPartition,
    now_ms: int | None,
    budget: DecompressionBudget,
) -> None:
    with _raise_invalid():
        records = list(read_records(batch, budget))
    assert batch.payload is not None, "it came from a client"
    claims_append_time = batch.payload[_ATTRIBUTES_AT] & APPEND_TIME_BIT
    errors, code = [], ErrorCode.INVALID_RECORD
    for number, record in enumerate(records):
        if config.compacts and record.key is None:
            errors.append(RecordError(number, _NO_KEY))
        elif claims_append_time:
            errors.append(RecordError(number, _APPEND_TIME))
            code = ErrorCode.INVALID_TIMESTAMP
        elif now_ms is not None and (
            error_message := _timestamp_error(record.timestamp_ms, config, now_ms)
        ):
            errors.append(RecordError(number, error_message))
            code = ErrorCode.INVALID_TIMESTAMP
    if errors:
        number, error_message = errors[0]
        message = f"{to} rejects the batch: {len(errors)} of its {len(records)} records are invalid"
        raise KafkaError(code, f"{message}, the first is number {number}: {error_message}", errors)


@contextmanager
def _raise_invalid() -> Iterator[None]:
    """Raise a client's error for a batch that can't be decoded."""
    try:
        yield
    except SwollenBatchError as error:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from error
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from error


def _timestamp_error(time_ms: int, config: LogConfig, now_ms: int) -> str | None:
    behind, ahead = config.timestamp_before_max_ms, config.timestamp_after_max_ms
    if time_ms == _NO_TIME or not (
        (behind is not None and time_ms < now_ms - behind)
        or (ahead is not None and time_ms > now_ms + ahead)
    ):
        return None
    return (
        f"its time is {time_ms}, the broker's {now_ms}: message.timestamp.before.max.ms is "
        f"{_format_limit(behind)}, message.timestamp.after.max.ms {_format_limit(ahead)}"
    )


def _format_limit(limit_ms: int | None) -> str:
    return "unlimited" if limit_ms is None else str(limit_ms)
