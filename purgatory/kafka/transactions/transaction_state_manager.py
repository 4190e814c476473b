"""The transactional ids that a broker coordinates: those whose partition it leads.

Ground rules: those of `transaction_coordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from purgatory.kafka.coordinator_log import CoordinatorLog
from purgatory.kafka.errors import ErrorCode, TransactionRefusal
from purgatory.kafka.groups.offsets import group_partition
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_metadata import (
    TRANSACTIONS_TOPIC,
    RespondCode,
    Transaction,
    TransactionEntry,
    TransactionRecord,
    TransactionsCodec,
)


class TransactionStateManager:
    """The transactional ids of one broker's partitions, and their records.

    Args:
        manager: the replicas of the topic `__transaction_state`.
        codec: encodes and decodes its records.
        state_partitions: returns its partition count.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        codec: TransactionsCodec,
        state_partitions: Callable[[], int],
    ) -> None:
        self._codec = codec
        self._state_partitions = state_partitions
        self._records: CoordinatorLog[TransactionEntry] = CoordinatorLog(
            TRANSACTIONS_TOPIC, manager, codec, self._snapshot
        )
        self._transactions: dict[str, Transaction] = {}
        self._ids: dict[int, set[str]] = {}
        self._epochs: dict[int, int] = {}

    def coordinator_partition(self, transactional_id: str) -> TopicPartition:
        """Return the partition whose leader coordinates a transactional id."""
        count = self._state_partitions()
        return TopicPartition(TRANSACTIONS_TOPIC, group_partition(transactional_id, count))

    def _partition_of(self, transactional_id: str) -> int:
        return self.coordinator_partition(transactional_id).partition

    # Partitions.

    def epoch_of(self, partition: int) -> int | None:
        """Return the leader epoch in which a partition was loaded, or None."""
        return self._epochs.get(partition)

    def load(self, partition: int, leader_epoch: int) -> list[Transaction]:
        """Load all records of a partition; return its transactions. O(its records)."""
        self._epochs[partition] = leader_epoch
        records = dict(
            entry for batch in self._records.load(partition) for entry in self._codec.entries(batch)
        )
        self._ids[partition] = set()
        return [
            self._store(partition, Transaction(transactional_id, record, leader_epoch))
            for transactional_id, record in records.items()
            if record is not None
        ]

    def unload(self, partition: int) -> list[Transaction]:
        """Unload a partition; return its transactions."""
        self._records.unload(partition)
        del self._epochs[partition]
        return [
            self._transactions.pop(transactional_id)
            for transactional_id in self._ids.pop(partition)
        ]

    def _store(self, partition: int, transaction: Transaction) -> Transaction:
        self._transactions[transaction.transactional_id] = transaction
        self._ids[partition].add(transaction.transactional_id)
        return transaction

    def _snapshot(self, partition: int) -> Sequence[TransactionEntry]:
        return [
            (transactional_id, self._transactions[transactional_id].record)
            for transactional_id in self._ids.get(partition, ())
        ]

    # Transactional ids.

    def find(self, transactional_id: str) -> Transaction | None:
        """Return a transaction that this broker coordinates, or None. O(1).

        Raises:
            TransactionRefusal: INVALID_REQUEST, NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS.
        """
        if not transactional_id:
            raise TransactionRefusal(ErrorCode.INVALID_REQUEST)
        partition = self._partition_of(transactional_id)
        if not self._records.leads(partition):
            raise TransactionRefusal(ErrorCode.NOT_COORDINATOR)
        if not self._records.is_committed(partition):
            raise TransactionRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._transactions.get(transactional_id)

    def add(self, transactional_id: str, record: TransactionRecord) -> Transaction:
        """Take up a transactional id that is new, and coordinated here."""
        partition = self._partition_of(transactional_id)
        return self._store(
            partition, Transaction(transactional_id, record, self._epochs[partition])
        )

    def drop(self, transaction: Transaction) -> None:
        """Forget a transactional id."""
        self._ids[self._partition_of(transaction.transactional_id)].discard(
            transaction.transactional_id
        )
        del self._transactions[transaction.transactional_id]

    def is_known(self, transaction: Transaction) -> bool:
        """Whether it is still coordinated here."""
        return self._transactions.get(transaction.transactional_id) is transaction

    def is_committed(self, transaction: Transaction) -> bool:
        """Whether all in-sync replicas have the loaded records."""
        return self._records.is_committed(self._partition_of(transaction.transactional_id))

    def append(
        self, transaction: Transaction, record: TransactionRecord | None, stored: RespondCode
    ) -> None:
        """Write a record or a tombstone; call back when it is replicated."""
        entry = transaction.transactional_id, record
        self._records.append(self._partition_of(transaction.transactional_id), [entry], stored)

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        """All that are coordinated here."""
        return self._transactions

    def _check(self) -> None:
        """Assert every invariant. O(transactional ids)."""
        all_transactions: Mapping[str, Transaction] = {
            transactional_id: self._transactions[transactional_id]
            for ids in self._ids.values()
            for transactional_id in ids
        }
        assert all_transactions == self._transactions
        assert self._ids.keys() == self._epochs.keys()
        for transaction in self._transactions.values():
            transaction._check()
