"""No signal finds a loop's jump back outside of the ``try`` that gives back what is held."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.proofs.interrupts.instructions import code_of, jumps_left_out
from tests.proofs.interrupts.tracing import LIBRARY

HOLD_NOTHING = {
    "AsyncPurgatory.__aexit__": "3.12's second way out of an await",
    "AsyncPurgatory._until_done": "3.12's second way out of an await",
    "AsyncPurgatory.aclose": "3.12's second way out of an await",
    "AsyncPurgatory.submit": "3.12's second way out of an await",
    "AsyncPurgatory.wait": "3.12's second way out of an await",
    "AsyncPurgatory.wait_for_threshold": "3.12's second way out of an await",
    "Closing._closer": "a comprehension, which puts a local back",
    "Closing._drained": "a coroutine; its caller gives back",
    "Closing._give_up_on": "a comprehension, which puts a local back",
    "Closing._deferred": "a comprehension, which puts a local back",
    "Closing._complete_all": "a comprehension, which puts a local back",
    "Closing._waited_for": "a comprehension, which puts a local back",
    "Closing.close_on_loop": "3.12's second way out of an await",
    "_PureCounters.__init__": "a comprehension, which puts a local back",
    "PurgatoryState.check": "asserts, and changes nothing",
    "PurgatoryState.waiting_for_locks": "comprehensions, which put a local back",
    "PurgatoryState._values_waited_for": "passes over a key that can't be compared",
    "_PureState.oldest": "looks again after a change in between",
    "_PureState.pending_ends": "looks again after a change in between",
    "DelayedOperationPurgatory.cancel_for_key": "a comprehension, which puts a local back",
    "SingleThreadExecutor._work": "on a thread that no signal comes to",
    "_PureTimer._check": "a comprehension, which puts a local back",
    "TimerTask.__init_subclass__": "a comprehension, which puts a local back",
    "TimerTaskList._waiting": "a comprehension, which puts a local back",
    "WatcherList.keys": "a comprehension, which puts a local back",
    "WatcherList.unwatch": "passes over a key that can't be compared",
    "_trampolines": "a generator",
    "_bucket_tasks": "a comprehension, which puts a local back",
    "_run_calls": "a generator: whatever breaks it off ends it",
    "locks_held": "a generator",
    "_frames_of": "walks tracebacks, and holds nothing",
    "_with_linked": "cuts tracebacks, and holds nothing",
}
"""The functions in which a jump is left out, and why that does no harm."""


@pytest.mark.parametrize("folder", LIBRARY, ids=lambda folder: Path(folder).name)
def test_a_jump_back_lies_inside_the_try_of_its_loop(folder: str) -> None:
    found = [
        place
        for file in Path(folder).glob("*.py")
        for code in code_of(file.read_text(encoding="utf-8"))
        for place in jumps_left_out(code)
        if code.co_qualname not in HOLD_NOTHING
    ]
    assert not found


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="its compiler leaves no such jump out")
def test_a_jump_outside_of_its_try_is_found() -> None:
    held = """
def of_a_condition():
    take()
    try:
        while more():
            if again():
                continue
            work()
    except BaseException:
        give_back()

def of_an_if_at_the_end():
    take()
    try:
        while True:
            work()
            if ended is not None and again():
                break
    except BaseException:
        give_back()
"""
    assert [place for code in code_of(held) for place in jumps_left_out(code)]
