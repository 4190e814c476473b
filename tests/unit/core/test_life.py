"""The life of an operation is the table `LIFE` in `life.py`: each of its moves, and no other.

Operations are completed in every way, in the middle of a deep chain and not, observed and not, with
callbacks that raise and not; and in every state all calls are made that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any

import pytest

from purgatory import Outcome, PurgatoryClosedError
from purgatory.core import outcome
from purgatory.core.outcome import DONE
from purgatory.core.state import PurgatoryState
from purgatory.core.trampoline import MAX_DEPTH, this_thread
from tests.unit.core.life import ABANDONED, MOVES, STATES, TRANSITIONS, WAITING, State
from tests.unit.core.probe import LONG_MS, Probe, Setting
from tests.unit.core.recorded_life import IN_THE_TABLE, recorded_moves, state_of

How = Callable[[Setting, Probe], object]


def a_check(setting: Setting, operation: Probe) -> None:
    operation.ready = True
    setting.purgatory.check_and_complete("a")


def a_check_that_raises(setting: Setting, operation: Probe) -> None:
    operation.hooks["try_complete"] = fail
    setting.purgatory.check_and_complete("a")


def a_check_that_leaves(setting: Setting, operation: Probe) -> None:
    operation.ready = True
    operation.hooks["try_complete"] = lambda: setting.purgatory.close("leave")
    setting.purgatory.check_and_complete("a")


def a_check_that_leaves_and_raises(setting: Setting, operation: Probe) -> None:
    def leave_and_fail() -> None:
        setting.purgatory.close("leave")
        fail()

    operation.hooks["try_complete"] = leave_and_fail
    setting.purgatory.check_and_complete("a")


def an_expiry_that_leaves(setting: Setting, operation: Probe) -> None:
    operation.hooks["try_complete"] = lambda: setting.purgatory.close("leave")
    setting.pass_time(LONG_MS)
    assert operation.outcome is Outcome.PENDING, "nothing of ours touches what was let go"


def a_verdict_that_leaves(setting: Setting, operation: Probe) -> None:
    operation.hooks["try_complete"] = lambda: (
        setting.purgatory.fail_for_key("a", OSError("gone")),
        setting.purgatory.close("leave"),
    )
    setting.purgatory.check_and_complete("a")
    assert operation.outcome is Outcome.PENDING, "nothing of ours touches what was let go"


def left_and_forced(setting: Setting, operation: Probe) -> None:
    setting.purgatory.close("leave")
    operation.force_complete()


def left_and_cancelled(setting: Setting, operation: Probe) -> None:
    setting.purgatory.close("leave")
    operation.cancel()


HOWS: list[How] = [
    a_check,
    a_check_that_raises,
    a_check_that_leaves,
    a_check_that_leaves_and_raises,
    an_expiry_that_leaves,
    a_verdict_that_leaves,
    left_and_forced,
    left_and_cancelled,
    lambda setting, operation: operation.force_complete(),
    lambda setting, operation: operation.cancel(),
    lambda setting, operation: setting.pass_time(LONG_MS),
    lambda setting, operation: setting.purgatory.complete_for_key("a"),
    lambda setting, operation: setting.purgatory.fail_for_key("a", OSError("gone")),
    lambda setting, operation: setting.purgatory.cancel_for_key("a"),
    lambda setting, operation: setting.purgatory.close("expire"),
    lambda setting, operation: setting.purgatory.close("fail"),
    lambda setting, operation: setting.purgatory.close("leave"),
]


def fail() -> None:
    raise OSError("the disk is full")


@contextmanager
def deep_in_a_chain() -> Iterator[None]:
    """The callbacks of operations that complete in the body are deferred to its end."""
    trampoline = this_thread.trampoline
    trampoline.depth = MAX_DEPTH
    yield
    trampoline.depth = 0
    trampoline.run_deferred()


def lives() -> Iterator[tuple[Setting, Probe, How]]:
    """Yield an operation in its purgatory, and a way to complete it: all that there are."""
    for how, observed, raising in product(
        HOWS, (False, True), (None, "on_complete", "on_expiration", "on_failure")
    ):
        setting = Setting(on_completed=(lambda *_: None) if observed else None)
        operation = setting.submit(Probe(hooks={raising: fail} if raising else {}), "a")
        yield setting, operation, how


def live_all() -> None:
    for setting, operation, how in lives():
        how(setting, operation)
    for setting, operation, how in lives():
        with deep_in_a_chain():
            how(setting, operation)


@pytest.mark.pure
def test_operation_makes_exactly_the_moves_of_the_table() -> None:
    with recorded_moves() as moves:
        live_all()
    assert moves == IN_THE_TABLE


@pytest.mark.pure
def test_call_makes_only_moves_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """All states of an operation in which another thread may call."""
    called_in: set[State] = set()

    def call_all(setting: Setting, operation: Probe) -> None:
        before = state_of(operation)
        called_in.add(before)
        purgatory = setting.purgatory
        operation.run()
        wins: list[Any] = [operation.maybe_try_complete()]
        wins += [operation.safe_try_complete_or_else(lambda: None)]
        wins += [purgatory.check_and_complete("a"), purgatory.cancel_for_key("a")]
        if before[0] != ABANDONED:  # its owner may
            wins += [operation.force_complete(), operation.cancel()]
        purgatory.complete_for_key("a")
        purgatory.fail_for_key("a", OSError("gone"))
        with suppress(PurgatoryClosedError, RuntimeError):
            purgatory.try_complete_else_watch(operation, ["b"])
        assert not any(wins)
        assert state_of(operation) == before

    unwatch = PurgatoryState.detach
    for setting, operation, how in lives():

        def call(setting: Setting = setting, operation: Probe = operation) -> None:
            call_all(setting, operation)

        def call_and_unwatch(*args: Any, call: Callable[[], None] = call) -> Any:
            call()
            return unwatch(*args)

        for stage in ("on_complete", "on_expiration", "on_failure"):
            operation.hooks.setdefault(stage, call)
        if setting.purgatory.on_completed is not None:
            setting.purgatory.on_completed = lambda *_, call=call: call()
        operation.call_when_completed(call)
        monkeypatch.setattr(PurgatoryState, "detach", call_and_unwatch)
        how(setting, operation)
        monkeypatch.setattr(PurgatoryState, "detach", unwatch)
        call()
    for setting, operation, how in lives():
        with deep_in_a_chain():
            how(setting, operation)
            if operation.is_completed:
                call_all(setting, operation)
    assert called_in == {state for state in STATES if reachable(state)} - {
        (WAITING, Outcome.PENDING),
        # Between two steps of the completer's, without a call.
        (outcome.CALLING_BACK, Outcome.FAILED),
        (outcome.CALLED_BACK, Outcome.COMPLETED),
        (outcome.CALLED_BACK, Outcome.EXPIRED),
    }


def reachable(state: State) -> bool:
    return any(state in after for after in MOVES.values()) or state[0] == WAITING


def test_completed_operation_keeps_its_outcome() -> None:
    assert not any(MOVES[state] for state in STATES if state[0] == DONE)
    assert TRANSITIONS[Outcome.PENDING] == set(Outcome) - {Outcome.PENDING}
    assert TRANSITIONS[Outcome.COMPLETED] == TRANSITIONS[Outcome.EXPIRED] == {Outcome.FAILED}
    assert not TRANSITIONS[Outcome.CANCELLED]
    assert not TRANSITIONS[Outcome.FAILED]
