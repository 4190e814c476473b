"""The name of a partition, which is also the key that its delayed operations are watched on."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of a topic. Equal to, and hashed as, the purgatory's key of the same pair."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
