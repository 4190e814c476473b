"""``purgatory requests``, ``wait``, ``move`` and ``brokers`` at a running cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from purgatory.cli.control_client import ControlClient
from purgatory.cli.main import program
from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(ClusterConfig(brokers=2, topics=[TopicSpec("orders")])) as running:
        yield running


@pytest.fixture(scope="module")
def url(cluster: ThreadedCluster) -> str:
    return cluster.serve_control()


def _run(url: str, command: str) -> Result:
    name, *arguments = command.split()
    return CliRunner().invoke(program, [name, "--control", url, *arguments])


def test_commands_list_wait_for_and_forget_requests(cluster: ThreadedCluster, url: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "seller"})
    producer.produce("orders", b"one")
    assert producer.flush(20) == 0
    assert _run(url, "wait requests --api Produce --client-id seller --topic orders").exit_code == 0
    listed = _run(url, "requests list --api Produce").output.splitlines()
    assert [json.loads(line)["client_id"] for line in listed] == ["seller"]
    assert _run(url, "requests clear").exit_code == 0
    ran = _run(url, "wait requests --api Produce --timeout 1ms")
    assert ran.exit_code == 2
    assert "purgatory wait: " in ran.stderr
    assert "Produce requests: 0 came" in ran.stderr


def test_commands_hold_and_answer_requests(cluster: ThreadedCluster, url: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    assert "orders" in admin.list_topics(timeout=20).topics
    lines = ControlClient("test", url, None).lines("POST", "/requests/held", {"api": "ListGroups"})
    listing: list[object] = []

    def answer_all() -> None:
        for line in lines:
            number = json.loads(line)["number"]
            listing.append(_run(url, f"requests answer {number} --error INVALID_REQUEST"))

    threading.Thread(target=answer_all, daemon=True).start()
    while not cluster.call(lambda: cluster.running.hooks.active):
        pass
    found = admin.list_consumer_groups(request_timeout=20).result()
    assert [error.name() for error in found.errors] == ["INVALID_REQUEST"] * 2
    ran = _run(url, "requests answer 1 --fields {")
    assert "purgatory requests: --fields: " in ran.stderr


def test_commands_wait_for_partitions_groups_and_faults(cluster: ThreadedCluster, url: str) -> None:
    assert _run(url, "wait isr orders 0 1 2").exit_code == 0
    ran = _run(url, "wait group-stable billing --members 2 --timeout 1ms")
    assert "there is no group billing" in ran.stderr
    assert "there is no group billing" in _run(url, "wait caught-up billing --timeout 1ms").stderr
    with cluster.fault.delay_responses(by_ms=1) as fault:
        ran = _run(url, f"wait uses {fault.number} --count 3 --timeout 1ms")
        assert "was injected" in ran.stderr


def test_commands_move_roles_and_change_brokers(cluster: ThreadedCluster, url: str) -> None:
    def leader() -> object:
        return cluster.state()["topics"][0]["partitions"][0]["leader"]

    for broker in (1, 2):
        assert _run(url, f"move leader orders 0 {broker}").exit_code == 0
        assert leader() == broker
    assert _run(url, "move coordinator 2 --group billing").exit_code == 0
    assert _run(url, "move controller 2").exit_code == 0
    assert "a live broker, of 1, 2" in _run(url, "move controller 7").stderr
    assert _run(url, "brokers add").output == "broker 3 is alive\n"
    assert _run(url, "brokers remove 2").output == "broker 2 was removed\n"
    assert "there is no broker 2" in _run(url, "brokers remove 2").stderr
    assert [broker["id"] for broker in cluster.state()["brokers"]] == [1, 3]
