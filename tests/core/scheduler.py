"""A scheduler that runs threads one at a time, and switches where it is told to.

The threads are real, but only the one that holds the baton runs. At each *switch point* it asks a
``Strategy`` who goes on. A schedule is written as its deviations from "whoever runs goes on":
``"12>1 30>0"`` has thread 1 go on at decision 12, and thread 0 at decision 30. One schedule of one
program gives the same run each time.

Ground rules
------------
* Only points at which more than one thread could go on count as decisions.
* A thread that waits for a taken lock gives the baton away. If nobody can go on, that is a
  deadlock: the run ends, and the report says who waits for what.
* A thread that sleeps lets all others go first, and its time passes at once.
* Outside of a run (while a program is set up or looked at) locks work, and nothing is switched.
"""

from __future__ import annotations

import random
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

MOST_STEPS = 20_000
"""After so many switch points a run is taken to be going round in circles."""


class Aborted(BaseException):
    """Ends the threads of a run that has failed."""


class Strategy(Protocol):
    """Says who goes on."""

    def __call__(self, step: int, current: int | None, runnable: Sequence[int]) -> int:
        """Return one of ``runnable``; ``current`` is who ran, or None if it can't go on."""


class Awaited(Protocol):
    """What a thread waits for."""

    @property
    def is_free(self) -> bool:
        """Whether the thread can go on."""


@dataclass(frozen=True)
class Decision:
    """One moment at which more than one thread could go on."""

    current: int | None
    runnable: tuple[int, ...]
    chosen: int

    @property
    def default(self) -> int:
        """Who goes on if nothing is said: whoever ran, else the first."""
        return self.runnable[0] if self.current is None else self.current


@dataclass
class Run:
    """What happened in one run."""

    decisions: list[Decision] = field(default_factory=list)
    failure: str | None = None

    @property
    def schedule(self) -> str:
        """The deviations of this run, by which ``Fixed`` repeats it."""
        return " ".join(
            f"{step}>{decision.chosen}"
            for step, decision in enumerate(self.decisions)
            if decision.chosen != decision.default
        )


class Fixed:
    """Follows a schedule: whoever runs goes on, but for the deviations."""

    def __init__(self, deviations: Mapping[int, int] | str = "") -> None:
        if isinstance(deviations, str):
            pairs = (item.split(">") for item in deviations.split())
            deviations = {int(step): int(thread) for step, thread in pairs}
        self._deviations = deviations

    def __call__(self, step: int, current: int | None, runnable: Sequence[int]) -> int:
        default = runnable[0] if current is None else current
        chosen = self._deviations.get(step, default)
        return chosen if chosen in runnable else default


class Random:
    """Switches at random; how often is drawn first, so that long and short turns both occur."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._likelihood = self._random.choice((0.02, 0.05, 0.1, 0.3))

    def __call__(self, step: int, current: int | None, runnable: Sequence[int]) -> int:
        if current is None or self._random.random() < self._likelihood:
            return self._random.choice(runnable)
        return current


class ScheduledThread:
    """A thread of a run, and why it can't go on."""

    def __init__(self, index: int, name: str, work: Callable[[], object]) -> None:
        self.index = index
        self.name = name
        self.work = work
        self.baton = _taken_lock()
        self.ended = _taken_lock()
        self.done = False
        self.asleep = False
        self.waits_for: Awaited | None = None
        self.guards = 0

    @property
    def can_go_on(self) -> bool:
        """Whether it may be given the baton."""
        return not self.done and (self.waits_for is None or self.waits_for.is_free)


