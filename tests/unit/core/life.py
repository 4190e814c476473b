"""The life of an operation: each stage and outcome, and its possible successors.

``test_life.py`` makes each of these moves, and sees that there is no other.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from purgatory.core.outcome import (
    CALLED_BACK,
    CALLING_BACK,
    CANCELLED,
    COMPLETED,
    DEFERRED,
    DETACHING,
    DONE,
    EXPIRED,
    FAILED,
    OBSERVING,
    PENDING,
    Outcome,
)

WAITING = -2
ABANDONED = -1  # it has lost its keys

State: TypeAlias = tuple[int, Outcome]
"""A stage and an outcome."""


class Move(NamedTuple):
    """The successors of a stage with one of some outcomes."""

    stage: int
    outcomes: tuple[Outcome, ...]
    then: tuple[int, ...]
    """One of these stages,"""
    becomes: Outcome | None
    """and this outcome, unless it stays."""
    by: str
    """The cause."""


_SERVED = (COMPLETED, EXPIRED)
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
    Move(DETACHING, _SERVED, (CALLING_BACK,), None, "its completer, once it has left"),
    Move(DETACHING, (FAILED,), (CALLED_BACK,), None, "its completer, once it has left"),
    Move(DETACHING, (CANCELLED,), _COUNTED, None, "its completer, once it has left"),
    Move(DEFERRED, _SERVED, (CALLING_BACK,), None, "the end of the chain"),
    Move(DEFERRED, (FAILED,), (CALLED_BACK,), None, "the end of the chain"),
    Move(DEFERRED, (CANCELLED,), _COUNTED, None, "the end of the chain"),
    Move(CALLING_BACK, _SERVED, (CALLING_BACK,), FAILED, "a callback that raises"),
    Move(CALLING_BACK, (*_SERVED, FAILED), (CALLED_BACK,), None, "its completer"),
    Move(CALLED_BACK, (*_SERVED, FAILED), _COUNTED, None, "its completer"),
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
"""The possible successors of each state."""

TRANSITIONS: dict[Outcome, frozenset[Outcome]] = {
    outcome: frozenset(
        after for state in STATES for _, after in MOVES[state] if state[1] is outcome is not after
    )
    for outcome in Outcome
}
"""The possible successors of each outcome."""
