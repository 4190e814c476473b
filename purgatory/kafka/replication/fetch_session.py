"""Fetch sessions (KIP-227): a fetch names only the partitions that changed since the last one.

A full fetch names all partitions, and may begin a session. An incremental one names those that are
new or at another offset, and those to forget; its response has only partitions with news: records,
an error, a watermark or a start that moved. Each fetch has the next epoch, so that a lost or
repeated one is noticed, and the client begins again (`FetchSessionHandler`).

    epoch -1     no session; ends the given one
    epoch 0      begins a session; ends the given one
    epoch 1 ...  continues the session of the id

Sessions of consumers (`FetchSessions`) are bounded in number and in partitions. When there is no
room, the session that was idle longest is evicted, if that is long enough; else the client gets no
session, and sends full fetches.

The session of a follower (`FollowerSession`) costs time for changed partitions only. The leader's
appends and role changes notify it, and it reads only the partitions that are not parked:

    parked   ->  pending   something was appended, or the leader or its epoch changed
    parked   ->  changed   a watermark or a start moved, or the ISR changed
    pending  ->  parked    the follower requests it again, from its new offset
    changed  ->  parked    a response said so

Pending partitions end the wait of a fetch, once they have ``min_bytes``; changed ones go along with
the next response. A fetch stands for all partitions of the session: its follower is alive, and
still at its offsets, which is recorded lazily, at the first append after it. Partitions in whose
ISR the follower isn't are read at each fetch: the follower may come back.

Ground rules
------------
* Only the broker's loop touches a session.
* A consumer's session changes when a request is begun (`FetchSessions.begin`) and when its response
  is made (`FetchContext.complete`); in between other fetches may come, even one that ended it.
* A follower's session has one fetch at a time: a new one ends the wait of the one before. A session
  that another one replaced is notified as long as its fetch waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.fetch_thresholds import FetchIsolation
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET
from purgatory.kafka.replication.delayed_fetch import DelayedFetch, read_partitions
from purgatory.kafka.replication.partition import FetchPosition, HostedPartitions, Partition
from purgatory.kafka.replication.requests import (
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
    SessionFetchRequest,
    SessionFetchResponse,
)
from purgatory.kafka.topic_partition import TopicPartition

NO_SESSION = 0
FINAL_EPOCH = -1
FIRST_EPOCH = 0
_LAST_EPOCH = 2**31 - 1
_NO_REPLICA = -1
_NONE = ErrorCode.NONE
_LOG_END = FetchIsolation.LOG_END
SessionKey = tuple[str | UUID, int]
"""A partition as its client names it: the topic's name, or its id, and the number."""

SessionResponses = Mapping[SessionKey, PartitionFetchResponse]


class RequestedPartition(NamedTuple):
    """A partition of a request. ``topic`` is the name; None if no topic has the id."""

    topic: str | None
    fetch: PartitionFetch


class FetchSessionHandler:
    """The client's side of a session: the id and epoch of its next fetch.

    Public attributes, to be read only: ``session_id`` and ``epoch``. The fetch of epoch 0 names all
    partitions, and begins a session.
    """

    __slots__ = ("epoch", "session_id")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH

    def handle_response(self, error: ErrorCode, session_id: int) -> bool:
        """Handle a response; return whether its partitions count: it is no error of the session."""
        if error is not _NONE:
            self.handle_error()
            if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = NO_SESSION
            return False
        if self.epoch == FIRST_EPOCH:
            self.session_id = session_id
        if session_id != NO_SESSION:
            self.epoch = self.epoch % _LAST_EPOCH + 1
        return True

    def handle_error(self) -> None:
        """Begin a new session: the response is lost, and with it the session's state."""
        self.epoch = FIRST_EPOCH


class FetchSession:
    """The leader's side of a session: the epoch of the next fetch."""

    __slots__ = ("epoch", "session_id")

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self.epoch = FIRST_EPOCH + 1

    def accept_epoch(self, epoch: int) -> bool:
        """Whether a fetch has the epoch that is expected; if so, expect the next one."""
        if epoch != self.epoch:
            return False
        self.epoch = epoch % _LAST_EPOCH + 1
        return True


Requested = TypeVar("Requested")


