"""Exact counts of what became of the operations, for metrics, tables and tests.

Ground rules
------------
* Everything here changes, and is copied, in the purgatory's turn.
"""

from __future__ import annotations

from dataclasses import dataclass

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "rejected")
"""What an operation is counted as. ``immediate``: completed by the call that submitted it, without
waiting. ``rejected``: refused by a purgatory that was closed or full; it was never taken."""

STAGES = ("try_complete", "on_complete", "on_expiration", "on_failure")
"""The callbacks that may raise."""

WAIT_BOUNDS_MS = (
    *(1, 2, 5, 10, 25, 50, 100, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000),
)
"""Upper bounds of the waits' histograms, from 1 ms to 5 min; one more bucket is above them."""

WAIT_BOUNDS_NS = [bound_ms * 1_000_000 for bound_ms in WAIT_BOUNDS_MS]
"""The same in nanoseconds: where a wait stands among them is the number of its bucket."""


class OutcomeCounter:
    """How many operations were settled in one way, and how long they had waited."""

    __slots__ = ("bucket_counts", "total", "wait_sum_ns")

    def __init__(self) -> None:
        self.total = 0
        self.bucket_counts = [0] * (len(WAIT_BOUNDS_MS) + 1)
        self.wait_sum_ns = 0


@dataclass(frozen=True)
class WaitHistogram:
    """Waits by bucket of ``WAIT_BOUNDS_MS``; not cumulative."""

    counts: tuple[int, ...]
    sum_ns: int


@dataclass(frozen=True)
class CountersSnapshot:
    """All counts at one moment; the dicts are copies."""

    outcomes: dict[str, int]
    waits: dict[str, WaitHistogram]
    callback_errors: dict[str, int]
    checks: int
    missed_wakeups: int


class Counters:
    """The counts of one purgatory."""

    __slots__ = ("by_outcome", "callback_errors", "checks", "missed_wakeups", "rejected")

    def __init__(self) -> None:
        self.by_outcome = {
            outcome: OutcomeCounter() for outcome in OUTCOMES if outcome != "rejected"
        }
        self.rejected = 0
        self.callback_errors = dict.fromkeys(STAGES, 0)
        self.checks = 0
        self.missed_wakeups = 0

    def snapshot(self) -> CountersSnapshot:
        """Copy all counts."""
        counters = self.by_outcome.items()
        return CountersSnapshot(
            outcomes={outcome: counter.total for outcome, counter in counters}
            | {"rejected": self.rejected},
            waits={
                outcome: WaitHistogram(tuple(counter.bucket_counts), counter.wait_sum_ns)
                for outcome, counter in counters
            },
            callback_errors=dict(self.callback_errors),
            checks=self.checks,
            missed_wakeups=self.missed_wakeups,
        )
