"""Sends records to the topic in order, leaves out what is there, and stores how far it came."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from purgatory.changes.capture.errors import CaptureError
from purgatory.changes.capture.kafka_settings import Troubles
from purgatory.changes.capture.partitions import partition_of_key
from purgatory.changes.capture.position import Position
from purgatory.changes.capture.records import CapturedRecord, with_partition
from purgatory.changes.capture.resume import Checkpoint, Resumption
from purgatory.changes.capture.topics import positions_topic

_FLUSH_S = 300.0
_FLUSH_STEP_S = 0.5
_CHECKPOINT_EVERY_S = 1.0
_POLL_EVERY = 64


class Publisher:
    """Appends to the partitions of one topic, each in the order of the places.

    Args:
        producer: has sent nothing that isn't answered.
        troubles: what it hears of the cluster.
        found: what is there already, and is not sent again.
    """

    def __init__(
        self,
        producer: Producer,
        troubles: Troubles,
        topic: str,
        found: Resumption,
    ) -> None:
        self._producer = producer
        self._troubles = troubles
        self._topic = topic
        self._positions = positions_topic(topic)
        self.last_places = list(found.last_places)
        self._failure: str | None = None
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
            told = record._replace(value=with_partition(record.value, partition))
            self._send_to(partition, told)

    def _send_to(self, partition: int, record: CapturedRecord) -> None:
        last = self.last_places[partition]
        if last is not None and record.place <= last:
            return
        while True:
            self._check()
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    partition=partition,
                    on_delivery=self._delivered,
                )
                break
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                raise self._refused(error.args[0], record.key, len(record.value)) from None
        self.sent += 1
        if self.sent % _POLL_EVERY == 0:
            self._producer.poll(0)

    def poll(self) -> None:
        """Hear what became of what was sent.

        Raises:
            CaptureError: a record was refused.
        """
        self._producer.poll(0)
        self._check()

    def checkpoint_is_due(self, position: Position) -> bool:
        """Tell whether enough time passed since the last checkpoint, and it would be another."""
        late = time.monotonic() - self._stored_at_s >= _CHECKPOINT_EVERY_S
        return late and (position, False) != self._stored

    def store(self, position: Position, *, snapshot_open: bool = False) -> None:
        """Wait until all that was sent is acknowledged, then store how far that is.

        Raises:
            CaptureError: a record was refused, or there was no answer.
        """
        self.flush()
        if (position, snapshot_open) == self._stored:
            return
        checkpoint = Checkpoint(position, len(self.last_places), snapshot_open)
        self._producer.produce(
            self._positions,
            checkpoint.to_json(),
            self._topic.encode(),
            partition=0,
            on_delivery=self._delivered,
        )
        self.flush()
        self._stored = position, snapshot_open
        self._stored_at_s = time.monotonic()

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged.

        Raises:
            CaptureError: a record was refused, or there was no answer.
        """
        give_up_s = time.monotonic() + _FLUSH_S
        while left := self._producer.flush(_FLUSH_STEP_S):
            self._check()
            if time.monotonic() > give_up_s:
                raise CaptureError(f"{left} records got no answer in {_FLUSH_S:g} s")
        self._check()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            value = message.value()
            self._failure = str(
                self._refused(error, message.key(), 0 if value is None else len(value))
            )

    def _check(self) -> None:
        if self._failure is None and self._troubles.fatal is not None:
            self._failure = f"topic {self._topic} can't be written: {self._troubles.fatal}"
        if self._failure is not None:
            # What follows it must not be appended: it would have to come before.
            self._producer.purge()
            raise CaptureError(self._failure)

    def _refused(self, error: Any, key: Any, length: int) -> CaptureError:
        shown = bytes(key or b"").decode(errors="replace")[:200]
        advice = ""
        if isinstance(error, KafkaError) and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            advice = f"; raise max.message.bytes of topic {self._topic} and start again"
        return CaptureError(
            f"topic {self._topic} did not take the change of {shown} ({length} bytes): "
            f"{error}{advice}"
        )
