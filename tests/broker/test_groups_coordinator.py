"""The coordinator of groups by itself, in virtual time: no sockets, no records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from purgatory.broker.groups import (
    Group,
    GroupConfig,
    GroupCoordinator,
    GroupError,
    GroupRefusal,
    GroupState,
    Joining,
    MemberIdRequired,
)
from tests.event_loop.conftest import new_purgatory, run_virtually, settle

_DELAY_MS, _SESSION_MS, _REBALANCE_MS = 3_000, 10_000, 60_000


class _Client:
    """A member, or who wants to be one."""

    def __init__(self, groups: GroupCoordinator, instance_id: str | None = None) -> None:
        self.groups = groups
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.roster: list[str] = []

    async def join(self, *protocols: str, kind: str = "consumer", ids_first: bool = False) -> int:
        """Join, and return the error code."""
        joined = Joining(
            "client",
            "/here",
            self.instance_id,
            _SESSION_MS,
            _REBALANCE_MS,
            kind,
            tuple((name, name.encode()) for name in protocols or ("range",)),
        )
        answer = await self.groups.join("g", self.member_id, joined, ids_first)
        if answer["error_code"] == 0:
            self.member_id = answer["member_id"]
            self.generation = answer["generation_id"]
            self.leads = answer["leader"] == self.member_id
            self.roster = [member["member_id"] for member in answer["members"]]
        return int(answer["error_code"])

    async def sync(self, assignments: dict[str, bytes] | None = None) -> tuple[int, bytes]:
        """Sync, and return the error code and the assignment. A leader gives each its own id."""
        if assignments is None and self.leads:
            assignments = {member: member.encode() for member in self.roster}
        answer = await self.groups.sync(
            "g", self.generation, self.member_id, self.instance_id, assignments or {}
        )
        return int(answer["error_code"]), answer["assignment"]

    def heartbeat(self) -> int:
        """Give a sign of life, and return the error code."""
        return _code(self.groups.heartbeat, "g", self.generation, self.member_id, self.instance_id)

    def leave(self) -> int:
        """Leave, and return the error code."""
        return _code(self.groups.leave, "g", self.member_id, self.instance_id)


def _code(call: Callable[..., None], *arguments: object) -> int:
    try:
        call(*arguments)
    except GroupRefusal as refusal:
        return int(refusal.code)
    return 0


async def _refused(waiting: Awaitable[Any]) -> GroupError:
    with pytest.raises(GroupRefusal) as caught:
        await waiting
    return caught.value.code


def _coordinator(**options: int) -> GroupCoordinator:
    settings = {"initial_rebalance_delay_ms": _DELAY_MS, **options}
    return GroupCoordinator(GroupConfig(**settings), new_purgatory)


def _group(groups: GroupCoordinator) -> Group:
    group = groups.groups["g"]
    group._check()
    return group


async def _stable(groups: GroupCoordinator, *clients: _Client) -> None:
    """Bring the clients into one generation, with their assignments."""
    assert await asyncio.gather(*(client.join() for client in clients)) == [0] * len(clients)
    answers = await asyncio.gather(*(client.sync() for client in clients))
    assert answers == [(0, client.member_id.encode()) for client in clients]
    assert _group(groups).state is GroupState.STABLE


def _now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1_000)


def _run(main: Callable[[GroupCoordinator], Awaitable[None]], **options: int) -> None:
    async def run() -> None:
        groups = _coordinator(**options)
        await main(groups)
        for purgatory in groups.purgatories:
            await purgatory.aclose("leave")

    run_virtually(run)


# ---- coming together


def test_the_first_member_waits_for_others_and_longer_if_some_come() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        first = asyncio.create_task(one.join())
        await asyncio.sleep(2)
        second = asyncio.create_task(two.join())
        assert list(await asyncio.gather(first, second)) == [0, 0]
        assert _now_ms() == 2 * _DELAY_MS, "once more, since somebody came"
        assert (one.generation, two.generation) == (1, 1)
        assert one.leads and not two.leads
        assert sorted(one.roster) == sorted([one.member_id, two.member_id])
        assert two.roster == []

    _run(main)


def test_the_first_wait_is_extended_up_to_the_rebalance_timeout() -> None:
    async def main(groups: GroupCoordinator) -> None:
        clients = [_Client(groups) for _ in range(40)]
        joins = []
        for client in clients:
            joins.append(asyncio.create_task(client.join()))
            await asyncio.sleep(2)
        assert set(await asyncio.gather(*joins[:30])) == {0}
        assert clients[0].generation == 1
        await settle()
        for join in joins:
            join.cancel()

    _run(main)


def test_a_member_alone_is_answered_after_the_delay() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one = _Client(groups)
        await _stable(groups, one)
        assert _now_ms() == _DELAY_MS

    _run(main)


def test_a_new_member_has_the_others_join_again() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        await _stable(groups, one)
        joining = asyncio.create_task(two.join())
        await settle()
        assert one.heartbeat() == GroupError.REBALANCE_IN_PROGRESS
        assert not joining.done()
        await _stable_again(groups, [one], joining)
        assert (one.generation, two.generation) == (2, 2)

    _run(main)


async def _stable_again(
    groups: GroupCoordinator, clients: list[_Client], *joining: asyncio.Task[int]
) -> None:
    assert set(await asyncio.gather(*(client.join() for client in clients), *joining)) == {0}
    assert _group(groups).state is GroupState.COMPLETING_REBALANCE


def test_who_does_not_join_again_within_the_rebalance_timeout_is_out() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        await _stable(groups, one, two)
        began_ms = _now_ms()
        joining = asyncio.create_task(one.join("range", "sticky"))

        async def beat() -> None:
            while two.heartbeat() in (0, GroupError.REBALANCE_IN_PROGRESS):
                await asyncio.sleep(1)

        beating = asyncio.create_task(beat())
        assert await joining == 0
        assert _now_ms() - began_ms == _REBALANCE_MS
        await beating
        assert list(_group(groups).members) == [one.member_id]
        assert two.heartbeat() == GroupError.UNKNOWN_MEMBER_ID
        assert one.leads

    _run(main)


def test_who_gives_no_sign_of_life_is_out_and_the_others_rebalance() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        await _stable(groups, one, two)
        for _ in range(12):
            await asyncio.sleep(1)
            if one.heartbeat():
                break
        assert list(_group(groups).members) == [one.member_id]
        assert two.heartbeat() == GroupError.UNKNOWN_MEMBER_ID
        assert one.heartbeat() == GroupError.REBALANCE_IN_PROGRESS
        assert await one.join() == 0
        assert one.generation == 2

    _run(main)


def test_a_member_that_waits_for_the_others_needs_no_sign_of_life() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        await _stable(groups, one, two)
        joining = asyncio.create_task(one.join("range", "other"))
        for _ in range(40):
            await asyncio.sleep(1)
            assert two.heartbeat() == GroupError.REBALANCE_IN_PROGRESS
        assert not joining.done()
        assert len(_group(groups).members) == 2
        assert await two.join() == 0
        assert await joining == 0

    _run(main)


def test_who_joined_and_does_not_sync_is_out_in_the_end() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        await asyncio.gather(one.join(), two.join())
        answered = asyncio.create_task(two.sync())  # the leader never gives an assignment
        assert await answered == (GroupError.REBALANCE_IN_PROGRESS, b"")
        assert _now_ms() <= 2 * _DELAY_MS + _SESSION_MS
        assert await two.join() == 0
        assert two.leads
        assert await two.sync() == (0, two.member_id.encode())

    _run(main)


def test_the_last_member_that_leaves_empties_the_group_and_another_may_begin_it() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one = _Client(groups)
        await _stable(groups, one)
        assert one.leave() == 0
        group = _group(groups)
        assert (group.state, group.generation) == (GroupState.EMPTY, 2)
        assert one.leave() == GroupError.UNKNOWN_MEMBER_ID
        other = _Client(groups)
        assert await other.join("new", kind="other") == 0
        assert other.generation == 3

    _run(main)


def test_the_next_member_leads_when_the_leader_leaves() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        await _stable(groups, one, two)
        assert one.leave() == 0
        assert two.heartbeat() == GroupError.REBALANCE_IN_PROGRESS
        assert await two.join() == 0
        assert two.leads
        assert two.roster == [two.member_id]

    _run(main)


def test_a_leader_that_joins_again_causes_a_rebalance_and_a_follower_none() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        await _stable(groups, one, two)
        assert await two.join() == 0
        assert (two.generation, one.heartbeat()) == (1, 0)
        joining = asyncio.create_task(one.join())
        await settle()
        assert two.heartbeat() == GroupError.REBALANCE_IN_PROGRESS
        await _stable_again(groups, [two], joining)
        assert one.generation == 2

    _run(main)


# ---- ids first


def test_a_new_member_gets_an_id_first_and_is_waited_for() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        with pytest.raises(MemberIdRequired) as caught:
            await one.join(ids_first=True)
        one.member_id = caught.value.member_id
        assert not _group(groups).members
        await _stable(groups, one)
        with pytest.raises(MemberIdRequired) as caught:
            await two.join(ids_first=True)
        two.member_id = caught.value.member_id
        assert one.heartbeat() == 0, "nothing changes before it comes"
        joining = asyncio.create_task(one.join())
        await asyncio.sleep(1)
        assert not joining.done(), "it is about to come"
        assert await two.join(ids_first=True) == 0
        assert await joining == 0

    _run(main)


def test_an_id_that_is_not_used_in_time_is_forgotten_with_its_group() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one = _Client(groups)
        with pytest.raises(MemberIdRequired) as caught:
            await one.join(ids_first=True)
        await asyncio.sleep(_SESSION_MS / 1_000 + 1)
        assert groups.groups == {}
        one.member_id = caught.value.member_id
        assert await _refused(one.join()) is GroupError.UNKNOWN_MEMBER_ID

    _run(main)


def test_an_id_that_was_given_can_be_given_back() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        await _stable(groups, one)
        with pytest.raises(MemberIdRequired) as caught:
            await two.join(ids_first=True)
        two.member_id = caught.value.member_id
        joining = asyncio.create_task(one.join())
        await settle()
        assert two.leave() == 0
        await settle()
        assert await joining == 0

    _run(main)


# ---- what is refused


def test_what_is_wrong_is_refused_with_kafka_s_codes() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one = _Client(groups)
        await _stable(groups, one)
        stranger = _Client(groups)
        assert await _refused(stranger.join("sticky")) is GroupError.INCONSISTENT_GROUP_PROTOCOL
        assert (
            await _refused(stranger.join(kind="connect")) is GroupError.INCONSISTENT_GROUP_PROTOCOL
        )
        stranger.member_id = "nobody"
        assert await _refused(stranger.join()) is GroupError.UNKNOWN_MEMBER_ID
        assert stranger.heartbeat() == GroupError.UNKNOWN_MEMBER_ID
        one.generation += 1
        assert one.heartbeat() == GroupError.ILLEGAL_GENERATION
        assert await _refused(one.sync()) is GroupError.ILLEGAL_GENERATION
        one.generation -= 1
        assert one.heartbeat() == 0
        _group(groups)

    _run(main)


@pytest.mark.parametrize("session_ms", [99, 1_800_001, -1, 0])
def test_a_session_timeout_out_of_bounds_is_refused_and_leaves_no_group(session_ms: int) -> None:
    async def main(groups: GroupCoordinator) -> None:
        joined = Joining("c", "/h", None, session_ms, 1_000, "consumer", (("range", b""),))
        waiting = groups.join("g", "", joined, False)
        assert await _refused(waiting) is GroupError.INVALID_SESSION_TIMEOUT
        assert groups.groups == {}

    _run(main)


@pytest.mark.parametrize("group_id", ["", "g" * 32_768, "\N{SNOWMAN}" * 11_000])
def test_a_group_s_name_that_is_none_is_refused(group_id: str) -> None:
    async def main(groups: GroupCoordinator) -> None:
        joined = Joining("c", "/h", None, 10_000, 1_000, "consumer", (("range", b""),))
        invalid = GroupError.INVALID_GROUP_ID
        assert await _refused(groups.join(group_id, "", joined, False)) is invalid
        assert await _refused(groups.sync(group_id, 1, "m", None, {})) is invalid
        assert _code(groups.heartbeat, group_id, 1, "m", None) == invalid
        assert _code(groups.leave, group_id, "m", None) == invalid
        assert _code(groups.check_commit, group_id, -1, "", None) == invalid
        assert groups.groups == {}

    _run(main)


def test_a_join_that_is_refused_leaves_no_group_behind() -> None:
    async def main(groups: GroupCoordinator) -> None:
        joined = Joining("c", "/h", None, 10_000, 1_000, "", ())
        refused = await _refused(groups.join("g", "", joined, False))
        assert refused is GroupError.INCONSISTENT_GROUP_PROTOCOL
        assert groups.groups == {}

    _run(main)


def test_a_group_that_is_full_takes_nobody_else() -> None:
    async def main(groups: GroupCoordinator) -> None:
        await _stable(groups, _Client(groups), _Client(groups))
        assert await _refused(_Client(groups).join()) is GroupError.GROUP_MAX_SIZE_REACHED

    _run(main, max_size=2)


def test_commits_are_taken_from_the_current_generation_and_from_nobody_s() -> None:
    async def main(groups: GroupCoordinator) -> None:
        check = groups.check_commit
        assert _code(check, "g", -1, "", None) == 0, "a group that nobody is in"
        assert _code(check, "g", 1, "m", None) == GroupError.ILLEGAL_GENERATION
        one = _Client(groups)
        await _stable(groups, one)
        assert _code(check, "g", 1, one.member_id, None) == 0
        assert _code(check, "g", 2, one.member_id, None) == GroupError.ILLEGAL_GENERATION
        assert _code(check, "g", 1, "nobody", None) == GroupError.UNKNOWN_MEMBER_ID
        assert _code(check, "g", -1, "", None) == GroupError.UNKNOWN_MEMBER_ID
        assert await one.join() == 0
        completing = _code(check, "g", one.generation, one.member_id, None)
        assert completing == GroupError.REBALANCE_IN_PROGRESS

    _run(main)


# ---- what they agree on


def test_the_protocol_is_what_most_like_best_of_those_that_all_know() -> None:
    async def main(groups: GroupCoordinator) -> None:
        clients = [_Client(groups) for _ in range(3)]
        wishes = [("range", "sticky"), ("sticky", "range"), ("mine", "sticky", "range")]
        joins = (client.join(*wish) for client, wish in zip(clients, wishes, strict=True))
        assert await asyncio.gather(*joins) == [0, 0, 0]
        assert _group(groups).protocol == "sticky"
        leader = next(client for client in clients if client.leads)
        assert _group(groups).roster()[0]["metadata"] == b"sticky"
        assert len(leader.roster) == 3

    _run(main)


# ---- static members


def test_a_static_member_that_comes_back_takes_its_place_without_a_rebalance() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups, "two")
        await _stable(groups, one, two)
        before = two.member_id
        back = _Client(groups, "two")
        assert await back.join() == 0
        assert back.member_id != before
        assert (back.generation, one.heartbeat()) == (1, 0)
        assert await back.sync() == (0, before.encode()), "its assignment is as before"
        assert two.heartbeat() == GroupError.FENCED_INSTANCE_ID
        assert await _refused(two.sync()) is GroupError.FENCED_INSTANCE_ID
        assert await _refused(two.join()) is GroupError.FENCED_INSTANCE_ID
        assert two.leave() == GroupError.FENCED_INSTANCE_ID
        assert len(_group(groups).members) == 2

    _run(main)


def test_a_static_member_that_comes_back_with_other_protocols_causes_a_rebalance() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups, "two")
        await _stable(groups, one, two)
        back = _Client(groups, "two")
        joining = asyncio.create_task(back.join("range", "sticky"))
        await settle()
        assert one.heartbeat() == GroupError.REBALANCE_IN_PROGRESS
        await _stable_again(groups, [one], joining)

    _run(main)


def test_a_static_member_that_comes_back_before_the_assignment_gets_one() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups, "two")
        await asyncio.gather(one.join(), two.join())
        back = _Client(groups, "two")
        joining = asyncio.create_task(back.join())
        await settle()
        # The leader knows the old id alone: what it assigns would be lost.
        assert await _refused(one.sync()) is GroupError.REBALANCE_IN_PROGRESS
        await _stable_again(groups, [one], joining)
        answers = list(await asyncio.gather(one.sync(), back.sync()))
        assert answers == [(0, one.member_id.encode()), (0, back.member_id.encode())]

    _run(main)


def test_a_static_member_may_be_away_for_its_session_timeout_and_no_longer() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups, "two")
        await _stable(groups, one, two)
        for _ in range(9):
            await asyncio.sleep(1)
            assert one.heartbeat() == 0
        await asyncio.sleep(2)
        assert one.heartbeat() == GroupError.REBALANCE_IN_PROGRESS
        assert _group(groups).static_members == {}

    _run(main)


def test_another_leads_when_the_static_leader_is_not_here_at_a_rebalance() -> None:
    async def main(groups: GroupCoordinator) -> None:
        leader, other = _Client(groups, "one"), _Client(groups, "two")
        await _stable(groups, leader, other)
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

    _run(main)


# ---- impatience, and the coordinator's own end


def test_who_asks_again_while_it_waits_is_answered_once_for_each() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        await _stable(groups, one, two)
        joins = [asyncio.create_task(two.join("range", str(number))) for number in range(3)]
        await settle()
        assert [join.done() for join in joins] == [True, True, False]
        assert joins[0].result() == GroupError.REBALANCE_IN_PROGRESS
        await _stable_again(groups, [one], joins[2])
        syncs = [asyncio.create_task(two.sync()) for _ in range(3)]
        await settle()
        assert [sync.done() for sync in syncs] == [True, True, False]
        assert (await one.sync())[0] == 0
        assert await syncs[2] == (0, two.member_id.encode())

    _run(main)


def test_who_waits_is_told_when_another_broker_coordinates() -> None:
    async def main(groups: GroupCoordinator) -> None:
        one, two = _Client(groups), _Client(groups)
        await _stable(groups, one, two)
        joining = asyncio.create_task(one.join("range", "other"))
        await settle()
        groups.forget("g")
        assert await joining == GroupError.NOT_COORDINATOR
        assert groups.groups == {}
        assert two.heartbeat() == GroupError.UNKNOWN_MEMBER_ID
        assert sum(purgatory.num_delayed for purgatory in groups.purgatories) == 0
        await asyncio.sleep(1_000)
        assert groups.groups == {}

    _run(main)


def test_nothing_waits_any_more_when_all_are_gone() -> None:
    async def main(groups: GroupCoordinator) -> None:
        clients = [_Client(groups) for _ in range(5)]
        await _stable(groups, *clients)
        await asyncio.sleep(_SESSION_MS / 1_000 + 1)
        assert _group(groups).state is GroupState.EMPTY
        assert [purgatory.num_delayed for purgatory in groups.purgatories[1:]] == [0, 0]

    _run(main)
