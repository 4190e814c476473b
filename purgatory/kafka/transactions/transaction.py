"""A transactional id as its coordinator has it: what is written of it, and what is under way.

A data structure: who waits for what is the coordinator's business.
"""

from __future__ import annotations

from purgatory.core.keys import TransactionKey
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_record import TransactionRecord
from purgatory.kafka.transactions.transaction_state import FOLLOWERS, TransactionState


class Transaction:
    """One transactional id.

    ``record`` is what holds, ``pending`` the state whose record is being replicated. While the end
    is decided, ``unmarked`` are the partitions that have no marker yet, and ``in_flight`` those of
    them to whose leaders one is under way. Waits for it are watched on ``key``.
    """

    __slots__ = (
        "coordinator_epoch",
        "in_flight",
        "key",
        "pending",
        "record",
        "transactional_id",
        "unmarked",
    )

    def __init__(
        self, transactional_id: str, record: TransactionRecord, coordinator_epoch: int
    ) -> None:
        self.transactional_id = transactional_id
        self.record = record
        self.coordinator_epoch = coordinator_epoch
        self.key = TransactionKey(transactional_id)
        self.pending: TransactionState | None = None
        self.unmarked: set[TopicPartition] = set(record.partitions)
        self.in_flight: set[TopicPartition] = set()

    def begin(self, state: TransactionState) -> None:
        """Note that the record of a state is being replicated."""
        assert self.pending is None, (self.transactional_id, self.pending, state)
        assert state in FOLLOWERS[self.record.state], (self.record.state, state)
        self.pending = state

    def settle(self, record: TransactionRecord | None) -> None:
        """Note that it is replicated, or, with None, that it can't be."""
        self.pending = None
        if record is not None:
            self.record = record
            self.unmarked = set(record.partitions)

    def _check(self) -> None:
        """Assert every invariant."""
        assert self.in_flight <= self.unmarked <= self.record.partitions
        assert self.pending is None or self.pending in FOLLOWERS[self.record.state]
