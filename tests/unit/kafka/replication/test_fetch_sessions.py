"""Fetch sessions: epochs, included and forgotten partitions, eviction of idle sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.kafka import ErrorCode, PartitionFetch, PartitionFetchResponse, RecordBatch
from purgatory.kafka.replication.fetch_session import (
    FetchContext,
    FetchSessions,
    RequestedPartition,
    SessionKey,
)

_NONE = ErrorCode.NONE
_A: SessionKey = ("t", 0)
_B: SessionKey = ("t", 1)
_C: SessionKey = ("u", 0)
_BATCH = RecordBatch(0, 1, 100)
_ID = UUID(int=7)


def _sessions(most_sessions: int = 2, most_partitions: int = 10) -> FetchSessions:
    numbers = count(1)
    return FetchSessions(lambda: next(numbers), most_sessions, most_partitions, 1_000)


def _begin(
    sessions: FetchSessions,
    session_id: int,
    epoch: int,
    keys: Iterable[SessionKey] = (),
    forgotten: Iterable[SessionKey] = (),
    by_ids: bool = False,
    names: Mapping[UUID, str] | None = None,
    now_ms: int = 0,
) -> FetchContext:
    known = names or {}
    asked = {
        key: RequestedPartition(
            known.get(key[0]) if isinstance(key[0], UUID) else key[0], PartitionFetch(epoch)
        )
        for key in keys
    }
    return sessions.begin(session_id, epoch, asked, forgotten, by_ids, known.get, now_ms)


def _answer(
    watermark: int = 5, error: ErrorCode = _NONE, full: bool = False
) -> PartitionFetchResponse:
    return PartitionFetchResponse(error, watermark, watermark, 0, (_BATCH,) if full else ())


def _told(context: FetchContext, **answers: PartitionFetchResponse) -> set[SessionKey]:
    """Complete with the same response for all partitions; return the included ones."""
    (answer,) = answers.values() or (_answer(),)
    return set(context.complete(dict.fromkeys(context.fetches, answer))[1])


def _begun(sessions: FetchSessions, *keys: SessionKey, now_ms: int = 0) -> int:
    context = _begin(sessions, 0, 0, keys, now_ms=now_ms)
    session_id, told = context.complete(dict.fromkeys(keys, _answer()))
    assert set(told) == set(keys), "a full response has all"
    return session_id


def test_session_without_partitions_is_kept_and_takes_some() -> None:
    sessions = _sessions()
    session_id = _begun(sessions)
    assert session_id == 1
    assert set(_begin(sessions, session_id, 1, [_A]).fetches) == {_A}


def test_incremental_response_has_only_partitions_with_news() -> None:
    sessions = _sessions()
    session_id = _begun(sessions, _A, _B)
    context = _begin(sessions, session_id, 1)
    assert list(context.fetches) == [_A, _B]
    assert context.complete({_A: _answer(), _B: _answer()}) == (session_id, {})
    context = _begin(sessions, session_id, 2)
    told = context.complete({_A: _answer(6), _B: _answer()})[1]
    assert list(told) == [_A], "the watermark of A moved"
    context = _begin(sessions, session_id, 3, [_B], [_A])
    assert list(context.fetches) == [_B]
    assert context.fetches[_B].fetch.fetch_offset == 3, "as last requested"
    assert set(context.complete({_B: _answer(full=True)})[1]) == {_B}


def test_partition_is_included_again_after_an_error() -> None:
    sessions = _sessions()
    session_id = _begun(sessions, _A)
    for epoch in (1, 2):
        context = _begin(sessions, session_id, epoch)
        assert _told(context, answer=_answer(5, ErrorCode.NOT_LEADER_OR_FOLLOWER)) == {_A}
    assert _told(_begin(sessions, session_id, 3), answer=_answer()) == {_A}
    assert _told(_begin(sessions, session_id, 4), answer=_answer()) == set()


def test_partition_with_records_is_read_last_next_time() -> None:
    sessions = _sessions()
    session_id = _begun(sessions, _A, _B, _C)
    _begin(sessions, session_id, 1).complete(
        {_A: _answer(full=True), _B: _answer(full=True), _C: _answer()}
    )
    assert list(_begin(sessions, session_id, 2).fetches) == [_C, _A, _B]


def test_fetch_with_a_wrong_epoch_or_id_changes_no_session() -> None:
    sessions = _sessions()
    session_id = _begun(sessions, _A)
    for epoch in (2, 99):
        refused = _begin(sessions, session_id, epoch, [_B])
        assert refused.error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert _begin(sessions, 99, 1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    refused = _begin(sessions, session_id, 1, by_ids=True)
    assert refused.error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    context = _begin(sessions, session_id, 1)
    assert context.error is _NONE
    assert list(context.fetches) == [_A]
    assert _begin(sessions, session_id, 1).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH, "twice"


def test_epochs_wrap_after_the_last_number() -> None:
    sessions = _sessions()
    session_id = _begun(sessions, _A)
    sessions._sessions[session_id].epoch = 2**31 - 1
    assert _begin(sessions, session_id, 2**31 - 1).error is _NONE
    assert _begin(sessions, session_id, 1).error is _NONE


def test_full_fetch_ends_the_given_session() -> None:
    sessions = _sessions()
    first = _begun(sessions, _A)
    second, _ = _begin(sessions, first, 0, [_B]).complete({_B: _answer()})
    assert second != first
    assert _begin(sessions, first, 1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    context = _begin(sessions, second, -1, [_C])
    assert context.complete({_C: _answer()}) == (0, {_C: _answer()})
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_a_session_ends_with_its_last_partition() -> None:
    sessions = _sessions()
    session_id = _begun(sessions, _A)
    context = _begin(sessions, session_id, 1, (), [_A])
    assert context.complete({}) == (0, {})
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_longest_idle_session_is_removed_when_there_is_no_room() -> None:
    sessions = _sessions(most_sessions=2)
    first, second = _begun(sessions, _A), _begun(sessions, _B)
    assert _begun(sessions, _C, now_ms=999) == 0, "none is idle for long enough"
    assert _begin(sessions, first, 1, now_ms=500).error is _NONE
    third = _begun(sessions, _C, now_ms=1_000)
    assert third > 0
    assert _begin(sessions, second, 1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert _begin(sessions, first, 2, now_ms=1_000).error is _NONE


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    sessions = _sessions(most_partitions=2)
    assert _begun(sessions, _A, _B) > 0
    assert _begun(sessions, _C) == 0


def test_topic_id_is_resolved_as_soon_as_the_topic_exists() -> None:
    sessions = _sessions()
    key = (_ID, 0)
    context = _begin(sessions, 0, 0, [key], by_ids=True)
    assert context.fetches[key].topic is None
    session_id, _ = context.complete({key: _answer(error=ErrorCode.UNKNOWN_TOPIC_ID)})
    context = _begin(sessions, session_id, 1, by_ids=True, names={_ID: "t"})
    assert context.fetches[key].topic == "t"
    context = _begin(sessions, session_id, 2, by_ids=True)
    assert context.fetches[key].topic == "t", "the error of a deleted topic has its name"


_keys = st.sampled_from([_A, _B, _C])
_watermarks = st.dictionaries(_keys, st.integers(0, 2))


@given(st.lists(st.tuples(st.sets(_keys), st.sets(_keys), _watermarks), max_size=12))
@settings(max_examples=200, deadline=None)
def test_session_gives_a_client_the_same_state_as_full_fetches(
    fetches: list[tuple[set[SessionKey], set[SessionKey], dict[SessionKey, int]]],
) -> None:
    """After any requests and responses, the client's view is that of a full fetch."""
    sessions = _sessions()
    session_id, epoch = 0, 0
    wanted: set[SessionKey] = set()
    known: dict[SessionKey, int] = {}
    there = dict.fromkeys([_A, _B, _C], 0)
    for asked, forgotten, watermarks in fetches:
        there |= watermarks
        if session_id == 0:
            wanted, known, epoch = set(asked), {}, 0
        else:
            wanted = (wanted - forgotten) | asked
            known = {key: value for key, value in known.items() if key in wanted}
        context = _begin(sessions, session_id, epoch, asked, forgotten)
        assert context.error is _NONE
        assert set(context.fetches) == wanted
        session_id, told = context.complete({key: _answer(there[key]) for key in context.fetches})
        known |= {key: answer.high_watermark for key, answer in told.items()}
        assert known == {key: there[key] for key in wanted}
        assert sessions.partition_count == (len(wanted) if session_id else 0)
        epoch += 1
