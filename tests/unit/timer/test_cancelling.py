"""Tasks that are cancelled, and tasks that are added again."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

from tests.unit.timer.named_task import NamedTask, inline_timer, move
from timer import ManualClock, SystemTimer


def test_a_task_cancelled_before_it_is_due_never_runs(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    task = NamedTask(5, "a", ran)
    timer.add(task)
    assert task.cancel()
    assert not task.cancel()
    assert timer.size == 0
    move(clock, timer, 10)
    assert ran == []


@pytest.mark.parametrize("cascades", [0, 1, 2, 3])
def test_a_task_can_be_cancelled_on_any_level_and_after_each_fall(
    ran: list[object], cascades: int
) -> None:
    clock = ManualClock()
    timer = inline_timer(clock)
    task = NamedTask(8_421, "a", ran)
    timer.add(task)
    for begin_ms in [8_000, 8_400, 8_420][:cascades]:
        assert timer.next_expiration_ms() == begin_ms
        clock.advance_to(begin_ms)
        timer.advance_clock()
    assert [queued["level"] for queued in timer.snapshot()["delay_queue"]] == [4 - cascades]
    assert task.cancel()
    move(clock, timer, 10_000)
    assert ran == []


def test_a_task_that_ran_cannot_be_cancelled(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    task = NamedTask(5, "a", ran)
    timer.add(task)
    move(clock, timer, 5)
    assert not task.cancel()
    assert ran == ["a"]


def test_a_task_that_runs_cannot_be_cancelled_by_itself(
    clock: ManualClock, timer: SystemTimer
) -> None:
    answers: list[bool] = []
    task = timer.call_later(5, lambda: answers.append(task.cancel()))
    move(clock, timer, 5)
    assert answers == [False]


def test_a_due_task_can_be_cancelled_by_the_one_that_runs_before_it(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    victim = NamedTask(5, "victim", ran)
    timer.call_later(5, lambda: ran.append(victim.cancel()))
    timer.add(victim)
    move(clock, timer, 5)
    assert ran == [True]
    assert timer.size == 0


def test_a_task_on_no_timer_cannot_be_cancelled() -> None:
    assert not NamedTask(5, "a", []).cancel()


def test_a_cancelled_task_is_let_go_at_once(timer: SystemTimer) -> None:
    task = NamedTask(60_000, "a", [])
    timer.add(task)
    references = sys.getrefcount(task)
    assert task.cancel()
    assert sys.getrefcount(task) == references - 1


@pytest.mark.parametrize("end", ["ran", "cancelled", "dropped"])
def test_expired_task_is_freed_without_the_garbage_collector(
    clock: ManualClock, timer: SystemTimer, end: str
) -> None:
    task = NamedTask(5, "a", [])
    timer.add(task)
    if end == "ran":
        move(clock, timer, 5)
    elif end == "cancelled":
        task.cancel()
    else:
        timer.close()
    freed = weakref.ref(task)
    gc.disable()
    try:
        del task
        assert freed() is None
    finally:
        gc.enable()


def test_a_task_added_again_starts_anew_and_runs_once(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    task = NamedTask(100, "a", ran)
    timer.add(task)
    move(clock, timer, 60)
    timer.add(task)
    assert timer.size == 1
    move(clock, timer, 99)
    assert ran == []
    move(clock, timer, 1)
    assert ran == ["a"]


def test_a_task_added_again_can_have_another_delay(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    task = NamedTask(30_000, "a", ran)
    timer.add(task)
    task.delay_ms = 5
    timer.add(task)
    move(clock, timer, 5)
    assert ran == ["a"]
    assert timer.size == 0


def test_a_task_that_ran_or_was_cancelled_can_be_added_again(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    task = NamedTask(5, "a", ran)
    timer.add(task)
    move(clock, timer, 5)
    timer.add(task)
    assert task.cancel()
    timer.add(task)
    move(clock, timer, 5)
    assert ran == ["a", "a"]


def test_a_task_added_to_another_timer_leaves_the_first(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    other = inline_timer(clock)
    task = NamedTask(5, "a", ran)
    timer.add(task)
    other.add(task)
    assert (timer.size, other.size) == (0, 1)
    move(clock, timer, 5)
    assert ran == []
    move(clock, other, 0)
    assert ran == ["a"]
