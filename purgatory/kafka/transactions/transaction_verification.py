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
from purgatory.kafka.transactions.transaction_metadata import TV2, Codes, RespondCodes

VerificationErrors: TypeAlias = dict[TopicPartition, PartitionProduceResponse]

RETRIABLE = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors of the coordinator that clients would not retry in a produce response."""


def verification_errors(
    manager: ReplicaManager,
    transactional_id: str,
    entries: Mapping[TopicPartition, Sequence[RecordBatch]],
    coordinator_of: Callable[[str], TransactionCoordinator | None],
    *,
    knows_abortable: bool,
) -> dict[TopicPartition, PartitionProduceResponse]:
    """Return the errors of transactional batches whose transaction is not open.

    O(partitions). A partition with an open transaction of the producer needs no verification.

    Args:
        manager: the replicas of the broker that is to append.
        transactional_id: the transactional id in the request.
        entries: the batches by partition, all transactional ones of one producer.
        coordinator_of: returns the coordinator of a transactional id, or None.
        knows_abortable: whether the client knows TRANSACTION_ABORTABLE.
    """
    errors: VerificationErrors = {}
    for producer, partitions in _not_open(manager, entries, adds=False).items():
        codes = verify_partitions(
            transactional_id,
            producer,
            partitions,
            coordinator_of,
            knows_abortable=knows_abortable,
        )
        errors |= error_responses(transactional_id, codes)
    return errors


def add_partitions_to_txn(
    manager: ReplicaManager,
    transactional_id: str,
    entries: Mapping[TopicPartition, Sequence[RecordBatch]],
    coordinator_of: Callable[[str], TransactionCoordinator | None],
    respond: RespondCodes,
) -> None:
    """As ``verification_errors``, for producers whose partitions the leaders add to transactions.

    ``respond`` takes the coordinator's codes of the partitions that were not in it before.
    """
    pending = _not_open(manager, entries, adds=True)
    added: dict[TopicPartition, ErrorCode] = {}

    def respond_producer(producer: ProducerIdentity, codes: Codes) -> None:
        added.update(codes)
        del pending[producer]
        if not pending:
            respond(added)

    if not pending:
        respond(added)
    for producer, partitions in list(pending.items()):
        add_partitions(
            transactional_id,
            producer,
            partitions,
            coordinator_of,
            partial(respond_producer, producer),
        )


def _not_open(
    manager: ReplicaManager,
    entries: Mapping[TopicPartition, Sequence[RecordBatch]],
    *,
    adds: bool,
) -> dict[ProducerIdentity, list[TopicPartition]]:
    """Return the partitions that need a verification, and note their sequences."""
    pending: dict[ProducerIdentity, list[TopicPartition]] = {}
    for topic_partition, (batch, *_) in entries.items():
        partition = manager.partition(topic_partition)
        if (
            not batch.transactional
            or batch.producer_id < 0
            or partition is None
            or not partition.is_leader  # that is what is answered
        ):
            continue
        if partition.log.producers.begin_verification(batch, adds=adds):
            producer = ProducerIdentity(batch.producer_id, batch.producer_epoch)
            pending.setdefault(producer, []).append(topic_partition)
    return pending


def error_responses(transactional_id: str, codes: Codes) -> VerificationErrors:
    """Return what a producer is answered of partitions whose codes are errors."""
    errors = {}
    for topic_partition, code in codes.items():
        if code is not ErrorCode.NONE:
            error = ErrorCode.NOT_ENOUGH_REPLICAS if code in RETRIABLE else code
            message = (
                f"{topic_partition} is in no open transaction of {transactional_id!r}: {code.name}"
            )
            errors[topic_partition] = PartitionProduceResponse(error, message=message)
    return errors


def verify_partitions(
    transactional_id: str,
    producer: ProducerIdentity,
    partitions: Collection[TopicPartition],
    coordinator_of: Callable[[str], TransactionCoordinator | None],
    *,
    knows_abortable: bool,
) -> Codes:
    """Return the transaction coordinator's verification errors of partitions.

    Args:
        knows_abortable: as for ``verification_errors``.
    """
    coordinator = coordinator_of(transactional_id)
    if coordinator is None:
        return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    codes = coordinator.verify_partitions(transactional_id, producer, partitions)
    return _leader_codes(codes, knows_abortable=knows_abortable)


def add_partitions(
    transactional_id: str,
    producer: ProducerIdentity,
    partitions: Collection[TopicPartition],
    coordinator_of: Callable[[str], TransactionCoordinator | None],
    respond: RespondCodes,
) -> None:
    """Add partitions to a transaction at its coordinator, for their leaders."""
    coordinator = coordinator_of(transactional_id)
    if coordinator is None:
        respond(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    coordinator.add_partitions(
        transactional_id,
        producer,
        partitions,
        lambda codes: respond(_leader_codes(codes, knows_abortable=True)),
        TV2,
    )


def _leader_codes(codes: Codes, *, knows_abortable: bool) -> Codes:
    """Return the codes that leaders and group coordinators have for those of the coordinator."""
    leader_codes = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
    if not knows_abortable:
        leader_codes[ErrorCode.TRANSACTION_ABORTABLE] = ErrorCode.INVALID_TXN_STATE
    return {
        topic_partition: leader_codes.get(code, code) for topic_partition, code in codes.items()
    }
