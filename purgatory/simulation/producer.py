"""Producers: they accumulate records in batches, send them, and retry failed ones.

They behave as Kafka's producer where order, duplicates and losses depend on it:

* A connection to each broker, with at most `max_in_flight` unanswered requests. A request carries
  at most one batch per partition.
* A failed batch returns to the head of its partition's queue and waits for its backoff; batches in
  flight may overtake it, unless only one request may be in flight.
* A request without a response in time breaks the connection: all requests in flight on it fail, and
  any of them may have been stored.
* With idempotence a retried batch keeps its sequence number; meanwhile no new one is sent. A batch
  that failed for good, or whose sequence the broker doesn't know any more, bumps the epoch: the
  sequence numbers restart once nothing is in flight.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from purgatory.kafka import ErrorCode, PartitionProduceResponse, TopicPartition
from purgatory.kafka.replication.delayed_produce import closes_connection
from purgatory.simulation.engine import NS_PER_US
from purgatory.simulation.messages import FOREVER_NS, Batch, Message, PartitionQueue
from purgatory.simulation.network import Connection, Request, Server
from purgatory.simulation.producer_group import ProducerGroup
from purgatory.trace.table_rows import SendRow

ProduceResponses = dict[TopicPartition, PartitionProduceResponse]


class ProduceRequest(Request):
    """A produce request: batches for partitions that one broker leads."""

    __slots__ = ("batches", "producer")
    api = "produce"
    purgatory = "Produce"
    kind = "producer"

    def __init__(self, producer: Producer, connection: Connection, batches: list[Batch]) -> None:
        super().__init__(connection)
        self.producer = producer
        self.batches = batches
        self.is_delayable = producer.group.acks == -1
        self.expects_response = producer.group.acks != 0

    @property
    def timeout_ms(self) -> int:
        return self.producer.group.section.timeout_ms

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return tuple([batch.queue.topic_partition for batch in self.batches])

    def execute(self, broker: Server) -> None:
        group = self.producer.group
        if broker.faults.active and broker.faults.refuses_produce(broker.id):
            not_enough_replicas = PartitionProduceResponse(ErrorCode.NOT_ENOUGH_REPLICAS)
            self.respond(dict.fromkeys(self.watch_keys, not_enough_replicas))
            return
        entries = {batch.queue.topic_partition: batch.record_batch() for batch in self.batches}
        broker.manager.append_records(group.section.timeout_ms, group.acks, entries, self.respond)
        # An append that still waits for followers has committed nothing.
        if self.response_count or len(entries) > 1:
            broker.observe_commits(entries)

    def respond(self, responses: ProduceResponses) -> None:
        super().respond(responses)
        if closes_connection(self.producer.group.acks, responses.values()):
            self.connection.close_by_broker()

    def deliver(self, response: ProduceResponses) -> None:
        self.producer.handle_response(self, response)

    def fail(self) -> None:
        self.producer.handle_disconnect(self)


_UNCERTAIN_ERRORS = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
"""Errors that come after the append. With acks=all, so may NOT_LEADER_OR_FOLLOWER."""

_DISCONNECTED = "DISCONNECTED"
"""The error of an attempt whose connection broke before the response came."""


def _is_maybe_stored(error: ErrorCode, acks: int) -> bool:
    """Whether a batch may be in the log in spite of an error."""
    return error in _UNCERTAIN_ERRORS or (error is ErrorCode.NOT_LEADER_OR_FOLLOWER and acks != 1)


def _write_attempt(
    group: ProducerGroup,
    batch: Batch,
    outcome: str,
    error: str | None,
    response_ns: int | None,
    offset: int = -1,
    request: ProduceRequest | None = None,
) -> None:
    """Write an attempt to send a batch into the trace, a row per message. O(messages)."""
    write = group.write
    if write is None:
        return
    queue, attempt = batch.queue, batch.attempt
    send_us = batch.sent_ns // NS_PER_US
    response_us = None if response_ns is None else response_ns // NS_PER_US
    at_broker_us: tuple[Any, ...] = (None, None, None)
    if request is not None:
        times_ns = (request.arrived_ns, request.received_ns, request.response_ns)
        at_broker_us = tuple([time_ns // NS_PER_US for time_ns in times_ns])
    for index, message in enumerate(batch.messages):
        write(
            SendRow(
                group.name,
                queue.producer_number,
                message.sequence,
                attempt,
                message.key,
                message.value_id,
                group.acks,
                outcome,
                error,
                send_us,
                response_us,
                queue.topic_partition.topic,
                queue.partition,
                None if offset < 0 else offset + index,
                message.size_bytes,
                message.created_ns // NS_PER_US,
                *at_broker_us,
            )
        )


_ACKNOWLEDGED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})

_SEQUENCE_ERRORS = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)

_RETRIABLE = _SEQUENCE_ERRORS | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
}


class Producer:
    """One producer of a group; its number is unique in the run."""

    __slots__ = ("_connections", "_leaders", "_queues", "_ready", "group", "next_message", "number")

    def __init__(self, group: ProducerGroup, number: int) -> None:
        self.group = group
        self.number = number
        self.next_message = 0
        self._queues: dict[int, PartitionQueue] = {}
        self._ready: dict[PartitionQueue, None] = {}
        self._connections: dict[int, Connection] = {}
        self._leaders = group.first_leaders

    @property
    def is_idle(self) -> bool:
        """Whether no batch is queued or in flight. O(partitions)."""
        return not self._ready and not any(queue.in_flight for queue in self._queues.values())

    def batches_in_flight(self) -> list[Batch]:
        """The batches in flight, oldest first."""
        batches = [batch for queue in self._queues.values() for batch in queue.batches_in_flight]
        return sorted(batches, key=lambda batch: (batch.sent_ns, batch.messages[0].sequence))

    def add_message(self, size_bytes: int) -> None:
        """Enqueue a new record, and send it if possible."""
        group = self.group
        sequence = self.next_message
        self.next_message = sequence + 1
        key = group.next_key()
        partition = group.partition_of(key, sequence, self.number)
        queue = self._queues.get(partition)
        if queue is None:
            queue = PartitionQueue(self.number, group.totals, group.topic_partitions[partition])
            self._queues[partition] = queue
        group.counts.records += 1
        message = Message(queue, sequence, key, size_bytes, group.engine.now_ns())
        leader = self._leaders[partition]
        if group.has_no_linger and not self._ready and leader >= 0 and not queue.refreshes_leader:
            connection = self._connection(leader)
            if len(connection.in_flight) < group.max_in_flight:
                self._send(connection, [Batch(queue, [message], size_bytes)])
                return
        queue.waiting.append(message)
        self._ready[queue] = None
        if leader < 0:
            self._refresh_leader(queue)
        else:
            self._send_to_broker(leader)

    # Sending.

    def _send_to_broker(self, broker_id: int) -> None:
        """Send a broker's ready batches, up to `max_in_flight` requests."""
        connection = self._connection(broker_id)
        limit = self.group.max_in_flight
        while self._ready and len(connection.in_flight) < limit:
            batches = self._drain_batches(broker_id)
            if not batches:
                return
            self._send(connection, batches)

    def _connection(self, broker_id: int) -> Connection:
        connection = self._connections.get(broker_id)
        if connection is None:
            connection = self.group.connect(broker_id, partial(self._refresh_leaders, broker_id))
            self._connections[broker_id] = connection
        return connection

    def _drain_batches(self, broker_id: int) -> list[Batch]:
        batches = []
        for queue in list(self._ready):
            if self._leaders[queue.partition] == broker_id:
                batch = self._next_batch(queue)
                if batch is not None:
                    batches.append(batch)
                if not queue.waiting and not queue.failed:
                    self._ready.pop(queue, None)
        return batches

    def _next_batch(self, queue: PartitionQueue) -> Batch | None:
        """The next batch of a partition that may be sent now, or None."""
        group = self.group
        if queue.in_flight and (group.max_in_flight == 1 or queue.must_bump_epoch):
            return None
        now_ns = group.engine.now_ns()
        if queue.not_before_ns > now_ns:
            self._schedule_send(queue, queue.not_before_ns)
            return None
        if queue.must_bump_epoch:
            self._bump_epoch(queue)
        if queue.failed or queue.waiting:
            self._expire(queue, now_ns)
            if queue.must_bump_epoch:
                return self._next_batch(queue)
        if queue.failed:
            if group.idempotence and self._has_earlier_batch(queue.failed[0]):
                return None
            return queue.failed.popleft()
        if not queue.waiting or (group.idempotence and self._has_retry_in_flight(queue)):
            return None
        return self._new_batch(queue, now_ns)

    def _new_batch(self, queue: PartitionQueue, now_ns: int) -> Batch | None:
        """Make a batch, unless it lingers for more records."""
        group, waiting = self.group, queue.waiting
        if group.linger_ns and len(waiting) < group.batch_size:
            due_ns = waiting[0].created_ns + group.linger_ns
            if due_ns > now_ns:
                self._schedule_send(queue, due_ns)
                return None
        count = min(len(waiting), group.batch_size)
        messages = [waiting.popleft() for _ in range(count)]
        batch = Batch(queue, messages, sum([message.size_bytes for message in messages]))
        if group.idempotence:
            batch.assign_sequence(queue.epoch, queue.next_sequence)
            queue.next_sequence += count
        return batch

    def _has_retry_in_flight(self, queue: PartitionQueue) -> bool:
        """Whether a retried batch is in flight: no new one may follow it.

        Otherwise it might get lost again while more batches follow than the broker remembers, and
        the broker could no longer tell whether it is a duplicate.
        """
        return any(batch.attempt > 1 for batch in queue.batches_in_flight)

    def _bump_epoch(self, queue: PartitionQueue) -> None:
        """Restart the sequence numbers in a new epoch."""
        queue.must_bump_epoch = False
        queue.epoch += 1
        queue.next_sequence = 0
        for batch in queue.failed:
            batch.assign_sequence(queue.epoch, queue.next_sequence)
            queue.next_sequence += len(batch.messages)

    def _send(self, connection: Connection, batches: list[Batch]) -> None:
        group = self.group
        now_ns = group.engine.now_ns()
        group.counts.requests += 1
        for batch in batches:
            batch.attempt += 1
            batch.sent_ns = now_ns
            if batch.attempt > 1:
                group.counts.retries += 1
        request = ProduceRequest(self, connection, batches)
        if group.acks == 0:
            connection.send(request)
            for batch in batches:
                _write_attempt(self.group, batch, "unknown", None, None)
                group.ledger.record_acknowledged(batch)
            return
        for batch in batches:
            batch.queue.in_flight += 1
            batch.queue.batches_in_flight[batch] = None
        connection.send(request)

    def _schedule_send(self, queue: PartitionQueue, time_ns: int) -> None:
        """Send from a queue at the given time, unless an earlier one is scheduled."""
        if queue.wake_ns > time_ns or queue.wake_ns <= self.group.engine.now_ns():
            queue.wake_ns = time_ns
            self.group.engine.call_at(time_ns, self._wake, queue, time_ns)

    def _wake(self, queue: PartitionQueue, time_ns: int) -> None:
        if queue.wake_ns == time_ns:
            queue.wake_ns = FOREVER_NS
        if queue.is_empty():
            return
        leader = self._leaders[queue.partition]
        if leader < 0:
            self._refresh_leader(queue)
        else:
            self._send_to_broker(leader)

    # Leaders.

    def _refresh_leaders(self, broker_id: int) -> None:
        """Look up the leaders of a disconnected broker's partitions."""
        for queue in self._queues.values():
            if self._leaders[queue.partition] == broker_id:
                self._refresh_leader(queue)

    def _refresh_leader(self, queue: PartitionQueue) -> None:
        """Look up the leader after the backoff."""
        if queue.refreshes_leader:
            return
        queue.refreshes_leader = True
        queue.not_before_ns = self.group.engine.now_ns() + self.group.backoff_ns
        self.group.engine.call_at(queue.not_before_ns, self._update_leader, queue)

    def _update_leader(self, queue: PartitionQueue) -> None:
        queue.refreshes_leader = False
        leader = self.group.controller.partition_leader(queue.partition)
        if self._leaders is self.group.first_leaders:
            self._leaders = list(self._leaders)
        self._leaders[queue.partition] = leader
        if queue.is_empty():
            return
        if leader < 0:
            self._expire(queue, self.group.engine.now_ns())
            if queue.is_empty():
                self._ready.pop(queue, None)
            else:
                self._refresh_leader(queue)
        else:
            self._send_to_broker(leader)

    def _expire(self, queue: PartitionQueue, now_ns: int) -> None:
        """Fail batches and messages after the delivery timeout."""
        while queue.failed and self._is_expired(queue.failed[0].messages[0], now_ns):
            self._fail_batch(queue.failed.popleft())
        while queue.waiting and self._is_expired(queue.waiting[0], now_ns):
            queue.waiting.popleft()
            self.group.counts.failed += 1

    def _is_expired(self, message: Message, now_ns: int) -> bool:
        return message.created_ns + self.group.delivery_ns <= now_ns

    # Responses.

    def handle_response(self, request: ProduceRequest, responses: ProduceResponses) -> None:
        """The broker's response arrived."""
        for batch in request.batches:
            queue = batch.queue
            response = responses[queue.topic_partition]
            queue.in_flight -= 1
            queue.batches_in_flight.pop(batch, None)
            if response.error in _ACKNOWLEDGED:
                self._complete_batch(request, batch, response)
            else:
                self._handle_error(request, batch, response.error)
        if self._ready:
            self._send_to_broker(request.connection.broker.id)

    def handle_disconnect(self, request: ProduceRequest) -> None:
        """The connection broke before the response: the batches may be stored."""
        now_ns = self.group.engine.now_ns()
        for batch in request.batches:
            batch.queue.in_flight -= 1
            batch.queue.batches_in_flight.pop(batch, None)
            _write_attempt(self.group, batch, "unknown", _DISCONNECTED, now_ns)
            self.group.latencies.add_disconnect(batch, now_ns)
            batch.is_maybe_stored = True
            self._retry(batch, _DISCONNECTED)

    def _complete_batch(
        self, request: ProduceRequest, batch: Batch, response: PartitionProduceResponse
    ) -> None:
        group = self.group
        now_ns = group.engine.now_ns()
        _write_attempt(group, batch, "ok", None, now_ns, response.base_offset, request)
        group.latencies.add_response(request, batch, now_ns)
        group.latencies.add_acknowledged(group.ledger.record_acknowledged(batch), now_ns)

    def _handle_error(self, request: ProduceRequest, batch: Batch, error: ErrorCode) -> None:
        stored = _is_maybe_stored(error, self.group.acks)
        outcome = "unknown" if stored else "fail"
        now_ns = self.group.engine.now_ns()
        _write_attempt(self.group, batch, outcome, error.name, now_ns, -1, request)
        self.group.latencies.add_response(request, batch, now_ns)
        batch.is_maybe_stored = batch.is_maybe_stored or stored
        queue = batch.queue
        if error in _SEQUENCE_ERRORS and not self._has_earlier_batch(batch):
            # No older batch can fill the gap: the broker has lost the sequence.
            queue.must_bump_epoch = True
        if error in _RETRIABLE:
            self._retry(batch, error.name)
        else:
            self._fail_batch(batch)

    def _has_earlier_batch(self, batch: Batch) -> bool:
        first = batch.messages[0].sequence
        queue = batch.queue
        return any(
            earlier.messages[0].sequence < first
            for earlier in (*queue.batches_in_flight, *queue.failed)
        )

    def _retry(self, batch: Batch, error: str) -> None:
        """Put a batch back in its place in the queue, to be sent after the backoff."""
        group = self.group
        now_ns = group.engine.now_ns()
        if batch.attempt > group.section.retries or self._is_expired(batch.messages[0], now_ns):
            self._fail_batch(batch)
            if batch.queue.is_empty():
                return
        else:
            self._reenqueue(batch)
        queue = batch.queue
        self._ready[queue] = None
        if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER.name, _DISCONNECTED):
            self._refresh_leader(queue)
            return
        queue.not_before_ns = now_ns + group.backoff_ns
        self._schedule_send(queue, queue.not_before_ns)

    def _reenqueue(self, batch: Batch) -> None:
        failed = batch.queue.failed
        first = batch.messages[0].sequence
        index = 0
        while index < len(failed) and failed[index].messages[0].sequence < first:
            index += 1
        failed.insert(index, batch)

    def _fail_batch(self, batch: Batch) -> None:
        group = self.group
        group.counts.failed += len(batch.messages)
        if batch.is_maybe_stored:
            group.counts.unknown += len(batch.messages)
        if group.idempotence:
            batch.queue.must_bump_epoch = True

    def record_open_attempts(self) -> None:
        """Write the attempts that are open at the end of the run, with unknown outcome."""
        for batch in self.batches_in_flight():
            _write_attempt(self.group, batch, "unknown", None, None)
