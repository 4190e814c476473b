"""The Kafka side of a capture: its clients' settings, and its topics."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from purgatory.cdc.capture.errors import CaptureError, cluster_error

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