class CachedPartition(Generic[Requested]):
    """The request and the last response of a partition in a session."""

    __slots__ = ("high_watermark", "log_start_offset", "requested")

    def __init__(self, requested: Requested) -> None:
        self.requested = requested
        self.high_watermark = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET

    def differs(self, response: PartitionFetchResponse) -> bool:
        """Whether a response differs from the recorded one."""
        return bool(
            response.batches
            or response.error is not _NONE
            or response.diverging_epoch is not None
            or response.preferred_replica != _NO_REPLICA
            or response.high_watermark != self.high_watermark
            or response.log_start_offset != self.log_start_offset
        )

    def update(self, response: PartitionFetchResponse) -> bool:
        """Record a response; return whether it differs from the previous one."""
        has_changes = bool(response.batches) or self.differs(response)
        # The client ignores the watermark of an error or a divergence: the next one is news.
        counts = response.error is _NONE and response.diverging_epoch is None
        self.high_watermark = response.high_watermark if counts else UNKNOWN_OFFSET
        self.log_start_offset = response.log_start_offset
        return has_changes


class _ConsumerSession(FetchSession):
    __slots__ = ("by_ids", "partitions", "used_ms")

    def __init__(self, session_id: int, by_ids: bool, now_ms: int) -> None:
        super().__init__(session_id)
        self.by_ids = by_ids
        self.used_ms = now_ms
        self.partitions: dict[SessionKey, CachedPartition[RequestedPartition]] = {}


class FetchContext:
    """One fetch: the partitions to read, and the response.

    Attributes, to be read only: ``fetches``, the partitions to read, in the order in which they get
    their part of a response; ``error``, the reason to refuse the whole fetch; ``session_id``, that
    of a session that was there before, or 0.
    """

    __slots__ = ("_complete", "_session", "error", "fetches")

    def __init__(
        self,
        fetches: Mapping[SessionKey, RequestedPartition],
        complete: Callable[[SessionResponses], tuple[int, SessionResponses]] = lambda responses: (
            NO_SESSION,
            responses,
        ),
        error: ErrorCode = _NONE,
        session: _ConsumerSession | None = None,
    ) -> None:
        self.fetches = fetches
        self.error = error
        self._complete = complete
        self._session = session

    @property
    def session_id(self) -> int:
        return NO_SESSION if self._session is None else self._session.session_id

    def preview(self, responses: SessionResponses) -> SessionResponses:
        """Return the partitions that `complete` would include; nothing changes. O(responses)."""
        if self._session is None:
            return responses
        cached = self._session.partitions
        return {
            key: response
            for key, response in responses.items()
            if key in cached and cached[key].differs(response)
        }

    def complete(self, responses: SessionResponses) -> tuple[int, SessionResponses]:
        """Return the session's id, 0 for none, and the partitions to include. O(responses).

        Args:
            responses: to all ``fetches``, in that order.
        """
        return self._complete(responses)


