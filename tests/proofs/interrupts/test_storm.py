"""Real signals at any moment of the purgatory's life: each operation is completed exactly once.

An alarm's handler raises, on the main thread, in any call: submitting, events, thresholds, ends by
key, the timer, reading the sizes, closing. Later calls resume the interrupted work, and at the end
no operation is pending.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, NoReturn

import pytest
import structlog

from purgatory import DelayedOperationPurgatory
from tests.proofs.interrupts.alarms import Alarms
from tests.proofs.interrupts.own_process import run_in_own_process
from tests.proofs.interrupts.test_event_loop import Flagged, Stage
from tests.proofs.interrupts.test_purgatory import THEN, Waiting, World, an_event, closing
from tests.proofs.interrupts.tracing import LIBRARY
from timer import SystemTimer
from timer.locks import ScopedLock

CALLS_OF_A_LIFE = 60
SOME_MS = 2
ENOUGH_ALARMS = 20


class Storm(World):
    """A world in which random calls are made, and alarms come."""

    def __init__(self, rng: random.Random, alarms: Alarms) -> None:
        super().__init__()
        self.rng = rng
        self.alarms = alarms
        self.endings = THEN
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
            lambda: rng.randrange(4) or purgatory.complete_for_key("b"),
            lambda: rng.randrange(4) or purgatory.fail_for_key("a", OSError("gone")),
            lambda: rng.randrange(4) or purgatory.cancel_for_key("a"),
            lambda: self.one().cancel(),
            lambda: self.one().force_complete(),
            lambda: self.one().wait(0.0005),
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
        with ScopedLock(self.locks[0]):  # an alarm would leave a plain one taken on 3.14
            self.purgatory.check_and_complete("a")

    def time_passes(self) -> None:
        self.clock.advance(self.rng.randrange(20))
        self.timer.advance_clock(0)

    def live(self) -> None:
        """Make random calls, each of which an alarm may break off, and come to an end."""
        ending = self.rng.choice(self.endings)
        calls = [self.rng.choice(self.calls) for _ in range(CALLS_OF_A_LIFE)]
        for call in [*calls, lambda: ending(self)]:
            self.interrupts += self.alarms.during(call)
        ending(self)
        self.assert_over()


class StormBesideAReaper(Storm):
    """... and whose timer is driven by a reaper's thread, by the machine's clock."""

    def __init__(self, rng: random.Random, alarms: Alarms) -> None:
        super().__init__(rng, alarms)
        self.endings = [an_event, closing]
        # An alarm while a thread is being started may keep that from ever beginning.
        begun: SimpleQueue[None] = SimpleQueue()
        self.timer.call_later(0, begun.put, None)
        begun.get(timeout=60)

    def make_purgatory(self, **options: Any) -> DelayedOperationPurgatory:
        self.timer = SystemTimer("test")
        return DelayedOperationPurgatory("test", timer=self.timer, **options)

    def pass_time(self, delta_ms: int) -> None:
        time.sleep(min(delta_ms, SOME_MS) / 1_000)

    def time_passes(self) -> None:
        self.pass_time(SOME_MS)

    def assert_over(self) -> None:
        """Assert that all work is finished; the reaper's thread may just be resuming some of it."""
        end_s = time.monotonic() + 60
        while (
            self.timer.size
            or self.purgatory.num_delayed
            or self.purgatory._state.completing_operations()
        ):
            an_event(self)
            assert time.monotonic() < end_s, "something is left"
        self.purgatory.close("fail")
        super().assert_over()
        self.timer.close()


class StormOnALoop(Stage):
    """A virtual loop on which random calls are made, and alarms come."""

    def __init__(self, rng: random.Random, alarms: Alarms) -> None:
        super().__init__()
        self.rng = rng
        self.alarms = alarms
        purgatory = self.purgatory
        self.waits: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: self.until_ready(self.timeout_s()),
            lambda: purgatory.wait_for_threshold("hw", rng.randrange(100), self.timeout_s()),
            lambda: purgatory.submit(
                Flagged(rng.choice([10, 60_000])), ["log"], {"hw": rng.randrange(100)}
            ),
        ]
        self.calls: list[Callable[[], object]] = [
            *[lambda: self.park(rng.choice(self.waits)())] * 4,
            lambda: purgatory.notify("log"),
            lambda: purgatory.notify_threadsafe("log"),
            lambda: purgatory.advance("hw", rng.randrange(100)),
            lambda: purgatory.advance_threadsafe("hw", rng.randrange(100)),
            lambda: self.resume(0.02),
            lambda: self.tasks and rng.choice(self.tasks).cancel(),
        ]

    def timeout_s(self) -> float | None:
        return self.rng.choice([None, 0.01, 0.2])

    def live(self) -> None:
        """Make random calls, each of which an alarm may break off, and come to an end."""
        with self:
            for _ in range(CALLS_OF_A_LIFE):
                self.alarms.during(self.rng.choice(self.calls))
            self.resume()
            self.ready = True
            self.purgatory.notify("log")
            self.purgatory.advance("hw", 1_000)
            for task in self.tasks:
                task.cancel()
            self.resume()
            self.close_and_check()


STORMS: dict[str, Callable[[random.Random, Alarms], Storm | StormOnALoop]] = {
    "on one thread": Storm,
    "beside a reaper": StormBesideAReaper,
    "on a loop": StormOnALoop,
}


def _drop(logger: object, name: str, event: object) -> NoReturn:
    raise structlog.DropEvent


def storm(where: str, seconds: str) -> None:
    """Life after life, each of which ends by events, by the time, or by a close.

    For so many seconds, or until enough alarms came: on a busy machine that may take longer.
    """
    # Not the standard library's logs: before Python 3.13 an alarm may leave their lock taken.
    structlog.configure(processors=[_drop])
    rng = random.Random(11)
    # Between its own lines and ours, a signal that raises may cost a loop what it is about to run.
    alarms = Alarms(rng, LIBRARY if where == "on a loop" else None)
    lives = 0
    end_s = time.monotonic() + float(seconds)
    while time.monotonic() < end_s or alarms.came < ENOUGH_ALARMS:
        STORMS[where](rng, alarms).live()
        lives += 1
    print(f"{alarms.came} alarms in {lives} lives")


@pytest.mark.parametrize("where", STORMS)
def test_a_storm_of_signals_leaves_nothing_stuck_or_lost(where: str) -> None:
    run_in_own_process(storm, where, "4")
