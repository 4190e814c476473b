"""Groups form, and rebalance as members join and leave."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from purgatory.kafka import ErrorCode, GroupState
from tests.unit.kafka.groups.group_client import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupWorld


@pytest.fixture
def world() -> Iterator[GroupWorld]:
    """The groups after the test satisfy every invariant."""
    world = GroupWorld()
    yield world
    world.check()


# ---- coming together


def test_initial_delay_is_extended_by_new_members(world: GroupWorld) -> None:
    one, two = world.clients(2)
    first = one.join()
    world.pass_time(2_000)
    second = two.join()
    world.pass_time(2 * DELAY_MS - 2_000 - 1)
    assert not first.given, "once more, since somebody came"
    world.pass_time(1)
    assert first.code == second.code == 0
    assert (one.generation, two.generation) == (1, 1)
    assert one.leads and not two.leads
    assert sorted(one.roster) == sorted([one.member_id, two.member_id])
    assert two.roster == []


def test_the_first_wait_is_extended_up_to_the_rebalance_timeout(world: GroupWorld) -> None:
    joins = []
    for client in world.clients(REBALANCE_MS // 2_000):
        joins.append(client.join())
        assert not any(join.given for join in joins)
        world.pass_time(2_000)
    assert {join.answer.generation for join in joins} == {1}


def test_single_member_joins_after_the_initial_delay(world: GroupWorld) -> None:
    joining = world.client().join()
    world.pass_time(DELAY_MS - 1)
    assert not joining.given
    world.pass_time(1)
    assert joining.code == 0


def test_new_member_causes_a_rebalance(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one)
    joining = two.join()
    assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert not joining.given
    assert one.join().code == joining.code == 0
    assert (one.generation, two.generation) == (2, 2)


def test_member_that_does_not_rejoin_in_time_is_removed(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one, two)
    joining = one.join("range", "sticky")
    seconds = REBALANCE_MS // 1_000
    assert world.pass_time_beating(seconds - 1, two) == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert not joining.given
    world.pass_time(1_000)
    assert joining.code == 0
    assert list(world.group.members) == [one.member_id]
    assert two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.leads


def test_members_rebalance_after_one_without_heartbeats(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one, two)
    assert world.pass_time_beating(SESSION_MS // 1_000 - 1, one) == {ErrorCode.NONE}
    world.pass_time(1_000)
    assert list(world.group.members) == [one.member_id]
    assert two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert one.join().code == 0
    assert one.generation == 2


def test_waiting_member_needs_no_heartbeat(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one, two)
    joining = one.join("range", "other")
    assert world.pass_time_beating(40, two) == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert not joining.given
    assert len(world.group.members) == 2
    assert two.join().code == joining.code == 0


def test_member_that_joined_but_never_synced_is_removed(world: GroupWorld) -> None:
    one, two = world.clients(2)
    joins = [one.join(), two.join()]
    world.pass_time(2 * DELAY_MS)
    assert [join.code for join in joins] == [0, 0]
    syncing = two.sync()  # the leader never gives an assignment
    world.pass_time(SESSION_MS)
    assert syncing.code == ErrorCode.REBALANCE_IN_PROGRESS
    assert two.join().code == 0
    assert two.leads
    assert two.sync().answer.assignment == two.member_id.encode()


def test_heartbeats_do_not_replace_a_sync(world: GroupWorld) -> None:
    one, two = world.clients(2)
    joins = [one.join(), two.join()]
    world.pass_time(2 * DELAY_MS)
    assert [join.code for join in joins] == [0, 0]
    assert one.sync().code == 0
    assert world.pass_time_beating(REBALANCE_MS // 1_000 - 1, one, two) == {ErrorCode.NONE}
    world.pass_time_beating(1, one, two)
    assert two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_group_begins_again_after_its_last_member(
    world: GroupWorld,
) -> None:
    one, other = world.clients(2)
    world.stable(one)
    assert one.leave() == 0
    assert (world.group.state, world.group.generation) == (GroupState.EMPTY, 2)
    assert one.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    other.join("new", kind="other")
    world.pass_time(DELAY_MS)
    assert other.generation == 3


def test_the_next_member_leads_when_the_leader_leaves(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one, two)
    assert one.leave() == 0
    assert two.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert two.join().code == 0
    assert two.leads
    assert two.roster == [two.member_id]


def test_rejoining_leader_causes_a_rebalance_and_a_follower_none(
    world: GroupWorld,
) -> None:
    one, two = world.clients(2)
    world.stable(one, two)
    assert two.join().code == 0
    assert (two.generation, one.heartbeat()) == (1, 0)
    joining = one.join()
    assert two.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert two.join().code == joining.code == 0
    assert one.generation == 2


# ---- ids first


def test_new_member_gets_an_id_first_and_is_pending(world: GroupWorld) -> None:
    one, two = world.clients(2)
    one.get_id()
    assert not world.group.members
    world.stable(one)
    two.get_id()
    assert one.heartbeat() == 0, "nothing changes before it comes"
    joining = one.join()
    world.pass_time(1_000)
    assert not joining.given, "it is about to come"
    assert two.join(require_known_member_id=True).code == joining.code == 0
    world.pass_time(SESSION_MS // 2)
    assert world.group.members.keys() == {one.member_id, two.member_id}


def test_unused_member_id_expires_without_its_group(world: GroupWorld) -> None:
    one = world.client()
    one.get_id()
    world.pass_time(SESSION_MS - 1)
    assert world.group.pending_members == {one.member_id}
    world.pass_time(1)
    assert not world.group.pending_members
    assert world.group.state is GroupState.EMPTY, "as in Kafka, it is there"
    assert one.join().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group.state is GroupState.EMPTY, "a refused member doesn't end it"


def test_pending_member_can_leave(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one)
    two.get_id()
    joining = one.join()
    assert two.leave() == 0
    assert joining.code == 0


def test_stable_group_rebalances_when_a_pending_member_leaves(world: GroupWorld) -> None:
    one, two = world.clients(2)
    world.stable(one)
    two.get_id()
    assert two.leave() == 0
    assert one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS, "as in Kafka"
    assert one.join().code == 0
    assert one.generation == 2


def test_member_keeps_the_client_id_with_which_it_came(world: GroupWorld) -> None:
    one = world.client()
    world.stable(one)
    again = world.group.members[one.member_id].join_request._replace(client_id="other")
    world.coordinator.join("g", one.member_id, again, False, lambda _: None)
    assert world.group.members[one.member_id].join_request.client_id != "other"


def test_group_whose_only_pending_member_leaves_is_empty(world: GroupWorld) -> None:
    one = world.client()
    one.get_id()
    assert one.leave() == 0
    assert world.group.state is GroupState.EMPTY, "as in Kafka, it is there"
    assert world.coordinator.heartbeats.num_delayed == 0
