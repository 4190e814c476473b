"""Two producers of one transactional id, the second one at each step of the first, with kills.

The first one continues unaware. At each of its steps, and whichever broker dies or resigns at
whichever message: the first producer is fenced, none of its transaction's records is read, and all
of the second one's are.
"""

from __future__ import annotations

import pytest

from purgatory.kafka import ErrorCode, TopicPartition
from tests.unit.kafka.transactions.transaction_client import COMMIT, TransactionClient
from tests.unit.kafka.transactions.transaction_world import ALL, IDS, OUT, STATE, World

_AWAY_TURNS = 40
_STEPS = {False: 6, True: 4}
"""The number of a transaction's steps, by whether the leaders take partitions in."""


def _run(world: World, taken_over_after: int, anew: bool, successor_anew: bool) -> None:
    """Have a second producer take over after so many steps of the first, and check the end."""
    first = TransactionClient(world, verifies=True, anew=anew)
    second = TransactionClient(world, verifies=True, anew=successor_anew)
    assert first.init() is ErrorCode.NONE
    steps = first.steps(1)
    for step in steps[:taken_over_after]:
        assert step() is ErrorCode.NONE
    assert second.init() is ErrorCode.NONE
    refused = [step() for step in steps[taken_over_after:]]
    assert ErrorCode.NONE not in refused, refused
    assert second.transform(2) is ErrorCode.NONE
    again = first.end(COMMIT)  # the last word of a zombie changes nothing
    fenced = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
    if anew and not successor_anew:  # by its epoch it is the last end, repeated
        fenced.add(ErrorCode.NONE)
    assert again in fenced
    world.run_until(lambda: len(world.nodes) == len(IDS))
    world.run_until(lambda: not world.messages and not world.hangs())
    world.run(20)
    expected = [1, 2] if taken_over_after == _STEPS[anew] else [2]
    assert [world.read_committed(tp) for tp in OUT] == [expected, expected]
    assert world.committed_offset() == 2
    world.check()


def _turns(taken_over_after: int, *protocols: bool) -> int:
    world = World()
    _run(world, taken_over_after, *protocols)
    return world.turns


STRIDES = pytest.mark.parametrize("stride", [97, pytest.param(1, marks=pytest.mark.exhaustive)])
AT_EACH_STEP = pytest.mark.parametrize(
    ("taken_over_after", "anew", "successor_anew"),
    [
        pytest.param(
            step,
            anew,
            successor_anew,
            marks=[] if anew is successor_anew else [pytest.mark.exhaustive],
        )
        for anew, steps in _STEPS.items()
        for successor_anew in (False, True)
        for step in range(steps + 1)
    ],
)


@STRIDES
@AT_EACH_STEP
@pytest.mark.parametrize("broker_id", IDS)
def test_zombie_is_fenced_if_any_broker_dies_at_any_turn(
    broker_id: int, taken_over_after: int, anew: bool, successor_anew: bool, stride: int
) -> None:
    turns = _turns(taken_over_after, anew, successor_anew)
    for turn in range(1 + broker_id + taken_over_after, turns, stride):
        world = World()
        world.kill_at = {turn: broker_id}
        world.revive_at = {turn + _AWAY_TURNS: broker_id}
        try:
            _run(world, taken_over_after, anew, successor_anew)
        except BaseException as error:
            error.add_note(f"broker {broker_id} killed at turn {turn}")
            raise


@STRIDES
@AT_EACH_STEP
@pytest.mark.parametrize("tp", ALL)
def test_zombie_is_fenced_if_any_partition_moves_at_any_turn(
    tp: TopicPartition, taken_over_after: int, anew: bool, successor_anew: bool, stride: int
) -> None:
    turns = _turns(taken_over_after, anew, successor_anew)
    for turn in range(1 + taken_over_after, turns, stride):
        world = World()
        world.move_at = {turn: tp}
        try:
            _run(world, taken_over_after, anew, successor_anew)
        except BaseException as error:
            error.add_note(f"{tp} moved at turn {turn}")
            raise


@STRIDES
@pytest.mark.parametrize("anew", [False, True])
def test_coordinator_that_moves_repeatedly_completes_ends(anew: bool, stride: int) -> None:
    asked = _STEPS[anew] - 1, anew, anew
    for turn in range(1, _turns(*asked), stride):
        world = World()
        world.move_at = dict.fromkeys(range(turn, turn + 200, 7), STATE)
        _run(world, *asked)
