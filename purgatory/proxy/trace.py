"""The trace of a proxy: sends, reads and commits, as far as frames tell them.

A send is recorded with what its broker responded, and whether the client got that. What only
brokers see is missing: operations that wait, replication, and how transactions ended. A produce
with acks=0 has an unknown outcome. Which records a client of `read_committed` doesn't show is known
by the aborted transactions in its responses.

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
from purgatory.kafka.groups.offsets import CommittedOffset
from purgatory.kafka.log.producer_state import AbortedTransaction
from purgatory.proxy.addresses import Addresses
from purgatory.proxy.connection import ClientConnection

_PRODUCE, _FETCH, _OFFSET_COMMIT = 0, 1, 8


class ProxyTrace:
    """Records what passes a proxy.

    Args:
        trace: writes the rows.
        addresses: knows topics by their ids.
    """

    def __init__(self, trace: ClusterTrace, addresses: Addresses) -> None:
        self._trace = trace
        self._addresses = addresses
        self._offsets: WeakKeyDictionary[ClientConnection, dict[TopicPartition, int]] = (
            WeakKeyDictionary()
        )
        """By the partition, from where a client fetches; sessions don't repeat it."""

    def concerns(self, request: Request) -> bool:
        """Whether an exchange is recorded."""
        return request.api_key in (_PRODUCE, _FETCH, _OFFSET_COMMIT)

    def now_us(self) -> int:
        """The time, as rows have it."""
        return self._trace.now_us()

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
            self._record_commit(request, response)

    def record_delivery(
        self, connection: ClientConnection, request: Request, is_delivered: bool
    ) -> None:
        """Record whether a response reached the client."""
        self._trace.record_delivery(connection, request, is_delivered)

    def record_close(self, connection: ClientConnection) -> None:
        """Record that a connection is closed."""
        self._trace.record_close(connection)

    def _record_produce(
        self, connection: ClientConnection, request: Request, response: Any, received_us: int
    ) -> None:
        entries = {
            key: list(whole_batches(one.records or b""))
            for key, one in self._partitions(request.body.topic_data, "partition_data", "index")
        }
        if response is None:
            self._trace.record_abandoned(request, entries, received_us)
            return
        responses = {
            key: PartitionProduceResponse(_error(one.error_code), one.base_offset)
            for key, one in self._partitions(response.responses, "partition_responses", "index")
        }
        self._trace.record_append(connection, request, entries, responses, received_us)

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
        self._trace.record_fetch(connection, request, responses, offsets)

    def _record_commit(self, request: Request, response: Any) -> None:
        stored = {
            key
            for key, one in self._partitions(response.topics, "partitions", "partition_index")
            if not one.error_code
        }
        requested = self._partitions(request.body.topics, "partitions", "partition_index")
        offsets: Mapping[TopicPartition, CommittedOffset] = {
            key: CommittedOffset(one.committed_offset, -1, one.committed_metadata or "")
            for key, one in requested
            if key in stored
        }
        self._trace.record_commit(request.body.group_id, offsets)

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
