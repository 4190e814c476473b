"""Fixed layouts read and write the bytes of `kio` in every version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.cluster.api.registry import SUPPORTED
from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.protocol import wire
from purgatory.cluster.protocol.fixed_layouts import (
    FetchResponse,
    FixedLayout,
    HeartbeatResponse,
    Key,
    LeaderHints,
    NodeEndpoint,
    ProduceResponse,
    read_produce,
)
from purgatory.cluster.protocol.wire import decode_request, encode_response
from purgatory.kafka import (
    ErrorCode,
    PartitionFetchResponse,
    PartitionProduceResponse,
    RecordBatch,
)
from purgatory.kafka.errors import RecordError
from purgatory.kafka.groups.consumer_group_coordinator import ConsumerGroupHeartbeatResult
from purgatory.kafka.log.leader_epoch_cache import EpochEndOffset
from purgatory.kafka.log.producer_state import AbortedTransaction
from tests.proofs.drawn import width
from tests.wire.cluster.wire_values import record_batch, request_frame

_PRODUCE, _FETCH = 0, 1
_produce_versions = pytest.mark.parametrize(
    "version", range(SUPPORTED[_PRODUCE][0], SUPPORTED[_PRODUCE][1] + 1)
)
_versions = pytest.mark.parametrize(
    ("api_key", "version"),
    [
        (api_key, version)
        for api_key in (_PRODUCE, _FETCH)
        for version in range(SUPPORTED[api_key][0], SUPPORTED[api_key][1] + 1)
    ],
)

_names = st.text(max_size=150)
_ids = st.uuids() | st.just(UUID(int=0))
_numbers = {bits: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)}
_durations = _numbers[32].map(lambda ms: timedelta(milliseconds=ms))


def _arrays(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, max_size=3)


_produces = st.fixed_dictionaries(
    {
        "transactional_id": st.none() | _names,
        "acks": _numbers[16],
        "timeout": _durations,
        "topic_data": _arrays(
            st.fixed_dictionaries(
                {
                    "name": _names,
                    "topic_id": _ids,
                    "partition_data": _arrays(
                        st.fixed_dictionaries(
                            {"index": _numbers[32], "records": st.binary(max_size=300)}
                        )
                    ),
                }
            )
        ),
    }
)


def _decoded_by_kio(frame: bytes) -> Any:
    with patch.object(wire, "read_produce", lambda *_: None):
        return decode_request(frame, SUPPORTED)


def _assert_says_the_same(entity: Any, read: Any) -> None:
    """Compare all fields that `kio` reads with those read in its place."""
    if is_dataclass(entity) and not isinstance(entity, type):
        for field in fields(entity):
            _assert_says_the_same(getattr(entity, field.name), getattr(read, field.name))
    elif isinstance(entity, tuple):
        assert isinstance(read, tuple)
        for one, other in zip(entity, read, strict=True):
            _assert_says_the_same(one, other)
    else:
        assert (type(entity), entity) == (type(read), read)


def _refusal(decode: Callable[[bytes], Any], frame: bytes) -> tuple[type[Exception], str] | None:
    try:
        decode(frame)
    except BadRequestError as error:
        return type(error), str(error)
    return None


def _assert_decoded_alike(frame: bytes) -> None:
    refusal = _refusal(_decoded_by_kio, frame)
    assert _refusal(partial(decode_request, supported=SUPPORTED), frame) == refusal
    if refusal is None:
        expected, request = _decoded_by_kio(frame), decode_request(frame, SUPPORTED)
        assert replace(request, body=None) == replace(expected, body=None)
        _assert_says_the_same(expected.body, request.body)


@_produce_versions
@given(data=st.data())
@settings(max_examples=width(10, 30), deadline=None)
def test_usual_requests_are_read_as_by_kio(version: int, data: Any) -> None:
    values = data.draw(_produces)
    frame = request_frame(_PRODUCE, version, data.draw(_numbers[32]), values)
    assert read_produce(version, frame) is not None
    _assert_decoded_alike(frame)


@_produce_versions
@given(data=st.data())
@settings(max_examples=width(20, 60), deadline=None)
def test_mutated_requests_are_refused_or_read_as_by_kio(version: int, data: Any) -> None:
    values = data.draw(_produces)
    frame = bytearray(request_frame(_PRODUCE, version, 7, values))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(8, len(frame)))  # behind API and version
        cut = data.draw(st.integers(0, 2))
        instead = data.draw(st.sampled_from([b"\xff", b"\0", b"\x80\0", b"\x01"]) | st.binary())
        frame[place : place + cut] = instead
    _assert_decoded_alike(bytes(frame))


@_produce_versions
def test_truncated_request_is_refused_as_by_kio(version: int) -> None:
    partition = {"index": 1, "records": b"x" * 200}
    topic = {"name": "t", "topic_id": UUID(int=7), "partition_data": [partition]}
    frame = request_frame(_PRODUCE, version, 7, {"topic_data": [topic]})
    for end in range(8, len(frame)):
        _assert_decoded_alike(frame[:end])
    _assert_decoded_alike(frame + b"\0")


def test_requests_with_many_partitions_are_decoded_by_kio() -> None:
    partitions = [{"index": number, "records": b""} for number in range(401)]
    values = {"topic_data": [{"name": "t", "partition_data": partitions}]}
    for version in (3, 9):
        frame = request_frame(_PRODUCE, version, 7, values)
        assert read_produce(version, frame) is None
        _assert_decoded_alike(frame)


_batches = [
    RecordBatch.from_bytes(record_batch([b"x" * size, b"y"])).with_offset(size, 3)
    for size in (1, 60, 20_000)
]
_FIRST_BY_IDS = 13
_Drawn = tuple[dict[int, tuple[int, int]], list[NodeEndpoint]]
_hints: st.SearchStrategy[_Drawn] = st.tuples(
    st.dictionaries(st.integers(0, 3), st.tuples(_numbers[32], _numbers[32])),
    st.lists(
        st.builds(NodeEndpoint, _numbers[32], _names, _numbers[32], st.none() | _names), max_size=3
    ),
)


def _keys(version: int) -> st.SearchStrategy[tuple[Any, int]]:
    return st.tuples(_ids if version >= _FIRST_BY_IDS else _names, st.integers(0, 3))


def _of_keys(drawn: _Drawn, answers: Iterable[Key]) -> LeaderHints:
    """Give the partitions the leaders that were drawn for their numbers."""
    leaders, endpoints = drawn
    return LeaderHints(
        {key: leaders[key[1]] for key in answers if key[1] in leaders}, tuple(endpoints)
    )


@pytest.mark.parametrize("version", [0, 1])
@given(
    result=st.builds(
        ConsumerGroupHeartbeatResult,
        st.sampled_from(ErrorCode),
        st.none() | _names,
        _numbers[32],
        st.none(),
        st.none() | _names,
    ),
    interval_ms=_numbers[32],
)
def test_heartbeat_responses_are_written_as_by_kio(
    version: int, result: ConsumerGroupHeartbeatResult, interval_ms: int
) -> None:
    response = HeartbeatResponse(result, interval_ms)
    expected = encode_response(68, version, 7, response.fields())
    assert encode_response(68, version, 7, response) == expected


@_versions
@given(data=st.data())
@settings(max_examples=width(10, 30), deadline=None)
def test_produce_and_fetch_responses_are_written_as_by_kio(
    api_key: int, version: int, data: Any
) -> None:
    drawn = data.draw(_hints)
    response: FixedLayout
    if api_key == _PRODUCE:
        produced = data.draw(st.dictionaries(_keys(version), _produced, max_size=4))
        response = ProduceResponse(produced, _of_keys(drawn, produced))
    else:
        fetched = data.draw(st.dictionaries(_keys(version), _fetched, max_size=4))
        error = data.draw(st.sampled_from(ErrorCode)) if version >= 7 else ErrorCode.NONE
        response = FetchResponse(fetched, data.draw(_numbers[32]), error, _of_keys(drawn, fetched))
    expected = encode_response(api_key, version, 7, response.fields())
    assert encode_response(api_key, version, 7, response) == expected


_produced = st.builds(
    PartitionProduceResponse,
    st.sampled_from(ErrorCode),
    _numbers[64],
    _numbers[64],
    message=st.none() | _names,
    append_time_ms=st.just(-1) | st.integers(0, 2**41),
    record_errors=st.lists(st.builds(RecordError, _numbers[32], _names), max_size=3),
)
_fetched = st.builds(
    PartitionFetchResponse,
    st.sampled_from(ErrorCode),
    _numbers[64],
    _numbers[64],
    _numbers[64],
    _arrays(st.sampled_from(_batches)).map(tuple),
    st.none() | st.builds(EpochEndOffset, st.integers(0, 99), _numbers[64]),
    _arrays(st.builds(AbortedTransaction, _numbers[64], _numbers[64], st.just(0))).map(tuple),
    preferred_replica=_numbers[32],
)
