"""Each broker killed at each turn of three transactions: all of each is seen, or nothing.

The turns are counted in a run without kills, so every message and every fetch has its kill before
and after it.
"""

from __future__ import annotations

import pytest

from purgatory.kafka import ErrorCode, TopicPartition, TransactionResult
from tests.unit.kafka.transactions.transaction_client import ABORT, COMMIT, TransactionClient
from tests.unit.kafka.transactions.transaction_world import ALL, IDS, OUT, World

_SCRIPT = (COMMIT, ABORT, COMMIT)
_AWAY_TURNS = 40


def _run(world: World, anew: bool) -> dict[int, TransactionResult | None]:
    """Run the script; return how each transaction ended, None where the producer wasn't told."""
    client = TransactionClient(world, anew=anew)
    known: dict[int, TransactionResult | None] = {}
    assert client.init() is ErrorCode.NONE
    for number, how in enumerate(_SCRIPT, 1):
        code = client.transform(number, how)
        known[number] = how if code is ErrorCode.NONE else None
        if code is not ErrorCode.NONE:
            client = TransactionClient(world, anew=anew)  # the behaviour of a fenced producer
            assert client.init() is ErrorCode.NONE
    return known


def _check(world: World, known: dict[int, TransactionResult | None]) -> None:
    world.run_until(lambda: len(world.nodes) == len(IDS))
    world.run_until(lambda: not world.messages and not world.hangs())
    world.run(20)
    seen = world.read_committed(OUT[0])
    assert world.read_committed(OUT[1]) == seen
    assert len(set(seen)) == len(seen)
    assert world.committed_offset() == max((int(str(one)) for one in seen), default=-1)
    for number, how in known.items():
        if how is not None:
            assert (number in seen) is (how is COMMIT), (number, how, seen)
    world.check()


def _turns_without_kills(anew: bool) -> int:
    world = World()
    known = _run(world, anew)
    _check(world, known)
    assert known == dict(enumerate(_SCRIPT, 1))
    return world.turns


PROTOCOLS = pytest.mark.parametrize("anew", [False, True], ids=["of old", "anew"])
STRIDES = pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.exhaustive)])


@STRIDES
@PROTOCOLS
@pytest.mark.parametrize("broker_id", IDS)
def test_killed_broker_leaves_each_transaction_whole(
    broker_id: int, anew: bool, stride: int
) -> None:
    for turn in range(1 + broker_id, _turns_without_kills(anew), stride):
        world = World()
        world.kill_at = {turn: broker_id}
        world.revive_at = {turn + _AWAY_TURNS: broker_id}
        known = _run(world, anew)
        _check(world, known)
        # Replicas in sync take over: no producer is fenced by one broker's death.
        assert None not in known.values(), (turn, known)


@STRIDES
@PROTOCOLS
@pytest.mark.parametrize("tp", ALL)
def test_moved_partition_leaves_each_transaction_whole(
    tp: TopicPartition, anew: bool, stride: int
) -> None:
    for turn in range(1, _turns_without_kills(anew), stride):
        world = World()
        world.move_at = {turn: tp}
        known = _run(world, anew)
        _check(world, known)
        assert None not in known.values(), (turn, known)
