"""Tasks that note that they ran, and a timer that runs them where the test stands."""

from __future__ import annotations

from timer import Clock, InlineExecutor, ManualClock, SystemTimer, TimerTask


class NamedTask(TimerTask):
    """Appends its name to ``ran``."""

    def __init__(self, delay_ms: int, name: object, ran: list[object]) -> None:
        super().__init__(delay_ms)
        self.name = name
        self.ran = ran

    def run(self) -> None:
        self.ran.append(self.name)


class Counted(TimerTask):
    """Counts how often it was begun."""

    def __init__(self, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.runs = 0

    def run(self) -> None:
        self.runs += 1


def name_of(task: TimerTask) -> object:
    """Label a task in a snapshot."""
    assert isinstance(task, NamedTask)
    return task.name


def inline_timer(clock: Clock, tick_ms: int = 1, wheel_size: int = 20) -> SystemTimer:
    """Return a timer that runs its tasks on the thread that drives it."""
    return SystemTimer("test", tick_ms, wheel_size, clock=clock, executor=InlineExecutor())


def move(clock: ManualClock, timer: SystemTimer, delta_ms: int) -> bool:
    """Let time pass, and run what fell due meanwhile; say whether a bucket was due."""
    clock.advance(delta_ms)
    due = timer.advance_clock()
    timer._check()
    return due


def move_from_bucket_to_bucket(clock: ManualClock, timer: SystemTimer) -> list[int]:
    """Jump to each bucket in turn until nothing is pending, and return the times of the jumps."""
    stops: list[int] = []
    while (next_ms := timer.next_expiration_ms()) is not None:
        stops.append(next_ms)
        clock.advance_to(next_ms)
        assert timer.advance_clock()
        timer._check()
    return stops
