"""A scheduler that runs threads one at a time, and switches where it is told to.

The threads are real, but only the one that holds the baton runs. Each access to shared state is a
*point* (see ``switch_points``): just before it, another thread may be made to run. The accesses
are noted in the order in which they happen, in the *trace*; a point's number is its place there. A
schedule is written as its deviations from "the running thread continues": ``"12>1 30>0"`` has
thread 1 run before access 12, and thread 0 before access 30. One schedule of one program gives the
same run each time.

Ground rules
------------
* A thread that waits for a taken lock gives the baton away. If no thread can run, that is a
  deadlock: the run ends, and the report has each thread's awaited lock.
* A thread that sleeps gives the baton away too; it can resume at any time, and does once no other
  thread can, and no other sleep ends before. Its time passes then.
* Giving the baton away is noted in the trace: where three run, the next owner is a decision.
* A thread touches nothing that is shared before its first point.
* Outside of a run (while a program is set up or looked at) locks work, and nothing is switched.
* The threads serve many runs. After one that failed they are thrown away.
"""

from __future__ import annotations

import random
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tests.proofs.core.accesses import GIVEN_AWAY, OPERATION, USERS_POINT

T = TypeVar("T")

MOST_ACCESSES = 20_000
"""After so many accesses a run is taken to be going round in circles."""

NEVER = 1 << 62


class Aborted(BaseException):
    """Ends the threads of a run that has failed."""


class Strategy(Protocol):
    """Chooses the thread that runs next, at the points it asks for."""

    stop: int
    """The number of the next point at which it is to be asked."""

    def choose(self, number: int, current: int | None, runnable: Sequence[int]) -> int:
        """Return one of ``runnable``, and set ``stop``.

        ``current`` is the thread that ran, or None if that one yielded.
        """


class Awaited(Protocol):
    """The condition that a thread waits for."""

    @property
    def is_free(self) -> bool:
        """Whether the thread is runnable."""


@dataclass
class Run:
    """The events of one run."""

    trace: list[int] = field(default_factory=list)
    """The accesses, in the order in which they happened."""
    turns: list[tuple[int, int]] = field(default_factory=list)
    """From which place in the trace on which thread ran."""
    can_go_on: list[tuple[int, int, bool]] = field(default_factory=list)
    """The places from which on a thread was runnable, or was not."""
    deviations: dict[int, int] = field(default_factory=dict)
    failure: str | None = None

    @property
    def schedule(self) -> str:
        """The deviations of this run, by which ``Fixed`` repeats it."""
        return " ".join(f"{number}>{thread}" for number, thread in self.deviations.items())


class Fixed:
    """Follows a schedule: the running thread continues, except at the deviations."""

    def __init__(self, deviations: Mapping[int, int] | str = "") -> None:
        if isinstance(deviations, str):
            pairs = (item.split(">") for item in deviations.split())
            deviations = {int(number): int(thread) for number, thread in pairs}
        self._deviations = deviations
        self._stops = sorted(deviations, reverse=True)
        self.stop = self._stops[-1] if self._stops else NEVER

    def choose(self, number: int, current: int | None, runnable: Sequence[int]) -> int:
        while self._stops and self._stops[-1] <= number:
            self._stops.pop()
        self.stop = self._stops[-1] if self._stops else NEVER
        default = runnable[0] if current is None else current
        chosen = self._deviations.get(number, default)
        return chosen if chosen in runnable else default


class Random:
    """Switches at random; how often is drawn first, so that long and short turns both occur.

    Args:
        rates: switches for each point, one of which is drawn.
    """

    def __init__(self, seed: int, rates: Sequence[float] = (0.01, 0.02, 0.05, 0.2)) -> None:
        self._random = random.Random(seed)
        self._rate = self._random.choice(rates)
        self.stop = self._next(0)

    def _next(self, number: int) -> int:
        return number + 1 + int(self._random.expovariate(self._rate))

    def choose(self, number: int, current: int | None, runnable: Sequence[int]) -> int:
        if number >= self.stop:
            self.stop = self._next(number)
        return self._random.choice([one for one in runnable if one != current] or runnable)


