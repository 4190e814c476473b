"""The trace of a cluster: all tables of a trace except effects.

It contains what the brokers observe. A send is a record of a produce request, with its response. A
broker does not know whether a client received the response. The outcome is unknown if the response
was lost (by a fault, or because the connection was closed within a second), or if the client sends
the same value again within ten seconds. A read is a record that was sent to a consumer; whether the
consumer processed it is unknown. Keys are identified by 63 bits of their hash, records by those of
key and value together.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from purgatory.cluster.observer import ElapsedClock, operation_keys, operation_kind
from purgatory.cluster.records import read_records
from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.operation import DelayedOperation, submitted_ns
from purgatory.kafka import (
    ErrorCode,
    PartitionFetchResponse,
    PartitionProduceResponse,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
)
from purgatory.kafka.groups.offsets import CommittedOffset
from purgatory.kafka.replication.fetch import visible_batches
from purgatory.trace.change_rows import BROKER, PARKED, ChangeRow, due_ms
from purgatory.trace.observer import rows_of
from purgatory.trace.table_rows import SHOWN_BYTES, CommitRow, OperationRow, ReadRow, SendRow
from purgatory.trace.trace_tables import Tables
from purgatory.trace.traced_transactions import TracedTransactions

if TYPE_CHECKING:
    from purgatory.cluster.protocol.connection import ResponseConnection
    from purgatory.cluster.protocol.wire import Request


_NS_PER_US = 1_000
_IN_TRANSIT_US = 1_000_000
"""How long a response may be in transit: if the connection closes before, it may be lost."""

_RESEND_WINDOW_US = 10_000_000
"""How long a completed send is kept: if it is sent again, its client had no response."""

UNKNOWN = "unknown"
RESPONSE_LOST, RESENT = "answer lost", "sent again"
_LOST_REASONS = frozenset({RESPONSE_LOST, RESENT})
"""Why a client may not know the outcome of a send that has a response."""

_UNCERTAIN = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
_VALUE_RETENTION_US = 300_000_000
"""How long a value is kept after its last send: longer than clients retry."""

_TIMED_OUT_RESPONSE = PartitionProduceResponse(ErrorCode.REQUEST_TIMED_OUT)
_READ_COMMITTED = 1


class ClusterTrace:
    """Records the events of a cluster as rows.

    Args:
        tables: writes the rows.
        change: writes rows of the table `changes`, for the view; None: no such rows.
        operations: whether to write a row for each completed operation.
        texts: keeps prefixes of keys and values by their ids; None: none are kept.
    """

    def __init__(
        self,
        tables: Tables,
        change: Callable[[ChangeRow], object] | None = None,
        operations: bool = True,
        texts: dict[int, bytes | None] | None = None,
    ) -> None:
        self._tables = tables
        self._texts = texts
        self.operations = operations
        self.clock = ElapsedClock()
        self.now_us = self.clock.now_us
        self.change = change
        self._operations = 0
        self._sent: dict[_Value, SentValue] = {}
        self._values_by_time: deque[tuple[int, _Value]] = deque()
        self.transactions = TracedTransactions(tables, self.clock.now_us)
        self._orders: dict[tuple[int, TopicPartition], ProducerOrder] = {}
        self._clients: dict[str, int] = {}
        self._polls: dict[int, int] = {}
        self._pending_responses: dict[tuple[int, int], list[PendingSend]] = {}
        self._delivered_sends: deque[_DeliveredSends] = deque()

    @property
    def duration_ms(self) -> int:
        """The duration so far, in milliseconds."""
        return self.clock.now_us() // 1_000

    # ---- operations

    def record_completed(
        self, broker: int, purgatory: str, operation: DelayedOperation, outcome: str, wait_ns: int
    ) -> None:
        """Record a completed operation."""
        self._operations += 1
        end_us = self.now_us()
        wait_us = min(wait_ns // _NS_PER_US, end_us)
        keys = operation_keys(operation)
        self._tables.operation(
            OperationRow(
                broker,
                purgatory,
                self._operations,
                len(keys),
                operation.delay_ms,
                end_us - wait_us,
                end_us,
                wait_us,
                outcome,
                operation_kind(purgatory, operation),
                keys,
            )
        )

    # ---- the state of the cluster

    def record_change(self, kind: str, key: Any, before: Any, value: Any) -> None:
        """Record a change from the observer."""
        assert self.change is not None, "it is observed"
        for row in rows_of(self.now_us(), kind, key, before, value):
            self.change(row)

    def record_started(self, broker: int) -> None:
        """Record that a broker has started."""
        if self.change is not None:
            self.change(ChangeRow(self.now_us(), BROKER, broker, state="alive"))

    def record_stopped(
        self, broker: int, purgatories: Iterable[AsyncPurgatory], died: bool
    ) -> None:
        """Record the waiting operations of a broker that stops. O(operations).

        Args:
            died: whether the broker died; else the cluster stops.
        """
        if self.change is None:
            return
        for purgatory in purgatories:
            for operation in purgatory.core.pending_ends(purgatory.core.num_delayed)[0]:
                self._operations += 1
                start_us = max(0, self.clock.us_of_ns(submitted_ns(operation)))
                self.change(
                    ChangeRow(
                        start_us,
                        PARKED,
                        broker,
                        purgatory.name,
                        number=self._operations,
                        state=operation_kind(purgatory.name, operation),
                        due_ms=due_ms(start_us, operation.delay_ms),
                        names=operation_keys(operation),
                    )
                )
        if died:
            self.change(ChangeRow(self.now_us(), BROKER, broker, state="dead"))

    # ---- sends

    def record_append(
        self,
        connection: ResponseConnection,
        request: Request,
        entries: Mapping[TopicPartition, Sequence[RecordBatch]],
        responses: Mapping[TopicPartition, PartitionProduceResponse],
        received_us: int,
    ) -> None:
        """Record a produce and its response; it counts once the response is delivered."""
        sends: list[PendingSend] = []
        for topic_partition, batches in entries.items():
            response = responses.get(topic_partition)
            if response is not None:
                sends += self._sends(request, topic_partition, batches, response, received_us)
        if request.body.acks == 0:  # there is no response
            self._write_sends(sends, None)
        else:
            self._pending_responses[id(connection), request.correlation_id] = sends

    def record_abandoned(
        self,
        request: Request,
        entries: Mapping[TopicPartition, Sequence[RecordBatch]],
        received_us: int,
    ) -> None:
        """Record a produce whose client disconnected: its records may be in the log."""
        for topic_partition, batches in entries.items():
            self._write_lost(
                self._sends(request, topic_partition, batches, _TIMED_OUT_RESPONSE, received_us)
            )

    def record_delivery(
        self, connection: ResponseConnection, request: Request, is_delivered: bool
    ) -> None:
        """Record whether the response to a produce reached the client."""
        sends = self._pending_responses.pop((id(connection), request.correlation_id), None)
        if sends is None:
            return
        if not is_delivered:
            self._write_lost(sends)
            return
        self._delivered_sends.append(_DeliveredSends(self.now_us(), id(connection), sends))
        self.release()

    def record_close(self, connection: ResponseConnection) -> None:
        """Record that a connection is closed: its undelivered responses are lost."""
        for key in [key for key in self._pending_responses if key[0] == id(connection)]:
            self._write_lost(self._pending_responses.pop(key))
        if connection.is_cut:
            since_us = self.now_us() - _IN_TRANSIT_US
            for delivered_sends in reversed(self._delivered_sends):
                if delivered_sends.at_us < since_us:
                    return
                if delivered_sends.connection == id(connection):
                    for send in delivered_sends.sends:
                        send.mark_unknown(RESPONSE_LOST)

    def release(self) -> None:
        """Write delivered sends after their retry window. O(1) for each."""
        now_us = self.now_us()
        while self._delivered_sends and self._delivered_sends[0].at_us < now_us - _RESEND_WINDOW_US:
            delivered_sends = self._delivered_sends.popleft()
            self._write_sends(delivered_sends.sends, delivered_sends.at_us)
        self._expire_values(now_us - _VALUE_RETENTION_US)

    def _expire_values(self, us: int) -> None:
        known = self._values_by_time
        while known and known[0][0] < us:
            _, key = known.popleft()
            sent = self._sent[key]
            if sent.last_us < us and sent.pending is None:
                del self._sent[key]
            else:
                known.append((self.now_us(), key))

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
        request: Request,
        topic_partition: TopicPartition,
        batches: Sequence[RecordBatch],
        response: PartitionProduceResponse,
        received_us: int,
    ) -> list[PendingSend]:
        client = self._client(request)
        outcome, error = _outcome(response.error)
        offset = response.base_offset if response.base_offset >= 0 else None
        sends = []
        for batch in batches:
            producer = batch.producer_id if batch.producer_id >= 0 else -client
            order = self._orders.get((producer, topic_partition))
            if order is None:
                order = self._orders[producer, topic_partition] = ProducerOrder()
            transactional_id, epoch, transaction = self._transaction_of(request, batch)
            for number, record in enumerate(_readable(batch)):
                key, value_id = self._ids(record)
                # In another transaction it is another record.
                value = value_id, topic_partition, transaction
                sent = self._sent.get(value)
                if number == 0:
                    order.begin(batch, None if sent is None else sent.sequence)
                if sent is None:
                    sent = self._sent[value] = SentValue(order.sequence(batch, number))
                    self._values_by_time.append((received_us, value))
                row = SendRow(
                    request.client_id or "",
                    producer,
                    sent.sequence,
                    sent.attempts + 1,
                    key,
                    value_id,
                    request.body.acks,
                    outcome,
                    error,
                    received_us,
                    None,
                    topic_partition.topic,
                    topic_partition.partition,
                    None if offset is None else offset + number,
                    len(record.key or b"") + len(record.value or b""),
                    transactional_id=transactional_id,
                    epoch=epoch,
                    transaction=transaction,
                )
                sends.append(sent.add_attempt(row))
            if offset is not None:
                offset += batch.record_count
        return sends

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
            self._tables.commit(
                CommitRow(group_id, topic, partition, committed_offset.offset, now_us)
            )

    # ---- reads

    def record_fetch(
        self,
        connection: ResponseConnection,
        request: Request,
        responses: Mapping[TopicPartition, PartitionFetchResponse],
        from_offsets: Mapping[TopicPartition, int],
    ) -> None:
        """Record the records sent to a consumer."""
        client = self._client(request)
        poll = self._polls[client] = self._polls.get(client, 0) + 1
        now_us = self.now_us()
        record_commit = getattr(request.body, "isolation_level", 0) == _READ_COMMITTED
        isolation = "read_committed" if record_commit else "read_uncommitted"
        for (topic, partition), response in responses.items():
            first = from_offsets[TopicPartition(topic, partition)]
            for batch in visible_batches(response):
                for record in _readable(batch):
                    offset = record.offset
                    if offset < first:
                        continue
                    self._tables.read(
                        ReadRow(
                            request.client_id or "",
                            client,
                            poll,
                            topic,
                            partition,
                            offset,
                            self._ids(record)[1],
                            now_us,
                            False,  # what a client does with it, a broker doesn't know
                            isolation,
                            first,
                        )
                    )

    # ---- the parts of all these

    def _ids(self, record: Any) -> tuple[int, int]:
        """Return the numbers of a record's key, and of key and value together.

        A tombstone of one key is another record than that of another.
        """
        key, value = record.key, record.value
        ids = _number(key), _number(value, b"" if key is None else b"%d:" % len(key) + key)
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
        self.transactions.close()

    def _client(self, request: Request) -> int:
        """Return a client id's number, the same for all of its connections."""
        return self._clients.setdefault(request.client_id or "", len(self._clients) + 1)


