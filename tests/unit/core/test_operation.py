"""A delayed operation by itself: outcomes, errors, waiting, and refusals."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest

from purgatory import DelayedOperation, Outcome
from tests.unit.core.probe import LONG_MS, Probe, Setting


class WholeNumber:
    """An integer of another library."""

    def __index__(self) -> int:
        return 250


@pytest.mark.parametrize(
    "delay_ms",
    [True, False, 1.0, 2.5, float("nan"), float("inf"), "250", b"1", [], Fraction(3)],
    ids=repr,
)
def test_a_delay_that_is_no_integer_is_refused_by_value(delay_ms: object) -> None:
    with pytest.raises(TypeError, match="delay_ms must be a whole number of milliseconds") as info:
        Probe(delay_ms)  # type: ignore[arg-type]
    assert repr(delay_ms) in str(info.value)
    assert type(delay_ms).__name__ in str(info.value)


@pytest.mark.parametrize("lock", [True, "lock", threading.Lock, threading.RLock, object()])
def test_an_object_that_is_no_lock_is_refused_by_value(lock: object) -> None:
    with pytest.raises(TypeError, match="lock must have acquire and release") as info:
        Probe(lock=lock)  # type: ignore[arg-type]
    assert repr(lock) in str(info.value)


def test_an_integer_of_another_library_is_a_delay() -> None:
    operation = Probe(WholeNumber())  # type: ignore[arg-type]
    assert operation.delay_ms == 250
    assert type(operation.delay_ms) is int


def test_an_operation_without_a_condition_is_abstract() -> None:
    class Unfinished(DelayedOperation):
        pass

    with pytest.raises(TypeError, match="try_complete"):
        Unfinished(1)  # type: ignore[abstract]


def test_force_complete_wins_once() -> None:
    operation = Probe()
    assert (operation.outcome, operation.is_completed, operation.error) == (
        Outcome.PENDING,
        False,
        None,
    )
    assert operation.force_complete()
    assert not operation.force_complete()
    assert not operation.cancel()
    operation.run()
    assert not operation.maybe_try_complete()
    assert operation.calls == ["on_complete"]
    assert operation.outcome is Outcome.COMPLETED
    assert operation.is_completed


def test_cancel_wins_once_and_calls_nothing() -> None:
    operation = Probe(ready=True)
    assert operation.cancel()
    assert not operation.cancel()
    assert not operation.force_complete()
    assert not operation.maybe_try_complete()
    operation.run()
    assert operation.calls == []
    assert operation.outcome is Outcome.CANCELLED


def test_expiry_checks_again_and_calls_both_callbacks() -> None:
    operation = Probe()
    operation.run()
    assert operation.calls == ["try_complete", "on_complete", "on_expiration"]
    assert operation.outcome is Outcome.EXPIRED


def test_an_expiry_that_finds_the_condition_true_completes() -> None:
    operation = Probe(ready=True)
    operation.run()
    assert operation.calls == ["try_complete", "on_complete"]
    assert operation.outcome is Outcome.COMPLETED


def test_check_returns_whether_it_completed_the_operation() -> None:
    operation = Probe()
    assert not operation.maybe_try_complete()
    operation.ready = True
    assert operation.maybe_try_complete()
    assert not operation.maybe_try_complete()
    assert operation.calls == ["try_complete", "try_complete", "on_complete"]


def test_callbacks_see_the_outcome_of_their_operation() -> None:
    seen: list[Outcome] = []
    expiring = Probe(hooks={"on_complete": lambda: seen.append(expiring.outcome)})
    expiring.run()
    completing = Probe(hooks={"on_complete": lambda: seen.append(completing.outcome)})
    completing.force_complete()
    assert seen == [Outcome.EXPIRED, Outcome.COMPLETED]


def test_safe_try_complete_or_else_checks_calls_and_checks_again() -> None:
    operation = Probe()
    assert not operation.safe_try_complete_or_else(lambda: operation.calls.append("f"))
    assert operation.calls == ["try_complete", "f", "try_complete"]


def test_safe_try_complete_or_else_skips_the_function_if_done() -> None:
    operation = Probe(ready=True)
    assert operation.safe_try_complete_or_else(lambda: operation.calls.append("f"))
    assert operation.calls == ["try_complete", "on_complete"]


def test_safe_try_complete_or_else_sees_a_change_in_between() -> None:
    operation = Probe()

    def event() -> None:
        operation.ready = True

    assert operation.safe_try_complete_or_else(event)
    assert operation.calls == ["try_complete", "try_complete", "on_complete"]


def test_safe_try_complete_or_else_holds_the_users_lock() -> None:
    lock = threading.Lock()
    held: list[bool] = []
    operation = Probe(
        lock=lock,
        hooks={
            "try_complete": lambda: held.append(lock.locked()),
            "on_complete": lambda: held.append(lock.locked()),
        },
    )
    assert not operation.safe_try_complete_or_else(lambda: held.append(lock.locked()))
    operation.ready = True
    assert operation.maybe_try_complete()
    assert held == [True] * 5
    assert not lock.locked()


def test_error_of_the_function_releases_the_locks() -> None:
    lock = threading.Lock()
    operation = Probe(lock=lock)

    def broken() -> None:
        raise LookupError("broken on purpose")

    with pytest.raises(LookupError, match="broken on purpose"):
        operation.safe_try_complete_or_else(broken)
    assert not lock.locked()
    operation.ready = True
    assert operation.maybe_try_complete(), "the private lock is free too"


def test_true_condition_without_force_complete_is_an_error() -> None:
    class Forgetful(Probe):
        def try_complete(self) -> bool:
            return True

    operation = Forgetful()
    assert not operation.maybe_try_complete()
    assert operation.outcome is Outcome.FAILED
    assert "Forgetful.try_complete returned True without force_complete" in str(operation.error)
    assert operation.calls == ["on_failure"]


class ReturnsWhatItLikes(Probe):
    """Completes once ready, and does not return the result of ``force_complete``."""

    answer: object = None
    how = "force_complete"

    def try_complete(self) -> bool:
        if self.ready:
            getattr(self, self.how)()
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize("answer", [None, 0, "", [], True])
def test_completion_counts_even_if_try_complete_returns_false(answer: object) -> None:
    setting = Setting()
    checked, submitted, expired = (ReturnsWhatItLikes(delay_ms=8) for _ in range(3))
    for operation in (checked, submitted, expired):
        operation.answer = answer if operation is submitted else None
    setting.submit(checked, "a")
    checked.answer, checked.ready = answer, True
    assert setting.purgatory.check_and_complete("a") == 1
    submitted.ready = True
    assert setting.purgatory.try_complete_else_watch(submitted, ["a"])
    setting.submit(expired, "a")
    expired.answer, expired.ready = answer, True
    setting.pass_time(8)
    for operation in (checked, submitted, expired):
        assert (operation.outcome, operation.finished) == (Outcome.COMPLETED, ["on_complete"])
    counters = setting.purgatory.counters
    assert (counters.outcomes["completed"], counters.outcomes["immediate"]) == (2, 1)
    assert counters.missed_wakeups == 1
    setting.assert_empty()


@pytest.mark.parametrize("answer", [None, 0, False])
def test_a_check_that_completed_nothing_counts_nothing(answer: object) -> None:
    setting = Setting()
    operation = ReturnsWhatItLikes()
    operation.answer = answer
    setting.submit(operation, "a")
    assert setting.purgatory.check_and_complete("a") == 0
    operation.how, operation.ready = "cancel", True
    assert setting.purgatory.check_and_complete("a") == 0
    assert operation.outcome is Outcome.CANCELLED


def test_completion_by_another_thread_is_not_a_checks_count() -> None:
    operation = ReturnsWhatItLikes()

    def complete_elsewhere() -> None:
        forcing = threading.Thread(target=operation.force_complete)
        forcing.start()
        forcing.join(30)

    operation.ready, operation.how = True, "complete_elsewhere"
    operation.complete_elsewhere = complete_elsewhere  # type: ignore[attr-defined]
    assert not operation.maybe_try_complete()
    assert operation.outcome is Outcome.COMPLETED


def test_wait_returns_the_outcome_at_once_if_there_is_one() -> None:
    operation = Probe()
    operation.run()
    assert operation.wait() is Outcome.EXPIRED
    assert operation.wait(0) is Outcome.EXPIRED


@pytest.mark.parametrize("timeout", [0, -1, 0.001])
def test_wait_gives_up_after_its_timeout(timeout: float) -> None:
    assert Probe().wait(timeout) is Outcome.PENDING


def test_wait_ends_after_the_callbacks() -> None:
    begun, resume = threading.Event(), threading.Event()
    told: list[Outcome] = []

    def slow() -> None:
        begun.set()
        assert resume.wait(30)

    operation = Probe(hooks={"on_complete": slow})
    completer = threading.Thread(target=operation.force_complete)
    completer.start()
    assert begun.wait(30)
    assert operation.is_completed
    assert operation.wait(0.01) is Outcome.PENDING, "on_complete still runs"
    waiter = threading.Thread(target=lambda: told.append(operation.wait(30)))
    waiter.start()
    resume.set()
    waiter.join()
    completer.join()
    assert told == [Outcome.COMPLETED]


@pytest.mark.parametrize("timeout", [math.inf, 1e12, 10**30])
def test_wait_takes_any_number_of_seconds(timeout: float) -> None:
    operation = Probe()
    waiting = threading.Thread(target=operation.wait, args=(timeout,))
    waiting.start()
    while not operation._op_listeners:
        pass
    operation.force_complete()
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("timeout", "error"), [(math.nan, ValueError), ("1", TypeError), (True, TypeError)]
)
def test_an_invalid_timeout_is_refused_and_leaves_no_listener(
    timeout: Any, error: type[Exception]
) -> None:
    operation = Probe()
    with pytest.raises(
        error, match="timeout must be a number of seconds, a timedelta, or None for "
    ):
        operation.wait(timeout)
    assert not operation._op_listeners


@pytest.mark.parametrize("raised", [1, 2, 3])
def test_a_listener_that_is_interrupted_is_called_again(raised: int) -> None:
    """Once at once; after that by whoever comes next."""
    told: list[str] = []

    def interrupted() -> None:
        told.append("interrupted")
        if told.count("interrupted") <= raised:
            raise KeyboardInterrupt

    operation = Probe()
    for listener in (lambda: told.append("first"), interrupted, lambda: told.append("last")):
        operation.call_when_completed(listener)
    with pytest.raises(KeyboardInterrupt):
        operation.force_complete()
    while True:
        try:
            operation.call_when_completed(lambda: None)
            break
        except KeyboardInterrupt:
            pass
    assert told == ["first", *["interrupted"] * (raised + 1), "last"]
    assert not operation._op_listeners


async def coroutine(*_: object) -> bool:
    return True


def generator(*_: object) -> Iterator[bool]:
    yield True


async def generator_of_a_coroutine(*_: object) -> AsyncIterator[bool]:
    yield True


@pytest.mark.parametrize("name", ["try_complete", "on_complete", "on_expiration", "on_failure"])
@pytest.mark.parametrize("function", [coroutine, generator, generator_of_a_coroutine])
def test_an_async_callback_is_refused_where_it_is_defined(
    name: str, function: Callable[..., object]
) -> None:
    with pytest.raises(TypeError, match=rf"Slow.{name} is a (coroutine|generator) function"):
        type("Slow", (Probe,), {name: function})


class Runner:
    """Something with a method that an operation must not have."""

    def run(self) -> None:
        """Do something."""


def test_an_operation_may_not_define_run() -> None:
    with pytest.raises(TypeError, match="Own defines run, by which the timer expires"):
        type("Own", (Probe,), {"run": Runner.run})
    with pytest.raises(TypeError, match="Mixed defines run, by which the timer expires"):
        type("Mixed", (Runner, Probe), {})


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_operation_can_not_be_copied(how: Callable[[Probe], object]) -> None:
    with pytest.raises(TypeError, match="a Probe can't be copied or pickled: it waits once"):
        how(Probe())


def test_repr_has_the_outcome() -> None:
    operation = Probe(250)
    assert repr(operation) == "<Probe PENDING delay_ms=250>"
    operation.force_complete()
    assert repr(operation) == "<Probe COMPLETED delay_ms=250>"


def test_subclass_may_use_names_without_the_prefix_op() -> None:
    names = [
        *("lock", "keys", "purgatory", "error_", "start", "settled", "_lock", "_keys", "_timer"),
        *("_purgatory", "_event", "_outcome", "_completed", "_check_due", "entry", "_entry"),
    ]

    class Crowded(Probe):
        pass

    operation = Crowded()
    for name in names:
        setattr(operation, name, "the user's")
    operation.ready = True
    assert operation.maybe_try_complete()
    assert all(getattr(operation, name) == "the user's" for name in names)


class Base(DelayedOperation):
    """Without a dict of its own, so that a native core may keep what it looked up on the class."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        super().__init__(LONG_MS)
        self.asked: list[str] = []

    def try_complete(self) -> bool:
        self.asked.append("base")
        return False


