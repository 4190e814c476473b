"""The deadlocks and endless waits that Kafka has had, with real threads: here all come through.

Each story is brought about step by step, by events that threads wait for; where it could hang, a
join with a wide limit tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from tests.unit.core.probe import LONG_MS, Probe, Setting

PATIENCE_S = 30.0

pytestmark = pytest.mark.usefixtures("no_thread_remains")


class Worker:
    """A thread that runs one call; ``result`` waits for it, and fails if it waits for ever."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._result: object = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def result(self) -> object:
        """Return the call's result, or raise its error."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the thread waits for ever"
        if self._error is not None:
            raise self._error
        return self._result

    def _work(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error


def meet(event: threading.Event) -> None:
    """Wait until another thread has got there."""
    assert event.wait(PATIENCE_S), "the other thread does not get there"


@contextmanager
def held_elsewhere(lock: threading.Lock) -> Iterator[None]:
    """Have another thread hold ``lock`` for as long as the block takes."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            meet(done)

    holder = Worker(hold)
    meet(held)
    try:
        yield
    finally:
        done.set()
        holder.result()


# KAFKA-5970, and the story told above Kafka's tryCompleteElseWatch: completing one operation, under
# its lock, checks the other's key, and the other way round.


def test_operations_that_check_each_others_key_complete() -> None:
    setting = Setting()
    both_inside = threading.Barrier(2)
    first = setting.submit(Probe(lock=threading.Lock()), "first")
    second = setting.submit(Probe(lock=threading.Lock()), "second")

    def check_of(key: str) -> Callable[[], object]:
        def check() -> None:
            both_inside.wait(PATIENCE_S)  # each holds its own lock, and now wants the other's
            setting.purgatory.check_and_complete(key)

        return check

    first.hooks["on_complete"] = check_of("second")
    second.hooks["on_complete"] = check_of("first")
    first.ready = second.ready = True
    workers = [
        Worker(lambda: setting.purgatory.check_and_complete("first")),
        Worker(lambda: setting.purgatory.check_and_complete("second")),
    ]
    assert [worker.result() for worker in workers] == [1, 1]
    assert first.finished == second.finished == ["on_complete"]
    setting.assert_empty()


def test_waiting_operations_of_each_others_keys_complete() -> None:
    """As above, but each call finds another's check under way: it is handed over."""
    setting = Setting()
    first = setting.submit(Probe(), "first")
    second = setting.submit(Probe(), "second")
    both_inside = threading.Barrier(2)

    def check_of(other: Probe, key: str) -> Callable[[], object]:
        def check() -> None:
            if not other.ready:
                both_inside.wait(PATIENCE_S)
                other.ready = True
                setting.purgatory.check_and_complete(key)

        return check

    first.hooks["try_complete"] = check_of(second, "second")
    second.hooks["try_complete"] = check_of(first, "first")
    workers = [
        Worker(lambda: setting.purgatory.check_and_complete("first")),
        Worker(lambda: setting.purgatory.check_and_complete("second")),
    ]
    for worker in workers:
        worker.result()
    assert first.finished == second.finished == ["on_complete"]
    setting.assert_empty()


# KAFKA-2253, KAFKA-3994: watching or completing while a list is being gone through.


def test_completion_may_change_the_key_being_checked() -> None:
    setting = Setting()
    purgatory = setting.purgatory
    operations = [setting.submit(Probe(), "key", number) for number in range(4)]
    late = Probe()

    def use_the_key() -> None:
        purgatory.try_complete_else_watch(late, ["key", "late"])
        purgatory.check_and_complete("key")
        purgatory.cancel_for_key(3)

    operations[0].hooks["on_complete"] = use_the_key
    for operation in operations[:3]:
        operation.ready = True
    Worker(lambda: purgatory.check_and_complete("key")).result()
    outcomes = [operation.outcome for operation in operations]
    assert outcomes == [*[Outcome.COMPLETED] * 3, Outcome.CANCELLED]
    assert purgatory.num_delayed == 1
    assert late.cancel()
    setting.assert_empty()


def test_thread_may_submit_to_a_key_with_a_stuck_callback() -> None:
    setting = Setting()
    purgatory = setting.purgatory
    inside, resume = threading.Event(), threading.Event()

    def stay() -> None:
        inside.set()
        meet(resume)

    slow = setting.submit(Probe(hooks={"on_complete": stay}), "key")
    slow.ready = True
    completer = Worker(lambda: purgatory.check_and_complete("key"))
    meet(inside)
    other = Probe()

    def use_the_key() -> None:
        assert not purgatory.try_complete_else_watch(other, ["key"])
        other.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert purgatory.num_delayed == 0
        assert purgatory.counters.outcomes["completed"] == 1

    Worker(use_the_key).result()
    assert other.outcome is Outcome.COMPLETED
    resume.set()
    assert completer.result() == 1
    setting.assert_empty()


# KAFKA-6042, KAFKA-7697: a callback takes a lock that the notifier holds; the notifier waits for
# the operation that the callback belongs to.


def test_callback_may_take_a_lock_that_a_notifier_holds() -> None:
    setting = Setting()
    group_lock = threading.Lock()
    inside, notified = threading.Event(), threading.Event()

    def want_the_group() -> None:
        inside.set()
        with group_lock:
            pass

    operation = setting.submit(Probe(hooks={"on_complete": want_the_group}), "key")
    operation.ready = True

    def notify_under_the_group_lock() -> object:
        with group_lock:
            completer = Worker(lambda: setting.purgatory.check_and_complete("key"))
            meet(inside)
            count = setting.purgatory.check_and_complete("key")
            operation.maybe_try_complete()
            notified.set()
        return (count, completer.result())

    assert Worker(notify_under_the_group_lock).result() == (0, 1)
    assert notified.is_set()
    assert operation.finished == ["on_complete"]
    setting.assert_empty()


