"""The trace of a cluster: all tables of a trace except effects.

The trace has the brokers' observations. A send is a record of a produce request, and its response.
A broker does not know whether a client received a response. The outcome is unknown if the response
was lost (by a fault, or because the connection was closed within a second), or if the client sends
the same record again within ten seconds: `sent_records` identifies it. A read is a record in a
response that was delivered to a consumer; whether the consumer processed it is unknown. Keys are
identified by 63 bits of their hash, records by those of key and value together.

A topic that was deleted and created again is another one: "orders#2", which no topic is named.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from purgatory.cluster.records import read_records, whole_batches
from purgatory.cluster.sent_records import (
    RESEND_WINDOW_US,
    RESPONSE_LOST,
    UNKNOWN,
    PendingSend,
    ProducerOrder,
    Sender,
    SentRecord,
    SentRecords,
    Wire,
    record_number,
)
from purgatory.cluster.traced_brokers import TracedBrokers, TracedTopics
from purgatory.cluster.traced_readers import (
    GROUP_APIS,
    SharedReads,
    SharedRecords,
    TracedReaders,
)
from purgatory.kafka import (
    ErrorCode,
    PartitionFetchResponse,
    PartitionProduceResponse,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
)
from purgatory.kafka.groups.offsets import CommittedOffset
from purgatory.kafka.share_groups.share_state import Acknowledgement
from purgatory.trace.change_rows import ChangeRow
from purgatory.trace.table_rows import SHOWN_BYTES, CommitRow, ReadRow, SendRow
from purgatory.trace.trace_tables import Tables
from purgatory.trace.traced_transactions import TracedTransactions
from timer.machine_time import time

if TYPE_CHECKING:
    from purgatory.cluster.protocol.connection import ResponseConnection
    from purgatory.cluster.protocol.wire import Request


_IN_TRANSIT_US = 1_000_000
"""The longest transit of a response, which may be lost if the connection closes before."""

_UNCERTAIN = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})

_TIMED_OUT_RESPONSE = PartitionProduceResponse(ErrorCode.REQUEST_TIMED_OUT)
_READ_COMMITTED = 1
_TIMES_AT_PRODUCER = (None,) * 4
"""The times that brokers don't see."""
_PRODUCE = 0
_FETCHES = (1, 78)
"""Fetch and ShareFetch."""


