"""A topic of 200 partitions: the costs of planning and reading, and the limits."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from purgatory.cluster import ThreadedCluster
from purgatory.source.data_source import PurgatoryBatchReader
from purgatory.source.options import OffsetRange, from_document
from tests.spark.pipeline.source.micro_batches import MicroBatches
from tests.spark.pipeline.source.streams import Stream
from tests.spark.pipeline.source.topics import numbered, offsets_of, options, write

PARTITIONS = 200
RECORDS = 10 * PARTITIONS
BROKERS = 3
_TASKS = 2
"""Tasks that the session of the tests runs at a time."""


@pytest.fixture(scope="module")
def wide(cluster: ThreadedCluster) -> str:
    """A topic of many partitions with ten records each."""
    name = "many-partitions"
    cluster.create_topic(name, PARTITIONS, replication=1)
    write(cluster.bootstrap_servers, name, numbered(RECORDS, PARTITIONS))
    return name


class Connections:
    """The connections of clients to all brokers, sampled while a block runs."""

    def __init__(self, cluster: ThreadedCluster) -> None:
        self._cluster = cluster
        self._before = self._count()
        self.most = 0

    def _count(self) -> int:
        def count() -> int:
            return sum(
                len(broker._connections) for broker in self._cluster.running.brokers.values()
            )

        found: int = self._cluster.call(count)
        return found

    def sample(self) -> int:
        """Return the current number beyond that of the beginning."""
        more = self._count() - self._before
        self.most = max(self.most, more)
        return more


@contextmanager
def sampled_connections(cluster: ThreadedCluster) -> Iterator[Connections]:
    """Sample the connections during the block, and check that they are closed after it."""
    connections = Connections(cluster)
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.01):
            connections.sample()

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield connections
    finally:
        ended.set()
        thread.join()
    deadline_s = time.monotonic() + 30
    while connections.sample() > 0:
        assert time.monotonic() < deadline_s, "connections are left"
        time.sleep(0.05)


class Cost(NamedTuple):
    """The rows and resources of a process that reads range after range, like a worker of Spark."""

    rows: Counter[int]
    resident_mb: list[float]
    descriptors: list[int]
    threads: list[int]


def read_in_turn(servers: str, given: dict[str, Any], ranges: list[OffsetRange]) -> Cost:
    """Read ranges one after another; the costs are those after each."""
    reader = PurgatoryBatchReader(options(servers, given))
    cost = Cost(Counter(), [], [], [])
    for one in ranges:
        for batch in reader.read(one):
            cost.rows.update(batch["partition"].to_pylist())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        cost.resident_mb.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        cost.descriptors.append(len(os.listdir("/proc/self/fd")))
        cost.threads.append(len(os.listdir("/proc/self/task")))
    return cost


def test_200_partitions_need_the_resources_of_one(cluster: ThreadedCluster, wide: str) -> None:
    servers, given = cluster.bootstrap_servers, {"subscribe": wide}
    with sampled_connections(cluster) as connections:
        began_s = time.monotonic()
        ranges = PurgatoryBatchReader(options(servers, given)).partitions()
        # Some requests to each broker, not some for each partition; 0.3 s on an idle machine.
        assert time.monotonic() - began_s < 20
        assert len(ranges) == PARTITIONS
        # One for metadata, and one to each broker.
        assert connections.most <= 1 + BROKERS
    with (
        sampled_connections(cluster) as connections,
        ProcessPoolExecutor(1, get_context("spawn")) as worker,
    ):
        cost = worker.submit(read_in_turn, servers, given, ranges).result()
    assert cost.rows == dict.fromkeys(range(PARTITIONS), 10)
    # One consumer at a time: that which is closed, too, as long as its broker has not noticed.
    assert connections.most <= 2 * (1 + BROKERS)
    # The first ranges import modules and allocate memory that the others reuse.
    assert max(cost.resident_mb[20:]) - cost.resident_mb[20] < 30
    assert max(cost.descriptors) <= cost.descriptors[0] + 2
    assert max(cost.threads) <= cost.threads[0] + 2


@pytest.mark.parametrize(
    ("given", "count", "largest"),
    [
        ({}, PARTITIONS, 10),
        ({"minPartitions": 150}, PARTITIONS, 10),
        ({"minPartitions": 500}, 3 * PARTITIONS, 4),
        ({"maxRecordsPerPartition": 4}, 3 * PARTITIONS, 4),
        ({"minPartitions": 10 * RECORDS}, RECORDS, 1),
    ],
)
def test_a_batch_has_as_many_ranges_as_its_options_demand(
    cluster: ThreadedCluster, wide: str, given: dict[str, Any], count: int, largest: int
) -> None:
    asked = options(cluster.bootstrap_servers, {"subscribe": wide, **given})
    ranges = PurgatoryBatchReader(asked).partitions()
    assert len(ranges) == count
    assert max(one.end - one.start for one in ranges) == largest
    covered = [
        (one.topic_partition.partition, offset)
        for one in ranges
        for offset in range(one.start, one.end)
    ]
    assert covered == [(number, offset) for number in range(PARTITIONS) for offset in range(10)]


def test_partitions_take_turns_under_a_low_offset_limit(
    cluster: ThreadedCluster, wide: str
) -> None:
    sizes = []
    with MicroBatches(
        cluster.bootstrap_servers, subscribe=wide, startingOffsets="earliest"
    ) as live:
        while (end := live.plan(limit=150)) is not None:
            before, after = from_document(live.position), from_document(end)
            sizes.append(sum(after.values()) - sum(before.values()))
            # A checkpoint has all partitions, and none is far behind another.
            assert len(after) == PARTITIONS
            assert max(after.values()) - min(after.values()) <= 1
            live.position = end
    assert sizes == [150] * 13 + [50]
    assert set(from_document(live.position).values()) == {10}


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.timeout(1_800)
def test_spark_reads_200_partitions_with_little_overhead(
    spark: SparkSession, cluster: ThreadedCluster, wide: str, tmp_path: Path
) -> None:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    def plain_s() -> float:
        began_s = time.monotonic()
        numbers = spark.range(RECORDS, numPartitions=PARTITIONS)
        assert len(numbers.mapInArrow(count, "rows bigint").collect()) == PARTITIONS
        return time.monotonic() - began_s

    bound_s = 3 * max(plain_s(), plain_s()) + 20
    reader = (
        spark.read.format("purgatory")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("subscribe", wide)
    )
    with sampled_connections(cluster) as connections:
        began_s = time.monotonic()
        rows = reader.load().select("partition", "offset").collect()
        assert time.monotonic() - began_s < bound_s
    assert Counter(row.partition for row in rows) == dict.fromkeys(range(PARTITIONS), 10)
    # As above, for each task that runs at a time.
    assert connections.most <= _TASKS * 2 * (1 + BROKERS)
    live = Stream(
        spark,
        cluster.bootstrap_servers,
        tmp_path,
        subscribe=wide,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=RECORDS // 2,
    )
    with sampled_connections(cluster) as connections:
        began_s = time.monotonic()
        live.run()
        assert time.monotonic() - began_s < 2 * bound_s
    assert [len(rows) for _, rows in live.batches] == [RECORDS // 2] * 2
    for number in range(PARTITIONS):
        assert offsets_of(live.rows, number) == list(range(10))
    # And those of the driver: of its consumer, and of the client for the ids of topics.
    assert connections.most <= (_TASKS + 1) * 2 * (1 + BROKERS)
