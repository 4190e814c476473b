"""The topics of a capture: the changes, and how far the capture came."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from purgatory.changes.capture.kafka_settings import KafkaSettings
from purgatory.changes.capture.passing_faults import cluster_failure

_TIMEOUT_S = 30.0
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
        known = admin.list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        told = f"the cluster {kafka.bootstrap_servers} can't be reached: {_words(error)}"
        raise cluster_failure(told, error.args[0]) from None
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
        return int(done.result(_TIMEOUT_S)["max.message.bytes"].value)
    except (KafkaException, KeyError, TimeoutError, ValueError):
        return _USUAL_RECORD_BYTES


def _create(admin: AdminClient, topics: list[NewTopic]) -> None:
    for name, done in admin.create_topics(topics, operation_timeout=_TIMEOUT_S).items():
        try:
            done.result()
        except KafkaException as error:
            if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                told = f"topic {name} can't be created: {_words(error)}"
                raise cluster_failure(told, error.args[0]) from None


def _code(error: KafkaException) -> int:
    first: Any = error.args[0]
    return int(first.code())


def _words(error: KafkaException) -> str:
    first: Any = error.args[0]
    return str(first.str() if isinstance(first, KafkaError) else first)
