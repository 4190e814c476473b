"""The outcome of an operation, the stages of its completion, and how it is counted.

While the outcome is PENDING the keys tell the stage: an operation without keys was abandoned. From
then on the stage is a number in the operation, which its completer alone changes; it says what is
done again after an interrupt, and what is passed over. The table of all moves from one stage and
outcome to the next is in ``tests/unit/core/life.py``.
"""

from __future__ import annotations

from enum import Enum

FOREVER_MS = 2**63 - 1
"""The ``delay_ms`` of an operation that was made with None: it never expires."""


class Outcome(Enum):
    """The outcome of a delayed operation; all but PENDING are final once its callbacks have run."""

    PENDING = "pending"
    """The operation waits."""
    COMPLETED = "completed"
    """Its condition held, or ``force_complete`` was called. FAILED if a callback then raises."""
    EXPIRED = "expired"
    """Its time was up first. FAILED if a callback then raises."""
    CANCELLED = "cancelled"
    """The operation was withdrawn: no response is needed any more."""
    FAILED = "failed"
    """One of its callbacks raised, or it was failed from outside."""

    # Members are singletons: hashing them by identity spares a call of Enum's Python method.
    __hash__ = object.__hash__


# Names of the module's, since before Python 3.12 an enum finds its members by a slow path.
PENDING = Outcome.PENDING
COMPLETED = Outcome.COMPLETED
EXPIRED = Outcome.EXPIRED
CANCELLED = Outcome.CANCELLED
FAILED = Outcome.FAILED


DETACHING = 0  # the timer, the lists: may be done again
DEFERRED = 1  # deferred to the end of a chain of callbacks
CALLING_BACK = 2  # on_complete, on_expiration: an interrupt of these fails the operation
CALLED_BACK = 3  # on_failure has begun, or nothing is left to call
OBSERVING = 4  # the purgatory's on_completed has begun
DONE = 5  # counted, and its listeners are notified


# How it is counted.

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "rejected")
"""The names by which operations are counted. ``immediate``: completed by the call that submitted
it, without waiting. ``rejected``: refused by a purgatory that was closed or full; it was never
taken."""

STAGES = ("try_complete", "on_complete", "on_expiration", "on_failure")
"""The callbacks that may raise."""

WAIT_BOUNDS_MS = (
    *(1, 2, 5, 10, 25, 50, 100, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000),
)
"""Upper bounds of the waits' histograms, from 1 ms to 5 min; one more bucket is above them."""

WAIT_BOUNDS_NS = [bound_ms * 1_000_000 for bound_ms in WAIT_BOUNDS_MS]
"""The same in nanoseconds: where a wait stands among them is the number of its bucket."""
