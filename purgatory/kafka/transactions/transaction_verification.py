"""Whether what a producer writes is in its transaction: the leaders ask the coordinator (KIP-890).

Without it, a record that comes late, after its transaction was ended, would open one that nobody
ends, and hold up all readers of read_committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.producer_identity import ProducerIdentity
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.replica_manager import ReplicaManager
from purgatory.kafka.requests import PartitionProduceResponse
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_answers import Codes
from purgatory.kafka.transactions.transaction_coordinator import TransactionCoordinator

PASSING = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""What the coordinator answers that clients wouldn't know to be passing in answers to produces."""


def refused_outside(
    manager: ReplicaManager,
    transactional_id: str | None,
    entries: Mapping[TopicPartition, Sequence[RecordBatch]],
    coordinator_of: Callable[[str], TransactionCoordinator | None],
) -> dict[TopicPartition, PartitionProduceResponse]:
    """Return the answers to those batches that are of a transaction, but of none that is open.

    O(partitions). Who wrote to a partition in a transaction that isn't ended is not looked up.

    Args:
        manager: of the broker that is to append.
        transactional_id: whose batches they are, as the producer says.
        entries: the batches by partition.
        coordinator_of: returns who coordinates a transactional id, None if nobody can be asked.
    """
    asked: dict[ProducerIdentity, list[TopicPartition]] = {}
    for topic_partition, batches in entries.items():
        batch = batches[0]
        if batch.transactional and not _is_open(manager, topic_partition, batch.producer_id):
            producer = ProducerIdentity(batch.producer_id, batch.producer_epoch)
            asked.setdefault(producer, []).append(topic_partition)
    refused = {}
    for producer, partitions in asked.items():
        codes = verified(transactional_id, producer, partitions, coordinator_of)
        for one, code in codes.items():
            if code is not ErrorCode.NONE:
                told = ErrorCode.NOT_ENOUGH_REPLICAS if code in PASSING else code
                message = f"{one} is in no open transaction of {transactional_id!r}: {code.name}"
                refused[one] = PartitionProduceResponse(told, message=message)
    return refused


def _is_open(manager: ReplicaManager, topic_partition: TopicPartition, producer_id: int) -> bool:
    partition = manager.partition(topic_partition)
    # Where it isn't led here, that is what is answered.
    return (
        partition is None
        or not partition.is_leader
        or producer_id in partition.log.producers.ongoing
    )


def verified(
    transactional_id: str | None,
    producer: ProducerIdentity,
    partitions: Collection[TopicPartition],
    coordinator_of: Callable[[str], TransactionCoordinator | None],
) -> Codes:
    """Return what the coordinator of a transactional id says of partitions."""
    if not transactional_id:
        return dict.fromkeys(partitions, ErrorCode.INVALID_TXN_STATE)
    coordinator = coordinator_of(transactional_id)
    if coordinator is None:
        return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    codes = coordinator.verify_partitions(transactional_id, producer, partitions)
    return {
        # Clients that don't know the newer code are to abort all the same.
        one: ErrorCode.INVALID_TXN_STATE if code is ErrorCode.TRANSACTION_ABORTABLE else code
        for one, code in codes.items()
    }
