"""The trace of a proxy: sends, reads, commits and transactions, as far as frames tell them.

A send is recorded with what its broker responded, and whether the client got that. What only
brokers see is missing: operations that wait, replication, and transactions that coordinators abort
by themselves, unless their producers begin anew. A produce with acks=0 has an unknown outcome.
Which records a client of `read_committed` doesn't show is known by the aborted transactions in its
responses.

Transactions are recorded as coordinators would write them: who may use a transactional id by
InitProducerId, their begin by what is added to them, or sent in them, their end by EndTxn.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.records import whole_batches
from purgatory.cluster.trace import ClusterTrace
from purgatory.kafka import (
    ErrorCode,
    PartitionFetchResponse,
    PartitionProduceResponse,
    TopicPartition,
)
from purgatory.kafka.groups.offsets import CommittedOffset, OffsetKey
from purgatory.kafka.log.producer_state import AbortedTransaction, ProducerIdentity
from purgatory.kafka.log.record_batch import TransactionResult
from purgatory.kafka.transactions.transaction_metadata import TransactionRecord, TransactionState
from purgatory.proxy.addresses import Addresses
from purgatory.proxy.connection import ClientConnection

_PRODUCE, _FETCH, _OFFSET_COMMIT = 0, 1, 8
_INIT_PRODUCER_ID, _ADD_PARTITIONS, _ADD_OFFSETS, _END_TXN, _TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
_RECORDED = frozenset(
    {
        _PRODUCE,
        _FETCH,
        _OFFSET_COMMIT,
        _INIT_PRODUCER_ID,
        _ADD_PARTITIONS,
        _ADD_OFFSETS,
        _END_TXN,
        _TXN_OFFSET_COMMIT,
    }
)
_NEWER_PRODUCE, _NEWER_TXN_OFFSET_COMMIT, _NEWER_END_TXN = 12, 5, 5
"""From these versions on, brokers add to transactions what is sent in them (KIP-890)."""


_REFUSALS = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""The errors of an EndTxn that ended nothing."""

_ONGOING = TransactionState.ONGOING
_COMMIT_STATES = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
_ABORT_STATES = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)


