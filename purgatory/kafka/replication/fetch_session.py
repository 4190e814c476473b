"""Fetch sessions (KIP-227): a fetch names only what changed since the one before it.

Of a consumer (`FetchSessions`): a full fetch names all partitions, and may begin a session. An
incremental one is answered only with partitions that have something new: records, an error, a
watermark or a start that moved. Each has the next epoch, so that a fetch that was lost or came
twice is noticed, and the client begins again.

    epoch -1     no session; ends the one that is named
    epoch 0      begins a session; ends the one that is named
    epoch 1 ...  goes on with the one that is named

Sessions are bounded in number and in partitions. Where there is no room, the session that was idle
longest goes, if that is long enough; else the client gets none, and sends full fetches.

Of a follower (`FollowerSession`): it requests each partition once, and again only when its offset
changed; the leader answers only for partitions with something new. So a fetch costs what has
changed, not what there is:

    parked   ->  pending   something was appended, or its leader changed
    pending  ->  (gone)    the follower got the response: it requests again, from its new offset
    pending  ->  parked    there was nothing new after all

A fetch stands for all partitions of the session: its follower is alive, and still at its offsets.
That is recorded when it matters, at the first append after it. Once in ``LOOK_EVERY_MS`` a fetch
checks all of them for changes without a notification: watermarks and starts that moved, and a
follower that may come back into the ISR.

Ground rules
------------
* One thread, that of the event loop: nothing here is locked.
* A consumer's session changes when a request is begun (`FetchSessions.begin`) and when its response
  is made (`FetchContext.settle`); in between others may come, and one that ended it.
* A follower's fetch that waits is only woken, without responses: the next one reads them. A session
  has one fetch at a time: a new one ends the wait of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET
from purgatory.kafka.log.log import Log
from purgatory.kafka.log.log_offsets import FetchIsolation
from purgatory.kafka.replication.delayed_fetch import DelayedFetch, RespondFetch
from purgatory.kafka.replication.partition import Partition
from purgatory.kafka.replication.partition_registry import PartitionRegistry
from purgatory.kafka.replication.requests import FetchParams, PartitionFetch, PartitionFetchResponse
from purgatory.kafka.topic_partition import TopicPartition

NO_SESSION = 0
FINAL_EPOCH = -1
FIRST_EPOCH = 0
_LAST_EPOCH = 2**31 - 1
_NO_REPLICA = -1
SessionKey = tuple[str | UUID, int]
"""A partition as its client names it: the topic's name, or its id, and the number."""

SessionResponses = Mapping[SessionKey, PartitionFetchResponse]


class RequestedPartition(NamedTuple):
    """What is asked of a partition. ``topic`` is the name: None while no topic has the id."""

    topic: str | None
    fetch: PartitionFetch


class _SessionPartition:
    """What is asked of a partition, and what the client was told of it last."""

    __slots__ = ("asked", "high_watermark", "log_start_offset")

    def __init__(self, asked: RequestedPartition) -> None:
        self.asked = asked
        self.high_watermark = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET

    def is_news(self, answer: PartitionFetchResponse) -> bool:
        """Record a response; return whether it tells anything that the last one did not."""
        is_news = bool(
            answer.batches
            or answer.error is not ErrorCode.NONE
            or answer.diverging_epoch is not None
            or answer.preferred_replica != _NO_REPLICA
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
        )
        failed = answer.error is not ErrorCode.NONE
        # Behind an error there is news, whatever the next response is.
        self.high_watermark = UNKNOWN_OFFSET if failed else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        return is_news


