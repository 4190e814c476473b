"""Publishes records in order, leaves out what is there, and stores how far it came."""

from __future__ import annotations

import time

from confluent_kafka import Producer

from purgatory.changes.capture.capture_topics import positions_topic
from purgatory.changes.capture.captured_records import CapturedRecord, with_partition
from purgatory.changes.capture.partitions import partition_of_key
from purgatory.changes.capture.position import Position
from purgatory.changes.capture.resume import Checkpoint, Resumption
from purgatory.changes.capture.sending import Sender

_CHECKPOINT_EVERY_S = 1.0


class Publisher:
    """Appends to the partitions of one topic, each in the order of the places.

    Args:
        producer: takes the checkpoints.
        sender: takes the records; over the same producer, and running.
        topic: the sender's.
        found: what is there already, and is not sent again.
    """

    def __init__(self, producer: Producer, sender: Sender, topic: str, found: Resumption) -> None:
        self._producer = producer
        self._sender = sender
        self._positions = positions_topic(topic)
        self._topic = topic
        self.last_places = list(found.last_places)
        self._stored: tuple[Position, bool] | None = None
        if found.checkpoint is not None:
            self._stored = found.checkpoint.position, found.checkpoint.snapshot_open
        self._stored_at_s = float("-inf")
        self.sent = 0
        """How many records were sent, not counting those that were there."""

    def send(self, record: CapturedRecord) -> None:
        """Send one, into all partitions if it has no key.

        Raises:
            CaptureError: this or an earlier one was refused.
        """
        if record.key is not None:
            self._send_to(partition_of_key(record.key, len(self.last_places)), record)
            return
        for partition in range(len(self.last_places)):
            value = with_partition(record.value, partition, len(self.last_places))
            told = record._replace(value=value)
            self._send_to(partition, told)

    def _send_to(self, partition: int, record: CapturedRecord) -> None:
        last = self.last_places[partition]
        if last is not None and record.place <= last:
            return
        self._sender.send(partition, record.key, record.value)
        self.sent += 1

    def poll(self) -> None:
        """Hear what became of what was sent.

        Raises:
            CaptureError: a record was refused.
        """
        self._sender.poll()

    def checkpoint_is_due(self, position: Position) -> bool:
        """Tell whether enough time passed since the last checkpoint, and it would be another."""
        late = time.monotonic() - self._stored_at_s >= _CHECKPOINT_EVERY_S
        return late and (position, False) != self._stored

    def store(self, position: Position, *, snapshot_open: bool = False) -> None:
        """Wait until all that was sent is acknowledged, then store how far that is.

        Raises:
            CaptureError: a record was refused, or there was no answer.
        """
        self._sender.flush()
        if (position, snapshot_open) == self._stored:
            return
        checkpoint = Checkpoint(position, len(self.last_places), snapshot_open)
        self._producer.produce(
            self._positions,
            checkpoint.to_json(),
            self._topic.encode(),
            partition=0,
            on_delivery=self._sender.delivered,
        )
        self._sender.flush()
        self._stored = position, snapshot_open
        self._stored_at_s = time.monotonic()
