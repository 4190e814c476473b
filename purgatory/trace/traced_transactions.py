"""The table of transactions, out of the records that coordinators of transactional ids keep, and
the commits that are made in them.

Ground rules
------------
* One thread at a time calls it.
* Records come in the order in which they hold. One may come again, from a coordinator that takes
  over, or be missing, if a coordinator died just before it would have told: the next one tells.
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
"""How many a producer id has: those of the next one count on."""
_MOST_EPOCHS = 100
"""Of how many epochs of a transactional id the last transaction is known."""

_DECIDED = {
    TransactionState.PREPARE_COMMIT: "committed",
    TransactionState.COMPLETE_COMMIT: "committed",
    TransactionState.PREPARE_ABORT: "aborted",
    TransactionState.COMPLETE_ABORT: "aborted",
}
_COMPLETE = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})


@dataclass
class _Known:
    """What is known of one transactional id."""

    producer_ids: list[int] = field(default_factory=list)
    given_us: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    open: TransactionRow | None = None

    def epoch(self, producer: ProducerIdentity) -> int:
        if producer.producer_id not in self.producer_ids:
            self.producer_ids.append(producer.producer_id)
        return _EPOCHS * self.producer_ids.index(producer.producer_id) + producer.producer_epoch


class TracedTransactions:
    """Follows transactional ids, and writes a row for each transaction when it is over.

    Args:
        tables: take the rows.
        now_us: the time since the start of the run, in microseconds.
    """

    def __init__(self, tables: Tables, now_us: Callable[[], int]) -> None:
        self._tables = tables
        self._now_us = now_us
        self._count = 0
        self._known: dict[str, _Known] = {}
        self._of_producer: dict[int, int] = {}

    def on_record(self, transactional_id: str, record: TransactionRecord) -> None:
        """Follow a record that a coordinator has written of a transactional id. O(1)."""
        now_us = self._now_us()
        if record.state is TransactionState.DEAD:
            return
        known = self._known.setdefault(transactional_id, _Known())
        epoch = known.epoch(ProducerIdentity(record.producer_id, record.producer_epoch))
        if record.state is TransactionState.EMPTY:
            known.given_us.setdefault(epoch, now_us)
            return
        if known.open is None and record.state not in _COMPLETE:
            self._begin(known, transactional_id, record.producer_id, epoch, now_us)
        if known.open is not None and record.state in _DECIDED:
            # It takes a new epoch to abort on the coordinator's own account; where each end takes
            # one, the record says so.
            own = epoch != known.open.epoch and record.version != TV2
            self._end(known, known.open, record.state, own, now_us)

    def _begin(
        self, known: _Known, transactional_id: str, producer_id: int, epoch: int, now_us: int
    ) -> None:
        self._count += 1
        self._of_producer[producer_id] = self._count
        known.last[epoch] = self._count
        for epochs in (known.last, known.given_us):
            if len(epochs) > _MOST_EPOCHS:
                del epochs[next(iter(epochs))]
        given_us = known.given_us.get(epoch)
        known.open = TransactionRow(
            self._count, transactional_id, epoch, "open", None, given_us, now_us, None, None
        )

    def _end(
        self, known: _Known, begun: TransactionRow, state: TransactionState, own: bool, now_us: int
    ) -> None:
        if begun.ended_by is None:
            ended_by = "coordinator" if own else "producer"
            begun = begun._replace(outcome=_DECIDED[state], ended_by=ended_by)
            if state not in _COMPLETE:
                begun = begun._replace(decided_us=now_us)
        known.open = begun
        if state in _COMPLETE:
            known.open = None
            self._tables.transaction(begun._replace(ended_us=now_us))

    def of_send(self, transactional_id: str, producer: ProducerIdentity) -> tuple[int, int | None]:
        """Return the epoch under which a producer sends, as a trace counts them, and the number of
        the last transaction that began under it, if one did."""
        known = self._known.get(transactional_id)
        if known is None or producer.producer_id not in known.producer_ids:
            return producer.producer_epoch, None  # no coordinator gave it out
        epoch = known.epoch(producer)
        return epoch, known.last.get(epoch)

    def on_offset_ended(
        self, producer_id: int, key: OffsetKey, offset: CommittedOffset, held: bool
    ) -> None:
        """Write what became of an offset that was committed in a producer's last transaction."""
        transaction = self._of_producer.get(producer_id)
        self._tables.commit(CommitRow(*key, offset.offset, self._now_us(), transaction, held))

    def close(self) -> None:
        """Write those that are not over."""
        for known in self._known.values():
            if known.open is not None:
                self._tables.transaction(known.open)
                known.open = None
