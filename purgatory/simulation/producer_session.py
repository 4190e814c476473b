"""One session of a transactional producer: it begins transactions, sends, and ends them.

What Kafka's producer does, one step after the other: it gets its id and epoch, which fences the
former session of the transactional id; it adds partitions to the transaction before it sends to
them, sends batches to several partitions at once, hands in offsets, and commits or aborts. A
request that is refused for the moment, or not answered, is sent again after the backoff. A fenced
session stops.

    beginning -> idle -> sending -> ending -> idle
    sending   -> giving up -> beginning   a batch can't be delivered: it aborts, raises its epoch
    (any)     -> stopped                  it is fenced

Ground rules: everything runs on the engine's thread. One step is under way at a time: ``_step``
counts them, and results of former steps are dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from purgatory.kafka import (
    EndTransaction,
    ErrorCode,
    InitProducerIdResult,
    PartitionProduceResponse,
    ProducerIdentity,
    TopicPartition,
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
from purgatory.simulation.network import Connection
from purgatory.simulation.producer import (
    DISCONNECTED,
    Answer,
    ProduceRequest,
    maybe_stored,
    write_attempt,
)
from purgatory.simulation.producer_group import TransactionalGroup
from purgatory.simulation.transactional_requests import (
    AddOffsets,
    AddPartitions,
    Answered,
    EndTxn,
    FetchOffsets,
    InitProducerId,
    ReadAs,
    TransactionalProduce,
    TransactionalRequester,
    TransactionRequest,
    TxnOffsetCommit,
)

PASSING = frozenset(
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
"""What is refused so may be asked again."""

FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Who is told this has a successor, or was aborted because it took too long."""


class ProducerSessionRequests:
    """What an instance asks, on connections of its own.

    ``producer`` is who it is, once it knows.

    Args:
        group: what it shares with others.
        transactional_id: its own.
        fenced: is called when a response says that it is fenced.
    """

    def __init__(
        self, group: TransactionalGroup, transactional_id: str, fenced: Callable[[], object]
    ) -> None:
        self.producer: ProducerIdentity | None = None
        self._group = group
        self._transactional_id = transactional_id
        self._coordinator = transactions_partition_of(transactional_id)
        self._fenced = fenced
        self._engine = group.engine
        self._connections: dict[tuple[int, bool], Connection] = {}
        self._step = 0

    def ask(
        self,
        make: Callable[[TransactionalRequester, Connection, Answered], TransactionRequest],
        answered: Answered,
        place: TopicPartition | None = None,
        error_of: Callable[[Any], object] = lambda answer: answer,
    ) -> None:
        """Ask who leads a partition until a response comes that doesn't pass.

        Args:
            make: makes the request.
            answered: takes the response.
            place: the partition; without it, the one whose leader coordinates the transactional id.
            error_of: returns the error in a response.
        """
        self._step += 1
        requester = TransactionalRequester(self._transactional_id, self.producer)

        def ask() -> None:
            leader = self._group.leader_of(place or self._coordinator)
            if leader < 0:
                self.later(ask)
                return
            connection = self.connection(leader, coordinates=True)
            connection.send(make(requester, connection, take))

        def take(answer: Any) -> None:
            if step != self._step:
                return
            if answer is None:
                self.later(ask)
                return
            error = ErrorCode.NONE if isinstance(answer, dict) else error_of(answer)
            if error in PASSING:
                self.later(ask)
            elif error in FENCED:
                self._fenced()
            else:
                answered(answer)

        step = self._step
        ask()

    def later(self, function: Callable[[], object], after_ns: int | None = None) -> None:
        """Call a function after the back-off, or after that time, if it is the same step then."""
        step = self._step

        def call() -> None:
            if step == self._step:
                function()

        self._engine.after(self._group.backoff_ns if after_ns is None else after_ns, call)

    def connection(self, broker_id: int, *, coordinates: bool) -> Connection:
        """The connection to a broker: what coordinators are asked doesn't wait for produces."""
        connection = self._connections.get((broker_id, coordinates))
        if connection is None:
            connection = self._group.connect(broker_id, _nothing)
            self._connections[broker_id, coordinates] = connection
        return connection

    def stop(self) -> None:
        """Take no response any more."""
        self._step += 1
        for connection in self._connections.values():
            connection.close()


def _nothing() -> None:
    """A connection broke: the requests in flight are told."""


