"""What a leader checks of a client's records before it appends them, and makes of them: the time
and the compression that their topic has.

Most topics need none of it: nobody looks into the records then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from crc32c import crc32c

from purgatory.cluster.batch_contents import recompressed
from purgatory.cluster.errors import SwollenBatchError
from purgatory.cluster.record_contents import Record, Room, records_of
from purgatory.kafka import ErrorCode, KafkaError, LogConfig, RecordBatch, TopicPartition
from purgatory.kafka.record_batch import APPEND_TIME_BIT, CHECKSUM_FROM

_ATTRIBUTES_AT = CHECKSUM_FROM + 1
"""Where the lower of the attributes' two bytes is."""


def validated(
    batches: list[RecordBatch],
    config: LogConfig,
    to: TopicPartition,
    now_ms: Callable[[], int],
    room: Room,
) -> list[RecordBatch]:
    """Return the batches as they are to be appended. O(batches); O(bytes) where they are changed.

    Args:
        batches: with their bytes.
        config: of the log that they are for.
        to: the log's partition.
        now_ms: tells the time, in milliseconds since 1970.
        room: how much compressed records may swell; what is opened is taken from it.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE, more would come out of a batch; Java's producers then send it
            in parts. INVALID_RECORD, a record without a key, of which compaction would not know
            which one it replaces; INVALID_TIMESTAMP; CORRUPT_MESSAGE.
    """
    checks_records = config.compacts or (config.limits_times and not config.appends_time)
    for batch in batches:
        assert batch.payload is not None, "it came from a client"
        if batch.payload[_ATTRIBUTES_AT] & APPEND_TIME_BIT:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"a batch for {to} says that its time is that of its append: producers can't "
                "know it, the topic's message.timestamp.type decides it",
            )
        if checks_records:
            _check_records(batch, config, to, now_ms(), room)
    if config.codec is not None:
        codec, level = config.codec, config.codec_level
        with _refusing():
            batches = [recompressed(one, codec, level, room) for one in batches]
    if config.appends_time:
        append_ms = now_ms()
        return [batch.with_append_time(append_ms, crc32c) for batch in batches]
    return batches


def _check_records(
    batch: RecordBatch, config: LogConfig, to: TopicPartition, now_ms: int, room: Room
) -> None:
    with _refusing():
        records = list(records_of(batch, room))
    if config.compacts:
        _check_keys(records, to)
    if config.limits_times and not config.appends_time:
        _check_times(records, config, to, now_ms)


@contextmanager
def _refusing() -> Iterator[None]:
    """Say to a client what is wrong with a batch that can't be looked into."""
    try:
        yield
    except SwollenBatchError as error:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from error
    except ValueError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def _check_keys(records: Sequence[Record], to: TopicPartition) -> None:
    keyless = [number for number, record in enumerate(records) if record.key is None]
    if keyless:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{to} is compacted, and takes no records without a key: {len(keyless)} of "
            f"{len(records)} have none, the first is number {keyless[0]}",
        )


def _check_times(
    records: Sequence[Record], config: LogConfig, to: TopicPartition, now_ms: int
) -> None:
    behind, ahead = config.most_behind_ms, config.most_ahead_ms
    for number, record in enumerate(records):
        time_ms = record.timestamp_ms
        if (behind is not None and time_ms < now_ms - behind) or (
            ahead is not None and time_ms > now_ms + ahead
        ):
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"record {number} for {to} is of {time_ms}, the broker's time is {now_ms}: "
                f"message.timestamp.before.max.ms is {_shown(behind)}, "
                f"message.timestamp.after.max.ms {_shown(ahead)}",
            )


def _shown(limit_ms: int | None) -> str:
    return "unlimited" if limit_ms is None else str(limit_ms)