_Value: TypeAlias = tuple[int, TopicPartition, int | None]
"""A value id, its partition and transaction."""


class _DeliveredSends(NamedTuple):
    """Sends whose response was delivered: its time and connection."""

    at_us: int
    connection: int
    sends: list[PendingSend]


_OUTCOME = SendRow._fields.index("outcome")  # the error is behind it
_RESPONSE_TIME = SendRow._fields.index("answer_us")


@dataclass(slots=True, eq=False)
class PendingSend:
    """A row of the table of sends until it is written: its outcome may change."""

    row: SendRow
    sent: SentValue

    def mark_unknown(self, reason: str) -> None:
        """Set the outcome to unknown."""
        row = self.row
        # As `_replace` does it, in a third of the time.
        self.row = SendRow._make((*row[:_OUTCOME], UNKNOWN, reason, *row[_OUTCOME + 2 :]))

    def row_with_response(self, answer_us: int | None) -> SendRow:
        """Return the row with the time of the response, unless the response was lost."""
        row = self.row
        if row.error in _LOST_REASONS:
            return row
        return SendRow._make((*row[:_RESPONSE_TIME], answer_us, *row[_RESPONSE_TIME + 1 :]))


@dataclass(slots=True, eq=False)
class SentValue:
    """A value that was sent, with its number in the producer's order."""

    sequence: int
    attempts: int = 0
    last_us: int = 0
    """When it was last sent."""
    pending: PendingSend | None = None

    def add_attempt(self, row: SendRow) -> PendingSend:
        """Add an attempt. A retry means that the client did not receive the previous response."""
        pending = self.pending
        if pending is not None and pending.row.group == row.group and pending.row.outcome == "ok":
            pending.mark_unknown(RESENT)
        self.attempts += 1
        self.last_us = row.send_us
        self.pending = send = PendingSend(row, self)
        return send


