"""Exact counts of what became of the operations, for metrics, tables and tests.

Ground rules
------------
* The plain integers change under the purgatory's mutex; reading one needs no lock. Reading several
  that must agree goes through ``snapshot``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from timer import Histogram

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "rejected")
"""What an operation is counted as. ``immediate``: completed by the call that submitted it, without
waiting. ``rejected``: refused by a purgatory that was closed or full; it was never taken."""

STAGES = ("try_complete", "on_complete", "on_expiration", "on_failure")
"""The callbacks that may raise."""

WAIT_BOUNDS_MS = (
    *(1, 2, 5, 10, 25, 50, 100, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000),
)
"""Bounds of the waits' histograms: 1 ms to 5 min."""


@dataclass(frozen=True)
class CountersSnapshot:
    """All counts at one moment."""

    outcomes: MappingProxyType[str, int]
    callback_errors: MappingProxyType[str, int]
    checks: int
    missed_wakeups: int


class Counters:
    """The counts of one purgatory."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.callback_errors = dict.fromkeys(STAGES, 0)
        self.checks = 0
        self.missed_wakeups = 0
        self.waits = {
            outcome: Histogram(WAIT_BOUNDS_MS) for outcome in OUTCOMES if outcome != "rejected"
        }

    def snapshot(self) -> CountersSnapshot:
        """Copy the counts. The caller holds the purgatory's mutex."""
        return CountersSnapshot(
            outcomes=MappingProxyType(dict(self.outcomes)),
            callback_errors=MappingProxyType(dict(self.callback_errors)),
            checks=self.checks,
            missed_wakeups=self.missed_wakeups,
        )
