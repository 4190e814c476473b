"""The requests that pass a proxy: listed with their answers, answered by hooks, and waited for."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Producer

from purgatory.cluster import ClusterError, Delay, SeenRequest, ThreadedCluster
from purgatory.cluster.steering.seen_requests import MOST_BYTES
from purgatory.cluster.steering.waits import WAITS
from purgatory.proxy import ThreadedProxy
from tests.wire.cluster.confluent_client import ConfluentClient

_REFUSED = "NOT_LEADER_OR_FOLLOWER"


def _produce(servers: str, topic: str, value: bytes = b"one", **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": servers, "client.id": topic, **settings})
    producer.produce(topic, value)
    assert producer.flush(60) == 0


def _codes(requests: list[SeenRequest]) -> list[str]:
    """Return the error of the only partition of each produce."""
    answers = [seen.answer.responses[0].partition_responses[0] for seen in requests]
    return [answer.error_code.name for answer in answers]


def test_requests_are_kept_with_their_answers(proxy: ThreadedProxy, topic: str) -> None:
    _produce(proxy.bootstrap_servers, topic)
    [seen] = proxy.requests(api="produce", topic=topic)
    assert (seen.client_id, seen.api) == (topic, "Produce")
    assert seen.fields.acks == -1
    assert _codes([seen]) == ["none"]
    assert seen.answered_s is not None and seen.answered_s >= seen.at_s
    apis = {one.api for one in proxy.requests(client_id=topic)}
    assert {"ApiVersions", "Metadata", "Produce"} <= apis  # passed on, served, passed on


def test_answers_have_the_addresses_of_the_proxy(
    proxy: ThreadedProxy, cluster: ThreadedCluster, topic: str
) -> None:
    ConfluentClient(proxy.bootstrap_servers).produce(topic, [b"one"])
    ports = {
        broker.port
        for seen in proxy.requests(api="Metadata", topic=topic)
        for broker in seen.answer.brokers
    }
    brokers = {int(server.rpartition(":")[2]) for server in cluster.bootstrap_servers.split(",")}
    assert ports and not ports & brokers


def test_requests_are_forgotten_and_counted_on(proxy: ThreadedProxy, topic: str) -> None:
    _produce(proxy.bootstrap_servers, topic)
    last = proxy.requests()[-1].number
    proxy.clear_requests()
    assert proxy.requests() == []
    _produce(proxy.bootstrap_servers, topic)
    assert proxy.requests()[0].number > last


def test_request_above_the_limit_passes_unkept(proxy: ThreadedProxy, topic: str) -> None:
    large = {"message.max.bytes": 2 * MOST_BYTES, "compression.type": "none"}
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, **large})
    refused: list[Any] = []
    producer.produce(
        topic, bytes(MOST_BYTES + 1), on_delivery=lambda error, _: refused.append(error)
    )
    assert producer.flush(60) == 0
    assert refused[0].name() == "MSG_SIZE_TOO_LARGE"  # the broker's own answer
    assert proxy.requests(api="Produce", topic=topic) == []


def test_hook_answers_in_place_of_the_broker(
    proxy: ThreadedProxy, cluster: ThreadedCluster, topic: str
) -> None:
    hook = proxy.on_request(
        lambda request: request.refusal(_REFUSED), api="Produce", topic=topic, count=2
    )
    _produce(proxy.bootstrap_servers, topic)
    assert (hook.uses, hook.active) == (2, False)
    assert _codes(proxy.requests(api="Produce", topic=topic)) == [_REFUSED.lower()] * 2 + ["none"]
    assert _codes(cluster.requests(api="Produce", topic=topic)) == ["none"]


def test_hook_that_is_late_or_passes_changes_nothing(
    proxy: ThreadedProxy, cluster: ThreadedCluster, topic: str
) -> None:
    results = iter([Delay(0.01), None])
    with proxy.on_request(lambda _: next(results), api="Produce", topic=topic) as hook:
        for _ in range(2):
            _produce(proxy.bootstrap_servers, topic)
        assert hook.uses == 2
    assert _codes(proxy.requests(api="Produce", topic=topic)) == ["none"] * 2
    assert len(cluster.requests(api="Produce", topic=topic)) == 2


def test_hook_of_a_produce_without_acks_has_no_answer(
    proxy: ThreadedProxy, cluster: ThreadedCluster, topic: str
) -> None:
    def refuse(request: SeenRequest) -> Any:
        return request.refusal(_REFUSED)

    with proxy.on_request(refuse, api="Produce", topic=topic, count=1):
        _produce(proxy.bootstrap_servers, topic, b"lost", acks=0)
        proxy.wait_for(requests="Produce", topic=topic)
        _produce(proxy.bootstrap_servers, topic)
    first, second = proxy.requests(api="Produce", topic=topic)
    assert (first.answer, _codes([second])) == (None, ["none"])
    assert len(cluster.requests(api="Produce", topic=topic)) == 1


def test_waits_end_with_requests_and_uses_of_faults(proxy: ThreadedProxy, topic: str) -> None:
    with proxy.fault.lose_responses(api="Produce", client_id=topic, count=1) as fault:
        sender = threading.Thread(target=_produce, args=(proxy.bootstrap_servers, topic))
        sender.start()
        proxy.wait_for.uses(fault, timeout=30)
        proxy.wait_for(requests="Produce", topic=topic, count=2, timeout=30)
        sender.join()
    first, second = proxy.requests(api="Produce", topic=topic)
    assert (first.answered_s, _codes([second])) == (None, ["none"])


def test_wait_without_its_requests_says_what_came(proxy: ThreadedProxy, topic: str) -> None:
    with pytest.raises(TimeoutError, match="0 came; of all APIs: "):
        proxy.wait_for(requests="DeleteTopics", timeout=0.01)


def test_waits_for_what_brokers_know_are_refused(proxy: ThreadedProxy) -> None:
    reason = "not in a proxy: the brokers tell it nothing"
    with pytest.raises(ClusterError, match=f"group_stable: {reason}"):
        proxy.wait_for.group_stable("g")
    with pytest.raises(ClusterError, match=f"caught_up: {reason}"):
        proxy.wait_for.caught_up("g")
    with pytest.raises(ClusterError, match=f"isr: {reason}"):
        proxy.wait_for.isr("t", 0, {1})


def test_each_method_of_a_cluster_is_the_proxys_or_known_to_lack(proxy: ThreadedProxy) -> None:
    def names(of: object) -> set[str]:
        return {name for name in {*dir(of), *vars(of)} if not name.startswith("_")}

    brokers_own = {"move", "add_broker", "remove_broker", "create_topic", "settle"}
    assert names(ThreadedCluster()) - names(proxy) == brokers_own | {"bootstrap_servers_of"}
    assert set(WAITS) == {"requests", "uses", "group_stable", "caught_up", "isr"}


def test_requests_are_held_and_answered_over_http(
    proxy: ThreadedProxy, cluster: ThreadedCluster, topic: str
) -> None:
    url = proxy.serve_control().rstrip("/")

    def ask(path: str, **body: Any) -> Any:
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        return urlopen(Request(url + path, data, headers), timeout=60)

    with ask("/requests/held", api="Produce", topic=topic) as held:
        sender = threading.Thread(target=_produce, args=(proxy.bootstrap_servers, topic))
        sender.start()
        number = json.loads(held.readline())["number"]
        ask(f"/requests/{number}", error=_REFUSED).close()
        ask(f"/requests/{json.loads(held.readline())['number']}").close()
        sender.join()
    ask("/wait", kind="requests", api="Produce", topic=topic, count=2).close()
    with urlopen(f"{url}/requests?api=Produce&topic={topic}", timeout=60) as listed:
        answers = [seen["answer"] for seen in json.load(listed)["requests"]]
    codes = [answer["responses"][0]["partition_responses"][0]["error_code"] for answer in answers]
    assert codes == [_REFUSED, "NONE"]
    assert len(cluster.requests(api="Produce", topic=topic)) == 1
