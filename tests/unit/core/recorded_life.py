"""Records each move that any operation makes, by standing in for the slots that its state is in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from purgatory import DelayedOperation, Outcome
from purgatory.core.operation import _PureOperation
from tests.unit.core.life import ABANDONED, MOVES, WAITING, State

Moves = set[tuple[State, State]]

IN_THE_TABLE: Moves = {(before, after) for before in MOVES for after in MOVES[before]}


def state_of(operation: DelayedOperation) -> State:
    """Return the state that the table has for it."""
    if operation.outcome is not Outcome.PENDING:
        return operation._op_stage, operation.outcome
    return (ABANDONED if operation._op_was_abandoned() else WAITING), Outcome.PENDING


class _RecordedSlot:
    def __init__(self, slot: Any, moves: Moves) -> None:
        self.slot = slot
        self.moves = moves

    def __get__(self, operation: Any, owner: Any = None) -> Any:
        return self if operation is None else self.slot.__get__(operation, owner)

    def __set__(self, operation: Any, value: Any) -> None:
        if not hasattr(operation, "_op_keys") or not hasattr(operation, "_op_state"):
            self.slot.__set__(operation, value)  # it is only just being made
            return
        before = state_of(operation)
        self.slot.__set__(operation, value)
        after = state_of(operation)
        if before != after:
            self.moves.add((before, after))


@contextmanager
def recorded_moves() -> Iterator[Moves]:
    """Yield the set of all moves that are made in the body."""
    moves: Moves = set()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (_PureOperation, "_op_stage"),
            (_PureOperation, "_op_outcome"),
            (_PureOperation, "_op_keys"),
        ):
            patch.setattr(owner, name, _RecordedSlot(vars(owner)[name], moves))
        yield moves
