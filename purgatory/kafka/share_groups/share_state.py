"""The state of a share partition as it is written, and the acknowledgements of its members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import groupby, pairwise
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.record_batch import RecordBatch


class RecordState(IntEnum):
    """The state of a record, in Kafka's numbers."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """Whether the record will not be delivered again."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


NO_LOCK = 0


class InFlightBatch(NamedTuple):
    """The records from ``first`` to ``last``.

    Args:
        first, last: offsets, both included.
        state: the state of each record.
        deliveries: the delivery count of each record.
        lock: the lock under which they are acquired; 0: not acquired, or the lock has expired.
        target: the state once the pending write is complete; None: none is pending.
        write: the number of that write.
        batch: the first and the last offset of the records that were first delivered with them;
            None: they were not delivered yet.
        is_apart: whether the records of ``batch`` are delivered one by one, rather than all at
            once: a member has acknowledged some of them, or was given some.
    """

    first: int
    last: int
    state: RecordState = RecordState.AVAILABLE
    deliveries: int = 0
    lock: int = NO_LOCK
    target: RecordState | None = None
    write: int = 0
    batch: tuple[int, int] | None = None
    is_apart: bool = False

    @property
    def is_free(self) -> bool:
        """Whether they may be acquired."""
        return self.state is RecordState.AVAILABLE

    @property
    def length(self) -> int:
        """The number of offsets."""
        return self.last - self.first + 1


SHARE_STATE_TOPIC = "__share_group_state"
"""The internal topic that it is kept in."""

UNKNOWN_START_OFFSET = -1
"""The start offset of a share partition that has not been read yet."""


class ShareKey(NamedTuple):
    """A partition, as one share group reads it."""

    group_id: str
    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.group_id}:{self.topic_id}-{self.partition}"


class StateBatch(NamedTuple):
    """The state of the records from ``first`` to ``last``; none of them is acquired."""

    first: int
    last: int
    state: RecordState
    deliveries: int


class ShareState(NamedTuple):
    """The state of a share partition.

    Args:
        state_epoch: another one whenever offsets were set from outside.
        leader_epoch: of the leader that wrote last: none before it may any more.
        start_offset: all records before it are final; -1: it has not been read yet.
        batches: of the records from there on; those in none of them are available.
    """

    state_epoch: int = 0
    leader_epoch: int = -1
    start_offset: int = UNKNOWN_START_OFFSET
    batches: tuple[StateBatch, ...] = ()

    @property
    def first_open_offset(self) -> int:
        """The first offset that is not final. O(batches)."""
        offset = self.start_offset
        for batch in self.batches:
            if batch.first != offset or not batch.state.is_final:
                break
            offset = batch.last + 1
        return offset


ShareStateEntry: TypeAlias = tuple[ShareKey, ShareState | None]
"""The state in a record of the log; None: the state is deleted."""


class ShareStateCodec(Protocol):
    """Encodes states as record batches, and decodes them."""

    def batch(self, entries: Sequence[ShareStateEntry]) -> RecordBatch:
        """Return a batch with one record for each entry; there is at least one."""

    def entries(self, batch: RecordBatch) -> Iterable[ShareStateEntry]:
        """Return the entries of a batch, in order."""


class AcknowledgeType(IntEnum):
    """The type of an acknowledgement, in Kafka's numbers."""

    GAP = 0
    """There is no record at the offset."""
    ACCEPT = 1
    """The record was processed."""
    RELEASE = 2
    """The record is to be delivered again."""
    REJECT = 3
    """The record can't be processed."""
    RENEW = 4
    """The record is still being processed."""


class Acknowledgement(NamedTuple):
    """The acknowledgement of the offsets from ``first`` to ``last``: one of ``types`` for all of
    them, or one for each, as numbers."""

    first: int
    last: int
    types: Sequence[int]

    def ranges(self) -> Iterator[tuple[int, int, AcknowledgeType]]:
        """Yield ranges of offsets with the same type. O(types).

        Raises:
            KafkaError: INVALID_REQUEST: a type is unknown, or their number is wrong.
        """
        if self.last < self.first or len(self.types) not in (1, self.last - self.first + 1):
            raise _invalid(f"{len(self.types)} types for the offsets {self.first} to {self.last}")
        try:
            types = [AcknowledgeType(value) for value in self.types]
        except ValueError:
            raise _invalid(f"types of acknowledgement are 0 to 4, not {self.types}") from None
        if len(types) == 1:
            yield self.first, self.last, types[0]
            return
        first = self.first
        for of, same in groupby(types):
            last = first + len(list(same)) - 1
            yield first, last, of
            first = last + 1


def validate_ranges(
    acknowledgements: Sequence[Acknowledgement],
) -> list[tuple[int, int, AcknowledgeType]]:
    """Return the acknowledged ranges with their types, in order. O(types).

    Raises:
        KafkaError: INVALID_REQUEST: a type is none, or offsets are out of order;
            INVALID_RECORD_STATE: an offset is acknowledged twice in a row.
    """
    ranges = [value for acknowledgement in acknowledgements for value in acknowledgement.ranges()]
    for (_, last, _), (first, _, _) in pairwise(ranges):
        if first < last:
            raise _invalid(f"offset {first} is acknowledged after {last}")
        if first == last:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE, f"offset {first} is acknowledged twice"
            )
    return ranges


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
