"""The trace of a proxy: sends, reads, commits and transactions, by their frames.

A send is recorded with its broker's response, and whether the client got that. Facts that only
brokers know are missing: operations that wait, replication, and transactions that coordinators
abort by themselves, unless their producers begin again. A produce with acks=0 has an unknown
outcome. Records that a client of `read_committed` hides are known by the aborted transactions in
its responses.

Transactions are recorded as coordinators would write them: the producer of a transactional id by
InitProducerId, the begin by added partitions or sent records, the end by EndTxn.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from purgatory.cluster.protocol.connection import ResponseConnection
from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.records import whole_batches
from purgatory.cluster.trace import ClusterTrace
from purgatory.cluster.traced_brokers import TopicFacts
from purgatory.cluster.traced_readers import GROUP_APIS, SharedRecords
from purgatory.kafka import (
    ErrorCode,
    PartitionFetchResponse,
    PartitionProduceResponse,
    TopicPartition,
)
from purgatory.kafka.groups.offsets import CommittedOffset, OffsetKey
from purgatory.kafka.log.producer_state import AbortedTransaction, ProducerIdentity
from purgatory.kafka.share_groups.in_flight_records import AcquiredRecords
from purgatory.kafka.share_groups.share_state import Acknowledgement
from purgatory.kafka.transactions.transaction_metadata import TransactionRecord, TransactionState
from purgatory.proxy.addresses import TopicIds

_PRODUCE, _FETCH, _OFFSET_COMMIT = 0, 1, 8
_SHARE_FETCH, _SHARE_ACKNOWLEDGE = 78, 79
_INIT_PRODUCER_ID, _ADD_PARTITIONS, _ADD_OFFSETS, _END_TXN, _TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
_NEWER_PRODUCE, _NEWER_TXN_OFFSET_COMMIT, _NEWER_END_TXN = 12, 5, 5
"""From these versions on, brokers add the partitions of sent records to transactions (KIP-890)."""


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


class _Exchange(NamedTuple):
    """A request as the broker received it, and the response, or None."""

    connection: ResponseConnection
    request: Request
    response: Any
    received_us: int

    @property
    def producer(self) -> ProducerIdentity:
        """The producer of a request of a transaction."""
        return ProducerIdentity(self.request.body.producer_id, self.request.body.producer_epoch)


class ProxyTrace:
    """Records the requests and responses of a proxy.

    Args:
        trace: writes the rows.
        topics: the known topics.
    """

    def __init__(self, trace: ClusterTrace, topics: TopicIds) -> None:
        self.trace = trace
        trace.topics.facts = self._topic_facts
        self._topics = topics
        self._offsets: WeakKeyDictionary[ResponseConnection, dict[TopicPartition, int]] = (
            WeakKeyDictionary()
        )
        """By connection and partition, the fetch offset, which sessions don't repeat."""
        self._producers: dict[str, ProducerIdentity] = {}
        """The producers by transactional id."""
        self._pending_offsets: dict[ProducerIdentity, dict[OffsetKey, CommittedOffset]] = {}
        """The committed offsets of open transactions."""
        self._unknown_ends: set[ProducerIdentity] = set()
        """The producers whose last EndTxn had no response, or an ambiguous error."""
        self._records: Mapping[int, Callable[[_Exchange], None]] = {
            _PRODUCE: self._record_produce,
            _FETCH: self._record_fetch,
            _OFFSET_COMMIT: self._record_commit,
            _SHARE_FETCH: self._record_share_fetch,
            _SHARE_ACKNOWLEDGE: self._record_acknowledgements,
            _INIT_PRODUCER_ID: self._record_init_producer_id,
            _ADD_PARTITIONS: self._record_added_partitions,
            _ADD_OFFSETS: self._record_added_offsets,
            _END_TXN: self._record_end_txn,
            _TXN_OFFSET_COMMIT: self._record_pending_offsets,
        }

    def concerns(self, request: Request) -> bool:
        """Whether an exchange is recorded."""
        return request.api_key in self._records or request.api_key in GROUP_APIS

    def _topic_facts(self, name: str) -> TopicFacts:
        """Return the facts from clients' requests, none about compaction."""
        return TopicFacts(self._topics.ids.get(name), compacts=False)

    def record_exchange(
        self, connection: ResponseConnection, request: Request, response: Any, received_us: int
    ) -> None:
        """Record a request that was carried out.

        Args:
            connection: the client's.
            request: the request as the broker received it.
            response: an entity of `kio`, or None.
            received_us: the time of the request.
        """
        if request.api_key not in (_PRODUCE, _FETCH, _END_TXN) and (
            response is None or getattr(response, "error_code", None)
        ):
            return
        if request.api_key in GROUP_APIS:  # their delivery is recorded
            return
        self._records[request.api_key](_Exchange(connection, request, response, received_us))

    # Transactions.

    def _record_init_producer_id(self, exchange: _Exchange) -> None:
        """Record the new producer of a transactional id; the one before is fenced."""
        transactional_id, response = exchange.request.body.transactional_id, exchange.response
        if transactional_id is None:
            return
        producer = ProducerIdentity(response.producer_id, response.producer_epoch)
        before = self._producers.get(transactional_id)
        if before is not None and before not in self._unknown_ends:
            self._record_end(exchange, before, producer, is_committed=False)
        self._begin_producer(transactional_id, producer)

    def _begin_producer(self, transactional_id: str, producer: ProducerIdentity) -> None:
        self._producers[transactional_id] = producer
        self._record_state(transactional_id, TransactionState.EMPTY, producer)

    def _record_added_partitions(self, exchange: _Exchange) -> None:
        body = exchange.request.body
        results = getattr(exchange.response, "results_by_topic_v3_and_below", ())
        partitions = (one for topic in results for one in topic.results_by_partition)
        if not all(one.partition_error_code for one in partitions):  # otherwise a broker added them
            producer = ProducerIdentity(
                body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
            )
            self._record_state(body.v3_and_below_transactional_id, _ONGOING, producer)

    def _record_added_offsets(self, exchange: _Exchange) -> None:
        transactional_id = exchange.request.body.transactional_id
        self._record_state(transactional_id, _ONGOING, exchange.producer)

    def _record_pending_offsets(self, exchange: _Exchange) -> None:
        offsets = self._stored_offsets(exchange)
        if offsets and exchange.request.api_version >= _NEWER_TXN_OFFSET_COMMIT:
            self._record_added_offsets(exchange)
        pending = self._pending_offsets.setdefault(exchange.producer, {})
        for key, offset in offsets.items():
            pending[OffsetKey(exchange.request.body.group_id, *key)] = offset

    def _record_end_txn(self, exchange: _Exchange) -> None:
        request, response, producer = exchange.request, exchange.response, exchange.producer
        transactional_id = request.body.transactional_id
        error = None if response is None else _error(response.error_code)
        if error is not ErrorCode.NONE:
            if error not in _REFUSALS:
                self._unknown_ends.add(producer)
                self.trace.transactions.on_unknown_end(transactional_id)
            return
        self._unknown_ends.discard(producer)
        self._record_end(exchange, producer, producer, request.body.committed)
        if request.api_version >= _NEWER_END_TXN and response.producer_id >= 0:
            following = ProducerIdentity(response.producer_id, response.producer_epoch)
            self._begin_producer(transactional_id, following)

    def _record_end(
        self,
        exchange: _Exchange,
        producer: ProducerIdentity,
        ended_by: ProducerIdentity,
        is_committed: bool,
    ) -> None:
        transactional_id = exchange.request.body.transactional_id
        if self.trace.transactions.is_open(transactional_id):  # otherwise a request was repeated
            prepared, complete = _COMMIT_STATES if is_committed else _ABORT_STATES
            # Others may read the records before the response to the commit.
            self._record_state(transactional_id, prepared, ended_by, exchange.received_us)
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

    def _record_produce(self, exchange: _Exchange) -> None:
        connection, request, response, received_us = exchange
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
        else:
            self.trace.record_append(connection, request, entries, responses, received_us)

    def _record_fetch(self, exchange: _Exchange) -> None:
        connection, request, response, received_us = exchange
        if response is None:
            return
        offsets = self._offsets.setdefault(connection, {})
        for key, one in self._partitions(request.body.topics, "partitions", "partition"):
            offsets[key] = one.fetch_offset
        responses = {
            key: PartitionFetchResponse(
                _error(one.error_code),
                batches=tuple(whole_batches(one.records)),
                aborted_transactions=tuple(
                    AbortedTransaction(ended.producer_id, ended.first_offset, ended.first_offset)
                    for ended in one.aborted_transactions or ()
                ),
            )
            for key, one in self._partitions(response.responses, "partitions", "partition_index")
            if (one.records or one.error_code) and key in offsets
        }
        self.trace.record_fetch(connection, request, responses, offsets, received_us)

    def _record_share_fetch(self, exchange: _Exchange) -> None:
        self._record_acknowledgements(exchange)
        records = {
            key: SharedRecords(
                tuple(whole_batches(one.records)),
                [
                    AcquiredRecords(some.first_offset, some.last_offset, some.delivery_count)
                    for some in one.acquired_records
                ],
            )
            for key, one in self._partitions(
                exchange.response.responses, "partitions", "partition_index"
            )
            if one.records
        }
        if records:
            self.trace.record_share_fetch(exchange.connection, exchange.request, records)

    def _record_acknowledgements(self, exchange: _Exchange) -> None:
        """Record the accepted acknowledgements of a ShareFetch or ShareAcknowledge."""
        body = exchange.request.body
        field = (
            "error_code"
            if exchange.request.api_key == _SHARE_ACKNOWLEDGE
            else ("acknowledge_error_code")
        )
        refused = {
            key
            for key, one in self._partitions(
                exchange.response.responses, "partitions", "partition_index"
            )
            if getattr(one, field)
        }
        taken = {
            key: [
                Acknowledgement(some.first_offset, some.last_offset, some.acknowledge_types)
                for some in one.acknowledgement_batches
            ]
            for key, one in self._partitions(body.topics, "partitions", "partition_index")
            if key not in refused
        }
        self.trace.record_acknowledgements(body.group_id, taken)

    def _record_commit(self, exchange: _Exchange) -> None:
        group_id = exchange.request.body.group_id
        self.trace.record_commit(group_id, self._stored_offsets(exchange))

    def _stored_offsets(self, exchange: _Exchange) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the offsets of a commit that were not refused."""
        response, body = exchange.response, exchange.request.body
        stored = {
            key
            for key, one in self._partitions(response.topics, "partitions", "partition_index")
            if not one.error_code
        }
        return {
            key: CommittedOffset(one.committed_offset, -1, one.committed_metadata or "")
            for key, one in self._partitions(body.topics, "partitions", "partition_index")
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
                name = self._topics.names.get(topic_id)
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