class FetchSessions:
    """The sessions of one broker's clients.

    Args:
        new_id: returns a random id, from 1 on; called again while another session has it.
        most_sessions: the limit of sessions.
        most_partitions: the limit of partitions in all sessions together.
        least_idle_ms: a session that was not used for so long may be removed to make room.
    """

    def __init__(
        self,
        new_id: Callable[[], int],
        most_sessions: int = 1_000,
        most_partitions: int = 200_000,
        least_idle_ms: int = 120_000,
    ) -> None:
        self._new_id = new_id
        self._most_sessions = most_sessions
        self._most_partitions = most_partitions
        self._least_idle_ms = least_idle_ms
        # In the order of last use.
        self._sessions: dict[int, _ConsumerSession] = {}
        self.partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        fetches: Mapping[SessionKey, RequestedPartition],
        forgotten: Iterable[SessionKey],
        by_ids: bool,
        name_of: Callable[[UUID], str | None],
        now_ms: int,
    ) -> FetchContext:
        """Begin a fetch in a session. O(partitions of the session).

        Args:
            session_id, epoch: as in the request.
            fetches: the partitions to add or update.
            forgotten: the partitions to remove.
            by_ids: whether the request has topic ids.
            name_of: returns a topic's name by its id, or None.
            now_ms: the time, of any clock.
        """
        if epoch in (FINAL_EPOCH, FIRST_EPOCH):
            self._end(session_id)
            if epoch == FINAL_EPOCH:
                return FetchContext(fetches)
            return FetchContext(
                fetches, lambda responses: self._begin_session(fetches, by_ids, now_ms, responses)
            )
        session = self._sessions.get(session_id)
        if session is None:
            return _error_context(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_ids != by_ids:
            return _error_context(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if not session.accept_epoch(epoch):
            return _error_context(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        self._change(session, fetches, forgotten)
        if not session.partitions:
            self._end(session_id)
            return FetchContext({})
        session.used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        for (topic, _), cached in session.partitions.items():
            if cached.requested.topic is None and isinstance(topic, UUID):
                cached.requested = cached.requested._replace(topic=name_of(topic))
        return FetchContext(
            {key: cached.requested for key, cached in session.partitions.items()},
            lambda responses: _included(session, responses),
            session=session,
        )

    def session_keys(self, session_id: int) -> tuple[SessionKey, ...]:
        """Return the partitions of a session; none of an unknown one. O(these)."""
        session = self._sessions.get(session_id)
        return () if session is None else tuple(session.partitions)

    def _begin_session(
        self,
        fetches: Mapping[SessionKey, RequestedPartition],
        by_ids: bool,
        now_ms: int,
        responses: SessionResponses,
    ) -> tuple[int, SessionResponses]:
        if not self._evict_idle(len(fetches), now_ms):
            return NO_SESSION, responses
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = self._sessions[session_id] = _ConsumerSession(session_id, by_ids, now_ms)
        self._change(session, fetches, ())
        for key, response in responses.items():
            session.partitions[key].update(response)
        return session_id, responses

    def _evict_idle(self, partitions: int, now_ms: int) -> bool:
        """Evict the sessions that were idle longest; return whether there is room."""
        while (
            len(self._sessions) >= self._most_sessions
            or self.partition_count + partitions > self._most_partitions
        ):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms < self._least_idle_ms:
                return False
            self._end(oldest.session_id)
        return True

    def _change(
        self,
        session: _ConsumerSession,
        fetches: Mapping[SessionKey, RequestedPartition],
        forgotten: Iterable[SessionKey],
    ) -> None:
        before = len(session.partitions)
        for key in forgotten:
            session.partitions.pop(key, None)
        for key, partition_fetch in fetches.items():
            cached = session.partitions.get(key)
            if cached is None:
                session.partitions[key] = CachedPartition(partition_fetch)
            else:
                cached.requested = partition_fetch
        self.partition_count += len(session.partitions) - before

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.partitions)


def _error_context(error: ErrorCode) -> FetchContext:
    return FetchContext({}, error=error)


def _included(
    session: _ConsumerSession, responses: SessionResponses
) -> tuple[int, SessionResponses]:
    included = {}
    for key, response in responses.items():
        cached = session.partitions.get(key)
        if cached is not None and cached.update(response):
            included[key] = response
            if response.batches:
                # Partitions with records come last next time, so that the others get their share.
                session.partitions[key] = session.partitions.pop(key)
    return session.session_id, included


Fetches = dict[TopicPartition, PartitionFetch]
PartitionResponses = dict[TopicPartition, PartitionFetchResponse]


def requires_refetch(response: PartitionFetchResponse) -> bool:
    """Whether a follower that gets this response requests the partition again, or forgets it."""
    return bool(
        response.batches or response.error is not _NONE or response.diverging_epoch is not None
    )


class _FollowerPartition(CachedPartition[PartitionFetch]):
    """``rank``: the partition of the lowest one has its part of a response first; ``position`` is
    that of the fetch, if bytes are counted from there."""

    __slots__ = ("position", "rank")

    def __init__(self, requested: PartitionFetch, rank: int) -> None:
        super().__init__(requested)
        self.rank = rank
        self.position: FetchPosition | None = None


class FollowerSession(FetchSession):
    """A follower's session with the leader of the partitions in it.

    Public attributes, to be read only: ``follower_id``; ``operation``, the fetch that waits;
    ``pending``, the partitions for which a fetch need not wait; ``is_closed``, whether another
    session has replaced it.

    Args:
        session_id: no other session of this leader has it.
        follower_id: the follower's broker id.
        partitions: of this broker.
        waiting: the sessions of this broker whose fetch waits.
    """

    __slots__ = (
        "_cached",
        "_changed_partitions",
        "_counts_bytes",
        "_fetched_ms",
        "_last_rank",
        "_out_of_sync",
        "_partitions",
        "_waiting",
        "follower_id",
        "is_closed",
        "operation",
        "pending",
    )

    def __init__(
        self,
        session_id: int,
        follower_id: int,
        partitions: HostedPartitions,
        waiting: set[FollowerSession],
    ) -> None:
        super().__init__(session_id)
        self.follower_id = follower_id
        self.is_closed = False
        self.operation: DelayedSessionFetch | None = None
        self._partitions = partitions
        self._waiting = waiting
        self._fetched_ms = 0
        self._counts_bytes = False
        self._last_rank = 0
        self._cached: dict[TopicPartition, _FollowerPartition] = {}
        self.pending: dict[TopicPartition, None] = {}
        self._changed_partitions: dict[TopicPartition, None] = {}
        self._out_of_sync: dict[TopicPartition, None] = {}

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of the session. O(these)."""
        return tuple(self._cached)

    # ---- events

    def notify_moved(self, partition: Partition) -> bool:
        """Record that an end of the log moved; return whether to check the waiting fetch.

        O(1).
        """
        topic_partition = partition.topic_partition
        cached = self._cached.get(topic_partition)
        if cached is None:
            return False
        log = partition.log
        if log.end_offset > cached.requested.fetch_offset:
            if topic_partition not in self.pending:
                self.pending[topic_partition] = None
                partition.record_fetch(self.follower_id, self._fetched_ms)
            return self.operation is not None
        if (
            log.high_watermark != cached.high_watermark
            or log.start_offset != cached.log_start_offset
        ):
            self._changed_partitions[topic_partition] = None
        return False

    def notify_changed(self, topic_partition: TopicPartition, partition: Partition | None) -> bool:
        """Record that a leader, an epoch or an ISR changed, or a replica was removed (None); return
        whether to check the waiting fetch. O(replicas)."""
        cached = self._cached.get(topic_partition)
        if cached is None:
            return False
        self._update_state(topic_partition, cached, partition)
        return topic_partition in self.pending and self.operation is not None

    # ---- a fetch, from its request to its response

    def begin_fetch(self, request: SessionFetchRequest, counts_bytes: bool, now_ms: int) -> Fetches:
        """Begin a fetch; return the requested and the pending partitions. O(partitions returned).

        Args:
            request: the follower's.
            counts_bytes: whether it waits for more than one byte.
            now_ms: the time.
        """
        self._fetched_ms = now_ms
        self._counts_bytes = counts_bytes
        cached, pending, self.pending = self._cached, self.pending, {}
        fetches, forgotten = request.fetches, request.forgotten
        for topic_partition in forgotten:
            cached.pop(topic_partition, None)
            pending.pop(topic_partition, None)
            self._changed_partitions.pop(topic_partition, None)
            self._out_of_sync.pop(topic_partition, None)
        for topic_partition, fetch in fetches.items():
            pending.pop(topic_partition, None)
            previous = cached.get(topic_partition)
            if previous is None:
                self._last_rank += 1
                cached[topic_partition] = _FollowerPartition(fetch, self._last_rank)
                continue
            if previous.requested.current_leader_epoch != fetch.current_leader_epoch:
                previous.high_watermark = UNKNOWN_OFFSET  # responses of another epoch are ignored
            previous.requested, previous.position = fetch, None
        if not pending and not self._out_of_sync and len(fetches) <= 1:
            return fetches
        return self._requested({**pending, **self._out_of_sync, **fetches})

    def begin_wait(self, responses: PartitionResponses, operation: DelayedSessionFetch) -> None:
        """Wait for more than these responses, which are dropped. O(responses)."""
        self.operation = operation
        self._waiting.add(self)
        for topic_partition in responses:
            cached = self._cached[topic_partition]
            self._update_state(topic_partition, cached, self._partitions.partition(topic_partition))

    def end_wait(self, operation: DelayedSessionFetch) -> None:
        """Record that a fetch no longer waits. Has no effect if another one does."""
        if self.operation is operation:
            self.operation = None
            self._waiting.discard(self)

    def has_enough(self, min_bytes: int) -> bool:
        """Whether the pending partitions satisfy ``min_bytes``, if there are any. O(pending)."""
        if min_bytes <= 1:
            return True
        size_bytes = 0
        for topic_partition in list(self.pending):
            cached = self._cached.get(topic_partition)
            partition = self._partitions.partition(topic_partition)
            if partition is None or cached is None:
                return True
            fetch = cached.requested
            position = cached.position or partition.fetch_position(fetch.fetch_offset)
            progress = partition.fetch_progress(fetch, _LOG_END, position)
            if progress < 0:
                return True
            size_bytes += progress
        return size_bytes >= min_bytes

    def respond(self, responses: PartitionResponses, params: FetchParams) -> SessionFetchResponse:
        """Return the response: the news of these, of the pending and of the changed partitions.

        O(these).
        """
        if self.pending or self._changed_partitions:
            keys = {**self.pending, **self._changed_partitions}
            unread = self._requested(keys, responses)
            if unread:
                responses |= read_partitions(self._partitions, params, unread)[0]
        changed: PartitionResponses = {}
        has_room = True
        for topic_partition, response in responses.items():
            cached = self._cached.get(topic_partition)
            if cached is None:
                continue
            if cached.update(response):
                changed[topic_partition] = response
            if requires_refetch(response):
                self.pending[topic_partition] = None
                self._changed_partitions.pop(topic_partition, None)
                continue
            self._update_state(topic_partition, cached, self._partitions.partition(topic_partition))
            if topic_partition in self.pending:
                has_room = False
        if not has_room:
            # Partitions with records come last next time, so that the others get their share.
            for topic_partition, response in changed.items():
                if response.batches:
                    self._last_rank += 1
                    self._cached[topic_partition].rank = self._last_rank
        return SessionFetchResponse(_NONE, self.session_id, changed)

    def _requested(
        self, partitions: Collection[TopicPartition], excluded: Collection[TopicPartition] = ()
    ) -> Fetches:
        """Return the requested positions of partitions, by rank. O(n log n)."""
        if len(partitions) == 1 and not excluded:  # most often
            (only,) = partitions
            return {only: self._cached[only].requested} if only in self._cached else {}
        ranked = []
        for topic_partition in partitions:
            cached = self._cached.get(topic_partition)
            if cached is not None and topic_partition not in excluded:
                ranked.append((cached.rank, topic_partition, cached.requested))
        ranked.sort()  # no two have the same rank
        return {topic_partition: fetch for _, topic_partition, fetch in ranked}

    def _update_state(
        self,
        topic_partition: TopicPartition,
        cached: _FollowerPartition,
        partition: Partition | None,
    ) -> None:
        """Update the state of a partition that was read, or whose leader or ISR changed."""
        self.pending.pop(topic_partition, None)
        self._changed_partitions.pop(topic_partition, None)
        self._out_of_sync.pop(topic_partition, None)
        fetch = cached.requested
        if (
            partition is None
            or partition.leader_id != partition.broker_id
            or partition.leader_epoch != fetch.current_leader_epoch
        ):
            self.pending[topic_partition] = None
            cached.position = None  # the log may be truncated before this broker leads again
            return
        log = partition.log
        if self._counts_bytes and cached.position is None:
            cached.position = partition.fetch_position(fetch.fetch_offset)
        if log.end_offset > fetch.fetch_offset:
            self.pending[topic_partition] = None
        elif (
            log.high_watermark != cached.high_watermark
            or log.start_offset != cached.log_start_offset
        ):
            self._changed_partitions[topic_partition] = None
        if self.follower_id not in partition.isr:
            self._out_of_sync[topic_partition] = None


RespondInSession = Callable[[SessionFetchResponse], object]


class DelayedSessionFetch(DelayedFetch):
    """Waits until enough bytes are pending in a session.

    Args:
        params: the request's; ``max_wait_ms`` is the timeout.
        partitions: of this broker.
        session: of the follower that fetches.
        respond: called with the response.
    """

    __slots__ = ("_session",)

    def __init__(
        self,
        params: FetchParams,
        partitions: HostedPartitions,
        session: FollowerSession,
        respond: RespondInSession,
    ) -> None:
        DelayedFetch.__init__(self, params, _LOG_END, partitions, {}, [], respond)
        self._session = session

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """Return the partitions of the session. O(partitions)."""
        return self._session.topic_partitions

    def try_complete(self) -> bool:
        session = self._session
        if not session.pending or not session.has_enough(self.params.min_bytes):
            return False
        return self.force_complete()

    def on_complete(self) -> None:
        session = self._session
        response = session.respond({}, self.params)
        session.end_wait(self)
        self._responded = True
        self._respond(response)

    def on_failure(self, error: BaseException) -> None:
        self._session.end_wait(self)
        if not self._responded:
            self._responded = True
            self._respond(SessionFetchResponse(ErrorCode.UNKNOWN_SERVER_ERROR))
