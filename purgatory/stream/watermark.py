"""The watermark of a stream: the event time before which rows are late, held back by partition.

It is not Spark's. Spark has one for a whole stream, behind the newest row of any partition: after a
pause, a quiet partition that is read to its end would move it past the rows of a busy one, which is
read in many batches. Here a partition with unread records holds the watermark back to its own
newest row, and one that is read to its end does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from purgatory.kafka.topic_partition import TopicPartition


class Watermark(NamedTuple):
    """The progress of event time.

    Args:
        us: the watermark, in microseconds since 1970: no window ends before it that is open.
        newest_us: the time of the newest row of each partition; None: it had invalid ones only.
    """

    us: int = 0
    newest_us: Mapping[TopicPartition, int | None] = {}

    def advance(
        self,
        newest_us: Mapping[TopicPartition, int | None],
        unread: Iterable[TopicPartition],
        delay_us: int,
    ) -> Watermark:
        """Return the watermark behind a batch.

        Args:
            newest_us: of the rows of the batch.
            unread: the partitions with records that no batch has read yet.
            delay_us: how late a row may be.
        """
        newest = dict(self.newest_us)
        for partition, time_us in newest_us.items():
            newest[partition] = max(filter(None, (newest.get(partition), time_us)), default=None)
        held = [time_us for one in unread if (time_us := newest.get(one, 0)) is not None]
        reached_us = min(held) if held else max(filter(None, newest.values()), default=0)
        return Watermark(max(self.us, reached_us - delay_us), newest)
