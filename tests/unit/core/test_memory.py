"""Completed operations are gone at once: from every list, from the timer, from memory."""

from __future__ import annotations

import gc
import traceback
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

import pytest
import structlog

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.core.trampoline import MAX_DEPTH
from tests.proofs.interrupts.own_process import run_in_own_process
from tests.unit.core.probe import LONG_MS, Logs, Probe, Setting
from timer import InlineExecutor, SystemTimer


@pytest.fixture
def setting() -> Setting:
    return Setting()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Let nothing be freed but by the last reference to it: objects are freed at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def check(setting: Setting, operation: Probe) -> None:
    operation.ready = True
    assert setting.purgatory.check_and_complete("b") == 1


def force(setting: Setting, operation: Probe) -> None:
    assert operation.force_complete()


def cancel(setting: Setting, operation: Probe) -> None:
    assert operation.cancel()


def cancel_by_key(setting: Setting, operation: Probe) -> None:
    assert setting.purgatory.cancel_for_key("c") == [operation]


def expire(setting: Setting, operation: Probe) -> None:
    setting.pass_time(LONG_MS)
    assert operation.outcome is Outcome.EXPIRED


def fail_in(stage: str, setting: Setting, operation: Probe) -> None:
    def fail() -> None:
        try:
            raise KeyError("the cause")
        except KeyError as error:
            raise ExceptionGroup("both", [ValueError("one"), error]) from error

    operation.hooks[stage] = fail
    setting.pass_time(LONG_MS)
    assert operation.outcome is Outcome.FAILED


def close(setting: Setting, operation: Probe) -> None:
    setting.purgatory.close("fail")


def leave(setting: Setting, operation: Probe) -> None:
    setting.purgatory.close("leave")


def with_waiter(setting: Setting, operation: Probe) -> None:
    operation.wait(0)
    operation.force_complete()
    assert operation.wait() is Outcome.COMPLETED


ENDS: dict[str, Callable[[Setting, Probe], None]] = {
    "completed by a check": check,
    "completed by force": force,
    "cancelled": cancel,
    "cancelled by key": cancel_by_key,
    "expired": expire,
    "failed at its check": partial(fail_in, "try_complete"),
    "failed at its completion": partial(fail_in, "on_complete"),
    "failed at its expiration": partial(fail_in, "on_expiration"),
    "failed by close": close,
    "left by close": leave,
    "waited for": with_waiter,
}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_completed_operation_is_freed_at_once(
    setting: Setting, end: Callable[[Setting, Probe], None], logs: Logs
) -> None:
    operation = Probe(LONG_MS)
    reference = weakref.ref(operation)
    setting.submit(operation, "a", "b", "c")
    assert (setting.purgatory.watched, setting.timer.size) == (3, 1)
    end(setting, operation)
    setting.assert_empty()
    logs.clear()  # it collects errors with their tracebacks, where a log would print them
    assert reference() is operation
    del operation
    assert reference() is None


class Taken:
    """A lock that is taken; whoever tries it lets ``meddle`` run first."""

    taken = True
    meddle: Callable[[], object] = list

    def acquire(self, blocking: bool = True, /) -> bool:
        self.meddle()
        return not self.taken

    def release(self) -> None:
        pass


def by_a_retry(setting: Setting, lock: Taken, operation: Probe) -> None:
    lock.taken = False
    setting.pass_time(32)


def by_force(setting: Setting, lock: Taken, operation: Probe) -> None:
    operation.force_complete()


def in_the_middle_of_a_retry(setting: Setting, lock: Taken, operation: Probe) -> None:
    lock.meddle = operation.force_complete
    setting.pass_time(32)


def in_the_middle_of_an_event(setting: Setting, lock: Taken, operation: Probe) -> None:
    lock.meddle = operation.force_complete
    setting.purgatory.check_and_complete("a")


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "end", [by_a_retry, by_force, in_the_middle_of_a_retry, in_the_middle_of_an_event]
)
def test_retried_operation_is_freed_at_once(
    setting: Setting, end: Callable[[Setting, Taken, Probe], None]
) -> None:
    """Its retry and it hold each other, until one of the two lets go."""
    lock = Taken()
    operation = setting.submit(Probe(lock=lock, ready=True), "a")
    reference = weakref.ref(operation)
    assert setting.timer.size == 2, "its timeout and its retry"
    end(setting, lock, operation)
    assert operation.outcome is Outcome.COMPLETED
    setting.assert_empty()
    lock.meddle = list  # it held the operation too
    del operation
    assert reference() is None


