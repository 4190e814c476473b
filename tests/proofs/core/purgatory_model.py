"""A model of the purgatory, as plain lists and loops: no lists by key, no timer, no threads.

The model has, for each operation, the requests made while its user's lock was taken, and the time
of the next retry.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from purgatory import Outcome

FIRST_RETRY_MS = 1
LONGEST_RETRY_MS = 32

STAGES = {
    Outcome.COMPLETED: ["on_complete"],
    Outcome.EXPIRED: ["on_complete", "on_expiration"],
}


@dataclass(eq=False)
class ModelOperation:
    """The model of an operation."""

    keys: frozenset[int]
    deadline_ms: int
    lock: int | None
    ready: bool
    fails_in: str | None
    outcome: Outcome = Outcome.PENDING
    counted_as: str = "pending"
    finished: list[str] = field(default_factory=list)
    check_requested: bool = False
    expiry_requested: bool = False
    retry_after_ms: int = FIRST_RETRY_MS
    retry_at_ms: int | None = None

    @property
    def pending(self) -> bool:
        return self.outcome is Outcome.PENDING

    @property
    def next_ms(self) -> int | None:
        """When time does something to it next."""
        times = [] if self.expiry_requested else [self.deadline_ms]
        times += [] if self.retry_at_ms is None else [self.retry_at_ms]
        return min(times, default=None) if self.pending else None


class PurgatoryModel:
    """The model of a purgatory."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.operations: list[ModelOperation] = []
        self.taken_locks: set[int] = set()
        self.checks = 0
        self.missed_wakeups = 0
        self.callback_errors: Counter[str] = Counter()

    @property
    def pending(self) -> list[ModelOperation]:
        return [operation for operation in self.operations if operation.pending]

    def submit(self, operation: ModelOperation) -> bool:
        self.operations.append(operation)
        completed = self.check(operation)
        if completed and operation.outcome is Outcome.COMPLETED:
            operation.counted_as = "immediate"
        self.pass_time(0)
        return completed

    def waiting_on(self, key: int) -> list[ModelOperation]:
        return [operation for operation in self.pending if key in operation.keys]

    def check_key(self, key: int) -> int:
        waiting = self.waiting_on(key)
        self.checks += len(waiting)
        return sum([self.check(operation) for operation in waiting])

    def check(self, operation: ModelOperation) -> bool:
        operation.check_requested = True
        return self.serve(operation)

    def serve(self, operation: ModelOperation) -> bool:
        """Run requests, or defer them while the lock is taken. True if a check completed it."""
        if not operation.pending or not (operation.check_requested or operation.expiry_requested):
            return False
        if operation.lock in self.taken_locks:
            if operation.retry_at_ms is None:  # one that is due must not be deferred
                operation.retry_at_ms = self.now_ms + operation.retry_after_ms
            return False
        asked, operation.check_requested = operation.check_requested, False
        if operation.fails_in == "try_complete":
            self.fail(operation, "try_complete")
            return False
        if operation.ready:
            self.missed_wakeups += not asked
            self.end(operation, Outcome.COMPLETED)
            return True
        if operation.expiry_requested:
            self.end(operation, Outcome.EXPIRED)
        return False

    def end(self, operation: ModelOperation, outcome: Outcome) -> bool:
        """Give it its one outcome, unless it has one; a callback that raises makes it a failure."""
        if not operation.pending:
            return False
        operation.outcome = outcome
        operation.counted_as = outcome.value
        for stage in STAGES.get(outcome, []):
            operation.finished.append(stage)
            if stage == operation.fails_in:
                self.fail(operation, stage)
                break
        return True

    def fail(self, operation: ModelOperation, stage: str | None) -> None:
        if stage is not None:
            self.callback_errors[stage] += 1
        operation.outcome = Outcome.FAILED
        operation.counted_as = "failed"
        operation.finished.append("on_failure")

    def pass_time(self, delta_ms: int) -> None:
        end_ms = self.now_ms + delta_ms
        while True:
            due = [
                (next_ms, number)
                for number, operation in enumerate(self.operations)
                if (next_ms := operation.next_ms) is not None and next_ms <= end_ms
            ]
            if not due:
                break
            self.now_ms, number = min(due)
            self._let_time_act(self.operations[number])
        self.now_ms = end_ms

    def _let_time_act(self, operation: ModelOperation) -> None:
        if operation.retry_at_ms != self.now_ms:
            operation.expiry_requested = True
            self.serve(operation)
            return
        operation.retry_at_ms = None
        operation.retry_after_ms = min(2 * operation.retry_after_ms, LONGEST_RETRY_MS)
        self.serve(operation)
        if operation.retry_at_ms is None:  # the lock was free: the next backoff starts again
            operation.retry_after_ms = FIRST_RETRY_MS

    def close(self, policy: str) -> int:
        pending = self.pending
        for operation in pending:
            if policy == "expire":
                operation.expiry_requested = True
            if policy != "leave":
                self.serve(operation)
            if policy == "fail" and operation.pending:
                self.fail(operation, None)
        return len(pending)
