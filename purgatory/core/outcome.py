"""What becomes of a delayed operation, and the one table of what may follow what."""

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


TRANSITIONS: dict[Outcome, frozenset[Outcome]] = {
    Outcome.PENDING: frozenset(
        {Outcome.COMPLETED, Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FAILED}
    ),
    # While its callbacks still run, before anyone was told: one of them raised.
    Outcome.COMPLETED: frozenset({Outcome.FAILED}),
    Outcome.EXPIRED: frozenset({Outcome.FAILED}),
    Outcome.CANCELLED: frozenset(),
    Outcome.FAILED: frozenset(),
}
