"""The audit of real clients, correct and incorrect ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import purgatory
from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec, start_trace
from purgatory.pipeline.jobs.audit.findings import Findings
from purgatory.proxy import ProxyConfig, ThreadedProxy
from purgatory.trace.effects import Effect
from tests.wire.cluster.service_programs import GROUPS, PATIENCE_S, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Serving = ThreadedCluster | ThreadedProxy
EXPECTATIONS = ("once", "no-loss", "order")
"""Expected together: one audit breaks no rule that each of them has."""


def cluster(brokers: int = 1) -> ThreadedCluster:
    config = ClusterConfig(brokers=brokers, topics=[TopicSpec("t")], groups=GROUPS)
    return ThreadedCluster(config, recorded=True)


def producer(on: Serving, **settings: Any) -> Producer:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": on.bootstrap_servers, "log_level": 0, **names})


def send(by: Producer, *values: str) -> None:
    for value in values:
        by.produce("t", value, "key")
    assert by.flush(PATIENCE_S) == 0


def read(on: Serving, count: int, group: str = "g", **settings: Any) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": on.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **settings,
        }
    )
    consumer.subscribe(["t"])
    messages: list[Any] = []
    while len(messages) < count:
        messages += [one for one in consumer.consume(count, 0.1) if one.error() is None]
    consumer.close()
    return messages


def cases(findings: Findings) -> set[tuple[str, str]]:
    return {(one.anomaly, one.verdict) for one in findings if one.count}


@pytest.mark.slow
def test_retried_transaction_after_an_abort_loses_nothing() -> None:
    with cluster() as on:
        by = producer(on, transactional_id="x")
        by.init_transactions()
        for value, commits in (("1", True), ("2", False), ("2", True)):
            by.begin_transaction()
            send(by, value)
            by.commit_transaction() if commits else by.abort_transaction()
        read(on, 2)
        assert cases(on.audit(expect=EXPECTATIONS)) == set()


@pytest.mark.slow
@pytest.mark.parametrize("producers", [1, 2])
@pytest.mark.parametrize("idempotence", [True, False])
def test_intended_equal_records_are_no_violation(idempotence: bool, producers: int) -> None:
    with cluster() as on:
        for number in range(producers):
            by = producer(on, enable_idempotence=idempotence)
            for value in ("up", "up", "down", "up")[2 * number :]:
                send(by, value)
        read(on, 4 + 2 * (producers - 1))
        nobody_can_tell = {("duplicate", "indeterminate")}
        known = idempotence and producers == 1
        found = cases(on.audit(expect=EXPECTATIONS))
        assert {one for one in found if one[1] == "violation"} == set()
        assert (found & nobody_can_tell == set()) == known


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refuse_produces", "return_error"])
@pytest.mark.parametrize("through_proxy", [False, True])
def test_refused_sends_are_recorded(fault: str, through_proxy: bool) -> None:
    with (
        cluster() as behind,
        ThreadedProxy(ProxyConfig(to=[behind.bootstrap_servers]), recorded=True) as proxy,
    ):
        on: Serving = proxy if through_proxy else behind
        by = producer(on, message_timeout_ms=1_500)
        send(by, "first")
        if fault == "refuse_produces":
            on.fault.refuse_produces()
        else:
            on.fault.return_error(api="Produce", error="NOT_ENOUGH_REPLICAS")
        by.produce("t", "refused", "key")
        by.flush(PATIENCE_S)
        on.fault.end_all()
        send(producer(on), "last")
        read(on, 2)
        found = on.audit(expect=EXPECTATIONS)
        assert cases(found) == {("failed_send", "permitted")}
        assert [one.setting for one in found if one.count] == ["NOT_ENOUGH_REPLICAS"]
        found.assert_no_violations()


def test_recreated_topic_is_another_topic() -> None:
    with cluster(brokers=3) as on:
        admin = AdminClient({"bootstrap.servers": on.bootstrap_servers})
        for life in (1, 2):
            send(producer(on, enable_idempotence=True), *(f"{life}, {n}" for n in range(5)))
            read(on, 5, f"g{life}")
            if life == 1:
                admin.delete_topics(["t"])["t"].result(PATIENCE_S)
                admin.create_topics([NewTopic("t", 1, 3)])["t"].result(PATIENCE_S)
        assert cases(on.audit(expect=EXPECTATIONS)) == set()


@pytest.mark.parametrize("commits", [False, True])
def test_audit_finds_a_group_that_reads_twice_without_commits(commits: bool) -> None:
    with cluster() as on:
        send(producer(on, enable_idempotence=True), *map(str, range(5)))
        for _ in range(1 if commits else 2):
            settings: dict[str, Any] = {"enable.auto.commit": commits}
            read(on, 5, **settings)
        found = on.audit(expect=["once"])
        again = set() if commits else {("reprocess", "violation")}
        assert cases(found) == again
        assert {one.count for one in found.violations} == ({5} if again else set())


def test_groups_of_one_client_id_are_not_one_consumer() -> None:
    with cluster() as on:
        send(producer(on, enable_idempotence=True), *map(str, range(5)))
        for group in ("a", "b"):
            read(on, 5, group)
        on.audit(expect=EXPECTATIONS).assert_no_violations()


def test_effects_reveal_commits_of_unprocessed_records() -> None:
    with running("classic", is_right=True) as run:
        run.order()
        worker = run.worker()
        messages = run.take(worker, 12)
        worker.commit(messages)
        worker.leave()
        without = run.cluster.audit(expect=["no-loss"])
        assert without.violations == []
        assert "no effects" in without.unchecked["offset_without_result"]
        done = messages[:5]
        for effects in (done, [(one.topic(), one.partition(), one.offset()) for one in done]):
            found = run.cluster.audit(expect=["no-loss"], effects=effects)
            assert [(one.anomaly, one.count) for one in found.violations] == [
                ("offset_without_result", 7)
            ]


@pytest.mark.parametrize(
    ("effects", "told"),
    [
        (["orders"], r"effects\[0\] is 'orders': give topic, partition and offset, or a message"),
        ([("t", 0)], r"effects\[0\] is \('t', 0\)"),
        ([("t", 0, -1)], r"partition and offset are numbers"),
        ([{"topic": "t", "partition": 0}], r"effects\[0\] has no offset"),
        ([{"topic": "t", "partition": 0, "offset": 0, "x": 1}], "an effect has no 'x'"),
        ([("elsewhere", 0, 0)], "nobody read elsewhere, and an effect is of partition 0, offset 0"),
    ],
)
def test_invalid_effect_is_refused(effects: Sequence[Any], told: str) -> None:
    with cluster() as on, pytest.raises(ValueError, match=told):
        on.audit(effects=effects)


def test_effects_name_their_group_if_several_read_the_topic() -> None:
    with cluster() as on:
        send(producer(on, enable_idempotence=True), *map(str, range(3)))
        for group in ("a", "b"):
            read(on, 3, group)
        places = [("t", 0, offset) for offset in range(3)]
        with pytest.raises(ValueError, match=r"a, b read t: whose are the effects\?"):
            on.audit(effects=places)
        with pytest.raises(ValueError, match=r"no reads of t by c; .* client ids of their own"):
            on.audit(effects=[Effect(*places[0], group="c")])
        done = [Effect(*place, group=group) for group in ("a", "b") for place in places]
        on.audit(expect=["once"], effects=done).assert_no_violations()
        found = on.audit(expect=["once"], effects=[*done, done[0]])
        assert [(one.anomaly, one.group) for one in found.violations] == [("effect_duplicate", "a")]


@pytest.mark.slow
@pytest.mark.parametrize("has_observed", [True, False])
def test_a_trace_in_a_folder_is_audited_with_effects(tmp_path: Path, has_observed: bool) -> None:
    trace, writer = start_trace(tmp_path / "trace", "shop")
    with ThreadedCluster(ClusterConfig(brokers=1, topics=[TopicSpec("t")]), trace) as on:
        send(producer(on, enable_idempotence=True), *map(str, range(4)))
        messages = read(on, 4)
    trace.close()
    writer.finish(trace.duration_ms, {})
    head = tmp_path / "trace" / "run.json"
    assert '"observed": true' in head.read_text()
    if not has_observed:  # as in a trace of an earlier version: the reads tell
        head.write_text(head.read_text().replace('"observed": true,', ""))
    for _ in range(2):  # nothing is written into the trace
        found = purgatory.audit(tmp_path / "trace", expect=["no-loss"], effects=messages[:3])
        assert [(one.anomaly, one.group, one.count) for one in found.violations] == [
            ("offset_without_result", "g", 1)
        ]
    purgatory.audit(tmp_path / "trace", effects=messages).assert_no_violations()
    without = purgatory.audit(tmp_path / "trace", expect=["no-loss"])
    without.assert_no_violations()
    assert "no effects" in without.unchecked["offset_without_result"]
