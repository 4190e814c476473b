"""A static member that leads: it may ask for a rebalance, and it may come back without one."""

from __future__ import annotations

import itertools
from functools import partial

from purgatory.cluster.api.answer_of import answer_of
from purgatory.kafka import GroupConfig, JoinAnswer, Joining, SyncAnswer
from purgatory.kafka.groups.group_coordinator import GroupCoordinator
from tests.event_loop.conftest import new_purgatory, run_virtually

_numbers = itertools.count(1)


def _joining(instance_id: str) -> Joining:
    protocols = (("range", b"orders"),)
    return Joining("client", "/here", instance_id, 10_000, 60_000, "consumer", protocols)


async def _joined(groups: GroupCoordinator, instance_id: str, member_id: str) -> tuple[str, int]:
    answer: JoinAnswer = await answer_of(
        partial(groups.join, "g", member_id, _joining(instance_id), True)
    )
    assert answer.error == 0
    return answer.member_id, answer.generation


async def _stable() -> tuple[GroupCoordinator, str]:
    """Return a group of one static member, and the id that it was given."""
    groups = GroupCoordinator(
        GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=100),
        lambda name: new_purgatory(name).core,
        lambda begin: f"{begin}-{next(_numbers)}",
    )
    leader_id, generation = await _joined(groups, "one", "")
    assigned = {leader_id: b"all"}
    await answer_of(partial(groups.sync, "g", generation, leader_id, "one", assigned))
    assert generation == 1
    return groups, leader_id


def test_a_static_leader_that_joins_again_causes_a_rebalance() -> None:
    async def main() -> None:
        groups, leader_id = await _stable()
        assert await _joined(groups, "one", leader_id) == (leader_id, 2)
        await _close(groups)

    run_virtually(main)


def test_a_static_leader_that_comes_back_causes_none() -> None:
    async def main() -> None:
        groups, leader_id = await _stable()
        new_id, generation = await _joined(groups, "one", "")
        assert generation == 1
        assert new_id != leader_id
        synced: SyncAnswer = await answer_of(
            partial(groups.sync, "g", generation, new_id, "one", {})
        )
        assert synced.assignment == b"all"
        await _close(groups)

    run_virtually(main)


async def _close(groups: GroupCoordinator) -> None:
    for purgatory in groups.purgatories:
        purgatory.close("leave")
