"""Topics of a real cluster into both databases; `tests/spark/cdc` has the same by Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from purgatory.cdc import Applied, ApplyOptions, ChangesError, QuarantineStopError, Record
from purgatory.cdc.apply.options import TopicSettings
from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.databases.cdc.change_log import (
    as_list,
    closing_target,
    quarantined,
    random_log,
    raw,
    record,
    rows_of,
)
from tests.databases.cdc.conftest import Engine

PARTITIONS = 2


@pytest.fixture(scope="module")
def kafka() -> Iterator[ThreadedCluster]:
    """One broker for all tests here; each has topics of its own."""
    with ThreadedCluster(ClusterConfig(brokers=1)) as cluster:
        yield cluster


@pytest.fixture
def topic(kafka: ThreadedCluster, request: pytest.FixtureRequest) -> str:
    """An empty topic with two partitions."""
    name = f"changes-{abs(hash(request.node.name))}"
    kafka.create_topic(name, partitions=PARTITIONS)
    return name


def produce(kafka: ThreadedCluster, topic: str, records: Sequence[Record]) -> None:
    """Send records in order, each to its partition."""
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5}
    )
    for one in records:
        producer.produce(topic, one.value, one.key, partition=one.partition)
    assert producer.flush(30) == 0


def settings(kafka: ThreadedCluster, topic: str, url: str) -> TopicSettings:
    return TopicSettings(
        (topic,), url, {"kafka.bootstrap.servers": kafka.bootstrap_servers}, once=True
    )


def test_next_run_of_a_topic_resumes_at_the_targets_offset(
    engine: Engine, kafka: ThreadedCluster, topic: str, url: str
) -> None:
    log, rows = random_log(3, 400, keys=60)
    # Keys that change stay in one partition here; the other has rows of another table.
    other = [record(n, partition=1, table="other", data={"id": n}) for n in range(50)]
    wanted = settings(kafka, topic, url)
    produce(kafka, topic, [*log[:250], *other])
    assert engine(replace(wanted, max_records=100)) == Applied(applied=300)
    produce(kafka, topic, [*log[250:], raw(0, b"{")])
    assert engine(wanted) == Applied(applied=150, quarantined=1)
    with closing_target(url) as target:
        assert rows_of(target) == as_list(rows)
        assert len(rows_of(target, "other")) == 50
        assert quarantined(target) == [(400, "malformed")]


def test_all_partitions_are_applied_together_by_transaction(
    engine: Engine, kafka: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    def change(xid: int, xoffset: int, partition: int) -> Record:
        return record(
            0,
            partition=partition,
            xid=xid,
            xoffset=xoffset,
            commit=xoffset == 1,
            position=f"b.000001:{xid}",
            data={"id": 2 * xid + xoffset},
        )

    log = [change(xid, xoffset, (xid + xoffset) % 2) for xid in range(1, 21) for xoffset in (0, 1)]
    url = f"sqlite:///{tmp_path / 'target.db'}"
    wanted = replace(settings(kafka, topic, url), by_transaction=True)
    produce(kafka, topic, log[:-1])
    assert engine(wanted) == Applied(applied=38, pending=1)
    produce(kafka, topic, log[-1:])
    assert engine(wanted) == Applied(applied=2, pending=-1)


def test_restarted_brokers_lose_and_duplicate_no_change(engine: Engine, tmp_path: Path) -> None:
    log, rows = random_log(5, 600, keys=60)
    other = [record(n, partition=1, table="other", data={"id": n}) for n in range(300)]
    url = f"sqlite:///{tmp_path / 'target.db'}"
    with ThreadedCluster(ClusterConfig(brokers=3)) as kafka:
        kafka.create_topic("changes", partitions=PARTITIONS)
        produce(kafka, "changes", [*log, *other])
        killed: list[int] = []

        def kill_the_leader(became: Applied) -> None:
            if len(killed) < PARTITIONS:
                leader = kafka.call(
                    lambda: kafka.running.controller.topics["changes"].partitions[len(killed)]
                ).leader
                kafka.fault.kill(leader, for_s=1)
                killed.append(leader)

        wanted = replace(
            settings(kafka, "changes", url), max_records=250, options=ApplyOptions(audit_log=True)
        )
        became = engine(wanted, progress=kill_the_leader)
    assert len(killed) == PARTITIONS
    assert became == Applied(applied=900)
    with closing_target(url) as target:
        assert rows_of(target) == as_list(rows)
        effects = [(row[1], row[2]) for row in target.select_own("purgatory_effects")]
        assert effects == [(0, n) for n in range(600)] + [(1, n) for n in range(300)]


def test_bad_records_are_quarantined_and_the_stream_continues(
    engine: Engine, kafka: ThreadedCluster, topic: str, url: str
) -> None:
    with closing_target(url) as target:
        target._run("CREATE TABLE orders (id bigint PRIMARY KEY, n bigint)")
    columns = [{"name": "id", "type": "bigint"}, {"name": "n", "type": "bigint"}]
    definition = {"database": "shop", "table": "orders", "primary-key": ["id"]}
    note = {"name": "note", "type": "text"}
    added: Any = {"def": {**definition, "columns": [*columns, note]}}
    log = [
        record(0, data={"id": 1, "n": 1}),
        raw(1, b'{"type": "insert", "data": {'),
        record(2, data={"n": 2}),
        record(3, table="", data={"id": 3}),
        record(4, data={"id": 4, "n": 10**30}),
        record(5, data={"id": 5, "n": 5, "note": "x" * 3_000}),
        record(6, type="table-alter", data=None, **added),
        record(7, data={"id": 7, "n": 7, "note": "new"}),
        raw(8, b'{"type": "table-create"}'),
        record(9, data={"id": 9, "n": 9}),
        raw(10, None),
    ]
    produce(kafka, topic, log)
    options = ApplyOptions(max_value_bytes=2_000)
    became = engine(replace(settings(kafka, topic, url), options=options))
    with closing_target(url) as target:
        assert quarantined(target) == [
            (1, "malformed"),
            (2, "missing key"),
            (3, "unknown table"),
            (4, "value too large"),
            (5, "value too large"),
            (8, "malformed"),
        ]
        assert [(row["id"], row["note"]) for row in rows_of(target)] == [
            (1, None),
            (7, "new"),
            (9, None),
        ]
    assert became == Applied(applied=5, quarantined=6)


def test_stream_error_is_one_line(
    engine: Engine, kafka: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'target.db'}"
    wanted = settings(kafka, topic, url)
    produce(kafka, topic, [record(0, data={"id": 1}), raw(1, b"{")])
    with pytest.raises(QuarantineStopError, match=f"{topic}, partition 0, offset 1: malformed"):
        engine(replace(wanted, options=ApplyOptions(stop_on_quarantine=True)))
    with pytest.raises(ChangesError, match="no-such-topic") as raised:
        engine(replace(wanted, topics=("no-such-topic",)))
    assert "\n" not in str(raised.value)