class ProducerOrder:
    """The order of a producer's records in one partition.

    An idempotent producer numbers its records itself, and begins again at 0 in a new epoch: with
    those that it didn't know to be stored, which have their numbers already, or with new ones.
    """

    __slots__ = ("_epoch", "_last", "_start")

    def __init__(self) -> None:
        self._epoch = -1
        self._start = 0
        self._last = -1

    def begin(self, batch: RecordBatch, known: int | None) -> None:
        """Begin a batch, whose first record has the number `known`, if it was sent before."""
        if batch.producer_epoch > self._epoch:
            first = batch.base_sequence
            self._start = self._last + 1 if known is None else known - first
            self._epoch = batch.producer_epoch

    def sequence(self, batch: RecordBatch, number: int) -> int:
        """Return the number of a batch's record: its own, or the order of arrival."""
        if batch.base_sequence < 0:
            sequence = self._last + 1
        else:
            sequence = self._start + batch.base_sequence + number
        self._last = max(self._last, sequence)
        return sequence


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
        folder, run_id=run_id, scenario=name, seed=0, producers=producers, consumers=consumers
    )


def _readable(batch: RecordBatch) -> list[Any]:
    try:
        return list(read_records(batch))
    except ValueError:
        return []  # a broker stores it unread; its records can't be identified


def _outcome(error: ErrorCode) -> tuple[str, str | None]:
    if error is ErrorCode.NONE:
        return "ok", None
    return (UNKNOWN if error in _UNCERTAIN else "fail"), error.name


def _number(data: bytes | None, before: bytes = b"") -> int:
    if data is None and not before:
        return 0
    content = before + (b"null" if data is None else b"=" + data)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1
