"""The cases of Kafka's own test of delayed operations, in our words, and with stricter counts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.core.watchers import WatcherList
from tests.unit.core.probe import LONG_MS, Probe, Setting


@pytest.fixture
def setting() -> Setting:
    return Setting()


def on_another_thread(call: Callable[[], object]) -> None:
    """Run ``call`` on a thread of its own, which must end by itself: it may wait for nothing."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "the call waits for something"
    if failures:
        raise failures[0]


@contextmanager
def held_elsewhere(lock: threading.Lock) -> Iterator[None]:
    """Have another thread hold ``lock``, one that knows nothing of operations."""
    held, abandon = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            abandon.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    try:
        yield
    finally:
        abandon.set()
        holder.join(30)


# Satisfaction.


def test_check_completes_the_operation_of_its_key(setting: Setting) -> None:
    purgatory = setting.purgatory
    assert purgatory.check_and_complete("first") == 0, "nothing waits yet"
    first, second = Probe(), Probe()
    assert not purgatory.try_complete_else_watch(first, ["first"])
    assert purgatory.check_and_complete("first") == 0
    assert not purgatory.try_complete_else_watch(second, ["second"])
    assert purgatory.check_and_complete("second") == 0
    first.ready = True
    assert purgatory.check_and_complete("second") == 0, "an event elsewhere"
    assert purgatory.check_and_complete("first") == 1
    assert purgatory.check_and_complete("first") == 0
    second.ready = True
    assert purgatory.check_and_complete("first") == 0
    assert purgatory.check_and_complete("second") == 1
    assert first.finished == second.finished == ["on_complete"]
    setting.assert_empty()


def test_either_of_two_keys_completes_an_operation_once(
    setting: Setting,
) -> None:
    for event, other in [("a", "b"), ("b", "a")]:
        operation = setting.submit(Probe(), "a", "b")
        operation.ready = True
        assert setting.purgatory.check_and_complete(event) == 1
        assert setting.purgatory.check_and_complete(other) == 0
    assert setting.purgatory.counters.checks == 2, "the other key had nobody to check"
    setting.assert_empty()


@pytest.mark.pure
def test_completed_operation_is_watched_on_no_further_key(setting: Setting) -> None:
    """Another thread completes it while it is put on its lists: between the first key and the
    third."""
    operation = Probe()
    completing = threading.Thread(target=operation.force_complete)

    class Interfering:
        """A key that lets the other thread in while it is compared, under the lists' lock."""

        def __hash__(self) -> int:
            return hash("first")

        def __eq__(self, other: object) -> bool:
            if not operation.is_completed and setting.purgatory.watched_keys == 1:
                completing.start()
                while not operation.is_completed:
                    pass
            return self is other

    watched: list[int] = []
    watch = setting.purgatory._state.watchers.watch
    with pytest.MonkeyPatch.context() as patch:

        def watch_and_count(operation: Probe) -> None:
            def watch_and_look() -> None:
                watch(operation)
                watched.append(setting.purgatory.watched)

            with setting.purgatory._state.lock:
                watch_and_look()

        patch.setattr(WatcherList, "watch", lambda _, operation: watch_and_count(operation))
        setting.purgatory.try_complete_else_watch(operation, ["first", Interfering(), "third"])
    completing.join(30)
    assert watched == [0], "on no list any more, before another thread may look at them"
    assert operation.finished == ["on_complete"]
    setting.assert_empty()


# Expiry.


def test_unsatisfied_operation_expires_after_its_delay(
    setting: Setting,
) -> None:
    early, late = setting.submit(Probe(20), "a"), setting.submit(Probe(200_000), "b", "c")
    assert setting.purgatory.watched == 3
    setting.pass_time(19)
    assert not early.is_completed
    setting.pass_time(1)
    assert early.outcome is Outcome.EXPIRED
    assert early.finished == ["on_complete", "on_expiration"]
    assert setting.purgatory.watched == 2, "it left its list"
    late.ready = True
    assert setting.purgatory.check_and_complete("c") == 1
    setting.pass_time(400_000)
    assert late.finished == ["on_complete"], "completed once, never expired"
    setting.assert_empty()


def test_operations_expire_in_the_order_of_their_deadlines(setting: Setting) -> None:
    order: list[int] = []
    delays_ms = [700, 3, 20, 21, 400, 19, 8_001, 8_000]
    for delay_ms in delays_ms:
        operation = Probe(delay_ms)
        operation.hooks["on_expiration"] = lambda delay_ms=delay_ms: order.append(delay_ms)  # type: ignore[misc]
        setting.submit(operation, "a")
    setting.pass_time(10_000)
    assert order == sorted(delays_ms)
    setting.assert_empty()


# Operations that Kafka purges later are gone at once here.


