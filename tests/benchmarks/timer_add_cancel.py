"""The cost of an add and a cancel with a million timeouts outstanding, beside those of event loops:
asyncio's own, uvloop, and rloop; and beside Kafka's own timer, where it can be run.

    python -m tests.benchmarks.timer_add_cancel

As many as are cancelled are added anew, a tenth of them at a time, until a little more than all
were replaced: that is one cycle of asyncio's loop, which marks what is cancelled, leaves it in its
heap, and rebuilds the heap once more than half of it is cancelled. The wheel takes out at once what
is cancelled, so asyncio's clean-up is shown as a figure of its own, per handle cancelled.

Delays are uniform in 1 to 60 s; nothing falls due meanwhile. Cancelled are the oldest, in the order
of their arrival (as responses come), or any, in random order. Loops, lists and random choices are
made alike and before the clock is read; the garbage collector is off for all, and then on for all;
the processor's time is measured.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from time import thread_time
from typing import Protocol

import rloop
import uvloop

from tests.benchmarks.kafka_classes import kafka_classes
from tests.benchmarks.measurement import Figure, Size, collector_off, in_turns, run_alone, say
from timer import NATIVE, SystemTimer, TimerTask

DELAYS_MS = range(1_000, 60_001)
FEW = 10_000
MANY = 1_000_000
BATCHES = 11
"""Tenths that are replaced in a cycle: with the 11th, over half of asyncio's heap is dead."""


def nothing() -> None:
    """The callback of all contenders."""


class Task(TimerTask):
    """Does nothing, as ``nothing`` does."""

    __slots__ = ()

    def run(self) -> None:
        nothing()


class Cancellable(Protocol):
    """The result of an add: a task or a handle."""

    def cancel(self) -> object: ...


class Contender(ABC):
    """A timer that holds ``outstanding`` timeouts.

    Args:
        outstanding: how many.
        in_random_order: cancel any, rather than the oldest.
    """

    def __init__(self, outstanding: int, in_random_order: bool) -> None:
        self.in_random_order = in_random_order
        self.random = random.Random(outstanding)
        self.waiting: list[Cancellable] = []
        self.batch = outstanding // 10
        for _ in range(10):
            self.add_batch()

    @abstractmethod
    def add_all(self, delays_ms: Sequence[int]) -> tuple[Sequence[Cancellable], float]:
        """Add one timeout per delay; return them, and how many seconds the adds took."""

    def clean_up(self) -> float:
        """Do what was put off when timeouts were cancelled, and return the seconds."""
        return 0.0

    @abstractmethod
    def close(self) -> None:
        """Free what the timer holds."""

    def add_batch(self) -> float:
        delays_ms = self.random.choices(DELAYS_MS, k=self.batch)
        added, spent_s = self.add_all(delays_ms)
        self.waiting += added
        return spent_s

    def cancel_batch(self) -> float:
        waiting = self.waiting
        if self.in_random_order:
            # The chosen ones change places with the oldest.
            for place in range(self.batch):
                other = self.random.randrange(place, len(waiting))
                waiting[place], waiting[other] = waiting[other], waiting[place]
        chosen = waiting[: self.batch]
        del waiting[: self.batch]
        start = thread_time()
        for timeout in chosen:
            timeout.cancel()
        return thread_time() - start

    def cycle(self) -> dict[str, float]:
        """Replace all timeouts; return nanoseconds per add, per cancel, per put-off clean-up."""
        cancels_s = adds_s = 0.0
        for _ in range(BATCHES):
            cancels_s += self.cancel_batch()
            adds_s += self.add_batch()
        per_one = 1e9 / (BATCHES * self.batch)
        return {
            "add": adds_s * per_one,
            "cancel": cancels_s * per_one,
            "clean-up": self.clean_up() * per_one,
        }


