"""The wheel as a data structure: which level and bucket a task goes to, and how levels turn."""

from __future__ import annotations

import pytest

from tests.unit.timer.named_task import (
    NamedTask,
    inline_timer,
    move,
    move_from_bucket_to_bucket,
    name_of,
)
from timer import ManualClock, SystemTimer, TimerTask, TimingWheel
from timer.delay_queue import DelayQueue
from timer.timer_task import TimerTaskEntry
from timer.timer_task_list import TimerTaskList


def entry_at(expiration_ms: int) -> TimerTaskEntry:
    """Return an entry as the timer makes it: its task points back at it."""
    task: TimerTask = NamedTask(0, expiration_ms, [])
    entry = TimerTaskEntry(task, expiration_ms)
    task._timer_entry = entry
    return entry


def bucket_of(wheel: TimingWheel, entry: TimerTaskEntry) -> TimerTaskList:
    """Return the bucket that holds ``entry``."""
    (bucket,) = [
        bucket
        for level in wheel.levels()
        for bucket in level.buckets
        if any(held is entry for held in bucket)
    ]
    return bucket


def place(wheel: TimingWheel, expiration_ms: int) -> tuple[int, int, int]:
    """Add a task; return the level, bucket and expiration of its bucket."""
    entry = entry_at(expiration_ms)
    assert wheel.add(entry)
    wheel._check()
    bucket = bucket_of(wheel, entry)
    return bucket.level, bucket.index, bucket.expiration_ms


def new_wheel(tick_ms: int = 1, wheel_size: int = 20, start_ms: int = 0) -> TimingWheel:
    return TimingWheel(tick_ms, wheel_size, start_ms, DelayQueue())


def turn(wheel: TimingWheel, now_ms: int) -> list[int]:
    """Do as a timer does at ``now_ms``: poll, advance, flush; return what expired."""
    expired: list[int] = []

    while (queued := wheel.queue.first_due(now_ms)) is not None:
        begin_ms, _, _, bucket = queued
        held = list(bucket)
        bucket.flush()
        wheel.advance_clock(begin_ms)
        wheel.queue.remove(queued)
        for entry in held:
            if not wheel.add(entry):
                expired.append(entry.expiration_ms)
        wheel._check()
    return expired


def covers_ms(timer: SystemTimer) -> list[list[int]]:
    return [level["covers_ms"] for level in timer.snapshot()["levels"]]


def test_delay_2_at_time_0_goes_to_bucket_2() -> None:
    assert place(new_wheel(), 2) == (1, 2, 2)


def test_wheel_at_time_2_puts_delay_8_in_10_and_19_in_1() -> None:
    wheel = new_wheel()
    wheel.advance_clock(2)
    assert place(wheel, 2 + 8) == (1, 10, 10)
    assert place(wheel, 2 + 19) == (1, 1, 21)


def test_350_ms_goes_to_bucket_17_of_level_2() -> None:
    assert place(new_wheel(), 350) == (2, 17, 340)


def test_450_ms_goes_to_bucket_1_of_level_3_with_all_of_400_to_800() -> None:
    wheel = new_wheel()
    assert place(wheel, 450) == (3, 1, 400)
    level_3 = wheel.levels()[2]
    assert level_3.tick_ms == 400
    for expiration_ms in (446, 455, 473, 400, 799):
        assert place(wheel, expiration_ms) == (3, 1, 400)
    assert place(wheel, 399)[0] == 2
    assert place(wheel, 800) == (3, 2, 800)


def test_450_ms_falls_through_three_levels_and_runs_on_time() -> None:
    clock = ManualClock()
    timer = inline_timer(clock)
    ran: list[object] = []
    timer.add(NamedTask(450, "450", ran))

    def place_now() -> tuple[int, int, int]:
        (queued,) = timer.snapshot()["delay_queue"]
        return queued["level"], queued["bucket"], queued["expiration_ms"]

    assert place_now() == (3, 1, 400)
    move(clock, timer, 400)
    level, bucket, begin_ms = place_now()  # 50 ms are left: [40, 60) ahead
    assert (level, bucket, begin_ms - clock.now_ms()) == (2, 2, 40)
    move(clock, timer, 40)
    level, bucket, begin_ms = place_now()  # 10 ms are left: [10, 11) ahead
    assert (level, bucket, begin_ms - clock.now_ms()) == (1, 10, 10)
    move(clock, timer, 9)
    assert ran == []
    move(clock, timer, 1)
    assert ran == ["450"]
    assert clock.now_ms() == 450