class ScheduledThread:
    """A thread that serves runs, and the reason why it is blocked in the present one."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = ""
        self.work: Callable[[], object] | None = None
        self.baton = _taken_lock()
        self.ended = _taken_lock()
        self.start("", None)

    def start(self, name: str, work: Callable[[], object] | None) -> None:
        """Begin a run; without work, end."""
        self.name = name
        self.work = work
        self.done = work is None
        self.asleep = False
        self.wakes_s = 0.0
        self.waits_for: Awaited | None = None
        self.was_free = True
        self.turns_held = 0

    @property
    def can_go_on(self) -> bool:
        """Whether it may be given the baton."""
        return not self.done and (self.waits_for is None or self.waits_for.is_free)


class Scheduler:
    """Runs threads under a strategy, one run after another."""

    def __init__(self) -> None:
        self.trace: list[int] = []
        self.stop = NEVER
        """At a trace of this length the strategy is asked; 0 while the threads are being ended."""
        self.waiting = 0
        """The number of threads that wait for a lock."""
        self.operations: dict[int, int] = {}
        """By identity: the offset from an access to this operation's."""
        self.current: ScheduledThread | None = None
        self.now_s = 0.0
        self.run_record = Run()
        self._strategy: Strategy = Fixed()
        self._pool: list[ScheduledThread] = []
        self._threads: list[ScheduledThread] = []

    def run(self, threads: Mapping[str, Callable[[], object]], strategy: Strategy) -> Run:
        """Run ``threads`` to their end, or until all are blocked."""
        while len(self._pool) < len(threads):
            thread = ScheduledThread(len(self._pool))
            self._pool.append(thread)
            start_new_thread(self._serve, (thread,))
        self._threads = self._pool[: len(threads)]
        for thread, (name, work) in zip(self._threads, threads.items(), strict=True):
            thread.start(name, work)
        self.trace.clear()
        run = self.run_record = Run(self.trace)
        self._strategy = strategy
        self.waiting = 0
        self.now_s = 0.0
        self._give_to(self._next(None))
        for thread in self._threads:
            thread.ended.acquire()
        self.current = None
        run.trace = self.trace[:]
        if self.stop == 0:
            self.throw_threads_away()
        self.stop = NEVER
        return run

    def fail(self, message: str) -> None:
        """Note the first thing that went wrong; the run continues."""
        if self.run_record.failure is None:
            self.run_record.failure = message

    @property
    def is_aborting(self) -> bool:
        """Whether the threads are being ended."""
        return self.stop == 0

    def stopped(self, access: int) -> None:
        """Let the strategy choose the thread that runs before ``access``, which was just noted."""
        if self.stop == 0:
            raise Aborted
        trace = self.trace
        trace.pop()
        if len(trace) >= MOST_ACCESSES:
            self._abort(f"no end after {MOST_ACCESSES} accesses")
        me = self._me()
        target = self._next(me)
        if target is not me:
            self._pass_to(target)
        trace.append(access)

    def wait_for(self, what: Awaited) -> None:
        """Let other threads run until ``what`` is free."""
        me = self._me()
        me.waits_for = what
        me.was_free = True
        self.waiting += 1
        try:
            self.look_who_waits()
            self._give_away()
        finally:
            me.waits_for = None
            self.waiting -= 1

    def look_who_waits(self) -> None:
        """Update the threads that can run, after a lock changed hands."""
        for thread in self._threads:
            if thread.waits_for is not None and thread.was_free != thread.waits_for.is_free:
                thread.was_free = not thread.was_free
                change = (len(self.trace), thread.index, thread.was_free)
                self.run_record.can_go_on.append(change)

    def sleep(self, seconds: float) -> None:
        """Let other threads run; the time passes."""
        if self.stop == 0:
            raise Aborted
        if len(self.trace) >= MOST_ACCESSES:
            self._abort(f"no end after {MOST_ACCESSES} accesses")
        me = self._me()
        me.asleep = True
        me.wakes_s = self.now_s + seconds
        try:
            self._give_away()
        finally:
            me.asleep = False
        self.now_s = max(self.now_s, me.wakes_s)

    def number(self, before: int, *parts: object) -> None:
        """Tell the operation that these are parts of from others.

        Args:
            before: how many there were before; its number must not depend on the schedule.
        """
        number = min(before, 1) if self.current is None else 2 + min(self.current.index, 1)
        for part in parts:
            self.operations[id(part)] = number * OPERATION

    def hold_turn(self, change: int) -> None:
        """Count the turns of lists that the current thread has."""
        self._me().turns_held += change

    @property
    def in_turn(self) -> bool:
        """Whether the current thread has the turn of some lists; or nothing runs."""
        return self.current is None or self.current.turns_held > 0

    def _me(self) -> ScheduledThread:
        assert self.current is not None
        return self.current

    def _give_away(self) -> None:
        self.trace.append(GIVEN_AWAY)
        target = self._next(None)
        if target is not self.current:
            self._pass_to(target)

    def _pass_to(self, target: ScheduledThread) -> None:
        me = self._me()
        self._give_to(target)
        me.baton.acquire()
        if self.stop == 0:
            raise Aborted

    def _give_to(self, target: ScheduledThread) -> None:
        self.run_record.turns.append((len(self.trace), target.index))
        self.current = target
        target.baton.release()

    def _next(self, current: ScheduledThread | None) -> ScheduledThread:
        """Return the next thread; ``current`` could."""
        runnable = [thread for thread in self._threads if thread.can_go_on]
        if current is None:
            awake = [thread for thread in runnable if not thread.asleep]
            runnable = awake or sorted(runnable, key=lambda thread: thread.wakes_s)
        if not runnable:
            waits = ", ".join(
                f"{thread.name} waits for {thread.waits_for}"
                for thread in self._threads
                if not thread.done
            )
            self._abort(f"deadlock: {waits}")
        number = len(self.trace)
        strategy = self._strategy
        if len(runnable) == 1 and number < strategy.stop:
            chosen = default = runnable[0].index
        else:
            indices = [thread.index for thread in runnable]
            running = None if current is None else current.index
            default = indices[0] if running is None else running
            chosen = strategy.choose(number, running, indices)
        if chosen != default:
            self.run_record.deviations[number] = chosen
        self.stop = min(strategy.stop, MOST_ACCESSES) + 1
        return self._threads[chosen]

    def _abort(self, message: str) -> None:
        self.fail(message)
        self.stop = 0
        for thread in self._threads:
            if thread is not self.current and not thread.done:
                thread.baton.release()
        raise Aborted

    def throw_threads_away(self) -> None:
        """Let the next run have new threads: interrupted work, or another native core, may have
        changed these."""
        for thread in self._pool:
            thread.start("", None)
            thread.baton.release()
        self._pool = []

    def _serve(self, thread: ScheduledThread) -> None:
        while True:
            thread.baton.acquire()
            if thread.work is None:
                return
            try:
                if self.stop != 0:
                    thread.work()
            except Aborted:
                pass
            except BaseException as error:
                self.fail(f"{thread.name} raised {error!r}")
            self._end(thread)
            thread.ended.release()

    def _end(self, thread: ScheduledThread) -> None:
        thread.done = True
        self.run_record.can_go_on.append((len(self.trace), thread.index, False))
        if self.stop == 0 or all(other.done for other in self._threads):
            return
        try:
            self.trace.append(GIVEN_AWAY)
            self._give_to(self._next(None))
        except Aborted:
            pass


