"""Fetch requests: read, then respond at once or wait for bytes.

A follower fetches from its log end, so its fetch says how far it is. That moves the high watermark,
completes what waited for it, and may bring the follower into the ISR. A consumer may be sent to a
replica in its own rack (`preferred_read_replica`, KIP-392), and drops markers and aborted records
(`visible_batches`).

Ground rules: nothing here changes but through the partitions; no lock is held over a check of a
purgatory or ``respond``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count

from purgatory.core.errors import PurgatoryClosedError
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.log_offsets import FetchIsolation
from purgatory.kafka.log.record_batch import RecordBatch
from purgatory.kafka.replication.delayed_fetch import (
    DelayedFetch,
    FetchPartitionStatus,
    Reads,
    RespondFetch,
    absent_response,
    fetch_isolation,
    read_partitions,
)
from purgatory.kafka.replication.fetch_session import (
    FIRST_EPOCH,
    DelayedSessionFetch,
    FollowerSession,
    RespondInSession,
)
from purgatory.kafka.replication.partition import Partition
from purgatory.kafka.replication.partition_registry import PartitionRegistry, RequestPurgatories
from purgatory.kafka.replication.requests import (
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
    SessionFetchRequest,
    SessionFetchResponse,
)
from purgatory.kafka.topic_partition import TopicPartition
from timer import Clock

_NONE = ErrorCode.NONE


class FetchRequests:
    """Handles fetch requests.

    Args:
        partitions: the replicas of this broker.
        waiting: the purgatory of delayed fetches.
        clock: the time of followers' fetches.
        expand_isr: called with a partition and a follower that qualifies for its ISR.
    """

    __slots__ = ("_clock", "_expand_isr", "_partitions", "_session_ids", "_waiting")

    def __init__(
        self,
        partitions: PartitionRegistry,
        waiting: RequestPurgatories,
        clock: Clock,
        expand_isr: Callable[[Partition, int], None],
    ) -> None:
        self._partitions = partitions
        self._waiting = waiting
        self._clock = clock
        self._expand_isr = expand_isr
        self._session_ids = count(1)

    def fetch(
        self,
        params: FetchParams,
        fetches: Mapping[TopicPartition, PartitionFetch],
        respond: RespondFetch,
    ) -> None:
        """Handle one request; see `ReplicaManager.fetch_records`."""
        if params.replica_id >= 0:
            now_ms = self._clock.now_ms()
            responses, size_bytes, is_immediate = self._read_for_follower(params, fetches, now_ms)
        else:
            responses, size_bytes, is_immediate = read_partitions(self._partitions, params, fetches)
        if is_immediate or size_bytes >= params.min_bytes or params.max_wait_ms <= 0 or not fetches:
            respond(responses)
            return
        isolation = fetch_isolation(params)
        statuses = self._statuses(fetches, isolation)
        if statuses is None:
            # A replica went while this request was read: another thread's doing.
            respond(read_partitions(self._partitions, params, fetches)[0])
            return
        operation = DelayedFetch(params, isolation, self._partitions, fetches, statuses, respond)
        thresholds = operation.thresholds()
        self._waiting.fetches.try_complete_else_watch(
            operation, fetches if thresholds is None else (), thresholds
        )

    def fetch_in_session(
        self, params: FetchParams, request: SessionFetchRequest, respond: RespondInSession
    ) -> None:
        """Handle one request; see `ReplicaManager.fetch_in_session`."""
        session, error = self._session(params.replica_id, request)
        if session is None:
            respond(SessionFetchResponse(error))
            return
        if session.operation is not None:
            session.operation.force_complete()
        now_ms, min_bytes = self._clock.now_ms(), params.min_bytes
        fetches = session.begin_fetch(request, min_bytes > 1, now_ms)
        responses, size_bytes, is_immediate = self._read_for_follower(params, fetches, now_ms)
        if is_immediate or size_bytes >= min_bytes or params.max_wait_ms <= 0:
            respond(session.respond(responses, params))
            return
        operation = DelayedSessionFetch(params, self._partitions, session, respond)
        session.begin_wait(responses, operation)
        sessions = self._waiting.sessions  # the longest waiting one is notified first
        sessions[session.session_id] = sessions.pop(session.session_id)
        try:
            self._waiting.fetches.try_complete_else_watch(operation, (session,))
        except PurgatoryClosedError:
            session.operation = None
            raise

    def _session(
        self, follower_id: int, request: SessionFetchRequest
    ) -> tuple[FollowerSession | None, ErrorCode]:
        """Find the session of a request, or begin it; or return what is wrong."""
        epoch, sessions = request.session_epoch, self._waiting.sessions
        if epoch == FIRST_EPOCH:
            for other in tuple(sessions.values()):
                if other.follower_id == follower_id:
                    other.is_closed = True
                    if other.operation is None:
                        del sessions[other.session_id]
            session = FollowerSession(next(self._session_ids), follower_id, self._partitions)
            sessions[session.session_id] = session
            return session, _NONE
        cached_session = sessions.get(request.session_id)
        if (
            cached_session is None
            or cached_session.is_closed
            or cached_session.follower_id != follower_id
        ):
            return None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if not cached_session.accept_epoch(epoch):
            return None, ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return cached_session, _NONE

    def _read_for_follower(
        self, params: FetchParams, fetches: Mapping[TopicPartition, PartitionFetch], now_ms: int
    ) -> Reads:
        """Read as for anyone, and do what follows from how far the follower is."""
        replica_id, max_bytes = params.replica_id, params.max_bytes
        responses = {}
        size_bytes = 0
        is_immediate = False
        to_check = []
        joining = []
        for topic_partition, fetch in fetches.items():
            partition = self._partitions.get(topic_partition)
            if partition is None:
                response = absent_response(self._partitions, topic_partition)
            else:
                response, is_advanced, may_expand_isr = partition.fetch_as_follower(
                    fetch, replica_id, max_bytes - size_bytes, size_bytes == 0, now_ms
                )
                if is_advanced:
                    to_check.append(partition)
                if may_expand_isr:
                    joining.append(partition)
            responses[topic_partition] = response
            size_bytes += response.size_bytes
            if response.error is not _NONE or response.diverging_epoch is not None:
                is_immediate = True
        for partition in to_check:
            self._waiting.complete_after_high_watermark(partition)
        for partition in joining:
            self._expand_isr(partition, replica_id)
        return responses, size_bytes, is_immediate

    def _statuses(
        self, fetches: Mapping[TopicPartition, PartitionFetch], isolation: FetchIsolation
    ) -> list[FetchPartitionStatus] | None:
        """Return the status of each fetch; None if this broker has no replica of a partition."""
        statuses = []
        for topic_partition, fetch in fetches.items():
            partition = self._partitions.get(topic_partition)
            if partition is None:
                return None
            statuses.append(FetchPartitionStatus(partition, fetch, isolation))
        return statuses


RackLookup = Callable[[int], str | None]
"""Returns the rack of a broker that lives, None of any other."""


def preferred_read_replica(
    partition: Partition, rack: str, rack_of: RackLookup, fetch_offset: int
) -> int | None:
    """Return the follower to read from; None for the leader. O(replicas).

    It is in the consumer's rack and in sync, and has the offset that is requested; of several, the
    one that has most.

    Args:
        partition: as its leader has it.
        rack: the consumer's.
        rack_of: of the brokers.
        fetch_offset: where the consumer stands.
    """
    if not partition.is_leader or rack_of(partition.broker_id) == rack:
        return None
    ends = {
        broker_id: partition.follower_end_offset(broker_id)
        for broker_id in partition.isr
        if broker_id != partition.broker_id and rack_of(broker_id) == rack
    }
    reachable = {broker_id: end for broker_id, end in ends.items() if end >= fetch_offset}
    return max(reachable, key=reachable.__getitem__, default=None)


def visible_batches(response: PartitionFetchResponse) -> Iterator[RecordBatch]:
    """Yield the batches that a client shows. O(batches + aborted transactions)."""
    aborted = sorted(
        response.aborted_transactions,
        key=lambda transaction: transaction.first_offset,
        reverse=True,
    )
    aborted_producers: set[int] = set()
    for batch in response.batches:
        while aborted and aborted[-1].first_offset <= batch.last_offset:
            aborted_producers.add(aborted.pop().producer_id)
        if batch.control is not None:
            aborted_producers.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in aborted_producers):
            yield batch
