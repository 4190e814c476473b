"""Snapshots, and captures that end and begin again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from purgatory.cdc.capture import (
    CaptureError,
    UnsupportedChangeError,
    capture_changes,
    parse_source_address,
)
from purgatory.cdc.capture.binlog import BinlogReader, Transaction
from purgatory.cdc.capture.position import Position, parse_position
from purgatory.cdc.capture.snapshot import Snapshot
from purgatory.cdc.capture.source import TableFilter
from purgatory.kafka import TopicPartition
from tests.databases.cdc.capture.capturing import Capturing
from tests.databases.cdc.captured import Captured, in_source_order, rows_of
from tests.databases.cdc.mariadb import MariaDb, numbers
from tests.databases.cdc.workload import ACCOUNTS, Workload

_ROOT = Path(__file__).parents[4]


def stored(capturing: Capturing) -> dict[int, int]:
    return dict(capturing.mariadb.rows(f"SELECT id, balance FROM {capturing.name}.accounts"))


def captured(records: list[Captured]) -> dict[int, int]:
    rows = rows_of(records, "accounts")
    return {number: int(row["balance"]) for number, row in rows.items()}


def assert_each_once_and_in_order(capturing: Capturing, start: Position) -> list[Captured]:
    """Compare with the binlog itself, read once more in one go; return the topic's records."""
    records = capturing.records()
    reader = BinlogReader(capturing.config.source, start, TableFilter(capturing.name), once=True)
    expected = [
        (item.position.file_number, item.position.offset, xoffset)
        for item in reader.items()
        if isinstance(item, Transaction)
        for xoffset, _ in enumerate(item.rows)
    ]
    from_binlog = [r for r in records if r.key and r.value["type"] != "bootstrap-insert"]
    assert sorted(record.place for record in from_binlog) == expected
    for partition in {record.partition for record in records}:
        places = [record.place for record in records if record.partition == partition]
        assert places == sorted(places)
    return records


@contextmanager
def running(workload: Workload) -> Iterator[None]:
    ending = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            workload.run_until(ending)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    assert not failures, failures


def test_binlog_follows_a_snapshot_without_gap_or_overlap(
    capturing: Capturing,
) -> None:
    capturing.run(ACCOUNTS, f"INSERT INTO accounts SELECT seq, 100 FROM {numbers(1, 3000)}")
    with running(Workload(capturing.mariadb, capturing.name, seed=1)):
        capturing.capture(snapshot=True)
        capturing.capture()
    capturing.capture(snapshot=True)
    records = capturing.records()
    assert captured(records) == stored(capturing)
    copied = [r for r in records if r.value["type"] == "bootstrap-insert"]
    assert len({record.value["data"]["id"] for record in copied}) == len(copied)
    [start] = {record.value["position"] for record in copied}
    assert_each_once_and_in_order(capturing, parse_position(start))
    for partition in range(3):
        marks = [r.value["type"] for r in records if r.partition == partition and not r.key]
        assert marks == ["table-create", "bootstrap-start", "bootstrap-complete"]


