"""Exact counts of the operations' outcomes, for metrics, tables and tests.

Everything here changes, and is copied, under the lock of the purgatory's state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from purgatory.core.backend import NATIVE
from purgatory.core.outcome import OUTCOMES, STAGES, WAIT_BOUNDS_MS


class OutcomeCounter:
    """The number of operations with one outcome, and their waits."""

    __slots__ = ("bucket_counts", "wait_sum_ns")

    def __init__(self) -> None:
        self.bucket_counts = [0] * (len(WAIT_BOUNDS_MS) + 1)
        self.wait_sum_ns = 0

    def counted(self) -> tuple[tuple[int, ...], int]:
        """Return the counts, and the sum in nanoseconds."""
        return tuple(self.bucket_counts), self.wait_sum_ns


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


class _PureCounters:
    """The counts of one purgatory, in pure Python."""

    __slots__ = ("by_outcome", "callback_errors", "checks", "missed_wakeups", "rejected")

    def __init__(self) -> None:
        self.by_outcome = {
            outcome: OutcomeCounter() for outcome in OUTCOMES if outcome != "rejected"
        }
        self.rejected = 0
        self.callback_errors = dict.fromkeys(STAGES, 0)
        self.checks = 0
        self.missed_wakeups = 0


if TYPE_CHECKING or not NATIVE:
    CountersCore = _PureCounters
else:
    from purgatory.core.native.state import NativeCounters as CountersCore


class Counters(CountersCore):
    """The counts of one purgatory."""

    __slots__ = ()

    def snapshot(self) -> CountersSnapshot:
        """Copy all counts."""
        waits = {
            outcome: WaitHistogram(*counter.counted())
            for outcome, counter in self.by_outcome.items()
        }
        return CountersSnapshot(
            outcomes={outcome: sum(wait.counts) for outcome, wait in waits.items()}
            | {"rejected": self.rejected},
            waits=waits,
            callback_errors=dict(self.callback_errors),
            checks=self.checks,
            missed_wakeups=self.missed_wakeups,
        )
