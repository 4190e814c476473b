"""A log that says when its ends may have moved, for the trace."""

from __future__ import annotations

from purgatory.kafka import RecordBatch, TopicPartition
from purgatory.kafka.log.log import Log, LogConfig


class ToldLog(Log):
    """A replica's log.

    Args:
        config: its settings.
        broker, place: whose, and of which partition.
        moved: where it puts itself when an end may have moved.
    """

    __slots__ = ("broker", "moved", "place", "told_end")

    def __init__(
        self,
        config: LogConfig,
        broker: int,
        place: TopicPartition,
        moved: dict[ToldLog, None],
    ) -> None:
        super().__init__(config)
        self.broker = broker
        self.place = place
        self.moved = moved
        self.told_end = -1
        moved[self] = None

    def append(self, batch: RecordBatch) -> int:
        self.moved[self] = None
        return super().append(batch)

    def update_high_watermark(self, offset: int) -> bool:
        self.moved[self] = None
        return super().update_high_watermark(offset)

    def truncate_to(self, offset: int) -> None:
        self.moved[self] = None
        super().truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.moved[self] = None
        super().truncate_fully_and_start_at(offset)