def test_the_sizes_follow_each_completion_without_a_purge(setting: Setting) -> None:
    purgatory = setting.purgatory
    first = setting.submit(Probe(), "a")
    second = setting.submit(Probe(), "a", "b")
    third = setting.submit(Probe(100), "a", "b", "c")
    assert (purgatory.num_delayed, purgatory.watched) == (3, 6)
    second.ready = True
    assert purgatory.check_and_complete("b") == 1
    assert (purgatory.num_delayed, purgatory.watched) == (2, 4)
    first.force_complete()
    assert (purgatory.num_delayed, purgatory.watched) == (1, 3)
    setting.pass_time(100)
    assert third.outcome is Outcome.EXPIRED
    setting.assert_empty()


def test_sizes_are_right_inside_callbacks(setting: Setting) -> None:
    seen: list[tuple[int, int]] = []
    purgatory = setting.purgatory
    setting.submit(Probe(), "a", "b")
    for stage in ("on_complete", "on_expiration"):
        operation = Probe(10)
        operation.hooks[stage] = lambda: seen.append((purgatory.num_delayed, purgatory.watched))
        setting.submit(operation, "a", "b", "c")
        setting.pass_time(10)
    assert seen == [(1, 2), (1, 2)]


# Cancelling by key.


def test_cancel_for_key_returns_the_operations_of_the_key(setting: Setting) -> None:
    purgatory = setting.purgatory
    first, second = setting.submit(Probe(), "a"), setting.submit(Probe(), "a")
    third = setting.submit(Probe(), "b")
    assert purgatory.cancel_for_key("a") == [first, second]
    assert first.outcome is second.outcome is Outcome.CANCELLED
    assert first.finished == second.finished == []
    assert (purgatory.watched, purgatory.num_delayed, setting.timer.size) == (1, 1, 1)
    for operation in (first, second, third):
        operation.ready = True
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.check_and_complete("b") == 1
    setting.pass_time(2 * LONG_MS)
    assert first.finished == second.finished == []
    setting.assert_empty()


# Many threads.


