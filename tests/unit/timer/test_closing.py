"""Closing a timer: what becomes of pending tasks, of waiting drivers, and of later calls."""

from __future__ import annotations

import threading

import pytest

from tests.unit.timer.named_task import NamedTask, move
from timer import ManualClock, SystemTimer, TimerClosedError

LONG_S = 60


def test_close_drops_pending_tasks_and_returns_their_number(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    tasks = [NamedTask(delay_ms, delay_ms, ran) for delay_ms in (1, 19, 20, 450, 30_000)]
    for task in tasks:
        timer.add(task)
    tasks[0].cancel()
    assert timer.close() == 4
    assert timer.size == 0
    assert timer.next_expiration_ms() is None
    assert not any(task.cancel() for task in tasks)
    clock.advance(60_000)
    assert ran == []


def test_closing_again_drops_nothing(timer: SystemTimer) -> None:
    timer.call_later(5, print)
    assert [timer.close(), timer.close()] == [1, 0]


def test_a_close_with_tasks_pending_is_logged(
    timer: SystemTimer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    timer.call_later(5, print)
    timer.close()
    assert "timer_closed timer='test' dropped_tasks=1" in caplog.text


def test_a_closed_timer_takes_no_task_and_does_not_advance(timer: SystemTimer) -> None:
    timer.close()
    for call in (lambda: timer.add(NamedTask(5, "a", [])), lambda: timer.call_later(0, print)):
        with pytest.raises(TimerClosedError, match="timer 'test' was closed: it takes no task"):
            call()
    with pytest.raises(TimerClosedError, match="timer 'test' was closed: it does not advance"):
        timer.advance_clock()
    assert timer.size == 0


def test_a_dropped_task_can_be_added_to_another_timer(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    task = NamedTask(5, "a", ran)
    timer.add(task)
    timer.close()
    other = SystemTimer("other", clock=clock, executor=None)
    other.add(task)
    assert other.close() == 1
    assert ran == []


def test_a_task_that_closes_its_timer_stops_those_after_it(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    timer.call_later(5, lambda: ran.append(timer.close()))
    timer.add(NamedTask(5, "beside", ran))
    timer.add(NamedTask(6, "after", ran))
    move(clock, timer, 10)
    assert ran == [2]


def test_a_task_on_the_worker_can_close_its_timer(clock: ManualClock) -> None:
    timer = SystemTimer("self-closing", clock=clock)
    closed = threading.Event()

    def close() -> None:
        timer.close()
        closed.set()

    timer.call_later(5, close)
    clock.advance(5)
    timer.advance_clock()
    assert closed.wait(LONG_S)


def test_close_waits_for_the_running_task_and_runs_none_after_it(
    clock: ManualClock, ran: list[object]
) -> None:
    timer = SystemTimer("busy", clock=clock)
    started, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait(LONG_S)
        ran.append("slow")

    timer.call_later(5, slow)
    timer.add(NamedTask(5, "queued behind it", ran))
    clock.advance(5)
    timer.advance_clock()
    assert started.wait(LONG_S)

    def go_on_once_closed() -> None:
        while not timer._closed:
            started.wait(LONG_S)
        go_on.set()

    other = threading.Thread(target=go_on_once_closed)
    other.start()
    assert timer.close() == 1
    assert ran == ["slow"]
    other.join(LONG_S)


def test_close_gives_up_waiting_for_a_running_task_after_its_timeout(clock: ManualClock) -> None:
    timer = SystemTimer("stuck", clock=clock)
    started, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait(LONG_S)

    timer.call_later(5, slow)
    clock.advance(5)
    timer.advance_clock()
    assert started.wait(LONG_S)
    timer.close(timeout_s=0.01)
    assert not go_on.is_set()
    go_on.set()
    timer.close()


@pytest.mark.parametrize("pending", [False, True])
def test_close_wakes_a_thread_that_waits_for_a_due_task(clock: ManualClock, pending: bool) -> None:
    timer = SystemTimer("waiting", clock=clock)
    if pending:
        timer.call_later(1_000_000, print)
    answers: list[bool] = []
    driver = threading.Thread(target=lambda: answers.append(timer.advance_clock(3_600_000)))
    driver.start()
    while not clock._waiting:  # until it waits; ends with the test's time limit
        driver.join(0.001)
    timer.close()
    driver.join(LONG_S)
    assert answers == [False]


def test_closing_twice_at_once_counts_each_task_once(clock: ManualClock) -> None:
    for _ in range(50):
        timer = SystemTimer("twice", clock=clock)
        for delay_ms in range(1, 40):
            timer.call_later(delay_ms, print)
        counts: list[int] = []

        def close(timer: SystemTimer = timer, counts: list[int] = counts) -> None:
            counts.append(timer.close())

        closers = [threading.Thread(target=close) for _ in range(2)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(LONG_S)
        assert sum(counts) == 39
