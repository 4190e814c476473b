"""Subscriptions and assignments of consumers of the classic protocol, as bytes.

Version 0 of a subscription has the topics; 1 adds the partitions that the member owns, 2 its
generation, 3 its rack. Assignments of all versions are alike. Later versions begin as version 3
does.

Ground rules: no state.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_OWNED_SINCE, _GENERATION_SINCE, _RACK_SINCE = 1, 2, 3


class ConsumerSubscription(NamedTuple):
    """The topics and partitions of a consumer.

    Args:
        owned: the partitions that it has, by topic.
    """

    topics: tuple[str, ...]
    owned: Mapping[str, Sequence[int]]
    rack_id: str | None = None


class ConsumerAssignment(NamedTuple):
    """The partitions that a consumer is given, by topic, and what an assignor adds for itself."""

    partitions: Mapping[str, Sequence[int]]
    user_data: bytes = b""


class _Reader:
    """Reads fields one after the other.

    Raises:
        ValueError: the data are no such fields.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def _take(self, count: int) -> bytes:
        self._at += count
        if count < 0 or self._at > len(self._data):
            raise ValueError("a field ends behind the data")
        return self._data[self._at - count : self._at]

    def short(self) -> int:
        return int(_SHORT.unpack(self._take(_SHORT.size))[0])

    def number(self) -> int:
        return int(_INT.unpack(self._take(_INT.size))[0])

    def count(self) -> int:
        """Return the length of an array."""
        count = self.number()
        if count > len(self._data):
            raise ValueError(f"an array of {count} elements")
        return count

    def text(self) -> str:
        return self._take(max(0, self.short())).decode()

    def nullable_text(self) -> str | None:
        length = self.short()
        return None if length < 0 else self._take(length).decode()

    def data(self) -> bytes:
        return self._take(max(0, self.number()))

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.count()))

    def partitions(self) -> dict[str, list[int]]:
        return {
            self.text(): [self.number() for _ in range(self.count())] for _ in range(self.count())
        }

    def version(self) -> int:
        version = self.short()
        if version < 0:
            raise ValueError(f"version {version}")
        return version


def subscribed_topics(metadata: bytes) -> list[str]:
    """Read the topics of a subscription. O(bytes).

    Later fields are not read: clients write them differently.

    Raises:
        ValueError: the metadata are no subscription.
    """
    reader = _Reader(metadata)
    reader.short()  # the version
    topics = list(reader.texts())
    reader.data()  # the assignor's
    return topics


def read_subscription(metadata: bytes) -> ConsumerSubscription:
    """Read a subscription. O(bytes).

    Some clients write less than their version has: what is missing is taken for empty.

    Raises:
        ValueError: the metadata are no subscription.
    """
    reader = _Reader(metadata)
    version = reader.version()
    topics = reader.texts()
    reader.data()
    owned: Mapping[str, Sequence[int]] = {}
    rack_id = None
    if version >= _OWNED_SINCE and not reader.is_at_end:
        owned = reader.partitions()
    if version >= _GENERATION_SINCE and not reader.is_at_end:
        reader.number()
    if version >= _RACK_SINCE and not reader.is_at_end:
        rack_id = reader.nullable_text()
    return ConsumerSubscription(topics, owned, rack_id)


def read_assignment(data: bytes) -> ConsumerAssignment:
    """Read an assignment; b"" is an empty one. O(bytes).

    Raises:
        ValueError: the data are no assignment.
    """
    if not data:
        return ConsumerAssignment({})
    reader = _Reader(data)
    reader.version()
    return ConsumerAssignment(reader.partitions(), reader.data())


def write_assignment(partitions: Mapping[str, Sequence[int]], metadata: bytes) -> bytes:
    """Return an assignment in the version of a member's subscription. O(partitions)."""
    version = max(0, int.from_bytes(metadata[: _SHORT.size], "big", signed=True))
    parts = [_SHORT.pack(version), _INT.pack(len(partitions))]
    for topic, numbers in partitions.items():
        name = topic.encode()
        parts += _SHORT.pack(len(name)), name
        parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    parts.append(_INT.pack(-1))  # nothing of an assignor's
    return b"".join(parts)
