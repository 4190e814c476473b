"""Classic groups are stored when a rebalance is over, and go on at the next coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from purgatory.kafka import ErrorCode, GroupState, JoinGroupResult
from purgatory.kafka.groups.group import ClassicGroupRecord, ClassicMemberRecord, LeaveGroupResult
from tests.unit.kafka.groups.group_client import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Asked,
    GroupWorld,
    code_of,
    joining,
)

NONE = ErrorCode.NONE


@pytest.fixture
def world() -> Iterator[GroupWorld]:
    """The groups after the test satisfy every invariant."""
    world = GroupWorld()
    yield world
    world.check()


def test_generation_is_stored_with_its_assignments(world: GroupWorld) -> None:
    one, two = world.client(), world.client("two")
    world.stable(one, two)
    timeouts = REBALANCE_MS, SESSION_MS
    assert world.record == ClassicGroupRecord(
        "consumer",
        1,
        "range",
        one.member_id,
        world.clock.now_ms(),
        tuple(
            ClassicMemberRecord(
                member.member_id,
                member.instance_id,
                "client",
                "/here",
                *timeouts,
                b"range",
                member.member_id.encode(),
            )
            for member in (one, two)
        ),
    )


def test_members_get_assignments_once_they_are_stored(world: GroupWorld) -> None:
    one, two = world.clients(2)
    joins = [one.join(), two.join()]
    world.pass_time(2 * DELAY_MS)
    assert [join.code for join in joins] == [NONE, NONE]
    world.held_writes = []
    syncs = [one.sync(), two.sync()]
    world.pass_time(SESSION_MS + 1)
    assert not any(sync.given for sync in syncs)
    world.replicate()
    assert [sync.answer.assignment for sync in syncs] == [
        one.member_id.encode(),
        two.member_id.encode(),
    ]
    world.pass_time(SESSION_MS - 1)
    assert len(world.group.members) == 2
    world.pass_time(1)
    assert world.group.members == {}, "their sessions go on from there"


def test_unstored_assignments_cause_another_rebalance(world: GroupWorld) -> None:
    one, two = world.clients(2)
    joins = [one.join(), two.join()]
    world.pass_time(2 * DELAY_MS)
    assert [join.code for join in joins] == [NONE, NONE]
    world.write_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    syncs = [two.sync(), one.sync()]
    assert {sync.code for sync in syncs} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert {member.assignment for member in world.group.members.values()} == {b""}
    world.write_error = NONE
    joins = [one.join(), two.join()]
    assert [join.answer.generation for join in joins] == [2, 2]
    assert [one.sync().code, two.sync().code] == [NONE, NONE]


def test_rebalance_during_the_write_keeps_its_own_state(world: GroupWorld) -> None:
    one, two = world.clients(2)
    join = one.join()
    world.pass_time(DELAY_MS)
    assert join.code is NONE
    world.held_writes = []
    syncing = one.sync()
    joining = two.join()
    assert syncing.code is ErrorCode.REBALANCE_IN_PROGRESS
    world.replicate()
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert one.join().code is joining.code is NONE


def test_empty_group_is_stored_before_the_leave_completes(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one, two)
    world.held_writes = []
    assert two.leave() is NONE, "the other one is to join again"
    left = Asked[LeaveGroupResult]()
    world.coordinator.leave("g", [(one.member_id, None), ("nobody", None)], left)
    assert not left.given
    assert one.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    world.replicate()
    assert left.answer == LeaveGroupResult(NONE, [NONE, ErrorCode.UNKNOWN_MEMBER_ID])
    assert world.record == ClassicGroupRecord("consumer", 2, None, None, world.clock.now_ms())


def test_leave_fails_where_the_empty_group_is_not_stored(world: GroupWorld) -> None:
    one = world.client()
    world.stable(one)
    world.write_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    left = Asked[LeaveGroupResult]()
    world.coordinator.leave("g", [(one.member_id, None)], left)
    assert left.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group.state is GroupState.EMPTY


def test_expired_members_leave_a_stored_empty_group(world: GroupWorld) -> None:
    world.stable(*world.clients(2))
    world.pass_time(SESSION_MS)
    assert world.record is not None
    assert (world.record.members, world.record.generation) == ((), 2)


# ---- the next coordinator


def test_members_go_on_at_the_next_coordinator(world: GroupWorld) -> None:
    one, two = world.client(), world.client("two")
    world.stable(one, two)
    world.move()
    assert (one.heartbeat(), two.heartbeat()) == (NONE, NONE)
    check = world.coordinator.check_commit
    assert code_of(check, "g", 1, two.member_id, "two") is NONE
    assert two.sync().answer.assignment == two.member_id.encode()
    group = world.group
    assert (group.state, group.protocol, group.protocol_type) == (
        GroupState.STABLE,
        "range",
        "consumer",
    )
    assert group.leader_id == one.member_id
    assert group.rebalance_timeout_ms == REBALANCE_MS
    assert two.join().code is NONE, "a follower without a change keeps the generation"
    assert two.generation == 1


def test_sessions_begin_anew_at_the_next_coordinator(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one, two)
    world.pass_time(SESSION_MS - 1)
    world.move()
    assert world.pass_time_beating(SESSION_MS // 1_000 - 1, one) == {NONE}
    assert len(world.group.members) == 2
    world.pass_time(1_000)
    assert list(world.group.members) == [one.member_id]
    assert one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert one.join().code is NONE
    assert one.generation == 2


def test_unstored_generation_is_unknown_to_the_next_coordinator(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one)
    joining = two.join()
    assert one.join().code is joining.code is NONE
    world.move()
    assert world.group.generation == 1
    assert one.heartbeat() is ErrorCode.ILLEGAL_GENERATION
    assert two.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_new_group_is_stored_before_it_has_a_member(world: GroupWorld) -> None:
    one = world.client()
    one.get_id()
    world.move()
    assert world.group.state is GroupState.EMPTY, "as in Kafka, it is there"
    assert one.join().code is ErrorCode.UNKNOWN_MEMBER_ID
    world.stable(world.client())


def test_empty_group_keeps_its_generation(world: GroupWorld) -> None:
    one, other = world.clients(2)
    world.stable(one)
    one.leave()
    world.move()
    assert (world.group.state, world.group.generation) == (GroupState.EMPTY, 2)
    joining = other.join("new", kind="other")
    world.pass_time(DELAY_MS)
    assert joining.answer.generation == 3


def test_group_above_its_limit_rebalances_when_loaded(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one, two)
    world.coordinator.config = replace(world.coordinator.config, max_size=1)
    world.move()
    assert one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


# ---- static members


def test_new_id_of_a_static_member_is_stored(world: GroupWorld) -> None:
    one, two, back = world.client(), world.client("two"), world.client("two")
    world.stable(one, two)
    world.held_writes = []
    joining = back.join("range", "sticky")
    world.pass_time(SESSION_MS - 1)
    assert not joining.given
    assert one.heartbeat() is NONE
    world.replicate()
    assert joining.answer.generation == 1
    world.move()
    assert two.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert back.heartbeat() is NONE
    assert back.sync().answer.assignment == two.member_id.encode()
    third = world.client("two")
    assert third.join("sticky", "range").answer.generation == 1
    assert one.heartbeat() is NONE


def test_static_member_keeps_its_id_if_the_new_is_unstored(world: GroupWorld) -> None:
    one, two, back = world.client(), world.client("two"), world.client("two")
    world.stable(one, two)
    world.write_error = ErrorCode.NOT_COORDINATOR
    joining = back.join("range", "sticky")
    assert joining.answer == JoinGroupResult(ErrorCode.NOT_COORDINATOR, "")
    assert two.heartbeat() is NONE
    assert world.group.members[two.member_id].join_request.protocols == (("range", b"range"),)
    world.pass_time(SESSION_MS)
    assert world.group.static_members == {}, "the former id has a session"


def test_rebalance_before_a_failed_write_keeps_the_new_id(world: GroupWorld) -> None:
    one, two, back = world.client(), world.client("two"), world.client("two")
    world.stable(one, two)
    world.held_writes = []
    joining = back.join()
    assert one.join().answer.generation == joining.answer.generation == 2
    world.write_error = ErrorCode.REQUEST_TIMED_OUT
    world.replicate()
    assert two.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert back.heartbeat() is NONE
    world.write_error = NONE
    assert [one.sync().code, back.sync().code] == [NONE, NONE]


def test_older_leader_that_is_back_is_told_its_former_id_as_leader(world: GroupWorld) -> None:
    one = world.client("one")
    world.stable(one)
    request = joining(instance_id="one")._replace(can_skip_assignment=False)
    asked = Asked[JoinGroupResult]()
    world.coordinator.join("g", "", request, False, asked)
    assert (asked.answer.leader_id, asked.answer.members) == (one.member_id, ())
    assert asked.answer.member_id != one.member_id
    assert not asked.answer.skip_assignment


def test_static_member_that_joins_twice_is_stored_once_more(world: GroupWorld) -> None:
    one, back = world.client("one"), world.client("one")
    world.stable(one)
    world.held_writes = []
    first = back.join()
    second = back.join()
    assert first.code is ErrorCode.FENCED_INSTANCE_ID
    world.replicate()
    assert second.answer.generation == 1
    assert world.record is not None
    assert [member.member_id for member in world.record.members] == [back.member_id]
