"""A transactional producer: its records, its sessions in turn, and the group it reads from.

Its records arrive at a rate, or are made of what a consumer reads. In that case the consumer's
offsets are committed with its transactions: after an abort, and where another session takes over,
the consumer reads again from the end of the last committed transaction.

A consumer in a group (`TransformingMember`, KIP-447) commits nothing itself: its offsets go with
the transactions, which say of which generation of the group it read. A member that was removed
meanwhile is refused. Before it gives its partitions back, what it read is sent and the transaction
ended. The next owner asks for the committed offsets, and gets them once no transaction can change
them.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from purgatory.kafka import EndTransaction, ErrorCode, RecordBatch, TopicPartition
from purgatory.simulation.consumer import Consumer
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.group_member import OUT, GroupMember, MemberState
from purgatory.simulation.messages import Batch, Message, PartitionQueue, TransformedMessage
from purgatory.simulation.producer_group import TransactionalGroup
from purgatory.simulation.producer_session import ProducerSession
from purgatory.simulation.transactional_requests import ReadAs


class Transforming(Protocol):
    """The producer that sends on what the member reads."""

    @property
    def is_still(self) -> bool:
        """Whether it does nothing for a while."""

    def start(self) -> None:
        """Begin."""

    def was_given(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        """The consumer has read this."""

    def forget_read(self) -> None:
        """Others may read again what was read and isn't sent: drop it, and end the transaction."""

    def when_ended(self, then: Callable[[], object]) -> None:
        """Likewise, and call this once no transaction is open."""


