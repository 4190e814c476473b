"""Sends records in chunks, each with at most one batch per partition, and stores the position.

A producer with several batches of a partition in flight loses idempotence when one of them fails:
the later ones are out of sequence, and librdkafka then resets the sequences of all partitions. A
batch of another partition whose response was lost is retried under a new sequence number, and no
broker detects the duplicate. So a chunk is only handed over after the previous one is acknowledged.

Ground rules
------------
* librdkafka batches what is queued: nothing may be sent before the chunk is complete, so
  `linger.ms` is minutes, and only `flush` sends.
* Records are queued here while a chunk is in flight; the longer it takes, the larger is the next.
* Records behind a rejected one are not sent.
* `Sender`'s queue is shared by the caller and the sender's thread, under `_changed`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from purgatory.cdc.capture.errors import (
    CaptureError,
    CaptureFaultError,
    ChangeRefusedError,
    cluster_error,
)
from purgatory.cdc.capture.kafka import Checkpoint, ClientErrors, RecoveredPosition, positions_topic
from purgatory.cdc.capture.records import CapturedRecord, Position, partition_of_key, with_partition

_ANSWER_S = 300.0
_STEP_S = 0.5
_MOST_WAITING_BYTES = 8 * 2**20
_OVERHEAD_BYTES = 64
"""More than a record takes in a batch beside its key and value."""

_PARTITION_BYTES = 700_000
_PARTITION_RECORDS = 100_000
_BATCH_HEAD_BYTES = 4_096
"""More than a request and a batch have beside their records."""


class ChunkLimits(NamedTuple):
    """How much of a partition fits into one batch; one record does in any case."""

    partition_bytes: int
    partition_records: int
    records: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], largest_bytes: int) -> ChunkLimits:
        """Return those of a producer.

        Args:
            settings: has all that count, its own or the user's.
            largest_bytes: of a batch that the topic takes.
        """
        batch_bytes = min(
            largest_bytes, int(settings["batch.size"]), int(settings["message.max.bytes"])
        )
        return cls(
            min(_PARTITION_BYTES, batch_bytes - _BATCH_HEAD_BYTES),
            min(_PARTITION_RECORDS, int(settings["batch.num.messages"])),
            # 0 is librdkafka's word for no limit.
            int(settings["queue.buffering.max.messages"]) or sys.maxsize,
        )


class _Record(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes

    @property
    def size(self) -> int:
        return len(self.value) + len(self.key or b"") + _OVERHEAD_BYTES


class Sender:
    """Appends records to one topic, each partition's in the order in which they come.

    Use it as a context manager: a thread of its own hands them to the producer. If the block ends
    with an exception, what waits is not sent any more.

    Args:
        producer: has sent nothing that isn't answered.
        client_errors: what it hears of the cluster.
        limits: of a chunk; None: records are handed over as they come, several batches under way.
    """

    def __init__(
        self,
        producer: Producer,
        client_errors: ClientErrors,
        topic: str,
        limits: ChunkLimits | None,
    ) -> None:
        self._producer = producer
        self._troubles = client_errors
        self._topic = topic
        self._limits = limits
        self._waiting: deque[_Record] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._busy = False
        self._ended = False
        self._failure: CaptureError | None = None
        self._thread = threading.Thread(target=self._run, name="capture-sender", daemon=True)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()
        # Records that still wait must not be appended behind the back of the next capture.
        self._producer.purge()
        self._thread.join()

    def send(self, partition: int, key: bytes | None, value: bytes) -> None:
        """Send a record; wait if many do already.

        Raises:
            CaptureError: an earlier one was refused.
        """
        record = _Record(partition, key, value)
        with self._changed:
            while self._waiting_bytes > _MOST_WAITING_BYTES and not self._failed:
                self._changed.wait(_STEP_S)
            self._waiting.append(record)
            self._waiting_bytes += record.size
            if not self._busy:
                self._changed.notify_all()
        if self._failed:
            self.check()

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged.

        Raises:
            CaptureError: a record was refused, or there was no answer.
        """
        with self._changed:
            while (self._waiting or self._busy) and not self._failed:
                self._changed.wait(_STEP_S)
        self._await_answers()
        self.check()

    def poll(self) -> None:
        """Hear what became of what was sent.

        Raises:
            CaptureError: a record was refused.
        """
        self._producer.poll(0)
        self.check()

    def check(self) -> None:
        """Raise `CaptureError` if a record was refused, or the client can't go on."""
        if self._failure is None and self._troubles.fatal is not None:
            self._failure = CaptureFaultError(
                f"topic {self._topic} can't be written: {self._troubles.fatal}"
            )
        if self._failure is not None:
            # No later record may be appended: this one would have to come before.
            self._producer.purge()
            raise self._failure

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Take what became of a record."""
        if error is not None and self._failure is None:
            value = message.value()
            length = 0 if value is None else len(value)
            self._failure = self._refusal(error, message.key(), length)

    # On the sender's thread.

    def _run(self) -> None:
        try:
            while chunk := self._next_chunk():
                self._send_chunk(chunk)
        except BaseException as error:
            self._failure = self._failure or CaptureFaultError(
                f"topic {self._topic} can't be written: {error}"
            )
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next_chunk(self) -> list[_Record]:
        """Wait for records, and take what fits; nothing at the end, or after a failure."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not (self._waiting or self._stopped):
                self._changed.wait()
            if self._stopped:
                return []
            self._busy = True
            chunk = self._take()
            self._waiting_bytes -= sum(record.size for record in chunk)
            self._changed.notify_all()
            return chunk

    @property
    def _stopped(self) -> bool:
        return self._ended or self._failed

    @property
    def _failed(self) -> bool:
        return self._failure is not None or self._troubles.fatal is not None

    def _take(self) -> list[_Record]:
        waiting, limits = self._waiting, self._limits
        if limits is None:
            self._waiting = deque()
            return list(waiting)
        chunk: list[_Record] = []
        bytes_of: dict[int, int] = {}
        count_of: dict[int, int] = {}
        while waiting and len(chunk) < limits.records:
            partition, size = waiting[0].partition, waiting[0].size
            there = bytes_of.get(partition, 0)
            count = count_of.get(partition, 0)
            if there and (
                there + size > limits.partition_bytes or count == limits.partition_records
            ):
                break
            bytes_of[partition] = there + size
            count_of[partition] = count + 1
            chunk.append(waiting.popleft())
        return chunk

    def _send_chunk(self, chunk: list[_Record]) -> None:
        for record in chunk:
            self._produce(record)
            if self._stopped:
                return
        if self._limits is None:
            self._producer.poll(0)
        else:
            self._await_answers()

    def _produce(self, record: _Record) -> None:
        while not self._stopped:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    partition=record.partition,
                    on_delivery=self.delivered,
                )
                return
            except BufferError:
                # A chunk that is too large for the buffer waits for its first part.
                if self._limits is None:
                    self._producer.poll(0.1)
                else:
                    self._await_answers()
            except KafkaException as error:
                # Records before it belong into the topic.
                self._await_answers()
                self._failure = self._failure or self._refusal(
                    error.args[0], record.key, len(record.value)
                )

    def _await_answers(self) -> None:
        give_up_s = time.monotonic() + _ANSWER_S
        while not self._stopped:
            left = self._producer.flush(_STEP_S)
            if not left:
                return
            if time.monotonic() > give_up_s:
                told = f"{left} records got no answer in {_ANSWER_S:g} s"
                self._failure = CaptureFaultError(told)

    def _refusal(self, error: Any, key: Any, length: int) -> CaptureError:
        shown = bytes(key or b"").decode(errors="replace")[:200]
        told = f"topic {self._topic} did not take the change of {shown} ({length} bytes): {error}"
        if isinstance(error, KafkaError) and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return ChangeRefusedError(
                f"{told}; raise max.message.bytes of topic {self._topic} and start again"
            )
        return cluster_error(told, error)


_CHECKPOINT_EVERY_S = 1.0


class Publisher:
    """Appends to the partitions of one topic, each in the order of the places.

    Args:
        producer: takes the checkpoints.
        sender: takes the records; over the same producer, and running.
        topic: the sender's.
        found: what is there already, and is not sent again.
    """

    def __init__(
        self, producer: Producer, sender: Sender, topic: str, found: RecoveredPosition
    ) -> None:
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
