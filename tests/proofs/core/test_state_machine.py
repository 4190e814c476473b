"""A purgatory against a plain model: outcomes, callbacks, sizes and counts after every step."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from purgatory import DelayedOperation, Outcome
from purgatory.core.closing import ClosePolicy
from tests.proofs.core.purgatory_model import ModelOperation, PurgatoryModel
from tests.unit.core.probe import Probe, Setting

KEYS = st.lists(st.integers(0, 3), min_size=1, max_size=4)
DELAYS_MS = st.integers(-1, 25) | st.sampled_from([399, 400, 401, 7_999, 8_000, 8_001, 3_600_000])
STEPS_MS = st.integers(0, 40) | st.sampled_from([399, 400, 8_000, 3_600_000])
FAULTS = st.sampled_from([None, None, None, "try_complete", "on_complete", "on_expiration"])
LOCKS = st.sampled_from([0, 1])


class OnPurpose(Exception):
    """Raised by a callback."""


def fail() -> None:
    raise OnPurpose


class PurgatoryMachine(RuleBasedStateMachine):
    """Each rule calls a purgatory and its model alike.

    The thread that runs the rules holds the locks itself. The library only tries them, so another
    thread would make no difference, and runs are deterministic.
    """

    submitted: Bundle[int] = Bundle("submitted")

    def __init__(self) -> None:
        super().__init__()
        self.completed: list[tuple[DelayedOperation, str]] = []
        self.setting = Setting(
            on_completed=lambda operation, label, _: self.completed.append((operation, label))
        )
        self.purgatory = self.setting.purgatory
        self.model = PurgatoryModel()
        self.probes: list[Probe] = []
        self.locks = [threading.Lock(), threading.Lock()]
        self.policy: ClosePolicy = "expire"

    @initialize(policy=st.sampled_from(["expire", "fail", "leave"]))
    def choose_the_close_policy(self, policy: ClosePolicy) -> None:
        self.policy = policy

    @rule(
        target=submitted,
        keys=KEYS,
        delay_ms=DELAYS_MS,
        lock=st.none() | LOCKS,
        ready=st.booleans(),
        fails_in=FAULTS,
    )
    def submit(
        self, keys: list[int], delay_ms: int, lock: int | None, ready: bool, fails_in: str | None
    ) -> int:
        probe = Probe(delay_ms, None if lock is None else self.locks[lock], ready)
        if fails_in is not None:
            probe.hooks[fails_in] = fail
        self.probes.append(probe)
        deadline_ms = self.model.now_ms + max(0, delay_ms)
        expected = self.model.submit(
            ModelOperation(frozenset(keys), deadline_ms, lock, ready, fails_in)
        )
        assert self.purgatory.try_complete_else_watch(probe, keys) == expected
        self.setting.pass_time(0)  # operations due at once may need the timer to advance once
        return len(self.probes) - 1

    @rule(number=submitted)
    def make_ready_without_a_check(self, number: int) -> None:
        self.probes[number].ready = True
        self.model.operations[number].ready = True

    @rule(number=submitted)
    def make_ready_and_check(self, number: int) -> None:
        self.make_ready_without_a_check(number)
        self.check_key(min(self.model.operations[number].keys))

    @rule(key=st.integers(0, 4))
    def check_key(self, key: int) -> None:
        assert self.purgatory.check_and_complete(key) == self.model.check_key(key)

    @rule(number=submitted)
    def check_one(self, number: int) -> None:
        expected = self.model.check(self.model.operations[number])
        assert self.probes[number].maybe_try_complete() == expected

    @rule(number=submitted)
    def force(self, number: int) -> None:
        expected = self.model.end(self.model.operations[number], Outcome.COMPLETED)
        assert self.probes[number].force_complete() == expected

    @rule(number=submitted)
    def cancel(self, number: int) -> None:
        expected = self.model.end(self.model.operations[number], Outcome.CANCELLED)
        assert self.probes[number].cancel() == expected

    @rule(key=st.integers(0, 4))
    def cancel_for_key(self, key: int) -> None:
        waiting = self.model.waiting_on(key)
        for operation in waiting:
            self.model.end(operation, Outcome.CANCELLED)
        numbers = [self.model.operations.index(operation) for operation in waiting]
        assert self.purgatory.cancel_for_key(key) == [self.probes[number] for number in numbers]

    @rule(delta_ms=STEPS_MS)
    def pass_time(self, delta_ms: int) -> None:
        self.model.pass_time(delta_ms)
        self.setting.pass_time(delta_ms)

    @rule(lock=LOCKS)
    def take_or_release_a_lock(self, lock: int) -> None:
        if lock in self.model.taken_locks:
            self.locks[lock].release()
        else:
            assert self.locks[lock].acquire(blocking=False), "the library gave it back"
        self.model.taken_locks ^= {lock}

    @precondition(lambda self: self.model.taken_locks)
    @rule()
    def release_all_locks_and_wait_for_retries(self) -> None:
        self._release_all_locks()
        self.pass_time(32)
        for operation in self.model.pending:
            assert not operation.check_requested, "no check is lost"

    def _release_all_locks(self) -> None:
        for lock in self.model.taken_locks:
            self.locks[lock].release()
        self.model.taken_locks.clear()

    @invariant()
    def invariants_hold(self) -> None:
        self.purgatory._check()
        self.setting.timer._check()

    @invariant()
    def operations_match_the_model(self) -> None:
        for probe, operation in zip(self.probes, self.model.operations, strict=True):
            assert (probe.outcome, probe.finished) == (operation.outcome, operation.finished)
            assert operation.pending or probe.wait(0) is operation.outcome
            assert (probe.error is not None) == (operation.outcome is Outcome.FAILED)

    @invariant()
    def sizes_match_the_model(self) -> None:
        pending = self.model.pending
        assert self.purgatory.num_delayed == len(pending)
        assert self.purgatory.watched == sum(len(operation.keys) for operation in pending)
        watched_keys = frozenset().union(*(operation.keys for operation in pending))
        assert self.purgatory.watched_keys == len(watched_keys)
        timeouts = sum(not operation.expiry_requested for operation in pending)
        retries = sum(operation.retry_at_ms is not None for operation in pending)
        assert self.setting.timer.size == timeouts + retries

    @invariant()
    def counts_match_the_model(self) -> None:
        counters = self.purgatory.counters
        expected = Counter(operation.counted_as for operation in self.model.operations)
        del expected["pending"]
        assert +Counter(counters.outcomes) == +expected
        assert +Counter(counters.callback_errors) == self.model.callback_errors
        assert counters.checks == self.model.checks
        assert counters.missed_wakeups == self.model.missed_wakeups

    @invariant()
    def observer_was_called_once_for_each_outcome(self) -> None:
        told = {id(operation): label for operation, label in self.completed}
        assert len(told) == len(self.completed)
        operations = zip(self.probes, self.model.operations, strict=True)
        assert told == {
            id(probe): operation.counted_as
            for probe, operation in operations
            if not operation.pending
        }

    def teardown(self) -> None:
        self._release_all_locks()
        assert self.purgatory.close(self.policy) == self.model.close(self.policy)
        self.operations_match_the_model()
        self.counts_match_the_model()
        self.observer_was_called_once_for_each_outcome()
        self.setting.assert_empty()
        calls = [list(probe.calls) for probe in self.probes]
        self.setting.pass_time(8_000_000)
        assert calls == [probe.calls for probe in self.probes], "nothing runs afterwards"


TestPurgatory = pytest.mark.slow(PurgatoryMachine.TestCase)
TestPurgatory.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_expiry_under_a_taken_lock_does_not_delay_the_retry() -> None:
    """The retries come at 1, 3, 7, 15 and 31 ms, whatever else finds the lock taken meanwhile."""
    machine = PurgatoryMachine()
    machine.take_or_release_a_lock(0)
    machine.submit([0], delay_ms=24, lock=0, ready=True, fails_in=None)
    machine.pass_time(25)
    machine.check_key(0)
    machine.take_or_release_a_lock(0)
    for delta_ms, outcome in ((5, Outcome.PENDING), (1, Outcome.COMPLETED)):
        machine.pass_time(delta_ms)
        assert machine.probes[0].outcome is outcome
        machine.operations_match_the_model()
        machine.counts_match_the_model()
    machine.teardown()


def test_model_restarts_the_retry_backoff() -> None:
    machine = PurgatoryMachine()
    machine.take_or_release_a_lock(0)
    machine.submit([0], delay_ms=1_000, lock=0, ready=False, fails_in=None)
    machine.pass_time(40)
    machine.take_or_release_a_lock(0)
    machine.pass_time(32)  # the retry finds the lock free, and the condition false
    machine.take_or_release_a_lock(0)
    machine.make_ready_and_check(0)
    machine.take_or_release_a_lock(0)
    machine.pass_time(1)
    assert machine.probes[0].outcome is Outcome.COMPLETED
    machine.operations_match_the_model()
    machine.counts_match_the_model()
    machine.teardown()
