"""Closing while others are at work, or stuck: one outcome each, and nothing runs afterwards."""

from __future__ import annotations

import random
import threading
from typing import get_args

import pytest

from purgatory import DelayedOperationPurgatory, Outcome, PurgatoryClosedError
from purgatory.core.closing import ClosePolicy
from tests.unit.core.probe import LONG_MS, Logs, Probe, Setting, run_threads
from timer import InlineExecutor, SystemTimer

POLICIES: tuple[ClosePolicy, ...] = get_args(ClosePolicy)

pytestmark = pytest.mark.usefixtures("no_thread_remains")


@pytest.fixture
def setting() -> Setting:
    return Setting()


# Closing when something is stuck.


def test_second_close_waits_for_the_callbacks_of_the_first() -> None:
    purgatory = DelayedOperationPurgatory("Twice")
    begun, resume, second = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert resume.wait(30)

    operation = Probe(hooks={"on_failure": slow})
    purgatory.try_complete_else_watch(operation, ["a"])
    ended: list[list[str]] = []

    def close() -> None:
        second.set()
        purgatory.close()
        ended.append(list(operation.finished))

    first = threading.Thread(target=purgatory.close)
    first.start()
    assert begun.wait(30)
    again = threading.Thread(target=close)
    again.start()
    assert second.wait(30)
    assert ended == []
    resume.set()
    for thread in (first, again):
        thread.join(30)
    assert ended == [["on_failure"]]


def test_an_interrupted_close_is_finished_by_the_next(setting: Setting) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    first = setting.submit(Probe(hooks={"on_complete": interrupt}), "a")
    second = setting.submit(Probe(), "a")
    with pytest.raises(KeyboardInterrupt):
        setting.purgatory.close("expire")
    assert not second.is_completed
    setting.purgatory.close("leave")
    assert (first.outcome, second.outcome) == (Outcome.FAILED, Outcome.EXPIRED), "the first policy"
    setting.assert_empty()


@pytest.mark.parametrize("inline", [True, False])
def test_stuck_callback_delays_the_close_up_to_its_timeout(inline: bool, logs: Logs) -> None:
    timer = SystemTimer("shared", executor=InlineExecutor()) if inline else None
    purgatory = DelayedOperationPurgatory("Stuck", timer=timer)
    begun, resume = threading.Event(), threading.Event()

    def stick() -> None:
        begun.set()
        assert resume.wait(60)

    operation = Probe(1, hooks={"on_complete": stick})
    purgatory.try_complete_else_watch(operation, ["a"])
    assert begun.wait(30)
    purgatory.close(timeout=0)
    told = [log for log in logs if log["event"] == "close_timed_out"]
    assert [(log["purgatory"], log["in_callbacks"]) for log in told] == [("Stuck", 1)]
    still = {"reaper_still_runs" if inline else "executor_still_runs"}
    assert still <= {log["event"] for log in logs}
    resume.set()
    assert operation.wait(30) is Outcome.EXPIRED
    if timer is not None:
        timer.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_unreleased_lock_delays_the_close_up_to_its_timeout(
    setting: Setting, policy: ClosePolicy
) -> None:
    lock = threading.Lock()
    operation = setting.submit(Probe(lock=lock), "a")
    with lock:
        setting.purgatory.close(policy, timeout=0)
        assert operation.outcome is (Outcome.PENDING if policy == "leave" else Outcome.FAILED)
    if policy != "leave":
        assert "while the operation's lock was taken" in str(operation.error)
        assert operation.finished == ["on_failure"]
    setting.assert_empty()


def test_close_waits_for_a_lock_released_within_its_timeout(setting: Setting) -> None:
    lock = threading.Lock()
    operation = setting.submit(Probe(lock=lock), "a")
    lock.acquire()

    def release_once_tried() -> None:
        while not operation._op_expiry_due:
            pass
        lock.release()

    helper = threading.Thread(target=release_once_tried)
    helper.start()
    setting.purgatory.close("expire", timeout=60)
    helper.join(30)
    assert operation.outcome is Outcome.EXPIRED
    setting.assert_empty()


# Under load.


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_close_under_load_gives_each_operation_one_outcome(
    policy: ClosePolicy, shared: bool, seed: int
) -> None:
    timer = SystemTimer("shared", executor=InlineExecutor()) if shared else None
    purgatory = DelayedOperationPurgatory("Load", timer=timer)
    submitted: list[Probe] = []
    refused: list[Probe] = []
    lock = threading.Lock()
    enough = threading.Event()

    def work(number: int) -> None:
        own = random.Random(10 * seed + number)
        while True:
            operation = Probe(own.choice([1, 5, LONG_MS]), lock=own.choice([None, None, lock]))
            try:
                purgatory.try_complete_else_watch(operation, own.sample(range(5), 2))
            except PurgatoryClosedError:
                refused.append(operation)
                return
            submitted.append(operation)
            operation.ready = own.random() < 0.5
            purgatory.check_and_complete(own.randrange(5))
            if own.random() < 0.1:
                purgatory.cancel_for_key(own.randrange(5))
            if len(submitted) > 100:
                enough.set()

    def close() -> None:
        assert enough.wait(60)
        purgatory.close(policy, timeout=60)
        after_close.append([operation.calls[:] for operation in submitted])

    after_close: list[list[list[str]]] = []
    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    run_threads(*workers, *(threading.Thread(target=close) for _ in range(2)))
    purgatory._check()
    assert (purgatory.watched, purgatory.num_delayed, purgatory.timer.size) == (0, 0, 0)
    assert len(refused) == 3
    assert all(operation.calls == [] for operation in refused)
    for operation in submitted:
        assert_one_end(operation, policy)
    for calls in after_close:  # a worker may append an operation that completed long before
        assert calls == [operation.calls for operation in submitted[: len(calls)]]
    outcomes = purgatory.counters.outcomes
    left = sum(operation.outcome is Outcome.PENDING for operation in submitted)
    uncounted = len(submitted) - left - (sum(outcomes.values()) - outcomes["rejected"])
    # A cancel_for_key that began before the close may cancel operations abandoned meanwhile.
    cancelled = sum(operation.outcome is Outcome.CANCELLED for operation in submitted)
    assert 0 <= uncounted <= (cancelled if policy == "leave" else 0)
    if timer is not None:
        timer.close()


def assert_one_end(operation: Probe, policy: ClosePolicy) -> None:
    finished = {
        Outcome.COMPLETED: ["on_complete"],
        Outcome.EXPIRED: ["on_complete", "on_expiration"],
        Outcome.CANCELLED: [],
        Outcome.FAILED: ["on_failure"],
        Outcome.PENDING: [],
    }
    assert operation.finished == finished[operation.outcome]
    if operation.outcome is Outcome.PENDING:
        assert policy == "leave"
    if operation.outcome is Outcome.FAILED:
        assert policy == "fail"
        assert isinstance(operation.error, PurgatoryClosedError)
