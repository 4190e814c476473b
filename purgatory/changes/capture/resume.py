"""What is in the topics already, when a capture begins.

The last change of each partition says which changes are there: everything that belongs into that
partition, up to its place. What a killed capture had appended may not be replicated yet, and so not
be seen: a marker that is acknowledged by all replicas goes first, and what is before it is read.
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

from purgatory.changes.capture.capture_topics import positions_topic
from purgatory.changes.capture.errors import CaptureError, CaptureFaultError
from purgatory.changes.capture.json_text import json_text
from purgatory.changes.capture.kafka_settings import KafkaSettings
from purgatory.changes.capture.passing_faults import cluster_failure
from purgatory.changes.capture.position import Place, Position, parse_position

_MARKER = "heartbeat"
"""The type of a record that changes nothing in a target."""

_TIMEOUT_S = 60.0
_FIRST_STEP = 64


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far the capture came for certain: every change up to ``position`` is in the topic.

    Args:
        partitions: how many the topic had: with another number, keys would change theirs.
        snapshot_open: a snapshot was begun at ``position``, and isn't known to be complete.
    """

    position: Position
    partitions: int
    snapshot_open: bool = False

    def to_json(self) -> bytes:
        """Return it as it is stored."""
        return json_text(
            {
                "position": str(self.position),
                "partitions": self.partitions,
                "snapshot_open": self.snapshot_open,
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class Resumption:
    """What is there: the checkpoint, if any, and the last place of each partition."""

    checkpoint: Checkpoint | None
    last_places: list[Place | None]


def find_resumption(
    kafka: KafkaSettings, producer: Producer, topic: str, partitions: int
) -> Resumption:
    """Put a marker into each partition, and read what is before it.

    Args:
        producer: the one that sends the changes too: to get ready takes it half a second.

    Raises:
        CaptureError: the topics can't be written or read, or hold something else.
    """
    positions = positions_topic(topic)
    places = [(topic, number) for number in range(partitions)] + [(positions, 0)]
    marked = _mark(producer, places, compacted=positions)
    consumer = Consumer(kafka.reader())
    try:
        last_places = [
            _last_place(consumer, topic, number, marked[topic, number])
            for number in range(partitions)
        ]
        checkpoint = _checkpoint(consumer, positions, marked[positions, 0])
    except KafkaException as error:
        told = f"topic {topic} can't be read: {error.args[0]}"
        raise cluster_failure(told, error.args[0]) from None
    finally:
        consumer.close()
    if checkpoint is not None and checkpoint.partitions != partitions:
        raise CaptureError(
            f"topic {topic} had {checkpoint.partitions} partitions and has {partitions}: rows "
            "would change partition, and lose their order; capture into a new topic"
        )
    return Resumption(checkpoint, last_places)


def _mark(
    producer: Producer, places: list[tuple[str, int]], compacted: str
) -> dict[tuple[str, int], int]:
    """Put a marker into each place; a compacted topic takes no record without a key."""
    offsets: dict[tuple[str, int], int] = {}
    errors: list[object] = []
    # No two records are to have the same value: who audits would take them for copies.
    run = uuid.uuid4().hex

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets[str(message.topic()), int(message.partition() or 0)] = int(
                message.offset() or 0
            )

    for topic, partition in places:
        place = {"topic": topic, "partition": partition, "run": run}
        marker = {"type": _MARKER, "database": "purgatory", **place}
        producer.produce(
            topic,
            json_text(marker).encode(),
            _MARKER.encode() if topic == compacted else None,
            partition=partition,
            on_delivery=delivered,
        )
    producer.flush(_TIMEOUT_S)
    if errors or len(offsets) < len(places):
        why = errors[0] if errors else f"no answer in {_TIMEOUT_S:g} s"
        raise cluster_failure(f"the cluster takes no records into {places[0][0]}: {why}", why)
    return offsets


def _last_place(consumer: Consumer, topic: str, partition: int, end: int) -> Place | None:
    for message in _backwards(consumer, topic, partition, end):
        try:
            document = json.loads(message.value() or b"")
            if document["type"] == _MARKER:
                continue
            position = parse_position(document["position"])
            return Place(position.number, int(document["xoffset"]))
        except (ValueError, KeyError, TypeError, CaptureError):
            raise CaptureError(
                f"{topic}, partition {partition}, offset {message.offset()}: no record of a "
                "capture; a topic of changes must have nothing else in it"
            ) from None
    return None


def _checkpoint(consumer: Consumer, topic: str, end: int) -> Checkpoint | None:
    for message in _backwards(consumer, topic, 0, end):
        try:
            document: dict[str, Any] = json.loads(message.value() or b"")
            if document.get("type") == _MARKER:
                continue
            return Checkpoint(
                parse_position(document["position"]),
                int(document["partitions"]),
                bool(document["snapshot_open"]),
            )
        except (ValueError, KeyError, TypeError, CaptureError):
            raise CaptureError(
                f"{topic}, offset {message.offset()}: no position of a capture"
            ) from None
    return None


def _backwards(consumer: Consumer, topic: str, partition: int, end: int) -> Iterator[Message]:
    """Give out the records before ``end``, the last first, reading ever larger steps back."""
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)
    step = _FIRST_STEP
    while end > low:
        start = max(low, end - step)
        yield from reversed(_between(consumer, topic, partition, start, end))
        end, step = start, step * 4


def _between(consumer: Consumer, topic: str, partition: int, start: int, end: int) -> list[Message]:
    consumer.assign([TopicPartition(topic, partition, start)])
    give_up_s = time.monotonic() + _TIMEOUT_S
    found: list[Message] = []
    while True:
        message = consumer.poll(1.0)
        if message is None:
            if time.monotonic() > give_up_s:
                told = f"{topic}, partition {partition}: can't be read up to {end}"
                raise CaptureFaultError(told)
            continue
        if message.error() is not None:
            told = f"{topic}, partition {partition}: {message.error()}"
            raise cluster_failure(told, message.error())
        offset = int(message.offset() or 0)
        if offset < end:
            found.append(message)
        # There is always a record at the end of what is asked for: the marker, or one read before.
        if offset >= end - 1:
            return found
