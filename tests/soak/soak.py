"""A load of threads, an event loop, faults and cancellations at once, for any duration.

    make soak                                # 15 minutes
    make soak SECONDS=120                    # 2, as in .ci/run
    python -m tests.soak.soak --seconds 120 --seed 7

At the end everything must add up: each operation completed once, the counters equal to the counts
of its own, all watcher lists empty, no thread and no task still running, memory flat after the
first minute. Each deviation is printed, and the status is 1.
"""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from statistics import median

import click
import structlog

from purgatory import (
    AsyncPurgatory,
    DelayedOperation,
    DelayedOperationPurgatory,
    Outcome,
    PurgatoryFullError,
    WaitCancelledError,
)
from purgatory.core.locks import LockLike
from timer import SystemTimer
from timer.histogram import Histogram

CLIENTS = 6
HANDLERS = 200
KEYS = [f"key-{number}" for number in range(40)]
MAX_PENDING = 1_500
FLAT_WITHIN = 1.05


class Fault(Exception):
    """An exception that callbacks raise now and then."""


class SoakOperation(DelayedOperation):
    """An operation that completes once it is ready, and raises in its faulty stage."""

    __slots__ = ("callbacks", "faulty_stage", "ready")

    def __init__(self, delay_ms: int, lock: LockLike | None, faulty_stage: str | None) -> None:
        super().__init__(delay_ms, lock)
        self.ready = False
        self.faulty_stage = faulty_stage
        self.callbacks: Counter[str] = Counter()

    def try_complete(self) -> bool:
        if self.faulty_stage == "try_complete" and self.ready:
            raise Fault("try_complete")
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self._called("on_complete")

    def on_expiration(self) -> None:
        self._called("on_expiration")

    def on_failure(self, error: BaseException) -> None:
        self._called("on_failure")

    def _called(self, stage: str) -> None:
        self.callbacks[stage] += 1
        if self.faulty_stage == stage:
            raise Fault(stage)


class ThreadedLoad:
    """Clients on threads, in one purgatory with a reaper; each has its own random generator."""

    def __init__(self, seed: int, observed: Counter[str]) -> None:
        self.observed = observed
        self.purgatory = DelayedOperationPurgatory(
            "Soak", max_pending=MAX_PENDING, on_completed=self._completed
        )
        self.submitted = 0
        self.wrong: list[str] = []
        self.group_lock = threading.RLock()
        self._stop = threading.Event()
        self._count_lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._client, args=(random.Random(f"{seed} {n}"),))
            for n in range(CLIENTS)
        ]
        self._threads.append(threading.Thread(target=self._hold_the_group_lock))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _completed(self, operation: DelayedOperation, counted_as: str, wait_ns: int) -> None:
        with self._count_lock:
            self.observed[counted_as] += 1
        if isinstance(operation, SoakOperation) and any(
            times > 1 for times in operation.callbacks.values()
        ):
            self.wrong.append(f"{operation!r}: a callback ran twice, {operation.callbacks}")

    def _hold_the_group_lock(self) -> None:
        """Hold a lock that operations share, as code unaware of the purgatory does."""
        while not self._stop.wait(0.003):
            with self.group_lock:
                time.sleep(0.001)

    def _client(self, dice: random.Random) -> None:
        mine: list[SoakOperation] = []
        actions: list[Callable[[random.Random, list[SoakOperation]], object]] = [
            *[self._submit] * 10,
            *[self._complete] * 6,
            self._force,
            self._cancel,
            self._future,
            self._advance,
            self._key_goes_away,
        ]
        while not self._stop.is_set():
            for _ in range(20):
                dice.choice(actions)(dice, mine)
            del mine[:-50]
            time.sleep(0.002)

    def _new(self, dice: random.Random) -> SoakOperation:
        stages = ["try_complete", "on_complete", "on_expiration", "on_failure"]
        return SoakOperation(
            dice.choice([1, 5, 20, 100, 500]),
            self.group_lock if dice.random() < 0.1 else None,
            dice.choice(stages) if dice.random() < 0.02 else None,
        )

    def _submit(self, dice: random.Random, mine: list[SoakOperation]) -> None:
        operation = self._new(dice)
        keys = dice.sample(KEYS, dice.randint(1, 3))
        thresholds = {dice.choice(KEYS): dice.randint(0, 100_000)} if dice.random() < 0.3 else None
        self._count()
        try:
            self.purgatory.try_complete_else_watch(operation, keys, thresholds)
        except PurgatoryFullError:
            return
        mine.append(operation)

    def _complete(self, dice: random.Random, mine: list[SoakOperation]) -> None:
        if mine:
            operation = dice.choice(mine)
            operation.ready = True
            for key in operation._op_keys[:1]:
                self.purgatory.check_and_complete(key)

    def _force(self, dice: random.Random, mine: list[SoakOperation]) -> None:
        if mine:
            dice.choice(mine).force_complete()

    def _cancel(self, dice: random.Random, mine: list[SoakOperation]) -> None:
        if mine:
            dice.choice(mine).cancel()

    def _future(self, dice: random.Random, mine: list[SoakOperation]) -> None:
        self._count()
        try:
            future: Future[Outcome] = self.purgatory.future(self._new(dice), [dice.choice(KEYS)])
        except PurgatoryFullError:
            return
        if dice.random() < 0.3:
            future.cancel()
        elif dice.random() < 0.1 and future.result(60) is Outcome.PENDING:
            self.wrong.append("a future's result was PENDING")

    def _advance(self, dice: random.Random, mine: list[SoakOperation]) -> None:
        self.purgatory.advance(dice.choice(KEYS), dice.randint(0, 100_000))

    def _key_goes_away(self, dice: random.Random, mine: list[SoakOperation]) -> None:
        key = dice.choice(KEYS)
        luck = dice.random()
        if luck < 0.1:
            self.purgatory.cancel_for_key(key)
        elif luck < 0.2:
            self.purgatory.complete_for_key(key)
        elif luck < 0.3:
            self.purgatory.fail_for_key(key, Fault("the key went away"))

    def _count(self) -> None:
        with self._count_lock:
            self.submitted += 1


