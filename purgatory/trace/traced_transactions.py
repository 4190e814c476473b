"""The table of transactions, from the records of transaction coordinators, and the commits in them.

Ground rules
------------
* One thread at a time calls a `TracedTransactions`.
* Records arrive in order. A coordinator that takes over may repeat a record; the last record of a
  coordinator that died may be missing, and the next record then has its state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from purgatory.kafka.groups.offsets import CommittedOffset, OffsetKey
from purgatory.kafka.log.producer_state import ProducerIdentity
from purgatory.kafka.transactions.transaction_metadata import (
    TV2,
    TransactionRecord,
    TransactionState,
)
from purgatory.trace.table_rows import CommitRow, TransactionRow
from purgatory.trace.trace_tables import Tables

_EPOCHS = 2**15
"""The number of epochs of a producer id; the epochs of the next id continue from it."""
_MOST_EPOCHS = 100
"""The number of epochs of a transactional id whose last transaction is kept."""

_OUTCOMES = {
    TransactionState.PREPARE_COMMIT: "committed",
    TransactionState.COMPLETE_COMMIT: "committed",
    TransactionState.PREPARE_ABORT: "aborted",
    TransactionState.COMPLETE_ABORT: "aborted",
}
_COMPLETE = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})


@dataclass
class _TransactionalId:
    """The state of one transactional id."""

    producer_ids: list[int] = field(default_factory=list)
    granted_us: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    open: TransactionRow | None = None
    ended_unseen: bool = False
    """Whether the open transaction may have ended unseen, committed or aborted."""

    def epoch(self, producer: ProducerIdentity) -> int:
        if producer.producer_id not in self.producer_ids:
            self.producer_ids.append(producer.producer_id)
        return _EPOCHS * self.producer_ids.index(producer.producer_id) + producer.producer_epoch


class TracedTransactions:
    """Tracks transactional ids, and writes a row for each transaction when it ends.

    Args:
        tables: receives the rows.
        now_us: the time since the start of the run, in microseconds.
        topic_name: how the trace names a topic.
    """

    def __init__(
        self, tables: Tables, now_us: Callable[[], int], topic_name: Callable[[str], str] = str
    ) -> None:
        self._tables = tables
        self._now_us = now_us
        self._topic_name = topic_name
        self._count = 0
        self._ids: dict[str, _TransactionalId] = {}
        self._last_transactions: dict[int, int] = {}

    def on_record(
        self, transactional_id: str, record: TransactionRecord, at_us: int | None = None
    ) -> None:
        """Handle a record that a coordinator has written. O(1).

        Args:
            at_us: when, in microseconds since the start of the run; None: now.
        """
        now_us = self._now_us() if at_us is None else at_us
        if record.state is TransactionState.DEAD:
            return
        entry = self._ids.setdefault(transactional_id, _TransactionalId())
        epoch = entry.epoch(ProducerIdentity(record.producer_id, record.producer_epoch))
        if record.state is TransactionState.EMPTY:
            if entry.ended_unseen:
                entry.open = None
            entry.granted_us.setdefault(epoch, now_us)
            return
        if entry.open is None and record.state not in _COMPLETE:
            self._begin(entry, transactional_id, record.producer_id, epoch, now_us)
        if entry.open is not None and record.state in _OUTCOMES:
            # An end with another epoch is another producer's; with TV2 each end raises it.
            by_coordinator = record.by_coordinator or (
                epoch != entry.open.epoch and record.version != TV2
            )
            self._end(entry, entry.open, record.state, by_coordinator, now_us)

    def is_open(self, transactional_id: str) -> bool:
        """Whether a transaction has begun that is not complete."""
        entry = self._ids.get(transactional_id)
        return entry is not None and entry.open is not None

    def on_unknown_end(self, transactional_id: str) -> None:
        """Mark the open transaction as possibly ended: it has a row only if a later record has its
        outcome."""
        entry = self._ids.get(transactional_id)
        if entry is not None:
            entry.ended_unseen = entry.open is not None

    def _begin(
        self,
        entry: _TransactionalId,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        now_us: int,
    ) -> None:
        self._count += 1
        entry.ended_unseen = False
        self._last_transactions[producer_id] = self._count
        entry.last[epoch] = self._count
        for epochs in (entry.last, entry.granted_us):
            if len(epochs) > _MOST_EPOCHS:
                del epochs[next(iter(epochs))]
        granted_us = entry.granted_us.get(epoch)
        entry.open = TransactionRow(
            self._count, transactional_id, epoch, "open", None, granted_us, now_us, None, None
        )

    def _end(
        self,
        entry: _TransactionalId,
        row: TransactionRow,
        state: TransactionState,
        by_coordinator: bool,
        now_us: int,
    ) -> None:
        if row.ended_by is None:
            ended_by = "coordinator" if by_coordinator else "producer"
            row = row._replace(outcome=_OUTCOMES[state], ended_by=ended_by)
            if state not in _COMPLETE:
                row = row._replace(decided_us=now_us)
        entry.open = row
        if state in _COMPLETE:
            entry.open = None
            self._tables.transaction(row._replace(ended_us=now_us))

    def of_send(self, transactional_id: str, producer: ProducerIdentity) -> tuple[int, int | None]:
        """Return the producer's epoch, as a trace counts them, and the number of the last
        transaction of that epoch, if any."""
        entry = self._ids.get(transactional_id)
        if entry is None or producer.producer_id not in entry.producer_ids:
            return producer.producer_epoch, None  # no coordinator has assigned it
        epoch = entry.epoch(producer)
        return epoch, entry.last.get(epoch)

    def on_offset_ended(
        self, producer_id: int, key: OffsetKey, offset: CommittedOffset, held: bool
    ) -> None:
        """Write the outcome of an offset that was committed in a producer's last transaction."""
        transaction = self._last_transactions.get(producer_id)
        row = CommitRow(*key, offset.offset, self._now_us(), transaction, held)
        self._tables.commit(row._replace(topic=self._topic_name(row.topic)))

    def close(self) -> None:
        """Write the open transactions."""
        for entry in self._ids.values():
            if entry.open is not None and not (entry.ended_unseen and entry.open.ended_by is None):
                self._tables.transaction(entry.open)
            entry.open = None
