"""The requests that a cluster has seen, and hooks that answer them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any

import pytest

from purgatory.cluster import ClusterError, Delay, SeenRequest
from purgatory.cluster.steering import seen_requests
from purgatory.kafka.errors import ErrorCode
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster
from tests.wire.cluster.wire_values import record_batch
from tests.world.security import security_of
from tests.world.wire_client import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    LIST_GROUPS,
    METADATA,
    PRODUCE,
    NoAnswerError,
    WireClient,
)


def _run(
    main: Callable[[WorldCluster, WireClient], Coroutine[Any, Any, None]], security: str = "none"
) -> None:
    with World(1) as world:
        chosen = security_of(security)
        cluster = world.cluster(brokers=1, topics=["orders", "sales"], **chosen.cluster)
        client = WireClient(cluster, "test", True, chosen)
        world.run(main(cluster, client))
        client.cut()


async def _metadata(client: WireClient, topic: str = "orders") -> int:
    answer = await client.ask(1, METADATA, {"topics": [{"name": topic, "topic_id": None}]})
    return int(answer.topics[0].error_code)


async def _produce(client: WireClient, topic: str = "orders") -> Any:
    await client.refresh([topic])
    partition = {"index": 0, "records": record_batch([b"one"])}
    values = {
        "transactional_id": None,
        "acks": -1,
        "timeout": timedelta(seconds=1),
        "topic_data": [
            {"name": topic, "topic_id": client.topic_ids[topic], "partition_data": [partition]}
        ],
    }
    answer = await client.ask(1, PRODUCE, values)
    return answer.responses[0].partition_responses[0]


def test_requests_are_listed_with_fields_and_answers() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        await _metadata(client)
        await _produce(client)
        metadata, refreshed, produce = cluster.requests(client_id="test")
        assert (metadata.api, metadata.broker, metadata.number) == ("Metadata", 1, 1)
        assert metadata.fields.topics[0].name == "orders"
        assert metadata.answer.topics[0].error_code == 0
        assert refreshed.answered_s is not None and refreshed.answered_s >= refreshed.at_s
        assert produce.version == client.version(PRODUCE)
        assert produce.answer.responses[0].partition_responses[0].base_offset == 0
        assert cluster.requests(topic="orders", api="produce") == [produce]
        assert cluster.requests(topic="sales") == cluster.requests(client_id="other") == []
        with pytest.raises(ClusterError, match="nearest are Produce"):
            cluster.requests(api="Prduce")

    _run(main)


def test_requests_name_their_topics() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        topic = {"name": "new", "num_partitions": 1, "replication_factor": 1}
        await client.ask(1, CREATE_TOPICS, {"topics": [topic], "timeout": timedelta(seconds=1)})
        resource = {"resource_type": 2, "resource_name": "new"}
        await client.ask(1, DESCRIBE_CONFIGS, {"resources": [resource]})
        apis = [seen.api for seen in cluster.requests(topic="new")]
        assert apis == ["CreateTopics", "DescribeConfigs"]

    _run(main)


def test_seen_request_is_json_without_secrets() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        await _produce(client)
        text = json.dumps([seen.as_dict() for seen in cluster.requests()])
        assert '"api": "Produce"' in text
        assert '"error_code": "NONE"' in text
        assert [seen["api"] for seen in json.loads(text)][-2:] == ["Metadata", "Produce"]
        assert "auth_bytes" not in text

    _run(main, "sasl")


def test_lost_answer_is_not_one() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        cluster.fault.lose_responses(api="Metadata", count=1)
        with pytest.raises(NoAnswerError):
            await _metadata(client)
        cluster.fault.return_error(api="Metadata", error="REQUEST_TIMED_OUT", after=True, count=1)
        await _metadata(client)
        lost, refused = cluster.requests(api="Metadata")
        assert lost.answer is None
        assert refused.answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT

    _run(main)


def test_oldest_requests_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_requests, "MOST_REQUESTS", 3)

    async def main(cluster: WorldCluster, client: WireClient) -> None:
        for _ in range(5):
            await _metadata(client)
        assert [seen.number for seen in cluster.requests()] == [3, 4, 5]
        monkeypatch.setattr(seen_requests, "MOST_BYTES", 200)
        await _metadata(client)
        assert cluster.request_log.kept_bytes <= 200
        assert cluster.request_log.count == 6

    _run(main)


def test_hook_answers_in_place_of_the_broker() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        def refuse(seen: SeenRequest) -> Any:
            return seen.refusal("NOT_LEADER_OR_FOLLOWER")

        with cluster.on_request(refuse, api="Produce", topic="orders", count=2) as hook:
            assert (await _produce(client, "sales")).error_code == 0
            assert (await _produce(client)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert hook.uses == 1
        assert (await _produce(client)).base_offset == 0, "the first one was not stored"
        assert not hook.active

    _run(main)


def test_hook_ends_after_its_last_use() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        seen: list[SeenRequest] = []
        hook = cluster.on_request(seen.append, api="Metadata", count=1)
        await _metadata(client)
        await _metadata(client)
        assert (len(seen), hook.active) == (1, False)

    _run(main)


def test_answers_are_typed_by_the_codec() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        group = {"group_id": "g", "protocol_type": "consumer"}
        values = {"error_code": "NOT_COORDINATOR", "throttle_time": 7, "groups": [group]}
        cluster.on_request(lambda _: values, api="ListGroups")
        answer = await client.ask(1, LIST_GROUPS, {"states_filter": [], "types_filter": []})
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        assert answer.groups[0].group_id == "g"
        seen = cluster.requests(api="ListGroups")[0]
        wrongs: list[Mapping[str, Any]] = [{"group": []}, {"groups": 1}, {"error_code": "NO"}]
        for wrong in wrongs:
            with pytest.raises(ClusterError, match="no answer to ListGroups"):
                seen.answer_with(wrong)

    _run(main)


def test_hook_delays_requests_and_answers() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        loop = asyncio.get_running_loop()
        cluster.on_request(lambda _: Delay(2), api="Metadata", count=1)
        began_s = loop.time()
        assert await _metadata(client) == 0
        assert 2 < loop.time() - began_s < 3

        async def late(seen: SeenRequest) -> Any:
            await asyncio.sleep(3)
            return Delay(4, seen.refusal("REQUEST_TIMED_OUT"))

        cluster.on_request(late, api="Metadata", count=1)
        began_s = loop.time()
        assert await _metadata(client) == ErrorCode.REQUEST_TIMED_OUT
        assert 7 < loop.time() - began_s < 8

    _run(main)


def test_failing_hook_passes_the_request_on() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        def fail(_: SeenRequest) -> Any:
            raise ZeroDivisionError

        cluster.on_request(fail)
        cluster.on_request(lambda _: {"nonsense": 1})
        assert await _metadata(client) == 0

    _run(main)


def test_errors_come_one_after_the_other() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        errors = ["NOT_LEADER_OR_FOLLOWER", None, "REQUEST_TIMED_OUT"]
        fault = cluster.fault.return_error(api="Produce", topic="orders", errors=errors)
        assert (await _produce(client, "sales")).error_code == 0, "not concerned"
        codes = [(await _produce(client)).error_code for _ in range(4)]
        refused, late = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT
        assert codes == [refused, 0, late, 0]
        assert (fault.uses, fault.active) == (3, False)

    _run(main)


def test_sequences_of_errors_are_checked() -> None:
    async def main(cluster: WorldCluster, client: WireClient) -> None:
        return_error = cluster.fault.return_error
        with pytest.raises(ClusterError, match="one of them"):
            return_error(error="REQUEST_TIMED_OUT", errors=["REQUEST_TIMED_OUT"])
        with pytest.raises(ClusterError, match="one of them"):
            return_error()
        with pytest.raises(ClusterError, match="nearest are"):
            return_error(errors=["REQUEST_TIMED_OUTS"])
        with pytest.raises(ClusterError, match="count=2"):
            return_error(errors=["REQUEST_TIMED_OUT"], count=2)

    _run(main)
