"""A member of a group, and a coordinator in virtual time, without sockets and records."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from purgatory.cluster.api.answer_of import answer_of
from purgatory.kafka import ErrorCode, Group, GroupConfig, GroupRefusal, GroupState, Joining
from purgatory.kafka.groups.group_coordinator import GroupCoordinator
from tests.event_loop.conftest import new_purgatory, run_virtually

DELAY_MS, SESSION_MS, REBALANCE_MS = 3_000, 10_000, 60_000


class GroupClient:
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
            SESSION_MS,
            REBALANCE_MS,
            kind,
            tuple((name, name.encode()) for name in protocols or ("range",)),
        )
        answer: Any = await answer_of(
            partial(self.groups.join, "g", self.member_id, joined, ids_first)
        )
        if answer.error == 0:
            self.member_id = answer.member_id
            self.generation = answer.generation
            self.leads = answer.leader_id == self.member_id
            self.roster = [member.member_id for member in answer.roster]
        return int(answer.error)

    async def sync(self, assignments: dict[str, bytes] | None = None) -> tuple[int, bytes]:
        """Sync, and return the error code and the assignment. A leader gives each its own id."""
        if assignments is None and self.leads:
            assignments = {member: member.encode() for member in self.roster}
        answer: Any = await answer_of(
            partial(
                self.groups.sync,
                "g",
                self.generation,
                self.member_id,
                self.instance_id,
                assignments or {},
            )
        )
        return int(answer.error), answer.assignment

    def heartbeat(self) -> int:
        """Give a sign of life, and return the error code."""
        return code_of(
            self.groups.heartbeat, "g", self.generation, self.member_id, self.instance_id
        )

    def leave(self) -> int:
        """Leave, and return the error code."""
        return code_of(self.groups.leave, "g", self.member_id, self.instance_id)


def code_of(call: Callable[..., None], *arguments: object) -> int:
    try:
        call(*arguments)
    except GroupRefusal as refusal:
        return int(refusal.code)
    return 0


async def refused(waiting: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(GroupRefusal) as caught:
        await waiting
    return caught.value.code


def coordinator(**options: int) -> GroupCoordinator:
    short = {"initial_rebalance_delay_ms": DELAY_MS, "min_session_timeout_ms": 100}
    settings = {**short, **options}
    numbers = itertools.count(1)
    return GroupCoordinator(
        GroupConfig(**settings),
        lambda name: new_purgatory(name).core,
        lambda begin: f"{begin}-{next(numbers)}",
    )


def group_of(groups: GroupCoordinator) -> Group:
    group = groups.groups["g"]
    group._check()
    return group


async def stable(groups: GroupCoordinator, *clients: GroupClient) -> None:
    """Bring the clients into one generation, with their assignments."""
    assert await asyncio.gather(*(client.join() for client in clients)) == [0] * len(clients)
    answers = await asyncio.gather(*(client.sync() for client in clients))
    assert answers == [(0, client.member_id.encode()) for client in clients]
    assert group_of(groups).state is GroupState.STABLE


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1_000)


def run_groups(main: Callable[[GroupCoordinator], Awaitable[None]], **options: int) -> None:
    async def run() -> None:
        groups = coordinator(**options)
        await main(groups)
        for purgatory in groups.purgatories:
            purgatory.close("leave")

    run_virtually(run)


async def joined_again(
    groups: GroupCoordinator, clients: list[GroupClient], *joining: asyncio.Task[int]
) -> None:
    assert set(await asyncio.gather(*(client.join() for client in clients), *joining)) == {0}
    assert group_of(groups).state is GroupState.COMPLETING_REBALANCE