class ProxyTrace:
    """Records what passes a proxy.

    Args:
        trace: writes the rows.
        addresses: knows topics by their ids.
    """

    def __init__(self, trace: ClusterTrace, addresses: Addresses) -> None:
        self.trace = trace
        self._addresses = addresses
        self._offsets: WeakKeyDictionary[ClientConnection, dict[TopicPartition, int]] = (
            WeakKeyDictionary()
        )
        """By the partition, from where a client fetches; sessions don't repeat it."""
        self._producers: dict[str, ProducerIdentity] = {}
        """By the transactional id, who may use it."""
        self._pending_offsets: dict[ProducerIdentity, dict[OffsetKey, CommittedOffset]] = {}
        """What was committed in transactions that are open."""
        self._unknown_ends: set[ProducerIdentity] = set()
        """Whose transaction may be committed or not: their EndTxn had no response, or an error that
        doesn't tell."""

    def concerns(self, request: Request) -> bool:
        """Whether an exchange is recorded."""
        return request.api_key in _RECORDED

    def record_exchange(
        self, connection: ClientConnection, request: Request, response: Any, received_us: int
    ) -> None:
        """Record a request that was carried out.

        Args:
            connection: the client's.
            request: as far as it came to the broker.
            response: an entity of `kio`; None: none came.
            received_us: when the request came.
        """
        if request.api_key == _PRODUCE:
            self._record_produce(connection, request, response, received_us)
        elif request.api_key == _FETCH and response is not None:
            self._record_fetch(connection, request, response)
        elif request.api_key == _OFFSET_COMMIT and response is not None:
            offsets = self._stored_offsets(request, response)
            self.trace.record_commit(request.body.group_id, offsets)
        elif request.api_key == _END_TXN:
            self._record_end_txn(request, response, received_us)
        elif response is not None and not getattr(response, "error_code", 0):
            self._record_transaction(request, response, received_us)

    # Transactions.

    def _record_transaction(self, request: Request, response: Any, received_us: int) -> None:
        body, api_key = request.body, request.api_key
        if api_key == _INIT_PRODUCER_ID:
            if body.transactional_id is not None:
                producer = ProducerIdentity(response.producer_id, response.producer_epoch)
                self._begin_producer(body.transactional_id, producer, received_us)
        elif api_key == _ADD_PARTITIONS:
            # Those of several transactional ids are brokers' own.
            producer = ProducerIdentity(
                getattr(body, "v3_and_below_producer_id", -1),
                getattr(body, "v3_and_below_producer_epoch", -1),
            )
            results = getattr(response, "results_by_topic_v3_and_below", ())
            if any(
                not one.partition_error_code
                for topic in results
                for one in topic.results_by_partition
            ):
                self._record_state(body.v3_and_below_transactional_id, _ONGOING, producer)
        else:
            producer = ProducerIdentity(body.producer_id, body.producer_epoch)
            if api_key == _ADD_OFFSETS:
                self._record_state(body.transactional_id, _ONGOING, producer)
            else:
                self._hold_offsets(request, response, producer)

    def _begin_producer(
        self, transactional_id: str, producer: ProducerIdentity, received_us: int
    ) -> None:
        """Record who may use a transactional id from now on; the one before is fenced."""
        before = self._producers.get(transactional_id)
        if before is not None and before not in self._unknown_ends:
            abort = TransactionResult.ABORT
            self._record_end(transactional_id, before, producer, abort, received_us)
        self._producers[transactional_id] = producer
        self._record_state(transactional_id, TransactionState.EMPTY, producer)

    def _hold_offsets(self, request: Request, response: Any, producer: ProducerIdentity) -> None:
        offsets = self._stored_offsets(request, response)
        if offsets and request.api_version >= _NEWER_TXN_OFFSET_COMMIT:
            self._record_state(request.body.transactional_id, _ONGOING, producer)
        pending = self._pending_offsets.setdefault(producer, {})
        for key, offset in offsets.items():
            pending[OffsetKey(request.body.group_id, *key)] = offset

    def _record_end_txn(self, request: Request, response: Any, received_us: int) -> None:
        body = request.body
        producer = ProducerIdentity(body.producer_id, body.producer_epoch)
        error = None if response is None else _error(response.error_code)
        if error is not ErrorCode.NONE:
            if error not in _REFUSALS:
                self._unknown_ends.add(producer)
                self.trace.transactions.on_unknown_end(body.transactional_id)
            return
        self._unknown_ends.discard(producer)
        result = TransactionResult(body.committed)
        self._record_end(body.transactional_id, producer, producer, result, received_us)
        if request.api_version >= _NEWER_END_TXN and response.producer_id >= 0:
            following = ProducerIdentity(response.producer_id, response.producer_epoch)
            self._producers[body.transactional_id] = following
            self._record_state(body.transactional_id, TransactionState.EMPTY, following)

    def _record_end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        ended_by: ProducerIdentity,
        result: TransactionResult,
        received_us: int,
    ) -> None:
        is_committed = result is TransactionResult.COMMIT
        if self.trace.transactions.is_open(transactional_id):  # else a request was repeated
            prepared, complete = _COMMIT_STATES if is_committed else _ABORT_STATES
            # Others may read what is committed before the response to that comes.
            self._record_state(transactional_id, prepared, ended_by, received_us)
            self._record_state(transactional_id, complete, ended_by)
        for key, offset in self._pending_offsets.pop(producer, {}).items():
            self.trace.transactions.on_offset_ended(producer.producer_id, key, offset, is_committed)

    def _record_state(
        self,
        transactional_id: str,
        state: TransactionState,
        producer: ProducerIdentity,
        at_us: int | None = None,
    ) -> None:
        record = TransactionRecord(state, *producer, timeout_ms=0)
        self.trace.transactions.on_record(transactional_id, record, at_us)

    # Sends, reads and commits.

    def _record_produce(
        self, connection: ClientConnection, request: Request, response: Any, received_us: int
    ) -> None:
        entries = {
            key: list(whole_batches(one.records or b""))
            for key, one in self._partitions(request.body.topic_data, "partition_data", "index")
        }
        responses = {
            key: PartitionProduceResponse(_error(one.error_code), one.base_offset)
            for key, one in self._partitions(
                () if response is None else response.responses, "partition_responses", "index"
            )
        }
        if request.api_version >= _NEWER_PRODUCE and request.body.transactional_id is not None:
            for key, batches in entries.items():
                if key not in responses or responses[key].error is ErrorCode.NONE:
                    for batch in batches:
                        producer = ProducerIdentity(batch.producer_id, batch.producer_epoch)
                        self._record_state(request.body.transactional_id, _ONGOING, producer)
        if response is None:
            self.trace.record_abandoned(request, entries, received_us)
            return
        self.trace.record_append(connection, request, entries, responses, received_us)

    def _record_fetch(self, connection: ClientConnection, request: Request, response: Any) -> None:
        offsets = self._offsets.setdefault(connection, {})
        for key, one in self._partitions(request.body.topics, "partitions", "partition"):
            offsets[key] = one.fetch_offset
        responses = {}
        for key, one in self._partitions(response.responses, "partitions", "partition_index"):
            if not one.records or key not in offsets:
                continue
            aborted = tuple(
                AbortedTransaction(ended.producer_id, ended.first_offset, ended.first_offset)
                for ended in one.aborted_transactions or ()
            )
            responses[key] = PartitionFetchResponse(
                _error(one.error_code),
                batches=tuple(whole_batches(one.records)),
                aborted_transactions=aborted,
            )
        self.trace.record_fetch(connection, request, responses, offsets)

    def _stored_offsets(
        self, request: Request, response: Any
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the offsets of a commit that were not refused."""
        stored = {
            key
            for key, one in self._partitions(response.topics, "partitions", "partition_index")
            if not one.error_code
        }
        requested = self._partitions(request.body.topics, "partitions", "partition_index")
        return {
            key: CommittedOffset(one.committed_offset, -1, one.committed_metadata or "")
            for key, one in requested
            if key in stored
        }

    def _partitions(
        self, topics: Sequence[Any], array: str, index: str
    ) -> Iterator[tuple[TopicPartition, Any]]:
        """Yield the partitions of topics whose names are known."""
        for topic in topics:
            name = getattr(topic, "name", None) or getattr(topic, "topic", None)
            topic_id: UUID | None = getattr(topic, "topic_id", None)
            if name is None and topic_id is not None:
                name = self._addresses.topic_names.get(topic_id)
            if name is None:
                continue
            for one in getattr(topic, array):
                yield TopicPartition(name, getattr(one, index)), one


def _error(code: int) -> ErrorCode:
    """Return an error that a broker responded."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
