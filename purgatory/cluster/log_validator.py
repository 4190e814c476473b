"""A leader's checks of a client's records before the append, and its changes of them: the time of
the append and another compression, where their topic asks for it, and the batch's latest time,
where it is not that of its records.

The records of each batch are scanned. They are decoded only for topics that need it, which most
don't.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from crc32c import crc32c

from purgatory.cluster.errors import SwollenBatchError
from purgatory.cluster.records import (
    CompressionError,
    DecompressionBudget,
    Record,
    codec_of,
    read_records,
    renumbered,
    repacked,
)
from purgatory.kafka import ErrorCode, KafkaError, LogConfig, RecordBatch, TopicPartition
from purgatory.kafka.errors import RecordError
from purgatory.kafka.log.record_batch import APPEND_TIME_BIT, CHECKSUM_OFFSET, HEADER_BYTES
from purgatory.kafka.log.record_scan import scan_records
from purgatory.kafka.replication.partition import check_size

_ATTRIBUTES_AT = CHECKSUM_OFFSET + 1
"""The position of the lower byte of the attributes."""

_TIMES = struct.Struct(">qq")
_TIMES_AT = 27
"""The position of a batch's first time, before the latest."""

_NO_TIME = -1
_LATEST_MS = 2**63 - 1
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
    """Validate batches, and return those to append. O(bytes).

    Args:
        batches: with their bytes.
        config: of the log.
        to: the log's partition.
        now_ms: returns the time, in milliseconds since 1970.
        budget: the limit of decompressed bytes; decoded records use it up.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE: a batch is larger than the log permits, or exceeds the
            budget; Java's producers then send it in parts. With the invalid records (KIP-467):
            INVALID_RECORD, for records without a key in a compacted topic; INVALID_TIMESTAMP, which
            takes precedence. INVALID_RECORD also for a batch whose records are none;
            UNKNOWN_SERVER_ERROR for one that can't be decompressed, or is compressed, and its
            records aren't numbered from 0 on.
    """
    return [_validated(batch, config, to, now_ms, budget) for batch in batches]


def _validated(
    batch: RecordBatch,
    config: LogConfig,
    to: TopicPartition,
    now_ms: Callable[[], int],
    budget: DecompressionBudget,
) -> RecordBatch:
    check_size(batch, config)  # before it is decompressed
    payload = batch.payload
    assert payload is not None, "it came from a client"
    sent_codec = codec_of(batch)
    codec = sent_codec if config.codec is None else config.codec
    try:
        if sent_codec:
            records, begin = budget.opened(sent_codec, payload[HEADER_BYTES:], 0), 0
        else:
            records, begin = payload, HEADER_BYTES
        # Of a compressed batch that stays as it is, Kafka skips the fields: their ends count.
        delta_ms, is_numbered = scan_records(
            records, begin, batch.record_count, not sent_codec or codec != sent_codec
        )
    except ValueError as error:  # a context manager costs each batch more
        raise _invalid(error) from error
    first_ms, sent_latest_ms = _TIMES.unpack_from(payload, _TIMES_AT)
    claims_append_time = payload[_ATTRIBUTES_AT] & APPEND_TIME_BIT
    refuses_times = claims_append_time and (config.is_log_append_time or sent_latest_ms == _NO_TIME)
    if codec == sent_codec and sent_codec and not is_numbered:
        # Kafka would number them anew, but has skipped their fields.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "its records aren't numbered from 0 on")
    checks_times = _may_be_far(first_ms + delta_ms, config, now_ms)
    if config.compacts or checks_times or refuses_times:
        with _raise_invalid():
            if sent_codec:
                budget.charge(batch.record_count)
            found = list(read_records(batch, records[begin:]))
        limits_at_ms = now_ms() if checks_times else None
        _check_records(found, config, to, limits_at_ms, bool(refuses_times))
    if codec != sent_codec:
        with _raise_invalid():
            records = records[begin:]
            if not is_numbered:
                records = renumbered(records, batch.record_count)
            batch = repacked(batch, records, codec, config.codec_level)
    if config.is_log_append_time:
        return batch.with_append_time(now_ms(), crc32c)
    latest_ms = sent_latest_ms if claims_append_time else max(_NO_TIME, first_ms + delta_ms)
    if latest_ms == sent_latest_ms and not claims_append_time:
        return batch
    if latest_ms > _LATEST_MS:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a record's time has more than 64 bits")
    return batch.with_max_timestamp(latest_ms, crc32c)


def _may_be_far(latest_ms: int, config: LogConfig, now_ms: Callable[[], int]) -> bool:
    """Whether a record's time may be too far from the broker's, where this is the latest."""
    if config.is_log_append_time:
        return False
    if config.timestamp_before_max_ms is not None:
        return True
    ahead_ms = config.timestamp_after_max_ms
    return ahead_ms is not None and latest_ms > now_ms() + ahead_ms


def _check_records(
    records: Sequence[Record],
    config: LogConfig,
    to: TopicPartition,
    now_ms: int | None,
    refuses_times: bool,
) -> None:
    errors, code = [], ErrorCode.INVALID_RECORD
    for number, record in enumerate(records):
        if config.compacts and record.key is None:
            errors.append(RecordError(number, _NO_KEY))
        elif refuses_times:
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
    except ValueError as error:
        raise _invalid(error) from error


def _invalid(error: ValueError) -> KafkaError:
    code = ErrorCode.INVALID_RECORD
    if isinstance(error, SwollenBatchError):
        code = ErrorCode.MESSAGE_TOO_LARGE
    elif isinstance(error, CompressionError):  # as in Kafka
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(code, str(error))


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
