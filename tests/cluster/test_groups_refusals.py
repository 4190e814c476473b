"""What the coordinator of groups refuses, static members, and impatient ones, in virtual time."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from purgatory.cluster.api.answer_of import answer_of
from purgatory.kafka import ErrorCode, GroupState, Joining
from purgatory.kafka.groups.group_coordinator import GroupCoordinator
from tests.cluster.group_client import (
    SESSION_MS,
    GroupClient,
    code_of,
    group_of,
    joined_again,
    refused,
    run_groups,
    stable,
)
from tests.event_loop.conftest import settle

# ---- what is refused


def test_what_is_wrong_is_refused_with_kafka_s_codes() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one = GroupClient(groups)
        await stable(groups, one)
        stranger = GroupClient(groups)
        assert await refused(stranger.join("sticky")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await refused(stranger.join(kind="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        stranger.member_id = "nobody"
        assert await refused(stranger.join()) is ErrorCode.UNKNOWN_MEMBER_ID
        assert stranger.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        one.generation += 1
        assert one.heartbeat() == ErrorCode.ILLEGAL_GENERATION
        assert await refused(one.sync()) is ErrorCode.ILLEGAL_GENERATION
        one.generation -= 1
        assert one.heartbeat() == 0
        group_of(groups)

    run_groups(main)


@pytest.mark.parametrize("session_ms", [99, 1_800_001, -1, 0])
def test_a_session_timeout_out_of_bounds_is_refused_and_leaves_no_group(session_ms: int) -> None:
    async def main(groups: GroupCoordinator) -> None:
        joined = Joining("c", "/h", None, session_ms, 1_000, "consumer", (("range", b""),))
        waiting = answer_of(partial(groups.join, "g", "", joined, False))
        assert await refused(waiting) is ErrorCode.INVALID_SESSION_TIMEOUT
        assert groups.groups == {}

    run_groups(main)


@pytest.mark.parametrize("group_id", ["", "g" * 32_768, "\N{SNOWMAN}" * 11_000])
def test_a_group_s_name_that_is_none_is_refused(group_id: str) -> None:
    async def main(groups: GroupCoordinator) -> None:
        joined = Joining("c", "/h", None, 10_000, 1_000, "consumer", (("range", b""),))
        invalid = ErrorCode.INVALID_GROUP_ID
        assert (
            await refused(answer_of(partial(groups.join, group_id, "", joined, False))) is invalid
        )
        assert await refused(answer_of(partial(groups.sync, group_id, 1, "m", None, {}))) is invalid
        assert code_of(groups.heartbeat, group_id, 1, "m", None) == invalid
        assert code_of(groups.leave, group_id, "m", None) == invalid
        assert code_of(groups.check_commit, group_id, -1, "", None) == invalid
        assert groups.groups == {}

    run_groups(main)


def test_a_join_that_is_refused_leaves_no_group_behind() -> None:
    async def main(groups: GroupCoordinator) -> None:
        joined = Joining("c", "/h", None, 10_000, 1_000, "", ())
        code = await refused(answer_of(partial(groups.join, "g", "", joined, False)))
        assert code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert groups.groups == {}

    run_groups(main)


def test_a_group_that_is_full_takes_nobody_else() -> None:
    async def main(groups: GroupCoordinator) -> None:
        await stable(groups, GroupClient(groups), GroupClient(groups))
        assert await refused(GroupClient(groups).join()) is ErrorCode.GROUP_MAX_SIZE_REACHED

    run_groups(main, max_size=2)


def test_commits_are_taken_from_the_current_generation_and_from_nobody_s() -> None:
    async def main(groups: GroupCoordinator) -> None:
        check = groups.check_commit
        assert code_of(check, "g", -1, "", None) == 0, "a group that nobody is in"
        assert code_of(check, "g", 1, "m", None) == ErrorCode.ILLEGAL_GENERATION
        one = GroupClient(groups)
        await stable(groups, one)
        assert code_of(check, "g", 1, one.member_id, None) == 0
        assert code_of(check, "g", 2, one.member_id, None) == ErrorCode.ILLEGAL_GENERATION
        assert code_of(check, "g", 1, "nobody", None) == ErrorCode.UNKNOWN_MEMBER_ID
        assert code_of(check, "g", -1, "", None) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await one.join() == 0
        completing = code_of(check, "g", one.generation, one.member_id, None)
        assert completing == ErrorCode.REBALANCE_IN_PROGRESS

    run_groups(main)


# ---- what they agree on


def test_the_protocol_is_what_most_like_best_of_those_that_all_know() -> None:
    async def main(groups: GroupCoordinator) -> None:
        clients = [GroupClient(groups) for _ in range(3)]
        wishes = [("range", "sticky"), ("sticky", "range"), ("mine", "sticky", "range")]
        joins = (client.join(*wish) for client, wish in zip(clients, wishes, strict=True))
        assert await asyncio.gather(*joins) == [0, 0, 0]
        assert group_of(groups).protocol == "sticky"
        leader = next(client for client in clients if client.leads)
        assert group_of(groups).roster()[0].metadata == b"sticky"
        assert len(leader.roster) == 3

    run_groups(main)


# ---- static members


def test_a_static_member_that_comes_back_takes_its_place_without_a_rebalance() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups, "two")
        await stable(groups, one, two)
        before = two.member_id
        back = GroupClient(groups, "two")
        assert await back.join() == 0
        assert back.member_id != before
        assert (back.generation, one.heartbeat()) == (1, 0)
        assert await back.sync() == (0, before.encode()), "its assignment is as before"
        assert two.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
        assert await refused(two.sync()) is ErrorCode.FENCED_INSTANCE_ID
        assert await refused(two.join()) is ErrorCode.FENCED_INSTANCE_ID
        assert two.leave() == ErrorCode.FENCED_INSTANCE_ID
        assert len(group_of(groups).members) == 2

    run_groups(main)


def test_a_static_member_that_comes_back_with_other_protocols_causes_a_rebalance() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups, "two")
        await stable(groups, one, two)
        back = GroupClient(groups, "two")
        joining = asyncio.create_task(back.join("range", "sticky"))
        await settle()
        assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        await joined_again(groups, [one], joining)

    run_groups(main)


def test_a_static_member_that_comes_back_before_the_assignment_gets_one() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups, "two")
        await asyncio.gather(one.join(), two.join())
        back = GroupClient(groups, "two")
        joining = asyncio.create_task(back.join())
        await settle()
        # The leader knows the old id alone: what it assigns would be lost.
        assert await refused(one.sync()) is ErrorCode.REBALANCE_IN_PROGRESS
        await joined_again(groups, [one], joining)
        answers = list(await asyncio.gather(one.sync(), back.sync()))
        assert answers == [(0, one.member_id.encode()), (0, back.member_id.encode())]

    run_groups(main)


def test_a_static_member_may_be_away_for_its_session_timeout_and_no_longer() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups, "two")
        await stable(groups, one, two)
        for _ in range(9):
            await asyncio.sleep(1)
            assert one.heartbeat() == 0
        await asyncio.sleep(2)
        assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert group_of(groups).static_members == {}

    run_groups(main)


def test_another_leads_when_the_static_leader_is_not_here_at_a_rebalance() -> None:
    async def main(groups: GroupCoordinator) -> None:
        leader, other = GroupClient(groups, "one"), GroupClient(groups, "two")
        await stable(groups, leader, other)
        assert leader.leads
        joining = asyncio.create_task(other.join("range", "sticky"))

        async def beat() -> None:  # it lives, and doesn't join
            while not joining.done():
                leader.heartbeat()
                await asyncio.sleep(1)

        await asyncio.gather(joining, beat())
        assert other.leads
        assert sorted(other.roster) == sorted([leader.member_id, other.member_id])
        assert await other.sync() == (0, other.member_id.encode())

    run_groups(main)


# ---- impatience, and the coordinator's own end


def test_who_asks_again_while_it_waits_is_answered_once_for_each() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        await stable(groups, one, two)
        joins = [asyncio.create_task(two.join("range", str(number))) for number in range(3)]
        await settle()
        assert [join.done() for join in joins] == [True, True, False]
        assert joins[0].result() == ErrorCode.REBALANCE_IN_PROGRESS
        await joined_again(groups, [one], joins[2])
        syncs = [asyncio.create_task(two.sync()) for _ in range(3)]
        await settle()
        assert [sync.done() for sync in syncs] == [True, True, False]
        assert (await one.sync())[0] == 0
        assert await syncs[2] == (0, two.member_id.encode())

    run_groups(main)


def test_who_waits_is_told_when_another_broker_coordinates() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        await stable(groups, one, two)
        joining = asyncio.create_task(one.join("range", "other"))
        await settle()
        groups.forget("g")
        assert await joining == ErrorCode.NOT_COORDINATOR
        assert groups.groups == {}
        assert two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert sum(purgatory.num_delayed for purgatory in groups.purgatories) == 0
        await asyncio.sleep(1_000)
        assert groups.groups == {}

    run_groups(main)


def test_nothing_waits_any_more_when_all_are_gone() -> None:
    async def main(groups: GroupCoordinator) -> None:
        clients = [GroupClient(groups) for _ in range(5)]
        await stable(groups, *clients)
        await asyncio.sleep(SESSION_MS / 1_000 + 1)
        assert group_of(groups).state is GroupState.EMPTY
        assert [purgatory.num_delayed for purgatory in groups.purgatories[1:]] == [0, 0]

    run_groups(main)
