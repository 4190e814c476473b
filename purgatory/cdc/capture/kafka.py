"""The Kafka side of a capture: client settings, topics, and recovery of the position.

The last record of each partition says which changes are there: everything for that partition, up to
its place. Records of a killed capture may not be replicated yet, and not be visible: recovery first
writes a heartbeat, acknowledged by all replicas, and reads what lies before it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from purgatory.cdc.capture.errors import CaptureError, CaptureFaultError, cluster_error
from purgatory.cdc.capture.records import Place, Position, json_text, parse_position

_PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    # A record that fails for good must have nothing behind it in its partition.
    "enable.gapless.guarantee": True,
    # None is given up while later ones go on: the capture, which waits for them, gives up on all.
    "message.timeout.ms": 0,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 262_144,
    "batch.size": 1_000_000,
    "batch.num.messages": 1_000_000,
}
_LINGER_MS = 5
_LONGEST_LINGER_MS = 900_000
"""Where the sender says when a batch goes: the longest that librdkafka takes."""

_SENDER_S_OWN = frozenset(
    ["linger.ms", "queue.buffering.max.ms", "message.timeout.ms", "delivery.timeout.ms"]
)
"""A record that goes early, or is given up, would have others of its partition come before it."""

_ONLY_PRODUCER = (
    frozenset(_PRODUCER)
    | _SENDER_S_OWN
    | {
        "message.max.bytes",
        "compression.type",
        "max.in.flight.requests.per.connection",
        "request.timeout.ms",
        "retries",
        "retry.backoff.ms",
    }
)
_QUIET_S = 10.0
_SILENT = logging.getLogger("purgatory.cdc.capture.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class ClientErrors:
    """Hears what a client says of the cluster: tells it now and then, and keeps what is final."""

    def __init__(self) -> None:
        self.fatal: str | None = None
        """Why the client can't go on; None as long as it can."""
        self._told_s = float("-inf")

    def __call__(self, error: KafkaError) -> None:
        """Take an error."""
        if error.fatal():
            self.fatal = self.fatal or str(error.str())
            return
        now_s = time.monotonic()
        if now_s - self._told_s >= _QUIET_S:
            self._told_s = now_s
            print(f"purgatory capture: the cluster: {error.str()}; trying on", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The cluster, and librdkafka's settings on top of the capture's own.

    Args:
        extra: by librdkafka's names, as in ``security.protocol``.

    Raises:
        CaptureError: one of them can't be what it is.
    """

    bootstrap_servers: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = sorted(_SENDER_S_OWN & self.extra.keys())
        if own and self.idempotent:
            raise CaptureError(
                f"--client {own[0]}: leave it out: an idempotent capture says itself when a batch "
                "goes, and gives none up"
            )

    @property
    def idempotent(self) -> bool:
        """Whether the producer is to be: it is, unless ``extra`` says otherwise."""
        return str(self.extra.get("enable.idempotence")).lower() not in ("false", "f", "0")

    def producer(self, client_errors: ClientErrors, largest_bytes: int) -> dict[str, Any]:
        """Return the settings of a producer.

        Args:
            client_errors: hears what goes wrong.
            largest_bytes: a larger record is refused before anything is sent.
        """
        settings = {
            **_PRODUCER,
            "linger.ms": _LONGEST_LINGER_MS if self.idempotent else _LINGER_MS,
            "message.max.bytes": largest_bytes,
            **self.extra,
            **self._common(),
            "error_cb": client_errors,
        }
        if not self.idempotent:
            settings["enable.gapless.guarantee"] = False
        return settings

    def reader(self) -> dict[str, Any]:
        """Return the settings of a consumer that belongs to no group of its own."""
        return {
            **self._admin_extra(),
            **self._common(),
            "group.id": "purgatory-capture",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "auto.offset.reset": "earliest",
            # The records are there: a fetch that waits for more holds up the next question.
            "fetch.wait.max.ms": 10,
        }

    def admin(self) -> dict[str, Any]:
        """Return the settings of an administrator."""
        return {**self._admin_extra(), **self._common()}

    def _admin_extra(self) -> dict[str, Any]:
        return {name: value for name, value in self.extra.items() if name not in _ONLY_PRODUCER}

    def _common(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": "purgatory-capture",
            "error_cb": ClientErrors(),
            # The client's own log tells the same twice, in its own words.
            "logger": _SILENT,
        }


_ADMIN_TIMEOUT_S = 30.0
_USUAL_RECORD_BYTES = 1_000_000
_AROUND_RECORD_BYTES = 4_096
"""More than a batch of one record has beside that record's value: a head, and the key."""


def positions_topic(topic: str) -> str:
    """Return the name of the topic that has the positions of another."""
    return f"{topic}.positions"


def ensure_topics(kafka: KafkaSettings, topic: str, partitions: int, max_record_bytes: int) -> int:
    """Create the topics that aren't there.

    Args:
        partitions: of ``topic``, if it is created.
        max_record_bytes: the largest record that ``topic`` is to take, if it is created.

    Returns:
        How many partitions ``topic`` has.

    Raises:
        CaptureError: the cluster can't be reached, or refuses.
    """
    admin = AdminClient(kafka.admin())
    try:
        known = admin.list_topics(timeout=_ADMIN_TIMEOUT_S).topics
    except KafkaException as error:
        told = f"the cluster {kafka.bootstrap_servers} can't be reached: {_words(error)}"
        raise cluster_error(told, error.args[0]) from None
    wanted = [
        NewTopic(
            topic,
            num_partitions=partitions,
            config={"max.message.bytes": str(max_record_bytes + _AROUND_RECORD_BYTES)},
        ),
        NewTopic(positions_topic(topic), num_partitions=1, config={"cleanup.policy": "compact"}),
    ]
    missing = [new for new in wanted if new.topic not in known]
    if missing:
        _create(admin, missing)
    found = known.get(topic)
    return len(found.partitions) if found is not None else partitions


def largest_record_bytes(kafka: KafkaSettings, topic: str) -> int:
    """Return how large a record the topic takes; the usual size if that must not be asked."""
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    # It has to live until the answer is there.
    admin = AdminClient(kafka.admin())
    try:
        [done] = admin.describe_configs([asked]).values()
        return int(done.result(_ADMIN_TIMEOUT_S)["max.message.bytes"].value)
    except (KafkaException, KeyError, TimeoutError, ValueError):
        return _USUAL_RECORD_BYTES


def _create(admin: AdminClient, topics: list[NewTopic]) -> None:
    for name, done in admin.create_topics(topics, operation_timeout=_ADMIN_TIMEOUT_S).items():
        try:
            done.result()
        except KafkaException as error:
            if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                told = f"topic {name} can't be created: {_words(error)}"
                raise cluster_error(told, error.args[0]) from None


def _code(error: KafkaException) -> int:
    first: Any = error.args[0]
    return int(first.code())


def _words(error: KafkaException) -> str:
    first: Any = error.args[0]
    return str(first.str() if isinstance(first, KafkaError) else first)


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
class RecoveredPosition:
    """What is there: the checkpoint, if any, and the last place of each partition."""

    checkpoint: Checkpoint | None
    last_places: list[Place | None]


def recover_position(
    kafka: KafkaSettings, producer: Producer, topic: str, partitions: int
) -> RecoveredPosition:
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
        raise cluster_error(told, error.args[0]) from None
    finally:
        consumer.close()
    if checkpoint is not None and checkpoint.partitions != partitions:
        raise CaptureError(
            f"topic {topic} had {checkpoint.partitions} partitions and has {partitions}: rows "
            "would change partition, and lose their order; capture into a new topic"
        )
    return RecoveredPosition(checkpoint, last_places)


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
        raise cluster_error(f"the cluster takes no records into {places[0][0]}: {why}", why)
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
            raise cluster_error(told, message.error())
        offset = int(message.offset() or 0)
        if offset < end:
            found.append(message)
        # There is always a record at the end of what is asked for: the marker, or one read before.
        if offset >= end - 1:
            return found
