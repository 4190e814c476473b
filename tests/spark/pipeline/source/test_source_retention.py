"""Records that retention deletes before a stream has read them: an error, or a marked gap.

The driver finds records deleted between two micro-batches, a task those deleted between planning
and reading. Each lost offset is marked once, in a row or in the log.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from purgatory.cluster import ThreadedCluster
from purgatory.kafka import TopicPartition
from purgatory.source import DataLossError
from purgatory.source.data_source import PurgatoryBatchReader
from purgatory.source.options import OffsetRange
from purgatory.source.partition_reader import PartitionReader
from tests.spark.pipeline.source.micro_batches import MicroBatches
from tests.spark.pipeline.source.streams import Stream
from tests.spark.pipeline.source.topics import (
    Record,
    delete_before,
    numbered,
    offsets_of,
    options,
    write,
)

_SMALL_BATCHES: dict[str, str | int] = {"batch.num.messages": 5}


def _lost(topic: str, position: int, beginning: int, partition: int = 0) -> str:
    """A pattern of the whole error."""
    return re.escape(
        f"topic {topic} partition {partition}: offsets {position} to {beginning - 1} are gone "
        f"before they were read: retention deleted them, and the log begins at {beginning}. Start "
        "a new query with another checkpoint where a gap may not be; or set failOnDataLoss=false, "
        "and the first row after the gap has their number in gap_before"
    )


def _stream(cluster: ThreadedCluster, topic: str, **given: Any) -> MicroBatches:
    return MicroBatches(
        cluster.bootstrap_servers, subscribe=topic, startingOffsets="earliest", **given
    )


def _marked(rows: list[Any]) -> dict[tuple[int, int], int]:
    """The gaps, by the partition and the offset of the row that marks them."""
    return {
        (row["partition"], row["offset"]): row["gap_before"]
        for row in rows
        if row["gap_before"] is not None
    }


def test_driver_names_offsets_lost_between_two_batches(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, 2)
    write(cluster.bootstrap_servers, topic, numbered(20, 2))
    with _stream(cluster, topic) as live:
        live.run()
        assert live.position == {topic: {"0": 10, "1": 10}}
        write(cluster.bootstrap_servers, topic, numbered(20, 2, start=20))
        delete_before(cluster, topic, 14, partition=1)
        for _ in range(2):
            with pytest.raises(DataLossError, match=_lost(topic, 10, 14, partition=1)):
                live.plan()
            live.restart()
    assert len(live.rows) == 20, "nothing is read beyond it"


def test_task_names_offsets_lost_between_planning_and_reading(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, 2)
    write(cluster.bootstrap_servers, topic, numbered(20, 2))
    with _stream(cluster, topic) as live:
        live.plan()
        delete_before(cluster, topic, 4, partition=1)
        for _ in range(2):
            with pytest.raises(DataLossError, match=_lost(topic, 0, 4, partition=1)):
                live.read()
            # The batch is in the checkpoint: Spark plans no other after a restart.
            live.restart()


def test_batch_names_its_lost_offsets(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    delete_before(cluster, topic, 9)
    given = {"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"0": 5}}}}'}
    with pytest.raises(DataLossError, match=_lost(topic, 5, 9)):
        PurgatoryBatchReader(options(cluster.bootstrap_servers, given)).partitions()
    reader = PurgatoryBatchReader(options(cluster.bootstrap_servers, {"subscribe": topic}))
    ranges = reader.partitions()
    assert [(one.start, one.end) for one in ranges] == [(9, 20)]
    delete_before(cluster, topic, 12)
    with pytest.raises(DataLossError, match=_lost(topic, 9, 12)):
        list(reader.read(ranges[0]))


def test_lost_offset_is_marked_once_without_fail_on_data_loss(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, 2)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(40, 2))
    with capture_logs() as logs, _stream(cluster, topic, failOnDataLoss=False) as live:
        live.plan(limit=10)
        live.commit()
        # Between two batches.
        delete_before(cluster, topic, 8)
        live.plan(limit=10)
        assert live.position == {topic: {"0": 5, "1": 5}}
        # Between planning and reading: some of the planned records; attempts of a task agree.
        delete_before(cluster, topic, 10)
        assert _marked(live.read()) == _marked(live.read()) == {(0, 10): 5}
        live.restart()
        live.commit()
        assert live.position == {topic: {"0": 13, "1": 10}}
        # Between planning and reading: all of them, and more.
        live.plan(limit=6)
        delete_before(cluster, topic, 18)
        live.commit()
        assert live.position == {topic: {"0": 16, "1": 13}}
        live.run()
        assert live.position == {topic: {"0": 20, "1": 20}}
    assert offsets_of(live.rows, 0) == [*range(5), *range(10, 13), 18, 19]
    assert offsets_of(live.rows, 1) == list(range(20))
    assert _marked(live.rows) == {(0, 10): 5, (0, 18): 2}
    (log,) = [log for log in logs if log["event"] == "records_lost"]
    assert (log["topic"], log["partition"], log["offsets"], log["before"]) == (topic, 0, 3, 16)
    assert len(offsets_of(live.rows, 0)) + 5 + 2 + 3 == 20, "each lost offset is marked once"


def test_retention_before_the_next_record_is_marked_by_it(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(10))
    with capture_logs() as logs, _stream(cluster, topic, failOnDataLoss=False) as live:
        live.plan(limit=4)
        live.commit()
        delete_before(cluster, topic, 10)
        for _ in range(3):
            assert live.plan() is None
        live.restart()
        write(servers, topic, numbered(5, start=10))
        # Some of the new ones go before they are read, too.
        delete_before(cluster, topic, 12)
        live.run()
    assert _marked(live.rows) == {(0, 12): 8}
    assert offsets_of(live.rows) == [*range(4), 12, 13, 14]
    assert not [log for log in logs if log["event"] == "records_lost"]


@pytest.mark.parametrize("fails", [True, False])
def test_retention_while_a_task_reads_is_an_error_or_marked(
    cluster: ThreadedCluster, topic: str, fails: bool
) -> None:
    cluster.create_topic(topic, replication=1)
    count = 3_000
    large = [Record(b"%d%s" % (number, bytes(1_000))) for number in range(count)]
    write(cluster.bootstrap_servers, topic, large, **_SMALL_BATCHES)
    # The client fetches little in advance.
    given = {"subscribe": topic, "failOnDataLoss": fails}
    given |= {"kafka.fetch.message.max.bytes": 20_000, "kafka.queued.max.messages.kbytes": 20}
    reader = PartitionReader(
        options(cluster.bootstrap_servers, given), OffsetRange(TopicPartition(topic, 0), 0, count)
    )
    batches = reader.batches()
    rows = next(batches).to_pylist()
    delete_before(cluster, topic, 2_500)
    if fails:
        with pytest.raises(DataLossError, match=rf"{topic} partition 0: offsets \d+ to 2499 are"):
            rows.extend(row for batch in batches for row in batch.to_pylist())
    else:
        rows += [row for batch in batches for row in batch.to_pylist()]
        assert offsets_of(rows)[-500:] == list(range(2_500, count))
        ((marking, gap),) = _marked(rows).items()
        assert marking == (0, 2_500)
        assert gap == count - len(rows)
    before = [offset for offset in offsets_of(rows) if offset < 2_500]
    assert before == list(range(len(before)))


def test_segments_dropped_by_retention_are_noticed(cluster: ThreadedCluster, topic: str) -> None:
    settings = {"internal.segment.bytes": "1000", "retention.bytes": "3000"}
    cluster.create_topic(topic, replication=1, settings=settings)
    write(cluster.bootstrap_servers, topic, numbered(20))
    with (
        _stream(cluster, topic) as strict,
        _stream(cluster, topic, failOnDataLoss=False) as live,
    ):
        for one in (strict, live):
            one.plan(limit=5)
            one.commit()
        write(cluster.bootstrap_servers, topic, numbered(500, start=20), **_SMALL_BATCHES)
        with pytest.raises(DataLossError, match=rf"{topic} partition 0: offsets 5 to \d+ are gone"):
            strict.plan()
        live.run(limit=100)
    ((marking, gap),) = _marked(live.rows).items()
    assert marking == (0, 5 + gap)
    assert offsets_of(live.rows) == [*range(5), *range(5 + gap, 520)]


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_spark_fails_at_or_marks_retention_after_planning(
    spark: SparkSession, cluster: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic, 2)
    servers = cluster.bootstrap_servers
    write(servers, topic, numbered(80, 2))
    given = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 20}
    strict = Stream(spark, servers, tmp_path, **given)

    def delete(number: int) -> None:
        # The frame of the batch is read afterwards.
        if number == 1:
            delete_before(cluster, topic, 14)
        elif number == 2:
            delete_before(cluster, topic, 35)

    strict.before_batch = delete
    with pytest.raises(StreamingQueryException, match=_lost(topic, 10, 14)):
        strict.run()
    assert [number for number, _ in strict.batches] == [0]
    # The planned batch comes again from the checkpoint, with its gap.
    live = Stream(spark, servers, tmp_path, **given, failOnDataLoss=False)
    live.before_batch = delete
    live.run()
    rows = strict.rows + live.rows
    assert offsets_of(rows, 0) == [*range(10), *range(14, 20), *range(35, 40)]
    assert offsets_of(rows, 1) == list(range(40))
    # Of offsets 20 to 29 no row was left in their batch; the log of the worker has their number.
    assert _marked(rows) == {(0, 14): 4, (0, 35): 5}
