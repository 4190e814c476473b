"""The Kafka side of a capture: client settings, topics, and recovery of the position.

The last record of each partition determines which changes are there: all for that partition, up to
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

from purgatory.cdc.capture.errors import CaptureError, TransientCaptureError, cluster_error
from purgatory.cdc.capture.records import Position, RecordPosition, json_text, parse_position

_PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    # A record that fails must have no later one in its partition.
    "enable.gapless.guarantee": True,
    # No record is abandoned while later ones are sent: the capture waits, and fails as a whole.
    "message.timeout.ms": 0,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 262_144,
    "batch.size": 1_000_000,
    "batch.num.messages": 1_000_000,
}
_LINGER_MS = 5
_MAX_LINGER_MS = 900_000
"""librdkafka's maximum, for the sender decides when a batch is sent."""

_RESERVED = frozenset(
    ["linger.ms", "queue.buffering.max.ms", "message.timeout.ms", "delivery.timeout.ms"]
)
"""A record sent early, or abandoned, would be overtaken by others of its partition."""

_PRODUCER_ONLY = (
    frozenset(_PRODUCER)
    | _RESERVED
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
_NULL_LOGGER = logging.getLogger("purgatory.cdc.capture.librdkafka")
_NULL_LOGGER.addHandler(logging.NullHandler())
_NULL_LOGGER.propagate = False


class ClientErrors:
    """A client's error callback: prints an error now and then, and keeps a fatal one."""

    def __init__(self) -> None:
        self.fatal: str | None = None
        self._logged_s = float("-inf")

    def __call__(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = self.fatal or str(error.str())
            return
        now_s = time.monotonic()
        if now_s - self._logged_s >= _QUIET_S:
            self._logged_s = now_s
            print(f"purgatory capture: the cluster: {error.str()}; retrying", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The cluster, and settings of librdkafka.

    Args:
        extra: by librdkafka's names, as in ``security.protocol``.

    Raises:
        CaptureError: a reserved setting is given.
    """

    bootstrap_servers: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = sorted(_RESERVED & self.extra.keys())
        if own and self.idempotent:
            raise CaptureError(
                f"--client {own[0]}: leave it out: an idempotent capture decides itself when "
                "a batch is sent, and abandons none"
            )

    @property
    def idempotent(self) -> bool:
        """Whether the producer is idempotent: by default it is."""
        return str(self.extra.get("enable.idempotence")).lower() not in ("false", "f", "0")

    def producer(self, client_errors: ClientErrors, largest_bytes: int) -> dict[str, Any]:
        """The settings of a producer.

        Args:
            largest_bytes: a larger record is rejected before anything is sent.
        """
        settings = {
            **_PRODUCER,
            "linger.ms": _MAX_LINGER_MS if self.idempotent else _LINGER_MS,
            "message.max.bytes": largest_bytes,
            **self.extra,
            **self._common(),
            "error_cb": client_errors,
        }
        if not self.idempotent:
            settings["enable.gapless.guarantee"] = False
        return settings

    def reader(self) -> dict[str, Any]:
        """The settings of a consumer outside of groups."""
        return {
            **self._admin_extra(),
            **self._common(),
            "group.id": "purgatory-capture",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "auto.offset.reset": "earliest",
            # The records are there: a fetch that waits for more delays the next one.
            "fetch.wait.max.ms": 10,
        }

    def admin(self) -> dict[str, Any]:
        """The settings of an admin client."""
        return {**self._admin_extra(), **self._common()}

    def _admin_extra(self) -> dict[str, Any]:
        return {name: value for name, value in self.extra.items() if name not in _PRODUCER_ONLY}

    def _common(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": "purgatory-capture",
            "error_cb": ClientErrors(),
            # The client's own log repeats the callback's errors.
            "logger": _NULL_LOGGER,
        }


_ADMIN_TIMEOUT_S = 30.0
_DEFAULT_RECORD_BYTES = 1_000_000
_OVERHEAD_BYTES = 4_096
"""An upper bound of a batch's header and the key of its record."""


def positions_topic(topic: str) -> str:
    """The topic with the positions of another."""
    return f"{topic}.positions"


def ensure_topics(kafka: KafkaSettings, topic: str, partitions: int, max_record_bytes: int) -> int:
    """Create the missing topics.

    Args:
        partitions: of ``topic``, if it is created.
        max_record_bytes: the largest record of ``topic``, if it is created.

    Returns:
        The number of ``topic``'s partitions.

    Raises:
        CaptureError: the cluster is unreachable, or refuses.
    """
    admin = AdminClient(kafka.admin())
    try:
        existing = admin.list_topics(timeout=_ADMIN_TIMEOUT_S).topics
    except KafkaException as error:
        message = f"the cluster {kafka.bootstrap_servers} can't be reached: {_error_text(error)}"
        raise cluster_error(message, error.args[0]) from None
    names = [
        NewTopic(
            topic,
            num_partitions=partitions,
            config={"max.message.bytes": str(max_record_bytes + _OVERHEAD_BYTES)},
        ),
        NewTopic(positions_topic(topic), num_partitions=1, config={"cleanup.policy": "compact"}),
    ]
    missing_topics = [new for new in names if new.topic not in existing]
    if missing_topics:
        _create(admin, missing_topics)
    metadata = existing.get(topic)
    return len(metadata.partitions) if metadata is not None else partitions


def largest_record_bytes(kafka: KafkaSettings, topic: str) -> int:
    """The topic's `max.message.bytes`; Kafka's default if reading it is not permitted."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    # The callback has to live until the response is there.
    admin = AdminClient(kafka.admin())
    try:
        [done] = admin.describe_configs([resource]).values()
        return int(done.result(_ADMIN_TIMEOUT_S)["max.message.bytes"].value)
    except (KafkaException, KeyError, TimeoutError, ValueError):
        return _DEFAULT_RECORD_BYTES


def _create(admin: AdminClient, topics: list[NewTopic]) -> None:
    for name, done in admin.create_topics(topics, operation_timeout=_ADMIN_TIMEOUT_S).items():
        try:
            done.result()
        except KafkaException as error:
            if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                message = f"topic {name} can't be created: {_error_text(error)}"
                raise cluster_error(message, error.args[0]) from None


def _code(error: KafkaException) -> int:
    first: Any = error.args[0]
    return int(first.code())


def _error_text(error: KafkaException) -> str:
    first: Any = error.args[0]
    return str(first.str() if isinstance(first, KafkaError) else first)


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
