"""What consumers of the classic protocol write for one another: subscriptions and assignments.

A broker need not look into them, but where such members are in one group with those of the consumer
protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from purgatory.kafka.topic_partition import TopicPartition

CONSUMER = "consumer"
"""The protocol type of all who write so."""

_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_OWNED_SINCE, _GENERATION_SINCE, _RACK_SINCE = 1, 2, 3


class EmbeddedSubscription(NamedTuple):
    """What a member subscribes to, what it owns, and where it stands, if it says that."""

    topic_names: tuple[str, ...]
    owned: frozenset[TopicPartition] = frozenset()
    rack_id: str | None = None


def subscription_of(metadata: bytes) -> EmbeddedSubscription:
    """Read what a member said when it joined. O(bytes).

    Raises:
        ValueError: it is no subscription of a consumer.
    """
    reader = _Reader(metadata)
    version = reader.number(_SHORT)
    topics = reader.topic_names()
    reader.skip_bytes()
    owned = reader.partitions() if version >= _OWNED_SINCE else frozenset[TopicPartition]()
    if version >= _GENERATION_SINCE:
        reader.number(_INT)
    return EmbeddedSubscription(topics, owned, reader.string() if version >= _RACK_SINCE else None)


def subscribed_names(metadata: bytes) -> tuple[str, ...]:
    """Read the topics that a member subscribes to. O(bytes).

    These stand in version 0, with which all later ones begin: what comes after it is not looked at,
    as clients write it differently.

    Raises:
        ValueError: it is no subscription of a consumer.
    """
    reader = _Reader(metadata)
    reader.number(_SHORT)
    topics = reader.topic_names()
    reader.skip_bytes()
    return topics


def assignment_of(data: bytes) -> frozenset[TopicPartition]:
    """Read what a leader assigned to a member; nothing at all is nothing. O(bytes).

    Raises:
        ValueError: it is no assignment of a consumer.
    """
    if not data:
        return frozenset()
    reader = _Reader(data)
    reader.number(_SHORT)
    return reader.partitions()


def written_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Write an assignment as a leader does, in the version that all read. O(partitions)."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    parts = [_SHORT.pack(0), _INT.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += _SHORT.pack(len(name)), name
        parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join((*parts, _INT.pack(-1)))


class _Reader:
    """Reads fields one after the other; what ends too early is a ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def raw(self, count: int) -> bytes:
        self._at += count
        if count < 0 or self._at > len(self._data):
            raise ValueError("a field ends behind the data")
        return self._data[self._at - count : self._at]

    def number(self, layout: struct.Struct) -> int:
        return int(layout.unpack(self.raw(layout.size))[0])

    def count(self) -> int:
        """The length of an array, whose elements have two bytes at least."""
        count = self.number(_INT)
        if count > len(self._data):
            raise ValueError(f"an array of {count} elements")
        return max(0, count)

    def string(self) -> str | None:
        length = self.number(_SHORT)
        return None if length == -1 else self.raw(length).decode()

    def topic_names(self) -> tuple[str, ...]:
        return tuple(self.string() or "" for _ in range(self.count()))

    def skip_bytes(self) -> None:
        self.raw(max(0, self.number(_INT)))

    def partitions(self) -> frozenset[TopicPartition]:
        found: list[TopicPartition] = []
        for _ in range(self.count()):
            topic = self.string() or ""
            found += [TopicPartition(topic, self.number(_INT)) for _ in range(self.count())]
        return frozenset(found)