class ClusterTrace(TracedBrokers):
    """Records the events of a cluster as rows.

    Args:
        tables: writes the rows.
        change: writes rows of the table `changes`, for the view; None: no such rows.
        operations: whether to write a row for each completed operation.
        texts: keeps prefixes of keys and values by their ids; None: none are kept.
        forgets: whether records that were sent five minutes ago are dropped: an equal one then
            counts as the same.
    """

    def __init__(
        self,
        tables: Tables,
        change: Callable[[ChangeRow], object] | None = None,
        operations: bool = True,
        texts: dict[int, bytes | None] | None = None,
        forgets: bool = True,
    ) -> None:
        super().__init__(tables, change, operations)
        self._texts = texts
        self.topics = TracedTopics()
        self._sent = SentRecords(forgets)
        self.transactions = TracedTransactions(tables, self.clock.now_us, self.topics.name)
        self._orders: dict[tuple[int, TopicPartition], ProducerOrder] = {}
        self._clients: dict[str, int] = {}
        self._connections: dict[int, int] = {}
        """The numbers of open connections by their `id`, which another one may have later."""
        self._connection_count = 0
        self._polls: dict[int, int] = {}
        self._pending_responses: dict[tuple[int, int], list[PendingSend]] = {}
        self._delivered_sends: deque[_DeliveredSends] = deque()
        self._pending_reads: dict[tuple[int, int], list[ReadRow]] = {}
        self._readers = TracedReaders()
        self._shared = SharedReads(tables.read)

    # ---- sends

    def record_append(
        self,
        connection: ResponseConnection,
        request: Request,
        entries: Mapping[TopicPartition, Sequence[RecordBatch]],
        responses: Mapping[TopicPartition, PartitionProduceResponse],
        received_us: int,
    ) -> None:
        """Record a produce and its response, which counts once it is delivered."""
        sends: list[PendingSend] = []
        for topic_partition, batches in entries.items():
            response = responses.get(topic_partition)
            if response is not None:
                sends += self._sends(
                    self._number_of(connection),
                    request,
                    topic_partition,
                    batches,
                    response,
                    received_us,
                )
        if request.body.acks == 0:  # there is no response
            self._write_sends(sends, None)
        else:
            pending = self._pending_responses.setdefault(
                (self._number_of(connection), request.correlation_id), []
            )
            pending += sends

    def record_abandoned(
        self,
        request: Request,
        entries: Mapping[TopicPartition, Sequence[RecordBatch]],
        received_us: int,
    ) -> None:
        """Record a produce whose client disconnected: its records may be in the log."""
        for topic_partition, batches in entries.items():
            self._write_lost(
                self._sends(0, request, topic_partition, batches, _TIMED_OUT_RESPONSE, received_us)
            )

    def record_injected_error(
        self,
        connection: ResponseConnection,
        request: Request,
        partitions: Collection[tuple[str, int]] | None,
        code: int,
        topic_of: Callable[[UUID], str | None],
    ) -> None:
        """Record that a fault responds to some partitions with an error, and does nothing else.

        Args:
            partitions: the partitions; None: all.
            code: the error.
            topic_of: returns a topic's name by its id.
        """
        if request.api_key in _FETCHES:
            self._readers.on_error(self._number_of(connection))
            rows = self._pending_reads.get(
                (self._number_of(connection), request.correlation_id), []
            )
            rows[:] = [
                row
                for row in rows
                if partitions is not None and (row.topic, row.partition) not in partitions
            ]
        if request.api_key != _PRODUCE:
            return
        entries = {
            TopicPartition(name, one.index): list(whole_batches(one.records or b""))
            for topic in request.body.topic_data
            if (name := getattr(topic, "name", None) or topic_of(topic.topic_id)) is not None
            for one in topic.partition_data
            if partitions is None or (name, one.index) in partitions
        }
        responses = dict.fromkeys(entries, PartitionProduceResponse(ErrorCode(code)))
        self.record_append(connection, request, entries, responses, self.now_us())

    def record_delivery(
        self, connection: ResponseConnection, request: Request, is_delivered: bool
    ) -> None:
        """Record whether the response to a request reached the client."""
        key = self._connections.get(id(connection), 0), request.correlation_id
        sends = self._pending_responses.pop(key, None)
        if sends is None:
            self._record_other_delivery(key, request, is_delivered)
            return
        if not is_delivered:
            self._write_lost(sends)
            return
        now_us = self.now_us()
        for send in sends:
            send.sent.answered_us = now_us
        self._delivered_sends.append(_DeliveredSends(now_us, key[0], sends))
        self.release()

    def _record_other_delivery(
        self, key: tuple[int, int], request: Request, is_delivered: bool
    ) -> None:
        reads = self._pending_reads.pop(key, None)
        if not is_delivered:
            self._readers.on_error(key[0])
        elif reads is not None:
            for row in reads:
                if row.delivery is None:
                    self._tables.read(row)
                else:
                    self._shared.deliver(row)
        elif request.api_key in GROUP_APIS:
            self._readers.observe(request, self.now_us())

    def record_close(self, connection: ResponseConnection) -> None:
        """Record that a connection is closed: its undelivered responses are lost."""
        number = self._connections.pop(id(connection), None)
        if number is None:
            return
        for key in [key for key in self._pending_responses if key[0] == number]:
            self._write_lost(self._pending_responses.pop(key))
        for key in [key for key in self._pending_reads if key[0] == number]:
            del self._pending_reads[key]
        self._readers.on_close(number)
        if connection.is_cut:
            since_us = self.now_us() - _IN_TRANSIT_US
            for delivered_sends in reversed(self._delivered_sends):
                if delivered_sends.at_us < since_us:
                    return
                if delivered_sends.connection == number:
                    for send in delivered_sends.sends:
                        send.mark_unknown(RESPONSE_LOST)

    def release(self) -> None:
        """Write delivered sends after their retry window. O(1) for each."""
        now_us = self.now_us()
        while self._delivered_sends and self._delivered_sends[0].at_us < now_us - RESEND_WINDOW_US:
            delivered_sends = self._delivered_sends.popleft()
            self._write_sends(delivered_sends.sends, delivered_sends.at_us)
        self._sent.expire(now_us)

    def _write_sends(self, sends: Iterable[PendingSend], answer_us: int | None) -> None:
        for send in sends:
            if send.sent.pending is send:
                send.sent.pending = None
            self._tables.send(send.row_with_response(answer_us))

    def _write_lost(self, sends: Iterable[PendingSend]) -> None:
        for send in sends:
            send.mark_unknown(RESPONSE_LOST)
        self._write_sends(sends, None)

    def _sends(
        self,
        connection: int,
        request: Request,
        topic_partition: TopicPartition,
        batches: Sequence[RecordBatch],
        response: PartitionProduceResponse,
        received_us: int,
    ) -> list[PendingSend]:
        client = self._client(request)
        outcome, error = _outcome(response.error)
        offset = response.base_offset if response.base_offset >= 0 else None
        compacts = self.topics.compacts(topic_partition.topic)
        topic, partition = self.topics.name(topic_partition.topic), topic_partition.partition
        topic_partition = TopicPartition(topic, partition)
        records, sends = self._sent, []
        for batch in batches:
            producer = batch.producer_id if batch.producer_id >= 0 else -client
            order = self._orders.get((producer, topic_partition))
            if order is None:
                order = self._orders[producer, topic_partition] = ProducerOrder()
            transactional_id, epoch, transaction = self._transaction_of(request, batch)
            sender = Sender(request.client_id or "", connection, transaction)
            identity = (batch.producer_id, batch.producer_epoch, partition)
            first, is_next = batch.base_sequence, order.is_next(batch)
            wire: Wire | None = None
            for number, record in enumerate(_readable(batch)):
                key, content_id = self._ids(record)
                content = content_id, topic
                if first >= 0:
                    wire = (*identity, first + number)
                sent = None
                if content in records:
                    sent = records.find(content, sender, wire, is_next, received_us)
                if number == 0:
                    order.begin(batch, None if sent is None else sent.sequence)
                if sent is None:
                    sequence = order.sequence(batch, number)
                    sent = records.add(content, sequence, sender, wire, received_us)
                place = None if offset is None else offset + number
                if sent.value_id != content_id:
                    self._place_equal(sent, content, partition, place)
                row = SendRow(
                    request.client_id or "",
                    producer,
                    sent.sequence,
                    sent.attempts + 1,
                    key,
                    sent.value_id,
                    request.body.acks,
                    outcome,
                    error,
                    received_us,
                    None,
                    topic,
                    partition,
                    place,
                    len(record.key or b"") + len(record.value or b""),
                    *_TIMES_AT_PRODUCER,
                    transactional_id,
                    epoch,
                    transaction,
                    sent.equal_to,
                    _compaction(record) if compacts else None,
                )
                sends.append(sent.add_attempt(row, sender))
            if offset is not None:
                offset += batch.record_count
        return sends

    def _place_equal(
        self, sent: SentRecord, content: tuple[int, str], partition: int, offset: int | None
    ) -> None:
        """Record the place of a record that doesn't have the number of its content."""
        self._sent.place(sent, content, partition, offset)
        if self._texts is not None:
            self._texts[sent.value_id] = self._texts[content[0]]

    def _transaction_of(
        self, request: Request, batch: RecordBatch
    ) -> tuple[str | None, int | None, int | None]:
        """Return the transactional id, epoch and transaction in which a batch is sent."""
        if not batch.transactional:
            return None, None, None
        transactional_id = request.body.transactional_id or ""
        producer = ProducerIdentity(batch.producer_id, batch.producer_epoch)
        return transactional_id, *self.transactions.of_send(transactional_id, producer)

    # ---- commits

    def record_commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Record a group's committed offsets."""
        now_us = self.now_us()
        for (topic, partition), committed_offset in offsets.items():
            name = self.topics.name(topic)
            self._tables.commit(
                CommitRow(group_id, name, partition, committed_offset.offset, now_us)
            )

    # ---- reads

    def record_fetch(
        self,
        connection: ResponseConnection,
        request: Request,
        responses: Mapping[TopicPartition, PartitionFetchResponse],
        from_offsets: Mapping[TopicPartition, int],
        received_us: int | None = None,
    ) -> None:
        """Record the records in a response to a consumer, which count once it is delivered.

        Args:
            responses: by partition.
            from_offsets: the fetch offset of each partition.
            received_us: the time of the request; None: now.
        """
        client, client_id, readers = self._client(request), request.client_id or "", self._readers
        poll = self._polls[client] = self._polls.get(client, 0) + 1
        now_us = self.now_us()
        is_committed = getattr(request.body, "isolation_level", 0) == _READ_COMMITTED
        isolation = "read_committed" if is_committed else "read_uncommitted"
        group, restarts = readers.group_of(client_id)
        rows = []
        for place, response in responses.items():
            topic, partition = self.topics.name(place[0]), place[1]
            if response.error is not ErrorCode.NONE:
                readers.on_partition_error(
                    self._number_of(connection), TopicPartition(topic, partition)
                )
                continue
            if not response.batches:
                continue
            first = from_offsets[TopicPartition(*place)]
            reading = readers.reading(
                self._number_of(connection),
                client_id,
                TopicPartition(topic, partition),
                received_us,
            )
            for batch in response.visible_batches():
                for record in _readable(batch):
                    offset = record.offset
                    if offset < first:
                        continue
                    rows.append(
                        ReadRow(
                            client_id,
                            client,
                            poll,
                            topic,
                            partition,
                            offset,
                            self._read_id(record, topic, partition, batch),
                            now_us,
                            False,  # a broker doesn't know whether the client processes it
                            isolation,
                            first,
                            group,
                            restarts,
                            reading,
                        )
                    )
        self._hold_reads(connection, request, rows)

    def record_share_fetch(
        self,
        connection: ResponseConnection,
        request: Request,
        records: Mapping[TopicPartition, SharedRecords],
    ) -> None:
        """Record the records that a share consumer acquired, which count once delivered."""
        client = self._client(request)
        poll = self._polls[client] = self._polls.get(client, 0) + 1
        now_us, group_id = self.now_us(), request.body.group_id
        rows = []
        for (name, partition), fetched in records.items():
            topic = self.topics.name(name)
            for batch in fetched.batches:
                for record in _readable(batch):
                    delivery = fetched.delivery_of(record.offset)
                    if delivery is None:
                        continue
                    rows.append(
                        ReadRow(
                            request.client_id or "",
                            client,
                            poll,
                            topic,
                            partition,
                            record.offset,
                            self._read_id(record, topic, partition, batch),
                            now_us,
                            False,
                            None,
                            record.offset,  # the group's position
                            group_id,
                            self._readers.restarts(group_id),
                            None,
                            delivery,
                        )
                    )
        self._hold_reads(connection, request, rows)

    def record_acknowledgements(
        self, group_id: str, acknowledgements: Mapping[TopicPartition, Sequence[Acknowledgement]]
    ) -> None:
        """Record the accepted acknowledgements of a share group."""
        for (name, partition), ranges in acknowledgements.items():
            place = TopicPartition(self.topics.name(name), partition)
            for one in ranges:
                self._shared.acknowledge(group_id, place, one.ranges())

    def _hold_reads(
        self, connection: ResponseConnection, request: Request, rows: list[ReadRow]
    ) -> None:
        if rows:
            self._pending_reads[self._number_of(connection), request.correlation_id] = rows

    # ---- helpers

    def _read_id(self, record: Any, topic: str, partition: int, batch: RecordBatch) -> int:
        return self._sent.id_of((self._ids(record)[1], topic), partition, batch, record.offset)

    def _ids(self, record: Any) -> tuple[int, int]:
        """Return the numbers of a record's key, and of key and value together.

        Tombstones of different keys are different records.
        """
        key, value = record.key, record.value
        before = b"" if key is None else b"%d:" % len(key) + key
        ids = record_number(key), record_number(value, before)
        if self._texts is not None:
            for number, data in zip(ids, (key, value), strict=True):
                self._texts[number] = data and data[: SHOWN_BYTES + 1]
        return ids

    def unwritten_rows(self) -> list[SendRow]:
        """Return the rows of sends that are completed, but not yet written."""
        return [
            send.row_with_response(delivered_sends.at_us)
            for delivered_sends in self._delivered_sends
            for send in delivered_sends.sends
        ]

    def unwritten_reads(self) -> list[ReadRow]:
        """Return the rows of deliveries to share groups that are not yet acknowledged."""
        return self._shared.open_rows()

    def __repr__(self) -> str:
        sends = sum(map(len, self._pending_responses.values()))
        return f"<{type(self).__name__} of {len(self._clients)} clients: {sends} sends pending>"

    def close(self) -> None:
        """Write the remaining sends. Call it when the cluster has stopped."""
        for delivered_sends in self._delivered_sends:
            self._write_sends(delivered_sends.sends, delivered_sends.at_us)
        for sends in self._pending_responses.values():
            self._write_lost(sends)
        self._delivered_sends.clear()
        self._pending_responses.clear()
        self._shared.close()
        self.transactions.close()

    def _number_of(self, connection: ResponseConnection) -> int:
        """Return a connection's unique number. O(1)."""
        number = self._connections.get(id(connection))
        if number is None:
            self._connection_count += 1
            number = self._connections[id(connection)] = self._connection_count
        return number

    def _client(self, request: Request) -> int:
        """Return a client id's number, the same for all of its connections."""
        return self._clients.setdefault(request.client_id or "", len(self._clients) + 1)


