"""A timer that is driven by a thread: it sleeps until the first bucket, and no longer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.unit.timer.named_task import inline_timer
from timer import Clock, ManualClock, SystemClock, SystemTimer, system_timer
from timer.timer_task_list import TimerTaskList
from timer.wake import Wake

NS_PER_MS = 1_000_000
LONG_MS = 60_000
LONG_S = 60


class Driver:
    """One call of ``advance_clock`` on a thread of its own."""

    def __init__(self, timer: SystemTimer, clock: ManualClock, timeout_ms: int) -> None:
        self.answers: list[bool] = []
        self._thread = threading.Thread(
            target=lambda: self.answers.append(timer.advance_clock(timeout_ms))
        )
        self._thread.start()
        while not clock._waiting and self._thread.is_alive():
            self._thread.join(0.001)

    def join(self) -> bool:
        """Return what the call returned."""
        self._thread.join(LONG_S)
        (answer,) = self.answers
        return answer


@pytest.fixture
def real_timer() -> Iterator[SystemTimer]:
    timer = SystemTimer("real")
    yield timer
    timer.close()


def test_a_driver_sleeps_until_the_first_bucket_is_due(
    clock: ManualClock, timer: SystemTimer
) -> None:
    timer.call_later(250, int)
    driver = Driver(timer, clock, timeout_ms=LONG_MS)
    clock.advance(249)
    assert timer.size == 1
    clock.advance(1)
    assert driver.join()
    assert timer.size == 0


def test_a_driver_that_sleeps_is_woken_by_an_earlier_task(
    clock: ManualClock, timer: SystemTimer
) -> None:
    timer.call_later(30_000, int)
    driver = Driver(timer, clock, timeout_ms=LONG_MS)
    timer.call_later(5, int)
    clock.advance(5)
    assert driver.join()
    assert timer.size == 1


def test_driver_that_sleeps_elsewhere_hears_of_an_earlier_task(timer: SystemTimer) -> None:
    told: list[int | None] = []
    timer.on_earlier = lambda: told.append(timer.next_expiration_ms())
    for delay_ms in (300, 380, 20, 20, 30, 5):
        timer.call_later(delay_ms, int)
    assert told == [1_300, 1_020, 1_005]


def test_a_driver_returns_when_its_timeout_is_over(clock: ManualClock, timer: SystemTimer) -> None:
    timer.call_later(30_000, int)
    driver = Driver(timer, clock, timeout_ms=200)
    clock.advance(200)
    assert not driver.join()
    assert timer.size == 1


def test_a_call_without_a_timeout_returns_at_once_if_nothing_is_due(
    clock: ManualClock, timer: SystemTimer
) -> None:
    assert not timer.advance_clock()
    timer.call_later(5, int)
    assert not timer.advance_clock(0)
    assert not timer.advance_clock(-1)
    clock.advance(5)
    assert timer.advance_clock(-1)


def test_timer_runs_none_of_a_thousand_tasks_early(real_timer: SystemTimer) -> None:
    early: list[int] = []
    ran: list[int] = []

    def note(due_ns: int) -> None:
        now_ns = time.monotonic_ns()
        ran.append(due_ns)
        if now_ns < due_ns:
            early.append(due_ns - now_ns)

    for number in range(1_000):
        delay_ms = number * 7 % 100
        real_timer.call_later(delay_ms, note, time.monotonic_ns() + delay_ms * 1_000_000)
    while real_timer.size:
        real_timer.advance_clock(200)
    real_timer.close()
    assert len(ran) == 1_000
    assert early == []
    assert real_timer.lateness.snapshot().sum_ms >= 0


def test_a_failing_task_does_not_end_the_thread_that_drives() -> None:
    clock = ManualClock()
    timer = SystemTimer("driven", clock=clock)
    done = threading.Event()
    # A manual clock waits no longer than that in real time, while this thread may not run.
    timer.call_later(5_000, int, "no number")
    timer.call_later(5_000, exec, "raise SystemExit")
    timer.call_later(6_000, done.set)
    driver = Driver(timer, clock, timeout_ms=LONG_MS)
    clock.advance(6_000)
    assert driver.join()
    timer.advance_clock()
    assert done.wait(LONG_S)
    assert timer.failures == 1
    timer.close()


class Jumping(Clock):
    """A clock that jumps to the end of each wait, and notes it."""

    def __init__(self) -> None:
        self.jumps_ms: list[int] = []

    def now_ns(self) -> int:
        return self.jumps_ms[-1] * NS_PER_MS if self.jumps_ms else 0

    def wait(self, wake: Wake, until_ns: int) -> bool:
        self.jumps_ms.append(until_ns // NS_PER_MS)
        return True


def test_driver_waits_for_the_first_bucket_or_its_timeout() -> None:
    clock = Jumping()
    timer = inline_timer(clock)
    timer.call_later(250, int)
    assert not timer.advance_clock(5)
    assert timer.advance_clock(LONG_MS)
    assert timer.size == 1, "it fell to level 1"
    assert timer.advance_clock(LONG_MS)
    assert timer.size == 0
    assert clock.jumps_ms == [5, 240, 250]


def test_earlier_task_wakes_a_driver_on_the_machines_clock() -> None:
    waits = threading.Event()

    class Telling(SystemClock):
        def wait(self, wake: Wake, until_ns: int) -> bool:
            waits.set()
            return super().wait(wake, until_ns)

    timer = SystemTimer("woken", clock=Telling())
    timer.call_later(10 * LONG_MS, int)
    answers: list[bool] = []
    driver = threading.Thread(
        target=lambda: answers.append(timer.advance_clock(10 * LONG_MS)), daemon=True
    )
    driver.start()
    assert waits.wait(LONG_S)
    timer.call_later(1, int)
    driver.join(LONG_S)
    assert answers == [True]
    timer.close()


@pytest.mark.pure
@pytest.mark.parametrize("delay_ms", [5, 440])
def test_a_task_added_to_a_bucket_behind_a_faster_driver_is_not_lost(
    clock: ManualClock, timer: SystemTimer, delay_ms: int
) -> None:
    """While one driver takes a bucket in hand, another one has done with all that it held."""
    ran: list[str] = []
    timer.call_later(delay_ms, ran.append, "first")
    empty = TimerTaskList.flush

    def be_overtaken(bucket: TimerTaskList) -> None:
        patch.setattr(TimerTaskList, "flush", empty)  # once
        timer._cascade_some()
        timer._submit_due()
        timer.call_later(0, ran.append, "late")
        empty(bucket)

    clock.advance(delay_ms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_timer, "MAX_CASCADE_UNDER_LOCK", 0)
        patch.setattr(TimerTaskList, "flush", be_overtaken)
        timer.advance_clock()
    assert sorted(ran) == ["first", "late"]
    assert timer.size == 0


@pytest.mark.parametrize(
    ("delay_ms", "step"),
    [(5, "_submit_due"), pytest.param(440, "_cascade_few", marks=pytest.mark.pure)],
)
def test_the_leftovers_of_an_interrupted_driver_are_due_now(
    clock: ManualClock, timer: SystemTimer, delay_ms: int, step: str
) -> None:
    ran: list[int] = []
    timer.call_later(delay_ms, ran.append, delay_ms)
    clock.advance(delay_ms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemTimer, step, _raise)
        with pytest.raises(KeyboardInterrupt):
            timer.advance_clock()
    next_ms = timer.next_expiration_ms()
    assert next_ms is not None
    assert next_ms <= clock.now_ms(), "whoever drives by it comes at once"
    timer.advance_clock()
    assert ran == [delay_ms]
    assert timer.next_expiration_ms() is None


def _raise(*_: object) -> None:
    raise KeyboardInterrupt
