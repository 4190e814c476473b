"""The data source as a batch: from here to there, in as many tasks as asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from purgatory.client.errors import OptionError
from purgatory.core.recent_errors import Logger
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.source.admission import split
from purgatory.source.broker_client import BrokerClient
from purgatory.source.data_loss import lost_to_retention, shorter_log
from purgatory.source.partition_offsets import OffsetRange, Offsets
from purgatory.source.positions import EARLIEST, Position
from purgatory.source.source_options import SourceOptions, Subscription

if TYPE_CHECKING:
    import pyarrow as pa

_log = Logger("purgatory.source")


class PurgatoryBatchReader(DataSourceReader):
    """Plans at the driver, and reads in the tasks.

    Args:
        options: of the query.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[OffsetRange]:
        """Return what each task reads."""
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
        from purgatory.source.partition_reader import PartitionReader

        if not isinstance(partition, OffsetRange):
            return iter(())
        return PartitionReader(self._options, partition).batches()


def _with_gaps(parts: list[OffsetRange], start: Offsets) -> list[OffsetRange]:
    """Return ranges of what is there, the first of each partition with what is lost before it."""
    seen = set()
    found = []
    for part in parts:
        found.append(part if part.of in seen else OffsetRange(part.of, start[part.of], part.end))
        seen.add(part.of)
    return found


def _check_there(subscription: Subscription, there: list[TopicPartition]) -> None:
    """A stream waits for topics that are not there yet; a batch would have no rows of them."""
    known = {of.topic for of in there}
    for name in subscription.names:
        if name not in known:
            raise OptionError(f"subscribe: there is no topic {name!r}: check its name")
    if not known:
        raise OptionError(f"subscribePattern={subscription.pattern!r} matches no topic")
