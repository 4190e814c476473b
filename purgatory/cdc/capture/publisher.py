"""Sends records in chunks, each with at most one batch per partition, and stores the position.

A producer with several batches of a partition in flight loses idempotence when one of them fails:
the later ones are out of sequence, and librdkafka then resets the sequences of all partitions. A
batch of another partition whose response was lost is retried under a new sequence number, and no
broker detects the duplicate. A chunk is only handed over after the previous one is acknowledged.

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

from purgatory.cdc.capture.checkpoint import Checkpoint, RecoveredPosition
from purgatory.cdc.capture.errors import (
    CaptureError,
    TransientCaptureError,
    UnsupportedChangeError,
    cluster_error,
)
from purgatory.cdc.capture.kafka import ClientErrors, positions_topic
from purgatory.cdc.capture.position import Position
from purgatory.cdc.capture.records import CapturedRecord, key_partition, with_partition

_RESPONSE_TIMEOUT_S = 300.0
_STEP_S = 0.5
_MAX_QUEUED_BYTES = 8 * 2**20
_OVERHEAD_BYTES = 64
"""An upper bound of a record's overhead in a batch."""

_PARTITION_BYTES = 700_000
_PARTITION_RECORDS = 100_000
_BATCH_HEAD_BYTES = 4_096
"""An upper bound of the overhead of a request and a batch."""


class ChunkLimits(NamedTuple):
    """The records of a partition that fit into one batch; a single record always does."""

    partition_bytes: int
    partition_records: int
    records: int

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], largest_bytes: int) -> ChunkLimits:
        """The limits of a producer with these settings, for a topic's `max.message.bytes`."""
        batch_bytes = min(
            largest_bytes, int(settings["batch.size"]), int(settings["message.max.bytes"])
        )
        return cls(
            min(_PARTITION_BYTES, batch_bytes - _BATCH_HEAD_BYTES),
            min(_PARTITION_RECORDS, int(settings["batch.num.messages"])),
            # For librdkafka, 0 is no limit.
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
    """Appends records to one topic, each partition's in the order of the calls.

    Use it as a context manager: a thread passes them to the producer. If the block raises, queued
    records are not sent any more.

    Args:
        producer: has no record in flight.
        client_errors: the producer's error callback.
        limits: of a chunk; None: records are passed on at once, with several batches in flight.
    """

    def __init__(
        self,
        producer: Producer,
        client_errors: ClientErrors,
        topic: str,
        limits: ChunkLimits | None,
    ) -> None:
        self._producer = producer
        self._client_errors = client_errors
        self._topic = topic
        self._limits = limits
        self._queue: deque[_Record] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._is_sending = False
        self._ended = False
        self._failure: CaptureError | None = None
        self._thread = threading.Thread(target=self._run, name="capture-sender", daemon=True)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._ended = True
            self._queue.clear()
            self._changed.notify_all()
        # Queued records must not be appended while the next capture already runs.
        self._producer.purge()
        self._thread.join()

    def send(self, partition: int, key: bytes | None, value: bytes) -> None:
        """Queue a record; block while the queue is full.

        Raises:
            CaptureError: an earlier record was rejected.
        """
        record = _Record(partition, key, value)
        with self._changed:
            while self._queued_bytes > _MAX_QUEUED_BYTES and not self._failed:
                self._changed.wait(_STEP_S)
            self._queue.append(record)
            self._queued_bytes += record.size
            if not self._is_sending:
                self._changed.notify_all()
        if self._failed:
            self.check()

    def flush(self) -> None:
        """Wait until all records are acknowledged.

        Raises:
            CaptureError: a record was rejected, or there was no response.
        """
        with self._changed:
            while (self._queue or self._is_sending) and not self._failed:
                self._changed.wait(_STEP_S)
        self._await_responses()
        self.check()

    def poll(self) -> None:
        """Serve delivery callbacks.

        Raises:
            CaptureError: a record was rejected.
        """
        self._producer.poll(0)
        self.check()

    def check(self) -> None:
        """Raise `CaptureError` if a record was rejected, or the client has a fatal error."""
        if self._failure is None and self._client_errors.fatal is not None:
            self._failure = TransientCaptureError(
                f"topic {self._topic} can't be written: {self._client_errors.fatal}"
            )
        if self._failure is not None:
            # No later record may be appended before this one.
            self._producer.purge()
            raise self._failure

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """The delivery callback."""
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
            self._failure = self._failure or TransientCaptureError(
                f"topic {self._topic} can't be written: {error}"
            )
        finally:
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()

    def _next_chunk(self) -> list[_Record]:
        """Wait for records, and dequeue a chunk; empty at the end or after a failure."""
        with self._changed:
            self._is_sending = False
            self._changed.notify_all()
            while not (self._queue or self._stopped):
                self._changed.wait()
            if self._stopped:
                return []
            self._is_sending = True
            chunk = self._dequeue_chunk()
            self._queued_bytes -= sum(record.size for record in chunk)
            self._changed.notify_all()
            return chunk

    @property
    def _stopped(self) -> bool:
        return self._ended or self._failed

    @property
    def _failed(self) -> bool:
        return self._failure is not None or self._client_errors.fatal is not None

    def _dequeue_chunk(self) -> list[_Record]:
        queue, limits = self._queue, self._limits
        if limits is None:
            self._queue = deque()
            return list(queue)
        chunk: list[_Record] = []
        bytes_by_partition: dict[int, int] = {}
        count_by_partition: dict[int, int] = {}
        while queue and len(chunk) < limits.records:
            partition, size = queue[0].partition, queue[0].size
            partition_bytes = bytes_by_partition.get(partition, 0)
            count = count_by_partition.get(partition, 0)
            if partition_bytes and (
                partition_bytes + size > limits.partition_bytes or count == limits.partition_records
            ):
                break
            bytes_by_partition[partition] = partition_bytes + size
            count_by_partition[partition] = count + 1
            chunk.append(queue.popleft())
        return chunk

    def _send_chunk(self, chunk: list[_Record]) -> None:
        for record in chunk:
            self._produce(record)
            if self._stopped:
                return
        if self._limits is None:
            self._producer.poll(0)
        else:
            self._await_responses()

    def _produce(self, record: _Record) -> None:
        while not self._stopped:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    partition=record.partition,
                    on_delivery=self.on_delivery,
                )
                return
            except BufferError:
                # The chunk is too large for the buffer: wait for its first part.
                if self._limits is None:
                    self._producer.poll(0.1)
                else:
                    self._await_responses()
            except KafkaException as error:
                # Records before it have to be appended.
                self._await_responses()
                self._failure = self._failure or self._refusal(
                    error.args[0], record.key, len(record.value)
                )

    def _await_responses(self) -> None:
        give_up_s = time.monotonic() + _RESPONSE_TIMEOUT_S
        while not self._stopped:
            remaining = self._producer.flush(_STEP_S)
            if not remaining:
                return
            if time.monotonic() > give_up_s:
                message = f"{remaining} records got no response in {_RESPONSE_TIMEOUT_S:g} s"
                self._failure = TransientCaptureError(message)

    def _refusal(self, error: Any, key: Any, length: int) -> CaptureError:
        key_text = bytes(key or b"").decode(errors="replace")[:200]
        message = f"topic {self._topic} rejected the change of {key_text} ({length} bytes): {error}"
        if isinstance(error, KafkaError) and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return UnsupportedChangeError(
                f"{message}; raise max.message.bytes of topic {self._topic} and start again"
            )
        return cluster_error(message, error)