class _Session:
    __slots__ = ("by_ids", "epoch", "kept", "session_id", "used_ms")

    def __init__(self, session_id: int, by_ids: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.by_ids = by_ids
        self.epoch = FIRST_EPOCH + 1
        self.used_ms = now_ms
        self.kept: dict[SessionKey, _SessionPartition] = {}


class FetchContext:
    """One fetch: what to read for it, and what to answer.

    Attributes, to be read only: ``asked``, all that is to be read, in the order in which partitions
    get their part of a response; ``error``, why it is refused as a whole, in place of any response.
    """

    __slots__ = ("_settle", "asked", "error")

    def __init__(
        self,
        asked: Mapping[SessionKey, RequestedPartition],
        settle: Callable[[SessionResponses], tuple[int, SessionResponses]] = lambda answers: (
            NO_SESSION,
            answers,
        ),
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self.asked = asked
        self.error = error
        self._settle = settle

    def settle(self, answers: SessionResponses) -> tuple[int, SessionResponses]:
        """Return the session's id, 0 for none, and what is to be told. O(answers).

        Args:
            answers: to all that was ``asked``, in that order.
        """
        return self._settle(answers)


class FetchSessions:
    """The sessions of one broker's clients.

    Args:
        new_id: returns an id at random, from 1 on; asked again while another session has it.
        most_sessions: how many there may be.
        most_partitions: how many all of them may have together.
        least_idle_ms: a session that was not used for so long may go to make room.
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
        # Whoever was used last comes last.
        self._sessions: dict[int, _Session] = {}
        self.partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        asked: Mapping[SessionKey, RequestedPartition],
        forgotten: Iterable[SessionKey],
        by_ids: bool,
        name_of: Callable[[UUID], str | None],
        now_ms: int,
    ) -> FetchContext:
        """Take up a fetch. O(partitions of the session).

        Args:
            session_id, epoch: as the request says.
            asked: what it names, again or for the first time.
            forgotten: what it wants no more.
            by_ids: whether it names topics by their ids.
            name_of: returns the name of the topic that has an id now, or None.
            now_ms: the time, from any beginning on.
        """
        if epoch in (FINAL_EPOCH, FIRST_EPOCH):
            self._end(session_id)
            if epoch == FINAL_EPOCH:
                return FetchContext(asked)
            return FetchContext(
                asked, lambda answers: self._begin_session(asked, by_ids, now_ms, answers)
            )
        session = self._sessions.get(session_id)
        if session is None:
            return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_ids != by_ids:
            return _refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            return _refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        self._change(session, asked, forgotten)
        if not session.kept:
            self._end(session_id)
            return FetchContext({})
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        session.used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        for (topic, _), kept in session.kept.items():
            if kept.asked.topic is None and isinstance(topic, UUID):
                kept.asked = kept.asked._replace(topic=name_of(topic))
        return FetchContext(
            {key: kept.asked for key, kept in session.kept.items()},
            lambda answers: _settled(session, answers),
        )

    def keys_of(self, session_id: int) -> tuple[SessionKey, ...]:
        """Return which partitions a session has; none where there is no such session. O(these)."""
        session = self._sessions.get(session_id)
        return () if session is None else tuple(session.kept)

    def _begin_session(
        self,
        asked: Mapping[SessionKey, RequestedPartition],
        by_ids: bool,
        now_ms: int,
        answers: SessionResponses,
    ) -> tuple[int, SessionResponses]:
        if not asked or not self._make_room(len(asked), now_ms):
            return NO_SESSION, answers
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = self._sessions[session_id] = _Session(session_id, by_ids, now_ms)
        self._change(session, asked, ())
        for key, answer in answers.items():
            session.kept[key].is_news(answer)
        return session_id, answers

    def _make_room(self, partitions: int, now_ms: int) -> bool:
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
        session: _Session,
        asked: Mapping[SessionKey, RequestedPartition],
        forgotten: Iterable[SessionKey],
    ) -> None:
        before = len(session.kept)
        for key in forgotten:
            session.kept.pop(key, None)
        for key, one in asked.items():
            kept = session.kept.get(key)
            if kept is None:
                session.kept[key] = _SessionPartition(one)
            else:
                kept.asked = one
        self.partition_count += len(session.kept) - before

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.kept)


def _refused(error: ErrorCode) -> FetchContext:
    return FetchContext({}, error=error)


def _settled(session: _Session, answers: SessionResponses) -> tuple[int, SessionResponses]:
    given = {}
    for key, answer in answers.items():
        kept = session.kept.get(key)
        if kept is not None and kept.is_news(answer):
            given[key] = answer
            if answer.batches:
                # Whoever had records comes last next time: the others get theirs, too.
                session.kept[key] = session.kept.pop(key)
    return session.session_id, given


LOOK_EVERY_MS = 500
Fetches = dict[TopicPartition, PartitionFetch]
PartitionResponses = dict[TopicPartition, PartitionFetchResponse]


def must_ask_anew(answer: PartitionFetchResponse) -> bool:
    """Whether a follower that gets this answer has to ask for the partition again."""
    return bool(
        answer.batches or answer.error is not ErrorCode.NONE or answer.diverging_epoch is not None
    )


class ParkedFetch(NamedTuple):
    """What is asked of a partition, and what the follower was told of it last.

    Whoever leaves the ISR is told (`notify_changed`); ``in_sync`` is looked at until it is back.
    """

    fetch: PartitionFetch
    log: Log
    high_watermark: int
    log_start_offset: int
    in_sync: bool


class FollowerSession:
    """Keeps what one follower has asked.

    Args:
        follower_id: its broker id.
    """

    __slots__ = ("_looked_ms", "_parked", "asked_ms", "follower_id", "operation", "pending")

    def __init__(self, follower_id: int) -> None:
        self.follower_id = follower_id
        self.asked_ms = 0
        self.pending: Fetches = {}
        self.operation: DelayedSessionFetch | None = None
        self._parked: dict[TopicPartition, ParkedFetch] = {}
        self._looked_ms = 0

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """What it waits for. O(partitions)."""
        return (*self._parked, *self.pending)

    def notify_appended(self, partition: Partition) -> bool:
        """Record that there may be more in a partition; return whether that is news. O(1)."""
        parked = self._parked.get(partition.topic_partition)
        if parked is None or partition.log.end_offset <= parked.fetch.fetch_offset:
            return False
        partition.record_fetch(self.follower_id, self.asked_ms)
        return self.notify_changed(partition.topic_partition)

    def notify_changed(self, topic_partition: TopicPartition) -> bool:
        """Record that a partition has to be looked at; return whether that is news. O(1)."""
        parked = self._parked.pop(topic_partition, None)
        if parked is None:
            return False
        self.pending[topic_partition] = parked.fetch
        return True

    def begin_fetch(self, asked: Fetches, now_ms: int) -> Fetches:
        """Take up what is requested again; return what to read. O(those), but for the looks."""
        waiting, self.operation = self.operation, None
        if waiting is not None:
            waiting.force_complete()
        self.asked_ms = now_ms
        for topic_partition in asked:
            self._parked.pop(topic_partition, None)
        pending, self.pending = self.pending, {}
        fetches = {**pending, **asked} if pending and asked else pending or asked
        if now_ms - self._looked_ms >= LOOK_EVERY_MS:
            self._looked_ms = now_ms
            return {**fetches, **dict(self._unannounced_changes())}
        return fetches

    def settle(
        self, fetches: Fetches, answers: PartitionResponses, partitions: PartitionRegistry
    ) -> PartitionResponses:
        """Keep for later what there is nothing to tell of; return the responses to be given."""
        given: PartitionResponses = {}
        for topic_partition, fetch in fetches.items():
            answer = answers[topic_partition]
            partition = partitions.get(topic_partition)
            known = self._parked.pop(topic_partition, None)
            if partition is None or must_ask_anew(answer):
                given[topic_partition] = answer
                continue
            if known is None:
                told_watermark = UNKNOWN_OFFSET  # the next look tells it
            else:
                told_watermark = answer.high_watermark
                if (known.high_watermark, known.log_start_offset) != (
                    told_watermark,
                    answer.log_start_offset,
                ):
                    given[topic_partition] = answer
            if partition.log.end_offset > fetch.fetch_offset:
                self.pending[topic_partition] = fetch  # the response had no room for it
            elif topic_partition not in self.pending:  # it became pending while it was read
                self._parked[topic_partition] = ParkedFetch(
                    fetch,
                    partition.log,
                    told_watermark,
                    answer.log_start_offset,
                    self.follower_id in partition.isr,
                )
        return given

    def _unannounced_changes(self) -> Iterable[tuple[TopicPartition, PartitionFetch]]:
        return [
            (topic_partition, fetch)
            for topic_partition, (fetch, log, watermark, start, in_sync) in self._parked.items()
            if log.high_watermark != watermark or log.start_offset != start or not in_sync
        ]


class DelayedSessionFetch(DelayedFetch):
    """Waits until a partition of a session is pending.

    Args:
        params: the request's; ``max_wait_ms`` is the timeout.
        partitions: what is here.
        session: of the follower that asks.
        wake: called, with no responses.
    """

    __slots__ = ("_session",)

    def __init__(
        self,
        params: FetchParams,
        partitions: PartitionRegistry,
        session: FollowerSession,
        wake: RespondFetch,
    ) -> None:
        super().__init__(params, FetchIsolation.LOG_END, partitions, {}, [], wake)
        self._session = session

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """Return what it fetches from. O(partitions)."""
        return self._session.topic_partitions

    def try_complete(self) -> bool:
        return bool(self._session.pending) and self.force_complete()

    def on_complete(self) -> None:
        if self._session.operation is self:
            self._session.operation = None
        self._answered = True
        self._respond({})