@pytest.mark.usefixtures("no_collector")
def test_operation_with_a_pending_retry_is_freed_at_once(
    setting: Setting,
) -> None:
    lock = Taken()
    operation = Probe(lock=lock)
    reference = weakref.ref(operation)
    lock.meddle = operation.force_complete
    setting.submit(operation, "a")
    setting.assert_empty()
    lock.meddle = list  # it held the operation too
    del operation
    assert reference() is None


@pytest.mark.usefixtures("no_collector")
def test_threads_of_a_purgatory_keep_no_expired_operation() -> None:
    with DelayedOperationPurgatory("Threads") as purgatory:
        freed: list[weakref.ref[Probe]] = []
        for _ in range(3):
            operation = Probe(1)
            freed.append(weakref.ref(operation))
            purgatory.try_complete_else_watch(operation, ["a"])
            assert operation.wait(30) is Outcome.EXPIRED
            del operation
        sentinel = Probe(1)  # once it has run, the worker is done with those before it
        purgatory.try_complete_else_watch(sentinel, ["a"])
        assert sentinel.wait(30) is Outcome.EXPIRED
        assert [reference() for reference in freed] == [None] * 3


def test_a_kept_error_holds_no_operation_and_has_its_message(setting: Setting, logs: Logs) -> None:
    operations = [setting.submit(Probe(), "a") for _ in range(3)]
    references = [weakref.ref(operation) for operation in operations]
    fail_in("try_complete", setting, operations[0])
    error = operations[0].error
    assert isinstance(error, ExceptionGroup)
    assert logs[0]["exc_info"] is error, "the log got it first, with its traceback"
    logs.clear()
    operations.clear()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert str(error) == "both (2 sub-exceptions)"
    assert error.__traceback__ is error.__cause__.__traceback__ is None


@pytest.mark.parametrize("stage", ["try_complete", "on_complete", "on_expiration"])
def test_error_handled_by_the_caller_keeps_its_traceback(setting: Setting, stage: str) -> None:
    operation = setting.submit(Probe(), "a")

    def raise_from_within() -> None:
        try:
            raise LookupError("of the callback's own")
        except LookupError as error:
            raise ValueError("broken on purpose") from error

    def find_file() -> None:
        try:
            raise OSError("the disk is gone")
        except OSError:
            raise FileNotFoundError("so there is no file") from None

    operation.hooks[stage] = raise_from_within
    try:
        find_file()
    except FileNotFoundError as error:
        handled = error
        depth = len(traceback.extract_tb(handled.__traceback__))
        if stage == "on_expiration":
            setting.pass_time(LONG_MS)
        else:
            operation.ready = stage == "on_complete"
            setting.purgatory.check_and_complete("a")
    assert len(traceback.extract_tb(handled.__traceback__)) == depth == 2
    assert handled.__context__ is not None
    assert handled.__context__.__traceback__ is not None
    kept = operation.error
    assert isinstance(kept, ValueError)
    assert isinstance(kept.__cause__, LookupError)
    assert kept.__traceback__ is kept.__cause__.__traceback__ is None
    assert kept.__cause__.__context__ is None, "it would keep the caller's frames"


def test_callback_may_raise_the_error_its_caller_handles(
    setting: Setting,
) -> None:
    operation = setting.submit(Probe(), "a")
    operation.ready = True
    try:
        raise OSError("the disk is gone")
    except OSError as error:
        handled = error

        def raise_it_again() -> None:
            raise handled

        operation.hooks["on_complete"] = raise_it_again
        setting.purgatory.check_and_complete("a")
    assert operation.error is handled
    assert handled.__traceback__ is not None


def test_an_error_deep_in_a_chain_has_no_traceback_either(setting: Setting) -> None:
    operations = [setting.submit(Probe(), n) for n in range(2 * MAX_DEPTH)]
    for n, operation in enumerate(operations[:-1]):
        operation.ready = True
        operation.hooks["on_complete"] = partial(setting.purgatory.check_and_complete, n + 1)
    operations[-1].hooks["try_complete"] = fail_on_purpose
    setting.purgatory.check_and_complete(0)
    error = operations[-1].error
    assert isinstance(error, ValueError)
    assert error.__traceback__ is None


def fail_on_purpose() -> NoReturn:
    raise ValueError("broken on purpose")


