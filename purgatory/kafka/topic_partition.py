"""Partitions by topic name (also the key under which operations are watched), or by topic id."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import NamedTuple, TypeAlias
from uuid import UUID


class TopicPartition(NamedTuple):
    """One partition of a topic. It equals the purgatory's key of the same pair, with one hash."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def short_id(number: UUID) -> str:
    """Return an id as Kafka shows it: 22 characters."""
    return urlsafe_b64encode(number.bytes).decode().rstrip("=")


class TopicIdPartition(NamedTuple):
    """A partition of the topic that has an id, and of no later one of the same name."""

    topic_id: UUID
    partition: int


Partitions: TypeAlias = frozenset[TopicIdPartition]
NO_PARTITIONS: Partitions = frozenset()


def by_topic(partitions: Partitions) -> dict[UUID, list[int]]:
    """Return the numbers of partitions by their topic's id, both in order. O(n log n)."""
    numbers: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        numbers.setdefault(topic_id, []).append(partition)
    return numbers
