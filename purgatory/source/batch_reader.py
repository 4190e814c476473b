"""The data source as a batch: from here to there, in as many tasks as asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from purgatory.kafka.topic_partition import TopicPartition
from purgatory.source.admission import split
from purgatory.source.broker_client import BrokerClient
from purgatory.source.data_loss import lost_to_retention, shorter_log
from purgatory.source.errors import OptionError
from purgatory.source.offsets import OffsetRange
from purgatory.source.options import SourceOptions, Subscription
from purgatory.source.partition_reader import PartitionReader
from purgatory.source.positions import EARLIEST, Position


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
            position, upto = start[of], min(end[of], ends[of])
            if options.fail_on_data_loss:
                if position < beginnings[of] and position < upto:
                    raise lost_to_retention(of, position, beginnings[of])
                if max(position, end[of]) > ends[of]:
                    raise shorter_log(of, max(position, end[of]), ends[of])
            if position < upto:
                ranges.append(OffsetRange(of, position, upto))
        if not ranges:
            # Spark makes of an empty list one partition without a range.
            return [OffsetRange(of, 0, 0) for of in there[:1]]
        most = options.max_records_per_partition or sys.maxsize
        return split(ranges, options.min_partitions, most)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, in a task."""
        if not isinstance(partition, OffsetRange):
            return iter(())
        return PartitionReader(self._options, partition).batches()


def _check_there(subscription: Subscription, there: list[TopicPartition]) -> None:
    """A stream waits for topics that are not there yet; a batch would have no rows of them."""
    known = {of.topic for of in there}
    for name in subscription.names:
        if name not in known:
            raise OptionError(f"subscribe: there is no topic {name!r}: check its name")
    if not known:
        raise OptionError(f"subscribePattern={subscription.pattern!r} matches no topic")
