"""Records of a share partition that stand alike, one after the other."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class RecordState(IntEnum):
    """How it stands with a record, in Kafka's numbers."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """Whether the record is never delivered any more."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


NO_LOCK = 0


class RecordRun(NamedTuple):
    """The records from ``first`` to ``last``.

    Args:
        first, last: offsets, both included.
        state: of each.
        deliveries: how often each was delivered.
        lock: under which they are acquired; 0, if they are not, or it expired.
        target: what they will be once that is kept; None: nothing is to change.
        write: with which write that is kept.
    """

    first: int
    last: int
    state: RecordState = RecordState.AVAILABLE
    deliveries: int = 0
    lock: int = NO_LOCK
    target: RecordState | None = None
    write: int = 0

    @property
    def is_free(self) -> bool:
        """Whether they may be acquired."""
        return self.state is RecordState.AVAILABLE

    @property
    def length(self) -> int:
        """How many offsets they are."""
        return self.last - self.first + 1
