"""The native timer and the one in pure Python get the same calls, and give the same answers."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

import timer as timer_in_use
from tests.proofs.drawn import width
from tests.proofs.timer.pure_timer import pure_timer

pytestmark = pytest.mark.skipif(not timer_in_use.NATIVE, reason="the native parts are not in use")

PURE = pure_timer()
DELAYS = st.one_of(
    st.integers(-3, 30),
    st.integers(0, 10_000),
    st.integers(0, 2**66),
    st.sampled_from([True, 1.5, "5", None]),
)
MOST_MS = 2**62


class Side:
    """One timer with all that was done to it; tasks are known by their numbers."""

    def __init__(self, module: ModuleType, tick_ms: int, wheel_size: int) -> None:
        self.clock = module.ManualClock(7)
        self.told: list[object] = []
        self.timer = module.SystemTimer(
            "compared", tick_ms, wheel_size, self.clock, module.InlineExecutor()
        )
        self.timer.on_earlier = lambda: self.told.append("earlier")
        self.tasks: list[Any] = []
        self.thens: list[Callable[[Side], object] | None] = []
        """The action of each task when it runs."""
        side = self

        class Task(module.TimerTask):  # type: ignore[name-defined,misc]
            """A task of a user's."""

            def __init__(self, delay_ms: object, number: int) -> None:
                super().__init__(delay_ms)
                self.number = number

            def run(self) -> None:
                side.begin(self.number)

        self.task_type = Task

    def begin(self, number: int) -> None:
        """A task runs, and then does what the test says."""
        self.told.append(number)
        then = self.thens[number]
        if then is not None:
            then(self)

    def make(self, delay_ms: object, then: Callable[[Side], object]) -> int:
        """Make a task, and return its number."""
        number = len(self.tasks)
        self.tasks.append(self.task_type(delay_ms, number))
        self.thens.append(then)
        return number

    def call_later(
        self, delay_ms: object, then: Callable[[Side], object], by_argument: bool
    ) -> None:
        """Have the timer make one, which takes the place of another."""
        number = self.make(5, then)
        self.tasks[number] = (
            self.timer.call_later(delay_ms, self.begin, number)
            if by_argument
            else self.timer.call_later(delay_ms, lambda: self.begin(number))
        )

    def answer(self, call: Callable[[Side], object]) -> object:
        """The result or error of a call, and all that was recorded by then."""
        try:
            given = call(self)
        except Exception as error:
            given = f"{type(error).__name__}: {error}"
        told, self.told = self.told, []
        return given, told

    def add(self, number: int) -> None:
        self.timer.add(self.tasks[number])

    def label(self, task: Any) -> object:
        """Return its number, or what tells that another has taken its place."""
        return self.tasks.index(task) if task in self.tasks else f"once {task.number}"

    def seen(self) -> object:
        """All that can be seen of it."""
        timer = self.timer
        timer._check()
        return (
            timer.size,
            timer.levels_in_use,
            timer.buckets_occupied,
            timer.next_expiration_ms(),
            timer.failures,
            tuple(timer.lateness.snapshot()),
            timer.snapshot(self.label),
            [repr(task) for task in self.tasks],
        )


class Compared(RuleBasedStateMachine):
    """Both timers, side by side."""

    numbers = Bundle("numbers")

    def __init__(self) -> None:
        super().__init__()
        self.sides: list[Side] = []

    def both(self, call: Callable[[Side], object]) -> object:
        native, pure = [side.answer(call) for side in self.sides]
        assert native == pure
        return native

    @rule(
        target=numbers,
        delay_ms=DELAYS,
        then=st.sampled_from(["nothing", "again", "fail", "add", "cancel", "look"]),
        made_by=st.sampled_from(["add", "add", "call_later", "call_later with an argument"]),
        other=st.integers(0, 50),
        tick_ms=st.sampled_from([1, 1, 1, 3, 20]),
        wheel_size=st.sampled_from([20, 20, 2, 7]),
    )
    def add(
        self,
        delay_ms: object,
        then: str,
        made_by: str,
        other: int,
        tick_ms: int,
        wheel_size: int,
    ) -> int:
        """A task that, when it runs, does something to the timer or to another task."""
        if not self.sides:
            self.sides = [Side(module, tick_ms, wheel_size) for module in (timer_in_use, PURE)]
        number = len(self.sides[0].tasks)

        def act(side: Side) -> None:
            chosen = other % len(side.tasks)
            task = side.tasks[chosen]
            if then == "again" and type(side.tasks[number].delay_ms) is int:
                side.tasks[number].delay_ms = 40
                side.thens[number] = None
                side.add(number)
            elif then == "fail":
                raise ValueError("as told")
            elif then == "add":
                task.delay_ms, side.thens[chosen] = 15, None
                side.timer.add(task)
            elif then == "cancel":
                side.told.append(task.cancel())
            elif then == "look":
                side.told.append(side.timer.size)

        if made_by == "add":
            self.both(lambda side: side.add(side.make(delay_ms, act)))
        else:
            by_argument = made_by != "call_later"
            self.both(lambda side: side.call_later(delay_ms, act, by_argument))
        return number

    @rule(number=numbers)
    def add_again(self, number: int) -> None:
        self.both(lambda side: side.add(number))

    @rule(number=numbers)
    def cancel(self, number: int) -> None:
        self.both(lambda side: side.tasks[number].cancel())

    @rule(delta_ms=st.one_of(st.integers(0, 50), st.integers(0, 20_000), st.just(2**61)))
    def pass_time(self, delta_ms: int) -> None:
        def go(side: Side) -> object:
            if side.clock.now_ms() + delta_ms < MOST_MS:
                side.clock.advance(delta_ms)
            return side.timer.advance_clock()

        if self.sides:
            self.both(go)

    @rule(delta_ms=st.integers(0, 500))
    def move_the_clock_alone(self, delta_ms: int) -> None:
        """No thread drives meanwhile: later adds find the wheel behind."""
        if self.sides:
            self.both(lambda side: side.clock.advance(delta_ms))

    @rule(close=st.integers(0, 30))
    def close(self, close: int) -> None:
        if self.sides and close == 0:
            self.both(lambda side: side.timer.close())

    @invariant()
    def both_look_the_same(self) -> None:
        if self.sides:
            native, pure = [side.seen() for side in self.sides]
            assert native == pure


TestCompared = pytest.mark.slow(Compared.TestCase)
TestCompared.settings = settings(TestCompared.settings, max_examples=width(40, 100))