_CHECKPOINT_EVERY_S = 1.0


class Publisher:
    """Appends records to the partitions of a topic, and stores checkpoints.

    Args:
        producer: of the checkpoints.
        sender: of the records; started, with the same producer.
        topic: the sender's.
        recovered: records up to these places are skipped.
    """

    def __init__(
        self, producer: Producer, sender: Sender, topic: str, recovered: RecoveredPosition
    ) -> None:
        self._producer = producer
        self._sender = sender
        self._positions = positions_topic(topic)
        self._topic = topic
        self.last_positions = list(recovered.last_positions)
        self._stored: tuple[Position, bool] | None = None
        if recovered.checkpoint is not None:
            self._stored = recovered.checkpoint.position, recovered.checkpoint.snapshot_open
        self._stored_at_s = float("-inf")
        self.sent = 0
        """The number of records that were sent, without skipped ones."""

    def send(self, record: CapturedRecord) -> None:
        """Send a record, into all partitions if it has no key.

        Raises:
            CaptureError: this or an earlier one was rejected.
        """
        if record.key is not None:
            self._send_to(key_partition(record.key, len(self.last_positions)), record)
            return
        for partition in range(len(self.last_positions)):
            value = with_partition(record.value, partition, len(self.last_positions))
            self._send_to(partition, record._replace(value=value))

    def _send_to(self, partition: int, record: CapturedRecord) -> None:
        last = self.last_positions[partition]
        if last is not None and record.position <= last:
            return
        self._sender.send(partition, record.key, record.value)
        self.sent += 1

    def poll(self) -> None:
        """See `Sender.poll`."""
        self._sender.poll()

    def checkpoint_is_due(self, position: Position) -> bool:
        """Whether the last checkpoint is old, and its position another one."""
        is_due = time.monotonic() - self._stored_at_s >= _CHECKPOINT_EVERY_S
        return is_due and (position, False) != self._stored

    def store(self, position: Position, origin: str, *, snapshot_open: bool = False) -> None:
        """Wait until all records are acknowledged, then store a checkpoint.

        Raises:
            CaptureError: a record was rejected, or there was no response.
        """
        self._sender.flush()
        if (position, snapshot_open) == self._stored:
            return
        checkpoint = Checkpoint(position, len(self.last_positions), snapshot_open, origin)
        self._producer.produce(
            self._positions,
            checkpoint.to_json(),
            self._topic.encode(),
            partition=0,
            on_delivery=self._sender.on_delivery,
        )
        self._sender.flush()
        self._stored = position, snapshot_open
        self._stored_at_s = time.monotonic()
