"""Messages, the batches they travel in, and the queues that they come from.

A message is one object for its whole life, however often it is sent and wherever it is stored: its
batches are the tags of the record batches in the brokers' logs. The simulation thus knows which
message each record in a log is, and whether it is a duplicate.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from purgatory.kafka import RecordBatch, TopicPartition
from purgatory.kafka.log.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE


@dataclass
class GroupCounts:
    """Counts of one producer group's records by their outcome.

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


class GroupTotals(NamedTuple):
    """A group's name, its `acks` (-1: all), and its counts."""

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
        """The message's content, unique in the run."""
        return (self.queue.producer_number << VALUE_ID_BITS) | self.sequence


class Batch:
    """Messages of one producer for one partition, sent and retried together."""

    __slots__ = (
        "attempt",
        "base_sequence",
        "epoch",
        "is_maybe_stored",
        "messages",
        "queue",
        "sent_ns",
        "size_bytes",
    )

    def __init__(self, queue: PartitionQueue, messages: list[Message], size_bytes: int) -> None:
        self.queue = queue
        self.messages = messages
        self.size_bytes = size_bytes
        self.attempt = 0
        self.sent_ns = 0
        self.is_maybe_stored = False
        self.epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE

    def assign_sequence(self, producer_epoch: int, base_sequence: int) -> None:
        """Set the epoch and sequence number of an idempotent producer."""
        self.epoch = producer_epoch
        self.base_sequence = base_sequence

    def record_batch(self) -> RecordBatch:
        """A new record batch with these messages; to keep it would make a reference cycle."""
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
    """One producer's batches for one partition: waiting, in flight, or to be retried.

    This is plain data; `Producer` has the rules.
    """

    __slots__ = (
        "batches_in_flight",
        "epoch",
        "failed",
        "highest_committed",
        "in_flight",
        "must_bump_epoch",
        "next_sequence",
        "not_before_ns",
        "partition",
        "producer_number",
        "refreshes_leader",
        "topic_partition",
        "totals",
        "unclean",
        "waiting",
        "wake_ns",
    )

    def __init__(
        self, producer_number: int, totals: GroupTotals, topic_partition: TopicPartition
    ) -> None:
        self.producer_number = producer_number
        self.totals = totals
        self.topic_partition = topic_partition
        self.partition = topic_partition.partition
        self.waiting: deque[Message] = deque()
        self.failed: deque[Batch] = deque()
        self.batches_in_flight: dict[Batch, None] = {}
        """Batches in flight, oldest first."""
        self.in_flight = 0
        self.not_before_ns = 0
        self.wake_ns = FOREVER_NS
        self.next_sequence = 0
        self.epoch = 0
        self.must_bump_epoch = False
        self.refreshes_leader = False
        self.highest_committed = -1
        self.unclean = False

    def is_empty(self) -> bool:
        """Whether no message or batch waits."""
        return not self.waiting and not self.failed
