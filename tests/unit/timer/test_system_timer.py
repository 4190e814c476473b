"""A timer moved by hand: its start, its order, failing tasks, and what it shows of itself."""

from __future__ import annotations

import sys
import threading

import pytest

from tests.unit.timer.named_task import NamedTask, inline_timer, move, name_of
from timer import Clock, ManualClock, SystemClock, SystemTimer, Timer, TimerTask
from timer.wake import Wake

MS = 1_000_000


def test_the_defaults_are_kafkas_and_a_monotonic_clock() -> None:
    timer = SystemTimer("defaults")
    assert isinstance(timer, Timer)
    assert isinstance(timer.clock, SystemClock)
    (level,) = timer.snapshot()["levels"]
    assert (level["tick_ms"], len(level["buckets"])) == (1, 20)
    assert (timer.size, timer.next_expiration_ms(), timer.failures) == (0, None, 0)
    assert timer.close() == 0


@pytest.mark.parametrize(
    ("name", "value"), [("tick_ms", 0), ("tick_ms", -1), ("wheel_size", 1), ("wheel_size", 0)]
)
def test_too_small_a_wheel_is_refused_by_name_and_value(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least .*not {value}"):
        SystemTimer("bad", **{name: value})  # type: ignore[arg-type]


def test_a_tick_beyond_64_bits_is_refused() -> None:
    SystemTimer("long", tick_ms=2**63 - 1).close()
    with pytest.raises(ValueError, match="tick_ms must be at most 9223372036854775807, not 9223"):
        SystemTimer("long", tick_ms=2**63)


def test_the_smallest_wheel_has_two_buckets() -> None:
    clock = ManualClock()
    timer = inline_timer(clock, tick_ms=1, wheel_size=2)
    timer.call_later(7, int)
    assert [len(level["buckets"]) for level in timer.snapshot()["levels"]] == [2, 2, 2]
    move(clock, timer, 7)
    assert timer.size == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tick_ms", "a whole number of milliseconds, an int, or a timedelta"),
        ("wheel_size", "an int"),
    ],
)
@pytest.mark.parametrize("value", [1.5, "20", None, True], ids=repr)
def test_a_wheel_of_no_whole_size_is_refused_by_name_and_value(
    name: str, expected: str, value: object
) -> None:
    with pytest.raises(TypeError, match=f"{name} must be {expected}, not {value!r}"):
        SystemTimer("bad", **{name: value})  # type: ignore[arg-type]


def test_clock_below_zero_is_refused() -> None:
    class Before(ManualClock):
        def now_ns(self) -> int:
            return -5 * MS

    with pytest.raises(ValueError, match="clock's time must be at least 0, not -5000000"):
        SystemTimer("bad", clock=Before())


@pytest.mark.parametrize("timeout_ms", [float("nan"), float("inf"), 0.5, "1", None, False])
def test_a_timeout_that_is_no_integer_is_refused_by_value(
    timer: SystemTimer, timeout_ms: object
) -> None:
    with pytest.raises(TypeError, match="timeout_ms must be a whole number") as info:
        timer.advance_clock(timeout_ms)  # type: ignore[arg-type]
    assert repr(timeout_ms) in str(info.value)


