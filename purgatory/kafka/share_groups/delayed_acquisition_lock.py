"""The acquisition lock of a share group's records, which waits: its timeout releases them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.share_groups.share_state import ShareKey
from purgatory.kafka.topic_partition import TopicPartition


class AcquisitionLockKey(NamedTuple):
    """The watch key of an acquisition lock."""

    share_partition: ShareKey
    lock: int

    def __str__(self) -> str:
        return f"{self.share_partition}:{self.lock}"


class DelayedAcquisitionLock(DelayedOperation):
    """Expires an acquisition lock, unless all of its records are acknowledged before.

    Args:
        delay_ms: the duration of the lock.
        is_over: whether no record under the lock is acquired.
        expire: releases the records.
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
