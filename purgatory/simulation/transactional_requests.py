"""The requests of transactional producers to coordinators and leaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from purgatory.kafka import (
    CommittedOffset,
    ErrorCode,
    ProducerIdentity,
    TopicPartition,
    TransactionCoordinator,
)
from purgatory.kafka.transactions.transaction_verification import (
    RETRIABLE,
    verification_errors,
    verify_partitions,
)
from purgatory.simulation.coordinators import (
    group_manager,
    offsets_partition_of,
    transactions_partition_of,
)
from purgatory.simulation.group_member import stable_offsets
from purgatory.simulation.messages import Batch
from purgatory.simulation.network import CallbackRequest, Connection, OnResponse, Server
from purgatory.simulation.producer import ProduceRequest, Sender

_WRITE_TIMEOUT_MS = 5_000
_MARKERS_TIMEOUT_MS = 2 * _WRITE_TIMEOUT_MS
"""Twice: the decision is replicated, then the markers are written."""


class TransactionalRequester(NamedTuple):
    """A producer; its id and epoch are None before the first response."""

    transactional_id: str
    producer: ProducerIdentity | None


class ConsumerGroupMetadata(NamedTuple):
    """A consumer's membership in its group; the defaults: it has none."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class OffsetsToCommit(NamedTuple):
    """What a producer commits for a group."""

    group_id: str
    offsets: Mapping[TopicPartition, int]
    group_metadata: ConsumerGroupMetadata


class TransactionRequest(CallbackRequest):
    """A producer's request about its transaction.

    Args:
        connection: to the coordinator.
        content: what the kind of request has beside its requester.
    """

    __slots__ = ("content", "requester")
    purgatory = "Produce"
    kind = "transaction"
    longest_ms = _WRITE_TIMEOUT_MS
    waits_for_replicas = True

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        on_response: OnResponse,
        content: Any = None,
    ) -> None:
        self.requester = requester
        self.content = content
        keys = (self.coordinator_partition,)
        super().__init__(connection, on_response, self.longest_ms, keys)
        self.is_delayable = self.waits_for_replicas

    @property
    def coordinator_partition(self) -> TopicPartition:
        """The partition whose leader is the coordinator."""
        return transactions_partition_of(self.requester.transactional_id)

    @property
    def _producer(self) -> ProducerIdentity:
        assert self.requester.producer is not None, "only the first request has no id"
        return self.requester.producer


class InitProducerId(TransactionRequest):
    """Get an id and an epoch; ``content`` is the transaction timeout in milliseconds."""

    __slots__ = ()
    api = "init_producer_id"
    longest_ms = _MARKERS_TIMEOUT_MS
    waits_for_replicas = False

    def execute(self, broker: Server) -> None:
        transactional_id, producer = self.requester
        _transactions(broker).init_producer_id(
            transactional_id, self.content, producer, self.respond
        )


class AddPartitions(TransactionRequest):
    """Add partitions, the ``content``, to a transaction; the response is one error for all."""

    __slots__ = ()
    api = "add_partitions_to_txn"

    def execute(self, broker: Server) -> None:
        _transactions(broker).add_partitions(
            self.requester.transactional_id,
            self._producer,
            self.content,
            lambda codes: self.respond(_first_error(codes)),
        )


class AddOffsets(AddPartitions):
    """Add a group's offsets to a transaction: the partition that they are in."""

    __slots__ = ()
    api = "add_offsets_to_txn"


class TxnOffsetCommit(TransactionRequest):
    """Commit offsets, `OffsetsToCommit`, within the transaction; the response is one error for
    all."""

    __slots__ = ()
    api = "txn_offset_commit"
    content: OffsetsToCommit

    @property
    def coordinator_partition(self) -> TopicPartition:
        return offsets_partition_of(self.content.group_id)

    def execute(self, broker: Server) -> None:
        coordinator_partition = self.coordinator_partition
        codes = verify_partitions(
            self.requester.transactional_id,
            self._producer,
            [coordinator_partition],
            broker.coordinator_of,
        )
        code = codes[coordinator_partition]
        if code is not ErrorCode.NONE:
            self.respond(ErrorCode.COORDINATOR_NOT_AVAILABLE if code in RETRIABLE else code)
            return
        group_id, offsets, group_metadata = self.content
        group_manager(broker).commit_in_transaction(
            group_id,
            self._producer,
            *group_metadata,
            {
                topic_partition: CommittedOffset(offset, -1, "")
                for topic_partition, offset in offsets.items()
            },
            lambda codes: self.respond(_first_error(codes)),
        )


class FetchOffsets(TransactionRequest):
    """Fetch the committed offsets of a group, the ``content``, by partition; an error while a
    transaction may change them."""

    __slots__ = ()
    api = "offset_fetch"
    waits_for_replicas = False

    @property
    def coordinator_partition(self) -> TopicPartition:
        return offsets_partition_of(self.content)

    def execute(self, broker: Server) -> None:
        self.respond(stable_offsets(broker, self.content))


class EndTxn(TransactionRequest):
    """Commit or abort, as the ``content`` says."""

    __slots__ = ()
    api = "end_txn"
    purgatory = "TransactionMarker"
    longest_ms = _MARKERS_TIMEOUT_MS
    waits_for_replicas = False

    def execute(self, broker: Server) -> None:
        _transactions(broker).end(
            self.requester.transactional_id, self._producer, self.content, self.respond
        )


class TransactionalProduce(ProduceRequest):
    """A produce request with one batch of a transaction, which the leader verifies to be open."""

    __slots__ = ("_transactional_id",)

    def __init__(
        self, producer: Sender, connection: Connection, batch: Batch, transactional_id: str
    ) -> None:
        super().__init__(producer, connection, [batch])
        self._transactional_id = transactional_id

    def execute(self, broker: Server) -> None:
        [batch] = self.batches
        errors = verification_errors(
            broker.manager,
            self._transactional_id,
            {batch.queue.topic_partition: [batch.record_batch()]},
            broker.coordinator_of,
        )
        if errors:
            self.respond(errors)
        else:
            super().execute(broker)


def _transactions(broker: Server) -> TransactionCoordinator:
    assert broker.transactions is not None, "brokers coordinate transactions where there are any"
    return broker.transactions


def _first_error(codes: Mapping[TopicPartition, ErrorCode]) -> ErrorCode:
    """The first error, if there is any."""
    return next((code for code in codes.values() if code), ErrorCode.NONE)
