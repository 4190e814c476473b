"""Other threads are not held up while a large bucket moves to finer levels."""

from __future__ import annotations

import threading

import pytest

from tests.unit.timer.named_task import NamedTask
from timer import ManualClock, SystemTimer
from timer.system_timer import MAX_CASCADE_UNDER_LOCK
from timer.timer_task import TimerTaskEntry

LONG_S = 60
pytestmark = pytest.mark.pure

TASKS = 1_000


class Watch:
    """Stands in for a timer's lock and its wheel: counts moves for each hold.

    Args:
        timer: whose; its wheel says of each other entry that its bucket is not queued.
        monkeypatch: puts the timer right afterwards.
    """

    def __init__(self, timer: SystemTimer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lock = timer._lock
        self.moves_in_this_hold = 0
        self.most_moves_in_a_hold = 0
        self.moves = 0
        self.holds = 0
        self.wheel = timer._wheel
        monkeypatch.setattr(timer, "_lock", self)
        monkeypatch.setattr(timer, "_wheel", self)

    def __enter__(self) -> None:
        self.moves_in_this_hold = 0
        self.holds += 1
        self.hold = self.lock.__exit__  # which takes it

    def __exit__(self, *_: object) -> None:
        self.most_moves_in_a_hold = max(self.most_moves_in_a_hold, self.moves_in_this_hold)
        del self.hold  # which gives it back

    def add(self, entry: TimerTaskEntry) -> bool:
        self.moves_in_this_hold += 1
        return self.wheel.add(entry)

    def add_if_queued(self, entry: TimerTaskEntry) -> bool:
        self.moves += 1
        return self.moves % 2 == 0 and self.wheel.add_if_queued(entry)

    def advance_clock(self, time_ms: int) -> None:
        self.wheel.advance_clock(time_ms)


def test_a_cascade_holds_the_lock_for_one_entry_at_a_time(
    clock: ManualClock, timer: SystemTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance_to(8_000)
    for number in range(TASKS):
        timer.call_later(8_000 + number % 400, int)
    with monkeypatch.context() as patch:
        watch = Watch(timer, patch)
        clock.advance_to(16_000)
        timer.advance_clock()
    assert watch.most_moves_in_a_hold == 1
    assert watch.moves == TASKS
    assert watch.holds >= TASKS // 2
    timer._check()


@pytest.mark.parametrize("tasks", [MAX_CASCADE_UNDER_LOCK, MAX_CASCADE_UNDER_LOCK + 1])
def test_cascade_moves_few_entries_per_hold_of_the_lock(
    clock: ManualClock, timer: SystemTimer, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    for number in range(tasks):
        timer.call_later(600 + 20 * number, int)
    with monkeypatch.context() as patch:
        watch = Watch(timer, patch)
        clock.advance_to(1_600)
        timer.advance_clock()
    assert watch.most_moves_in_a_hold == (tasks if tasks == MAX_CASCADE_UNDER_LOCK else 1)
    assert watch.moves == (0 if tasks == MAX_CASCADE_UNDER_LOCK else tasks)
    timer._check()


def test_cascade_takes_the_lock_only_if_a_bucket_becomes_queued(
    clock: ManualClock, timer: SystemTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance_to(8_000)
    for number in range(TASKS):
        timer.call_later(8_000 + number % 400, int)

    class Plain(Watch):
        def add_if_queued(self, entry: TimerTaskEntry) -> bool:
            return self.wheel.add_if_queued(entry)

    with monkeypatch.context() as patch:
        watch = Plain(timer, patch)
        clock.advance_to(16_000)
        timer.advance_clock()
    assert watch.holds < 60, "20 buckets come into use, and each is taken once"


def test_add_and_cancel_get_their_turn_during_a_cascade(
    clock: ManualClock, timer: SystemTimer, ran: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance_to(8_000)
    tasks = [NamedTask(8_399, number, ran) for number in range(TASKS)]
    for task in tasks:
        timer.add(task)
    answers: list[object] = []

    def meanwhile() -> None:
        timer.add(NamedTask(10, "added meanwhile", ran))
        answers.extend([tasks[0].cancel(), tasks[-1].cancel(), timer.size])

    class StopInTheMiddle(Watch):
        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            if self.moves == TASKS // 2 + 1:
                other = threading.Thread(target=meanwhile)
                other.start()
                other.join(LONG_S)
                assert not other.is_alive(), "the cascade keeps the lock"

    with monkeypatch.context() as patch:
        StopInTheMiddle(timer, patch)
        clock.advance_to(16_000)
        timer.advance_clock()
    assert answers == [True, True, TASKS - 1], "moving tasks are pending all the while"
    assert timer.size == TASKS - 1
    timer._check()
    clock.advance(500)
    timer.advance_clock()
    assert ran == ["added meanwhile", *range(1, TASKS - 1)]