def test_random_events_of_many_threads_complete_everything() -> None:
    """Deadlines stay far off: whatever is not completed by an event would hang, and fail."""
    random_ = random.Random(1)
    keys = list(range(5))
    operations = [Probe(LONG_MS) for _ in range(300)]
    chosen = [random_.sample(keys, random_.randint(1, 3)) for _ in operations]
    with DelayedOperationPurgatory("Random") as purgatory:
        submitted = threading.Barrier(7)

        def submit(number: int) -> None:
            for operation, watched in list(zip(operations, chosen, strict=True))[number::3]:
                purgatory.try_complete_else_watch(operation, watched)
            submitted.wait(30)

        def complete(number: int) -> None:
            order = operations[number::4]
            random.Random(number).shuffle(order)
            for operation in order:
                operation.ready = True
                purgatory.check_and_complete(random.Random(number).choice(keys))
            submitted.wait(30)

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(3)]
        threads += [threading.Thread(target=complete, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for key in keys:
            purgatory.check_and_complete(key)
        assert [operation.wait(30) for operation in operations] == [Outcome.COMPLETED] * 300
        assert all(operation.finished == ["on_complete"] for operation in operations)
        purgatory._check()
        assert (purgatory.watched, purgatory.num_delayed, purgatory.timer.size) == (0, 0, 0)
        assert purgatory.counters.missed_wakeups == 0


def test_random_delays_give_each_operation_one_outcome() -> None:
    random_ = random.Random(2)
    operations = [Probe(random_.randint(1, 20)) for _ in range(400)]
    keys = list(range(4))
    with DelayedOperationPurgatory("Random") as purgatory:

        def work(number: int) -> None:
            own = random.Random(number)
            for operation in operations[number::4]:
                purgatory.try_complete_else_watch(operation, own.sample(keys, own.randint(1, 4)))
                own.choice(operations).ready = True
                purgatory.check_and_complete(own.choice(keys))
            while any(not operation.is_completed for operation in operations[number::4]):
                purgatory.check_and_complete(own.choice(keys))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        ends = [operation.wait(30) for operation in operations]
        assert set(ends) <= {Outcome.COMPLETED, Outcome.EXPIRED}
        for operation, end in zip(operations, ends, strict=True):
            expired = ["on_expiration"] if end is Outcome.EXPIRED else []
            assert operation.finished == ["on_complete", *expired]
        counters = purgatory.counters.outcomes
        assert counters["expired"] == ends.count(Outcome.EXPIRED)
        assert counters["completed"] + counters["immediate"] == ends.count(Outcome.COMPLETED)
        purgatory._check()
        assert (purgatory.watched, purgatory.num_delayed) == (0, 0)


# The user's lock, held by this thread or by another.


def test_check_by_the_holder_of_an_rlock_completes_at_once(
    setting: Setting,
) -> None:
    lock = threading.RLock()
    operation = setting.submit(Probe(lock=lock), "a")
    operation.ready = True
    with lock:
        assert setting.purgatory.check_and_complete("a") == 1
    assert operation.finished == ["on_complete"]
    setting.assert_empty()


@pytest.mark.parametrize("make_lock", [threading.Lock, threading.RLock])
def test_check_under_a_taken_lock_returns_and_is_retried(
    setting: Setting, make_lock: Callable[[], threading.Lock]
) -> None:
    lock = make_lock()
    operation = setting.submit(Probe(lock=lock), "a", "b")
    operation.ready = True
    with held_elsewhere(lock):
        assert setting.purgatory.check_and_complete("a") == 0
        assert not operation.maybe_try_complete()
        setting.pass_time(1_000)  # the retries find the lock taken, again and again
        assert not operation.is_completed
    setting.pass_time(32)
    assert operation.finished == ["on_complete"]
    setting.assert_empty()


def test_submission_under_a_taken_lock_loses_no_event(
    setting: Setting,
) -> None:
    lock = threading.Lock()
    operation = Probe(lock=lock, ready=True)
    with held_elsewhere(lock):
        setting.submit(operation, "a")
        assert operation.calls == []
        assert setting.purgatory.watched == 1
    setting.pass_time(32)
    assert operation.finished == ["on_complete"]
    setting.assert_empty()


def test_expiry_under_a_taken_lock_is_not_lost(setting: Setting) -> None:
    lock = threading.Lock()
    operation = setting.submit(Probe(100, lock=lock), "a")
    with held_elsewhere(lock):
        setting.pass_time(100)
        assert not operation.is_completed
    setting.pass_time(32)
    assert operation.outcome is Outcome.EXPIRED
    assert operation.finished == ["on_complete", "on_expiration"]
    setting.assert_empty()


def test_running_check_takes_over_a_concurrent_one(setting: Setting) -> None:
    """The running check has read the old state; the one that met it knows of the new."""
    operation = setting.submit(Probe(), "a")

    def event_during_the_check() -> None:
        operation.hooks.clear()

        def event() -> None:
            operation.ready = True
            assert setting.purgatory.check_and_complete("a") == 0, "handed over"

        on_another_thread(event)
        operation.ready = False
        operation.hooks["try_complete"] = lambda: setattr(operation, "ready", True)

    operation.hooks["try_complete"] = event_during_the_check
    assert setting.purgatory.check_and_complete("a") == 1
    assert operation.finished == ["on_complete"]
    setting.assert_empty()


# Completion inside try_complete_else_watch.


def test_second_check_of_a_submission_may_complete(setting: Setting) -> None:
    operation = Probe()

    def second_time() -> None:
        operation.ready = operation.calls.count("try_complete") == 2

    operation.hooks["try_complete"] = second_time
    assert setting.purgatory.try_complete_else_watch(operation, ["a", "b"])
    assert operation.calls == ["try_complete", "try_complete", "on_complete"]
    assert setting.purgatory.counters.outcomes["immediate"] == 1
    setting.assert_empty()


@pytest.mark.parametrize("at_check", [1, 2])
def test_operation_may_be_completed_during_its_submission(setting: Setting, at_check: int) -> None:
    operation = Probe()

    def interfere() -> None:
        if operation.calls.count("try_complete") == at_check:
            on_another_thread(operation.force_complete)

    operation.hooks["try_complete"] = interfere
    assert not setting.purgatory.try_complete_else_watch(operation, ["a", "b"]), "not by this call"
    assert operation.outcome is Outcome.COMPLETED
    assert operation.calls == [*["try_complete"] * at_check, "on_complete"]
    assert setting.purgatory.counters.outcomes["completed"] == 1
    setting.assert_empty()


def test_callback_may_take_its_own_reentrant_lock(setting: Setting) -> None:
    """Kafka's group coordinator: one lock for all operations of a group, and for its callers."""
    group_lock = threading.RLock()
    first = setting.submit(Probe(lock=group_lock), "group")
    second = setting.submit(Probe(lock=group_lock), "group")

    def complete_the_other() -> None:
        with group_lock:
            second.ready = True
            setting.purgatory.check_and_complete("group")

    first.hooks["on_complete"] = complete_the_other
    with group_lock:
        first.ready = True
        setting.purgatory.check_and_complete("group")
    assert first.finished == second.finished == ["on_complete"]
    setting.assert_empty()


def check_under_lock(
    purgatory: DelayedOperationPurgatory,
    lock: threading.Lock,
    together: threading.Barrier,
    key: int,
) -> None:
    with lock:
        together.wait(30)
        purgatory.check_and_complete(key)


def test_threads_completing_each_other_under_locks_both_end() -> None:
    """A cycle that deadlocks if a check waits for a lock while another is held."""
    with DelayedOperationPurgatory("Cycle") as purgatory:
        for _ in range(50):
            locks = threading.Lock(), threading.Lock()
            operations = [Probe(lock=lock) for lock in locks]
            for number, operation in enumerate(operations):
                purgatory.try_complete_else_watch(operation, [number])
                operation.ready = True
            together = threading.Barrier(2)

            threads = [
                threading.Thread(
                    target=check_under_lock, args=(purgatory, locks[n], together, 1 - n)
                )
                for n in (0, 1)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert [operation.wait(30) for operation in operations] == [Outcome.COMPLETED] * 2