def test_tasks_run_by_millisecond_even_after_a_long_pause(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    delays = [19, 8_000, 400, 1, 450, 399, 20, 160_000, 7_999, 21, 2, 473, 159_999]
    for delay_ms in delays:
        timer.add(NamedTask(delay_ms, delay_ms, ran))
    move(clock, timer, 3_600_000)
    assert ran == sorted(delays)


def test_tasks_of_one_millisecond_run_in_order_of_addition(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    for name in range(50):
        timer.add(NamedTask(450, name, ran))
    move(clock, timer, 450)
    assert ran == list(range(50))


def test_cascaded_tasks_run_before_tasks_added_later(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    """The coarse task was added before, but "second" is the first in the fine bucket."""
    move(clock, timer, 15)
    timer.add(NamedTask(30, "first", ran))  # due at 45, in the bucket that begins at 40
    timer.add(NamedTask(13, "mover", ran))
    clock.advance(13)  # at 28, the fine level covers all up to 47 once it has moved
    timer.advance_clock()
    timer.add(NamedTask(17, "second", ran))
    move(clock, timer, 30)
    assert ran == ["mover", "first", "second"]


def test_a_task_added_from_a_task_runs_after_its_own_delay(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    def again(round_: int) -> None:
        ran.append((round_, clock.now_ms()))
        if round_ < 3:
            timer.call_later(10, again, round_ + 1)

    timer.call_later(10, again, 1)
    for _ in range(40):
        move(clock, timer, 1)
    assert ran == [(1, 1_010), (2, 1_020), (3, 1_030)]


def test_a_chain_of_tasks_that_are_due_at_once_does_not_recurse(
    timer: SystemTimer, ran: list[object]
) -> None:
    def next_one(left: int) -> None:
        if left:
            timer.call_later(0, next_one, left - 1)
        else:
            ran.append("end")

    timer.call_later(0, next_one, 10 * sys.getrecursionlimit())
    assert ran == ["end"]


def test_a_failing_task_is_counted_logged_and_harms_no_other(
    clock: ManualClock, timer: SystemTimer, ran: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    timer.add(NamedTask(5, "before", ran))
    timer.call_later(5, int, "no number")
    timer.add(NamedTask(5, "beside", ran))
    timer.add(NamedTask(6, "after", ran))
    assert move(clock, timer, 10)
    assert ran == ["before", "beside", "after"]
    assert timer.failures == 1
    assert "timer_task_failed" in caplog.text
    assert "no number" in caplog.text


def test_interrupt_in_a_task_propagates_and_the_rest_runs_next(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    timer.call_later(5, interrupt)
    timer.add(NamedTask(5, "beside", ran))
    timer.add(NamedTask(6, "after", ran))
    clock.advance(10)
    with pytest.raises(KeyboardInterrupt):
        timer.advance_clock()
    assert timer.size == 2
    timer.advance_clock()
    assert ran == ["beside", "after"]
    assert timer.size == 0


def test_the_size_counts_tasks_that_are_neither_cancelled_nor_begun(
    clock: ManualClock, timer: SystemTimer
) -> None:
    sizes: list[int] = []
    tasks = [timer.call_later(delay_ms, lambda: sizes.append(timer.size)) for delay_ms in (5, 5, 9)]
    assert timer.size == 3
    tasks[2].cancel()
    assert timer.size == 2
    move(clock, timer, 5)
    assert sizes == [1, 0]


def test_the_next_expiration_is_the_begin_of_the_first_bucket(
    clock: ManualClock, timer: SystemTimer
) -> None:
    assert timer.next_expiration_ms() is None
    timer.call_later(450, print)
    assert timer.next_expiration_ms() == 1_200, "the begin of its bucket on level 3"
    timer.call_later(7, print)
    assert timer.next_expiration_ms() == 1_007


def test_a_bucket_whose_tasks_were_all_cancelled_is_still_a_stop(
    clock: ManualClock, timer: SystemTimer
) -> None:
    timer.call_later(7, print).cancel()
    assert timer.next_expiration_ms() == 1_007
    assert timer.buckets_occupied == 1
    assert move(clock, timer, 7), "True says that a bucket was due"
    assert timer.next_expiration_ms() is None


def test_the_queue_is_bounded_by_the_buckets_not_by_the_tasks(
    clock: ManualClock, timer: SystemTimer
) -> None:
    for delay_ms in range(1, 8_000):
        timer.call_later(delay_ms, print)
    assert timer.size == 7_999
    assert timer.buckets_occupied <= 20 * timer.levels_in_use
    timer._check()


def test_lateness_is_measured_against_the_expiration(
    clock: ManualClock, timer: SystemTimer
) -> None:
    timer.call_later(10, int)
    timer.call_later(10, int)
    timer.call_later(40, int)
    move(clock, timer, 13)
    move(clock, timer, 27)
    lateness = timer.lateness.snapshot()
    assert lateness.total == 3
    assert lateness.sum_ms == pytest.approx(6.0)
    assert dict(zip(lateness.bounds_ms, lateness.counts, strict=False))[5] == 2
    assert lateness.counts[0] == 1


def test_a_snapshot_names_tasks_by_the_label_or_by_repr(timer: SystemTimer) -> None:
    timer.add(NamedTask(3, "a", []))
    assert timer.snapshot(label=name_of)["levels"][0]["buckets"][3]["tasks"] == ["a"]
    assert timer.snapshot()["levels"][0]["buckets"][3]["tasks"] == ["<NamedTask delay_ms=3>"]


def test_a_snapshot_is_a_copy(timer: SystemTimer) -> None:
    timer.add(NamedTask(3, "a", []))
    snapshot = timer.snapshot()
    snapshot["levels"].clear()
    snapshot["delay_queue"].clear()
    assert len(timer.snapshot()["levels"]) == len(timer.snapshot()["delay_queue"]) == 1


def test_a_label_that_fails_leaves_the_timer_usable(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    timer.add(NamedTask(3, "a", ran))

    def fail(task: TimerTask) -> str:
        raise LookupError(task.delay_ms)

    with pytest.raises(LookupError):
        timer.snapshot(label=fail)
    adder = threading.Thread(target=timer.add, args=(NamedTask(3, "b", ran),))
    adder.start()
    adder.join(30)
    assert not adder.is_alive(), "the lock was not given back"
    move(clock, timer, 3)
    assert ran == ["a", "b"]


def test_timer_takes_any_clock() -> None:
    class Frames(Clock):
        """Time in frames of a film, 40 ms each, that passes when waited for."""

        frame = 0

        def now_ns(self) -> int:
            return self.frame * 40 * MS

        def wait(self, wake: Wake, until_ns: int) -> bool:
            self.frame += 1
            return True

    clock = Frames()
    timer = inline_timer(clock)
    ran: list[object] = []
    timer.add(NamedTask(100, "a", ran))
    assert timer.advance_clock(10_000)  # to the bucket on level 2 that begins at 100 ms
    assert (clock.frame, ran) == (3, ["a"])


def test_a_task_that_runs_early_by_a_coarse_tick_is_not_late() -> None:
    clock = ManualClock()
    timer = inline_timer(clock, tick_ms=1_000)
    for _ in range(100):
        timer.call_later(1_999, int)
    move(clock, timer, 1_000)
    lateness = timer.lateness.snapshot()
    assert (lateness.total, lateness.sum_ms) == (100, 0)