class Wheel(Contender):
    """``SystemTimer.add``, with tasks made beforehand."""

    def __init__(self, outstanding: int, in_random_order: bool) -> None:
        self.timer = SystemTimer("benchmark")
        super().__init__(outstanding, in_random_order)

    def add_all(self, delays_ms: Sequence[int]) -> tuple[Sequence[Cancellable], float]:
        tasks = [Task(delay_ms) for delay_ms in delays_ms]
        add = self.timer.add
        start = thread_time()
        for task in tasks:
            add(task)
        return tasks, thread_time() - start

    def close(self) -> None:
        self.timer.close()


class WheelCallLater(Wheel):
    """``SystemTimer.call_later``, which makes the task."""

    def add_all(self, delays_ms: Sequence[int]) -> tuple[Sequence[Cancellable], float]:
        call_later = self.timer.call_later
        start = thread_time()
        tasks = [call_later(delay_ms, nothing) for delay_ms in delays_ms]
        return tasks, thread_time() - start


class Asyncio(Contender):
    """``loop.call_later``, which makes the handle."""

    def __init__(self, outstanding: int, in_random_order: bool) -> None:
        self.loop = self.new_loop()
        super().__init__(outstanding, in_random_order)

    def add_all(self, delays_ms: Sequence[int]) -> tuple[Sequence[Cancellable], float]:
        delays_s = [delay_ms / 1_000 for delay_ms in delays_ms]
        call_later = self.loop.call_later
        start = thread_time()
        handles = [call_later(delay_s, nothing) for delay_s in delays_s]
        return handles, thread_time() - start

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop()

    def clean_up(self) -> float:
        # The loop's time stands still meanwhile: it must clean up, and run nothing that is due.
        setattr(self.loop, "time", lambda: 0.0)  # noqa: B010  (mypy: not to be assigned to)
        before = len(self.loop._scheduled)  # type: ignore[attr-defined]
        self.loop.call_soon(self.loop.stop)
        start = thread_time()
        self.loop.run_forever()
        spent_s = thread_time() - start
        delattr(self.loop, "time")
        after = len(self.loop._scheduled)  # type: ignore[attr-defined]
        assert after < before or before < 1_000, "the loop did not clean up"
        return spent_s

    def close(self) -> None:
        self.loop.close()


class Uvloop(Asyncio):
    """The same with uvloop, which puts nothing off."""

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return uvloop.new_event_loop()

    def clean_up(self) -> float:
        return 0.0


class Rloop(Uvloop):
    """The same with rloop, which marks what is cancelled, and keeps it."""

    def new_loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = rloop.new_event_loop()
        return loop


KINDS: dict[str, type[Contender]] = {
    "add": Wheel,
    "call_later": WheelCallLater,
    "asyncio": Asyncio,
    "uvloop": Uvloop,
    "rloop": Rloop,
}


def compare(
    outstanding: int,
    in_random_order: bool,
    rounds: int,
    repeats: int = 1,
    collecting: bool = False,
) -> dict[str, dict[str, float]]:
    """Return nanoseconds by contender and step, medians of cycles that were run in turns."""
    with nullcontext() if collecting else collector_off():
        contenders = {
            name: kind(outstanding, in_random_order)
            for name, kind in KINDS.items()
            # Its tasks are cancelled as those of ``add`` are.
            if not (in_random_order and kind is WheelCallLater)
        }

        def turn(contender: Contender) -> dict[str, float]:
            cycles = [contender.cycle() for _ in range(repeats)]
            return {step: sum(cycle[step] for cycle in cycles) / repeats for step in cycles[0]}

        measured = in_turns(
            {name: lambda one=one: turn(one) for name, one in contenders.items()},  # type: ignore[misc]
            rounds,
        )
        for contender in contenders.values():
            contender.close()
    order = "in random order" if in_random_order else "in order of arrival"
    say(f"{outstanding:,} outstanding, cancelled {order}: ns per add, cancel, put-off clean-up")
    for name, steps in measured.items():
        say(f"  {name:<10} " + " ".join(f"{ns:6.0f}" for ns in steps.values()))
    return measured