def test_tick_20_puts_an_expiration_of_237_into_bucket_11() -> None:
    assert place(new_wheel(tick_ms=20), 237) == (1, 11, 220)


def test_a_start_at_123_with_tick_20_is_rounded_down_to_120() -> None:
    wheel = new_wheel(tick_ms=20, start_ms=123)
    assert wheel.current_time_ms == 120
    assert wheel.end_ms == 520


def test_interval_is_tick_times_size_and_the_next_levels_tick() -> None:
    wheel = new_wheel(tick_ms=3, wheel_size=7)
    place(wheel, 10_000)
    assert [level.tick_ms for level in wheel.levels()] == [3, 21, 147, 1029, 7203]
    assert [level.interval_ms for level in wheel.levels()] == [21, 147, 1029, 7203, 50421]
    assert {len(level.buckets) for level in wheel.levels()} == {7}


@pytest.mark.parametrize(
    ("delay_ms", "levels"),
    [
        (1, 1),
        (19, 1),
        (20, 2),
        (399, 2),
        (400, 3),
        (7_999, 3),
        (8_000, 4),
        (30_000, 4),
        (159_999, 4),
        (160_000, 5),
    ],
)
def test_four_levels_of_20_buckets_from_1_ms_cover_160_s(delay_ms: int, levels: int) -> None:
    timer = inline_timer(ManualClock())
    timer.call_later(delay_ms, print)
    assert timer.levels_in_use == levels
    assert timer.snapshot()["levels"][-1]["covers_ms"][1] > delay_ms


def test_clock_moves_twice_for_tasks_at_200_and_840_ms() -> None:
    clock = ManualClock()
    timer = inline_timer(clock, tick_ms=1, wheel_size=1_000)
    ran: list[object] = []
    timer.add(NamedTask(200, "first", ran))
    timer.add(NamedTask(840, "second", ran))
    stops = move_from_bucket_to_bucket(clock, timer)
    assert stops == [200, 840]
    assert ran == ["first", "second"]
    empty_ticks = [end - begin - 1 for begin, end in zip([0, *stops], stops, strict=False)]
    assert empty_ticks == [199, 639]


def test_clock_stops_with_20_buckets_only_at_changes_of_level() -> None:
    clock = ManualClock()
    timer = inline_timer(clock)
    timer.add(NamedTask(200, 1, []))
    timer.add(NamedTask(840, 2, []))
    assert move_from_bucket_to_bucket(clock, timer) == [200, 800, 840]


@pytest.mark.parametrize("expiration_ms", [99, 100, 119])
def test_an_entry_that_expires_within_the_present_tick_is_refused(expiration_ms: int) -> None:
    wheel = new_wheel(tick_ms=20, start_ms=100)
    assert not wheel.add(entry_at(expiration_ms))
    assert len(wheel.queue) == 0
    assert wheel.add(entry_at(120))


def test_entry_needs_no_lock_only_if_its_bucket_is_queued() -> None:
    wheel = new_wheel()
    refused = entry_at(7)
    assert not wheel.add_if_queued(refused)
    assert not wheel.add_if_queued(entry_at(450)), "there is no such level yet"
    assert place(wheel, 7) == (1, 7, 7)
    assert wheel.add_if_queued(refused)
    wheel._check()
    assert len(wheel.buckets[7]) == 2
    assert not wheel.add_if_queued(entry_at(27)), "the bucket is queued for 7, not for 27"


@pytest.mark.parametrize("cascades", [False, True])
@pytest.mark.parametrize("queued_again", [False, True])
def test_entry_added_to_an_expired_bucket_is_refused(cascades: bool, queued_again: bool) -> None:
    """The bucket is emptied between the look at it and the insertion."""
    wheel = new_wheel()
    place(wheel, 7)
    bucket = wheel.buckets[7]
    old = bucket.entries, bucket.cascaded

    class EmptiedMeanwhile:
        """Its expiration is asked for just before the insertion, and just after."""

        def __getattr__(self, name: str) -> object:
            return getattr(bucket, name)

        @property
        def expiration_ms(self) -> int:
            answer = bucket.expiration_ms
            if bucket.entries is old[0]:
                bucket.flush()
                if queued_again:
                    wheel.queue.offer(bucket, 7)
            return answer

    wheel.buckets[7] = EmptiedMeanwhile()  # type: ignore[call-overload]
    entry = entry_at(7)
    if cascades:
        TimerTaskList().add(entry)
    assert not wheel.add_if_queued(entry)
    assert len(bucket) == 0, "it went into what the bucket held before"
    assert entry in old[1] if cascades else entry.bucket is old[0]