def test_interrupted_snapshot_is_repeated_with_the_same_rows(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    capturing.run(ACCOUNTS, f"INSERT INTO accounts SELECT seq, 100 FROM {numbers(1, 500)}")
    whole = Snapshot.rows

    def cut(self: Snapshot, table: object) -> Iterator[object]:
        for number, row in enumerate(whole(self, table)):  # type: ignore[arg-type]
            if number == 200:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(Snapshot, "rows", cut)
    with pytest.raises(KeyboardInterrupt):
        capturing.capture(snapshot=True)
    monkeypatch.setattr(Snapshot, "rows", whole)
    capturing.run(
        "DELETE FROM accounts WHERE id = 5",
        "UPDATE accounts SET balance = 7 WHERE id = 6",
        "INSERT INTO accounts VALUES (501, 1)",
    )
    capturing.capture()
    capturing.run("UPDATE accounts SET balance = 8 WHERE id = 7")
    capturing.capture()
    assert captured(capturing.records()) == stored(capturing)


def test_killed_capture_resumes_with_each_change_once_in_order(
    capturing: Capturing,
) -> None:
    choose = random.Random(3)
    capturing.run(ACCOUNTS, f"INSERT INTO accounts SELECT seq, 100 FROM {numbers(1, 300)}")
    capturing.capture()
    start = capturing.mariadb.binlog_end()
    killed = 0
    with running(Workload(capturing.mariadb, capturing.name, seed=2)):
        for _ in range(4):
            with _capture_process(capturing) as process:
                # Some die while they start, some while they send.
                _wait_or_end(process, choose.uniform(0.6, 2.2))
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                process.send_signal(signal.SIGKILL)
                killed += 1
    assert killed == 4
    capturing.capture()
    records = assert_each_once_and_in_order(capturing, start)
    before = dict.fromkeys(range(1, 301), 100)
    changed = captured(records)
    deleted = {r.value["data"]["id"] for r in records if r.value["type"] == "delete"}
    expected = {n: b for n, b in before.items() if n not in deleted} | changed
    assert expected == stored(capturing)
    assert len(records) > 200


@contextmanager
def _capture_process(capturing: Capturing) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "purgatory",
            "capture",
            f"--from={capturing.mariadb.url}/{capturing.name}",
            f"--bootstrap={capturing.cluster.bootstrap_servers}",
            f"--topic={capturing.name}",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _wait_or_end(process: subprocess.Popen[str], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def test_capture_resumes_after_a_crash_of_the_source(cluster: object) -> None:
    with MariaDb() as server:
        server.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
        reader = BinlogReader(
            parse_source_address(server.url), server.binlog_end(), TableFilter("d")
        )
        server.run("INSERT INTO d.t VALUES (1), (2)")
        items = (item for item in reader.items() if isinstance(item, Transaction))
        first = next(items)
        server.kill()
        server.start()
        server.run("INSERT INTO d.t VALUES (3)")
        second = next(items)
        items.close()
    assert [row.data["id"] for row in first.rows] == [1, 2]
    assert [row.data["id"] for row in second.rows] == [3]
    assert second.position.file_number > first.position.file_number


def test_a_topic_with_other_records_is_refused(capturing: Capturing) -> None:
    capturing.cluster.create_topic(capturing.name, 3)
    producer = Producer({"bootstrap.servers": capturing.cluster.bootstrap_servers})
    producer.produce(capturing.name, b"hello", partition=1)
    producer.flush()
    with pytest.raises(CaptureError, match=r"partition 1, offset 0: no record of a capture"):
        capturing.capture()


def test_a_topic_with_another_number_of_partitions_is_refused(capturing: Capturing) -> None:
    capturing.capture()
    admin = AdminClient({"bootstrap.servers": capturing.cluster.bootstrap_servers})
    for done in admin.create_partitions([NewPartitions(capturing.name, 4)]).values():
        done.result()
    with pytest.raises(CaptureError, match="had 3 partitions and has 4"):
        capturing.capture()


def test_refused_change_is_reported_and_no_later_one_is_sent(
    capturing: Capturing,
) -> None:
    capturing.run("CREATE TABLE big (id INT PRIMARY KEY, body LONGTEXT)")
    capture_changes(replace(capturing.config, max_record_bytes=1_000_000))
    capturing.run(
        "INSERT INTO big VALUES (1, 'small')",
        "INSERT INTO big VALUES (2, REPEAT('x', 2000000))",
        "INSERT INTO big VALUES (3, 'small')",
    )
    with pytest.raises(UnsupportedChangeError, match=r'"pk.id":2.* raise max.message.bytes'):
        capturing.capture()
    found = in_source_order(capturing.records())
    assert [record.value["data"]["id"] for record in found] == [1]
    _raise_limit(capturing, 3_000_000)
    capturing.capture()
    found = in_source_order(capturing.records())
    assert [record.value["data"]["id"] for record in found] == [1, 2, 3]


def _raise_limit(capturing: Capturing, limit_bytes: int) -> None:
    """Change a setting as AlterConfigs does, which the cluster of these tests doesn't serve."""
    cluster = capturing.cluster

    def raise_it() -> None:
        topic = cluster.running.controller.topics[capturing.name]
        topic.configs["max.message.bytes"] = str(limit_bytes)
        for broker in cluster.running.brokers.values():
            for number in range(len(topic.partitions)):
                partition = broker.manager.partition(TopicPartition(capturing.name, number))
                if partition is not None:
                    log = partition.log
                    log.config = replace(log.config, max_batch_bytes=limit_bytes)

    cluster.call(raise_it)


def test_markers_do_not_hide_earlier_captured_records(capturing: Capturing) -> None:
    capturing.run(ACCOUNTS)
    capturing.capture()
    capturing.run(f"INSERT INTO accounts SELECT seq, 1 FROM {numbers(1, 9)}")
    capturing.capture()
    before = capturing.records()
    producer = Producer({"bootstrap.servers": capturing.cluster.bootstrap_servers})
    for number in range(100):
        producer.produce(capturing.name, f'{{"type":"heartbeat","id":{number}}}', partition=0)
    producer.flush()
    assert capture_changes(replace(capturing.config, snapshot=True)) == 0
    assert capturing.records() == before
