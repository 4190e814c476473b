"""Empty groups change their kind; a group with members where its policy permits that."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.kafka import ErrorCode
from purgatory.kafka.groups.consumer_protocol import (
    read_assignment,
    read_subscription,
    subscribed_topics,
    write_assignment,
)
from purgatory.kafka.groups.group_records import RecordKind
from purgatory.kafka.settings.group_settings import MigrationPolicy
from tests.unit.kafka.conftest import Broker
from tests.unit.kafka.groups.mixed_world import MixedWorld, subscription

NONE, NOT_FOUND = ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("policy", MigrationPolicy)
@pytest.mark.parametrize("kind", ["consumer", "connect"])
def test_empty_groups_make_way_for_each_other(
    make_broker: Callable[..., Broker], policy: MigrationPolicy, kind: str
) -> None:
    here = MixedWorld(make_broker(0), policy=policy)
    member = here.classic()
    member.kind = kind
    here.form(member)
    assert member.leave() is NONE
    assert here.stored == {RecordKind.CLASSIC}
    assert here.consume("m", 1).error is NOT_FOUND
    assert here.consume("m").error is NONE
    assert here.kinds == ["consumer"]
    assert RecordKind.CLASSIC not in here.stored
    assert here.consume("m", -1).error is NONE
    here.form(again := here.classic())
    assert again.generation == 1
    assert (here.kinds, here.stored) == (["classic"], {RecordKind.CLASSIC})


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_policy_keeps_a_classic_group_classic(
    make_broker: Callable[..., Broker], policy: MigrationPolicy
) -> None:
    here = MixedWorld(make_broker(0), policy=policy)
    here.form(member := here.classic())
    refused = here.consume("m")
    assert refused.error is NOT_FOUND
    assert "policy" in str(refused.message)
    assert here.kinds == ["classic"]
    assert member.heartbeat() is NONE


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.UPGRADE])
def test_policy_keeps_a_consumer_group_for_classic_members(
    make_broker: Callable[..., Broker], policy: MigrationPolicy
) -> None:
    here = MixedWorld(make_broker(0), policy=policy)
    consumer, member = here.consumer(), here.classic()
    assert consumer.join() is NONE
    assert member.join() is NONE
    assert consumer.leave() is NONE
    assert here.kinds == ["consumer"]
    here.settle(member)


def test_group_of_other_clients_is_not_upgraded(make_broker: Callable[..., Broker]) -> None:
    here = MixedWorld(make_broker(0))
    member = here.classic()
    member.kind = "connect"
    here.form(member)
    assert here.consume("m").error is NOT_FOUND
    assert (here.kinds, member.heartbeat()) == (["classic"], NONE)


def test_consumer_group_refuses_other_clients(make_broker: Callable[..., Broker]) -> None:
    here = MixedWorld(make_broker(0))
    assert here.consume("m").error is NONE
    member = here.classic()
    member.kind = "connect"
    assert member.join() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert here.kinds == ["consumer"]


def test_too_large_a_group_is_not_upgraded(make_broker: Callable[..., Broker]) -> None:
    here = MixedWorld(make_broker(0))
    here.form(here.classic(), here.classic())
    here.groups.consumers._max_size = 1
    assert here.consume("m").error is NOT_FOUND
    here.groups.consumers._max_size = 2
    assert here.consume("m").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert here.kinds == ["classic"]


@pytest.mark.parametrize("assignment", [b"x", write_assignment({}, b"\0\0")[:-4] + b"\0\0\0\1u"])
def test_assignors_of_their_own_keep_a_group_classic(
    make_broker: Callable[..., Broker], assignment: bytes
) -> None:
    here = MixedWorld(make_broker(0))
    here.form(member := here.classic())
    here.groups.classic.groups["g"].members[member.member_id].assignment = assignment
    assert here.consume("m").error is NOT_FOUND
    assert (here.kinds, member.heartbeat()) == (["classic"], NONE)


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
partitions = st.dictionaries(names, st.lists(st.integers(0, 9), max_size=3), max_size=3)


@given(st.lists(names, max_size=8), st.binary(max_size=40))
def test_topics_of_a_subscription_round_trip(topics: list[str], rest: bytes) -> None:
    written = [name.encode() for name in topics]
    data = struct.pack(">hi", 3, len(written))
    data += b"".join(struct.pack(">h", len(name)) + name for name in written)
    assert subscribed_topics(data + struct.pack(">i", -1) + rest) == topics


@given(st.binary(max_size=40))
def test_invalid_subscription_raises_value_error(data: bytes) -> None:
    for read in (subscribed_topics, read_subscription, read_assignment):
        with suppress(ValueError):
            read(data)


def test_group_reads_each_version_of_a_subscription() -> None:
    since_0 = struct.pack(">hihs", 0, 1, 1, b"t") + struct.pack(">i2s", 2, b"ud")
    owned = struct.pack(">ihsiii", 1, 1, b"t", 2, 3, 5)
    rack = struct.pack(">h4s", 4, b"rack")
    generation = struct.pack(">i", 7)
    versions = [
        (0, b"", {}, None),
        (1, owned, {"t": [3, 5]}, None),
        (1, b"", {}, None),
        (2, owned + generation, {"t": [3, 5]}, None),
        (3, owned + generation + rack, {"t": [3, 5]}, "rack"),
        (3, owned + generation + b"\xff\xff", {"t": [3, 5]}, None),
        (9, owned + generation + rack + b"more", {"t": [3, 5]}, "rack"),
    ]
    for version, rest, expected, rack_id in versions:
        data = struct.pack(">h", version) + since_0[2:] + rest
        assert read_subscription(data) == (("t",), expected, rack_id), version


@given(partitions, st.integers(0, 3))
def test_assignments_round_trip(assigned: dict[str, list[int]], version: int) -> None:
    data = write_assignment(assigned, struct.pack(">h", version))
    assert data[:2] == struct.pack(">h", version)
    assert read_assignment(data) == (assigned, b"")
    assert read_assignment(b"") == ({}, b"")
    assert subscription("t")[:2] == b"\0\0"
