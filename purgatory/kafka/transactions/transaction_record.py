"""What is known of a transactional id, and the topic whose records it is kept in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from purgatory.kafka.producer_identity import ProducerIdentity
from purgatory.kafka.record_batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    EndTransaction,
    RecordBatch,
)
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_state import TransactionState

TRANSACTIONS_TOPIC = "__transaction_state"
"""The topic in which coordinators store the state of transactions."""

NO_TIME = -1


class TransactionRecord(NamedTuple):
    """What is known of a transactional id.

    Args:
        state: what its transaction is doing.
        producer_id, producer_epoch: of the one producer that may use it.
        timeout_ms: how long a transaction may last, in milliseconds.
        partitions: that the transaction concerns.
        start_ms: when it began, in milliseconds since 1970; -1 while there is none.
        update_ms: when this was written, likewise.
        last_producer_id, last_producer_epoch: before the epoch was raised by the producer itself,
            which may not know yet that it was; -1: not known. The epoch is not stored.
        next_producer_id: that follows once the end that is decided is complete, since the epochs of
            this one are used up; -1: none does.
        version: of the protocol by which the transactional id is used since it was given to its
            producer: 1: the producer takes partitions in; 2: leaders do, and the epoch rises with
            each end (KIP-890); 0: not known yet.
    """

    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    update_ms: int = NO_TIME
    last_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    next_producer_id: int = NO_PRODUCER_ID
    version: int = 0

    @property
    def following(self) -> ProducerIdentity:
        """Who its producer is once the end that is decided is complete."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return ProducerIdentity(self.producer_id, self.producer_epoch)


TransactionEntry: TypeAlias = tuple[str, TransactionRecord | None]
"""What one record says: how it stands with a transactional id, or that it is forgotten."""


class TransactionsCodec(Protocol):
    """Makes record batches of what is known of transactional ids, and of markers; reads the former
    back."""

    def batch(self, entries: Sequence[TransactionEntry]) -> RecordBatch:
        """Return a batch with one record for each entry; there is at least one."""

    def entries(self, batch: RecordBatch) -> Iterable[TransactionEntry]:
        """Return what a batch says, in its order."""

    def marker(
        self, producer: ProducerIdentity, how: EndTransaction, coordinator_epoch: int
    ) -> RecordBatch:
        """Return the marker that ends a producer's transaction on a partition."""
