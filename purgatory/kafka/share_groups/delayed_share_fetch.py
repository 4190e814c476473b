"""A share fetch that waits until there are records for its member.

The wait ends when

    all partitions are unknown, offline, not led here, or without a state
    ``min_bytes`` may be acquired, over all partitions together
    the time is up

The fetch then acquires the available records, and responds with them; a response without records is
no error. Each partition may give an equal part of the bytes. A share partition whose state is still
being read, or that has as many records in flight as it may, is in no response.

Ground rules: those of `SharePartitionManager`. ``respond`` is called once, whatever the outcome but
a cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.record_batch import RecordBatch
from purgatory.kafka.share_groups.in_flight_records import NO_BATCH_SIZE, AcquiredRecords
from purgatory.kafka.share_groups.share_session import ShareSession
from purgatory.kafka.share_groups.share_state import ShareKey
from purgatory.kafka.topic_partition import TopicPartition

NO_BYTES = -1
"""In place of a number of bytes: there is an error."""

BEYOND_LOG = -2
"""In place of a number of bytes: the log ends before the offset, and there is nothing to wait for.
As in Kafka, where the read of the log fails, the response has no error, and the fetch ends."""


class ShareFetchParams(NamedTuple):
    """The parameters of a share fetch.

    Args:
        max_wait_ms: maximum time to wait for ``min_bytes``.
        min_bytes: minimum size of the response.
        max_bytes: maximum size of the response, unless its first batch is larger.
        max_records: maximum number of records to acquire; the batch that reaches it is acquired
            whole, unless ``exactly``.
        exactly: ``max_records`` is a hard limit, and a batch is split at it (KIP-1206).
        batch_size: the number of records that are acquired in one piece, if batches end there.
    """

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    max_records: int = 500
    exactly: bool = False
    batch_size: int = NO_BATCH_SIZE


class ShareFetchResult(NamedTuple):
    """The response of one share partition: batches, and the acquired ranges of records."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    batches: tuple[RecordBatch, ...] = ()
    acquired: tuple[AcquiredRecords, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of the batches in bytes."""
        return sum(batch.size_bytes for batch in self.batches)


RespondShareFetch = Callable[[Mapping[ShareKey, ShareFetchResult]], object]


class SharePartitions(Protocol):
    """The share partitions from which records are acquired."""

    def available_bytes(self, key: ShareKey) -> int | None:
        """Return how many bytes may be acquired; NO_BYTES if there is an error; BEYOND_LOG; None:
        its state is being read, or it has as many records in flight as it may."""

    def acquire(
        self, session: ShareSession, key: ShareKey, params: ShareFetchParams
    ) -> ShareFetchResult:
        """Acquire available records for the member of a session, within the limits."""


class DelayedShareFetch(DelayedOperation):
    """Waits for records.

    Args:
        session: the member's session.
        params: the parameters of the request; ``max_wait_ms`` is the timeout.
        partitions: the fetched partitions, in the order in which records are acquired.
        shares: the share partitions.
        respond: takes the responses.
    """

    __slots__ = ("_params", "_partitions", "_respond", "_responded", "_session", "_shares")

    def __init__(
        self,
        session: ShareSession,
        params: ShareFetchParams,
        partitions: Mapping[ShareKey, TopicPartition],
        shares: SharePartitions,
        respond: RespondShareFetch,
    ) -> None:
        super().__init__(params.max_wait_ms)
        self._session = session
        self._params = params
        self._partitions = partitions
        self._shares = shares
        self._respond = respond
        self._responded = False

    @property
    def topic_partitions(self) -> Sequence[TopicPartition]:
        """Return the fetched partitions. O(partitions)."""
        return tuple(self._partitions.values())

    def try_complete(self) -> bool:
        available = [self._shares.available_bytes(key) for key in self._partitions]
        if BEYOND_LOG in available or all(size_bytes == NO_BYTES for size_bytes in available):
            return self.force_complete()
        acquirable = [size_bytes for size_bytes in available if size_bytes not in (None, NO_BYTES)]
        is_enough = bool(acquirable) and sum(acquirable) >= self._params.min_bytes
        return is_enough and self.force_complete()

    def on_complete(self) -> None:
        keys = [key for key in self._partitions if self._shares.available_bytes(key) is not None]
        responses: dict[ShareKey, ShareFetchResult] = {}
        remaining_bytes, remaining_records = self._params.max_bytes, self._params.max_records
        for key in keys:
            limits = self._params._replace(
                max_bytes=min(self._params.max_bytes // len(keys), remaining_bytes),
                max_records=remaining_records,
            )
            if remaining_bytes <= 0 or remaining_records <= 0:
                responses[key] = ShareFetchResult()
                continue
            response = self._shares.acquire(self._session, key, limits)
            responses[key] = response
            remaining_bytes -= response.size_bytes
            remaining_records -= sum(
                acquired.last - acquired.first + 1 for acquired in response.acquired
            )
        self._responded = True
        self._respond(responses)

    def on_failure(self, error: BaseException) -> None:
        if not self._responded:
            self._responded = True
            failed = ShareFetchResult(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"the wait for records failed: {error!r}"
            )
            self._respond(dict.fromkeys(self._partitions, failed))
