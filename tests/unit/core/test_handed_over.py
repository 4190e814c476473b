"""Work that one thread defers to another, or to a retry, where they might miss each other."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from purgatory.core.waiting import delay_of
from tests.unit.core.probe import Probe, Setting


@pytest.fixture
def setting() -> Setting:
    return Setting()


class Meddling:
    """A lock that is always taken; whoever tries it lets ``meddle`` run first, on its thread."""

    def __init__(self) -> None:
        self.meddle: Callable[[], object] = list
        self.taken = True

    def acquire(self, blocking: bool = True, /) -> bool:
        assert not blocking, "no thread of the library waits for a user's lock"
        self.meddle()
        return not self.taken

    def release(self) -> None:
        pass


@pytest.mark.parametrize("how", ["force_complete", "cancel"])
@pytest.mark.parametrize("tries", [1, 2])
def test_retry_of_a_completed_operation_leaves_the_timer(
    setting: Setting, how: str, tries: int
) -> None:
    lock = Meddling()
    operation = Probe(lock=lock)
    if tries == 2:  # the first try leaves a retry for the second one to move
        setting.submit(operation, "a")
        lock.meddle = getattr(operation, how)
        assert not operation.maybe_try_complete()
    else:
        lock.meddle = getattr(operation, how)
        setting.submit(operation, "a")
    assert operation.is_completed
    setting.assert_empty()


def test_retry_scheduled_during_a_completion_is_cancelled(
    setting: Setting,
) -> None:
    operation = Probe(lock=Meddling())
    add = setting.timer.add
    with pytest.MonkeyPatch.context() as patch:

        def complete_and_add(task: Probe) -> None:
            if task is not operation:
                completing = threading.Thread(target=operation.force_complete)
                completing.start()
                completing.join(30)
            add(task)

        patch.setattr(setting.timer, "add", complete_and_add)
        setting.submit(operation, "a")
    assert operation.finished == ["on_complete"]
    setting.assert_empty()


def test_retries_back_off_and_start_no_second_series(setting: Setting) -> None:
    lock = Meddling()
    tried_ms: list[int] = []
    operation = setting.submit(Probe(lock=lock), "a")
    lock.meddle = lambda: tried_ms.append(setting.clock.now_ms())
    setting.pass_time(160)
    assert tried_ms == [1, 3, 7, 15, 31, 63, 95, 127, 159]
    assert setting.timer.size == 2, "the timeout and one retry"
    lock.taken, operation.ready = False, True
    setting.pass_time(32)
    assert operation.finished == ["on_complete"]
    setting.assert_empty()


@pytest.mark.parametrize("event_every_ms", [1, 3, 20, 31, 40])
def test_event_under_a_taken_lock_does_not_delay_a_retry(
    setting: Setting, event_every_ms: int
) -> None:
    lock = threading.Lock()
    operation = setting.submit(Probe(lock=lock), "a")
    with lock:  # for so long that retries come as seldom as they ever do
        setting.purgatory.check_and_complete("a")
        setting.pass_time(100)
    operation.ready = True
    since_ms = setting.clock.now_ms()
    while not operation.is_completed:
        with lock:
            setting.purgatory.check_and_complete("a")
        setting.pass_time(event_every_ms)
        assert setting.clock.now_ms() - since_ms <= 32 + event_every_ms
    setting.assert_empty()


def test_retry_backoff_restarts_after_a_free_lock(setting: Setting) -> None:
    lock = Meddling()
    operation = setting.submit(Probe(lock=lock), "a")
    setting.pass_time(100)
    lock.taken = False
    setting.pass_time(32)
    lock.taken = True
    tried_ms: list[int] = []
    began_ms = setting.clock.now_ms()
    operation.maybe_try_complete()
    lock.meddle = lambda: tried_ms.append(setting.clock.now_ms() - began_ms)
    setting.pass_time(10)
    assert tried_ms == [1, 3, 7]


@pytest.mark.parametrize("other_lock", [None, threading.Lock])
def test_check_requested_while_the_function_raises_is_not_lost(
    other_lock: Callable[[], threading.Lock] | None,
) -> None:
    operation = Probe(lock=other_lock() if other_lock else None)

    def check_from_elsewhere_and_raise() -> None:
        operation.ready = True
        checking = threading.Thread(target=operation.maybe_try_complete)
        checking.start()
        checking.join(30)
        assert not operation.is_completed, "handed over to the holder, which is this thread"
        raise LookupError("broken on purpose")

    with pytest.raises(LookupError, match="broken on purpose"):
        operation.safe_try_complete_or_else(check_from_elsewhere_and_raise)
    assert operation.outcome is Outcome.COMPLETED


def test_check_follows_the_function_despite_a_busy_thread() -> None:
    """The other thread runs the earlier requests, and is gone when the function returns."""
    checking, resume = threading.Event(), threading.Event()
    operation = Probe()

    def check_slowly() -> None:
        checking.set()
        assert resume.wait(30)

    def let_the_other_thread_end() -> None:
        resume.set()
        busy.join(30)
        operation.ready = True

    operation.hooks["try_complete"] = check_slowly
    busy = threading.Thread(target=operation.maybe_try_complete)
    busy.start()
    assert checking.wait(30)
    assert operation.safe_try_complete_or_else(let_the_other_thread_end)
    assert operation.outcome is Outcome.COMPLETED


class ReadyTooLate(DelayedOperation):
    """Its time is up in the middle of a check, and its condition holds after that look."""

    looks = 0

    def try_complete(self) -> bool:
        self.looks += 1
        if self.looks == 3:  # the first event's
            self.run()  # as the timer would, on another thread
        return self.looks > 3 and self.force_complete()


def test_expiry_during_a_check_checks_again() -> None:
    with DelayedOperationPurgatory("Produce", reaper_enabled=False) as purgatory:
        operation = ReadyTooLate(60_000)
        purgatory.try_complete_else_watch(operation, ["key"])
        purgatory.check_and_complete("key")
        assert (operation.outcome, operation.looks) == (Outcome.COMPLETED, 4)


@pytest.mark.parametrize(
    ("timeout_s", "delay_ms"),
    [(0.0001, 1), (0.0015, 2), (0.002, 2), (0, 0), (-1, -1_000), (-math.inf, -(2**63))],
)
def test_a_timeout_in_seconds_is_rounded_up_to_a_millisecond(
    timeout_s: float, delay_ms: int
) -> None:
    assert delay_of(timeout_s) == delay_ms
