"""The checkpoint of a capture, and the recovery of its position at a restart, from its topics.

The last record of each partition determines which changes are there: all for that partition, up to
its place. Records of a killed capture may not be replicated yet, and not be visible: recovery first
writes a heartbeat, acknowledged by all replicas, and reads what lies before it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from purgatory.cdc.capture.errors import CaptureError, TransientCaptureError, cluster_error
from purgatory.cdc.capture.kafka import KafkaSettings, positions_topic
from purgatory.cdc.capture.position import Position, RecordPosition, parse_position
from purgatory.cdc.capture.records import json_text

_HEARTBEAT = "heartbeat"
"""The type of a record that changes nothing."""

_TIMEOUT_S = 60.0
_FIRST_STEP = 64


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All changes up to ``position`` are in the topic.

    Args:
        partitions: of the topic; with another number, keys would change theirs.
        snapshot_open: a snapshot was started at ``position``, and may be incomplete.
        origin: of the position's file; None in a checkpoint of an earlier version.
    """

    position: Position
    partitions: int
    snapshot_open: bool = False
    origin: str | None = None

    def to_json(self) -> bytes:
        return json_text(
            {
                "position": str(self.position),
                "partitions": self.partitions,
                "snapshot_open": self.snapshot_open,
                "origin": self.origin,
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class RecoveredPosition:
    """The checkpoint, and the position of each partition's last record, if any."""

    checkpoint: Checkpoint | None
    last_positions: list[RecordPosition | None]


def recover_position(
    kafka: KafkaSettings, producer: Producer, topic: str, partitions: int
) -> RecoveredPosition:
    """Write a heartbeat into each partition, and read the last record before it.

    Args:
        producer: also sends the changes later: its initialization takes half a second.

    Raises:
        CaptureError: the topics can't be written or read, or have records of something else.
    """
    positions = positions_topic(topic)
    topic_partitions = [(topic, number) for number in range(partitions)] + [(positions, 0)]
    heartbeats = _write_heartbeats(producer, topic_partitions, compacted=positions)
    consumer = Consumer(kafka.reader())
    try:
        last_positions = [
            _last_position(consumer, topic, number, heartbeats[topic, number])
            for number in range(partitions)
        ]
        checkpoint = _checkpoint(consumer, positions, heartbeats[positions, 0])
    except KafkaException as error:
        message = f"topic {topic} can't be read: {error.args[0]}"
        raise cluster_error(message, error.args[0]) from None
    finally:
        consumer.close()
    if checkpoint is not None and checkpoint.partitions != partitions:
        raise CaptureError(
            f"topic {topic} had {checkpoint.partitions} partitions and has {partitions}: rows "
            "would change partition, and lose their order; capture into a new topic"
        )
    return RecoveredPosition(checkpoint, last_positions)


def _write_heartbeats(
    producer: Producer, topic_partitions: list[tuple[str, int]], compacted: str
) -> dict[tuple[str, int], int]:
    """Write a heartbeat into each partition, and return their offsets.

    A compacted topic accepts no record without a key.
    """
    offsets: dict[tuple[str, int], int] = {}
    errors: list[object] = []
    # No two records may have the same value: an audit would count them as duplicates.
    run = uuid.uuid4().hex

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets[str(message.topic()), int(message.partition() or 0)] = int(
                message.offset() or 0
            )

    for topic, partition in topic_partitions:
        identity = {"topic": topic, "partition": partition, "run": run}
        heartbeat = {"type": _HEARTBEAT, "database": "purgatory", **identity}
        producer.produce(
            topic,
            json_text(heartbeat).encode(),
            _HEARTBEAT.encode() if topic == compacted else None,
            partition=partition,
            on_delivery=on_delivery,
        )
    producer.flush(_TIMEOUT_S)
    if errors or len(offsets) < len(topic_partitions):
        reason = errors[0] if errors else f"no response in {_TIMEOUT_S:g} s"
        raise cluster_error(
            f"the cluster accepts no records of {topic_partitions[0][0]}: {reason}", reason
        )
    return offsets


def _last_position(
    consumer: Consumer, topic: str, partition: int, end: int
) -> RecordPosition | None:
    for message in _read_backwards(consumer, topic, partition, end):
        try:
            document = json.loads(message.value() or b"")
            if document["type"] == _HEARTBEAT:
                continue
            position = parse_position(document["position"])
            return RecordPosition(position.number, int(document["xoffset"]))
        except (ValueError, KeyError, TypeError, CaptureError):
            raise CaptureError(
                f"{topic}, partition {partition}, offset {message.offset()}: no record of a "
                "capture; a topic of changes must have no other records"
            ) from None
    return None


def _checkpoint(consumer: Consumer, topic: str, end: int) -> Checkpoint | None:
    for message in _read_backwards(consumer, topic, 0, end):
        try:
            document: dict[str, Any] = json.loads(message.value() or b"")
            if document.get("type") == _HEARTBEAT:
                continue
            return Checkpoint(
                parse_position(document["position"]),
                int(document["partitions"]),
                bool(document["snapshot_open"]),
                document.get("origin"),
            )
        except (ValueError, KeyError, TypeError, CaptureError):
            raise CaptureError(
                f"{topic}, offset {message.offset()}: no position of a capture"
            ) from None
    return None


def _read_backwards(consumer: Consumer, topic: str, partition: int, end: int) -> Iterator[Message]:
    """Yield the records before ``end``, the last first, in steps of growing size."""
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)
    step = _FIRST_STEP
    while end > low:
        start = max(low, end - step)
        yield from reversed(_read_range(consumer, topic, partition, start, end))
        end, step = start, step * 4


def _read_range(
    consumer: Consumer, topic: str, partition: int, start: int, end: int
) -> list[Message]:
    consumer.assign([TopicPartition(topic, partition, start)])
    give_up_s = time.monotonic() + _TIMEOUT_S
    messages: list[Message] = []
    while True:
        message = consumer.poll(1.0)
        if message is None:
            if time.monotonic() > give_up_s:
                raise TransientCaptureError(
                    f"{topic}, partition {partition}: can't be read up to {end}"
                )
            continue
        if message.error() is not None:
            reason = f"{topic}, partition {partition}: {message.error()}"
            raise cluster_error(reason, message.error())
        offset = int(message.offset() or 0)
        if offset < end:
            messages.append(message)
        # There is always a record at the end: the heartbeat, or one that was read before.
        if offset >= end - 1:
            return messages
