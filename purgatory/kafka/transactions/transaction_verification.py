"""The verification of transactional batches by the coordinator, before they are appended (KIP-890).

Without it, a late record, after the end of its transaction, would open one that is never ended, and
hold up all readers of read_committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.producer_state import ProducerIdentity
from purgatory.kafka.log.record_batch import RecordBatch
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.replication.requests import PartitionProduceResponse
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_coordinator import TransactionCoordinator
from purgatory.kafka.transactions.transaction_metadata import Codes, RespondCodes

VerificationErrors: TypeAlias = dict[TopicPartition, PartitionProduceResponse]

RETRIABLE = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors of the coordinator that clients would not retry in a produce response."""


def verification_errors(
    manager: ReplicaManager,
    transactional_id: str | None,
    entries: Mapping[TopicPartition, Sequence[RecordBatch]],
    coordinator_of: Callable[[str], TransactionCoordinator | None],
) -> dict[TopicPartition, PartitionProduceResponse]:
    """Return the errors of transactional batches whose transaction is not open.

    O(partitions). A partition with an open transaction of the producer needs no verification.

    Args:
        manager: the replicas of the broker that is to append.
        transactional_id: the transactional id in the request.
        entries: the batches by partition.
        coordinator_of: returns the coordinator of a transactional id, or None.
    """
    errors: VerificationErrors = {}
    for producer, partitions in _not_open(manager, entries).items():
        codes = verify_partitions(transactional_id, producer, partitions, coordinator_of)
        errors |= _error_responses(transactional_id, codes)
    return errors


def add_partitions_to_txn(
    manager: ReplicaManager,
    transactional_id: str | None,
    entries: Mapping[TopicPartition, Sequence[RecordBatch]],
    coordinator_of: Callable[[str], TransactionCoordinator | None],
    respond: Callable[[VerificationErrors], object],
) -> None:
    """As ``verification_errors``, for producers whose partitions the leaders add to transactions.

    ``respond`` takes the errors of the partitions that can't be added.
    """
    pending = _not_open(manager, entries)
    errors: VerificationErrors = {}

    def respond_producer(producer: ProducerIdentity, codes: Codes) -> None:
        errors.update(_error_responses(transactional_id, codes))
        del pending[producer]
        if not pending:
            respond(errors)

    if not pending:
        respond(errors)
    for producer, partitions in list(pending.items()):
        add_partitions(
            transactional_id,
            producer,
            partitions,
            coordinator_of,
            partial(respond_producer, producer),
        )


def _not_open(
    manager: ReplicaManager, entries: Mapping[TopicPartition, Sequence[RecordBatch]]
) -> dict[ProducerIdentity, list[TopicPartition]]:
    pending: dict[ProducerIdentity, list[TopicPartition]] = {}
    for topic_partition, batches in entries.items():
        producer = ProducerIdentity(batches[0].producer_id, batches[0].producer_epoch)
        if batches[0].transactional and not _is_open(manager, topic_partition, producer):
            pending.setdefault(producer, []).append(topic_partition)
    return pending


def _error_responses(transactional_id: str | None, codes: Codes) -> VerificationErrors:
    errors = {}
    for topic_partition, code in codes.items():
        if code is not ErrorCode.NONE:
            error = ErrorCode.NOT_ENOUGH_REPLICAS if code in RETRIABLE else code
            message = (
                f"{topic_partition} is in no open transaction of {transactional_id!r}: {code.name}"
            )
            errors[topic_partition] = PartitionProduceResponse(error, message=message)
    return errors


def _is_open(
    manager: ReplicaManager, topic_partition: TopicPartition, producer: ProducerIdentity
) -> bool:
    partition = manager.partition(topic_partition)
    if partition is None or not partition.is_leader:
        return True  # where it isn't led here, that is what is answered
    producers = partition.log.producers
    if producer.producer_id not in producers.ongoing:
        return False
    # In a later epoch it is in its next transaction: the marker of this one is on its way.
    entry = producers.entry(producer.producer_id)
    return entry is not None and entry.producer_epoch == producer.producer_epoch


def verify_partitions(
    transactional_id: str | None,
    producer: ProducerIdentity,
    partitions: Collection[TopicPartition],
    coordinator_of: Callable[[str], TransactionCoordinator | None],
) -> Codes:
    """Return the transaction coordinator's verification errors of partitions."""
    if not transactional_id:
        return dict.fromkeys(partitions, ErrorCode.INVALID_TXN_STATE)
    coordinator = coordinator_of(transactional_id)
    if coordinator is None:
        return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _response_codes(coordinator.verify_partitions(transactional_id, producer, partitions))


def add_partitions(
    transactional_id: str | None,
    producer: ProducerIdentity,
    partitions: Collection[TopicPartition],
    coordinator_of: Callable[[str], TransactionCoordinator | None],
    respond: RespondCodes,
) -> None:
    """Add partitions to a transaction at its coordinator; see ``verify_or_add``."""
    coordinator = coordinator_of(transactional_id) if transactional_id else None
    if coordinator is None or not transactional_id:
        respond(verify_partitions(transactional_id, producer, partitions, coordinator_of))
        return
    coordinator.verify_or_add(
        transactional_id, producer, partitions, lambda codes: respond(_response_codes(codes))
    )


def _response_codes(codes: Codes) -> Codes:
    return {
        # Clients that don't know the newer code are to abort all the same.
        topic_partition: ErrorCode.INVALID_TXN_STATE
        if code is ErrorCode.TRANSACTION_ABORTABLE
        else code
        for topic_partition, code in codes.items()
    }