class LoopLoad:
    """Handlers on an event loop; some are cancelled, and other threads notify all of them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"{seed} loop")
        self.ended: Counter[str] = Counter()
        self.started = 0
        self.remaining_tasks = 0
        self.remaining_waits = 0
        self.outcomes: dict[str, int] = {}
        self.lateness = Histogram((1,)).snapshot()
        self.ready = threading.Event()
        self._stop = threading.Event()
        self._value = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    def start(self) -> None:
        self._thread.start()
        self.ready.wait()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    async def _main(self) -> None:
        async with AsyncPurgatory("SoakLoop") as purgatory:
            self.ready.set()
            notifier = threading.Thread(target=self._notify, args=(purgatory,))
            notifier.start()
            await asyncio.gather(*(self._handler(purgatory) for _ in range(HANDLERS)))
            await asyncio.to_thread(notifier.join)
            await asyncio.sleep(0.1)
            self.remaining_tasks = len(asyncio.all_tasks()) - 1
            self.remaining_waits = purgatory.watched + purgatory.num_delayed
            purgatory.core._check()
            self.outcomes = purgatory.counters.outcomes
            timer = purgatory.core.timer
            assert isinstance(timer, SystemTimer)
            self.lateness = timer.lateness.snapshot()

    def _notify(self, purgatory: AsyncPurgatory) -> None:
        dice = random.Random(1)
        while not self._stop.wait(0.001):
            purgatory.notify_threadsafe(dice.choice(KEYS))
            self._value += 1
            purgatory.advance_threadsafe("value", self._value)

    async def _handler(self, purgatory: AsyncPurgatory) -> None:
        dice = self.dice
        while not self._stop.is_set():
            self.started += 1
            wait = asyncio.create_task(self._wait(purgatory))
            if dice.random() < 0.2:
                await asyncio.sleep(dice.uniform(0, 0.05))
                wait.cancel()
            try:
                await wait
                self.ended["completed"] += 1
            except TimeoutError:
                self.ended["expired"] += 1
            except Fault:
                self.ended["failed"] += 1
            except (WaitCancelledError, asyncio.CancelledError):
                self.ended["cancelled"] += 1

    async def _wait(self, purgatory: AsyncPurgatory) -> object:
        dice = self.dice
        timeout = dice.choice([0.001, 0.02, 0.2])
        if dice.random() < 0.3:
            ahead = self._value + dice.randint(0, 300)
            return await purgatory.wait_for_threshold("value", ahead, timeout)
        luck = dice.random()

        def until() -> bool:
            if luck < 0.01:
                raise Fault("a condition")
            return dice.random() < luck / 5

        return await purgatory.wait(dice.sample(KEYS, 2), until, timeout)


def rss_mib() -> float:
    """Return the memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4_096 / 2**20