class Derived(Base):
    __slots__ = ()


class WithDict(Base):
    pass


def ask_like(name: str) -> Callable[[Base], bool]:
    def try_complete(self: Base) -> bool:
        self.asked.append(name)
        return False

    return try_complete


@pytest.mark.parametrize("kind", [Base, Derived, WithDict])
def test_replaced_method_of_a_class_is_called(
    kind: type[Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting()
    operation = kind()
    setting.purgatory.try_complete_else_watch(operation, ["key"])
    operation.asked.clear()

    def ask() -> str:
        setting.purgatory.check_and_complete("key")
        setting.purgatory.check_and_complete("key")
        first, second = operation.asked
        operation.asked.clear()
        assert first == second
        return first

    assert ask() == "base"
    with monkeypatch.context() as patched:
        patched.setattr(Base, "try_complete", ask_like("changed base"))
        assert ask() == "changed base"
        if kind is not Base:
            patched.setattr(kind, "try_complete", ask_like("own"))
            assert ask() == "own"
    assert ask() == "base"
    if kind is WithDict:
        operation.try_complete = lambda: ask_like("of the object")(operation)  # type: ignore[method-assign]
        assert ask() == "of the object"


def test_classes_alternating_on_a_key_use_their_own_methods() -> None:
    setting = Setting()
    kinds = [
        type(f"Kind{number}", (Base,), {"__slots__": (), "try_complete": ask_like(str(number))})
        for number in range(3)
    ]
    operations = [kind() for _ in range(2) for kind in kinds]
    for operation in operations:
        setting.purgatory.try_complete_else_watch(operation, ["key"])
        operation.asked.clear()
    setting.purgatory.check_and_complete("key")
    assert [operation.asked for operation in operations] == [["0"], ["1"], ["2"]] * 2


def test_method_may_delete_itself_during_a_check() -> None:
    class Vanishing(Base):
        __slots__ = ()

        def try_complete(self) -> bool:
            if "try_complete" in vars(Vanishing):
                del Vanishing.try_complete
                gc.collect()
            self.asked.append("vanished")
            return False

    setting = Setting()
    operation = Vanishing()
    setting.purgatory.try_complete_else_watch(operation, ["key"])
    setting.purgatory.check_and_complete("key")
    assert operation.asked == ["vanished", "base", "base"]