def test_a_bucket_is_queued_once_however_many_entries_it_holds() -> None:
    wheel = new_wheel()
    for _ in range(100):
        place(wheel, 7)
    assert len(wheel.queue) == 1
    assert len(wheel.buckets[7]) == 100


def test_a_bucket_that_was_flushed_can_be_queued_for_its_next_round() -> None:
    wheel = new_wheel()
    place(wheel, 7)
    place(wheel, 8)
    assert turn(wheel, 8) == [7, 8]
    assert place(wheel, 27) == (1, 7, 27)
    assert turn(wheel, 26) == []
    assert turn(wheel, 27) == [27]


def test_the_clock_moves_by_whole_ticks_and_never_back() -> None:
    wheel = new_wheel(tick_ms=20, start_ms=120)
    for time_ms, current_time_ms in [(139, 120), (140, 140), (159, 140), (12, 140), (225, 220)]:
        wheel.advance_clock(time_ms)
        assert wheel.current_time_ms == current_time_ms


def test_higher_levels_move_when_their_tick_is_over() -> None:
    wheel = new_wheel()
    place(wheel, 450)
    wheel.advance_clock(19)
    assert [level.current_time_ms for level in wheel.levels()] == [19, 0, 0]
    wheel.advance_clock(399)
    assert [level.current_time_ms for level in wheel.levels()] == [399, 380, 0]
    wheel.advance_clock(400)
    assert [level.current_time_ms for level in wheel.levels()] == [400, 400, 400]


def test_new_level_starts_at_the_time_rounded_down_to_its_tick() -> None:
    wheel = new_wheel(start_ms=1_234)
    place(wheel, 1_234 + 500)
    assert [level.current_time_ms for level in wheel.levels()] == [1_234, 1_220, 1_200]


def test_overdue_task_runs_from_any_level_at_once() -> None:
    clock = ManualClock()
    timer = inline_timer(clock)
    ran: list[object] = []
    timer.add(NamedTask(400, "the first of its bucket on level 3", ran))
    clock.advance(400)
    assert timer.advance_clock()
    assert ran == ["the first of its bucket on level 3"]
    assert timer.buckets_occupied == 0


@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("offset_ms", [-1, 0, 1])
@pytest.mark.parametrize("start_ms", [0, 1, 7_777])
def test_task_at_the_edge_of_each_level_runs_in_its_millisecond(
    level: int, offset_ms: int, start_ms: int
) -> None:
    clock = ManualClock(start_ms)
    timer = inline_timer(clock)
    ran_at: list[int] = []
    delay_ms = 20**level + offset_ms
    timer.call_later(delay_ms, lambda: ran_at.append(clock.now_ms()))
    stops = move_from_bucket_to_bucket(clock, timer)
    assert ran_at == [start_ms + delay_ms]
    assert len(stops) <= timer.levels_in_use


def test_tasks_of_a_bucket_cascade_in_order_of_addition() -> None:
    clock = ManualClock()
    timer = inline_timer(clock)
    for name in range(5):
        timer.add(NamedTask(450, name, []))
    for delta_ms, level, bucket in [(0, 3, 1), (400, 2, 2), (40, 1, 10)]:
        move(clock, timer, delta_ms)
        levels = timer.snapshot(label=name_of)["levels"]
        assert levels[level - 1]["buckets"][bucket]["tasks"] == [0, 1, 2, 3, 4]


def test_a_snapshot_has_the_range_of_each_level() -> None:
    clock = ManualClock(1_234)
    timer = inline_timer(clock)
    timer.call_later(500, print)
    assert covers_ms(timer) == [[1_234, 1_254], [1_220, 1_620], [1_200, 9_200]]
