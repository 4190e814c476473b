"""The replica manager's requests and responses, per partition, as plain values.

None is changed once it is made. They have slots, since a produce with acks=all reads more than a
hundred of their fields, and those of tuples take four times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from purgatory.kafka.errors import ErrorCode, RecordError
from purgatory.kafka.log.fetch_thresholds import FetchIsolation
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET, EpochEndOffset
from purgatory.kafka.log.producer_state import AbortedTransaction
from purgatory.kafka.log.record_batch import RecordBatch
from purgatory.kafka.topic_partition import TopicPartition

CONSUMER_REPLICA_ID = -1
"""The replica id of clients that are not replicas."""

HIGH_WATERMARK_OFFSET = -1
"""As the offset of a delete-records request: everything below the high watermark."""


@dataclass(slots=True)
class FetchParams:
    """The parameters of a whole fetch request.

    Args:
        replica_id: the broker id of the follower that fetches; -1 for a consumer.
        max_wait_ms: how long to wait for ``min_bytes``, in milliseconds; 0 answers at once.
        min_bytes: how many bytes, over all partitions, are worth a response.
        max_bytes: the most bytes of a response; the first batch comes whatever its size.
        isolation: how far a consumer sees. A follower always sees the log's end.
        from_followers: whether a consumer also reads from a replica that doesn't lead: up to the
            high watermark that this one knows.
    """

    replica_id: int = CONSUMER_REPLICA_ID
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    isolation: FetchIsolation = FetchIsolation.HIGH_WATERMARK
    from_followers: bool = False


@dataclass(slots=True)
class PartitionFetch:
    """The fetch of one partition.

    Args:
        fetch_offset: the offset of the first record wanted.
        max_bytes: the most bytes to take from this partition.
        current_leader_epoch: the leader epoch that the requester knows; None skips the check.
        last_fetched_epoch: the epoch of the last record that a follower has; None skips the
            check for diverging logs.
        log_start_offset: a follower's own log start offset; -1 when unknown.
    """

    fetch_offset: int
    max_bytes: int = 1024 * 1024
    current_leader_epoch: int | None = None
    last_fetched_epoch: int | None = None
    log_start_offset: int = UNKNOWN_OFFSET


@dataclass(slots=True)
class PartitionFetchResponse:
    """The response of one partition to a fetch. On an error the offsets may be -1.

    ``diverging_epoch`` tells a follower to truncate before it fetches again; a follower that is out
    of range goes back to ``log_end_offset``. A consumer is to fetch from ``preferred_replica``, if
    that is not -1. ``cut_batch`` is the beginning of the batch behind the others.
    """

    error: ErrorCode
    high_watermark: int = UNKNOWN_OFFSET
    last_stable_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    batches: tuple[RecordBatch, ...] = ()
    diverging_epoch: EpochEndOffset | None = None
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    log_end_offset: int = UNKNOWN_OFFSET
    size_bytes: int = 0
    message: str | None = None
    preferred_replica: int = -1
    cut_batch: bytes = b""

    def visible_batches(self) -> Iterator[RecordBatch]:
        """Yield the batches that a client shows: no markers, and no records of aborted
        transactions. O(batches + aborted transactions)."""
        aborted = sorted(
            self.aborted_transactions,
            key=lambda transaction: transaction.first_offset,
            reverse=True,
        )
        aborted_producers: set[int] = set()
        for batch in self.batches:
            while aborted and aborted[-1].first_offset <= batch.last_offset:
                aborted_producers.add(aborted.pop().producer_id)
            if batch.control is not None:
                aborted_producers.discard(batch.producer_id)
            elif not (batch.transactional and batch.producer_id in aborted_producers):
                yield batch


@dataclass(slots=True)
class SessionFetchRequest:
    """A fetch in a session (`fetch_session`).

    ``fetches`` are the partitions that are new, or at another offset than before; with
    ``session_epoch`` 0 these are all, and a session begins. ``forgotten`` leave the session.
    """

    session_id: int
    session_epoch: int
    fetches: dict[TopicPartition, PartitionFetch]
    forgotten: tuple[TopicPartition, ...] = ()


@dataclass(slots=True)
class SessionFetchResponse:
    """The response to a fetch in a session: the partitions with news, or an error."""

    error: ErrorCode
    session_id: int = 0
    partitions: dict[TopicPartition, PartitionFetchResponse] = field(default_factory=dict)


@dataclass(slots=True)
class PartitionProduceResponse:
    """The response of one partition to a produce.

    ``base_offset`` is the offset of the first record, for a recognised duplicate (``duplicate``)
    that of the original; -1 when nothing was appended. On ``REQUEST_TIMED_OUT`` and
    ``NOT_ENOUGH_REPLICAS_AFTER_APPEND`` the records are in the leader's log at ``base_offset``.
    ``append_time_ms`` is the time that the leader gave the records, -1 if they kept their own.
    ``record_errors`` are the invalid records, where these are the reason to refuse a batch.
    """

    error: ErrorCode
    base_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    duplicate: bool = False
    message: str | None = None
    append_time_ms: int = -1
    record_errors: Sequence[RecordError] = ()


@dataclass(slots=True)
class PartitionDeleteRecordsResponse:
    """The response of one partition to a delete-records request.

    ``low_watermark`` is the least log start offset of the live replicas, -1 when unknown.
    """

    error: ErrorCode
    low_watermark: int = UNKNOWN_OFFSET
    message: str | None = None
