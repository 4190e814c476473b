"""The trace of a proxy."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.index import load_request_schema, load_response_schema
from pyarrow import parquet

from purgatory.cluster import ThreadedCluster
from purgatory.cluster.protocol.wire import Request, build
from purgatory.cluster.trace import ClusterTrace
from purgatory.kafka.errors import ClusterError
from purgatory.proxy import ProxyConfig, ThreadedProxy
from purgatory.proxy.addresses import TopicIds
from purgatory.proxy.trace import ProxyTrace
from purgatory.trace.table_rows import CommitRow, SendRow, TransactionRow
from tests.processes.proxy.test_proxy_command import Process
from tests.wire.cluster.kafka_client import KafkaClient
from tests.wire.cluster.test_cluster_trace import ERROR, OFFSET, OUTCOME, Rows
from tests.wire.proxy.conftest import CLIENTS

INIT_PRODUCER_ID, ADD_OFFSETS, END_TXN = 22, 25, 26
ROW_ID = SendRow._fields.index("transactional_id")
TOPIC, READ_TOPIC, READ_OFFSET = SendRow._fields.index("topic"), 3, 5


@pytest.mark.parametrize("name", CLIENTS)
def test_sends_reads_and_commits_are_recorded(
    cluster: ThreadedCluster, topic: str, name: str
) -> None:
    rows = Rows()
    trace = ClusterTrace(rows)
    config = ProxyConfig(to=cluster.bootstrap_servers.split(","))
    with ThreadedProxy(config, trace) as proxy:
        client: KafkaClient = CLIENTS[name](proxy.bootstrap_servers)
        client.produce(topic, [b"one", b"two"])
        client.produce(topic, [b"three"], acks="0")
        client.produce(topic, [b"four"])
        assert len(client.read(topic, 1, 3)) == 3
        assert len(client.read_in_group(topic, topic, 4)) == 4
    trace.close()
    sends = {(row[OUTCOME], row[OFFSET]) for row in rows.sends if row[TOPIC] == topic}
    # The outcome of the send without a response is unknown.
    assert sends == {("ok", 0), ("ok", 1), ("unknown", None), ("ok", 3)}
    reads = [row[READ_OFFSET] for row in rows.reads if row[READ_TOPIC] == topic]
    assert sorted(set(reads)) == [0, 1, 2, 3]
    assert reads.count(0) == 1, "the first client began behind it"
    commits = [(row[0], row[1], row[3]) for row in rows.commits]
    assert (topic, topic, 4) in commits


def test_effect_of_a_fault_on_a_send_is_recorded(cluster: ThreadedCluster, topic: str) -> None:
    rows = Rows()
    trace = ClusterTrace(rows)
    config = ProxyConfig(to=cluster.bootstrap_servers.split(","))
    with ThreadedProxy(config, trace) as proxy:
        client = CLIENTS["confluent-kafka"](proxy.bootstrap_servers)
        with proxy.fault.lose_responses(api="Produce", count=1):
            client.produce(topic, [b"one"])
    trace.close()
    found = [(row[3], row[OUTCOME], row[ERROR], row[OFFSET]) for row in rows.sends]
    assert sorted(found) == [(1, "unknown", "answer lost", 0), (2, "ok", None, 1)]


def test_hidden_records_of_aborted_transactions_are_no_reads(
    cluster: ThreadedCluster, topic: str
) -> None:
    rows = Rows()
    trace = ClusterTrace(rows)
    config = ProxyConfig(to=cluster.bootstrap_servers.split(","))
    with ThreadedProxy(config, trace) as proxy:
        producer = transactional_producer(proxy, topic)
        produce_in_transaction(producer, topic, b"aborted")
        producer.abort_transaction(20)
        client = CLIENTS["confluent-kafka"](proxy.bootstrap_servers)
        client.produce(topic, [b"one"])
        # Of read_committed, as librdkafka is by default; the marker has offset 1.
        assert [record.offset for record in client.read(topic, 0, 1)] == [2]
    trace.close()
    assert {row[READ_OFFSET] for row in rows.reads} == {2}
    transactional = {(row[ROW_ID], row[OFFSET]) for row in rows.sends}
    assert transactional == {(topic, 0), (None, 2)}


def transactional_producer(proxy: ThreadedProxy, transactional_id: str) -> Producer:
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": transactional_id}
    producer = Producer(settings)
    producer.init_transactions(20)
    return producer


def produce_in_transaction(producer: Producer, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0


def test_transactions_and_the_offsets_in_them_are_recorded(
    cluster: ThreadedCluster, topic: str
) -> None:
    rows = Rows()
    trace = ClusterTrace(rows)
    config = ProxyConfig(to=cluster.bootstrap_servers.split(","))
    with ThreadedProxy(config, trace) as proxy:
        consumer = Consumer({"bootstrap.servers": proxy.bootstrap_servers, "group.id": topic})
        producer = transactional_producer(proxy, topic)
        for offset, value in ((1, b"committed"), (2, b"aborted")):
            produce_in_transaction(producer, topic, value)
            offsets = [TopicPartition(topic, 0, offset)]
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, group, 20)
            if offset == 1:
                producer.commit_transaction(20)
            else:
                producer.abort_transaction(20)
        produce_in_transaction(producer, topic, b"fenced")
        produce_in_transaction(transactional_producer(proxy, topic), topic, b"open")
        consumer.close()
    trace.close()
    transactions = [TransactionRow(*row) for row in rows.transactions]
    assert [(one.outcome, one.ended_by) for one in transactions] == [
        ("committed", "producer"),
        ("aborted", "producer"),
        ("aborted", "coordinator"),
        ("open", None),
    ]
    committed = transactions[0]
    assert committed.decided_us is not None
    assert committed.ended_us is not None
    assert committed.decided_us < committed.ended_us, "by the request, and by the response"
    sends = [SendRow(*row) for row in rows.sends if row[TOPIC] == topic]
    assert [one.transaction for one in sends] == [one.transaction for one in transactions]
    commits = [CommitRow(*row) for row in rows.commits]
    assert [(one.offset, one.transaction, one.held) for one in commits] == [
        (1, transactions[0].transaction, True),
        (2, transactions[1].transaction, False),
    ]


@pytest.mark.parametrize("tries_again", [True, False])
def test_commit_without_a_response_is_undecided_until_its_retry(
    tries_again: bool,
) -> None:
    rows = Rows()
    trace = ClusterTrace(rows)
    recorder = ProxyTrace(trace, TopicIds())
    connection: Any = None

    def record(api_key: int, values: dict[str, Any], response: dict[str, Any] | None) -> None:
        body = build(load_request_schema(api_key, 3), {"transactional_id": "t", **values})
        answer = None
        if response is not None:
            answer = build(
                load_response_schema(api_key, 3), {"throttle_time": 0, "error_code": 0, **response}
            )
        request = Request(api_key, 3, 1, "client", body)
        recorder.record_exchange(connection, request, answer, trace.now_us())

    producer = {"producer_id": 7, "producer_epoch": 0}
    initial = {"transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1}
    record(INIT_PRODUCER_ID, initial, producer)
    record(ADD_OFFSETS, {**producer, "group_id": "g"}, {})
    record(END_TXN, {**producer, "committed": True}, None)
    if tries_again:
        record(END_TXN, {**producer, "committed": True}, {})
    record(INIT_PRODUCER_ID, initial, {**producer, "producer_epoch": 1})
    trace.close()
    outcomes = [TransactionRow(*row).outcome for row in rows.transactions]
    assert outcomes == ["committed"] * tries_again


def test_recorded_proxy_audits_its_traffic(
    cluster: ThreadedCluster, topic: str, kafka_proxy: Callable[..., ThreadedProxy]
) -> None:
    proxy = kafka_proxy(cluster.bootstrap_servers, recorded=True)
    client = CLIENTS["confluent-kafka"](proxy.bootstrap_servers)
    client.produce(topic, [b"one"])
    assert len(client.read(topic, 0, 1)) == 1
    proxy.audit(expect=["once", "order"]).assert_no_violations()
    with proxy.fault.lose_responses(api="Produce", count=1):
        client.produce(topic, [b"two"])
    assert len(client.read(topic, 1, 2)) == 2
    findings = proxy.audit(expect=["once"])
    assert findings.count("duplicate") == 1
    with pytest.raises(AssertionError, match="answer lost"):
        findings.assert_no_violations()
    with pytest.raises(ClusterError, match=r"ThreadedProxy\(\.\.\., recorded=True\)"):
        kafka_proxy(cluster.bootstrap_servers).audit()


@pytest.mark.slow
def test_the_command_writes_a_trace(cluster: ThreadedCluster, topic: str, tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    started = Process("--to", cluster.bootstrap_servers, "--trace", str(folder))
    CLIENTS["confluent-kafka"](started.bootstrap_servers).produce(topic, [b"one", b"two"])
    started.process.send_signal(signal.SIGTERM)
    _, err = started.process.communicate(timeout=60)
    assert started.process.returncode == 0, err
    sends = [parquet.read_table(path) for path in (folder / "sends").rglob("*.parquet")]
    assert sum(table.num_rows for table in sends) == 2
