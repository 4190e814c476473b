"""The timer against the simplest one there is: a list that is sorted by expiration.

Hypothesis adds, cancels, adds again and lets time pass, in any order, with delays at the edge of
every level; all invariants are checked after each step.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.timer.named_task import inline_timer
from timer import ManualClock, TimerTask

NS_PER_MS = 1_000_000
HOUR_MS = 3_600_000
LEVELS = 6


class Run(NamedTuple):
    """A task began to run: its name, its expiration in the model, and the time."""

    name: int
    expiration_ms: int
    now_ns: int


class Watched(TimerTask):
    """A task that reports its run to the machine."""

    def __init__(self, machine: TimerAgainstSortedList, delay_ms: int, name: int) -> None:
        super().__init__(delay_ms)
        self.machine = machine
        self.name = name

    def run(self) -> None:
        self.machine.note_run(self)


def edges_ms(tick_ms: int, wheel_size: int) -> st.SearchStrategy[int]:
    """Return delays at, and one beside, the tick and the interval of each level, by multiples."""
    return st.builds(
        lambda level, multiple, offset_ms: max(
            0, tick_ms * wheel_size**level * multiple + offset_ms
        ),
        st.integers(0, LEVELS),
        st.integers(0, wheel_size),
        st.integers(-1, 1),
    )


class TimerAgainstSortedList(RuleBasedStateMachine):
    """Both are told the same; what ran, what is pending and what is next must agree."""

    @initialize(
        tick_ms=st.sampled_from([1, 2, 7, 20, 1_000]),
        wheel_size=st.sampled_from([2, 3, 20, 61]),
        start_ms=st.sampled_from([0, 1, 19, 123, 7_999, 1_675_752_020_558]),
    )
    def start(self, tick_ms: int, wheel_size: int, start_ms: int) -> None:
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.clock = ManualClock(start_ms)
        self.timer = inline_timer(self.clock, tick_ms, wheel_size)
        self.tasks: list[Watched] = []
        self.pending: list[tuple[int, int]] = []  # expiration and name, sorted
        self.runs: list[Run] = []

    # --- what is done to both

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        task = Watched(self, self.draw_delay_ms(data), len(self.tasks))
        self.tasks.append(task)
        self.give_to_timer(task)

    @rule(data=st.data(), count=st.integers(2, 20))
    def add_several_that_expire_together(self, data: st.DataObject, count: int) -> None:
        delay_ms = self.draw_delay_ms(data)
        for _ in range(count):
            task = Watched(self, delay_ms, len(self.tasks))
            self.tasks.append(task)
            self.give_to_timer(task)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        task.delay_ms = self.draw_delay_ms(data)
        self.forget(task)
        self.give_to_timer(task)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        assert task.cancel() == self.forget(task)
        assert not task.cancel()

    @rule(
        delta_ns=st.one_of(
            st.integers(0, 3 * NS_PER_MS),
            st.integers(0, 3_000).map(lambda ms: ms * NS_PER_MS),
            st.integers(0, 30 * HOUR_MS).map(lambda ms: ms * NS_PER_MS),
        )
    )
    def advance_by_anything(self, delta_ns: int) -> None:
        self.advance_to_ns(self.clock.now_ns() + delta_ns)

    @rule(data=st.data())
    def advance_by_the_edge_of_a_level(self, data: st.DataObject) -> None:
        delta_ms = data.draw(edges_ms(self.tick_ms, self.wheel_size))
        self.advance_to_ns(self.clock.now_ns() + delta_ms * NS_PER_MS)

    @precondition(lambda self: self.pending)
    @rule(offset_ms=st.integers(-1, 1), which=st.integers(0, 3))
    def advance_to_a_pending_task(self, offset_ms: int, which: int) -> None:
        expiration_ms = self.pending[min(which, len(self.pending) - 1)][0] + offset_ms
        self.advance_to_ns(max(self.clock.now_ns(), expiration_ms * NS_PER_MS))

    @precondition(lambda self: self.pending)
    @rule(stops=st.integers(1, 5))
    def advance_from_bucket_to_bucket(self, stops: int) -> None:
        for _ in range(stops):
            next_ms = self.timer.next_expiration_ms()
            if next_ms is None:
                break
            self.advance_to_ns(max(self.clock.now_ns(), next_ms * NS_PER_MS))

    # --- what must hold

    @invariant()
    def both_have_the_same_pending(self) -> None:
        self.timer._check()
        held = [
            task
            for level in self.timer.snapshot(label=lambda task: task)["levels"]
            for bucket in level["buckets"]
            for task in bucket["tasks"]
        ]
        assert sorted(task.name for task in held) == sorted(name for _, name in self.pending)
        assert self.timer.size == len(self.pending)
        next_ms = self.timer.next_expiration_ms()
        if self.pending:
            assert next_ms is not None
            assert next_ms <= self.pending[0][0], "a driver would sleep too long"

    @invariant()
    def the_queue_is_bounded_by_the_buckets(self) -> None:
        assert self.timer.buckets_occupied <= self.wheel_size * self.timer.levels_in_use

    def teardown(self) -> None:
        if hasattr(self, "timer"):
            self.advance_to_ns(
                max([self.clock.now_ns(), *(when * NS_PER_MS for when, _ in self.pending)])
            )
            assert self.pending == []
            assert self.timer.close() == 0

    # --- the model

    def draw_delay_ms(self, data: st.DataObject) -> int:
        return data.draw(
            st.one_of(
                edges_ms(self.tick_ms, self.wheel_size),
                st.integers(-5, 100),
                st.integers(0, 2 * HOUR_MS),
            )
        )

    def give_to_timer(self, task: Watched) -> None:
        expiration_ms = -(-self.clock.now_ns() // NS_PER_MS) + max(0, task.delay_ms)
        self.pending.append((expiration_ms, task.name))
        self.pending.sort()
        self.runs.clear()
        self.timer.add(task)
        assert len(self.runs) <= 1

    def forget(self, task: Watched) -> bool:
        left = [item for item in self.pending if item[1] != task.name]
        was_pending = len(left) < len(self.pending)
        self.pending = left
        return was_pending

    def note_run(self, task: Watched) -> None:
        (expiration_ms,) = [when for when, name in self.pending if name == task.name]
        assert self.forget(task)
        now_ns = self.clock.now_ns()
        bucket_begins_ms = expiration_ms - expiration_ms % self.tick_ms
        assert now_ns >= bucket_begins_ms * NS_PER_MS, "early"
        self.runs.append(Run(task.name, expiration_ms, now_ns))

    def advance_to_ns(self, now_ns: int) -> None:
        self.runs.clear()
        self.clock.advance_to_ns(now_ns)
        now_ms = now_ns // NS_PER_MS
        due = [name for when, name in self.pending if when - when % self.tick_ms <= now_ms]
        self.timer.advance_clock(0)
        assert sorted(run.name for run in self.runs) == sorted(due), "lost, or run too soon"
        ticks = [run.expiration_ms // self.tick_ms for run in self.runs]
        assert ticks == sorted(ticks), "out of order"
        assert not self.timer.advance_clock(0), "something was left for the next call"


TimerAgainstSortedList.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None
)
test_the_timer_does_what_a_sorted_list_does = pytest.mark.slow(TimerAgainstSortedList.TestCase)
