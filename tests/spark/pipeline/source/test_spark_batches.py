"""`spark.read` of the format, from a real cluster."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from purgatory.cluster import ThreadedCluster
from tests.spark.pipeline.source.topics import Record, delete_before, numbered, offsets_of, write

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def _read(spark: SparkSession, cluster: ThreadedCluster, **given: Any) -> DataFrame:
    reader = spark.read.format("purgatory").option(
        "kafka.bootstrap.servers", cluster.bootstrap_servers
    )
    for name, value in given.items():
        reader = reader.option(name, value)
    return reader.load()


def test_the_columns_are_those_of_sparks_own_source_and_the_gap(
    spark: SparkSession, cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    assert [tuple(column) for column in _read(spark, cluster, subscribe=topic).dtypes] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("gap_before", "bigint"),
    ]
    with_headers = _read(spark, cluster, subscribe=topic, includeHeaders=True)
    assert dict(with_headers.dtypes)["headers"] == "array<struct<key:string,value:binary>>"


def test_a_batch_has_every_record_with_headers_and_nulls(
    spark: SparkSession, cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, 2)
    records = [
        Record(b"v", 0, b"k", 1_234, [("h", b"\x00"), ("h", None)]),
        Record(None, 1, b"gone", 5_000),
    ]
    write(cluster.bootstrap_servers, topic, records)
    rows = (
        _read(spark, cluster, subscribe=topic, includeHeaders=True).orderBy("partition").collect()
    )
    assert [(row.key, row.value, row.partition, row.offset) for row in rows] == [
        (b"k", b"v", 0, 0),
        (b"gone", None, 1, 0),
    ]
    assert [tuple(header) for header in rows[0].headers] == [("h", b"\x00"), ("h", None)]
    assert rows[1].headers is None
    assert rows[0].timestamp.microsecond == 234_000


def test_batch_has_bounds_by_offsets_or_times(
    spark: SparkSession, cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, 2)
    write(cluster.bootstrap_servers, topic, numbered(40, 2))
    by_offset = _read(
        spark,
        cluster,
        subscribe=topic,
        startingOffsets=f'{{"{topic}": {{"0": 3, "1": -2}}}}',
        endingOffsets=f'{{"{topic}": {{"0": 7, "1": 2}}}}',
    ).collect()
    assert offsets_of(by_offset, 0) == [3, 4, 5, 6]
    assert offsets_of(by_offset, 1) == [0, 1]
    by_time = _read(
        spark, cluster, subscribe=topic, startingTimestamp=1_010, endingTimestamp=1_014
    ).collect()
    assert sorted(int(row.value) for row in by_time) == [10, 11, 12, 13]


def test_a_batch_is_split_into_tasks_by_ranges_of_offsets(
    spark: SparkSession, cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, 2)
    write(cluster.bootstrap_servers, topic, numbered(100, 2))
    whole = _read(spark, cluster, subscribe=topic)
    assert whole.rdd.getNumPartitions() == 2
    in_ten = _read(spark, cluster, subscribe=topic, minPartitions=10)
    assert in_ten.rdd.getNumPartitions() == 10
    rows = _read(spark, cluster, subscribe=topic, maxRecordsPerPartition=30).collect()
    assert offsets_of(rows, 0) == offsets_of(rows, 1) == list(range(50))


def test_a_pattern_reads_all_topics_that_it_matches(
    spark: SparkSession, cluster: ThreadedCluster, topic: str
) -> None:
    for name in (f"{topic}-a", f"{topic}-b", f"other-{topic}"):
        cluster.create_topic(name)
        write(cluster.bootstrap_servers, name, numbered(2))
    rows = _read(spark, cluster, subscribePattern=f"{topic}-.").collect()
    assert sorted(row.topic for row in rows) == [f"{topic}-a"] * 2 + [f"{topic}-b"] * 2


def test_topic_without_records_has_no_rows(
    spark: SparkSession, cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    assert _read(spark, cluster, subscribe=topic).collect() == []


def test_missing_offsets_of_a_batch_are_an_error_or_a_marked_gap(
    spark: SparkSession, cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    delete_before(cluster, topic, 8)
    asked = {"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"0": 5}}}}'}
    with pytest.raises(AnalysisException, match="offsets 5 to 7 are gone"):
        _read(spark, cluster, **asked).collect()
    rows = _read(spark, cluster, **asked, failOnDataLoss=False).collect()
    assert [(row.offset, row.gap_before) for row in rows[:2]] == [(8, 3), (9, None)]
    beyond = f'{{"{topic}": {{"0": 90}}}}'
    with pytest.raises(AnalysisException, match="up to offset 90, but ends at 20"):
        _read(spark, cluster, subscribe=topic, startingOffsets=beyond).collect()


def test_missing_topic_is_an_error(spark: SparkSession, cluster: ThreadedCluster) -> None:
    with pytest.raises(AnalysisException, match="there is no topic 'nowhere'"):
        _read(spark, cluster, subscribe="nowhere").collect()


def test_invalid_option_is_refused_when_the_frame_is_created(
    spark: SparkSession, cluster: ThreadedCluster
) -> None:
    with pytest.raises(AnalysisException, match='did you mean "startingOffsets"'):
        _read(spark, cluster, subscribe="a", startingOffset="earliest")
    with pytest.raises(AnalysisException, match="the columns are fixed"):
        spark.read.format("purgatory").option("kafka.bootstrap.servers", "127.0.0.1:1").option(
            "subscribe", "a"
        ).schema("value string").load().collect()