def soak(seconds: float, seed: int, say: Callable[[str], None] = print) -> list[str]:
    """Run the load, and return what was wrong at the end."""
    threads_before = set(threading.enumerate())
    observed: Counter[str] = Counter()
    threaded, on_loop = ThreadedLoad(seed, observed), LoopLoad(seed)
    threaded.start()
    on_loop.start()
    memory = _watch_memory(seconds, lambda: say(_line(threaded, on_loop)))
    threaded.stop()
    on_loop.stop()
    wrong = threaded.wrong + _wrong_in_threads(threaded) + _wrong_on_loop(on_loop)
    remaining = set(threading.enumerate()) - threads_before
    if remaining:
        wrong.append(f"threads still running: {sorted(thread.name for thread in remaining)}")
    if memory is not None:
        first, last = memory
        say(f"memory after the first minute {first:.1f} MiB, at the end {last:.1f} MiB")
        if last > first * FLAT_WITHIN:
            wrong.append(f"memory grew from {first:.1f} to {last:.1f} MiB")
    timer = threaded.purgatory.timer
    assert isinstance(timer, SystemTimer)
    for name, lateness in (("threads", timer.lateness.snapshot()), ("loop", on_loop.lateness)):
        say(f"expiry lateness on the {name}: p99 at most {lateness.quantile_ms(0.99)} ms")
    return wrong


def _watch_memory(seconds: float, report: Callable[[], None]) -> tuple[float, float] | None:
    """Sleep; return the memory after a minute and at the end, or None below 90 seconds."""
    samples: list[float] = []
    end_s = time.monotonic() + seconds
    while (missing_s := end_s - time.monotonic()) > 0:
        time.sleep(min(1, missing_s))
        samples.append(rss_mib())
        if len(samples) % 15 == 0:
            report()
    return (median(samples[55:65]), median(samples[-10:])) if len(samples) >= 90 else None


def _line(threaded: ThreadedLoad, on_loop: LoopLoad) -> str:
    return (
        f"{threaded.submitted:,} operations on threads ({threaded.purgatory.num_delayed} wait), "
        f"{on_loop.started:,} waits on the loop, {rss_mib():.1f} MiB"
    )


def _wrong_in_threads(load: ThreadedLoad) -> list[str]:
    purgatory = load.purgatory
    pending = purgatory.close()
    wrong: list[str] = []
    outcomes = {name: total for name, total in purgatory.counters.outcomes.items() if total}
    if sum(outcomes.values()) != load.submitted:
        wrong.append(f"submitted {load.submitted}, counted {outcomes}, pending at close {pending}")
    if outcomes != dict(load.observed):
        wrong.append(f"counted {outcomes}, observed {dict(load.observed)}")
    if purgatory.watched or purgatory.num_delayed or purgatory.watched_keys:
        wrong.append(f"on watcher lists: {purgatory.watched}, pending {purgatory.num_delayed}")
    purgatory._check()
    return wrong


def _wrong_on_loop(load: LoopLoad) -> list[str]:
    wrong: list[str] = []
    if sum(load.ended.values()) != load.started:
        wrong.append(f"{load.started} waits on the loop ended as {dict(load.ended)}")
    counted = sum(load.outcomes.values())
    never_began = load.started - counted  # cancelled before their first step
    if not 0 <= never_began <= load.ended["cancelled"]:
        wrong.append(f"{load.started} waits on the loop, counted {load.outcomes}")
    if load.remaining_tasks or load.remaining_waits:
        wrong.append(f"on the loop: {load.remaining_tasks} tasks, {load.remaining_waits} waits")
    return wrong


@click.command()
@click.option("--seconds", type=click.FloatRange(1), default=900.0, help="Duration.")
@click.option("--seed", default=1, help="Random seed.")
def main(seconds: float, seed: int) -> None:
    """Run the load, and check that everything adds up."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(50), cache_logger_on_first_use=True
    )
    wrong = soak(seconds, seed, lambda line: print(line, flush=True))
    gc.collect()
    for line in wrong:
        print(f"WRONG: {line}")
    print("everything adds up" if not wrong else f"{len(wrong)} things are wrong")
    raise click.exceptions.Exit(bool(wrong))


if __name__ == "__main__":
    main()
