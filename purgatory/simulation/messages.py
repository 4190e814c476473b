"""What producers send: messages, and the batches they travel in.

A message is one object for its whole life, however often it is sent and wherever it is stored: its
batches are the tags of the record batches in the brokers' logs. So the simulation can tell of each
record in a log which message it is, and whether there was a copy of it before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.kafka import RecordBatch

if TYPE_CHECKING:
    from purgatory.simulation.producer import PartitionQueue

VALUE_ID_BITS = 40
"""A value id is the producer's number and, in the lower bits, the message's own number."""


class Message:
    """One record that a producer has to deliver. Its value id is unique in the run."""

    __slots__ = ("acked", "copies", "created_ns", "key", "queue", "sequence", "size_bytes")

    def __init__(
        self, queue: PartitionQueue, sequence: int, key: int, size_bytes: int, created_ns: int
    ) -> None:
        self.queue = queue
        self.sequence = sequence
        self.key = key
        self.size_bytes = size_bytes
        self.created_ns = created_ns
        self.acked = False
        self.copies = 0

    @property
    def value_id(self) -> int:
        """What stands for the message's content: no other message of the run has the same."""
        return (self.queue.producer.number << VALUE_ID_BITS) | self.sequence


class Batch:
    """Messages of one producer for one partition that are sent, and sent again, together."""

    __slots__ = ("attempt", "messages", "queue", "record_batch", "sent_ns", "sent_unsure")

    def __init__(self, queue: PartitionQueue, messages: list[Message]) -> None:
        self.queue = queue
        self.messages = messages
        self.attempt = 0
        self.sent_ns = 0
        self.sent_unsure = False
        self.record_batch = RecordBatch(
            0, len(messages), sum([message.size_bytes for message in messages]), tag=self
        )

    def number(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Give the batch the sequence numbers of an idempotent producer."""
        old = self.record_batch
        self.record_batch = RecordBatch(
            0,
            old.record_count,
            old.size_bytes,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            tag=self,
        )
