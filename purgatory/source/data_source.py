"""The data source "purgatory" as Spark sees it, and its batches: from here to there, in tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from purgatory.core.recent_errors import Logger
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.source.broker_client import BrokerClient
from purgatory.source.errors import (
    OptionError,
    lost_to_retention,
    partition_gone,
    shorter_log,
)
from purgatory.source.options import (
    EARLIEST,
    OffsetRange,
    Offsets,
    Position,
    SourceOptions,
    Subscription,
    parse_options,
)
from purgatory.source.partition_reader import column_names, spark_schema
from purgatory.source.stream_reader import PurgatoryStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_log = Logger("purgatory.source")


class PurgatoryDataSource(DataSource):
    """Topics of a Kafka-compatible cluster as rows.

    Args:
        options: as in docs/source.md.

    Raises:
        OptionError: one is missing, unknown, or has a value that it can't have.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = parse_options(options)

    @classmethod
    def name(cls) -> str:
        """Return what `format` is given."""
        return "purgatory"

    def schema(self) -> str:
        """Return the columns."""
        return spark_schema(self._checked.include_headers)

    def reader(self, schema: StructType) -> PurgatoryBatchReader:
        """Return what reads a batch."""
        self._checked.refuse_for_batch()
        self._check_columns(schema)
        return PurgatoryBatchReader(self._checked)

    def streamReader(self, schema: StructType) -> PurgatoryStreamReader:  # noqa: N802
        """Return what reads a stream."""
        self._checked.refuse_for_stream()
        self._check_columns(schema)
        return PurgatoryStreamReader(self._checked)

    def _check_columns(self, schema: StructType) -> None:
        expected = column_names(self._checked.include_headers)
        if schema.fieldNames() != expected:
            raise OptionError(
                f"schema() was given, but the columns are fixed: {', '.join(expected)}: leave it "
                "out, and select what you need from them"
            )


def register(spark: SparkSession) -> None:
    """Make the format "purgatory" known to a session; doing so again has no effect."""
    try:
        spark.dataSource.register(PurgatoryDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # of a session before, it stays
            raise


# A batch


class PurgatoryBatchReader(DataSourceReader):
    """Plans on the driver, and reads in the tasks.

    Args:
        options: of the query.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[OffsetRange]:
        """Return the ranges of the tasks."""
        options = self._options
        with closing(BrokerClient(options)) as client:
            existing = client.partitions(options.subscription)
            _check_topics_exist(options.subscription, existing)
            start = client.resolve("startingOffsets", options.start or Position(EARLIEST), existing)
            end = client.resolve("endingOffsets", options.end, existing)
            beginnings, ends = client.beginnings(existing), client.ends(existing)
        # A topic that was deleted between these requests.
        gone = set(existing) - (beginnings.keys() & start.keys() & end.keys() & ends.keys())
        if gone and options.fail_on_data_loss:
            raise partition_gone(min(gone), start.get(min(gone), 0))
        ranges = []
        for topic_partition in existing:
            if topic_partition in gone:
                continue
            upto = min(end[topic_partition], ends[topic_partition])
            if options.fail_on_data_loss:
                if start[topic_partition] < min(beginnings[topic_partition], upto):
                    raise lost_to_retention(
                        topic_partition, start[topic_partition], beginnings[topic_partition]
                    )
                if max(start[topic_partition], end[topic_partition]) > ends[topic_partition]:
                    raise shorter_log(
                        topic_partition,
                        max(start[topic_partition], end[topic_partition]),
                        ends[topic_partition],
                    )
            first = max(start[topic_partition], beginnings[topic_partition])
            if first < upto:
                ranges.append(OffsetRange(topic_partition, first, upto))
            elif start[topic_partition] < upto:
                _log.warning(
                    "records_lost",
                    topic=topic_partition.topic,
                    partition=topic_partition.partition,
                    offsets=upto - start[topic_partition],
                )
        most = options.max_records_per_partition or sys.maxsize
        parts = split(ranges, options.min_partitions, most)
        # Spark makes of an empty list one partition without a range.
        return _with_gaps(parts, start) or [
            OffsetRange(topic_partition, 0, 0) for topic_partition in existing[:1]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, in a task."""
        # Only tasks need Arrow: without it, the processes that plan start in half the time.
        from purgatory.source.partition_reader import PartitionReader

        if not isinstance(partition, OffsetRange):
            return iter(())
        return PartitionReader(self._options, partition).batches()


def _with_gaps(parts: list[OffsetRange], start: Offsets) -> list[OffsetRange]:
    """Return existing ranges, the first of each partition with the lost offsets before it."""
    started = set()
    ranges = []
    for part in parts:
        ranges.append(
            part
            if part.topic_partition in started
            else OffsetRange(part.topic_partition, start[part.topic_partition], part.end)
        )
        started.add(part.topic_partition)
    return ranges


def _check_topics_exist(subscription: Subscription, partitions: list[TopicPartition]) -> None:
    """Refuse missing topics: a stream waits for them, a batch would have no rows of them."""
    topics = {topic_partition.topic for topic_partition in partitions}
    for name in subscription.names:
        if name not in topics:
            raise OptionError(f"subscribe: there is no topic {name!r}: check its name")
    if not topics:
        raise OptionError(f"subscribePattern={subscription.pattern!r} matches no topic")


def split(ranges: Sequence[OffsetRange], at_least: int, at_most_records: int) -> list[OffsetRange]:
    """Divide ranges of offsets into smaller ones, for a batch.

    Args:
        ranges: all of the batch.
        at_least: the minimum number of ranges; fewer if there are fewer offsets.
        at_most_records: the maximum number of offsets in a range.
    """
    total = sum(whole.end - whole.start for whole in ranges)
    if total == 0:
        return list(ranges)
    most = min(at_most_records, max(1, total // max(1, at_least)))
    parts = []
    for whole in ranges:
        size = whole.end - whole.start
        pieces = -(-size // most)
        cuts = [whole.start + size * number // pieces for number in range(pieces + 1)]
        parts += [OffsetRange(whole.topic_partition, start, end) for start, end in pairwise(cuts)]
    return parts
