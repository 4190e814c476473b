"""Bytes that are no request, against the decoder: it refuses them, and does nothing else."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from purgatory.cluster.api.registry import SUPPORTED
from purgatory.cluster.errors import BadRequestError, UnsupportedVersionError
from purgatory.cluster.protocol.frame_check import MAX_ELEMENTS
from purgatory.cluster.protocol.wire import decode_request
from tests.wire.cluster.wire_values import ALL_VERSIONS, CLIENT_ID, record_batch, request_frame

_FULL: dict[int, dict[str, Any]] = {
    0: {
        "acks": -1,
        "topic_data": [
            {"name": "t", "partition_data": [{"index": 0, "records": record_batch([b"one"])}]}
        ],
    },
    1: {"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]},
    2: {"topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]},
    3: {"topics": [{"name": "t"}]},
    8: {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]},
    9: {"group_id": "g", "groups": [{"group_id": "g"}]},
    10: {"key": "g", "coordinator_keys": ["g"]},
    11: {"group_id": "g", "protocols": [{"name": "range", "metadata": b"abc"}]},
    14: {"assignments": [{"member_id": "m", "assignment": b"abc"}]},
    19: {"topics": [{"name": "t", "configs": [{"name": "a", "value": "b"}]}]},
    32: {"resources": [{"resource_name": "t", "configuration_keys": ["a"]}]},
}


@cache
def _frames() -> list[bytes]:
    """Return requests of all versions, whose classes take seconds to import."""
    return [
        request_frame(api_key, version, 1, values)
        for api_key, version in ALL_VERSIONS
        for values in ({}, _FULL.get(api_key, {}))
    ]


_LENGTHS = [
    b"\x7f\xff\xff\xff",  # 2 GiB
    b"\xff\xff\xff\xff",  # -1
    b"\x80\x00\x00\x00",  # the least there is
    b"\x7f\xff",
    b"\x80\x00",
    b"\xff\xff\xff\xff\x07",  # 2 GiB, in a flexible version
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 6,  # a number that doesn't end
]


@st.composite
def _mutated_frames(draw: st.DrawFn) -> bytes:
    frame = bytearray(draw(st.sampled_from(_frames())))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(min(4, len(frame)), len(frame)))
        how = draw(st.sampled_from(["byte", "length", "insert", "tear"]))
        if how == "byte":
            frame[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif how == "length":
            length = draw(st.sampled_from(_LENGTHS))
            frame[at : at + len(length)] = length
        elif how == "insert":
            frame[at:at] = draw(st.binary(min_size=1, max_size=20))
        else:
            del frame[at:]
    return bytes(frame)


def _refused_or_decoded(frame: bytes) -> None:
    try:
        request = decode_request(frame, SUPPORTED)
    except BadRequestError:
        return
    oldest, newest = SUPPORTED[request.api_key]
    assert oldest <= request.api_version <= newest


@settings(max_examples=300)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\x00\x03")
def test_random_bytes_raise_only_bad_request_errors(data: bytes) -> None:
    _refused_or_decoded(data)


@settings(max_examples=300)
@given(st.sampled_from(ALL_VERSIONS), st.binary(max_size=200))
def test_random_bodies_are_refused_or_decoded(api: tuple[int, int], rest: bytes) -> None:
    _refused_or_decoded(struct.pack(">hhih", *api, 1, -1) + rest)


@settings(max_examples=500)
@given(_mutated_frames())
def test_mutated_requests_are_refused_or_decoded(frame: bytes) -> None:
    _refused_or_decoded(frame)


@pytest.mark.parametrize(("api_key", "version"), ALL_VERSIONS)
def test_truncated_request_of_every_version_is_refused(api_key: int, version: int) -> None:
    frame = request_frame(api_key, version, 17, _FULL.get(api_key))
    request = decode_request(frame, SUPPORTED)
    assert (request.api_key, request.api_version) == (api_key, version)
    assert (request.correlation_id, request.client_id) == (17, CLIENT_ID)
    for end in range(len(frame)):
        with pytest.raises(BadRequestError):
            decode_request(frame[:end], SUPPORTED)
    assert decode_request(frame + b"behind", SUPPORTED) == request, "as in Kafka"


@pytest.mark.parametrize(
    ("version", "length"), [(1, b"\x7f\xff\xff\xff"), (5, b"\xff" * 4 + b"\x07")]
)
def test_array_of_a_claimed_huge_length_costs_no_memory(version: int, length: bytes) -> None:
    # The codec would reserve 32 GiB for them, and end the process.
    frame = bytearray(request_frame(20, version, 1))
    flexible = version == 5
    empty = b"\x01" if flexible else b"\x00\x00\x00\x00"
    at = len(frame) - 4 - flexible - len(empty)
    assert frame[at : at + len(empty)] == empty
    frame[at : at + len(empty)] = length
    with pytest.raises(BadRequestError, match="array"):
        decode_request(bytes(frame), SUPPORTED)


def test_array_beyond_the_element_limit_is_refused() -> None:
    most = request_frame(20, 1, 1, {"topic_names": [""] * MAX_ELEMENTS})
    assert len(decode_request(most, SUPPORTED).body.topic_names) == MAX_ELEMENTS
    with pytest.raises(BadRequestError, match="array"):
        decode_request(
            request_frame(20, 1, 1, {"topic_names": [""] * (MAX_ELEMENTS + 1)}), SUPPORTED
        )


@pytest.mark.parametrize(
    ("api_key", "version", "field"),
    [(22, 4, "transactional_id"), (68, 1, "member_id"), (78, 1, "group_id"), (11, 9, "group_id")],
)
def test_string_beyond_the_length_limit_is_refused(api_key: int, version: int, field: str) -> None:
    for text, longest in (("x", 32_767), ("\u00e4", 16_383)):
        frame = request_frame(api_key, version, 1, {field: text * longest})
        assert getattr(decode_request(frame, SUPPORTED).body, field) == text * longest
        frame = request_frame(api_key, version, 1, {field: text * (longest + 1)})
        with pytest.raises(BadRequestError, match="a string of 32768 bytes: it may have 32767"):
            decode_request(frame, SUPPORTED)


@pytest.mark.parametrize("version", [7, 8, 9])
def test_null_in_the_place_of_an_array_is_refused(version: int) -> None:
    frame = bytearray(request_frame(8, version, 1))  # its topics are empty, and may not be null
    empty, null = (b"\x01\x00", b"\x00\x00") if version > 7 else (bytes(4), b"\xff" * 4)
    assert frame.endswith(empty)
    frame[-len(empty) :] = null
    with pytest.raises(BadRequestError, match="null in the place of an array"):
        decode_request(bytes(frame), SUPPORTED)


def test_errors_name_unknown_apis_and_versions() -> None:
    with pytest.raises(BadRequestError, match=r"API 12345 \(unknown\)"):
        decode_request(struct.pack(">hhi", 12345, 0, 1), SUPPORTED)
    with pytest.raises(UnsupportedVersionError, match="API 3 version 99") as caught:
        decode_request(struct.pack(">hhi", 3, 99, 7), SUPPORTED)
    assert caught.value.correlation_id == 7


@pytest.mark.parametrize("length", [-1, -2, -(2**15)])
@pytest.mark.parametrize("api_key", [0, 3])
def test_length_below_zero_is_null(api_key: int, length: int) -> None:
    frame = request_frame(api_key, 3, 1, {"acks": -1})
    client_id = struct.pack(">h", len(CLIENT_ID)) + CLIENT_ID.encode()
    no_client = frame.replace(client_id, struct.pack(">h", length), 1)
    request, expected = decode_request(no_client, SUPPORTED), decode_request(frame, SUPPORTED)
    assert (request.client_id, request.correlation_id) == (None, expected.correlation_id)
    assert not (api_key and request.body != expected.body), "Produce has two classes"
    all_topics = request_frame(3, 1, 1)[:-4] + struct.pack(">i", length)
    assert decode_request(all_topics, SUPPORTED).body.topics is None


@pytest.mark.parametrize("version", [1, 12])
@pytest.mark.parametrize(
    "bad", [b"\xff", b"a\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x28\x8c\xbc"]
)
def test_text_that_is_no_utf8_is_replaced(version: int, bad: bytes) -> None:
    plain = request_frame(3, version, 1, {"topics": [{"name": "x" * len(bad)}, {"name": "t"}]})
    request = decode_request(plain.replace(b"x" * len(bad), bad), SUPPORTED)
    names = [topic.name for topic in request.body.topics]
    assert names == [bad.decode("utf-8", "replace"), "t"]
    assert (
        decode_request(plain.replace(b"a-test", b"a-\xffest"), SUPPORTED).client_id == "a-\ufffdest"
    )


def test_unknown_tagged_fields_are_ignored() -> None:
    tag = b"\x01\x63\x03abc"  # one: number 99, three bytes
    plain = request_frame(1, 12, 1, {"cluster_id": "c", "topics": [{"topic": "t"}]})
    expected = decode_request(plain, SUPPORTED).body
    header_end = 8 + 2 + len(CLIENT_ID)
    assert plain[header_end] == 0, "no tagged fields in the header"
    in_header = plain[:header_end] + tag + plain[header_end + 1 :]
    assert decode_request(in_header, SUPPORTED).body == expected
    # The body's own tagged field, the cluster's id, stays beside an unknown one.
    known = b"\x01\x00\x02\x02c"
    assert plain.endswith(known)
    beside = plain[: -len(known)] + b"\x02" + known[1:] + tag[1:]
    assert decode_request(beside, SUPPORTED).body == expected
    assert expected.cluster_id == "c"
