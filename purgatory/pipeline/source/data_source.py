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
from purgatory.pipeline.source.broker_client import BrokerClient
from purgatory.pipeline.source.errors import OptionError, lost_to_retention, shorter_log
from purgatory.pipeline.source.options import (
    EARLIEST,
    OffsetRange,
    Offsets,
    Position,
    SourceOptions,
    Subscription,
    options_of,
)
from purgatory.pipeline.source.partition_reader import column_names, spark_schema
from purgatory.pipeline.source.stream_reader import PurgatoryStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_log = Logger("purgatory.pipeline.source")


class PurgatoryDataSource(DataSource):
    """Topics of a Kafka-compatible cluster as rows.

    Args:
        options: as in docs/source.md.

    Raises:
        OptionError: one is missing, unknown, or has a value that it can't have.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = options_of(options)

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
        right = column_names(self._checked.include_headers)
        if schema.fieldNames() != right:
            raise OptionError(
                f"schema() was given, but the columns are fixed: {', '.join(right)}: leave it out, "
                "and select what you need from them"
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
            there = client.partitions(options.subscription)
            _check_there(options.subscription, there)
            start = client.resolve("startingOffsets", options.start or Position(EARLIEST), there)
            end = client.resolve("endingOffsets", options.end, there)
            beginnings, ends = client.beginnings(there), client.ends(there)
        ranges = []
        for of in there:
            upto = min(end[of], ends[of])
            if options.fail_on_data_loss:
                if start[of] < min(beginnings[of], upto):
                    raise lost_to_retention(of, start[of], beginnings[of])
                if max(start[of], end[of]) > ends[of]:
                    raise shorter_log(of, max(start[of], end[of]), ends[of])
            there_from = max(start[of], beginnings[of])
            if there_from < upto:
                ranges.append(OffsetRange(of, there_from, upto))
            elif start[of] < upto:
                _log.warning(
                    "records_lost", topic=of.topic, partition=of.partition, offsets=upto - start[of]
                )
        most = options.max_records_per_partition or sys.maxsize
        parts = split(ranges, options.min_partitions, most)
        # Spark makes of an empty list one partition without a range.
        return _with_gaps(parts, start) or [OffsetRange(of, 0, 0) for of in there[:1]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, in a task."""
        # Only tasks need Arrow: without it, the processes that plan start in half the time.
        from purgatory.pipeline.source.partition_reader import PartitionReader

        if not isinstance(partition, OffsetRange):
            return iter(())
        return PartitionReader(self._options, partition).batches()


def _with_gaps(parts: list[OffsetRange], start: Offsets) -> list[OffsetRange]:
    """Return existing ranges, the first of each partition with the lost offsets before it."""
    seen = set()
    found = []
    for part in parts:
        found.append(part if part.of in seen else OffsetRange(part.of, start[part.of], part.end))
        seen.add(part.of)
    return found


def _check_there(subscription: Subscription, there: list[TopicPartition]) -> None:
    """Refuse missing topics: a stream waits for them, a batch would have no rows of them."""
    known = {of.topic for of in there}
    for name in subscription.names:
        if name not in known:
            raise OptionError(f"subscribe: there is no topic {name!r}: check its name")
    if not known:
        raise OptionError(f"subscribePattern={subscription.pattern!r} matches no topic")


def split(ranges: Sequence[OffsetRange], at_least: int, at_most_records: int) -> list[OffsetRange]:
    """Divide ranges of offsets into smaller ones, for a batch.

    Args:
        ranges: all of the batch.
        at_least: the minimum number of ranges; fewer if there are fewer offsets.
        at_most_records: the maximum number of offsets in a range.
    """
    total = sum(found.end - found.start for found in ranges)
    if total == 0:
        return list(ranges)
    most = min(at_most_records, max(1, total // max(1, at_least)))
    parts = []
    for found in ranges:
        size = found.end - found.start
        pieces = -(-size // most)
        cuts = [found.start + size * number // pieces for number in range(pieces + 1)]
        parts += [OffsetRange(found.of, start, end) for start, end in pairwise(cuts)]
    return parts
