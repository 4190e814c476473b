"""Refusals of the coordinator of classic groups, static members, and repeated requests."""

from __future__ import annotations

import pytest

from purgatory.kafka import ErrorCode, GroupState, JoinGroupResult, SyncGroupResult
from purgatory.kafka.groups.group import GroupProtocol, LeaveGroupResult
from tests.unit.kafka.groups.group_client import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Asked,
    GroupWorld,
    code_of,
    joining,
)

# ---- what is refused


def test_invalid_requests_get_kafkas_error_codes() -> None:
    world = GroupWorld()
    one, stranger = world.clients(2)
    world.stable(one)
    assert stranger.join("sticky").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert stranger.join(kind="connect").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    stranger.member_id = "nobody"
    assert stranger.join().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    one.generation += 1
    assert one.heartbeat() is ErrorCode.ILLEGAL_GENERATION
    assert one.sync().code is ErrorCode.ILLEGAL_GENERATION
    one.generation -= 1
    assert one.heartbeat() is ErrorCode.NONE
    world.check()


@pytest.mark.parametrize(
    ("protocol", "code"),
    [
        (GroupProtocol("consumer", "range"), ErrorCode.NONE),
        (GroupProtocol(None, "range"), ErrorCode.NONE),
        (GroupProtocol("consumer", "roundrobin"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (GroupProtocol("connect", "range"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_sync_with_another_protocol_is_refused(protocol: GroupProtocol, code: ErrorCode) -> None:
    world = GroupWorld()
    (one,) = world.clients(1)
    world.stable(one)
    asked = Asked[SyncGroupResult]()
    world.coordinator.sync("g", one.generation, one.member_id, None, {}, asked, protocol)
    assert asked.code is code
    world.check()


@pytest.mark.parametrize("session_ms", [99, 1_800_001, -1, 0])
def test_session_timeout_out_of_bounds_creates_no_group(session_ms: int) -> None:
    coordinator = GroupWorld().coordinator
    asked = Asked[JoinGroupResult]()
    coordinator.join("g", "", joining(session_ms=session_ms), False, asked)
    assert asked.code is ErrorCode.INVALID_SESSION_TIMEOUT
    assert coordinator.groups == {}


@pytest.mark.parametrize("group_id", ["", "g" * 32_768, "\N{SNOWMAN}" * 11_000])
def test_invalid_group_id_is_refused(group_id: str) -> None:
    coordinator = GroupWorld().coordinator
    joined, synced = Asked[JoinGroupResult](), Asked[SyncGroupResult]()
    left = Asked[LeaveGroupResult]()
    coordinator.join(group_id, "", joining(), False, joined)
    coordinator.sync(group_id, 1, "m", None, {}, synced)
    coordinator.leave(group_id, [("m", None)], left)
    codes = {
        joined.code,
        synced.code,
        code_of(coordinator.heartbeat, group_id, 1, "m", None),
        left.code,
    }
    assert codes == {ErrorCode.INVALID_GROUP_ID}
    committed = code_of(coordinator.check_commit, group_id, -1, "", None)
    assert committed is (ErrorCode.INVALID_GROUP_ID if group_id else ErrorCode.NONE), "as in Kafka"
    assert coordinator.groups == {}


def test_a_join_that_is_refused_leaves_no_group_behind() -> None:
    world = GroupWorld()
    asked = Asked[JoinGroupResult]()
    nothing = joining(kind="")._replace(protocols=())
    world.coordinator.join("g", "", nothing, False, asked)
    assert asked.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.coordinator.groups == {}


def test_full_group_refuses_new_members() -> None:
    world = GroupWorld(max_size=2)
    world.stable(*world.clients(2))
    assert world.client().join().code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_commits_need_the_current_generation() -> None:
    world = GroupWorld()
    check = world.coordinator.check_commit
    one = world.client()
    world.stable(one)
    assert code_of(check, "g", 1, one.member_id, None) is ErrorCode.NONE
    assert code_of(check, "g", 2, one.member_id, None) is ErrorCode.ILLEGAL_GENERATION
    assert code_of(check, "g", 1, "nobody", None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(check, "g", -1, "", None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(check, "g", -1, "its-own", None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert one.join().code is ErrorCode.NONE
    completing = code_of(check, "g", one.generation, one.member_id, None)
    assert completing is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("instance_id", [None, "static"])
@pytest.mark.parametrize("member_id", ["", "its-own"])
def test_commits_without_a_generation_need_an_empty_group(
    member_id: str, instance_id: str | None, in_transaction: bool
) -> None:
    world = GroupWorld()
    asked = ("g", -1, member_id, instance_id, True, in_transaction)
    assert code_of(world.coordinator.check_commit, *asked) is ErrorCode.NONE, "no such group"
    one = world.client()
    world.stable(one)
    one.leave()
    assert world.group.state is GroupState.EMPTY
    assert code_of(world.coordinator.check_commit, *asked) is ErrorCode.NONE


def test_commit_of_a_member_to_an_unknown_group_is_refused() -> None:
    check = GroupWorld().coordinator.check_commit
    assert code_of(check, "g", 1, "m", None) is ErrorCode.GROUP_ID_NOT_FOUND
    assert code_of(check, "g", 1, "m", None, knows_epochs=False) is ErrorCode.ILLEGAL_GENERATION
    assert code_of(check, "g", 1, "m", None, in_transaction=True) is ErrorCode.ILLEGAL_GENERATION


def test_transactional_commit_is_no_heartbeat() -> None:
    world = GroupWorld()
    check = world.coordinator.check_commit
    one = world.client()
    world.stable(one)
    assert code_of(check, "g", 1, one.member_id, None, in_transaction=True) is ErrorCode.NONE
    assert code_of(check, "g", 2, one.member_id, None, in_transaction=True) is (
        ErrorCode.ILLEGAL_GENERATION
    )
    assert code_of(check, "g", 1, "nobody", None, in_transaction=True) is (
        ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert code_of(check, "g", -1, "", None, in_transaction=True) is ErrorCode.NONE, "of old"
    assert one.join().code is ErrorCode.NONE
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    asked = ("g", one.generation, one.member_id, None)
    assert code_of(check, *asked, in_transaction=True) is ErrorCode.NONE
    world.pass_time(SESSION_MS - 1)
    assert code_of(check, *asked, in_transaction=True) is ErrorCode.NONE
    world.pass_time(1)
    assert world.group.members == {}, "its session was over"


# ---- what they agree on


def test_protocol_is_the_most_preferred_of_the_common_ones() -> None:
    world = GroupWorld()
    clients = world.clients(3)
    wishes = [("range", "sticky"), ("sticky", "range"), ("mine", "sticky", "range")]
    joins = [client.join(*wish) for client, wish in zip(clients, wishes, strict=True)]
    world.pass_time(2 * DELAY_MS)
    assert {join.answer.protocol for join in joins} == {"sticky"}
    assert [len(join.answer.members) for join in joins] == [3, 0, 0], "the leader's alone"
    assert joins[0].answer.members[0].metadata == b"sticky"


# ---- static members


def test_static_member_rejoins_without_a_rebalance() -> None:
    world = GroupWorld()
    one, two, back = world.client(), world.client("two"), world.client("two")
    world.stable(one, two)
    assert back.join().code is ErrorCode.NONE
    assert back.member_id != two.member_id
    assert (back.generation, one.heartbeat()) == (1, ErrorCode.NONE)
    assert back.sync().answer.assignment == two.member_id.encode(), "as before"
    assert two.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert two.sync().code is ErrorCode.FENCED_INSTANCE_ID
    assert two.join().code is ErrorCode.FENCED_INSTANCE_ID
    commit = code_of(world.coordinator.check_commit, "g", 1, two.member_id, "two")
    assert commit is ErrorCode.FENCED_INSTANCE_ID
    assert two.leave() is ErrorCode.FENCED_INSTANCE_ID
    assert len(world.group.members) == 2


def test_static_member_changes_protocol_by_a_rebalance() -> None:
    world = GroupWorld()
    one, two, back = world.client(), world.client("two"), world.client("two")
    joins = [one.join("range", "sticky"), two.join("range", "sticky")]
    world.pass_time(2 * DELAY_MS)
    assert [join.answer.protocol for join in joins] == ["range", "range"]
    assert [one.sync().code, two.sync().code] == [ErrorCode.NONE, ErrorCode.NONE]
    joined = back.join("sticky")
    assert one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert one.join("range", "sticky").code is joined.code is ErrorCode.NONE
    assert joined.answer.protocol == "sticky"


def test_static_member_adds_a_protocol_without_a_rebalance() -> None:
    world = GroupWorld()
    one, two, back = world.client(), world.client("two"), world.client("two")
    world.stable(one, two)
    assert back.join("sticky", "range").answer.protocol == "range"
    assert one.heartbeat() is ErrorCode.NONE


def test_static_member_rejoining_early_gets_an_assignment() -> None:
    world = GroupWorld()
    one, two, back = world.client(), world.client("two"), world.client("two")
    joins = [one.join(), two.join()]
    world.pass_time(2 * DELAY_MS)
    assert [join.code for join in joins] == [0, 0]
    joined = back.join()
    # The leader knows the old id alone: its assignment would be lost.
    assert one.sync().code is ErrorCode.REBALANCE_IN_PROGRESS
    assert one.join().code is joined.code is ErrorCode.NONE
    one_s, back_s = one.sync(), back.sync()
    assert one_s.answer.assignment == one.member_id.encode()
    assert back_s.answer.assignment == back.member_id.encode()


def test_static_member_is_removed_after_its_session_timeout() -> None:
    world = GroupWorld()
    one, two = world.client(), world.client("two")
    world.stable(one, two)
    assert world.pass_time_beating(SESSION_MS // 1_000 - 1, one) == {ErrorCode.NONE}
    world.pass_time(1_000)
    assert one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.group.static_members == {}


def test_refused_sync_lets_a_static_member_expire() -> None:
    world = GroupWorld()
    one, two = world.client(), world.client("two")
    joins = [one.join(), two.join()]
    world.pass_time(2 * DELAY_MS)
    assert [join.code for join in joins] == [0, 0]
    syncing = two.sync()
    joined = one.join("range", "sticky")
    assert syncing.code is ErrorCode.REBALANCE_IN_PROGRESS
    world.pass_time(SESSION_MS)
    assert joined.code is ErrorCode.NONE
    assert list(world.group.members) == [one.member_id]


def test_static_member_stays_static_without_its_instance_id() -> None:
    world = GroupWorld()
    one, two = world.client("one"), world.client("one")
    world.stable(one)
    one.instance_id = None
    assert one.join().code is ErrorCode.NONE
    assert world.group.static_members == {"one": one.member_id}
    assert one.leave() is ErrorCode.NONE
    two.join()
    world.pass_time(DELAY_MS)
    assert world.group.static_members == {"one": two.member_id}


@pytest.mark.parametrize("instance_id", [None, "one"])
def test_a_member_does_not_become_another_static_one(instance_id: str | None) -> None:
    world = GroupWorld()
    one = world.client(instance_id)
    world.stable(one)
    one.instance_id = "another"
    assert one.join().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(world.group.members) == [one.member_id]


def test_static_leader_that_misses_a_rebalance_is_replaced() -> None:
    world = GroupWorld()
    leader, other = world.client("one"), world.client("two")
    world.stable(leader, other)
    assert leader.leads
    joined = other.join("range", "sticky")
    world.pass_time_beating(REBALANCE_MS // 1_000, leader)  # it lives, and doesn't join
    assert joined.code is ErrorCode.NONE
    assert other.leads
    assert sorted(other.roster) == sorted([leader.member_id, other.member_id])
    assert other.sync().answer.assignment == other.member_id.encode()


def test_static_leader_that_joins_again_causes_a_rebalance() -> None:
    world = GroupWorld()
    leader = world.client("one")
    world.stable(leader)
    member_id = leader.member_id
    assert leader.join(require_known_member_id=True).code is ErrorCode.NONE
    assert (leader.member_id, leader.generation) == (member_id, 2)


def test_returning_static_leader_causes_no_rebalance() -> None:
    world = GroupWorld()
    leader, back = world.client("one"), world.client("one")
    world.stable(leader)
    assert back.join(require_known_member_id=True).code is ErrorCode.NONE
    assert back.generation == 1
    assert back.member_id != leader.member_id
    assert back.sync().answer.assignment == leader.member_id.encode()


# ---- impatience, and the coordinator's own end


def test_repeated_request_completes_the_waiting_one() -> None:
    world = GroupWorld()
    one, two = world.clients(2)
    world.stable(one, two)
    joins = [two.join("range", str(number)) for number in range(3)]
    assert [join.given for join in joins] == [True, True, False]
    assert joins[0].code is ErrorCode.REBALANCE_IN_PROGRESS
    assert one.join().code is joins[2].code is ErrorCode.NONE
    syncs = [two.sync() for _ in range(3)]
    assert [sync.given for sync in syncs] == [True, True, False]
    assert one.sync().code is ErrorCode.NONE
    assert syncs[2].answer.assignment == two.member_id.encode()


def test_waiting_members_get_not_coordinator_on_unload() -> None:
    world = GroupWorld()
    one, two, three = world.clients(3)
    world.stable(one, two)
    joined = one.join("range", "other")
    three.get_id()
    world.coordinator.forget("g")
    assert joined.code is ErrorCode.NOT_COORDINATOR
    assert world.coordinator.groups == {}
    assert two.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert [purgatory.num_delayed for purgatory in world.coordinator.purgatories] == [0, 0, 0]
    world.pass_time(1_000_000)
    assert world.coordinator.groups == {}


def test_empty_group_has_no_waits() -> None:
    world = GroupWorld()
    world.stable(*world.clients(5))
    world.pass_time(SESSION_MS)
    assert world.group.state is GroupState.EMPTY
    assert [purgatory.num_delayed for purgatory in world.coordinator.purgatories] == [0, 0, 0]
