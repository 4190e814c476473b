"""The life of an operation, as one table.

The code takes its stages and what may follow what from it, the docs show it, and a test drives each
of its moves and sees that there is no other. While the outcome is PENDING the stage is told by the
keys; from then on it is a number in the operation, which its settler alone changes. It says what is
done again after an interrupt, and what is passed over.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from purgatory.core.outcome import CANCELLED, COMPLETED, EXPIRED, FAILED, PENDING, Outcome

WAITING = -2
LET_GO = -1  # it has lost its keys
LEAVING = 0  # the timer, the lists: may be done again
PUT_OFF = 1  # a chain of callbacks has it, and goes on at its end
CALLING_BACK = 2  # on_complete, on_expiration: what breaks this off fails the operation
CALLED_BACK = 3  # on_failure has begun, or nothing is left to call
OBSERVING = 4  # the purgatory's on_settled has begun
SETTLED = 5  # it is counted, and its listeners are told

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
_COUNTED = (OBSERVING, SETTLED)

LIFE = (
    Move(WAITING, (PENDING,), (LEAVING,), COMPLETED, "a check or a verdict; `force_complete()`"),
    Move(WAITING, (PENDING,), (LEAVING,), EXPIRED, "an expiry, after one more check in vain"),
    Move(WAITING, (PENDING,), (LEAVING,), CANCELLED, "`cancel()`; a submission that raises"),
    Move(WAITING, (PENDING,), (LEAVING,), FAILED, "a check that raises; a verdict"),
    Move(WAITING, (PENDING,), (LET_GO,), None, '`close("leave")`'),
    Move(LET_GO, (PENDING,), (LEAVING,), COMPLETED, "`force_complete()`"),
    Move(LET_GO, (PENDING,), (LEAVING,), CANCELLED, "`cancel()`"),
    Move(LET_GO, (PENDING,), (LEAVING,), FAILED, "the check that closed, if it raises"),
    Move(LEAVING, _ANY, (PUT_OFF,), None, "its settler, below 16 callbacks"),
    Move(LEAVING, _DONE, (CALLING_BACK,), None, "its settler, once it has left"),
    Move(LEAVING, (FAILED,), (CALLED_BACK,), None, "its settler, once it has left"),
    Move(LEAVING, (CANCELLED,), _COUNTED, None, "its settler, once it has left"),
    Move(PUT_OFF, _DONE, (CALLING_BACK,), None, "the end of the chain"),
    Move(PUT_OFF, (FAILED,), (CALLED_BACK,), None, "the end of the chain"),
    Move(PUT_OFF, (CANCELLED,), _COUNTED, None, "the end of the chain"),
    Move(CALLING_BACK, _DONE, (CALLING_BACK,), FAILED, "a callback that raises"),
    Move(CALLING_BACK, (*_DONE, FAILED), (CALLED_BACK,), None, "its settler"),
    Move(CALLED_BACK, (*_DONE, FAILED), _COUNTED, None, "its settler"),
    Move(OBSERVING, _ANY, (SETTLED,), None, "its settler"),
)


def _after(state: State) -> frozenset[State]:
    return frozenset(
        (then, move.becomes or state[1])
        for move in LIFE
        if state[0] == move.stage and state[1] in move.outcomes
        for then in move.then
    )


STATES = [(WAITING, PENDING), (LET_GO, PENDING)] + [
    (stage, outcome) for stage in range(SETTLED + 1) for outcome in _ANY
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
