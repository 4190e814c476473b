"""Too little room on the stack: what does not fit is broken off, and gone on with by what follows.

Python raises RecursionError where the stack is at its end, be it in the middle of the library. Each
call is made with ever more room: where nothing fits, where some of it does, where all of it does.
"""

from __future__ import annotations

import sys
from functools import partial

import pytest

from tests.proofs.interrupts.own_process import run_in_own_process
from tests.proofs.interrupts.test_purgatory import SHORT_MS, THEN, World
from tests.proofs.timer.test_interrupts import at_depth, depth
from timer import NATIVE

ROOMS = range(1, 60)


def an_event(world: World) -> None:
    world.ready = True
    world.purgatory.check_and_complete("a")


def submit(world: World) -> None:
    world.park()


def advance(world: World) -> None:
    world.ready = True
    world.purgatory.advance("n", 9)


def expire(world: World) -> None:
    world.timer.advance_clock(0)


def close(world: World) -> None:
    world.purgatory.close("fail")


CALLS = {call.__name__: call for call in (an_event, submit, advance, expire, close)}


def call_with_little_room(name: str) -> None:
    """Make the call with ever more room, and go on after each."""
    raised = 0
    for room in ROOMS:
        world = World()
        # The log of an error, and a listener, may find no room either.
        world.a_listener_may_fail = True
        world.interrupts = 10
        world.park(), world.park(lock=world.lock()), world.park_for(5), world.park(SHORT_MS)
        world.clock.advance(SHORT_MS)
        try:
            deeper = sys.getrecursionlimit() - depth() - room
            at_depth(deeper, partial(CALLS[name], world))
        except RecursionError:
            raised += 1
        THEN[room % 3](world)
        world.purgatory.close("fail")
        world.assert_over()
    assert raised > (2 if NATIVE else 5), "the stack was never too deep"


@pytest.mark.parametrize("name", CALLS)
def test_too_little_room_on_the_stack_leaves_nothing_stuck_or_lost(name: str) -> None:
    run_in_own_process(call_with_little_room, name)
