"""Where the waits of share groups at one broker are: fetches, and locks of acquired records."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from purgatory.core.operation import DelayedOperation
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.share_groups.share_state import ShareKey
from purgatory.kafka.topic_partition import TopicPartition


class AcquisitionLockKey(NamedTuple):
    """A lock of acquired records: under what its end is waited for."""

    of: ShareKey
    lock: int

    def __str__(self) -> str:
        return f"{self.of}:{self.lock}"


class DelayedAcquisitionLock(DelayedOperation):
    """Waits until none of the records under a lock is acquired any more.

    Args:
        delay_ms: how long the lock holds.
        topic_partition: where the records are.
        is_over: whether that is so.
        expire: takes the records back.
    """

    __slots__ = ("_expire", "_is_over", "topic_partitions")

    def __init__(
        self,
        delay_ms: int,
        topic_partition: TopicPartition,
        is_over: Callable[[], bool],
        expire: Callable[[], object],
    ) -> None:
        super().__init__(delay_ms)
        self.topic_partitions = (topic_partition,)
        self._is_over = is_over
        self._expire = expire

    def try_complete(self) -> bool:
        return self._is_over() and self.force_complete()

    def on_expiration(self) -> None:
        self._expire()


class ShareWaits(NamedTuple):
    """The purgatories: fetches are watched on their partitions, and on their share partitions."""

    fetches: DelayedOperationPurgatory
    locks: DelayedOperationPurgatory
