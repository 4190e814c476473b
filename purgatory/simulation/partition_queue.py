"""What one producer has for one partition: records that wait, batches in flight or to be repeated.

It is data with hardly a rule of its own: `producer` says what is done with it.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from purgatory.kafka import TopicPartition
from purgatory.simulation.messages import Batch, Message

if TYPE_CHECKING:
    from purgatory.simulation.producer import Producer

FOREVER_NS = 2**62
"""A time that never comes."""


class PartitionQueue:
    """What one producer has for one partition."""

    __slots__ = (
        "attempted",
        "epoch",
        "failed",
        "highest_committed",
        "in_flight",
        "looking",
        "must_renumber",
        "next_sequence",
        "not_before_ns",
        "partition",
        "producer",
        "topic_partition",
        "unclean",
        "waiting",
        "waking_ns",
    )

    def __init__(self, producer: Producer, topic_partition: TopicPartition) -> None:
        self.producer = producer
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
