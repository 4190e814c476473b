"""The requests of transactional producers to coordinators and leaders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from purgatory.kafka import (
    CommittedOffset,
    ErrorCode,
    GroupManager,
    ProducerIdentity,
    TopicPartition,
    TransactionCoordinator,
    TransactionResult,
)
from purgatory.kafka.transactions.transaction_verification import (
    RETRIABLE,
    verification_errors,
    verify_partitions,
)
from purgatory.simulation.coordinators import offsets_partition_of, transactions_partition_of
from purgatory.simulation.group_member import stable_offsets
from purgatory.simulation.messages import Batch
from purgatory.simulation.network import Connection, Request, Server
from purgatory.simulation.producer import ProduceRequest, Sender

_WRITE_TIMEOUT_MS = 5_000
_MARKERS_TIMEOUT_MS = 2 * _WRITE_TIMEOUT_MS
"""Twice: the decision is replicated, then the markers are written."""

OnResponse = Callable[[Any], object]


class TransactionalRequester(NamedTuple):
    """A producer; its id and epoch are None before the first response."""

    transactional_id: str
    producer: ProducerIdentity | None


class ConsumerGroupMetadata(NamedTuple):
    """A consumer's membership in its group; the defaults: it has none."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class TransactionRequest(Request):
    """A producer's request about its transaction.

    Args:
        connection: to the coordinator.
        on_response: takes the response; None if the connection broke before it came.
    """

    __slots__ = ("_on_response", "requester")
    purgatory = "Produce"
    kind = "transaction"
    longest_ms = _WRITE_TIMEOUT_MS
    waits_for_replicas = True

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        on_response: OnResponse,
    ) -> None:
        super().__init__(connection)
        self.requester = requester
        self._on_response = on_response
        self.is_delayable = self.waits_for_replicas

    @property
    def coordinator_partition(self) -> TopicPartition:
        """The partition whose leader is the coordinator."""
        return transactions_partition_of(self.requester.transactional_id)

    @property
    def timeout_ms(self) -> int:
        return self.longest_ms

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return (self.coordinator_partition,)

    def deliver(self, response: Any) -> None:
        self._on_response(response)

    def fail(self) -> None:
        self._on_response(None)

    @property
    def _producer(self) -> ProducerIdentity:
        assert self.requester.producer is not None, "only the first request has no id"
        return self.requester.producer


class InitProducerId(TransactionRequest):
    """Get an id and an epoch."""

    __slots__ = ("_transaction_timeout_ms",)
    api = "init_producer_id"
    longest_ms = _MARKERS_TIMEOUT_MS
    waits_for_replicas = False

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        on_response: OnResponse,
        timeout_ms: int,
    ) -> None:
        super().__init__(requester, connection, on_response)
        self._transaction_timeout_ms = timeout_ms

    def execute(self, broker: Server) -> None:
        transactional_id, producer = self.requester
        _transactions(broker).init_producer_id(
            transactional_id, self._transaction_timeout_ms, producer, self.respond
        )


class AddPartitions(TransactionRequest):
    """Add partitions to a transaction; the response is one error for all."""

    __slots__ = ("_partitions",)
    api = "add_partitions_to_txn"

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        on_response: OnResponse,
        partitions: Collection[TopicPartition],
    ) -> None:
        super().__init__(requester, connection, on_response)
        self._partitions = partitions

    def execute(self, broker: Server) -> None:
        _transactions(broker).add_partitions(
            self.requester.transactional_id,
            self._producer,
            self._partitions,
            lambda codes: self.respond(_first_error(codes)),
        )


class AddOffsets(AddPartitions):
    """Add a group's offsets to a transaction."""

    __slots__ = ()
    api = "add_offsets_to_txn"

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        on_response: OnResponse,
        group_id: str,
    ) -> None:
        super().__init__(requester, connection, on_response, [offsets_partition_of(group_id)])


class _GroupCoordinatorRequest(TransactionRequest):
    """A request to the coordinator of a group."""

    __slots__ = ("group_id",)

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        on_response: OnResponse,
        group_id: str,
    ) -> None:
        super().__init__(requester, connection, on_response)
        self.group_id = group_id

    @property
    def coordinator_partition(self) -> TopicPartition:
        return offsets_partition_of(self.group_id)


class TxnOffsetCommit(_GroupCoordinatorRequest):
    """Commit offsets within the transaction; the response is one error for all."""

    __slots__ = ("_group_metadata", "_offsets")
    api = "txn_offset_commit"

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        on_response: OnResponse,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        super().__init__(requester, connection, on_response, group_id)
        self._offsets = offsets
        self._group_metadata = group_metadata

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
        _groups(broker).commit_in_transaction(
            self.group_id,
            self._producer,
            *self._group_metadata,
            {
                topic_partition: CommittedOffset(offset, -1, "")
                for topic_partition, offset in self._offsets.items()
            },
            lambda codes: self.respond(_first_error(codes)),
        )


class FetchOffsets(_GroupCoordinatorRequest):
    """Fetch a group's committed offsets by partition; an error while a transaction may change
    them."""

    __slots__ = ()
    api = "offset_fetch"
    waits_for_replicas = False

    def execute(self, broker: Server) -> None:
        self.respond(stable_offsets(broker, self.group_id))


class EndTxn(TransactionRequest):
    """Commit or abort."""

    __slots__ = ("_result",)
    api = "end_txn"
    purgatory = "TransactionMarker"
    longest_ms = _MARKERS_TIMEOUT_MS
    waits_for_replicas = False

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        on_response: OnResponse,
        result: TransactionResult,
    ) -> None:
        super().__init__(requester, connection, on_response)
        self._result = result

    def execute(self, broker: Server) -> None:
        _transactions(broker).end(
            self.requester.transactional_id, self._producer, self._result, self.respond
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


def _groups(broker: Server) -> GroupManager:
    assert broker.groups is not None, "brokers coordinate groups where there are transactions"
    return broker.groups


def _first_error(codes: Mapping[TopicPartition, ErrorCode]) -> ErrorCode:
    """The first error, if there is any."""
    return next((code for code in codes.values() if code), ErrorCode.NONE)
