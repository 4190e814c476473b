"""The limit of pending operations: a refusal that names it, and that counts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, Outcome, PurgatoryFullError, describe
from purgatory.core.keys import GroupJoinKey, TopicKey, TransactionKey
from purgatory.core.trampoline import MAX_DEPTH
from tests.unit.core.probe import Logs, Probe, Setting


def full_purgatory(limit: int) -> tuple[DelayedOperationPurgatory, list[Probe]]:
    purgatory = DelayedOperationPurgatory("Produce", reaper_enabled=False, max_pending=limit)
    probes = [Probe() for _ in range(limit)]
    for probe in probes:
        assert not purgatory.try_complete_else_watch(probe, ["key"])
    return purgatory, probes


def test_operation_beyond_the_limit_is_refused_and_logged(
    logs: Logs,
) -> None:
    purgatory, _ = full_purgatory(3)
    refused = Probe()
    with pytest.raises(PurgatoryFullError, match=r"'Produce' is full: max_pending=3 .* <Probe"):
        purgatory.try_complete_else_watch(refused, ["key", "other"])
    assert refused.outcome is Outcome.CANCELLED
    assert refused.finished == []
    assert (purgatory.num_delayed, purgatory.watched, purgatory.watched_keys) == (3, 3, 1)
    assert purgatory.counters.outcomes["rejected"] == 1
    assert purgatory.counters.outcomes["cancelled"] == 0
    assert [entry["event"] for entry in logs] == ["purgatory_full"]
    purgatory._check()


def test_a_flood_is_logged_once_a_second(logs: Logs) -> None:
    purgatory, _ = full_purgatory(1)
    for _ in range(100):
        with pytest.raises(PurgatoryFullError):
            purgatory.try_complete_else_watch(Probe(), ["key"])
    assert purgatory.counters.outcomes["rejected"] == 100
    assert 1 <= len(logs) < 20


def test_immediate_completion_needs_no_place() -> None:
    purgatory, _ = full_purgatory(1)
    assert purgatory.try_complete_else_watch(Probe(ready=True), ["key"])


def test_an_operation_in_its_first_check_takes_no_place() -> None:
    purgatory = DelayedOperationPurgatory("Produce", reaper_enabled=False, max_pending=1)
    waiting = Probe()
    first = Probe(
        ready=True,
        hooks={"try_complete": lambda: purgatory.try_complete_else_watch(waiting, ["key"])},
    )
    assert purgatory.try_complete_else_watch(first, ["key"])
    assert waiting.outcome is Outcome.PENDING
    with pytest.raises(PurgatoryFullError):
        purgatory.try_complete_else_watch(Probe(), ["key"])


def test_a_refusal_deep_in_a_chain_is_counted_as_one() -> None:
    purgatory, _ = full_purgatory(1)

    def submit_deeper(depth: int) -> None:
        if depth == 2 * MAX_DEPTH:
            with pytest.raises(PurgatoryFullError):
                purgatory.try_complete_else_watch(Probe(), ["key"])
        else:
            deeper = Probe(ready=True, hooks={"on_complete": lambda: submit_deeper(depth + 1)})
            purgatory.try_complete_else_watch(deeper, ["key"])

    submit_deeper(0)
    counted = {name: count for name, count in purgatory.counters.outcomes.items() if count}
    assert counted == {"immediate": 2 * MAX_DEPTH, "rejected": 1}


def test_freed_place_is_used_again() -> None:
    purgatory, (first,) = full_purgatory(1)
    first.force_complete()
    assert not purgatory.try_complete_else_watch(Probe(), ["key"])


def test_many_threads_never_go_beyond_the_limit() -> None:
    purgatory = DelayedOperationPurgatory("Produce", reaper_enabled=False, max_pending=10)
    most, refused = [0], [0]

    def submit() -> None:
        for _ in range(300):
            probe = Probe()
            try:
                purgatory.try_complete_else_watch(probe, ["key"])
            except PurgatoryFullError:
                refused[0] += 1
            else:
                most[0] = max(most[0], purgatory.watched)
                probe.force_complete()

    threads = [threading.Thread(target=submit) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most[0] <= 10
    assert purgatory.num_delayed == purgatory.watched == 0
    purgatory._check()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"max_pending must be at least 1, .*: {limit}"):
        DelayedOperationPurgatory("Produce", reaper_enabled=False, max_pending=limit)


@pytest.mark.parametrize("limit", [1.5, float("nan"), True, "5"])
def test_a_limit_that_is_no_integer_is_refused(limit: Any) -> None:
    with pytest.raises(TypeError, match="max_pending must be an int, or None for no limit"):
        DelayedOperationPurgatory("limited", reaper_enabled=False, max_pending=limit)


def test_refusal_names_the_operation_as_pending() -> None:
    purgatory = DelayedOperationPurgatory("full", reaper_enabled=False, max_pending=1)
    purgatory.try_complete_else_watch(Probe(), ["a"])
    with pytest.raises(PurgatoryFullError, match="does not take <Probe PENDING"):
        purgatory.try_complete_else_watch(Probe(), ["a"])


@pytest.mark.parametrize(
    ("limit", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_pending_operations_refuses_a_negative_limit(limit: Any, error: type[Exception]) -> None:
    purgatory = DelayedOperationPurgatory("looked at", reaper_enabled=False)
    for call in (purgatory.pending_ends, lambda limit: purgatory.waiting_on("a", limit)):
        with pytest.raises(error, match="limit must be"):
            call(limit)
    assert purgatory.pending_ends(2**70) == ([], [])


def test_keys_are_equal_within_one_type_only() -> None:
    assert GroupJoinKey("g") == GroupJoinKey("g")
    others = [TopicKey("g"), ("g",), TransactionKey("g")]
    assert all(other != GroupJoinKey("g") for other in others)
    assert len({*others, GroupJoinKey("g"), GroupJoinKey("g")}) == 4


READS: list[Callable[[DelayedOperationPurgatory], object]] = [
    lambda one: one.watched,
    lambda one: one.watched_keys,
    lambda one: one.num_delayed,
    lambda one: one.max_pending,
    lambda one: one.oldest_pending_ns,
    lambda one: one.counters,
    lambda one: one.pending_ends(5),
    lambda one: one.waiting_on("a", 5),
    lambda one: one.value("a"),
    lambda one: one.waiting_for_locks(),
    lambda one: one.recent_faults(),
    lambda one: describe([one]),
]


@pytest.mark.parametrize("read", READS)
def test_reading_resumes_no_interrupted_work(
    read: Callable[[DelayedOperationPurgatory], object],
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    setting = Setting()
    first = setting.submit(Probe(), "a")
    others = [setting.submit(Probe(), "a") for _ in range(2)]
    first.hooks["try_complete"] = interrupt
    for one in others:
        one.ready = True
        one.calls.clear()
    with pytest.raises(KeyboardInterrupt):
        setting.purgatory.check_and_complete("a")
    read(setting.purgatory)
    assert [one.calls for one in others] == [[], []]
    assert setting.purgatory.num_delayed == 2
    setting.purgatory.check_and_complete("another")  # an event does
    assert [one.finished for one in others] == [["on_complete"]] * 2


def test_an_uninitialized_operation_is_refused_by_each_call() -> None:
    class Forgetful(Probe):
        def __init__(self) -> None:
            """Calls no other."""

    for name in ("cancel", "force_complete", "maybe_try_complete", "run", "wait"):
        with pytest.raises(AttributeError):
            getattr(Forgetful(), name)()
    with pytest.raises(AttributeError):
        Forgetful().outcome  # noqa: B018


FROZEN = """
import sys, threading, time
sys.setswitchinterval(1e-5)
from purgatory import DelayedOperation, DelayedOperationPurgatory
purgatory = DelayedOperationPurgatory("frozen", reaper_enabled=False)
class Waiting(DelayedOperation):
    def try_complete(self): return False
for _ in range(300): purgatory.try_complete_else_watch(Waiting(10**6), ["k"])
def busy():
    while True: purgatory.waiting_on("k", 5); purgatory.pending_ends(200)
threading.Thread(target=busy, daemon=True).start()
class AtEnd:
    def __del__(self, purgatory=purgatory): purgatory.waiting_on("k", 5)
sys.modules["keeper"] = AtEnd()
time.sleep(0.02)
"""


@pytest.mark.own_process
def test_process_exits_despite_a_frozen_thread_in_a_call() -> None:
    """At exit a daemon thread stops wherever it is; a finalizer then uses the purgatory."""
    root = Path(__file__).parents[3]
    for _ in range(6):
        ended = subprocess.run(
            [sys.executable, "-c", FROZEN],
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
