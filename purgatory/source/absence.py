"""Tells a partition that is gone from one that brokers don't know at the moment.

A broker that has just come back may not know all topics yet: only what brokers that answer have not
known for a while is gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from purgatory.kafka.topic_partition import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata

GRACE_S = 10.0
"""For how long a partition must not be known, unless the query waits for brokers less than that."""


class Absence:
    """Keeps since when partitions are not among what brokers know.

    Args:
        timeout_ms: how long the query waits for brokers.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._grace_s = min(GRACE_S, timeout_ms / 1000)
        self._since_s: dict[TopicPartition, float] = {}

    def gone(
        self, wanted: Iterable[TopicPartition], topics: Mapping[str, TopicMetadata] | None
    ) -> set[TopicPartition]:
        """Take what brokers know now, and return which partitions are gone.

        Args:
            wanted: the partitions in question.
            topics: all that there are; None: nobody answered, which tells nothing.
        """
        if topics is None:
            return set()
        now_s = time.monotonic()
        gone = set()
        for of in wanted:
            if of.topic in topics and of.partition in topics[of.topic].partitions:
                self._since_s.pop(of, None)
            elif now_s - self._since_s.setdefault(of, now_s) >= self._grace_s:
                gone.add(of)
        return gone