class Scheduler:
    """Runs threads under a strategy, once.

    Args:
        strategy: says who goes on at each decision.
        on_thread: called at the beginning of each thread: to have it traced.
    """

    def __init__(self, strategy: Strategy, on_thread: Callable[[], object] | None = None) -> None:
        self.run_record = Run()
        self._strategy = strategy
        self._on_thread = on_thread
        self._threads: list[ScheduledThread] = []
        self._aborting = False
        self._steps = 0
        self.current: ScheduledThread | None = None
        self.now_s = 0.0

    def run(self, threads: Mapping[str, Callable[[], object]]) -> Run:
        """Run ``threads`` to their end, or until they can't go on."""
        self._threads = [
            ScheduledThread(index, name, work) for index, (name, work) in enumerate(threads.items())
        ]
        Active.scheduler = self
        try:
            for thread in self._threads:
                start_new_thread(self._work, (thread,))
            self._give_baton()
            for thread in self._threads:
                thread.ended.acquire()
        finally:
            Active.scheduler = None
        return self.run_record

    def fail(self, message: str) -> None:
        """Note the first thing that went wrong; the run goes on."""
        if self.run_record.failure is None:
            self.run_record.failure = message

    def point(self) -> None:
        """Let another thread go on, if the strategy says so."""
        if self._aborting:
            raise Aborted
        self._steps += 1
        if self._steps > MOST_STEPS:
            self._abort(f"no end after {MOST_STEPS} steps")
        self._switch()

    def wait_for(self, what: Awaited) -> None:
        """Let others go on until ``what`` is free."""
        me = self._me()
        me.waits_for = what
        try:
            self._switch()
        finally:
            me.waits_for = None

    def sleep(self, seconds: float) -> None:
        """Let all others go on that don't sleep themselves."""
        me = self._me()
        self.now_s += seconds
        me.asleep = True
        try:
            self.point()
        finally:
            me.asleep = False

    def enter_guard(self, change: int) -> None:
        """Count the guard locks that the current thread holds."""
        self._me().guards += change

    @property
    def guarded(self) -> bool:
        """Whether the current thread holds a guard lock."""
        return self._me().guards > 0

    @property
    def aborting(self) -> bool:
        """Whether the threads are being ended."""
        return self._aborting

    def _me(self) -> ScheduledThread:
        assert self.current is not None
        return self.current

    def _switch(self) -> None:
        me = self._me()
        target = self._next()
        if target is me:
            return
        self.current = target
        target.baton.release()
        me.baton.acquire()
        if self._aborting:
            raise Aborted

    def _next(self) -> ScheduledThread:
        runnable = [thread for thread in self._threads if thread.can_go_on]
        awake = [thread for thread in runnable if not thread.asleep]
        runnable = awake or runnable
        if not runnable:
            waits = ", ".join(
                f"{thread.name} waits for {thread.waits_for}"
                for thread in self._threads
                if not thread.done
            )
            self._abort(f"deadlock: {waits}")
        if len(runnable) == 1:
            return runnable[0]
        indices = tuple(thread.index for thread in runnable)
        me = self.current
        current = me.index if me is not None and me in runnable else None
        decisions = self.run_record.decisions
        chosen = self._strategy(len(decisions), current, indices)
        decisions.append(Decision(current, indices, chosen))
        return self._threads[chosen]

    def _give_baton(self) -> None:
        if not all(thread.done for thread in self._threads):
            self.current = self._next()
            self.current.baton.release()

    def _abort(self, message: str) -> None:
        self.fail(message)
        self._aborting = True
        for thread in self._threads:
            if thread is not self.current and not thread.done:
                thread.baton.release()
        raise Aborted

    def _work(self, thread: ScheduledThread) -> None:
        thread.baton.acquire()
        try:
            if self._on_thread is not None:
                self._on_thread()
            if not self._aborting:
                thread.work()
        except Aborted:
            pass
        except BaseException as error:
            self.fail(f"{thread.name} raised {error!r}")
        thread.done = True
        if not self._aborting:
            with suppress(Aborted):
                self._give_baton()
        thread.ended.release()


def _taken_lock() -> LockType:
    lock = allocate_lock()
    lock.acquire()
    return lock


class Active:
    """The scheduler whose threads run just now, if any."""

    scheduler: Scheduler | None = None


def point() -> None:
    """Let another thread go on here: for the code of a program."""
    scheduler = Active.scheduler
    if scheduler is not None:
        scheduler.point()


def point_if_unguarded() -> None:
    """Let another thread go on here, unless this one holds a lock that guards data."""
    scheduler = Active.scheduler
    if scheduler is not None and not scheduler.guarded:
        scheduler.point()


def fail(message: str) -> None:
    """Note that something went wrong, where raising would be caught."""
    scheduler = Active.scheduler
    if scheduler is None:
        raise AssertionError(message)
    scheduler.fail(message)
