"""The reading of one range of offsets by a task, from a real cluster, without Spark."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import crc32c
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from purgatory.cluster import Cluster, ThreadedCluster
from purgatory.kafka import AppendOrigin, RecordBatch, TopicPartition
from purgatory.source import BrokerError, DataLossError, partition_reader
from purgatory.source.options import OffsetRange
from purgatory.source.partition_reader import PartitionReader
from tests.spark.pipeline.source.topics import (
    Record,
    delete_before,
    numbered,
    offsets_of,
    options,
    write,
)


def _rows(
    cluster: ThreadedCluster, topic: str, start: int, end: int, **given: Any
) -> list[dict[str, Any]]:
    asked = options(cluster.bootstrap_servers, {"subscribe": topic, **given})
    found = OffsetRange(TopicPartition(topic, 0), start, end)
    return [row for batch in PartitionReader(asked, found).batches() for row in batch.to_pylist()]


def test_a_range_is_read_from_its_start_up_to_its_end(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(5_000))
    rows = _rows(cluster, topic, 17, 4_321)
    assert offsets_of(rows) == list(range(17, 4_321))
    assert [row["value"] for row in rows] == [b"%d" % number for number in range(17, 4_321)]
    assert {row["gap_before"] for row in rows} == {None}


def test_keys_values_times_and_headers_come_as_they_were_written(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    records = [
        Record(b"v", key=b"\x00\xff", time_ms=1_234, headers=[("h", b"\x01"), ("h", None)]),
        Record(None, key=b"gone", time_ms=0),
        Record(b"", key=b""),
    ]
    write(cluster.bootstrap_servers, topic, records[:1] + records[2:])
    write(cluster.bootstrap_servers, topic, [records[1]._replace(time_ms=7)])
    first, empty, gone = _rows(cluster, topic, 0, 3, includeHeaders=True)
    assert (first["key"], first["value"]) == (b"\x00\xff", b"v")
    assert first["timestamp"].timestamp() == 1.234
    assert first["timestampType"] == 0
    assert first["headers"] == [{"key": "h", "value": b"\x01"}, {"key": "h", "value": None}]
    assert (empty["key"], empty["value"], empty["headers"]) == (b"", b"", None)
    assert (gone["key"], gone["value"]) == (b"gone", None)
    assert (first["topic"], first["partition"]) == (topic, 0)


def test_large_values_come_in_batches_of_some_megabytes(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    large = bytes(500_000)
    write(cluster.bootstrap_servers, topic, [Record(large)] * 60)
    asked = options(cluster.bootstrap_servers, {"subscribe": topic})
    found = OffsetRange(TopicPartition(topic, 0), 0, 60)
    reader = PartitionReader(asked, found)
    sizes = [batch.num_rows for batch in reader.batches()]
    assert sum(sizes) == 60
    assert max(sizes[1:], default=1) <= 8 * 1024 * 1024 / len(large)


def test_deleted_records_are_an_error_with_advice(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    delete_before(cluster, topic, 12)
    with pytest.raises(
        DataLossError, match=f"{topic} partition 0: offsets 5 to 11 are gone"
    ) as why:
        _rows(cluster, topic, 5, 20)
    assert "failOnDataLoss=false" in str(why.value)


def test_deleted_records_are_counted_in_the_next_row(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    delete_before(cluster, topic, 12)
    rows = _rows(cluster, topic, 5, 20, failOnDataLoss=False)
    assert offsets_of(rows) == list(range(12, 20))
    assert [row["gap_before"] for row in rows] == [7] + [None] * 7


def test_lost_range_is_logged(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    delete_before(cluster, topic, 12)
    with capture_logs() as logs:
        assert _rows(cluster, topic, 5, 10, failOnDataLoss=False) == []
    assert [(line["event"], line["offsets"]) for line in logs] == [("records_lost", 5)]


def test_truncated_log_is_an_error(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    with pytest.raises(DataLossError, match="read up to offset 50, but ends at 20"):
        _rows(cluster, topic, 50, 60)
    assert _rows(cluster, topic, 50, 60, failOnDataLoss=False) == []


@pytest.mark.parametrize("fails", [True, False])
def test_log_truncated_after_planning_ends_the_range(
    cluster: ThreadedCluster, topic: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purgatory.source.broker_client.GRACE_S", 1.0)
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    began_s = time.monotonic()
    if fails:
        with pytest.raises(
            DataLossError, match=f"{topic} partition 0 was planned .* up to offset 30, but ends at"
        ):
            _rows(cluster, topic, 10, 30)
    else:
        with capture_logs() as logs:
            rows = _rows(cluster, topic, 10, 30, failOnDataLoss=False)
        assert offsets_of(rows) == list(range(10, 20))
        assert [log["offsets"] for log in logs if log["event"] == "records_lost"] == [10]
    assert time.monotonic() - began_s < 60, "it does not wait for the 120 s of a poll"


def test_reader_waits_for_a_temporarily_short_log(cluster: ThreadedCluster, topic: str) -> None:
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(20))
    late = threading.Timer(
        3.0, lambda: write(cluster.bootstrap_servers, topic, numbered(10, start=20))
    )
    late.start()
    try:
        assert offsets_of(_rows(cluster, topic, 10, 30)) == list(range(10, 30))
    finally:
        late.join()


def test_reading_survives_broken_connections_and_a_killed_broker(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, replication=3)
    write(cluster.bootstrap_servers, topic, [Record(bytes(2_000))] * 20_000)
    asked = options(cluster.bootstrap_servers, {"subscribe": topic})
    reader = PartitionReader(asked, OffsetRange(TopicPartition(topic, 0), 0, 20_000))
    batches = reader.batches()
    seen = next(batches)["offset"].to_pylist()
    cluster.fault.cut_connections()
    seen += next(batches)["offset"].to_pylist()
    assert len(seen) < 20_000
    leader = cluster.call(
        lambda: cluster.running.controller.state_of(TopicPartition(topic, 0)).leader  # type: ignore[union-attr]
    )
    with cluster.fault.kill(leader):
        for batch in batches:
            seen += batch["offset"].to_pylist()
    assert seen == list(range(20_000))


def test_unresponsive_brokers_are_given_up_with_the_reason(topic: str) -> None:
    asked = options("127.0.0.1:1", {"subscribe": topic, "kafkaConsumer__pollTimeoutMs": 300})
    reader = PartitionReader(asked, OffsetRange(TopicPartition(topic, 0), 0, 1))
    with pytest.raises(BrokerError, match=r"gave up after 0\.3 s .*Connection refused"):
        list(reader.batches())


class _Message:
    """A message, or an event, of a consumer that plays back."""

    def __init__(self, offset: int, error: int | None = None) -> None:
        self._offset = offset
        self._error = None if error is None else KafkaError(error)

    def __getattr__(self, name: str) -> Any:
        values = {"topic": "t", "partition": 0, "key": b"k", "value": b"v", "timestamp": (1, 5)}
        return lambda: values[name]

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error


class _Playback:
    """A consumer that plays back messages."""

    script: Iterator[Sequence[_Message]]
    assigned: list[int]

    def __init__(self, _: object) -> None:
        pass

    def assign(self, partitions: Sequence[Any]) -> None:
        self.assigned.append(partitions[0].offset)

    def consume(self, _: int, timeout: float) -> Sequence[_Message]:
        return next(self.script)

    def get_watermark_offsets(self, _: object, timeout: float) -> tuple[int, int]:
        return 6, 10

    def close(self) -> None:
        pass


def _played(
    monkeypatch: pytest.MonkeyPatch, script: Sequence[Sequence[_Message]], **given: Any
) -> tuple[list[dict[str, Any]], list[int]]:
    """Read offsets 0 to 10 from a script; an end that is not noticed raises StopIteration."""
    monkeypatch.setattr(_Playback, "script", iter(script), raising=False)
    monkeypatch.setattr(_Playback, "assigned", [], raising=False)
    asked = options("127.0.0.1:1", {"subscribe": "t", **given})
    monkeypatch.setattr(partition_reader, "Consumer", _Playback)
    reader = PartitionReader(asked, OffsetRange(TopicPartition("t", 0), 0, 10))
    rows = [row for batch in reader.batches() for row in batch.to_pylist()]
    return rows, _Playback.assigned


def test_range_without_last_records_ends_at_the_end_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = [
        [_Message(0)],
        [_Message(5, KafkaError._PARTITION_EOF)],  # of a new leader that has not got further
        [],
        [_Message(7)],
        [_Message(10, KafkaError._PARTITION_EOF)],
    ]
    rows, _ = _played(monkeypatch, script)
    assert offsets_of(rows) == [0, 7]


def test_range_without_last_records_ends_at_a_record_beyond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, _ = _played(monkeypatch, [[_Message(3), _Message(14), _Message(15)]])
    assert offsets_of(rows) == [3]
    assert rows[0]["gap_before"] is None


def test_records_deleted_during_a_read_are_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = [
        [_Message(0), _Message(1), _Message(2, KafkaError._AUTO_OFFSET_RESET)],
        [_Message(2, KafkaError._AUTO_OFFSET_RESET)],
        [_Message(number) for number in range(6, 10)],
    ]
    rows, assigned = _played(monkeypatch, script, failOnDataLoss=False)
    assert offsets_of(rows) == [0, 1, 6, 7, 8, 9]
    assert [row["gap_before"] for row in rows] == [None, None, 4, None, None, None]
    assert assigned == [0, 2, 6]


def test_transaction_marker_at_the_end_of_the_log_is_skipped(
    cluster: ThreadedCluster, topic: str
) -> None:
    cluster.create_topic(topic, replication=1)
    write(cluster.bootstrap_servers, topic, numbered(3))
    topic_partition = TopicPartition(topic, 0)
    cluster.call(lambda: _append_marker(cluster.running, topic_partition))
    assert offsets_of(_rows(cluster, topic, 0, 4)) == [0, 1, 2]
    assert _rows(cluster, topic, 3, 4) == []
    write(cluster.bootstrap_servers, topic, numbered(2))
    cluster.call(lambda: _append_marker(cluster.running, topic_partition))
    assert offsets_of(_rows(cluster, topic, 1, 4)) == [1, 2]
    assert offsets_of(_rows(cluster, topic, 0, 7)) == [0, 1, 2, 4, 5]


def _append_marker(cluster: Cluster, topic_partition: TopicPartition) -> None:
    """Append the control record that ends a transaction, as its coordinator does."""
    state = cluster.controller.state_of(topic_partition)
    assert state is not None
    record = bytes([32, 0, 0, 0, 8, 0, 0, 0, 1, 12, 0, 0, 0, 0, 0, 0, 0])
    covered = struct.pack(">hiqqqhii", 0x30, 0, 1_000, 1_000, 77, 0, -1, 1) + record
    head = struct.pack(">qiib", 0, 9 + len(covered), 0, 2)
    marker = RecordBatch.from_bytes(head + crc32c.crc32c(covered).to_bytes(4, "big") + covered)
    partition = cluster.brokers[state.leader].manager.partition(topic_partition)
    assert partition is not None
    partition.append_as_leader([marker], origin=AppendOrigin.COORDINATOR)


@pytest.mark.parametrize("fails", [True, False])
def test_topic_deleted_during_a_read_ends_the_range(
    cluster: ThreadedCluster, topic: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purgatory.source.broker_client.GRACE_S", 1.0)
    cluster.create_topic(topic)
    write(cluster.bootstrap_servers, topic, numbered(5))
    asked = options(
        cluster.bootstrap_servers,
        {"subscribe": topic, "kafkaConsumer.pollTimeoutMs": 60_000, "failOnDataLoss": str(fails)},
    )
    # The planned range is longer than the log when the topic is deleted.
    reader = PartitionReader(asked, OffsetRange(TopicPartition(topic, 0), 0, 9))
    batches = reader.batches()
    assert len(next(batches)) == 5
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    began_s = time.monotonic()
    if fails:
        with pytest.raises(DataLossError, match=f"{topic} partition 0, .* the topic was deleted"):
            next(batches)
    else:
        with capture_logs() as logs:
            assert list(batches) == []
        (log,) = [log for log in logs if log["event"] == "records_lost"]
        assert log["offsets"] == 4
    assert time.monotonic() - began_s < 55, "it does not wait for the 60 s of a poll"
