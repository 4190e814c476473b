"""Two producers of one transactional id, the second one at each step of the first, with kills.

The first one goes on as if nothing had happened. Whatever step it was at, and whichever broker dies
or ceases to lead at whichever message: it is fenced, nothing of its transaction is seen, and all of
the second one's is.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from purgatory.kafka import ErrorCode, TopicPartition
from tests.kafka.transaction_client import COMMIT, TransactionClient
from tests.kafka.transaction_world import ALL, IDS, OFFSETS, OUT, STATE, World

_AWAY_TURNS = 40
_STEPS = 6


def _steps(client: TransactionClient, number: int) -> list[Callable[[], ErrorCode]]:
    return [
        lambda: client.add(*OUT),
        lambda: client.produce(OUT[0], number),
        lambda: client.produce(OUT[1], number),
        lambda: client.add(OFFSETS),
        lambda: client.commit_offset(number),
        lambda: client.end(COMMIT),
    ]


def _run(world: World, taken_over_after: int) -> None:
    """Have a second producer take over after so many steps of the first, and check the end."""
    first, second = (TransactionClient(world, verifies=True) for _ in range(2))
    assert first.init() is ErrorCode.NONE
    steps = _steps(first, 1)
    for step in steps[:taken_over_after]:
        assert step() is ErrorCode.NONE
    assert second.init() is ErrorCode.NONE
    refused = [step() for step in steps[taken_over_after:]]
    assert ErrorCode.NONE not in refused, refused
    assert second.transform(2) is ErrorCode.NONE
    again = first.end(COMMIT)  # the last word of a zombie changes nothing
    assert again in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    world.run_until(lambda: len(world.nodes) == len(IDS))
    world.run_until(lambda: not world.messages and not world.hangs())
    world.run(20)
    expected = [1, 2] if taken_over_after == _STEPS else [2]
    assert [world.read_committed(tp) for tp in OUT] == [expected, expected]
    assert world.committed_offset() == 2
    world.check()


def _turns(taken_over_after: int) -> int:
    world = World()
    _run(world, taken_over_after)
    return world.turns


STRIDES = pytest.mark.parametrize("stride", [97, pytest.param(1, marks=pytest.mark.exhaustive)])
AT_EACH_STEP = pytest.mark.parametrize("taken_over_after", range(_STEPS + 1))


@STRIDES
@AT_EACH_STEP
@pytest.mark.parametrize("broker_id", IDS)
def test_a_zombie_is_fenced_whichever_broker_dies_at_any_turn(
    broker_id: int, taken_over_after: int, stride: int
) -> None:
    for turn in range(1 + broker_id + taken_over_after, _turns(taken_over_after), stride):
        world = World()
        world.kill_at = {turn: broker_id}
        world.revive_at = {turn + _AWAY_TURNS: broker_id}
        try:
            _run(world, taken_over_after)
        except BaseException as error:
            error.add_note(f"broker {broker_id} killed at turn {turn}")
            raise


@STRIDES
@AT_EACH_STEP
@pytest.mark.parametrize("tp", ALL)
def test_a_zombie_is_fenced_whatever_moves_at_any_turn(
    tp: TopicPartition, taken_over_after: int, stride: int
) -> None:
    for turn in range(1 + taken_over_after, _turns(taken_over_after), stride):
        world = World()
        world.move_at = {turn: tp}
        try:
            _run(world, taken_over_after)
        except BaseException as error:
            error.add_note(f"{tp} moved at turn {turn}")
            raise


@STRIDES
def test_a_coordinator_that_moves_again_and_again_ends_what_was_begun(stride: int) -> None:
    for turn in range(1, _turns(5), stride):
        world = World()
        world.move_at = dict.fromkeys(range(turn, turn + 200, 7), STATE)
        _run(world, 5)
