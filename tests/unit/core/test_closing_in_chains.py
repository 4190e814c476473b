"""Closing from deep inside a chain of completions, where callbacks are deferred."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from purgatory import DelayedOperation, Outcome
from purgatory.core.closing import ClosePolicy
from purgatory.core.locks import LockLike
from purgatory.core.trampoline import MAX_DEPTH
from tests.unit.core.probe import Logs, Probe, Setting
from tests.unit.core.test_close import FINISHED_OF, OUTCOME_OF, POLICIES

DEPTHS = [1, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 2 * MAX_DEPTH - 1]
"""At the third and the last, callbacks are deferred; a chain resumes them at depth 2."""


@pytest.fixture
def setting() -> Setting:
    return Setting()


def run_at_depth(
    setting: Setting, depth: int, work: Callable[[], object], lock: threading.Lock | None = None
) -> list[Probe]:
    """Run ``work`` in the last callback of a chain of ``depth`` completions; return the chain."""
    links = [setting.submit(Probe(), ("link", number)) for number in range(depth - 1)]
    links.append(setting.submit(Probe(lock=lock), ("link", depth - 1)))

    def complete(number: int) -> None:
        links[number].ready = True
        setting.purgatory.check_and_complete(("link", number))

    for number, link in enumerate(links[:-1]):
        link.hooks["on_complete"] = partial(complete, number + 1)
    links[-1].hooks["on_complete"] = work
    complete(0)
    assert all(link.finished == ["on_complete"] for link in links)
    return links


def assert_in_time(logs: Logs) -> None:
    assert not [log for log in logs if log["event"] == "close_timed_out"]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("policy", POLICIES)
def test_close_deep_in_a_chain_returns_after_all_callbacks(
    setting: Setting, policy: ClosePolicy, depth: int, logs: Logs
) -> None:
    others = [setting.submit(Probe(), "other", number) for number in range(3)]
    seen: list[tuple[int, list[list[str]]]] = []

    def close() -> None:
        pending = setting.purgatory.close(policy, timeout=30)
        seen.append((pending, [other.finished for other in others]))

    run_at_depth(setting, depth, close)
    assert seen == [(3, [FINISHED_OF[policy]] * 3)], "before the close returned"
    assert {other.outcome for other in others} == {OUTCOME_OF[policy]}
    assert_in_time(logs)
    setting.assert_empty()


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_close_deep_in_a_chain_holds_the_lock_for_callbacks(
    setting: Setting, policy: ClosePolicy, depth: int, reentrant: bool, logs: Logs
) -> None:
    lock: LockLike = threading.RLock() if reentrant else threading.Lock()
    other = setting.submit(Probe(lock=lock), "other")
    held: list[bool] = []
    for stage in ("on_complete", "on_expiration", "on_failure"):
        other.hooks[stage] = lambda: held.append(_is_held(lock))
    run_at_depth(setting, depth, lambda: setting.purgatory.close(policy, timeout=30))
    assert other.outcome is OUTCOME_OF[policy]
    assert held == [True] * len(FINISHED_OF[policy])
    assert not _is_held(lock)
    assert_in_time(logs)
    setting.assert_empty()


def _is_held(lock: LockLike) -> bool:
    """Return whether anybody holds it: asked on another thread, for the reentrant."""
    free: list[bool] = []

    def ask() -> None:
        free.append(lock.acquire(False))
        if free[0]:
            lock.release()

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join()
    return not free[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_close_under_the_lock_of_a_deep_callback_completes(
    setting: Setting, policy: ClosePolicy, logs: Logs
) -> None:
    """The chain begins under a lock that is not reentrant, which pending operations share."""
    lock = threading.Lock()
    other = setting.submit(Probe(lock=lock), "other")
    held: list[bool] = []
    for stage in ("on_complete", "on_failure"):
        other.hooks[stage] = lambda: held.append(lock.locked())
    first = setting.submit(Probe(lock=lock), "first")
    first.ready = True
    first.hooks["on_complete"] = lambda: run_at_depth_inside(
        setting, MAX_DEPTH - 1, lambda: setting.purgatory.close(policy, timeout=30)
    )
    setting.purgatory.check_and_complete("first")
    assert other.outcome is OUTCOME_OF[policy]
    assert other.finished == FINISHED_OF[policy]
    assert held == [True] * (policy != "leave")
    assert not lock.locked()
    assert_in_time(logs)
    setting.assert_empty()


def run_at_depth_inside(setting: Setting, depth: int, work: Callable[[], object]) -> None:
    """As ``run_at_depth``, in a callback: the end of the chain may come after it."""
    links = [Probe(ready=True) for _ in range(depth)]
    for link, following in pairwise(links):
        link.hooks["on_complete"] = following.force_complete
    links[-1].hooks["on_complete"] = work
    links[0].force_complete()


@pytest.mark.parametrize("policy", ["expire", "fail"])
def test_deep_close_waits_for_a_taken_lock(
    setting: Setting, policy: ClosePolicy, logs: Logs
) -> None:
    lock = threading.Lock()
    other = setting.submit(Probe(lock=lock), "other")
    lock.acquire()

    def release_once_closing() -> None:
        while setting.purgatory._closing is None:
            pass
        lock.release()

    helper = threading.Thread(target=release_once_closing)
    helper.start()
    run_at_depth(setting, MAX_DEPTH, lambda: setting.purgatory.close(policy, timeout=30))
    helper.join(30)
    assert other.outcome is OUTCOME_OF[policy]
    assert other.wait(0) is OUTCOME_OF[policy], "the waiting caller was notified"
    assert_in_time(logs)
    setting.assert_empty()


@pytest.mark.parametrize("policy", POLICIES)
def test_close_completes_operations_deferred_for_their_lock(
    setting: Setting, policy: ClosePolicy, logs: Logs
) -> None:
    """A check too deep in the chain was left to its end, and the close comes before that."""
    lock = threading.Lock()
    other = setting.submit(Probe(lock=lock), "other")
    seen: list[Outcome] = []

    def check_and_close() -> None:
        setting.purgatory.check_and_complete("other")
        setting.purgatory.close(policy, timeout=30)
        seen.append(other.outcome)

    run_at_depth(setting, MAX_DEPTH, check_and_close)
    assert seen == [OUTCOME_OF[policy]]
    assert other.finished == FINISHED_OF[policy]
    assert_in_time(logs)
    setting.assert_empty()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [3, 10 * MAX_DEPTH])
def test_callbacks_close_again_without_recursion(
    setting: Setting, policy: ClosePolicy, count: int, logs: Logs
) -> None:
    lock = threading.Lock()
    operations = [
        setting.submit(Probe(lock=lock if number % 3 == 1 else None), number)
        for number in range(count)
    ]
    held: list[bool] = []

    def close_again(locked: bool) -> None:
        held.append(lock.locked() or not locked)
        setting.purgatory.close(policy, timeout=30)

    for number, operation in enumerate(operations):
        for stage in ("on_complete", "on_failure"):
            operation.hooks[stage] = partial(close_again, number % 3 == 1)
    run_at_depth(setting, MAX_DEPTH, lambda: setting.purgatory.close(policy, timeout=30))
    assert {operation.outcome for operation in operations} == {OUTCOME_OF[policy]}
    assert all(operation.finished == FINISHED_OF[policy] for operation in operations)
    assert held == [True] * (count if policy != "leave" else 0)
    assert not lock.locked()
    assert_in_time(logs)
    setting.assert_empty()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_chain_over_two_purgatories_may_close_both(policy: ClosePolicy, logs: Logs) -> None:
    first, second = Setting(), Setting()
    others = [
        setting.submit(Probe(lock=lock), "other", number)
        for setting in (first, second)
        for number, lock in enumerate([None, threading.Lock()])
    ]
    for other in others[:2]:
        for stage in ("on_complete", "on_failure"):
            other.hooks[stage] = lambda: second.purgatory.close(policy, timeout=30)

    def close_both() -> None:
        first.purgatory.close(policy, timeout=30)
        second.purgatory.close(policy, timeout=30)

    run_at_depth(first, MAX_DEPTH, close_both)
    assert {other.outcome for other in others} == {OUTCOME_OF[policy]}
    assert all(other.finished == FINISHED_OF[policy] for other in others)
    assert_in_time(logs)
    for setting in (first, second):
        setting.assert_empty()


@pytest.mark.parametrize("policy", POLICIES)
def test_deep_chains_that_close_do_not_wait_for_each_other(
    setting: Setting, policy: ClosePolicy, logs: Logs
) -> None:
    together = threading.Barrier(2)
    others = [setting.submit(Probe(lock=lock), "o") for lock in (None, threading.Lock())]

    def close() -> None:
        together.wait(30)
        setting.purgatory.close(policy, timeout=60)

    def work() -> None:
        run_at_depth_inside(setting, MAX_DEPTH, close)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert {other.outcome for other in others} == {OUTCOME_OF[policy]}
    assert_in_time(logs)
    setting.assert_empty()


@pytest.mark.parametrize("depth", DEPTHS)
def test_deep_callback_may_wait_for_an_operation_it_completed(setting: Setting, depth: int) -> None:
    setting.purgatory.advance("value", 7)
    other = setting.submit(Probe(), "other")
    waited: list[object] = []

    def complete_and_wait() -> None:
        waited.append(setting.purgatory.wait_for_threshold("value", 5, timeout=30))
        assert other.force_complete()
        waited.append(other.wait(30))
        waited.append(other.finished)

    run_at_depth(setting, depth, complete_and_wait)
    assert waited == [7, Outcome.COMPLETED, ["on_complete"]]
    setting.assert_empty()


def test_wait_deep_in_a_chain_leaves_its_depth_unchanged(setting: Setting) -> None:
    order: list[str] = []
    late = Probe(hooks={"on_complete": lambda: order.append("late")})

    def work() -> None:
        done: DelayedOperation = Probe(ready=True)
        done.force_complete()
        done.wait(30)
        late.force_complete()  # still too deep to be called back here
        order.append("work is over")

    run_at_depth(setting, MAX_DEPTH, work)
    assert order == ["work is over", "late"]
