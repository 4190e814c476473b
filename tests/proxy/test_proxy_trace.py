"""What a proxy's trace says of what passed it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyarrow import parquet

from purgatory.cluster import ThreadedCluster
from purgatory.cluster.trace import ClusterTrace
from purgatory.kafka.errors import ClusterError
from purgatory.proxy import ProxyConfig, ThreadedProxy
from purgatory.trace.table_rows import SendRow
from tests.cluster.kafka_client import KafkaClient
from tests.cluster.test_cluster_trace import ERROR, OFFSET, OUTCOME, Rows
from tests.proxy.conftest import CLIENTS
from tests.proxy.test_proxy_command import Process

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
    # What became of the one that had no response, nobody can tell.
    assert sends == {("ok", 0), ("ok", 1), ("unknown", None), ("ok", 3)}
    reads = [row[READ_OFFSET] for row in rows.reads if row[READ_TOPIC] == topic]
    assert sorted(set(reads)) == [0, 1, 2, 3]
    assert reads.count(0) == 1, "the first client began behind it"
    commits = [(row[0], row[1], row[3]) for row in rows.commits]
    assert (topic, topic, 4) in commits


def test_what_a_fault_did_to_a_send_is_recorded(cluster: ThreadedCluster, topic: str) -> None:
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


def test_what_a_client_does_not_show_is_no_read(cluster: ThreadedCluster, topic: str) -> None:
    rows = Rows()
    trace = ClusterTrace(rows)
    config = ProxyConfig(to=cluster.bootstrap_servers.split(","))
    with ThreadedProxy(config, trace) as proxy:
        settings = {"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": topic}
        producer = Producer(settings)
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(topic, b"aborted", partition=0)
        assert producer.flush(20) == 0
        producer.abort_transaction(20)
        client = CLIENTS["confluent-kafka"](proxy.bootstrap_servers)
        client.produce(topic, [b"one"])
        # Of read_committed, as librdkafka is by default; the marker has offset 1.
        assert [record.offset for record in client.read(topic, 0, 1)] == [2]
    trace.close()
    assert {row[READ_OFFSET] for row in rows.reads} == {2}
    transactional = {(row[ROW_ID], row[OFFSET]) for row in rows.sends}
    assert transactional == {(topic, 0), (None, 2)}


def test_a_recorded_proxy_audits_what_passed(
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


def test_the_command_writes_a_trace(cluster: ThreadedCluster, topic: str, tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    started = Process("--to", cluster.bootstrap_servers, "--trace", str(folder))
    CLIENTS["confluent-kafka"](started.bootstrap_servers).produce(topic, [b"one", b"two"])
    started.process.send_signal(signal.SIGTERM)
    _, err = started.process.communicate(timeout=60)
    assert started.process.returncode == 0, err
    sends = [parquet.read_table(path) for path in (folder / "sends").rglob("*.parquet")]
    assert sum(table.num_rows for table in sends) == 2
