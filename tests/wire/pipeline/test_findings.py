"""The audit in a test: of a folder, a simulation, a cluster; and the message of its failure."""

from __future__ import annotations

from pathlib import Path

import pytest

import purgatory
from purgatory.cluster import ClusterError, ThreadedCluster
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.jobs.audit import ProducerSettings, RunConfiguration
from purgatory.pipeline.jobs.audit.findings import Findings
from purgatory.simulation import LoadedScenario, Simulation, parse_scenario

_LOSSY = """
name = "lossy"
description = "A follower stalls: produces time out, and are sent again."
seed = 1
duration_ms = 4_000

[cluster]
brokers = 3

[topic]
name = "events"
partitions = 2
replication_factor = 3

[[producers]]
group = "shop"
count = 3
rate = 40.0
acks = "all"
timeout_ms = 400
retries = 5

[[consumers]]
group = "billing"
count = 2

[[faults]]
kind = "stall_follower"
broker = 2
at_ms = 1_000
duration_ms = 1_500
"""


def lossy() -> LoadedScenario:
    return parse_scenario(_LOSSY, "lossy.toml", Path())


@pytest.fixture(scope="module")
def simulated() -> Simulation:
    simulation = Simulation(lossy(), recorded=True)
    simulation.run()
    return simulation


@pytest.fixture(scope="module")
def audited(simulated: Simulation) -> Findings:
    return simulated.audit()


@pytest.fixture(scope="module")
def audited_once(simulated: Simulation) -> Findings:
    return simulated.audit(expect=["once"])


@pytest.mark.slow
def test_a_simulation_audits_itself_as_its_trace_is_audited(
    audited: Findings, tmp_path: Path
) -> None:
    traced = Simulation(lossy(), trace_folder=tmp_path / "trace")
    traced.run()
    of_memory, of_folder = audited, purgatory.audit(tmp_path / "trace")
    assert list(of_memory) == list(of_folder)
    assert of_memory.count("duplicate") > 0
    assert not of_memory.violations
    assert of_memory.unchecked == of_folder.unchecked
    assert of_memory.unchecked["key_order_violation"] == "no effects in the trace"


def test_a_failed_test_shows_the_witnesses(audited_once: Findings) -> None:
    findings = audited_once
    duplicate = findings.violations[0]
    assert duplicate.anomaly == "duplicate"
    assert duplicate.setting == "once expected, in spite of idempotence=false"
    with pytest.raises(AssertionError) as failure:
        findings.assert_no_violations()
    told = str(failure.value)
    head, basis, first, *_ = told.splitlines()
    assert (head, basis[:9]) == ("the audit found violations:", "(judged: ")
    assert first.startswith("duplicate in shop: ")
    value = duplicate.witnesses[0]["value_id"]
    assert told.count(f"value_id={value}") >= 3  # two attempts or more, and a read
    assert " send by shop: " in told
    assert " read by billing: " in told


def test_findings_are_a_sequence_in_the_order_of_the_table(audited: Findings) -> None:
    findings = audited
    assert isinstance(findings, Findings)
    assert findings[0] is next(iter(findings))
    assert len(findings) == len(list(findings))
    assert str(findings).startswith(str(findings[0]))
    assert all(found.witnesses for found in findings)


def test_audit_of_a_simulation_without_records_is_reported() -> None:
    with pytest.raises(ValueError, match=r"nothing was recorded: Simulation\(..., recorded=True\)"):
        Simulation(lossy()).audit()


def test_a_folder_without_traces_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace"):
        purgatory.audit(tmp_path)


def test_an_unknown_expectation_is_named(simulated: Simulation) -> None:
    for wrong in (["luck"], "luck"):
        with pytest.raises(ValueError, match=r"there is no expectation .luck.: there are order"):
            simulated.audit(expect=wrong)


def test_one_expectation_may_be_a_string(simulated: Simulation, audited_once: Findings) -> None:
    assert list(simulated.audit(expect="once")) == list(audited_once)


