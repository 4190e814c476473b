"""``add``, with each kind of delay, and its refusals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from tests.unit.timer.named_task import NamedTask, inline_timer, move
from timer import InlineExecutor, ManualClock, SystemTimer, TimerTask

MS = 1_000_000


class WholeNumber:
    """An integer of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def test_a_task_runs_when_its_delay_is_over_and_not_before(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    timer.add(NamedTask(250, "a", ran))
    assert timer.size == 1
    move(clock, timer, 249)
    assert ran == []
    assert timer.size == 1
    assert move(clock, timer, 1)
    assert ran == ["a"]
    assert timer.size == 0
    move(clock, timer, 60_000)
    assert ran == ["a"]


@pytest.mark.parametrize("args", [(), ("a",), ("a", "b")])
def test_a_call_may_be_run_by_hand_with_its_arguments(
    timer: SystemTimer, args: tuple[str, ...]
) -> None:
    called: list[tuple[str, ...]] = []
    task = timer.call_later(10, lambda *given: called.append(given), *args)
    task.run()
    assert called == [args]
    assert task.cancel()


@pytest.mark.parametrize("begun_ns", [1, 500_000, 999_999])
def test_task_does_not_run_early_in_a_begun_millisecond(
    clock: ManualClock, timer: SystemTimer, ran: list[object], begun_ns: int
) -> None:
    clock.advance_to_ns(1_000 * MS + begun_ns)
    timer.add(NamedTask(10, "a", ran))
    clock.advance_to_ns(1_010 * MS + begun_ns)
    timer.advance_clock()
    assert ran == [], "10 whole milliseconds are over only within the next one"
    assert timer.next_expiration_ms() == 1_011
    clock.advance_to(1_011)
    timer.advance_clock()
    assert ran == ["a"]


def test_an_expiration_on_a_whole_millisecond_is_not_rounded_further(
    clock: ManualClock, timer: SystemTimer
) -> None:
    timer.call_later(10, print)
    assert timer.next_expiration_ms() == 1_010


def test_a_task_runs_when_its_bucket_begins_with_a_coarser_tick(ran: list[object]) -> None:
    clock = ManualClock(100)
    timer = inline_timer(clock, tick_ms=20)
    timer.add(NamedTask(137, "at 237", ran))
    move(clock, timer, 119)
    assert ran == []
    move(clock, timer, 1)
    assert (ran, clock.now_ms()) == (["at 237"], 220)


@pytest.mark.parametrize("delay_ms", [0, -1, -1_000, -(10**30)])
def test_a_delay_of_zero_or_less_is_due_at_once(
    clock: ManualClock, timer: SystemTimer, ran: list[object], delay_ms: int
) -> None:
    timer.add(NamedTask(delay_ms, "a", ran))
    assert ran == ["a"], "the wheel stands at the present, so add itself hands it over"
    assert timer.size == 0
    clock.advance(3_600_000)  # with nothing pending the wheel stays behind
    timer.add(NamedTask(delay_ms, "b", ran))
    timer.advance_clock()
    assert ran == ["a", "b"]


def test_a_negative_delay_does_not_count_as_lateness(
    clock: ManualClock, timer: SystemTimer
) -> None:
    timer.call_later(-3_600_000, int)
    clock.advance(5_000)
    timer.call_later(-3_600_000, int)
    timer.advance_clock()
    assert timer.lateness.snapshot().total == 2
    assert timer.lateness.snapshot().sum_ms == 0


@pytest.mark.parametrize("delay_ms", [2**62, 2**63, 2**64, 10**30])
def test_a_deadline_beyond_64_bits_saturates_instead_of_firing(
    clock: ManualClock, timer: SystemTimer, ran: list[object], delay_ms: int
) -> None:
    task = NamedTask(delay_ms, "never", ran)
    timer.add(task)
    move(clock, timer, 10**12)
    assert ran == []
    assert timer.size == 1
    clock.advance_to(min(1_000 + delay_ms, 9_223_372_036_854_775_807) - 1)
    timer.advance_clock()
    assert ran == []
    clock.advance(1)
    timer.advance_clock()
    assert ran == ["never"]


def test_an_integer_of_another_library_is_a_delay(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    timer.add(NamedTask(WholeNumber(5), "a", ran))  # type: ignore[arg-type]
    move(clock, timer, 5)
    assert ran == ["a"]


@pytest.mark.parametrize(
    "delay_ms",
    [True, 1.0, 2.5, float("nan"), float("inf"), "250", None, b"1", [], Fraction(3)],
    ids=repr,
)
def test_a_delay_that_is_no_integer_is_refused_by_value(
    timer: SystemTimer, delay_ms: object
) -> None:
    with pytest.raises(TypeError, match="delay_ms must be a whole number of milliseconds") as info:
        timer.call_later(delay_ms, print)  # type: ignore[arg-type]
    assert repr(delay_ms) in str(info.value)
    with pytest.raises(TypeError, match="delay_ms"):
        timer.add(NamedTask(delay_ms, "a", []))  # type: ignore[arg-type]
    assert timer.size == 0


def test_a_task_that_is_refused_stays_where_it_waits(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    task = NamedTask(5, "a", ran)
    timer.add(task)
    task.delay_ms = 2.5  # type: ignore[assignment]
    with pytest.raises(TypeError):
        timer.add(task)
    closed = inline_timer(clock)
    closed.close()
    task.delay_ms = 5
    with pytest.raises(RuntimeError, match="was closed"):
        closed.add(task)
    move(clock, timer, 5)
    assert ran == ["a"]


class Duck:
    """Is no task, but has a delay as one has."""

    delay_ms = 5


class BrokenRepr:
    """Can't be shown."""

    def __repr__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("thing", [None, 5, "task", print, TimerTask, NamedTask, Duck()])
def test_an_object_that_is_no_task_is_refused_by_name(timer: SystemTimer, thing: Any) -> None:
    with pytest.raises(TypeError) as info:
        timer.add(thing)
    assert str(info.value) == f"task must be a TimerTask, not {thing!r} ({type(thing).__name__})"
    assert timer.size == 0


def test_an_object_that_is_no_task_and_has_no_repr_is_refused_by_type(timer: SystemTimer) -> None:
    with pytest.raises(TypeError, match="task must be a TimerTask, not <BrokenRepr whose repr"):
        timer.add(BrokenRepr())  # type: ignore[arg-type]


@pytest.mark.parametrize("sets_its_delay", [False, True])
def test_a_task_that_did_not_call_the_init_of_its_base_is_refused(
    timer: SystemTimer, sets_its_delay: bool
) -> None:
    class Careless(TimerTask):
        def __init__(self) -> None:
            if sets_its_delay:
                self.delay_ms = 5

        def run(self) -> None:
            pass

    with pytest.raises(TypeError) as info:
        timer.add(Careless())
    assert str(info.value) == (
        "a Careless can't be added: its __init__ must call super().__init__(delay_ms)"
    )
    assert timer.size == 0


@pytest.mark.parametrize("error", [AttributeError("of the clock"), TypeError("of the clock")])
def test_an_error_of_the_users_clock_is_not_taken_for_one_of_the_task(
    clock: ManualClock, timer: SystemTimer, error: Exception, ran: list[object]
) -> None:
    def fail() -> int:
        raise error

    failing = inline_timer(clock)
    failing._now_ns = fail
    task = NamedTask(5, "a", ran)
    with pytest.raises(type(error), match="of the clock"):
        failing.add(task)
    timer.add(task)
    move(clock, timer, 5)
    assert ran == ["a"]


def test_call_later_passes_its_arguments(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    def note(*args: object) -> None:
        ran.append(args)

    task = timer.call_later(1, note, 1, "two")
    assert task.delay_ms == 1
    move(clock, timer, 1)
    assert ran == [(1, "two")]


def test_call_later_returns_an_ordinary_task(
    clock: ManualClock, timer: SystemTimer, ran: list[object]
) -> None:
    timer.call_later(function=int, delay_ms=5).cancel()
    task = timer.call_later(5, ran.append, "a")
    assert isinstance(task, TimerTask)
    assert repr(task) == "<CallLater delay_ms=5>"
    assert not hasattr(task, "__dict__")
    task.run()
    assert ran == ["a"] and timer.size == 1
    move(clock, timer, 5)
    assert ran == ["a", "a"]
    task.delay_ms = 7
    timer.add(task)
    assert task.cancel() and not task.cancel()
    task.run = lambda: ran.append("b")  # type: ignore[method-assign]
    timer.add(task)
    move(clock, timer, 7)
    assert ran == ["a", "a", "b"]


def test_an_object_that_cannot_be_called_fails_when_it_is_due(
    clock: ManualClock, timer: SystemTimer
) -> None:
    timer.call_later(5, None)  # type: ignore[arg-type]
    move(clock, timer, 5)
    assert timer.failures == 1


@pytest.mark.parametrize("delay_ms", [0, -3, -(2**70)])
@pytest.mark.parametrize("now_ns", [0, 1, 5_000_000, 5_166_969, 2**63 * 1_000_000 - 5])
def test_zero_delay_is_due_at_the_next_advance_in_a_millisecond(now_ns: int, delay_ms: int) -> None:
    clock = ManualClock()
    timer = SystemTimer("zero", clock=clock, executor=InlineExecutor())
    clock.advance_to_ns(now_ns)
    ran: list[int] = []
    timer.call_later(delay_ms, ran.append, 1)
    timer.advance_clock(0)
    assert ran == [1]


def test_zero_is_due_at_the_next_advance_by_the_machines_clock() -> None:
    timer = SystemTimer("zero", executor=InlineExecutor())
    ran: list[int] = []
    for number in range(100):
        timer.call_later(0, ran.append, number)
        timer.advance_clock(0)
        assert ran == list(range(number + 1))
    timer.close()


class BelowZero(ManualClock):
    """Goes back to before the beginning."""

    below = False

    def now_ns(self) -> int:
        return -1 if self.below else super().now_ns()


def test_a_clock_below_zero_is_refused_wherever_it_is_read() -> None:
    clock = BelowZero()
    timer = SystemTimer("below", clock=clock, executor=InlineExecutor())
    task = timer.call_later(5, int)
    clock.below = True
    for call in (lambda: timer.call_later(5, int), lambda: timer.add(task), timer.advance_clock):
        with pytest.raises(ValueError, match="clock's time must be at least 0, not -1"):
            call()
    assert timer.size == 1


def test_a_class_that_defines_its_own_delay_is_refused() -> None:
    with pytest.raises(TypeError, match="defines delay_ms, which is the timer's own"):

        class OwnDelay(TimerTask):
            delay_ms = property(lambda self: 5)

            def run(self) -> None:
                """Never runs."""
