"""The three ends of a log that fetches wait for, as thresholds.

A fetch that waits for bytes of one partition waits until the end that it sees, the log end for a
follower, the high watermark or the last stable offset for a consumer, is so many bytes further on.
The wait is for a threshold: an end that moves wakes only the fetches that it reached. Other reasons
to end the wait have no number, and then all fetches are checked:

    the end passed into another segment, or stood at its beginning: case F
    the log start moved: the epochs before it are forgotten, by which logs are compared (case H)
    this broker doesn't lead: cases A to E

While a broker leads, the ends only move up. When it begins to lead, the former values are
forgotten (`ReplicaManager`): its log may have been truncated since.

Ground rules: only the broker's loop touches the ends, as it does the log.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from purgatory.kafka.log.log import Log
from purgatory.kafka.topic_partition import TopicPartition


class FetchIsolation(Enum):
    """The end of what a fetch may see: the log's end for followers, another one for consumers."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    TXN_COMMITTED = "read_committed"


NEVER = 2**63 - 1
"""A position that no log reaches: positions are 64-bit numbers, as in Kafka."""

UNCHANGED = -1
"""In `EndPositions`: less than any position."""


class EndKey(NamedTuple):
    """The key of the fetches that wait for one end of a partition's log."""

    topic_partition: TopicPartition
    isolation: str


class EndKeys(NamedTuple):
    """The keys of a partition's three ends."""

    log_end: EndKey
    high_watermark: EndKey
    last_stable_offset: EndKey

    def key(self, isolation: FetchIsolation) -> EndKey:
        """Return the key of the end that a fetch sees."""
        if isolation is FetchIsolation.LOG_END:
            return self.log_end
        if isolation is FetchIsolation.HIGH_WATERMARK:
            return self.high_watermark
        return self.last_stable_offset


EndPositions = tuple[int, int, int]
"""The byte positions of the ends, in the order of `EndKeys`; UNCHANGED for an end that did not
move."""


def end_keys(topic_partition: TopicPartition) -> EndKeys:
    """Return the keys of a partition's ends."""
    log_end, high_watermark, last_stable = (
        EndKey(topic_partition, isolation.value)
        for isolation in (
            FetchIsolation.LOG_END,
            FetchIsolation.HIGH_WATERMARK,
            FetchIsolation.TXN_COMMITTED,
        )
    )
    return EndKeys(log_end, high_watermark, last_stable)


class LogEnds:
    """The last observed ends of a log."""

    __slots__ = ("_end_offset", "_high_watermark", "_last_stable_offset", "_start_offset")

    def __init__(self, log: Log) -> None:
        self.begin(log)

    def begin(self, log: Log) -> None:
        """Begin at the present ends: the log may have been truncated since the last call."""
        self._start_offset = log.start_offset
        self._end_offset = log.end_offset
        self._high_watermark = log.high_watermark
        self._last_stable_offset = log.last_stable_offset

    def advance(self, log: Log) -> EndPositions | None:
        """Return the positions of the ends that moved since the last call; None: check all waits.

        O(log n). An end that moved several times since then seems to have made one longer move.
        """
        start_offset, end_offset = log.start_offset, log.end_offset
        high_watermark, last_stable = log.high_watermark, log.last_stable_offset
        check_all = start_offset != self._start_offset
        end = committed = stable = UNCHANGED
        if end_offset != self._end_offset:
            segment, end = log.location_of(end_offset)
            check_all |= segment >= self._end_offset
        if high_watermark != self._high_watermark:
            segment, committed = log.location_of(high_watermark)
            check_all |= segment >= self._high_watermark
        if last_stable != self._last_stable_offset:
            if last_stable == high_watermark != self._high_watermark:
                stable = committed  # most often: there are no open transactions
            else:
                segment, stable = log.location_of(last_stable)
            check_all |= segment >= self._last_stable_offset
        self._start_offset, self._end_offset = start_offset, end_offset
        self._high_watermark, self._last_stable_offset = high_watermark, last_stable
        return None if check_all else (end, committed, stable)