def _send(cluster: ThreadedCluster, count: int, **settings: object) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "shop", **settings}
    )
    for number in range(count):
        producer.produce("orders", f"order {number} {'.' * 100}", key=f"key {number}")
    assert producer.flush(20) == 0


def test_unread_duplicate_is_found() -> None:
    with ThreadedCluster(recorded=True) as cluster:
        cluster.create_topic("orders")
        with cluster.fault.lose_responses(count=1, api="Produce"):
            _send(cluster, 20, **{"linger.ms": 50, "retry.backoff.ms": 10})
        findings = cluster.audit(expect=["once"])
        assert findings.count("duplicate") == findings.count("lost_ack_duplicate") == 20
        assert {found.anomaly for found in findings.violations} >= {"duplicate"}
        with pytest.raises(AssertionError) as failure:
            findings.assert_no_violations()
    told = str(failure.value)
    value = "'order 0 " + "." * 52 + "'..."
    assert f"\n  orders-0, offset 0, key 'key 0', value {value}, at " in told
    assert f", offset=20, key='key 0', value={value}\n" in told
    assert "value_id" not in told


@pytest.mark.slow
def test_empty_audit_fails_the_assertion() -> None:
    with ThreadedCluster(recorded=True) as cluster:
        cluster.create_topic("orders")
        for expect in ((), ["order"], ["one-writer"]):  # others: test_ordinary_services
            findings = cluster.audit(expect=expect)
            with pytest.raises(
                AssertionError, match=r"could not decide:\n(.*\n)*no sends in the trace"
            ):
                findings.assert_no_violations()
            findings.assert_no_violations(allow_empty=True)
        _send(cluster, 1, **{"enable.idempotence": True})
        for expect in (["order"], ["one-writer"]):
            cluster.audit(expect=expect).assert_no_violations()
        with pytest.raises(AssertionError, match="no reads in the trace"):
            cluster.audit().assert_no_violations()


def test_unknown_settings_fail_the_assertion() -> None:
    with ThreadedCluster(recorded=True) as cluster:
        cluster.create_topic("orders")
        with cluster.fault.lose_responses(count=1, api="Produce"):
            _send(cluster, 5, **{"retry.backoff.ms": 10})
        with pytest.raises(AssertionError, match="duplicate in shop: 5 indeterminate"):
            cluster.audit().assert_no_violations()
        known = RunConfiguration([ProducerSettings("shop", idempotence=False, retries=9)])
        told = cluster.audit(known, expect=["order"])
        told.assert_no_violations()


@pytest.mark.slow
def test_cluster_audits_its_clients() -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    with ThreadedCluster(recorded=True) as cluster:
        cluster.create_topic("orders")
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "shop"}
        with cluster.fault.lose_responses(count=1, api="Produce"):
            producer = confluent_kafka.Producer(
                {**settings, "socket.timeout.ms": 1_000, "retry.backoff.ms": 10}
            )
            for number in range(20):
                producer.produce("orders", str(number).encode())
            producer.flush(20)
        consumer = confluent_kafka.Consumer(
            {**settings, "group.id": "billing", "auto.offset.reset": "earliest"}
        )
        consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
        read = 0
        while read < 20:
            read += len(consumer.consume(40, 1.0))
        consumer.close()
        known = RunConfiguration([ProducerSettings("shop", idempotence=False, retries=9)])
        findings = cluster.audit(known)
        assert not findings.violations
        assert findings.count("duplicate") > 0
        assert {found.verdict for found in findings if found.anomaly == "duplicate"} == {
            "permitted"
        }
        assert cluster.audit(known, expect=["once"]).violations
        assert {found.verdict for found in cluster.audit()} == {"indeterminate"}
        [unknown] = {found.setting for found in cluster.audit(expect=["once"]).violations}
        assert unknown == "once expected, configuration unknown: idempotence"
    assert cluster.audit(known).count("duplicate") == findings.count("duplicate")


def test_audit_of_a_cluster_without_records_is_reported() -> None:
    with pytest.raises(ClusterError, match="nothing was recorded"):
        ThreadedCluster().audit()
