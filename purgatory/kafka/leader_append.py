"""What a leader appends: which batches it refuses, which it knows already, and what became of them.

Ground rules: called with the lock of the log's partition held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log import Log, LogConfig
from purgatory.kafka.producer_state import AppendedBatch
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.requests import AppendOrigin


class LeaderAppend(NamedTuple):
    """What became of an append.

    ``required_offset`` is what the high watermark must reach for acks=all, ``leadership`` the term
    in which that offset means these records, ``moved`` whether the high watermark moved.
    """

    base_offset: int
    required_offset: int
    log_start_offset: int
    leadership: int
    moved: bool
    duplicate: bool


def find_original(
    log: Log, batches: Sequence[RecordBatch], origin: AppendOrigin
) -> AppendedBatch | None:
    """Refuse what may not be appended; return the original of a retry, None for new records.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE, INVALID_RECORD, or what the producer's state says.
    """
    if not batches:
        raise KafkaError(ErrorCode.INVALID_RECORD, "an append without a batch")
    for batch in batches:
        check_size(batch, log.config)
        if len(batches) > 1 and (origin is AppendOrigin.CLIENT or batch.producer_id >= 0):
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{len(batches)} batches in one append to a partition: a producer sends exactly "
                "one, since what becomes of a second one could not be answered",
            )
        if batch.producer_id >= 0:
            return log.producers.find_duplicate(batch, origin, log.start_offset == 0)
        if batch.transactional or batch.control is not None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"{batch!r} is transactional without a producer id"
            )
    return None


def check_size(batch: RecordBatch, config: LogConfig) -> None:
    """Refuse a batch that is larger than a log takes.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE.
    """
    if batch.size_bytes > config.max_batch_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{batch!r} is larger than the {config.max_batch_bytes} bytes allowed",
        )
