"""The state of producers in a log: sequence numbers, epochs and open transactions.

An idempotent producer numbers its records per partition. A batch that continues the numbers is
appended; one whose numbers are among the last five batches is a duplicate, and gets the offset of
the original; any other is refused, since a record before it is missing. Followers keep the same
state from the batches that they copy, so a new leader continues where the old one stopped.

Ground rules
------------
* Only the broker's loop touches the state, by its log.
* The state is a pure function of the batches up to an offset: after a truncation it is rebuilt from
  the state at the log's start, and the batches behind that. But for verifications: these are the
  leader's own, and gone then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice, pairwise
from typing import Any, NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.record_batch import (
    MAX_SEQUENCE,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    RecordBatch,
    TransactionResult,
)


class AbortedTransaction(NamedTuple):
    """An aborted transaction that a read-committed reader has to filter out.

    ``first_offset`` is its first record's, ``last_offset`` its abort marker's.
    """

    producer_id: int
    first_offset: int
    last_offset: int


class AppendOrigin(Enum):
    """The appender: only coordinators may write end-transaction markers, and several batches."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


MAX_CACHED_BATCHES = 5
"""Kafka's number: an idempotent producer has at most five requests in flight."""


class AppendedBatch(NamedTuple):
    """One of a producer's latest batches, as the log holds it."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    next_offset: int


@dataclass(slots=True, eq=False)
class ProducerEntry:
    """One producer: its epoch, its latest batches, oldest first, the epoch of the coordinator that
    last ended a transaction of it (-1: none did), and the time of its last records or of this end,
    in milliseconds since 1970 (-1: unknown)."""

    producer_epoch: int
    batches: tuple[AppendedBatch, ...] = ()
    coordinator_epoch: int = NO_LEADER_EPOCH
    last_timestamp_ms: int = -1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, -1 when none was written in this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, batch: RecordBatch) -> AppendedBatch | None:
        """Return the cached batch of which ``batch`` is a retry. O(1): there are five."""
        first = batch.base_sequence
        for cached in reversed(self.batches):
            if cached.first_sequence == first and cached.last_sequence == batch.last_sequence:
                return cached
        return None


@dataclass(slots=True, eq=False)
class _Verification:
    """A producer whose transaction here isn't open yet, while its coordinator is asked.

    The first batches of a transaction are verified one by one. While that of the first is repeated,
    a later one could pass, and be the first in the log: the others would be refused for ever.
    """

    epoch: int
    lowest_sequence: int
    adds: bool
    """Whether leaders add partitions to the transaction: then its sequences begin at 0."""


class ProducerStates:
    """The producers of one log and their transactions.

    ``ongoing`` maps a producer id to the first offset of its open transaction; ``unreplicated`` are
    the transactions that ended, but whose marker isn't below the high watermark yet, so that it
    could still be lost. Read only.
    """

    __slots__ = ("_aborted", "_entries", "_verifications", "ongoing", "unreplicated")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._verifications: dict[int, _Verification] = {}
        # Transactions enter as they begin: the dict's order is that of their first offsets, and its
        # first value is the least.
        self.ongoing: dict[int, int] = {}
        self.unreplicated: list[AbortedTransaction] = []
        self._aborted: list[AbortedTransaction] = []

    # ---- before an append

    def begin_verification(self, batch: RecordBatch, *, adds: bool) -> bool:
        """Note the first batches of a transaction, before its coordinator is asked. O(1).

        Args:
            batch: a transactional one.
            adds: whether the leader adds the partition to the transaction.

        Returns:
            Whether the coordinator is to be asked: not for more batches of an open transaction. A
            producer in a later epoch is in its next one: the marker of this is on its way.
        """
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        entry = self._entries.get(producer_id)
        if producer_id in self.ongoing and entry is not None and entry.producer_epoch == epoch:
            return False
        known = self._verifications.get(producer_id)
        if known is None or epoch > known.epoch:
            verification = _Verification(epoch, batch.base_sequence, adds)
            self._verifications[producer_id] = verification
        elif epoch == known.epoch:
            known.lowest_sequence = min(known.lowest_sequence, batch.base_sequence)
        return True

    def find_duplicate(self, batch: RecordBatch, origin: AppendOrigin) -> AppendedBatch | None:
        """Decide about a batch of a numbered producer. O(1).

        Args:
            batch: one with a producer id.
            origin: a client, a coordinator or the replication.

        Returns:
            The original of a duplicate; None for a new batch, which may be appended.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_RECORD,
                INVALID_TXN_STATE or TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self._entries.get(batch.producer_id)
        if entry is not None and batch.producer_epoch < entry.producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id} sent epoch {batch.producer_epoch}, "
                f"but epoch {entry.producer_epoch} is known",
            )
        if batch.control is not None:
            _check_marker(batch, entry, origin)
            return None
        if origin is AppendOrigin.COORDINATOR:
            return None  # the offsets of a group, which a producer commits and doesn't number
        if batch.base_sequence < 0 or batch.producer_epoch < 0:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"producer {batch.producer_id} sent epoch {batch.producer_epoch} and sequence "
                f"{batch.base_sequence}: a batch with a producer id has both, from 0 on",
            )
        if entry is not None and entry.producer_epoch == batch.producer_epoch:
            original = entry.find_duplicate(batch)
            if original is not None:
                return original
        self._check_sequence(batch, entry)
        self._check_transaction(batch)
        return None

    def _check_sequence(self, batch: RecordBatch, entry: ProducerEntry | None) -> None:
        if entry is None:
            # The producer's earlier records may have been deleted: any number may follow them.
            expected = self._first_sequence(batch)
        elif entry.producer_epoch != batch.producer_epoch:
            expected = 0
        else:
            expected = (entry.last_sequence + 1) & MAX_SEQUENCE
        if batch.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {batch.producer_id} in epoch {batch.producer_epoch} sent sequence "
                f"{batch.base_sequence}, expected was {expected}",
            )

    def _first_sequence(self, batch: RecordBatch) -> int:
        """Return the sequence with which an unknown producer begins."""
        verification = self._verifications.get(batch.producer_id)
        if verification is None:
            return batch.base_sequence
        return 0 if verification.adds else min(verification.lowest_sequence, batch.base_sequence)

    def _check_transaction(self, batch: RecordBatch) -> None:
        if not batch.transactional and batch.producer_id in self.ongoing:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {batch.producer_id} has a transaction open since offset "
                f"{self.ongoing[batch.producer_id]}, but sent a batch outside of it",
            )

    # ---- after an append

    def update(self, batch: RecordBatch) -> None:
        """Record a batch that was appended to the log. O(1)."""
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            entry = self._entries[batch.producer_id] = ProducerEntry(batch.producer_epoch)
        elif entry.producer_epoch != batch.producer_epoch:
            entry.producer_epoch = batch.producer_epoch
            entry.batches = ()
        entry.last_timestamp_ms = batch.max_timestamp_ms
        if batch.transactional:
            self._verifications.pop(batch.producer_id, None)
        if batch.control is not None:
            entry.coordinator_epoch = max(entry.coordinator_epoch, batch.coordinator_epoch)
            self._end_transaction(batch, batch.control)
            return
        if batch.base_sequence >= 0:
            cached = AppendedBatch(
                batch.base_sequence, batch.last_sequence, batch.base_offset, batch.next_offset
            )
            entry.batches = (*entry.batches[1 - MAX_CACHED_BATCHES :], cached)
        if batch.transactional and batch.producer_id not in self.ongoing:
            self.ongoing[batch.producer_id] = batch.base_offset

    def _end_transaction(self, marker: RecordBatch, result: TransactionResult) -> None:
        first_offset = self.ongoing.pop(marker.producer_id, None)
        if first_offset is None:
            return  # the producer wrote nothing in this transaction
        ended = AbortedTransaction(marker.producer_id, first_offset, marker.base_offset)
        self.unreplicated.append(ended)
        if result is TransactionResult.ABORT:
            self._aborted.append(ended)

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Complete transactions whose marker is replicated. O(undecided transactions)."""
        if self.unreplicated:
            self.unreplicated = [t for t in self.unreplicated if t.last_offset >= high_watermark]

    # ---- queries

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of an undecided transaction; None without one."""
        if not self.ongoing and not self.unreplicated:
            return None
        offsets = [transaction.first_offset for transaction in self.unreplicated]
        offsets.extend(islice(self.ongoing.values(), 1))
        return min(offsets)

    def aborted_between(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that reach into the range. O(aborted transactions)."""
        if not self._aborted:
            return ()
        return tuple(
            t
            for t in self._aborted
            if t.last_offset >= start_offset and t.first_offset < end_offset
        )

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """Return a producer's state, or None."""
        return self._entries.get(producer_id)

    def entries(self) -> dict[int, ProducerEntry]:
        """Return the state of each producer by its id. O(producers)."""
        return dict(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    # ---- truncation

    def forget_before(self, start_offset: int) -> None:
        """Remove state of records before the log's new start."""
        if self._aborted:
            self._aborted = [t for t in self._aborted if t.last_offset >= start_offset]
        self.advance_high_watermark(start_offset)

    def copy(self) -> ProducerStates:
        """Return an independent copy. O(producers)."""
        other = ProducerStates()
        other._entries = {
            producer_id: replace(entry) for producer_id, entry in self._entries.items()
        }
        other.ongoing = dict(self.ongoing)
        other.unreplicated = list(self.unreplicated)
        other._aborted = list(self._aborted)
        return other

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProducerStates:
        """Return the state from the result of ``to_json``, or from its JSON.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: the data is invalid.
        """
        states = cls()
        for producer_id, (epoch, batches, *numbers) in data["producers"].items():
            cached = tuple(AppendedBatch(*map(int, batch)) for batch in batches)
            states._entries[int(producer_id)] = ProducerEntry(
                int(epoch), cached, *map(int, numbers)
            )
        states.ongoing = {int(key): int(offset) for key, offset in data["ongoing"].items()}
        states.unreplicated = [AbortedTransaction(*map(int, entry)) for entry in data["undecided"]]
        states._aborted = [AbortedTransaction(*map(int, fields)) for fields in data["aborted"]]
        return states

    def to_json(self) -> dict[str, object]:
        """Return the state as plain values, so that two can be compared."""
        return {
            "producers": {
                producer_id: (
                    entry.producer_epoch,
                    entry.batches,
                    entry.coordinator_epoch,
                    entry.last_timestamp_ms,
                )
                for producer_id, entry in self._entries.items()
            },
            "ongoing": dict(self.ongoing),
            "undecided": list(self.unreplicated),
            "aborted": list(self._aborted),
        }

    def _check(self, end_offset: int) -> None:
        """Assert every invariant of the state of a log with this end. O(producers)."""
        for producer_id, entry in self._entries.items():
            assert entry.producer_epoch > NO_PRODUCER_EPOCH, producer_id
            assert len(entry.batches) <= MAX_CACHED_BATCHES, producer_id
            for older, newer in pairwise(entry.batches):
                assert newer.first_sequence == (older.last_sequence + 1) & MAX_SEQUENCE
                assert newer.first_offset >= older.next_offset
            assert all(cached.next_offset <= end_offset for cached in entry.batches), producer_id
        starts = list(self.ongoing.values())
        assert starts == sorted(starts), "open transactions are in the order of their offsets"
        assert all(start < end_offset for start in starts), (starts, end_offset)
        assert all(t.first_offset < t.last_offset < end_offset for t in self.unreplicated)


def _check_marker(batch: RecordBatch, entry: ProducerEntry | None, origin: AppendOrigin) -> None:
    if origin is not AppendOrigin.COORDINATOR:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"producer {batch.producer_id} sent an end-transaction marker: "
            "only a transaction coordinator may write one",
        )
    if entry is not None and batch.coordinator_epoch < entry.coordinator_epoch:
        raise KafkaError(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"a coordinator of epoch {batch.coordinator_epoch} would end a transaction of producer "
            f"{batch.producer_id}; one of epoch {entry.coordinator_epoch} did so before",
        )


class ProducerIdentity(NamedTuple):
    """A producer's id and its epoch: of two with one id, the lower epoch is fenced."""

    producer_id: int
    producer_epoch: int
