"""The data source as a stream: the offset ranges of Spark's micro-batches.

One instance lives on the driver as long as the query; copies of it in the tasks only read. The
offsets are in the query's checkpoint and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from purgatory.core.recent_errors import Logger
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.source.broker_client import GRACE_S, BrokerClient, TopicIds
from purgatory.source.errors import (
    lost_to_retention,
    partition_gone,
    shorter_log,
    topic_recreated,
)
from purgatory.source.options import (
    LATEST,
    OffsetRange,
    Offsets,
    OffsetsDocument,
    Position,
    SourceOptions,
    from_document,
    to_document,
)
from purgatory.source.spark_classes import (
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa

_AGAIN_S = 0.5
_IDS_EVERY_S = 5.0
"""The interval at which the ids of topics are requested while there is nothing to read."""

_log = Logger("purgatory.source")


class PurgatoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches at the driver, and reads in the tasks.

    Args:
        options: of the query.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: BrokerClient | None = None
        self._ids: TopicIds | None = None
        self._ids_asked_s = -_IDS_EVERY_S
        self._first: OffsetsDocument | None = None
        self._first_is_due = False
        self._target: Offsets | None = None
        self._log_ends: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the driver needs."""
        return {**self.__dict__, "_client": None, "_ids": None}

    def initialOffset(self) -> OffsetsDocument:  # noqa: N802
        """Return the start of a query without a checkpoint, the same at each call."""
        if self._first is None:
            client = self._get_client()
            start = self._options.start or Position(LATEST)
            partitions = client.partitions(self._options.subscription)
            self._warn_of_missing({topic_partition.topic for topic_partition in partitions})
            self._first = to_document(client.resolve("startingOffsets", start, partitions))
            # A position that moves is written into the checkpoint by a first batch without rows: a
            # query that stops during its first batch with rows will find it there.
            self._first_is_due = start.moves
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return maxOffsetsPerTrigger."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the current ends of the logs."""
        client = self._get_client()
        self._target = client.ends(client.partitions(self._options.subscription))

    def latestOffset(self, start: OffsetsDocument, limit: ReadLimit) -> OffsetsDocument:  # noqa: N802
        """Return the end of the next micro-batch."""
        if self._first_is_due and start == self._first:
            self._first_is_due = False
            return start
        positions = from_document(start)
        beginnings, ends = self._log_bounds(positions)
        self._log_ends = ends
        backlog = {}
        for topic_partition, end in ends.items():
            position = positions.setdefault(topic_partition, 0)
            beginning = beginnings[topic_partition]
            if position < beginning and self._options.fail_on_data_loss:
                raise lost_to_retention(topic_partition, position, beginning)
            backlog[topic_partition] = max(0, end - max(position, beginning))
        self._check_ids(
            {topic_partition.topic for topic_partition in ends}, now=any(backlog.values())
        )
        admitted = backlog
        if isinstance(limit, ReadMaxRows):
            admitted = admit(backlog, limit.max_rows, sum(positions.values()))
        end_offsets = {}
        for topic_partition, end in ends.items():
            if admitted[topic_partition]:
                end_offsets[topic_partition] = (
                    max(positions[topic_partition], beginnings[topic_partition])
                    + admitted[topic_partition]
                )
            else:
                # Not beyond lost records: no row of this batch could mark the gap.
                end_offsets[topic_partition] = min(positions[topic_partition], end)
        return to_document(end_offsets)

    def reportLatestOffset(self) -> OffsetsDocument | None:  # noqa: N802
        """Return the ends of the logs, as far as they are known, for the query's progress."""
        return None if self._log_ends is None else to_document(self._log_ends)

    def partitions(self, start: OffsetsDocument, end: OffsetsDocument) -> list[OffsetRange]:
        """Return a range for each partition with something to read."""
        positions = from_document(start)
        return [
            OffsetRange(topic_partition, positions.get(topic_partition, 0), upto)
            for topic_partition, upto in sorted(from_document(end).items())
            if positions.get(topic_partition, 0) < upto
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, in a task."""
        # Only tasks need Arrow: without it, the processes that plan start in half the time.
        from purgatory.source.partition_reader import PartitionReader

        assert isinstance(partition, OffsetRange)
        return PartitionReader(self._options, partition).batches()

    def stop(self) -> None:
        """Close the driver's connections."""
        if self._client is not None:
            self._client.close()
            self._client = self._ids = None

    def _warn_of_missing(self, topics: Collection[str]) -> None:
        for name in self._options.subscription.names:
            if name not in topics:
                _log.warning("topic_missing", topic=name, reason="read from when it is made")

    def _check_ids(self, topics: Collection[str], *, now: bool) -> None:
        """Check that no topic was created again: before each batch, and at an interval."""
        asked_s = time.monotonic()
        if not topics or not (now or asked_s >= self._ids_asked_s + _IDS_EVERY_S):
            return
        if self._ids is None:
            self._ids = TopicIds(self._options.client)
        for topic in self._ids.recreated(topics):
            if self._options.fail_on_data_loss:
                raise topic_recreated(topic)
            _log.warning("topic_recreated", topic=topic, reason="read from where the old one was")
        self._ids_asked_s = asked_s

    def _get_client(self) -> BrokerClient:
        if self._client is None:
            self._client = BrokerClient(self._options)
        return self._client

    def _log_bounds(self, positions: Mapping[TopicPartition, int]) -> tuple[Offsets, Offsets]:
        """Return the beginnings and the ends of the logs, once they agree with the positions.

        A broker that has just restarted may not know all topics yet, and a new leader may not have
        the whole log: records count as lost only after a grace period.
        """
        deadline_s = time.monotonic() + min(GRACE_S, self._options.timeout_ms / 1000)
        while True:
            client = self._get_client()
            partitions = client.partitions(self._options.subscription)
            if self._target is not None:
                partitions = [
                    topic_partition
                    for topic_partition in partitions
                    if topic_partition in positions or topic_partition in self._target
                ]
            beginnings, ends = client.beginnings(partitions), client.ends(partitions)
            partitions = [
                topic_partition
                for topic_partition in partitions
                if topic_partition in beginnings and topic_partition in ends
            ]
            gone = sorted(positions.keys() - set(partitions))
            short = [
                topic_partition
                for topic_partition in partitions
                if ends[topic_partition] < positions.get(topic_partition, 0)
            ]
            if not gone and not short:
                break
            if time.monotonic() > deadline_s:
                if self._options.fail_on_data_loss:
                    topic_partition = (gone or short)[0]
                    raise (
                        partition_gone(topic_partition, positions[topic_partition])
                        if gone
                        else shorter_log(
                            topic_partition, positions[topic_partition], ends[topic_partition]
                        )
                    )
                break
            time.sleep(_AGAIN_S)
        if self._target is not None:
            ends = {
                topic_partition: min(
                    end,
                    max(positions.get(topic_partition, 0), self._target.get(topic_partition, 0)),
                )
                for topic_partition, end in ends.items()
            }
        return beginnings, ends


# Admission: how the offsets of a trigger are shared among partitions
#
# Each partition gets the same; an unused share goes to the others. None waits for one with a
# long backlog, and those with a short one are read to their end.


def admit(
    backlog: Mapping[TopicPartition, int], limit: int, turn: int
) -> dict[TopicPartition, int]:
    """Return the number of offsets to read of each partition.

    Args:
        backlog: the number of offsets of each partition.
        limit: of all partitions, at least 1.
        turn: the partition that gets the first of the remainder, if not all get the same. With the
            number of offsets read so far, they take turns.

    O(n log n) in the number of partitions.
    """
    admitted = dict.fromkeys(backlog, 0)
    # Those with little first: then what is left is shared by those that can use it.
    hungry = sorted(
        (topic_partition for topic_partition in backlog if backlog[topic_partition] > 0),
        key=lambda topic_partition: (backlog[topic_partition], topic_partition),
    )
    remaining = limit
    for index, topic_partition in enumerate(hungry):
        share = remaining // (len(hungry) - index)
        if backlog[topic_partition] > share:
            # Each gets its share, and some get one more, in turns.
            among = sorted(hungry[index:])
            extra = remaining - share * len(among)
            for number, candidate in enumerate(among):
                admitted[candidate] = share + ((number - turn) % len(among) < extra)
            break
        admitted[topic_partition] = backlog[topic_partition]
        remaining -= backlog[topic_partition]
    return admitted
