"""Groups come together, and go on as members come and go: the coordinator in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.kafka import ErrorCode, GroupState
from purgatory.kafka.groups.group_coordinator import GroupCoordinator
from purgatory.kafka.groups.group_errors import MemberIdRequired
from tests.cluster.group_client import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    GroupClient,
    group_of,
    joined_again,
    now_ms,
    refused,
    run_groups,
    stable,
)
from tests.event_loop.conftest import settle

# ---- coming together


def test_the_first_member_waits_for_others_and_longer_if_some_come() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        first = asyncio.create_task(one.join())
        await asyncio.sleep(2)
        second = asyncio.create_task(two.join())
        assert list(await asyncio.gather(first, second)) == [0, 0]
        assert now_ms() == 2 * DELAY_MS, "once more, since somebody came"
        assert (one.generation, two.generation) == (1, 1)
        assert one.leads and not two.leads
        assert sorted(one.roster) == sorted([one.member_id, two.member_id])
        assert two.roster == []

    run_groups(main)


def test_the_first_wait_is_extended_up_to_the_rebalance_timeout() -> None:
    async def main(groups: GroupCoordinator) -> None:
        clients = [GroupClient(groups) for _ in range(40)]
        joins = []
        for client in clients:
            joins.append(asyncio.create_task(client.join()))
            await asyncio.sleep(2)
        assert set(await asyncio.gather(*joins[:30])) == {0}
        assert clients[0].generation == 1
        await settle()
        for join in joins:
            join.cancel()

    run_groups(main)


def test_a_member_alone_is_answered_after_the_delay() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one = GroupClient(groups)
        await stable(groups, one)
        assert now_ms() == DELAY_MS

    run_groups(main)


def test_a_new_member_has_the_others_join_again() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        await stable(groups, one)
        joining = asyncio.create_task(two.join())
        await settle()
        assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert not joining.done()
        await joined_again(groups, [one], joining)
        assert (one.generation, two.generation) == (2, 2)

    run_groups(main)


def test_who_does_not_join_again_within_the_rebalance_timeout_is_out() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        await stable(groups, one, two)
        began_ms = now_ms()
        joining = asyncio.create_task(one.join("range", "sticky"))

        async def beat() -> None:
            while two.heartbeat() in (0, ErrorCode.REBALANCE_IN_PROGRESS):
                await asyncio.sleep(1)

        beating = asyncio.create_task(beat())
        assert await joining == 0
        assert now_ms() - began_ms == REBALANCE_MS
        await beating
        assert list(group_of(groups).members) == [one.member_id]
        assert two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert one.leads

    run_groups(main)


def test_who_gives_no_sign_of_life_is_out_and_the_others_rebalance() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        await stable(groups, one, two)
        for _ in range(12):
            await asyncio.sleep(1)
            if one.heartbeat():
                break
        assert list(group_of(groups).members) == [one.member_id]
        assert two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert await one.join() == 0
        assert one.generation == 2

    run_groups(main)


def test_a_member_that_waits_for_the_others_needs_no_sign_of_life() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        await stable(groups, one, two)
        joining = asyncio.create_task(one.join("range", "other"))
        for _ in range(40):
            await asyncio.sleep(1)
            assert two.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert not joining.done()
        assert len(group_of(groups).members) == 2
        assert await two.join() == 0
        assert await joining == 0

    run_groups(main)


def test_who_joined_and_does_not_sync_is_out_in_the_end() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        await asyncio.gather(one.join(), two.join())
        answered = asyncio.create_task(two.sync())  # the leader never gives an assignment
        assert await answered == (ErrorCode.REBALANCE_IN_PROGRESS, b"")
        assert now_ms() <= 2 * DELAY_MS + SESSION_MS
        assert await two.join() == 0
        assert two.leads
        assert await two.sync() == (0, two.member_id.encode())

    run_groups(main)


def test_the_last_member_that_leaves_empties_the_group_and_another_may_begin_it() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one = GroupClient(groups)
        await stable(groups, one)
        assert one.leave() == 0
        group = group_of(groups)
        assert (group.state, group.generation) == (GroupState.EMPTY, 2)
        assert one.leave() == ErrorCode.UNKNOWN_MEMBER_ID
        other = GroupClient(groups)
        assert await other.join("new", kind="other") == 0
        assert other.generation == 3

    run_groups(main)


def test_the_next_member_leads_when_the_leader_leaves() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        await stable(groups, one, two)
        assert one.leave() == 0
        assert two.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert await two.join() == 0
        assert two.leads
        assert two.roster == [two.member_id]

    run_groups(main)


def test_a_leader_that_joins_again_causes_a_rebalance_and_a_follower_none() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        await stable(groups, one, two)
        assert await two.join() == 0
        assert (two.generation, one.heartbeat()) == (1, 0)
        joining = asyncio.create_task(one.join())
        await settle()
        assert two.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        await joined_again(groups, [two], joining)
        assert one.generation == 2

    run_groups(main)


# ---- ids first


def test_a_new_member_gets_an_id_first_and_is_waited_for() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        with pytest.raises(MemberIdRequired) as caught:
            await one.join(ids_first=True)
        one.member_id = caught.value.member_id
        assert not group_of(groups).members
        await stable(groups, one)
        with pytest.raises(MemberIdRequired) as caught:
            await two.join(ids_first=True)
        two.member_id = caught.value.member_id
        assert one.heartbeat() == 0, "nothing changes before it comes"
        joining = asyncio.create_task(one.join())
        await asyncio.sleep(1)
        assert not joining.done(), "it is about to come"
        assert await two.join(ids_first=True) == 0
        assert await joining == 0

    run_groups(main)


def test_an_id_that_is_not_used_in_time_is_forgotten_with_its_group() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one = GroupClient(groups)
        with pytest.raises(MemberIdRequired) as caught:
            await one.join(ids_first=True)
        await asyncio.sleep(SESSION_MS / 1_000 + 1)
        assert groups.groups == {}
        one.member_id = caught.value.member_id
        assert await refused(one.join()) is ErrorCode.UNKNOWN_MEMBER_ID

    run_groups(main)


def test_an_id_that_was_given_can_be_given_back() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = GroupClient(groups), GroupClient(groups)
        await stable(groups, one)
        with pytest.raises(MemberIdRequired) as caught:
            await two.join(ids_first=True)
        two.member_id = caught.value.member_id
        joining = asyncio.create_task(one.join())
        await settle()
        assert two.leave() == 0
        await settle()
        assert await joining == 0

    run_groups(main)