def beside_kafkas(size: Size) -> list[Figure]:
    """Compare tasks that are added, cancelled in order, made and added, in an empty timer."""
    count = size.pick(2_000, MANY)
    with kafka_classes(size) as kafka:
        if kafka is None:
            return []
        kafka.warm_up(1, count)
        with collector_off():
            ns = in_turns(
                {"ours": lambda: filled_ns(count), "Kafka's": lambda: kafka.timeouts_ns(count)}, 5
            )
    figures = []
    for step, most in (("add", 1.5), ("cancel", None), ("make and add", None)):
        ours, theirs = ns["ours"][step], ns["Kafka's"][step]
        say(f"{count:,} in turns with Kafka's, ns per {step}: {ours:.0f}, Kafka's {theirs:.0f}")
        figures.append(Figure(f"{step} of {count:,} / Kafka's", ours / theirs, "x", most))
    return figures


def filled_ns(count: int) -> dict[str, float]:
    """Return nanoseconds for each add, cancel, and ``call_later``, of a timer that was empty."""
    delays_ms = random.Random(count).choices(DELAYS_MS, k=count)
    tasks = [Task(delay_ms) for delay_ms in delays_ms]
    timer = SystemTimer("benchmark")
    add, call_later = timer.add, timer.call_later
    times_s = [thread_time()]
    for task in tasks:
        add(task)
    times_s.append(thread_time())
    for task in tasks:
        task.cancel()
    times_s.append(thread_time())
    calls = [call_later(delay_ms, nothing) for delay_ms in delays_ms]
    times_s.append(thread_time())
    assert len(calls) == timer.size
    timer.close()
    steps = ("add", "cancel", "make and add")
    return {
        step: (end_s - begin_s) / count * 1e9
        for step, begin_s, end_s in zip(steps, times_s, times_s[1:], strict=False)
    }


def measure(size: Size = Size.USUAL) -> list[Figure]:
    rounds = size.pick(1, 3)
    few = compare(size.pick(100, FEW), False, rounds, repeats=size.pick(1, 20))
    many = compare(size.pick(2_000, MANY), False, rounds)
    at_random = compare(size.pick(2_000, MANY), True, rounds)
    collecting = compare(size.pick(2_000, MANY), False, rounds, collecting=True)
    at_many = f"at {MANY:,}:"

    def figure(
        name: str, ours: float, theirs: float, whose: str = "asyncio", native: float = 1.0
    ) -> Figure:
        return Figure(f"{at_many} {name} / {whose}'s", ours / theirs, "x", native if NATIVE else 1)

    theirs = many["asyncio"]
    random_theirs = at_random["asyncio"]
    return [
        figure("add", many["add"]["add"], theirs["add"], native=0.08),
        figure("call_later", many["call_later"]["add"], theirs["add"], native=0.13),
        figure("cancel in order of arrival", many["add"]["cancel"], theirs["cancel"], native=0.35),
        figure(
            "cancel in random order",
            at_random["add"]["cancel"],
            random_theirs["cancel"],
            native=0.55,
        ),
        figure(
            "cancel in order of arrival, cleaned up",
            many["add"]["cancel"],
            theirs["cancel"] + theirs["clean-up"],
        ),
        figure(
            "cancel in random order, cleaned up",
            at_random["add"]["cancel"],
            random_theirs["cancel"] + random_theirs["clean-up"],
        ),
        *(
            figure(name, many[ours][step], many[loop][step], loop)
            for loop in ("uvloop", "rloop")
            for name, ours, step in (
                ("call_later", "call_later", "add"),
                ("cancel in order of arrival", "add", "cancel"),
            )
        ),
        *(
            figure(
                f"with the collector on, {name}",
                collecting[name]["add"],
                collecting[theirs_too]["add"],
                theirs_too,
            )
            for name in ("add", "call_later")
            for theirs_too in ("asyncio", "uvloop", "rloop")
        ),
        *beside_kafkas(size),
        Figure(
            f"add at {MANY:,} / at {FEW:,}", many["add"]["add"] / few["add"]["add"], "x", target=1.5
        ),
    ]


if __name__ == "__main__":
    run_alone(measure)
