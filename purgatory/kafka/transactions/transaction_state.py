"""The states of a transaction, and which may follow which.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing, Empty, Dead
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing, Empty, Dead
                     -> PrepareEpochFence -> PrepareAbort
    Empty, CompleteCommit, CompleteAbort -> PrepareAbort   of nothing, to raise the epoch

PrepareCommit and PrepareAbort are the decision: once one of them is replicated, nothing changes it.
PrepareEpochFence is never written: it stands while the coordinator aborts on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class TransactionState(Enum):
    """What a transaction is doing, in Kafka's words."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


_EMPTY = TransactionState.EMPTY
_ONGOING = TransactionState.ONGOING
_PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
_PREPARE_ABORT = TransactionState.PREPARE_ABORT
_COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
_COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
_DEAD = TransactionState.DEAD
_FENCE = TransactionState.PREPARE_EPOCH_FENCE

FOLLOWERS: Mapping[TransactionState, frozenset[TransactionState]] = {
    _EMPTY: frozenset({_EMPTY, _ONGOING, _PREPARE_ABORT, _DEAD}),
    _ONGOING: frozenset({_ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT, _FENCE}),
    _PREPARE_COMMIT: frozenset({_COMPLETE_COMMIT}),
    _PREPARE_ABORT: frozenset({_COMPLETE_ABORT}),
    _COMPLETE_COMMIT: frozenset({_EMPTY, _ONGOING, _PREPARE_ABORT, _DEAD}),
    _COMPLETE_ABORT: frozenset({_EMPTY, _ONGOING, _PREPARE_ABORT, _DEAD}),
    _DEAD: frozenset(),
    _FENCE: frozenset({_PREPARE_ABORT}),
}
"""Which states may follow each."""

IDLE = frozenset({_EMPTY, _COMPLETE_COMMIT, _COMPLETE_ABORT})
"""There is no transaction: the next may begin."""

DECIDED = frozenset({_PREPARE_COMMIT, _PREPARE_ABORT})
"""The end is decided, and the markers are being written."""
