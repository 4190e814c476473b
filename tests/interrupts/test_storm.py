"""Real signals at any moment of the purgatory's life: everything has its one end all the same.

An alarm's handler raises, on the main thread, in whatever it runs just then: submitting, events,
thresholds, ends by key, the timer, reading the sizes, closing. What it broke off is gone on with by
what follows, and at the end nothing may be left.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from tests.interrupts.test_purgatory import THEN, Waiting, World

STORM_S = 4.0
CALLS_OF_A_LIFE = 60
SOON_S, LATE_S = 1e-6, 600e-6
"""The range in which the next alarm comes: a call takes some 5 to 50 microseconds."""


class Alarm(BaseException):
    """What the handler of the storm's signal raises."""


@pytest.fixture
def _alarms() -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, handle)
    left_s = signal.setitimer(signal.ITIMER_REAL, 0)[0]
    yield
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, left_s)


class Storm(World):
    """A world in which random calls are made, and alarms come."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.interrupts = 0
        self.users_locks: list[Any] = [None, None, self.lock(), self.lock()]
        purgatory = self.purgatory
        self.calls: list[Callable[[], object]] = [
            *[self.submit] * 4,
            self.make_ready,
            self.event_under_a_taken_lock,
            self.time_passes,
            lambda: self.pass_time(rng.randrange(20)),
            lambda: purgatory.check_and_complete("a"),
            lambda: purgatory.check_and_complete("b"),
            lambda: purgatory.advance("n", rng.randrange(100)),
            lambda: purgatory.forget("n"),
            lambda: rng.randrange(4) or purgatory.complete_all("b"),
            lambda: rng.randrange(4) or purgatory.fail_all("a", OSError("gone")),
            lambda: rng.randrange(4) or purgatory.cancel_for_key("a"),
            lambda: self.one().cancel(),
            lambda: self.one().force_complete(),
            lambda: (purgatory.num_delayed, purgatory.watched, purgatory.counters),
        ]

    def submit(self) -> None:
        operation = self.new(self.rng.choice([1, 20, 60_000]), self.rng.choice(self.users_locks))
        operation.ready = self.rng.random() < 0.1
        operation.raises = self.rng.random() < 0.1
        thresholds = {"n": self.rng.randrange(100)} if self.rng.random() < 0.3 else {}
        self.purgatory.try_complete_else_watch(operation, ["a", "b"], thresholds)

    def one(self) -> Waiting:
        if not self.made:
            self.submit()
        return self.rng.choice(self.made[-10:])

    def make_ready(self) -> None:
        self.one().ready = True

    def event_under_a_taken_lock(self) -> None:
        with self.locks[0]:
            self.purgatory.check_and_complete("a")

    def time_passes(self) -> None:
        self.clock.advance(self.rng.randrange(20))
        self.timer.advance_clock(0)

    def live(self) -> None:
        """Make random calls, each of which an alarm may break off."""
        for _ in range(CALLS_OF_A_LIFE):
            self.under_alarms(self.rng.choice(self.calls))

    def under_alarms(self, call: Callable[[], object]) -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(SOON_S, LATE_S))
            call()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            self.interrupts += 1
        # The alarm may have come while the timer was stopped.
        with suppress(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0)


# An alarm may come in a callback of a weak reference, where Python only prints it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("_alarms")
def test_a_storm_of_signals_leaves_nothing_stuck_or_lost() -> None:
    """Life after life, each of which ends by events, by the time, or by a close."""
    rng = random.Random(11)
    alarms = lives = 0
    end = time.monotonic() + STORM_S
    while time.monotonic() < end:
        storm = Storm(rng)
        storm.live()
        lives += 1
        alarms += storm.interrupts
        ending = THEN[lives % 3]
        storm.under_alarms(lambda storm=storm, ending=ending: ending(storm))  # type: ignore[misc]
        ending(storm)
        storm.assert_over()
    assert alarms > 20, f"in {lives} lives"