class TransformingMember(GroupMember):
    """One consumer's part in its group, and the producer's in what it reads.

    Args:
        consumer: fetches what it is given.
        producer: sends it on.
        peers: all consumers of the group.
    """

    def __init__(
        self, consumer: Consumer, producer: Transforming, peers: Sequence[Consumer]
    ) -> None:
        super().__init__(consumer)
        self._producer = producer
        self._peers = peers

    @property
    def read_as(self) -> ReadAs:
        """As what it reads now."""
        return ReadAs(self.generation, self.member_id, self.joining.instance_id)

    @property
    def has_all(self) -> bool:
        """Whether somebody has what the group has read of each partition, up to its end."""
        return all(
            any(peer.positions.get(place, 0) >= until for peer in self._peers)
            for place, until in self.group.read_until.items()
        )

    def read_again(self) -> None:
        """Go back to what is committed."""
        if self.state is MemberState.MEMBER:
            self.consumer.assign({})
            self._fetch_offsets(list(self._committed))

    def start(self) -> None:
        if not self._life:
            self._producer.start()
        super().start()

    def was_given(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        self._producer.was_given(topic_partition, position, batches)

    # What is otherwise than where the consumer commits.

    @property
    def _stands_still(self) -> bool:
        return self._producer.is_still

    def _take_up(
        self,
        mine: Sequence[TopicPartition],
        acknowledged: Mapping[TopicPartition, int],
        answer: Mapping[TopicPartition, int] | ErrorCode | None,
    ) -> None:
        if self.state is not MemberState.GIVING_BACK:  # it may have asked before, to read again
            super()._take_up(mine, acknowledged, answer)

    def _commit_sometimes(self, turn: int) -> None:
        """Its producer commits."""

    def _commit_and(self, then: Callable[[], object]) -> None:
        self.state = MemberState.GIVING_BACK
        self.consumer.assign({})
        turn = self._turn

        def ended() -> None:
            if turn == self._turn:
                then()

        self._producer.when_ended(ended)

    def _refused(self, error: ErrorCode) -> None:
        if error in OUT:
            self._producer.forget_read()
        super()._refused(error)

    def _leave(self) -> None:
        super()._leave()
        self._producer.forget_read()


class _Read(NamedTuple):
    """What was read, where and when."""

    message: Message
    source: tuple[TopicPartition, int]
    time_ns: int


class TransactionalProducer:
    """One transactional id.

    Args:
        group: its group.
        number: its number in the run.
        index: its number in the group.
        consumer: what it reads from; None: its records arrive.
    """

    def __init__(
        self, group: TransactionalGroup, number: int, index: int, consumer: Consumer | None
    ) -> None:
        self.group = group
        self.number = number
        self.transactional_id = f"{group.name}-{index}"
        self._consumer = consumer
        self._member: TransformingMember | None = None
        self._then: Callable[[], object] | None = None
        """What is to be done when no transaction is open."""
        self._queues: dict[int, PartitionQueue] = {}
        self._waiting: deque[Message | _Read] = deque()
        self._next_message = 0
        self._next_sequence = 0
        self._committed: dict[TopicPartition, int] = {}
        self._current: ProducerSession
        self._instances: dict[ProducerSession, None] = {}

    def start(self) -> None:
        """Begin with a first instance."""
        self._current = instance = ProducerSession(self)
        self._instances[instance] = None
        instance.start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and no instance is in a transaction. O(partitions)."""
        if self._waiting or not all(instance.is_idle for instance in self._instances):
            return False
        if self._consumer is None:
            return True
        if self._member is not None:
            return self._member.has_all
        read_until = self._consumer.group.read_until
        return all(
            position >= read_until.get(place, 0)
            for place, position in self._consumer.positions.items()
        )

    def arrive(self, size_bytes: int) -> None:
        """A record arrives that has to be delivered."""
        group = self.group
        sequence, key = self._next_number(), group.next_key()
        queue = self._queue(group.partition_of(key, sequence, self.number))
        message = Message(queue, sequence, key, size_bytes, group.engine.now_ns())
        group.counts.records += 1
        self._waiting.append(message)
        self._current.look()

    def _next_number(self) -> int:
        self._next_message += 1
        return self._next_message - 1

    def _queue(self, partition: int) -> PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            place = self.group.topic_partitions[partition]
            queue = self._queues[partition] = PartitionQueue(self.number, self.group.books, place)
        return queue

    def write_unsettled(self) -> None:
        """Write the attempts that are open at the end of the run."""
        for instance in self._instances:
            instance.write_unsettled()

    # What the consumer tells.

    def works_for(self, work_ns: int) -> None:
        """The consumer is busy: what it has read is sent meanwhile."""

    def came_to_poll(self) -> None:
        """The consumer is through with its work."""

    def was_given(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        """The consumer has read something: make a record of each that is there."""
        now_ns = self.group.engine.now_ns()
        for record_batch in batches:
            if not isinstance(record_batch.tag, Batch):
                continue
            for offset, read in enumerate(record_batch.tag.messages, record_batch.base_offset):
                if offset < position:
                    continue
                self._waiting.append(_Read(read, (topic_partition, offset), now_ns))
        self._current.look()

    def _transformed(self, read: _Read) -> TransformedMessage:
        """Make a record of what was read: not before it is sent, for it may be read again."""
        sequence = self._next_number()
        partition = self.group.partition_of(read.message.key, sequence, self.number)
        self.group.counts.records += 1
        return TransformedMessage(
            self._queue(partition), sequence, read.message, read.time_ns, read.source
        )

    # What a member of a group asks.

    def reads_in_group(self, member: TransformingMember) -> None:
        """The consumer belongs to a group, as this member."""
        self._member = member

    @property
    def is_still(self) -> bool:
        """Whether it does nothing for a while."""
        return self._current.is_still

    def forget_read(self) -> None:
        """Drop what was read and isn't sent, and end the transaction."""
        self._waiting.clear()
        self._current.finish_soon()

    def when_ended(self, then: Callable[[], object]) -> None:
        """Likewise, and call this once no transaction is open."""
        self._then = then
        self.forget_read()
        self._tell_ended()

    def _tell_ended(self) -> None:
        then, current = self._then, self._current
        if then is not None and (current.is_stopped or current.transaction is None):
            self._then = None
            then()

    # What its instances ask and tell.

    @property
    def read_as(self) -> ReadAs | None:
        """As `Application` says."""
        return None if self._member is None else self._member.read_as

    def take(self, instance: ProducerSession) -> Sequence[Message]:
        """As `Application` says. What was read in another generation isn't of the transaction."""
        if instance is not self._current:
            return ()
        if instance.transaction is not None and instance.read_as != self.read_as:
            return ()
        count = min(len(self._waiting), self.group.batch_size)
        taken = [self._waiting.popleft() for _ in range(count)]
        return [self._transformed(one) if isinstance(one, _Read) else one for one in taken]

    def give_numbers(self, messages: Iterable[Message]) -> None:
        """As `Application` says: what a fenced instance never sent has none."""
        for message in messages:
            message.sequence = self._next_sequence
            self._next_sequence += 1

    def begun_anew(self, instance: ProducerSession, offsets: Mapping[TopicPartition, int]) -> None:
        """As `Application` says."""
        if instance is self._current and self._consumer is not None:
            if self._member is None:
                mine = self._consumer.own_partitions()
                self._committed = {place: offsets.get(place, 0) for place in mine}
            self._read_again()
            self._tell_ended()

    def ended(
        self, instance: ProducerSession, how: EndTransaction, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """As `Application` says."""
        if instance is not self._current or self._consumer is None:
            return
        self._tell_ended()
        if how is EndTransaction.COMMIT:
            self._committed.update(offsets)
        else:
            self._read_again()

    def _read_again(self) -> None:
        assert self._consumer is not None, "it reads"
        self._waiting.clear()
        if self._member is not None:
            self._member.read_again()
        else:
            self._consumer.assign(self._committed)

    def stopped(self, instance: ProducerSession) -> None:
        """As `Application` says: another instance takes its place, if none has."""
        del self._instances[instance]
        if instance is self._current:
            self._tell_ended()
            self.group.engine.after(self.group.backoff_ns, self._succeed, instance)

    def stands_still(self, instance: ProducerSession) -> None:
        """As `Application` says."""
        after_ms = self.group.settings.successor_ms
        if after_ms is not None:
            self.group.engine.after(after_ms * NS_PER_MS, self._succeed, instance)

    def _succeed(self, instance: ProducerSession) -> None:
        if instance is self._current and (instance.is_stopped or instance.is_still):
            self.start()
