"""What becomes of a delayed operation."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """The fate of a delayed operation. All but PENDING are final once they are told."""

    PENDING = "pending"
    """It waits."""
    COMPLETED = "completed"
    """Its condition held, or somebody called ``force_complete``."""
    EXPIRED = "expired"
    """Its time was up first."""
    CANCELLED = "cancelled"
    """It was taken off: nobody waits for its answer."""
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
