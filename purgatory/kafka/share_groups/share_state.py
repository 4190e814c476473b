"""What is kept of a share partition, so that another leader goes on where the last one was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.share_groups.record_run import RecordState

SHARE_STATE_TOPIC = "__share_group_state"
"""The internal topic that it is kept in."""

NO_START = -1
"""The start offset of a share partition that nobody has begun to read."""


class ShareKey(NamedTuple):
    """A partition, as one share group reads it."""

    group_id: str
    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.group_id}:{self.topic_id}-{self.partition}"


class StateBatch(NamedTuple):
    """How it stands with the records from ``first`` to ``last``; none of them is acquired."""

    first: int
    last: int
    state: RecordState
    deliveries: int


class ShareState(NamedTuple):
    """How it stands with a share partition.

    Args:
        state_epoch: another one whenever offsets were set from outside.
        leader_epoch: of the leader that wrote last: none before it may any more.
        start_offset: all records before it are done with; -1: nobody has begun.
        batches: of the records from there on; those in none of them are available.
    """

    state_epoch: int = 0
    leader_epoch: int = -1
    start_offset: int = NO_START
    batches: tuple[StateBatch, ...] = ()


ShareStateEntry: TypeAlias = tuple[ShareKey, ShareState | None]
"""What one record says; None: it is deleted."""


class ShareStateCodec(Protocol):
    """Makes record batches of what is so, and reads it back."""

    def batch(self, entries: Sequence[ShareStateEntry]) -> RecordBatch:
        """Return a batch with one record for each entry; there is at least one."""

    def entries(self, batch: RecordBatch) -> Iterable[ShareStateEntry]:
        """Return what a batch says, in its order."""
