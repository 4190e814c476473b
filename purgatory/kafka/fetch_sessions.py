"""Fetch sessions of consumers (KIP-227): what each asked for and was told of, from fetch to fetch.

A full fetch names all that is wanted, and may begin a session. An incremental one names only what
changed, and is answered only with partitions of which there is something new: records, an error, a
watermark or a start that moved. Each has the next epoch, so that a fetch that was lost or came
twice is noticed, and the client begins anew.

    epoch -1     no session; ends the one that is named
    epoch 0      begins a session; ends the one that is named
    epoch 1 ...  goes on with the one that is named

Sessions are bounded in number and in partitions. Where there is no room, the session goes that was
not used for longest, if that is long enough; else the client gets none, and goes on with full
fetches.

Ground rules
------------
* One thread, that of the event loop: nothing here is locked.
* A session changes when a request is taken up (`FetchSessions.begin`) and when its answer is made
  (`FetchContext.settle`); in between others may come, and one that ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.requests import UNKNOWN_OFFSET, PartitionFetch, PartitionFetchResponse

NO_SESSION = 0
FINAL_EPOCH = -1
FIRST_EPOCH = 0
_LAST_EPOCH = 2**31 - 1
_NO_REPLICA = -1

SessionKey = tuple[str | UUID, int]
"""A partition as its client names it: the topic's name, or its id, and the number."""

Answers = Mapping[SessionKey, PartitionFetchResponse]


class AskedPartition(NamedTuple):
    """What is asked of a partition. ``topic`` is the name: None while no topic has the id."""

    topic: str | None
    fetch: PartitionFetch


class _Kept:
    """What is asked of a partition, and what the client was told of it last."""

    __slots__ = ("asked", "high_watermark", "log_start_offset")

    def __init__(self, asked: AskedPartition) -> None:
        self.asked = asked
        self.high_watermark = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET

    def is_news(self, answer: PartitionFetchResponse) -> bool:
        """Note an answer; say whether it tells anything that the last one did not."""
        is_news = bool(
            answer.batches
            or answer.error is not ErrorCode.NONE
            or answer.diverging_epoch is not None
            or answer.preferred_replica != _NO_REPLICA
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
        )
        failed = answer.error is not ErrorCode.NONE
        # Behind an error there is news, whatever the next answer is.
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
        self.kept: dict[SessionKey, _Kept] = {}


class FetchContext:
    """One fetch: what to read for it, and what to answer.

    Attributes, to be read only: ``asked``, all that is to be read, in the order in which partitions
    get their part of an answer; ``error``, why it is refused as a whole, in place of any answer.
    """

    __slots__ = ("_settle", "asked", "error")

    def __init__(
        self,
        asked: Mapping[SessionKey, AskedPartition],
        settle: Callable[[Answers], tuple[int, Answers]] = lambda answers: (NO_SESSION, answers),
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self.asked = asked
        self.error = error
        self._settle = settle

    def settle(self, answers: Answers) -> tuple[int, Answers]:
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
        asked: Mapping[SessionKey, AskedPartition],
        forgotten: Iterable[SessionKey],
        by_ids: bool,
        name_of: Callable[[UUID], str | None],
        now_ms: int,
    ) -> FetchContext:
        """Take up a fetch. O(partitions of the session).

        Args:
            session_id, epoch: as the request says.
            asked: what it names, anew or for the first time.
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
        asked: Mapping[SessionKey, AskedPartition],
        by_ids: bool,
        now_ms: int,
        answers: Answers,
    ) -> tuple[int, Answers]:
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
        asked: Mapping[SessionKey, AskedPartition],
        forgotten: Iterable[SessionKey],
    ) -> None:
        before = len(session.kept)
        for key in forgotten:
            session.kept.pop(key, None)
        for key, one in asked.items():
            kept = session.kept.get(key)
            if kept is None:
                session.kept[key] = _Kept(one)
            else:
                kept.asked = one
        self.partition_count += len(session.kept) - before

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.kept)


def _refused(error: ErrorCode) -> FetchContext:
    return FetchContext({}, error=error)


def _settled(session: _Session, answers: Answers) -> tuple[int, Answers]:
    given = {}
    for key, answer in answers.items():
        kept = session.kept.get(key)
        if kept is not None and kept.is_news(answer):
            given[key] = answer
            if answer.batches:
                # Whoever had records comes last next time: the others get theirs, too.
                session.kept[key] = session.kept.pop(key)
    return session.session_id, given