class _DeliveredSends(NamedTuple):
    """Sends whose response was delivered: its time and connection."""

    at_us: int
    connection: int
    sends: list[PendingSend]


def _readable(batch: RecordBatch) -> list[Any]:
    try:
        return list(read_records(batch))
    except ValueError:
        return []  # a broker stores it unread, so that its records are unknown


def _outcome(error: ErrorCode) -> tuple[str, str | None]:
    if error is ErrorCode.NONE:
        return "ok", None
    return (UNKNOWN if error in _UNCERTAIN else "fail"), error.name


def _compaction(record: Any) -> str:
    """Return the records that compaction may remove: those with a later one, or tombstones, too."""
    return "tombstone" if record.value is None else "key"


def start_trace(
    folder: Path,
    name: str,
    producers: Sequence[Mapping[str, Any]] = (),
    consumers: Sequence[Mapping[str, Any]] = (),
) -> tuple[ClusterTrace, Any]:
    """Begin a trace in a new folder; return it, and the writer to be finished.

    Args:
        folder: created by the call.
        name: the run's name.
        producers, consumers: the configuration of clients, by client id (`group`), for the audit.

    Raises:
        ValueError: the folder can't be created, or is not empty.
    """
    writer = trace_writer(folder, name, producers, consumers)
    return ClusterTrace(writer, writer.change), writer


def trace_writer(
    folder: Path,
    name: str,
    producers: Sequence[Mapping[str, Any]] = (),
    consumers: Sequence[Mapping[str, Any]] = (),
) -> Any:
    """As `start_trace`, without the `ClusterTrace`."""
    from purgatory.trace.trace_writer import TraceWriter

    run_id = f"{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    return TraceWriter(
        folder,
        run_id=run_id,
        scenario=name,
        seed=0,
        producers=producers,
        consumers=consumers,
        observed=True,
    )
