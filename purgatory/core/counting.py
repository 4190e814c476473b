"""What is counted of operations: by which names, and into which buckets."""

from __future__ import annotations

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
