"""Everything at once: two purgatories on one timer, real threads, locks of the user's, callbacks.

``test_lock_order`` loads it by ``fresh_core`` with locks that are recorded.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from timer import SystemTimer

KEYS = range(6)

OnCallback = Callable[[str], object]
"""Told the name of each callback that begins."""


class Busy(DelayedOperation):
    """Becomes ready at random; its callbacks use both purgatories."""

    def __init__(self, run: BusyRun, rng: random.Random) -> None:
        super().__init__(rng.randrange(15), rng.choice([None, None, *run.users_locks]))
        self.run_of = run
        self.ready = rng.random() < 0.1
        self.next_key = rng.choice(KEYS)
        self.uses_lock = rng.random() < 0.3

    def try_complete(self) -> bool:
        self.run_of.on_callback("try_complete")
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.run_of.on_callback("on_complete")
        if self.uses_lock and self._op_lock is None:
            with self.run_of.innermost_users_lock:
                self.run_of.completed += 1
        for purgatory in self.run_of.purgatories:
            purgatory.check_and_complete(self.next_key)

    def on_expiration(self) -> None:
        self.run_of.on_callback("on_expiration")
        self.run_of.purgatories[0].cancel_for_key(self.next_key)
        raise LookupError("on purpose")

    def on_failure(self, error: BaseException) -> None:
        self.run_of.on_callback("on_failure")


class BusyRun:
    """A run of some threads, each of which submits operations and does things to them.

    Args:
        on_callback: told of each callback.
    """

    def __init__(self, on_callback: OnCallback) -> None:
        self.on_callback = on_callback
        self.completed = 0
        self.operations: list[Busy] = []
        users_lock = threading.Lock()
        users_rlock = threading.RLock()
        self.users_locks: list[threading.Lock | threading.RLock] = [users_lock, users_rlock]
        self.innermost_users_lock = threading.Lock()
        self.timer = SystemTimer("busy")
        self.purgatories = [
            DelayedOperationPurgatory(
                name, timer=self.timer, on_completed=lambda *_: on_callback("on_completed")
            )
            for name in ("Produce", "Fetch")
        ]

    def run(self, seed: int, threads: int = 3, rounds: int = 150) -> None:
        """Run all threads to their end, and close."""
        workers = [
            threading.Thread(
                target=self._work, args=(random.Random(seed + index), rounds), daemon=True
            )
            for index in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive(), "a thread waits for ever"
        for purgatory in self.purgatories:
            purgatory.close()
            purgatory._check()
        self.timer.close()
        assert Outcome.PENDING not in {operation.outcome for operation in self.operations}

    def run_one(self) -> None:
        """Complete one operation by an event, while no other thread has anything to do."""
        operation = Busy(self, random.Random(0))
        operation.delay_ms = 600_000
        operation.ready = False
        [purgatory, _] = self.purgatories
        purgatory.try_complete_else_watch(operation, [0])
        operation.ready = True
        assert purgatory.check_and_complete(0) == 1
        for purgatory in self.purgatories:
            purgatory.close()
        self.timer.close()

    def _work(self, rng: random.Random, rounds: int) -> None:
        for _ in range(rounds):
            purgatory = rng.choice(self.purgatories)
            operation = Busy(self, rng)
            self.operations.append(operation)
            purgatory.try_complete_else_watch(operation, rng.sample(KEYS, rng.randrange(1, 4)))
            some, key = rng.choice(self.operations), rng.choice(KEYS)
            action = rng.randrange(6)
            if action == 0:
                some.cancel()
            elif action == 1:
                some.force_complete()
            elif action == 2:
                with rng.choice(self.users_locks):
                    some.ready = True
                    purgatory.check_and_complete(key)
            elif action == 3:
                some.ready = True
                some.maybe_try_complete()
            elif action == 4:
                some.wait(0)
                assert purgatory.counters.checks >= 0
                assert purgatory.oldest_pending_ns >= 0
                assert self.timer.size >= 0
            else:
                some.ready = True
                purgatory.check_and_complete(key)
