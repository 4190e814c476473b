"""Messages, the batches and transactions they travel in, and the queues that they come from.

A message is one object for its whole life, however often it is sent and wherever it is stored: its
batches are the tags of the record batches in the brokers' logs. So the simulation knows of each
record in a log which message it is, and whether there was a copy of it before.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from purgatory.kafka import EndTransaction, ProducerIdentity, RecordBatch, TopicPartition
from purgatory.kafka.log.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE


@dataclass
class GroupCounts:
    """What became of one producer group's records.

    `acknowledged`: a response said that they are stored. `unanswered`: sent with acks=0.
    `failed`: given up, of which `unknown` may be stored all the same. `requests` counts the
    produce requests sent, and `retries` the batches that were sent again.
    """

    records: int = 0
    requests: int = 0
    retries: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    failed: int = 0
    unknown: int = 0
    unsettled: int = 0
    committed: int = 0
    duplicates: int = 0
    reorderings: int = 0
    lost: int = 0


class GroupLedgers(NamedTuple):
    """A group's name, the acknowledgements that it asks for (-1: all), and its counts."""

    name: str
    acks: int
    counts: GroupCounts


VALUE_ID_BITS = 40
"""A value id is the producer's number and, in the lower bits, the message's own number."""

FOREVER_NS = 2**62
"""A time that never comes."""


@dataclass(slots=True, eq=False)
class Message:
    """One record that a producer has to deliver. Its value id is unique in the run."""

    queue: PartitionQueue
    sequence: int
    key: int
    size_bytes: int
    created_ns: int
    acked: bool = False
    copies: int = 0

    @property
    def value_id(self) -> int:
        """What stands for the message's content: no other message of the run has the same."""
        return (self.queue.producer_number << VALUE_ID_BITS) | self.sequence


class Batch:
    """Messages of one producer for one partition that are sent, and sent again, together."""

    __slots__ = (
        "attempt",
        "base_sequence",
        "epoch",
        "messages",
        "queue",
        "sent_ns",
        "sent_unsure",
        "size_bytes",
    )

    def __init__(self, queue: PartitionQueue, messages: list[Message], size_bytes: int) -> None:
        self.queue = queue
        self.messages = messages
        self.size_bytes = size_bytes
        self.attempt = 0
        self.sent_ns = 0
        self.sent_unsure = False
        self.epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE

    def number(self, producer_epoch: int, base_sequence: int) -> None:
        """Give the batch the sequence numbers of an idempotent producer."""
        self.epoch = producer_epoch
        self.base_sequence = base_sequence

    def record_batch(self) -> RecordBatch:
        """What is sent. Made again each time: held here, the two would keep each other alive."""
        messages = self.messages
        if self.base_sequence < 0:
            return RecordBatch(0, len(messages), self.size_bytes, tag=self)
        producer_id = self.queue.producer_number
        return RecordBatch(
            0,
            len(messages),
            self.size_bytes,
            producer_id=producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.base_sequence,
            tag=self,
        )


class PartitionQueue:
    """What one producer has for one partition: what waits, is in flight, or is to be repeated.

    It is data with hardly a rule of its own: `producer` says what is done with it.
    """

    __slots__ = (
        "attempted",
        "books",
        "epoch",
        "failed",
        "highest_committed",
        "in_flight",
        "looking",
        "must_renumber",
        "next_sequence",
        "not_before_ns",
        "partition",
        "producer_number",
        "topic_partition",
        "unclean",
        "waiting",
        "waking_ns",
    )

    def __init__(
        self, producer_number: int, books: GroupLedgers, topic_partition: TopicPartition
    ) -> None:
        self.producer_number = producer_number
        self.books = books
        self.topic_partition = topic_partition
        self.partition = topic_partition.partition
        self.waiting: deque[Message] = deque()
        self.failed: deque[Batch] = deque()
        self.attempted: dict[Batch, None] = {}
        """Batches in flight, oldest first."""
        self.in_flight = 0
        self.not_before_ns = 0
        self.waking_ns = FOREVER_NS
        self.next_sequence = 0
        self.epoch = 0
        self.must_renumber = False
        self.looking = False
        self.highest_committed = -1
        self.unclean = False

    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self.waiting and not self.failed


@dataclass(slots=True, eq=False)
class SentTransaction:
    """One transaction, as its producer and the logs have it.

    ``asked`` is how the producer asked for it to be ended, ``told`` how it was told that it is;
    ``how`` is what the first of its markers says that is committed, and ``marked`` counts its
    batches below such markers.
    """

    transactional_id: str
    producer: ProducerIdentity
    begun_ns: int
    partitions: set[TopicPartition] = field(default_factory=set)
    batches: int = 0
    marked: int = 0
    asked: EndTransaction | None = None
    told: EndTransaction | None = None
    how: EndTransaction | None = None

    def __repr__(self) -> str:
        return f"the transaction of {self.transactional_id!r} that began at {self.begun_ns} ns"


class TransactionalBatch(Batch):
    """A batch that belongs to a transaction; ``how`` is what its partition's marker says of it."""

    __slots__ = ("how", "transaction")

    def __init__(
        self, queue: PartitionQueue, messages: list[Message], transaction: SentTransaction
    ) -> None:
        super().__init__(queue, messages, sum(message.size_bytes for message in messages))
        self.transaction = transaction
        self.how: EndTransaction | None = None
        transaction.batches += 1

    def record_batch(self) -> RecordBatch:
        producer_id, producer_epoch = self.transaction.producer
        return RecordBatch(
            0,
            len(self.messages),
            self.size_bytes,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self.base_sequence,
            tag=self,
            transactional=True,
        )


class TransformedMessage(Message):
    """A record that was made from another one, which was read at ``source``."""

    __slots__ = ("source",)

    def __init__(
        self,
        queue: PartitionQueue,
        sequence: int,
        read: Message,
        created_ns: int,
        source: tuple[TopicPartition, int],
    ) -> None:
        super().__init__(queue, sequence, read.key, read.size_bytes, created_ns)
        self.source = source


@dataclass
class TransactionCounts:
    """What became of the transactions of one group of producers.

    `stale` counts those whose offsets were refused because the group had gone on without their
    consumer, `fenced` those whose producer was fenced, `failed` those that it gave up otherwise,
    `unsettled` those open at the end. `zombies` counts how often a producer stood still, and
    `instances` how many there were in all.
    """

    begun: int = 0
    committed: int = 0
    aborted: int = 0
    stale: int = 0
    fenced: int = 0
    failed: int = 0
    unsettled: int = 0
    zombies: int = 0
    instances: int = 0
