"""A transactional producer: its records, its successive sessions, and the group it reads from.

Its records arrive at a rate, or are transformed from a consumer's. In that case the consumer's
offsets are committed with its transactions: after an abort, and where another session takes over,
the consumer reads again from the end of the last committed transaction.

A consumer in a group (`TransformingMember`, KIP-447) commits nothing itself: its offsets go with
the transactions, together with the group's generation. The commit of a member that was removed
meanwhile fails. Before it revokes its partitions, the transaction ends. The next owner fetches the
committed offsets, and gets them once no transaction can change them.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from purgatory.kafka import ErrorCode, RecordBatch, TopicPartition, TransactionResult
from purgatory.simulation.consumer import Consumer
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.group_member import MEMBERSHIP_LOST, GroupMember, MemberState
from purgatory.simulation.messages import Batch, Message, PartitionQueue, TransformedMessage
from purgatory.simulation.producer_group import TransactionalGroup
from purgatory.simulation.producer_session import ProducerSession
from purgatory.simulation.transactional_requests import ConsumerGroupMetadata


class TransformingProducer(Protocol):
    """The producer that transforms a member's records."""

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""

    def start(self) -> None:
        """Start its first session."""

    def on_read(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        """The consumer has read these batches from a position on."""

    def discard_unsent(self) -> None:
        """Discard messages that were read but not sent, and end the transaction."""

    def finish_then(self, function: Callable[[], object]) -> None:
        """Do so, then call this function once no transaction is open."""


class TransformingMember(GroupMember):
    """The membership of a consumer whose records a producer transforms.

    Args:
        peers: all consumers of the group.
    """

    def __init__(
        self, consumer: Consumer, producer: TransformingProducer, peers: Sequence[Consumer]
    ) -> None:
        super().__init__(consumer)
        self._producer = producer
        self._peers = peers

    @property
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Its current membership."""
        return ConsumerGroupMetadata(self.generation, self.member_id, self.join_request.instance_id)

    @property
    def is_caught_up(self) -> bool:
        """Whether a consumer of the group is at the highest offset read of each partition."""
        return all(
            any(peer.positions.get(topic_partition, 0) >= until for peer in self._peers)
            for topic_partition, until in self.group.read_offsets.items()
        )

    def rewind(self) -> None:
        """Go back to the committed offsets."""
        if self.state is MemberState.MEMBER:
            self.consumer.assign({})
            self._fetch_offsets(list(self._committed))

    def start(self) -> None:
        if not self._incarnation:
            self._producer.start()
        super().start()

    def on_read(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        self._producer.on_read(topic_partition, position, batches)

    # Differences from a consumer that commits.

    @property
    def _is_paused(self) -> bool:
        return self._producer.is_paused

    def _handle_offsets(
        self,
        partitions: Sequence[TopicPartition],
        acknowledged: Mapping[TopicPartition, int],
        offsets: Mapping[TopicPartition, int] | ErrorCode | None,
    ) -> None:
        if self.state is not MemberState.REVOKING:  # a fetch of `rewind` may be late
            super()._handle_offsets(partitions, acknowledged, offsets)

    def _auto_commit(self, join_count: int) -> None:
        """Its producer commits."""

    def _revoke_and_commit(self, function: Callable[[], object]) -> None:
        self.state = MemberState.REVOKING
        self.consumer.assign({})
        join_count = self._join_count

        def on_end() -> None:
            if join_count == self._join_count:
                function()

        self._producer.finish_then(on_end)

    def _handle_error(self, error: ErrorCode) -> None:
        if error in MEMBERSHIP_LOST:
            self._producer.discard_unsent()
        super()._handle_error(error)

    def _leave(self) -> None:
        super()._leave()
        self._producer.discard_unsent()


class _ReadMessage(NamedTuple):
    """A message read, where and when."""

    message: Message
    source: tuple[TopicPartition, int]
    time_ns: int


class TransactionalProducer:
    """One transactional id.

    Args:
        number: its number in the run.
        index: its number in the group.
        consumer: its input; None: its records arrive.
    """

    def __init__(
        self, group: TransactionalGroup, number: int, index: int, consumer: Consumer | None
    ) -> None:
        self.group = group
        self.number = number
        self.transactional_id = f"{group.name}-{index}"
        self._consumer = consumer
        self._member: TransformingMember | None = None
        self._on_end: Callable[[], object] | None = None
        """Called when no transaction is open."""
        self._queues: dict[int, PartitionQueue] = {}
        self._waiting: deque[Message | _ReadMessage] = deque()
        self._next_message = 0
        self._next_sequence = 0
        self._committed: dict[TopicPartition, int] = {}
        self._current_session: ProducerSession
        self._sessions: dict[ProducerSession, None] = {}

    def start(self) -> None:
        """Start a session."""
        self._current_session = session = ProducerSession(self)
        self._sessions[session] = None
        session.start()

    @property
    def is_idle(self) -> bool:
        """Whether no message waits, and no session is in a transaction. O(partitions)."""
        if self._waiting or not all(session.is_idle for session in self._sessions):
            return False
        if self._consumer is None:
            return True
        if self._member is not None:
            return self._member.is_caught_up
        read_until = self._consumer.group.read_offsets
        return all(
            position >= read_until.get(topic_partition, 0)
            for topic_partition, position in self._consumer.positions.items()
        )

    def add_message(self, size_bytes: int) -> None:
        """Enqueue a new record, and send it if possible."""
        group = self.group
        sequence, key = self._next_number(), group.next_key()
        queue = self._queue(group.partition_of(key, sequence, self.number))
        message = Message(queue, sequence, key, size_bytes, group.engine.now_ns())
        group.counts.records += 1
        self._waiting.append(message)
        self._current_session.send_if_ready()

    def _next_number(self) -> int:
        self._next_message += 1
        return self._next_message - 1

    def _queue(self, partition: int) -> PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            topic_partition = self.group.topic_partitions[partition]
            queue = self._queues[partition] = PartitionQueue(
                self.number, self.group.totals, topic_partition
            )
        return queue

    def record_open_attempts(self) -> None:
        """Write the attempts that are open at the end of the run."""
        for session in self._sessions:
            session.record_open_attempts()

    # Events of the consumer.

    def on_work(self, work_ns: int) -> None:
        """The consumer is processing; its records are sent meanwhile."""

    def on_poll(self) -> None:
        """The consumer has processed its records and polls again."""

    def on_read(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        """The consumer has read batches: enqueue a record for each of theirs."""
        now_ns = self.group.engine.now_ns()
        for record_batch in batches:
            if not isinstance(record_batch.tag, Batch):
                continue
            for offset, read in enumerate(record_batch.tag.messages, record_batch.base_offset):
                if offset < position:
                    continue
                self._waiting.append(_ReadMessage(read, (topic_partition, offset), now_ns))
        self._current_session.send_if_ready()

    def _transform(self, read: _ReadMessage) -> TransformedMessage:
        """Transform a message only when it is sent, for it may be read again."""
        sequence = self._next_number()
        partition = self.group.partition_of(read.message.key, sequence, self.number)
        self.group.counts.records += 1
        return TransformedMessage(
            self._queue(partition), sequence, read.message, read.time_ns, read.source
        )

    # Requests of the member.

    def set_member(self, member: TransformingMember) -> None:
        """Set the consumer's membership in a group."""
        self._member = member

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        return self._current_session.is_paused

    def discard_unsent(self) -> None:
        """Discard messages that were read but not sent, and end the transaction."""
        self._waiting.clear()
        self._current_session.request_finish()

    def finish_then(self, function: Callable[[], object]) -> None:
        """Do so, then call this function once no transaction is open."""
        self._on_end = function
        self.discard_unsent()
        self._notify_end()

    def _notify_end(self) -> None:
        function, current = self._on_end, self._current_session
        if function is not None and (current.is_stopped or current.transaction is None):
            self._on_end = None
            function()

    # Calls of its sessions.

    @property
    def group_metadata(self) -> ConsumerGroupMetadata | None:
        """As `Application`."""
        return None if self._member is None else self._member.group_metadata

    def next_messages(self, session: ProducerSession) -> Sequence[Message]:
        """As `Application`. Messages of another generation aren't part of the transaction."""
        if session is not self._current_session:
            return ()
        if session.transaction is not None and session.group_metadata != self.group_metadata:
            return ()
        count = min(len(self._waiting), self.group.batch_size)
        waiting = [self._waiting.popleft() for _ in range(count)]
        return [
            self._transform(message) if isinstance(message, _ReadMessage) else message
            for message in waiting
        ]

    def assign_numbers(self, messages: Iterable[Message]) -> None:
        """See `Application`: unsent messages of a fenced session have no sequence number."""
        for message in messages:
            message.sequence = self._next_sequence
            self._next_sequence += 1

    def on_begin(self, session: ProducerSession, offsets: Mapping[TopicPartition, int]) -> None:
        """As `Application`."""
        if session is self._current_session and self._consumer is not None:
            if self._member is None:
                partitions = self._consumer.static_partitions()
                self._committed = {
                    topic_partition: offsets.get(topic_partition, 0)
                    for topic_partition in partitions
                }
            self._rewind()
            self._notify_end()

    def on_end(
        self,
        session: ProducerSession,
        result: TransactionResult,
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """As `Application`."""
        if session is not self._current_session or self._consumer is None:
            return
        self._notify_end()
        if result is TransactionResult.COMMIT:
            self._committed.update(offsets)
        else:
            self._rewind()

    def _rewind(self) -> None:
        assert self._consumer is not None, "it reads"
        self._waiting.clear()
        if self._member is not None:
            self._member.rewind()
        else:
            self._consumer.assign(self._committed)

    def handle_fenced(self, session: ProducerSession) -> None:
        """As `Application`: another session replaces it, if none has."""
        del self._sessions[session]
        if session is self._current_session:
            self._notify_end()
            self.group.engine.call_after(self.group.backoff_ns, self._start_successor, session)

    def on_pause(self, session: ProducerSession) -> None:
        """As `Application`."""
        after_ms = self.group.settings.successor_ms
        if after_ms is not None:
            self.group.engine.call_after(after_ms * NS_PER_MS, self._start_successor, session)

    def _start_successor(self, session: ProducerSession) -> None:
        if session is self._current_session and (session.is_stopped or session.is_paused):
            self.start()
