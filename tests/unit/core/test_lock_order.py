"""Locks are taken in one order, those of operations are never waited for, callbacks hold none.

Seen in a busy run of real threads whose locks are recorded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from tests.proofs.core.fresh_core import BUSY_RUN, Patches, load_fresh
from tests.unit.core.lock_recorder import LockRecorder
from tests.unit.core.mutants import PURGATORY, Mutant
from tests.unit.core.probe import Probe, Setting

STATE_LOCK = "state.lock"
USERS = {f"busy_run.{name}" for name in ("users_lock", "users_rlock", "innermost_users_lock")}
SIGNALS = frozenset({"wake._lock"})
STAGES = {"try_complete", "on_complete", "on_expiration", "on_failure", "on_completed"}


class Recording(NamedTuple):
    """The locks of the busy run."""

    recorder: LockRecorder
    held_in_callbacks: dict[str, set[str]]


def record(run: Callable[[Callable[[], Any]], None], patches: Patches | None = None) -> Recording:
    """Run this, given a maker of busy runs, over a core with recorded locks."""
    recorder = LockRecorder(SIGNALS)
    held: dict[str, set[str]] = {}

    def on_callback(stage: str) -> None:
        held.setdefault(stage, set()).update(lock.name for lock in recorder.held)

    [module] = load_fresh([BUSY_RUN], recorder.stand_ins(), patches)
    with capture_logs():  # as the fixture logs does for a single test
        run(lambda: module.BusyRun(on_callback))
    return Recording(recorder, held)


@pytest.fixture(scope="module")
def recording() -> Recording:
    def run(new_run: Callable[[], Any]) -> None:
        for seed in range(4):
            new_run().run(seed)

    return record(run)


def test_the_order_of_locks_has_no_cycle(recording: Recording) -> None:
    assert recording.recorder.edges, "the run takes locks within locks"
    assert recording.recorder.cycle() == []


def test_purgatory_never_waits_for_an_operations_lock(recording: Recording) -> None:
    waited_for = {name for name in recording.recorder.waited_for if "operation" in name}
    assert waited_for == {"operation._listeners_lock"} & waited_for
    assert "busy_run.users_lock" in recording.recorder.tried


def test_purgatory_waits_for_no_lock_under_its_states_lock(recording: Recording) -> None:
    assert STATE_LOCK in recording.recorder.waited_for
    within = {edge for edge in recording.recorder.edges if edge[0] == STATE_LOCK}
    assert within == set()


def test_a_callback_holds_no_lock_but_its_operations(recording: Recording) -> None:
    assert recording.held_in_callbacks.keys() == STAGES, "every kind of callback was seen"
    for stage, held in recording.held_in_callbacks.items():
        assert held <= USERS, f"{stage} ran under {held - USERS}"


def test_recorder_finds_callbacks_under_the_states_lock() -> None:
    released_too_late = Mutant(
        "checks run under the state's lock",
        "the busy run",
        PURGATORY,
        """
-            return check_each(operations, [threading.get_ident()])
+                return check_each(operations, [threading.get_ident()])
         except BaseException as error:
""",
    )
    recording = record(  # with more threads, this fault could be a deadlock
        lambda new_run: new_run().run_one(), {PURGATORY: released_too_late.replacements}
    )
    for stage in ("try_complete", "on_complete"):
        assert STATE_LOCK in recording.held_in_callbacks[stage]


def test_recorder_finds_two_locks_taken_in_both_orders() -> None:
    recorder = LockRecorder()
    stand_ins = recorder.stand_ins()["threading"]
    make = stand_ins["Lock"]
    assert callable(make)
    first = make()
    second = make()
    with first, second:
        pass
    assert recorder.cycle() == []
    with second, first:
        pass
    assert recorder.cycle() == [
        "test_lock_order.first",
        "test_lock_order.second",
        "test_lock_order.first",
    ]


def test_keys_are_compared_by_one_thread_at_a_time() -> None:
    comparing: list[int] = []
    most = 0

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            nonlocal most
            comparing.append(1)
            most = max(most, len(comparing))
            time.sleep(1e-4)  # lets the others run
            comparing.pop()
            return self is other

    setting = Setting()
    setting.submit(Probe(), Key())  # whom all others are compared with
    keys = [Key() for _ in range(4)]

    def submit_and_check(key: Key) -> None:
        for _ in range(10):
            setting.submit(Probe(), key)
            setting.purgatory.check_and_complete(key)
            setting.purgatory.cancel_for_key(key)

    threads = [threading.Thread(target=submit_and_check, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    setting.purgatory._check()