_COMMIT, _ABORT = EndTransaction.COMMIT, EndTransaction.ABORT

_STALE = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)

_DONE = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})


class Application(Protocol):
    """What has records to send, by one instance or another."""

    group: TransactionalGroup
    transactional_id: str

    @property
    def read_as(self) -> ReadAs | None:
        """As what its consumer reads: as a member of a group; None: it is in none."""

    def take(self, instance: ProducerSession) -> Sequence[Message]:
        """Hand out what is to be sent next, together; nothing, if there is nothing to send or
        another instance has taken its place."""

    def begun_anew(self, instance: ProducerSession, offsets: Mapping[TopicPartition, int]) -> None:
        """An instance has an id, and knows how far what it reads was transformed."""

    def give_numbers(self, messages: Iterable[Message]) -> None:
        """Give records their numbers: they are sent now for the first time."""

    def ended(
        self, instance: ProducerSession, how: EndTransaction, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """A transaction is committed with these offsets of what it read, or aborted."""

    def stopped(self, instance: ProducerSession) -> None:
        """An instance was fenced, and does nothing any more."""

    def stands_still(self, instance: ProducerSession) -> None:
        """An instance does nothing for a while."""


class ProducerSession:
    """One instance.

    Args:
        application: whose records it sends.
    """

    def __init__(self, application: Application) -> None:
        self.group = application.group
        self.transaction: SentTransaction | None = None
        self.is_stopped = False
        self.is_still = False
        self._application = application
        self._settings = application.group.settings
        self._engine = application.group.engine
        self._steps = ProducerSessionRequests(
            application.group, application.transactional_id, self._fenced
        )
        self._sequences: dict[TopicPartition, int] = {}
        self._offsets: dict[TopicPartition, int] = {}
        self.read_as: ReadAs | None = None
        """As what was read what the transaction sends on."""
        self._unsent: dict[TransactionalBatch, None] = {}
        """Batches of the request under way that are not stored yet."""
        self._tried: dict[TransactionalBatch, None] = {}
        """Those of them that are in flight."""
        self._requests = 0
        self._still_after: int | None = None
        self._is_resting = False
        self._is_given_up = False
        self._is_due = False
        self._asked_ns = 0

    @property
    def is_idle(self) -> bool:
        """Whether it has begun, and is in no transaction; or it has stopped."""
        return self.is_stopped or (self._is_resting and self.transaction is None)

    # Beginning.

    def start(self) -> None:
        """Ask for an id and an epoch."""
        self.group.transaction_counts.instances += 1
        self._begin()

    def _begin(self) -> None:
        self._is_given_up = False
        make = partial(InitProducerId, timeout_ms=self._settings.timeout_ms)
        self._steps.ask(make, self._initialized, error_of=lambda answer: answer.error)

    def _initialized(self, answer: InitProducerIdResult) -> None:
        if answer.error is not ErrorCode.NONE:
            self._steps.producer = None  # what it was is known no more
            self._steps.later(self._begin)
            return
        self._steps.producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self._sequences = {}
        reads = self._settings.reads
        if reads is None or self._application.read_as is not None:
            self._ready({})
        else:
            make = partial(FetchOffsets, group_id=reads)
            self._steps.ask(make, self._offsets_known, offsets_partition_of(reads))

    def _offsets_known(self, answer: Mapping[TopicPartition, int] | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            self._steps.later(self._begin)
        else:
            self._ready(answer)

    def _ready(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._is_resting = True
        self._application.begun_anew(self, offsets)
        self.look()

    # Sending.

    def look(self) -> None:
        """There may be something to send."""
        if self._is_resting:
            messages = self._application.take(self)
            if messages:
                self._is_resting = False
                self._send_together(messages)

    def _send_together(self, messages: Sequence[Message]) -> None:
        transaction = self.transaction
        if transaction is None:
            transaction = self._open_transaction()
        by_queue: dict[PartitionQueue, list[Message]] = defaultdict(list)
        for message in messages:
            by_queue[message.queue].append(message)
        for queue, together in by_queue.items():
            batch = TransactionalBatch(queue, together, transaction)
            sequence = self._sequences.get(queue.topic_partition, 0)
            batch.number(transaction.producer.producer_epoch, sequence)
            self._sequences[queue.topic_partition] = sequence + len(together)
            self._unsent[batch] = None
        self._offsets.update(_read_until(messages))
        if self._still_after == self._requests:
            self._stand_still(self._add_partitions)
        else:
            self._add_partitions()

    def _open_transaction(self) -> SentTransaction:
        assert self._steps.producer is not None, "it has begun"
        now_ns = self._engine.now_ns()
        transactional_id = self._application.transactional_id
        self.transaction = transaction = SentTransaction(
            transactional_id, self._steps.producer, now_ns
        )
        self.group.transaction_counts.begun += 1
        self._requests = 0
        self._is_due = False
        self._offsets = {}
        self.read_as = self._application.read_as
        self._still_after = self.group.still_after()
        due_ns = now_ns + self._settings.interval_ms * NS_PER_MS
        self._engine.at(due_ns, self._interval_over, transaction)
        return transaction

    def _add_partitions(self) -> None:
        assert self.transaction is not None, "it is in one"
        added = self.transaction.partitions
        new = {batch.queue.topic_partition for batch in self._unsent} - added
        if not new:
            self._send_all()
            return

        def taken_in(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                added.update(new)
                self._send_all()
            else:
                self._give_up()

        self._steps.ask(partial(AddPartitions, partitions=sorted(new)), taken_in)

    def _send_all(self) -> None:
        for batch in list(self._unsent):
            self._send(batch)

    def _send(self, batch: TransactionalBatch) -> None:
        leader = self.group.leader_of(batch.queue.topic_partition)
        if leader < 0:
            self._send_later(batch)
            return
        now_ns = self._engine.now_ns()
        if not batch.attempt:
            self._application.give_numbers(batch.messages)
        batch.attempt += 1
        batch.sent_ns = now_ns
        self.group.counts.requests += 1
        self.group.counts.retries += batch.attempt > 1
        self._tried[batch] = None
        connection = self._steps.connection(leader, coordinates=False)
        transactional_id = self._application.transactional_id
        connection.send(TransactionalProduce(self, connection, batch, transactional_id))

    def _send_later(self, batch: TransactionalBatch) -> None:

        def send() -> None:
            first = batch.messages[0]
            if self._is_given_up or first.created_ns + self.group.delivery_ns <= (
                self._engine.now_ns()
            ):
                self._not_stored(batch)
            else:
                self._send(batch)

        self._steps.later(send)

    def answered(self, request: ProduceRequest, answer: Answer) -> None:
        """A leader's response arrived."""
        [batch] = request.batches
        assert isinstance(batch, TransactionalBatch), "it sends no others"
        response = answer[batch.queue.topic_partition]
        self._tried.pop(batch, None)
        if response.error in _DONE:
            self._stored(request, batch, response)
            return
        group, now_ns = self.group, self._engine.now_ns()
        unsure = maybe_stored(response.error, group.acks)
        batch.sent_unsure = batch.sent_unsure or unsure
        outcome = "unknown" if unsure else "fail"
        write_attempt(group, batch, outcome, response.error.name, now_ns, -1, request)
        group.latencies.answered(request, batch, now_ns)
        if response.error in FENCED:
            self._fenced()
        elif response.error in PASSING and not self._is_given_up:
            self._send_later(batch)
        else:
            self._not_stored(batch)

    def disconnected(self, request: ProduceRequest) -> None:
        """The connection broke before the response came."""
        [batch] = request.batches
        assert isinstance(batch, TransactionalBatch), "it sends no others"
        self._tried.pop(batch, None)
        now_ns = self._engine.now_ns()
        write_attempt(self.group, batch, "unknown", DISCONNECTED, now_ns)
        self.group.latencies.broke(batch, now_ns)
        batch.sent_unsure = True
        if not self.is_stopped:
            self._send_later(batch)

    def _stored(
        self, request: ProduceRequest, batch: TransactionalBatch, response: PartitionProduceResponse
    ) -> None:
        group, now_ns = self.group, self._engine.now_ns()
        write_attempt(group, batch, "ok", None, now_ns, response.base_offset, request)
        group.latencies.answered(request, batch, now_ns)
        group.latencies.acknowledged(group.ledger.acknowledged(batch), now_ns)
        self._settled(batch)

    def _not_stored(self, batch: TransactionalBatch) -> None:
        self._is_given_up = True
        self.group.lose(batch)
        self._settled(batch)

    def _settled(self, batch: TransactionalBatch) -> None:
        self._unsent.pop(batch, None)
        if self._unsent or self.is_stopped:
            return
        self._requests += 1
        if self._is_given_up:
            self._end(_ABORT)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Send what there is, or end the transaction, or wait for either."""
        transaction = self.transaction
        assert transaction is not None, "it is in one"
        if self._requests >= self._settings.requests or self._is_over(transaction):
            self._finish()
        else:
            self._is_resting = True
            self.look()

    def _is_over(self, transaction: SentTransaction) -> bool:
        due_ns = transaction.begun_ns + self._settings.interval_ms * NS_PER_MS
        return self._is_due or self._engine.now_ns() >= due_ns

    def _interval_over(self, transaction: SentTransaction) -> None:
        if transaction is self.transaction and self._is_resting:
            self._finish()

    # Ending.

    def finish_soon(self) -> None:
        """End the transaction, if there is one, once what is under way is sent."""
        self._is_due = True
        if self.transaction is not None and self._is_resting:
            self._finish()

    def _finish(self) -> None:
        self._is_resting = False
        if self._still_after is not None:
            self._stand_still(self._finish)
        elif self._settings.reads is not None:
            self._hand_in_offsets(self._settings.reads)
        else:
            self._end(self.group.next_end())

    def _hand_in_offsets(self, group_id: str) -> None:
        def taken_in(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                self._give_up()
                return
            make = partial(
                TxnOffsetCommit,
                group_id=group_id,
                offsets=dict(self._offsets),
                read_as=self.read_as or ReadAs(),
            )
            self._steps.ask(make, handed_in, offsets_partition_of(group_id))

        def handed_in(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._end(self.group.next_end())
            else:
                self.group.transaction_counts.stale += code in _STALE
                self._give_up()

        self._steps.ask(partial(AddOffsets, group_id=group_id), taken_in)

    def _give_up(self) -> None:
        """Abort, for this transaction can't be what it was to be; then begin again."""
        self._is_given_up = True
        for batch in self._unsent:
            self.group.lose(batch)
        self._unsent.clear()
        self._end(_ABORT)

    def _end(self, how: EndTransaction) -> None:
        assert self.transaction is not None, "it is in one"
        self.transaction.asked = how
        self._asked_ns = self._engine.now_ns()
        self._steps.ask(partial(EndTxn, how=how), self._ended)

    def _ended(self, code: ErrorCode) -> None:
        transaction = self.transaction
        assert transaction is not None and transaction.asked is not None, "it asked for its end"
        how, counts = transaction.asked, self.group.transaction_counts
        self.transaction = None
        self._still_after = None
        if code is ErrorCode.NONE:
            self.group.watch.told(transaction, how)
            self.group.note_end(transaction, how, self._asked_ns)
        else:
            counts.failed += 1
        if code is not ErrorCode.NONE or self._is_given_up:
            self._begin()
            return
        self._is_resting = True
        self._application.ended(self, how, self._offsets)
        self.look()

    def _fenced(self) -> None:
        """Somebody else has the transactional id now: stop."""
        if self.is_stopped:
            return
        self.is_stopped = True
        if self.transaction is not None:
            self.group.transaction_counts.fenced += 1
        for batch in self._unsent:
            self.group.lose(batch)
            if batch in self._tried:
                write_attempt(self.group, batch, "unknown", None, None)
        self._unsent.clear()
        self._tried.clear()
        self._steps.stop()
        self._application.stopped(self)

    def write_unsettled(self) -> None:
        """Write the attempts that are open at the end of the run."""
        self.group.transaction_counts.unsettled += self.transaction is not None and (
            not self.is_stopped
        )
        for batch in self._tried:
            write_attempt(self.group, batch, "unknown", None, None)

    # Standing still.

    def _stand_still(self, then: Callable[[], object]) -> None:
        self._still_after = None
        self.group.transaction_counts.zombies += 1
        self.is_still = True
        self._steps.later(partial(self._wake, then), self.group.zombie_ns())
        self._application.stands_still(self)

    def _wake(self, then: Callable[[], object]) -> None:
        self.is_still = False
        then()


def _read_until(messages: Iterable[Message]) -> dict[TopicPartition, int]:
    """Up to where is read what these records were made of."""
    until = {}
    for message in messages:
        if isinstance(message, TransformedMessage):
            place, offset = message.source
            until[place] = offset + 1
    return until
