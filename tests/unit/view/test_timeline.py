"""The wheel that is replayed against a timer: whatever is added, cancelled and let pass."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.view.timeline import ReplayedWheel, describe_levels
from timer import InlineExecutor, ManualClock, SystemTimer, TimerTask

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5_000)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("pass"), st.integers(0, 900)),
    ),
    max_size=40,
)


class Numbered(TimerTask):
    def __init__(self, number: int, delay_ms: int, left: bytearray) -> None:
        super().__init__(delay_ms)
        self.number, self.left = number, left

    def run(self) -> None:
        self.left[self.number] = 1


@settings(deadline=None)
@given(STEPS, st.sampled_from([1, 7]), st.sampled_from([2, 3, 20]), st.integers(0, 500))
def test_traced_wheel_matches_the_timer(
    steps: list[tuple[str, int]], tick_ms: int, size: int, start_ms: int
) -> None:
    clock, left = ManualClock(start_ms), bytearray(len(steps))
    timer = SystemTimer("oracle", tick_ms, size, clock, InlineExecutor())
    wheel, gone = ReplayedWheel(tick_ms, size, start_ms), bytearray(len(steps))
    tasks: list[Numbered] = []
    places = {}
    for what, amount in steps:
        if what == "add":
            tasks.append(Numbered(len(tasks), amount, left))
            timer.add(tasks[-1])
            places[len(tasks) - 1] = wheel.add(len(tasks) - 1, clock.now_ms() + amount)
        elif what == "cancel" and tasks:
            number = amount % len(tasks)
            if tasks[number].cancel():
                left[number] = gone[number] = 1
        elif what == "pass":
            clock.advance(amount)
            timer.advance_clock()
            places.update(wheel.advance(clock.now_ms(), gone))
        levels = timer.snapshot(lambda task: task.number)["levels"]  # type: ignore[attr-defined]
        assert {
            task: (level["level"], index)
            for level in levels
            for index, bucket in enumerate(level["buckets"])
            for task in bucket["tasks"]
        } == {task: place for task, place in places.items() if not left[task]}
        assert [level["covers_ms"] for level in levels] == [
            level["covers_ms"]
            for level in describe_levels(tick_ms, size, wheel.clock_ms, wheel.levels)
        ]
    timer.close()
