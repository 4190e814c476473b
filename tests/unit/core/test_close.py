"""Closing: the outcome of pending operations, and the places that may call it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome, PurgatoryClosedError
from purgatory.core.closing import ClosePolicy
from tests.unit.core.probe import LONG_MS, Logs, Probe, Setting, pass_time, run_threads
from timer import InlineExecutor, ManualClock, SystemTimer, TimerClosedError, TimerTask

POLICIES: tuple[ClosePolicy, ...] = get_args(ClosePolicy)

OUTCOME_OF = {
    "expire": Outcome.EXPIRED,
    "fail": Outcome.FAILED,
    "leave": Outcome.PENDING,
}
FINISHED_OF = {
    "expire": ["on_complete", "on_expiration"],
    "fail": ["on_failure"],
    "leave": [],
}


pytestmark = pytest.mark.usefixtures("no_thread_remains")


@pytest.fixture
def setting() -> Setting:
    return Setting()


# The end of pending operations.


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_completes_pending_operations_as_documented(
    setting: Setting, policy: ClosePolicy
) -> None:
    operations = [setting.submit(Probe(), "a", number) for number in range(3)]
    assert setting.purgatory.close(policy) == 3
    assert {operation.outcome for operation in operations} == {OUTCOME_OF[policy]}
    assert all(operation.finished == FINISHED_OF[policy] for operation in operations)
    setting.assert_empty()
    if policy == "fail":
        assert all(isinstance(operation.error, PurgatoryClosedError) for operation in operations)
        assert "'Manual' was closed" in str(operations[0].error)


@pytest.mark.parametrize("policy", POLICIES)
def test_expire_policy_alone_checks_the_condition_again(
    setting: Setting, policy: ClosePolicy
) -> None:
    operation = setting.submit(Probe(), "a")
    operation.ready = True
    setting.purgatory.close(policy)
    completes = policy == "expire"
    assert operation.outcome is (Outcome.COMPLETED if completes else OUTCOME_OF[policy])
    assert operation.finished == (["on_complete"] if completes else FINISHED_OF[policy])


@pytest.mark.parametrize("policy", POLICIES)
def test_second_close_changes_nothing(setting: Setting, policy: ClosePolicy) -> None:
    operation = setting.submit(Probe(), "a")
    assert setting.purgatory.close(policy) == 1
    calls = list(operation.calls)
    for again in POLICIES:
        assert setting.purgatory.close(again) == 0
    assert operation.calls == calls
    assert operation.outcome is OUTCOME_OF[policy]


@pytest.mark.parametrize("policy", POLICIES)
def test_closed_purgatory_refuses_calls_or_finds_nothing(
    setting: Setting, policy: ClosePolicy
) -> None:
    waiting = setting.submit(Probe(), "a")
    setting.purgatory.close(policy)
    late = Probe(ready=True)
    with pytest.raises(PurgatoryClosedError, match=r"'Manual' was closed: it does not take <Probe"):
        setting.purgatory.try_complete_else_watch(late, ["a"])
    assert late.calls == []
    waiting.ready = True
    assert setting.purgatory.check_and_complete("a") == 0
    assert setting.purgatory.cancel_for_key("a") == []
    assert setting.purgatory.num_delayed == setting.purgatory.watched == 0
    assert setting.purgatory.counters.outcomes["rejected"] == 1


@pytest.mark.parametrize("timeout", [math.inf, None, 1e12, -1])
def test_close_takes_any_number_of_seconds(timeout: float | None) -> None:
    purgatory = DelayedOperationPurgatory("Produce")
    purgatory.try_complete_else_watch(Probe(), ["a"])
    assert purgatory.close(timeout=timeout) == 1


@pytest.mark.parametrize(
    ("timeout", "error"), [(math.nan, ValueError), ("1", TypeError), (True, TypeError)]
)
def test_close_refuses_an_invalid_timeout_and_stays_open(
    setting: Setting, timeout: Any, error: type[Exception]
) -> None:
    waiting = setting.submit(Probe(), "a")
    with pytest.raises(
        error, match="timeout must be a number of seconds, a timedelta, or None for "
    ):
        setting.purgatory.close(timeout=timeout)
    assert not setting.purgatory.is_closed
    assert not waiting.is_completed


@pytest.mark.parametrize("policy", POLICIES)
def test_close_wakes_waiting_threads(setting: Setting, policy: ClosePolicy) -> None:
    operation = setting.submit(Probe(), "a")
    told: list[Outcome] = []
    waiters = [
        threading.Thread(target=lambda: told.append(operation.wait())),  # no timeout: must be woken
        threading.Thread(target=setting.purgatory.close, args=(policy,)),
    ]
    run_threads(*waiters)
    assert told == [OUTCOME_OF[policy]]
    assert operation.wait() is OUTCOME_OF[policy], "a later caller does not wait either"


def test_a_context_manager_closes_also_when_its_block_raises() -> None:
    operations = [Probe(), Probe()]
    with DelayedOperationPurgatory("Sound") as sound:
        sound.try_complete_else_watch(operations[0], ["a"])
    broken = DelayedOperationPurgatory("Broken")

    def use_and_raise() -> None:
        with broken:
            broken.try_complete_else_watch(operations[1], ["a"])
            raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        use_and_raise()
    assert [operation.outcome for operation in operations] == [Outcome.FAILED] * 2
    for purgatory in (sound, broken):
        assert purgatory.reaper is not None
        assert not purgatory.reaper.is_alive


# Abandoned operations.


def test_a_retry_of_an_abandoned_operation_does_not_run(setting: Setting) -> None:
    lock = threading.Lock()
    operation = setting.submit(Probe(lock=lock), "a")
    operation.ready = True
    with lock:
        setting.purgatory.check_and_complete("a")
        calls = list(operation.calls)
        setting.purgatory.close("leave")
    setting.pass_time(2 * LONG_MS)
    assert operation.calls == calls
    setting.assert_empty()


def test_abandoned_operation_cancels_a_retry_being_scheduled(
    setting: Setting,
) -> None:
    lock = threading.Lock()
    operation = setting.submit(Probe(lock=lock), "a")
    add = setting.timer.add

    def close_and_add(task: TimerTask) -> None:
        run_threads(threading.Thread(target=setting.purgatory.close, args=("leave", 0.2)))
        add(task)

    with lock, pytest.MonkeyPatch.context() as patch:
        patch.setattr(setting.timer, "add", close_and_add)
        setting.purgatory.check_and_complete("a")
    assert operation.outcome is Outcome.PENDING
    setting.assert_empty()


def test_abandoned_operation_is_unchecked_but_completable(
    setting: Setting,
) -> None:
    operation = setting.submit(Probe(), "a", "b")
    calls = list(operation.calls)
    setting.purgatory.close("leave")
    operation.ready = True
    assert not operation.maybe_try_complete(), "a check that began before the close"
    operation.run()  # an expiry that began before it
    assert operation.calls == calls
    assert operation.force_complete()
    assert operation.wait() is Outcome.COMPLETED
    assert setting.purgatory.counters.outcomes["completed"] == 0, "no longer the purgatory's"
    setting.assert_empty()


@pytest.mark.parametrize(
    "at",
    [pytest.param("before the first check", marks=pytest.mark.pure), "first check", "second check"],
)
def test_operation_abandoned_during_submission_is_on_no_list(setting: Setting, at: str) -> None:
    operation = Probe(100)
    purgatory = setting.purgatory
    if at == "before the first check":
        check = operation._op_own

        def close_first(me: list[int], watch: Callable[[DelayedOperation], object]) -> bool:
            patch.undo()
            run_threads(threading.Thread(target=purgatory.close, args=("leave",)))
            return check(me, watch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Probe, "_op_own", lambda _, *args: close_first(*args))
            assert not purgatory.try_complete_else_watch(operation, ["a"])
    else:

        def close() -> None:
            if operation.calls.count("try_complete") == (1 if at == "first check" else 2):
                purgatory.close("leave")

        operation.hooks["try_complete"] = close
        assert not purgatory.try_complete_else_watch(operation, ["a"])
    setting.assert_empty()
    setting.pass_time(1_000)
    assert operation.outcome is Outcome.PENDING
    assert operation.finished == []


def test_operation_abandoned_in_its_expiry_check_stays_pending(
    setting: Setting,
) -> None:
    operation = setting.submit(Probe(100), "a")
    operation.hooks["try_complete"] = lambda: setting.purgatory.close("leave")
    setting.pass_time(100)
    assert operation.outcome is Outcome.PENDING
    assert operation.finished == []
    setting.assert_empty()


def test_abandoning_close_waits_for_a_running_check(setting: Setting) -> None:
    checking, closing = threading.Event(), threading.Event()
    operation = setting.submit(Probe(), "a")

    def check_slowly() -> None:
        checking.set()
        assert closing.wait(30)
        operation.ready = True

    operation.hooks["try_complete"] = check_slowly
    checker = threading.Thread(target=setting.purgatory.check_and_complete, args=("a",))
    checker.start()
    assert checking.wait(30)

    def release_once_closed() -> None:
        while setting.purgatory._closing is None:
            pass
        closing.set()

    helper = threading.Thread(target=release_once_closed)
    helper.start()
    setting.purgatory.close("leave")
    assert operation.finished == ["on_complete"], "when close returns, it has run"
    for thread in (helper, checker):
        thread.join(30)
    setting.assert_empty()


@pytest.mark.parametrize("end", [DelayedOperation.cancel, DelayedOperation.force_complete])
def test_close_waits_for_the_check_of_a_completed_operation(
    setting: Setting, end: Callable[[DelayedOperation], bool]
) -> None:
    operation = setting.submit(Probe(), "a")
    closer = threading.Thread(target=setting.purgatory.close)
    returned_early = []

    def complete_and_close() -> None:
        run_threads(threading.Thread(target=end, args=(operation,)))
        closer.start()
        closer.join(0.2)
        returned_early.append(not closer.is_alive())

    operation.hooks["try_complete"] = complete_and_close
    setting.purgatory.check_and_complete("a")
    closer.join(30)
    assert returned_early == [False]
    setting.assert_empty()


def test_close_waits_for_a_check_up_to_its_timeout(setting: Setting) -> None:
    operation = setting.submit(Probe(), "a")

    def complete_and_close() -> None:
        run_threads(threading.Thread(target=operation.cancel))
        run_threads(threading.Thread(target=setting.purgatory.close, args=("expire", 0)))
        setting.purgatory.close()  # nor for itself

    operation.hooks["try_complete"] = complete_and_close
    setting.purgatory.check_and_complete("a")
    setting.assert_empty()


class TakenLock:
    """A lock that others have, and that does something when it is tried."""

    def __init__(self) -> None:
        self.when_tried: Callable[[], object] = int

    def acquire(self, blocking: bool = True, /) -> bool:
        self.when_tried()
        return False

    def release(self) -> None:
        raise AssertionError("it was never taken")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("by", ["a check", "a retry", "its submission"])
def test_timed_out_close_fails_an_operation_being_checked(policy: ClosePolicy, by: str) -> None:
    """The close can't be its server then, and the other one doesn't get the lock."""
    clock = ManualClock()
    timer = SystemTimer("taken", clock=clock)
    purgatory = DelayedOperationPurgatory("Taken", timer, reaper_enabled=False)
    lock = TakenLock()
    operation = Probe(lock=lock)

    def close() -> None:
        lock.when_tried = int
        run_threads(threading.Thread(target=purgatory.close, args=(policy, 0)))
        timer.close()

    if by == "its submission":
        lock.when_tried = close
    purgatory.try_complete_else_watch(operation, ["a"])
    if by == "a check":
        lock.when_tried = close
        purgatory.check_and_complete("a")
    elif by == "a retry":
        retried = threading.Event()

        def close_at_retry() -> None:
            close()
            retried.set()

        lock.when_tried = close_at_retry
        pass_time(clock, timer, 1)
        assert retried.wait(30)
    told = threading.Event()
    operation.call_when_completed(told.set)
    assert told.wait(30)
    assert operation.outcome is (Outcome.PENDING if policy == "leave" else Outcome.FAILED)
    assert operation.finished == ([] if policy == "leave" else ["on_failure"])
    assert purgatory.num_delayed == purgatory.watched == 0
    purgatory._check()


# Closing from a callback.


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stage", ["try_complete", "on_complete", "on_expiration", "on_failure"])
def test_a_callback_may_close(
    setting: Setting, policy: ClosePolicy, stage: str, logs: Logs
) -> None:
    other = setting.submit(Probe(), "a")
    operation = setting.submit(Probe(100), "a")

    def close() -> None:
        setting.purgatory.close(policy, timeout=30)

    def fail() -> None:
        raise LookupError

    operation.hooks[stage] = close
    if stage == "on_failure":
        operation.hooks["on_complete"] = fail
    setting.pass_time(100)
    assert other.outcome is OUTCOME_OF[policy]
    assert other.finished == FINISHED_OF[policy]
    if stage == "on_failure":
        assert operation.outcome is Outcome.FAILED
    elif (policy, stage) != ("leave", "try_complete"):
        assert operation.outcome is Outcome.EXPIRED
    assert not [log for log in logs if log["event"] == "close_timed_out"]
    setting.assert_empty()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stage", ["try_complete", "on_complete"])
def test_a_callback_may_close_under_a_lock_that_others_share(
    setting: Setting, policy: ClosePolicy, stage: str, logs: Logs
) -> None:
    lock = threading.Lock()
    other = setting.submit(Probe(lock=lock), "a")
    operation = setting.submit(Probe(lock=lock), "b")
    held: list[bool] = []
    for finish in ("on_complete", "on_failure"):
        other.hooks[finish] = lambda: held.append(lock.locked())
    operation.hooks[stage] = lambda: setting.purgatory.close(policy, timeout=30)
    operation.ready = True
    setting.purgatory.check_and_complete("b")
    assert operation.outcome is Outcome.COMPLETED
    assert other.outcome is OUTCOME_OF[policy]
    assert other.finished == FINISHED_OF[policy]
    assert held == [True] * (policy != "leave")
    assert not lock.locked()
    assert not [log for log in logs if log["event"] == "close_timed_out"]
    setting.assert_empty()


@pytest.mark.parametrize("policy", POLICIES)
def test_callback_may_close_a_purgatory_of_the_same_lock(
    setting: Setting, policy: ClosePolicy, logs: Logs
) -> None:
    lock, another = threading.Lock(), Setting()
    other = another.submit(Probe(lock=lock), "a")
    for finish in ("on_complete", "on_failure"):
        other.hooks[finish] = lambda: lock.locked() or pytest.fail("called without its lock")
    operation = setting.submit(Probe(lock=lock), "b")
    operation.hooks["on_complete"] = lambda: another.purgatory.close(policy, timeout=30)
    operation.ready = True
    setting.purgatory.check_and_complete("b")
    assert operation.outcome is Outcome.COMPLETED
    assert other.outcome is OUTCOME_OF[policy]
    assert other.finished == FINISHED_OF[policy]
    assert not lock.locked()
    assert not [log for log in logs if log["event"] == "close_timed_out"]
    another.assert_empty()


def test_close_under_the_users_lock_does_not_wait_for_itself(setting: Setting, logs: Logs) -> None:
    lock = threading.Lock()
    operation = setting.submit(Probe(lock=lock), "a")
    with lock:
        operation.safe_try_complete_or_else(lambda: setting.purgatory.close("fail", timeout=10))
    setting.pass_time(100)
    assert not [log for log in logs if log["event"] == "close_timed_out"]
    assert (operation.outcome, operation.finished) == (Outcome.FAILED, ["on_failure"])
    setting.assert_empty()


def test_an_observer_may_close() -> None:
    purgatories: list[DelayedOperationPurgatory] = []
    observed = Setting(on_completed=lambda *_: purgatories[0].close())
    purgatories.append(observed.purgatory)
    operations = [observed.submit(Probe(), "a") for _ in range(3)]
    operations[0].force_complete()
    assert [operation.outcome for operation in operations] == [
        Outcome.COMPLETED,
        Outcome.FAILED,
        Outcome.FAILED,
    ]
    observed.assert_empty()


def test_the_reapers_own_callback_may_close() -> None:
    for inline in (True, False):
        timer = SystemTimer("shared", executor=InlineExecutor()) if inline else None
        purgatory = DelayedOperationPurgatory("FromReaper", timer=timer)
        operation = Probe(1, hooks={"on_expiration": purgatory.close})
        purgatory.try_complete_else_watch(operation, ["a"])
        assert operation.wait(30) is Outcome.EXPIRED
        if timer is not None:
            timer.close()


@pytest.mark.parametrize("stage", ["try_complete", "on_complete"])
def test_callbacks_that_close_do_not_wait_for_each_other(stage: str, logs: Logs) -> None:
    purgatory = DelayedOperationPurgatory("Cross")
    together = threading.Barrier(2)

    def close(number: int) -> None:
        operations[number].hooks.clear()
        together.wait(30)
        purgatory.close(timeout=60)

    operations = [Probe(), Probe()]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [number])
        operation.ready = True
        operation.hooks[stage] = partial(close, number)
    run_threads(
        *(threading.Thread(target=purgatory.check_and_complete, args=(key,)) for key in range(2))
    )
    assert [operation.outcome for operation in operations] == [Outcome.COMPLETED] * 2
    purgatory.close()
    assert not [log for log in logs if log["event"] == "close_timed_out"]


# A timer that others use too.


@pytest.mark.parametrize("policy", POLICIES)
def test_a_shared_timer_stays_open_for_its_other_users(policy: ClosePolicy) -> None:
    timer = SystemTimer("shared")
    first = DelayedOperationPurgatory("First", timer=timer)
    second = DelayedOperationPurgatory("Second", timer=timer)
    closed, open_ = Probe(), Probe(1)
    first.try_complete_else_watch(closed, ["a"])
    first.close(policy)
    assert timer.size == 0
    second.try_complete_else_watch(open_, ["a"])
    assert open_.wait(30) is Outcome.EXPIRED
    second.close()
    timer.close()


def test_a_timer_of_its_own_closes_with_it() -> None:
    purgatory = DelayedOperationPurgatory("Own")
    purgatory.close()
    with pytest.raises(TimerClosedError):
        purgatory.timer.add(Probe(1))
