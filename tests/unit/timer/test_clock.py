"""Clocks: the time, and how a thread waits for it."""

from __future__ import annotations

import threading
import time

import pytest

from timer import Clock, ManualClock, SystemClock
from timer.wake import Wake

MS = 1_000_000
LONG_S = 60


def test_system_clock_is_the_machines_monotonic_one_in_ns() -> None:
    clock = SystemClock()
    before_ns, now_ns, after_ns = time.monotonic_ns(), clock.now_ns(), time.monotonic_ns()
    assert before_ns <= now_ns <= after_ns
    assert before_ns // MS <= clock.now_ms()


def test_a_clock_is_abstract() -> None:
    with pytest.raises(TypeError, match="now_ns"):
        Clock()  # type: ignore[abstract]


def test_the_system_clock_waits_until_the_time_and_not_less() -> None:
    clock = SystemClock()
    until_ns = clock.now_ns() + 2 * MS
    while clock.now_ns() < until_ns:
        assert clock.wait(Wake(), until_ns)
    assert clock.now_ns() >= until_ns


@pytest.mark.parametrize("until_ns", [-(10**30), 0])
def test_the_system_clock_does_not_wait_for_the_past(until_ns: int) -> None:
    assert SystemClock().wait(Wake(), until_ns)


def test_system_clock_waits_longer_than_a_threads_longest_wait() -> None:
    wake = Wake()
    woken = threading.Event()

    def wait() -> None:
        SystemClock().wait(wake, 10**40)
        woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not woken.wait(0.01)
    wake.set()
    assert woken.wait(LONG_S)
    waiter.join(LONG_S)


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(5)
    assert (clock.now_ms(), clock.now_ns()) == (5, 5 * MS)
    clock.advance(3)
    assert clock.now_ms() == 8
    clock.advance_to(10)
    assert clock.now_ms() == 10
    clock.advance_to_ns(11 * MS - 1)
    assert (clock.now_ms(), clock.now_ns()) == (10, 11 * MS - 1)
    clock.advance(0)
    clock.advance_to_ns(11 * MS - 1)
    assert clock.now_ns() == 11 * MS - 1


def test_a_manual_clock_never_goes_back() -> None:
    clock = ManualClock(5)
    with pytest.raises(ValueError, match="delta_ms=-1 is below 0"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="4000000 ns was asked for, it is 5000000 ns"):
        clock.advance_to(4)
    with pytest.raises(ValueError, match="4999999 ns was asked for"):
        clock.advance_to_ns(4_999_999)
    assert clock.now_ms() == 5


def test_a_manual_clock_does_not_start_below_zero() -> None:
    with pytest.raises(ValueError, match="start_ms must be at least 0, not -1"):
        ManualClock(-1)


@pytest.mark.parametrize("value", [0.5, float("nan"), "1", None, True], ids=repr)
def test_a_time_that_is_no_integer_is_refused_by_value(value: object) -> None:
    clock = ManualClock()
    for name, call in [
        ("start_ms", ManualClock),
        ("delta_ms", clock.advance),
        ("now_ms", clock.advance_to),
    ]:
        with pytest.raises(TypeError, match=f"{name} must be a whole number") as info:
            call(value)  # type: ignore[operator]
        assert repr(value) in str(info.value)
    assert clock.now_ns() == 0


def test_moves_from_many_threads_add_up() -> None:
    clock = ManualClock()

    def move() -> None:
        for _ in range(1_000):
            clock.advance(1)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert clock.now_ms() == 4_000


@pytest.mark.parametrize("threads", [1, 3])
def test_a_move_of_a_manual_clock_wakes_its_waiters(threads: int) -> None:
    clock = ManualClock()
    woken: list[bool] = []

    def wait() -> None:
        while clock.now_ms() < 3_600_000:
            clock.wait(Wake(), 3_600_000 * MS)
        woken.append(True)

    waiters = [threading.Thread(target=wait) for _ in range(threads)]
    for waiter in waiters:
        waiter.start()
    while len(clock._waiting) < threads:
        time.sleep(0.001)
    clock.advance(1_800_000)
    clock.advance_to(3_600_000)
    for waiter in waiters:
        waiter.join(LONG_S)
    assert woken == [True] * threads


def test_a_move_just_before_a_wait_is_registered_is_seen() -> None:
    """A wait that looked at the time before registering would sleep through the move."""
    clock = ManualClock()

    class MovesBeforeAppend(list[Wake]):
        def append(self, wake: Wake) -> None:
            clock.advance(3_600_000)
            super().append(wake)

    clock._waiting = MovesBeforeAppend()
    began = time.monotonic()
    assert clock.wait(Wake(), 3_600_000 * MS)
    assert time.monotonic() - began < LONG_S
    assert not clock._waiting, "a thread that waits no longer is not registered"


def test_a_wait_for_the_past_of_a_manual_clock_returns_at_once() -> None:
    clock = ManualClock(10)
    assert clock.wait(Wake(), 10 * MS)
    assert clock.wait(Wake(), 0)


def test_wait_on_a_clock_that_never_moves_is_abandoned() -> None:
    clock = ManualClock()
    assert not clock.wait(Wake(), 1 * MS)
    assert clock.now_ns() == 0
    assert not clock._waiting
