"""The engine: events in the order of their nanoseconds, on the millisecond wheel."""

from __future__ import annotations

import random

import pytest

from purgatory.simulation.engine import NS_PER_MS, Engine
from timer import InlineExecutor, ManualClock, SystemTimer


def always() -> bool:
    return True


def test_events_run_in_the_order_of_their_nanoseconds() -> None:
    engine = Engine()
    chance = random.Random(1)
    times = [chance.randrange(10 ** chance.randrange(1, 13)) for _ in range(3_000)]
    seen: list[tuple[int, int]] = []
    for number, time_ns in enumerate(times):
        engine.call_at(time_ns, lambda n=number: seen.append((engine.now_ns(), n)))
    engine.run(always)
    # Sorted by time, and those of one time as they were scheduled.
    assert seen == sorted((time_ns, number) for number, time_ns in enumerate(times))
    assert engine.clock.now_ns() == max(times)
    assert engine.events_run == 3_000


def test_events_schedule_events_in_the_same_millisecond_and_later() -> None:
    engine = Engine()
    seen: list[int] = []

    def step(left: int) -> None:
        seen.append(engine.now_ns())
        if left:
            engine.call_after(333_333, step, left - 1)

    engine.call_at(1, step, 9)
    engine.call_at(500_000, seen.append, -1)
    engine.run(always)
    assert seen == [1, 333_334, -1, *(1 + 333_333 * n for n in range(2, 10))]


def test_an_event_in_the_past_runs_now() -> None:
    engine = Engine()
    seen: list[tuple[str, int]] = []

    def late() -> None:
        engine.call_at(3, lambda: seen.append(("late", engine.now_ns())))
        engine.call_after(0, lambda: seen.append(("now", engine.now_ns())))

    engine.call_at(5 * NS_PER_MS + 7, late)
    engine.run(always)
    assert seen == [("late", 5 * NS_PER_MS + 7), ("now", 5 * NS_PER_MS + 7)]


def test_timeouts_precede_events_in_order_of_timer_names() -> None:
    engine = Engine()
    seen: list[tuple[str, int]] = []
    for name in ("b", "a"):
        timer = SystemTimer(name, clock=engine.clock, executor=InlineExecutor())
        timer.call_later(3, lambda n=name: seen.append((n, engine.now_ns())))
        engine.attach(timer)
    engine.call_at(3 * NS_PER_MS, lambda: seen.append(("event", engine.now_ns())))
    engine.run(always)
    assert seen == [(name, 3 * NS_PER_MS) for name in ("a", "b", "event")]


def test_a_timeout_is_rounded_up_and_measured_exactly() -> None:
    engine = Engine()
    timer = SystemTimer("one", clock=engine.clock, executor=InlineExecutor())
    engine.attach(timer)
    seen: list[int] = []
    engine.call_at(1, lambda: timer.call_later(10, lambda: seen.append(engine.now_ns())))
    engine.run(always)
    assert seen == [11 * NS_PER_MS]


def test_detached_timer_catches_up_once_attached_again() -> None:
    engine = Engine()
    timer = SystemTimer("paused", clock=engine.clock, executor=InlineExecutor())
    engine.attach(timer)
    seen: list[int] = []
    timer.call_later(10, lambda: seen.append(engine.now_ns()))
    engine.call_at(5 * NS_PER_MS, engine.unregister, timer)
    engine.call_at(40 * NS_PER_MS, engine.attach, timer)
    engine.call_at(50 * NS_PER_MS, seen.append, -1)
    engine.run(always)
    assert seen == [40 * NS_PER_MS, -1]


def test_a_timer_on_another_clock_is_refused() -> None:
    with pytest.raises(ValueError, match="another clock"):
        Engine().attach(SystemTimer("x", clock=ManualClock(), executor=InlineExecutor()))


def test_an_exception_in_an_event_reaches_the_caller() -> None:
    engine = Engine()

    def fail() -> None:
        raise RuntimeError("broken model")

    engine.call_at(10, fail)
    with pytest.raises(RuntimeError, match="broken model"):
        engine.run(always)


def test_run_ends_when_keep_running_is_false() -> None:
    engine = Engine()
    seen: list[int] = []
    for millisecond in range(10):
        engine.call_at(millisecond * NS_PER_MS, seen.append, millisecond)
    engine.run(lambda: len(seen) < 4)
    assert seen == [0, 1, 2, 3]
