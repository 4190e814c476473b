"""The compaction of one broker's logs, a few milliseconds at a time.

Ground rules
------------
* Everything happens on the event loop's thread; other tasks run between two slices.
* A log that can't be read or written is left as it is, with one line in the log until it can.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from purgatory.cluster.batch_contents import StoredContents
from purgatory.core.recent_errors import Logger
from purgatory.kafka import Log, Partition, TopicPartition
from purgatory.kafka.log.log_cleaner import LogCleaning, cleanable_segments, compact

_SLICE_S = 0.005

_log = Logger("purgatory.cluster")


class LogCompaction:
    """Compacts the logs of one process of a broker."""

    def __init__(self) -> None:
        self._contents = StoredContents()
        self._cleanings: dict[TopicPartition, tuple[Log, LogCleaning]] = {}
        self._failed: set[str] = set()
        self._is_running = False

    async def compact(self, partitions: Sequence[Partition], now_ms: int) -> None:
        """Compact what is worth it. Has no effect while that is under way already.

        Args:
            partitions: all that may be compacted.
            now_ms: in milliseconds since 1970.
        """
        if self._is_running:
            return
        self._is_running = True
        try:
            there = {one.topic_partition for one in partitions}
            for gone in self._cleanings.keys() - there:
                del self._cleanings[gone]
            for partition in partitions:
                await self._compact(partition, now_ms)
        finally:
            self._is_running = False

    async def _compact(self, partition: Partition, now_ms: int) -> None:
        log = partition.log
        if not log.config.compacts:
            return
        name = str(partition.topic_partition)
        known, cleaning = self._cleanings.get(partition.topic_partition, (None, LogCleaning()))
        if known is not log:
            cleaning = LogCleaning()
            self._cleanings[partition.topic_partition] = (log, cleaning)
        try:
            segments = cleanable_segments(log, cleaning, self._contents, now_ms)
            if not segments:
                return
            before_bytes = sum(segment.size_bytes for segment in segments)
            slice_end_s = time.monotonic() + _SLICE_S
            for _ in compact(
                log, segments, cleaning, self._contents, now_ms, partition.replace_segments
            ):
                if time.monotonic() >= slice_end_s:
                    await asyncio.sleep(0)
                    slice_end_s = time.monotonic() + _SLICE_S
        except (OSError, ValueError) as error:
            if name not in self._failed:
                self._failed.add(name)
                _log.error("not_compacted", partition=name, reason=str(error))
            return
        self._failed.discard(name)
        _log.info("compacted", partition=name, from_bytes=before_bytes, log_bytes=log.size_bytes)
