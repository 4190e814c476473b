"""What becomes of an operation: its outcome, the stages of its completion, what may follow what.

The code takes its stages from this table, and a test drives each of its moves and
sees that there is no other. While the outcome is PENDING the stage is told by the keys; from then
on it is a number in the operation, which its completer alone changes. It says what is done again
after an interrupt, and what is passed over.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

FOREVER_MS = 2**63 - 1
"""A delay that never ends: the operation waits for its condition alone."""

SHORT_DELAY_MS = 100
"""A delay below this may have been meant in seconds, and is logged once per purgatory."""


class Outcome(Enum):
    """How a delayed operation ended; all but PENDING are final once its callbacks have run."""

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


WAITING = -2
ABANDONED = -1  # it has lost its keys
DETACHING = 0  # the timer, the lists: may be done again
DEFERRED = 1  # a chain of callbacks has it, and goes on at its end
CALLING_BACK = 2  # on_complete, on_expiration: what breaks this off fails the operation
CALLED_BACK = 3  # on_failure has begun, or nothing is left to call
OBSERVING = 4  # the purgatory's on_settled has begun
DONE = 5  # it is counted, and its listeners are told

State: TypeAlias = tuple[int, Outcome]
"""A stage and an outcome."""


class Move(NamedTuple):
    """What may follow a stage with one of some outcomes."""

    stage: int
    outcomes: tuple[Outcome, ...]
    then: tuple[int, ...]
    """One of these stages,"""
    becomes: Outcome | None
    """and this outcome, unless it stays."""
    by: str
    """Who does it, and when."""


_DONE = (COMPLETED, EXPIRED)
_ANY = (COMPLETED, EXPIRED, CANCELLED, FAILED)
_COUNTED = (OBSERVING, DONE)

LIFE = (
    Move(
        WAITING,
        (PENDING,),
        (DETACHING,),
        COMPLETED,
        "a check or a forced outcome; `force_complete()`",
    ),
    Move(WAITING, (PENDING,), (DETACHING,), EXPIRED, "an expiry, after one more check in vain"),
    Move(WAITING, (PENDING,), (DETACHING,), CANCELLED, "`cancel()`; a submission that raises"),
    Move(WAITING, (PENDING,), (DETACHING,), FAILED, "a check that raises; a forced outcome"),
    Move(WAITING, (PENDING,), (ABANDONED,), None, '`close("leave")`'),
    Move(ABANDONED, (PENDING,), (DETACHING,), COMPLETED, "`force_complete()`"),
    Move(ABANDONED, (PENDING,), (DETACHING,), CANCELLED, "`cancel()`"),
    Move(ABANDONED, (PENDING,), (DETACHING,), FAILED, "the check that closed, if it raises"),
    Move(DETACHING, _ANY, (DEFERRED,), None, "its completer, below 16 callbacks"),
    Move(DETACHING, _DONE, (CALLING_BACK,), None, "its completer, once it has left"),
    Move(DETACHING, (FAILED,), (CALLED_BACK,), None, "its completer, once it has left"),
    Move(DETACHING, (CANCELLED,), _COUNTED, None, "its completer, once it has left"),
    Move(DEFERRED, _DONE, (CALLING_BACK,), None, "the end of the chain"),
    Move(DEFERRED, (FAILED,), (CALLED_BACK,), None, "the end of the chain"),
    Move(DEFERRED, (CANCELLED,), _COUNTED, None, "the end of the chain"),
    Move(CALLING_BACK, _DONE, (CALLING_BACK,), FAILED, "a callback that raises"),
    Move(CALLING_BACK, (*_DONE, FAILED), (CALLED_BACK,), None, "its completer"),
    Move(CALLED_BACK, (*_DONE, FAILED), _COUNTED, None, "its completer"),
    Move(OBSERVING, _ANY, (DONE,), None, "its completer"),
)


def _after(state: State) -> frozenset[State]:
    return frozenset(
        (then, move.becomes or state[1])
        for move in LIFE
        if state[0] == move.stage and state[1] in move.outcomes
        for then in move.then
    )


STATES = [(WAITING, PENDING), (ABANDONED, PENDING)] + [
    (stage, outcome) for stage in range(DONE + 1) for outcome in _ANY
]
MOVES: dict[State, frozenset[State]] = {state: _after(state) for state in STATES}
"""For each state what may follow it."""

TRANSITIONS: dict[Outcome, frozenset[Outcome]] = {
    outcome: frozenset(
        after for state in STATES for _, after in MOVES[state] if state[1] is outcome is not after
    )
    for outcome in Outcome
}
"""For each outcome what may follow it."""


# How it is counted.

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
