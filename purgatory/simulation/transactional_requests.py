"""The requests of transactional producers to coordinators and leaders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from purgatory.kafka import (
    CommittedOffset,
    EndTransaction,
    ErrorCode,
    GroupManager,
    ProducerIdentity,
    TopicPartition,
    TransactionCoordinator,
)
from purgatory.kafka.transactions.transaction_verification import (
    PASSING,
    verification_errors,
    verified,
)
from purgatory.simulation.coordinators import offsets_partition_of, transactions_partition_of
from purgatory.simulation.group_member import stable_offsets
from purgatory.simulation.messages import Batch
from purgatory.simulation.network import Connection, Request, Server
from purgatory.simulation.producer import ProduceRequest, Sender

_WRITE_TIMEOUT_MS = 5_000
_MARKERS_TIMEOUT_MS = 2 * _WRITE_TIMEOUT_MS
"""The decision is replicated, then the markers are written."""

Answered = Callable[[Any], object]


class TransactionalRequester(NamedTuple):
    """Who asks: a producer that has, or doesn't have yet, an id and an epoch."""

    transactional_id: str
    producer: ProducerIdentity | None


class ReadAs(NamedTuple):
    """As what a consumer read what is sent on: its membership, if it has one."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class TransactionRequest(Request):
    """A producer's request about its transaction.

    Args:
        requester: who asks.
        connection: to the coordinator.
        answered: takes the response; None if the connection broke before it came.
    """

    __slots__ = ("_answered", "requester")
    purgatory = "Produce"
    kind = "transaction"
    longest_ms = _WRITE_TIMEOUT_MS
    waits_for_replicas = True

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        answered: Answered,
    ) -> None:
        super().__init__(connection)
        self.requester = requester
        self._answered = answered
        self.may_wait = self.waits_for_replicas

    @property
    def place(self) -> TopicPartition:
        """The partition whose leader is asked."""
        return transactions_partition_of(self.requester.transactional_id)

    @property
    def timeout_ms(self) -> int:
        return self.longest_ms

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return (self.place,)

    def deliver(self, answer: Any) -> None:
        self._answered(answer)

    def fail(self) -> None:
        self._answered(None)

    @property
    def _producer(self) -> ProducerIdentity:
        assert self.requester.producer is not None, "only the first request is asked without an id"
        return self.requester.producer


class InitProducerId(TransactionRequest):
    """Ask who one is from now on."""

    __slots__ = ("_transaction_timeout_ms",)
    api = "init_producer_id"
    longest_ms = _MARKERS_TIMEOUT_MS
    waits_for_replicas = False

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        answered: Answered,
        timeout_ms: int,
    ) -> None:
        super().__init__(requester, connection, answered)
        self._transaction_timeout_ms = timeout_ms

    def execute(self, broker: Server) -> None:
        transactional_id, producer = self.requester
        _transactions(broker).init_producer_id(
            transactional_id, self._transaction_timeout_ms, producer, self.respond
        )


class AddPartitions(TransactionRequest):
    """Take partitions into a transaction: answered with one error for all."""

    __slots__ = ("_partitions",)
    api = "add_partitions_to_txn"

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        answered: Answered,
        partitions: Collection[TopicPartition],
    ) -> None:
        super().__init__(requester, connection, answered)
        self._partitions = partitions

    def execute(self, broker: Server) -> None:
        _transactions(broker).add_partitions(
            self.requester.transactional_id,
            self._producer,
            self._partitions,
            lambda codes: self.respond(_one_of(codes)),
        )


class AddOffsets(AddPartitions):
    """Take the offsets of a group into a transaction."""

    __slots__ = ()
    api = "add_offsets_to_txn"

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        answered: Answered,
        group_id: str,
    ) -> None:
        super().__init__(requester, connection, answered, [offsets_partition_of(group_id)])


class _OfGroup(TransactionRequest):
    """A request to the coordinator of a group."""

    __slots__ = ("group_id",)

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        answered: Answered,
        group_id: str,
    ) -> None:
        super().__init__(requester, connection, answered)
        self.group_id = group_id

    @property
    def place(self) -> TopicPartition:
        return offsets_partition_of(self.group_id)


class TxnOffsetCommit(_OfGroup):
    """Commit offsets that hold with the transaction: answered with one error for all."""

    __slots__ = ("_offsets", "_read_as")
    api = "txn_offset_commit"

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        answered: Answered,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        read_as: ReadAs,
    ) -> None:
        super().__init__(requester, connection, answered, group_id)
        self._offsets = offsets
        self._read_as = read_as

    def execute(self, broker: Server) -> None:
        place = self.place
        asked = verified(
            self.requester.transactional_id,
            self._producer,
            [place],
            broker.coordinator_of,
        )
        code = asked[place]
        if code is not ErrorCode.NONE:
            self.respond(ErrorCode.COORDINATOR_NOT_AVAILABLE if code in PASSING else code)
            return
        _groups(broker).commit_in_transaction(
            self.group_id,
            self._producer,
            *self._read_as,
            {at: CommittedOffset(offset, -1, "") for at, offset in self._offsets.items()},
            lambda codes: self.respond(_one_of(codes)),
        )


class FetchOffsets(_OfGroup):
    """Ask what a group has committed: the offsets by partition, or an error while a transaction
    may yet change them."""

    __slots__ = ()
    api = "offset_fetch"
    waits_for_replicas = False

    def execute(self, broker: Server) -> None:
        self.respond(stable_offsets(broker, self.group_id))


class EndTxn(TransactionRequest):
    """Commit or abort."""

    __slots__ = ("_how",)
    api = "end_txn"
    purgatory = "TransactionMarker"
    longest_ms = _MARKERS_TIMEOUT_MS
    waits_for_replicas = False

    def __init__(
        self,
        requester: TransactionalRequester,
        connection: Connection,
        answered: Answered,
        how: EndTransaction,
    ) -> None:
        super().__init__(requester, connection, answered)
        self._how = how

    def execute(self, broker: Server) -> None:
        _transactions(broker).end(
            self.requester.transactional_id, self._producer, self._how, self.respond
        )


class TransactionalProduce(ProduceRequest):
    """A produce request with one batch of a transaction: the leader asks whether it is open."""

    __slots__ = ("_transactional_id",)

    def __init__(
        self, producer: Sender, connection: Connection, batch: Batch, transactional_id: str
    ) -> None:
        super().__init__(producer, connection, [batch])
        self._transactional_id = transactional_id

    def execute(self, broker: Server) -> None:
        [batch] = self.batches
        refused = verification_errors(
            broker.manager,
            self._transactional_id,
            {batch.queue.topic_partition: [batch.record_batch()]},
            broker.coordinator_of,
        )
        if refused:
            self.respond(refused)
        else:
            super().execute(broker)


def _transactions(broker: Server) -> TransactionCoordinator:
    assert broker.transactions is not None, "brokers coordinate transactions where there are any"
    return broker.transactions


def _groups(broker: Server) -> GroupManager:
    assert broker.groups is not None, "brokers coordinate groups where there are transactions"
    return broker.groups


def _one_of(codes: Mapping[TopicPartition, ErrorCode]) -> ErrorCode:
    """The first error, if there is any."""
    return next((code for code in codes.values() if code), ErrorCode.NONE)
