"""One session of a transactional producer: it begins transactions, sends, and ends them.

What Kafka's producer does, one step after the other: it gets its id and epoch, which fences the
former session of the transactional id; it adds partitions to the transaction before it sends to
them, sends batches to several partitions at once, sends offsets, and commits or aborts. A request
that gets a retriable error, or no response, is sent again after the backoff. A fenced session
stops.

    beginning -> idle -> sending -> ending -> idle
    sending   -> aborting -> beginning   a batch failed: it aborts and gets a new epoch
    (any)     -> stopped                  it is fenced

Ground rules: everything runs on the engine's thread. One step is active at a time; ``_generation``
counts the steps, and results of earlier steps are dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from purgatory.kafka import (
    ErrorCode,
    InitProducerIdResult,
    PartitionProduceResponse,
    ProducerIdentity,
    TopicPartition,
    TransactionResult,
)
from purgatory.simulation.coordinators import offsets_partition_of, transactions_partition_of
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.messages import (
    Message,
    PartitionQueue,
    SentTransaction,
    TransactionalBatch,
    TransformedMessage,
)
from purgatory.simulation.network import Connection, OnResponse
from purgatory.simulation.producer import (
    DISCONNECTED,
    ProduceRequest,
    ProduceResponses,
    is_maybe_stored,
    write_attempt,
)
from purgatory.simulation.producer_group import TransactionalGroup
from purgatory.simulation.transactional_requests import (
    AddOffsets,
    AddPartitions,
    ConsumerGroupMetadata,
    EndTxn,
    FetchOffsets,
    InitProducerId,
    OffsetsToCommit,
    TransactionalProduce,
    TransactionalRequester,
    TransactionRequest,
    TxnOffsetCommit,
)

RETRIABLE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""After these errors a request is sent again."""

FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""After these errors a session stops: it has a successor, or its transaction timed out."""


class ProducerSessionRequests:
    """The requests of one session, on connections of its own.

    ``producer`` is its id and epoch, once it has them.

    Args:
        handle_fenced: called when a response says that the session is fenced.
    """

    def __init__(
        self, group: TransactionalGroup, transactional_id: str, handle_fenced: Callable[[], object]
    ) -> None:
        self.producer: ProducerIdentity | None = None
        self._group = group
        self._transactional_id = transactional_id
        self._coordinator = transactions_partition_of(transactional_id)
        self._on_fenced = handle_fenced
        self._engine = group.engine
        self._connections: dict[tuple[int, bool], Connection] = {}
        self._generation = 0

    def send(
        self,
        make_request: Callable[
            [TransactionalRequester, Connection, OnResponse], TransactionRequest
        ],
        on_response: OnResponse,
        topic_partition: TopicPartition | None = None,
        error_of: Callable[[Any], object] = lambda response: response,
    ) -> None:
        """Send a request to a partition's leader, and again after retriable errors.

        Args:
            topic_partition: None is the one whose leader coordinates the transactional id.
            error_of: returns the error in a response.
        """
        self._generation += 1
        requester = TransactionalRequester(self._transactional_id, self.producer)

        def send() -> None:
            leader = self._group.coordinator_broker(topic_partition or self._coordinator)
            if leader < 0:
                self.call_later(send)
                return
            connection = self.connection(leader, coordinates=True)
            connection.send(make_request(requester, connection, handle))

        def handle(response: Any) -> None:
            if step != self._generation:
                return
            if response is None:
                self.call_later(send)
                return
            error = ErrorCode.NONE if isinstance(response, dict) else error_of(response)
            if error in RETRIABLE:
                self.call_later(send)
            elif error in FENCED:
                self._on_fenced()
            else:
                on_response(response)

        step = self._generation
        send()

    def call_later(self, function: Callable[[], object], after_ns: int | None = None) -> None:
        """Call a function after the backoff, or `after_ns`, unless the step has changed by then."""
        step = self._generation

        def call() -> None:
            if step == self._generation:
                function()

        self._engine.call_after(self._group.backoff_ns if after_ns is None else after_ns, call)

    def connection(self, broker_id: int, *, coordinates: bool) -> Connection:
        """The connection to a broker; requests to coordinators have one of their own."""
        connection = self._connections.get((broker_id, coordinates))
        if connection is None:
            connection = self._group.connect(broker_id, lambda: None)
            self._connections[broker_id, coordinates] = connection
        return connection

    def stop(self) -> None:
        """Ignore all further responses."""
        self._generation += 1
        for connection in self._connections.values():
            connection.close()


_COMMIT, _ABORT = TransactionResult.COMMIT, TransactionResult.ABORT

_FENCING_ERRORS = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)

_COMPLETED_ERRORS = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})


class Application(Protocol):
    """The source of a producer's records, for one session after the other."""

    group: TransactionalGroup
    transactional_id: str

    @property
    def group_metadata(self) -> ConsumerGroupMetadata | None:
        """Its consumer's membership in a group; None: it has none."""

    def next_messages(self, session: ProducerSession) -> Sequence[Message]:
        """Return the messages to send next, together; none if none wait or the session has been
        replaced."""

    def on_begin(self, session: ProducerSession, offsets: Mapping[TopicPartition, int]) -> None:
        """A session has its id and the committed offsets of its input."""

    def assign_numbers(self, messages: Iterable[Message]) -> None:
        """Number messages that are sent for the first time."""

    def on_end(
        self,
        session: ProducerSession,
        result: TransactionResult,
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """A transaction is committed with these offsets of its input, or aborted."""

    def handle_fenced(self, session: ProducerSession) -> None:
        """A session was fenced and has stopped."""

    def on_pause(self, session: ProducerSession) -> None:
        """A session pauses for a while."""


class ProducerSession:
    """One session of a transactional id, which sends an application's records."""

    def __init__(self, application: Application) -> None:
        self.group = application.group
        self.transaction: SentTransaction | None = None
        self.is_stopped = False
        self.is_paused = False
        self._application = application
        self._settings = application.group.settings
        self._engine = application.group.engine
        self._sender = ProducerSessionRequests(
            application.group, application.transactional_id, self._stop
        )
        self._sequences: dict[TopicPartition, int] = {}
        self._offsets: dict[TopicPartition, int] = {}
        self.group_metadata: ConsumerGroupMetadata | None = None
        """The group metadata at the begin of the transaction."""
        self._unsent: dict[TransactionalBatch, None] = {}
        """Batches of the current request that are not stored yet."""
        self._in_flight: dict[TransactionalBatch, None] = {}
        """Those in flight."""
        self._request_count = 0
        self._batches_until_pause: int | None = None
        self._is_waiting = False
        self._is_aborting = False
        self._end_requested = False
        self._end_requested_ns = 0

    @property
    def is_idle(self) -> bool:
        """Whether it waits outside of a transaction, or has stopped."""
        return self.is_stopped or (self._is_waiting and self.transaction is None)

    # Beginning.

    def start(self) -> None:
        """Request an id and an epoch."""
        self.group.transaction_counts.instances += 1
        self._begin()

    def _begin(self) -> None:
        self._is_aborting = False
        make_request = partial(InitProducerId, content=self._settings.timeout_ms)
        self._sender.send(
            make_request, self._handle_init_response, error_of=lambda result: result.error
        )

    def _handle_init_response(self, result: InitProducerIdResult) -> None:
        if result.error is not ErrorCode.NONE:
            self._sender.producer = None  # its former id is unknown to the coordinator
            self._sender.call_later(self._begin)
            return
        self._sender.producer = ProducerIdentity(result.producer_id, result.producer_epoch)
        self._sequences = {}
        reads = self._settings.reads
        if reads is None or self._application.group_metadata is not None:
            self._begin_transaction({})
        else:
            make_request = partial(FetchOffsets, content=reads)
            self._sender.send(make_request, self._handle_offsets, offsets_partition_of(reads))

    def _handle_offsets(self, offsets: Mapping[TopicPartition, int] | ErrorCode) -> None:
        if isinstance(offsets, ErrorCode):
            self._sender.call_later(self._begin)
        else:
            self._begin_transaction(offsets)

    def _begin_transaction(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._is_waiting = True
        self._application.on_begin(self, offsets)
        self.send_if_ready()

    # Sending.

    def send_if_ready(self) -> None:
        """Send the application's next messages, if there are any."""
        if self._is_waiting:
            messages = self._application.next_messages(self)
            if messages:
                self._is_waiting = False
                self._send_messages(messages)

    def _send_messages(self, messages: Sequence[Message]) -> None:
        transaction = self.transaction
        if transaction is None:
            transaction = self._open_transaction()
        by_queue: dict[PartitionQueue, list[Message]] = defaultdict(list)
        for message in messages:
            by_queue[message.queue].append(message)
        for queue, queue_messages in by_queue.items():
            batch = TransactionalBatch(queue, queue_messages, transaction)
            sequence = self._sequences.get(queue.topic_partition, 0)
            batch.assign_sequence(transaction.producer.producer_epoch, sequence)
            self._sequences[queue.topic_partition] = sequence + len(queue_messages)
            self._unsent[batch] = None
        self._offsets.update(_read_offsets(messages))
        if self._batches_until_pause == self._request_count:
            self._pause(self._add_partitions)
        else:
            self._add_partitions()

    def _open_transaction(self) -> SentTransaction:
        assert self._sender.producer is not None, "the session has an id"
        now_ns = self._engine.now_ns()
        transactional_id = self._application.transactional_id
        self.transaction = transaction = SentTransaction(
            transactional_id, self._sender.producer, now_ns
        )
        self.group.transaction_counts.begun += 1
        self._request_count = 0
        self._end_requested = False
        self._offsets = {}
        self.group_metadata = self._application.group_metadata
        self._batches_until_pause = self.group.draw_pause()
        due_ns = now_ns + self._settings.interval_ms * NS_PER_MS
        self._engine.call_at(due_ns, self._end_interval, transaction)
        return transaction

    def _add_partitions(self) -> None:
        assert self.transaction is not None, "it is in one"
        added = self.transaction.partitions
        new = {batch.queue.topic_partition for batch in self._unsent} - added
        if not new:
            self._send_all()
            return

        def on_added(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                added.update(new)
                self._send_all()
            else:
                self._abort()

        self._sender.send(partial(AddPartitions, content=sorted(new)), on_added)

    def _send_all(self) -> None:
        for batch in list(self._unsent):
            self._send(batch)

    def _send(self, batch: TransactionalBatch) -> None:
        leader = self.group.coordinator_broker(batch.queue.topic_partition)
        if leader < 0:
            self._send_later(batch)
            return
        now_ns = self._engine.now_ns()
        if not batch.attempt:
            self._application.assign_numbers(batch.messages)
        batch.attempt += 1
        batch.sent_ns = now_ns
        self.group.counts.requests += 1
        self.group.counts.retries += batch.attempt > 1
        self._in_flight[batch] = None
        connection = self._sender.connection(leader, coordinates=False)
        transactional_id = self._application.transactional_id
        connection.send(TransactionalProduce(self, connection, batch, transactional_id))

    def _send_later(self, batch: TransactionalBatch) -> None:

        def send() -> None:
            first = batch.messages[0]
            if self._is_aborting or first.created_ns + self.group.delivery_ns <= (
                self._engine.now_ns()
            ):
                self._fail_batch(batch)
            else:
                self._send(batch)

        self._sender.call_later(send)

    def handle_response(self, request: ProduceRequest, responses: ProduceResponses) -> None:
        """A leader's response arrived."""
        [batch] = request.batches
        assert isinstance(batch, TransactionalBatch), "it sends no others"
        response = responses[batch.queue.topic_partition]
        self._in_flight.pop(batch, None)
        if response.error in _COMPLETED_ERRORS:
            self._complete_batch(request, batch, response)
            return
        group, now_ns = self.group, self._engine.now_ns()
        is_uncertain = is_maybe_stored(response.error, group.acks)
        batch.is_maybe_stored = batch.is_maybe_stored or is_uncertain
        outcome = "unknown" if is_uncertain else "fail"
        write_attempt(group, batch, outcome, response.error.name, now_ns, -1, request)
        group.latencies.add_response(request, batch, now_ns)
        if response.error in FENCED:
            self._stop()
        elif response.error in RETRIABLE and not self._is_aborting:
            self._send_later(batch)
        else:
            self._fail_batch(batch)

    def handle_disconnect(self, request: ProduceRequest) -> None:
        """The connection broke before the response came."""
        [batch] = request.batches
        assert isinstance(batch, TransactionalBatch), "it sends no others"
        self._in_flight.pop(batch, None)
        now_ns = self._engine.now_ns()
        write_attempt(self.group, batch, "unknown", DISCONNECTED, now_ns)
        self.group.latencies.add_disconnect(batch, now_ns)
        batch.is_maybe_stored = True
        if not self.is_stopped:
            self._send_later(batch)

    def _complete_batch(
        self, request: ProduceRequest, batch: TransactionalBatch, response: PartitionProduceResponse
    ) -> None:
        group, now_ns = self.group, self._engine.now_ns()
        write_attempt(group, batch, "ok", None, now_ns, response.base_offset, request)
        group.latencies.add_response(request, batch, now_ns)
        group.latencies.add_acknowledged(group.ledger.record_acknowledged(batch), now_ns)
        self._remove_batch(batch)

    def _fail_batch(self, batch: TransactionalBatch) -> None:
        self._is_aborting = True
        self.group.record_failed(batch)
        self._remove_batch(batch)

    def _remove_batch(self, batch: TransactionalBatch) -> None:
        self._unsent.pop(batch, None)
        if self._unsent or self.is_stopped:
            return
        self._request_count += 1
        if self._is_aborting:
            self._end(_ABORT)
        else:
            self._continue()

    def _continue(self) -> None:
        """Send the next messages, or end the transaction, or wait."""
        transaction = self.transaction
        assert transaction is not None, "it is in one"
        due_ns = transaction.start_ns + self._settings.interval_ms * NS_PER_MS
        is_interval_over = self._end_requested or self._engine.now_ns() >= due_ns
        if self._request_count >= self._settings.requests or is_interval_over:
            self._finish()
        else:
            self._is_waiting = True
            self.send_if_ready()

    def _end_interval(self, transaction: SentTransaction) -> None:
        if transaction is self.transaction and self._is_waiting:
            self._finish()

    # Ending.

    def request_finish(self) -> None:
        """End the transaction, if one is open, after the current request."""
        self._end_requested = True
        if self.transaction is not None and self._is_waiting:
            self._finish()

    def _finish(self) -> None:
        self._is_waiting = False
        if self._batches_until_pause is not None:
            self._pause(self._finish)
        elif self._settings.reads is not None:
            self._send_offsets(self._settings.reads)
        else:
            self._end(self.group.next_result())

    def _send_offsets(self, group_id: str) -> None:
        def on_added(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                self._abort()
                return
            group_metadata = self.group_metadata or ConsumerGroupMetadata()
            content = OffsetsToCommit(group_id, dict(self._offsets), group_metadata)
            self._sender.send(partial(TxnOffsetCommit, content=content), on_committed, place)

        def on_committed(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._end(self.group.next_result())
            else:
                self.group.transaction_counts.stale += code in _FENCING_ERRORS
                self._abort()

        place = offsets_partition_of(group_id)
        self._sender.send(partial(AddOffsets, content=[place]), on_added)

    def _abort(self) -> None:
        """Abort a transaction that can't be completed, then begin again."""
        self._is_aborting = True
        for batch in self._unsent:
            self.group.record_failed(batch)
        self._unsent.clear()
        self._end(_ABORT)

    def _end(self, result: TransactionResult) -> None:
        assert self.transaction is not None, "it is in one"
        self.transaction.requested_result = result
        self._end_requested_ns = self._engine.now_ns()
        self._sender.send(partial(EndTxn, content=result), self._handle_end_response)

    def _handle_end_response(self, code: ErrorCode) -> None:
        transaction = self.transaction
        assert transaction is not None and transaction.requested_result is not None, (
            "its end was requested"
        )
        result, counts = transaction.requested_result, self.group.transaction_counts
        self.transaction = None
        self._batches_until_pause = None
        if code is ErrorCode.NONE:
            self.group.watch.record_end_response(transaction, result)
            self.group.record_end(transaction, result, self._end_requested_ns)
        else:
            counts.failed += 1
        if code is not ErrorCode.NONE or self._is_aborting:
            self._begin()
            return
        self._is_waiting = True
        self._application.on_end(self, result, self._offsets)
        self.send_if_ready()

    def _stop(self) -> None:
        """Stop: another session has the transactional id."""
        if self.is_stopped:
            return
        self.is_stopped = True
        if self.transaction is not None:
            self.group.transaction_counts.fenced += 1
        for batch in self._unsent:
            self.group.record_failed(batch)
            if batch in self._in_flight:
                write_attempt(self.group, batch, "unknown", None, None)
        self._unsent.clear()
        self._in_flight.clear()
        self._sender.stop()
        self._application.handle_fenced(self)

    def record_open_attempts(self) -> None:
        """Write the attempts that are open at the end of the run."""
        self.group.transaction_counts.unsettled += self.transaction is not None and (
            not self.is_stopped
        )
        for batch in self._in_flight:
            write_attempt(self.group, batch, "unknown", None, None)

    # Pausing.

    def _pause(self, callback: Callable[[], object]) -> None:
        self._batches_until_pause = None
        self.group.transaction_counts.zombies += 1
        self.is_paused = True
        self._sender.call_later(partial(self._wake, callback), self.group.zombie_ns())
        self._application.on_pause(self)

    def _wake(self, callback: Callable[[], object]) -> None:
        self.is_paused = False
        callback()


def _read_offsets(messages: Iterable[Message]) -> dict[TopicPartition, int]:
    """The offsets after the input of these messages, by partition."""
    offsets = {}
    for message in messages:
        if isinstance(message, TransformedMessage):
            topic_partition, offset = message.source
            offsets[topic_partition] = offset + 1
    return offsets