def test_the_log_of_an_error_has_its_traceback() -> None:
    seen: list[bool] = []

    def note(_logger: object, _method: str, entry: structlog.typing.EventDict) -> NoReturn:
        seen.append(entry["exc_info"].__traceback__ is not None)
        raise structlog.DropEvent

    structlog.configure(processors=[note])
    setting = Setting()
    for stage in ("try_complete", "on_complete", "on_expiration"):
        fail_in(stage, setting, setting.submit(Probe(), "a"))
    assert seen == [True] * 3


def test_interrupt_propagated_to_the_caller_keeps_its_traceback(setting: Setting) -> None:
    operation = setting.submit(Probe(), "a")

    def interrupt() -> None:
        raise KeyboardInterrupt

    operation.hooks["try_complete"] = interrupt
    with pytest.raises(KeyboardInterrupt) as info:
        setting.purgatory.check_and_complete("a")
    assert any("interrupt" in str(entry) for entry in info.traceback)


# Many.


def assert_leaves_nothing(setting: Setting) -> None:
    setting.assert_empty()
    assert setting.purgatory._state.watchers.key_count == 0
    assert setting.purgatory._state.pending_operations() == []


def test_100_000_completed_operations_on_a_hot_key_leave_nothing(setting: Setting) -> None:
    """The hot key has no event of its own: in Kafka they pile up there until a purge."""
    watching = setting.submit(Probe(), "hot")
    for number in range(100_000):
        operation = setting.submit(Probe(), "hot", number % 10)
        operation.ready = True
        setting.purgatory.check_and_complete(number % 10)
    assert setting.purgatory.watched == 1
    assert setting.purgatory.watched_keys == 1
    assert setting.timer.size == 1
    watching.force_complete()
    assert_leaves_nothing(setting)


def test_100_000_cold_keys_leave_nothing(setting: Setting) -> None:
    operations = [setting.submit(Probe(), "hot", number) for number in range(100_000)]
    assert setting.purgatory.watched_keys == 100_001
    for operation in operations:
        operation.force_complete()
    assert_leaves_nothing(setting)


# Growth.


def one_round(setting: Setting) -> None:
    """Every kind of end, from several keys, with a taken lock among them."""
    operations = [
        setting.submit(Probe(100), "hot", number, (number, "cold")) for number in range(200)
    ]
    for number, operation in enumerate(operations):
        if number % 4 == 0:
            operation.ready = True
        elif number % 4 == 1:
            operation.cancel()
        elif number % 4 == 2:
            operation.hooks["on_expiration"] = lambda: 1 / 0
    setting.purgatory.check_and_complete("hot")
    setting.pass_time(100)
    setting.assert_empty()


def grow_nothing_over_rounds() -> None:
    """Assert that later rounds use no more than earlier ones; for a process of its own."""
    setting = Setting()
    with structlog.testing.capture_logs() as logs:

        def after_a_round() -> tuple[int, int]:
            one_round(setting)
            logs.clear()
            gc.collect()
            return len(gc.get_objects()), tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        # Tables grow and shrink, each at its own pace: their sizes count.
        rounds = [after_a_round() for _ in range(45)]
    (objects, used_bytes), (later_objects, later_bytes) = (
        map(max, zip(*some, strict=True)) for some in (rounds[3:24], rounds[24:])
    )
    # 4,000 operations later: one object left of each fortieth would be seen.
    assert later_objects - objects < 100
    assert later_bytes - used_bytes < 20_000


@pytest.mark.own_process
def test_memory_does_not_grow_over_rounds_of_every_outcome() -> None:
    run_in_own_process(grow_nothing_over_rounds)


def test_closed_purgatory_is_freed_with_threads_and_timer() -> None:
    purgatory = DelayedOperationPurgatory("Freed")
    operation = Probe(1)
    purgatory.try_complete_else_watch(operation, ["a"])
    operation.wait(30)
    purgatory.close()
    reference, timer = weakref.ref(purgatory), weakref.ref(purgatory.timer)
    del purgatory, operation
    gc.collect()
    assert reference() is None
    assert timer() is None


def test_shared_timer_keeps_nothing_of_a_closed_purgatory() -> None:
    timer = SystemTimer("shared", executor=InlineExecutor())
    purgatory = DelayedOperationPurgatory("Freed", timer=timer)
    for number in range(100):
        purgatory.try_complete_else_watch(Probe(), ["a", number])
    purgatory.close("leave")
    reference = weakref.ref(purgatory)
    assert timer.size == 0
    del purgatory
    gc.collect()
    assert reference() is None
    timer.close()