def test_notifier_with_the_lock_is_unblocked_and_heard() -> None:
    """KAFKA-6653 and KAFKA-8334: the lock is the group's, and not reentrant."""
    setting = Setting()
    group_lock = threading.Lock()
    operation = setting.submit(Probe(lock=group_lock), "key")

    def notify_under_the_lock() -> object:
        with group_lock:
            operation.ready = True
            return setting.purgatory.check_and_complete("key")

    assert Worker(notify_under_the_lock).result() == 0, "handed over to a retry"
    setting.pass_time(1)
    assert operation.outcome is Outcome.COMPLETED
    setting.assert_empty()


@pytest.mark.parametrize("call", ["check", "submit", "force", "cancel", "cancel_for_key", "expire"])
def test_no_call_waits_for_a_users_lock_that_is_held_for_long(call: str) -> None:
    setting = Setting()
    purgatory = setting.purgatory
    lock = threading.Lock()
    operation = Probe(500, lock=lock)
    if call != "submit":
        setting.submit(operation, "key")
    operation.ready = True
    calls: dict[str, Callable[[], object]] = {
        "check": lambda: purgatory.check_and_complete("key"),
        "submit": lambda: purgatory.try_complete_else_watch(operation, ["key"]),
        "force": operation.force_complete,
        "cancel": operation.cancel,
        "cancel_for_key": lambda: purgatory.cancel_for_key("key"),
        "expire": lambda: setting.pass_time(500),
    }
    with held_elsewhere(lock):
        Worker(calls[call]).result()
        completed_at_once = operation.is_completed
    assert completed_at_once == (call in ("force", "cancel", "cancel_for_key"))
    setting.pass_time(100)
    cancelled = call in ("cancel", "cancel_for_key")
    assert operation.outcome is (Outcome.CANCELLED if cancelled else Outcome.COMPLETED)
    assert operation.finished == ([] if cancelled else ["on_complete"])
    setting.assert_empty()


def test_contended_lock_loses_no_completion() -> None:
    setting = Setting()
    lock = threading.Lock()
    operation = setting.submit(Probe(lock=lock), "key")
    operation.ready = True
    for _ in range(20):
        with held_elsewhere(lock):
            setting.purgatory.check_and_complete("key")
            setting.pass_time(64)
            assert operation.outcome is Outcome.PENDING
            assert setting.timer.size == 2, "its timeout, and one retry, however many events came"
    setting.pass_time(32)
    assert operation.outcome is Outcome.COMPLETED
    assert operation.finished == ["on_complete"]
    setting.assert_empty()


# The same on a purgatory with its own threads.


def test_long_held_lock_delays_only_its_operation() -> None:
    lock = threading.Lock()
    with DelayedOperationPurgatory("Deadlocks") as purgatory:
        locked, free = Probe(1, lock=lock), Probe(5)
        with held_elsewhere(lock):
            purgatory.try_complete_else_watch(locked, ["key"])
            purgatory.try_complete_else_watch(free, ["key"])
            assert free.wait(PATIENCE_S) is Outcome.EXPIRED
            assert not locked.is_completed
        assert locked.wait(PATIENCE_S) is Outcome.EXPIRED
        assert locked.finished == free.finished == ["on_complete", "on_expiration"]


def test_worker_callback_may_wait_for_a_purgatory_user() -> None:
    """An expiry that waits for another thread's submit, check and cancel: none needs the worker."""
    with DelayedOperationPurgatory("Deadlocks") as purgatory:
        expiring, submitted = threading.Event(), threading.Event()

        def wait_for_the_user() -> None:
            expiring.set()
            meet(submitted)

        first = Probe(1, hooks={"on_expiration": wait_for_the_user})
        purgatory.try_complete_else_watch(first, ["key"])
        meet(expiring)
        second, third = Probe(LONG_MS), Probe(LONG_MS)
        purgatory.try_complete_else_watch(second, ["key"])
        purgatory.try_complete_else_watch(third, ["other"])
        second.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert purgatory.cancel_for_key("other") == [third]
        submitted.set()
        assert first.wait(PATIENCE_S) is Outcome.EXPIRED


def test_threads_completing_each_others_keys_all_end() -> None:
    threads, rounds = 4, 100
    with DelayedOperationPurgatory("Deadlocks") as purgatory:
        locks = [threading.Lock() for _ in range(threads)]
        operations: list[Probe] = []

        def work(index: int) -> None:
            following = (index + 1) % threads

            def check_the_next() -> None:
                purgatory.check_and_complete(following)

            for _ in range(rounds):
                operation = Probe(LONG_MS, locks[index], hooks={"on_complete": check_the_next})
                operations.append(operation)
                purgatory.try_complete_else_watch(operation, [index, following])
                with locks[following]:
                    operation.ready = True
                    purgatory.check_and_complete(index)

        workers = [Worker(lambda index=index: work(index)) for index in range(threads)]  # type: ignore[misc]
        for worker in workers:
            worker.result()
        assert [operation.wait(PATIENCE_S) for operation in operations] == (
            [Outcome.COMPLETED] * threads * rounds
        ), "each event was told of, so none may wait for its timeout"
        assert all(operation.finished == ["on_complete"] for operation in operations)
        purgatory._check()