def _taken_lock() -> LockType:
    lock = allocate_lock()
    lock.acquire()
    return lock


SCHEDULER = Scheduler()
"""The one that runs all."""


def at(value: T, access: int) -> T:
    """Note ``access``, before which another thread may run, and return ``value``."""
    trace = SCHEDULER.trace
    trace.append(access)
    if len(trace) >= SCHEDULER.stop:
        SCHEDULER.stopped(access)
    return value


def at_operation(value: T, access: int) -> T:
    """As ``at``, for a flag of an operation, or for the dict of its claims."""
    return at(value, access + SCHEDULER.operations.get(id(value), 0))


def at_lists(value: T, access: int) -> T:
    """As ``at``, for an access before which no thread may run if this one has the lists' turn."""
    trace = SCHEDULER.trace
    if SCHEDULER.in_turn:
        trace.append(access + 1)
    else:
        trace.append(access)
        if len(trace) >= SCHEDULER.stop:
            SCHEDULER.stopped(access)
    return value


def point() -> None:
    """Let another thread run here: for the code of a program."""
    at(None, USERS_POINT)


def fail(message: str) -> None:
    """Note that something went wrong, where raising would be caught."""
    if SCHEDULER.current is None:
        raise AssertionError(message)
    SCHEDULER.fail(message)
