"""Responses with addresses of brokers have the proxy's instead, in each version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from kio.index import load_response_schema

from purgatory.cluster import ThreadedCluster
from purgatory.cluster.listeners import Endpoint
from purgatory.proxy import Proxy, ProxyConfig, ThreadedProxy
from purgatory.proxy.addresses import (
    KNOWN_VERSIONS,
    Addresses,
    ProxiedBroker,
    TopicIds,
    has_addresses,
)
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import ALL_VERSIONS, record_batch

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER = 0, 1, 3, 10, 60
SHARE_FETCH, SHARE_ACKNOWLEDGE = 78, 79
BEYOND_CLIENTS = {52, 53, 54, 59}
"""Vote, BeginQuorumEpoch, EndQuorumEpoch, FetchSnapshot: controllers use them."""


def addresses_in(entity: Any) -> Iterator[str]:
    """All hosts with their ports in a response."""
    if isinstance(entity, tuple):
        for element in entity:
            yield from addresses_in(element)
    elif is_dataclass(entity):
        host, port = getattr(entity, "host", None), getattr(entity, "port", None)
        if host:
            yield f"{host}:{port}"
        for field in fields(entity):
            yield from addresses_in(getattr(entity, field.name))


def test_responses_with_addresses_are_recognised() -> None:
    found = {
        key
        for key, (oldest, newest) in KNOWN_VERSIONS.items()
        for version in range(oldest, newest + 1)
        if has_addresses(key, version)
    }
    clients = {PRODUCE, FETCH, METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER}
    assert found - BEYOND_CLIENTS == clients | {SHARE_FETCH, SHARE_ACKNOWLEDGE}


def listener_of(proxy: ThreadedProxy, broker: int) -> tuple[str, int]:
    """Return where the proxy listens for a broker."""
    (listener,) = (one["listener"] for one in proxy.state()["brokers"] if one["id"] == broker)
    host, _, port = listener.rpartition(":")
    return host, int(port)


async def ask(address: tuple[str, int], api_key: int, version: int, values: Any) -> Any:
    async with RawClient(*await asyncio.open_connection(*address)) as client:
        return await client.ask(api_key, version, values)


@pytest.mark.parametrize(
    ("api_key", "version"),
    [one for one in ALL_VERSIONS if one[0] in (METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER)],
)
def test_each_version_has_the_addresses_of_the_proxy(
    proxy: ThreadedProxy, api_key: int, version: int
) -> None:
    values = {"key": "group", "coordinator_keys": ["group"], "topics": ()}
    body = asyncio.run(ask(listener_of(proxy, 1), api_key, version, values))
    found = set(addresses_in(body))
    assert found
    assert found <= {broker["listener"] for broker in proxy.state()["brokers"]}


@pytest.mark.parametrize("version", [10, 11, 12])
def test_leader_hints_have_the_proxys_addresses(
    cluster: ThreadedCluster, proxy: ThreadedProxy, topic: str, version: int
) -> None:
    (found,) = (one for one in cluster.state()["topics"] if one["name"] == topic)
    leader = found["partitions"][0]["leader"]
    other = leader % 3 + 1
    data = [{"index": 0, "records": record_batch([b"one"])}]
    produce = {"acks": -1, "topic_data": [{"name": topic, "partition_data": data}]}
    body = asyncio.run(ask(listener_of(proxy, other), PRODUCE, version, produce))
    assert "node_endpoints" in {
        field.name for field in fields(load_response_schema(PRODUCE, version))
    }
    host, port = listener_of(proxy, leader)
    assert list(addresses_in(body)) == [f"{host}:{port}"]


def test_two_concurrent_responses_with_a_new_broker_make_one_listener() -> None:
    listened: list[ProxiedBroker] = []

    async def listen(broker: ProxiedBroker) -> None:
        await asyncio.sleep(0)
        listened.append(broker)

    async def main() -> None:
        addresses = Addresses([], listen, TopicIds())
        learning = [addresses.learn(3, Endpoint("kafka-3", 9092)) for _ in range(2)]
        await asyncio.gather(*learning)
        assert addresses.brokers == listened
        assert [broker.broker_id for broker in listened] == [3]

    asyncio.run(main())


def test_listener_of_a_dead_broker_is_closed_and_opened_again(cluster: ThreadedCluster) -> None:
    async def main() -> None:
        addresses = cluster.bootstrap_servers.split(",")
        async with Proxy(ProxyConfig(to=addresses), broker_ids=[1, 2, 3]) as proxy:
            endpoint = proxy.brokers[2].endpoint
            _, writer = await asyncio.open_connection(*endpoint)
            await proxy.refuse_clients(2)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*endpoint)
            await proxy.accept_clients(2)
            body = await ask(endpoint, METADATA, 9, {"topics": ()})
            assert {broker.node_id for broker in body.brokers} == {1, 2, 3}
            writer.close()

    asyncio.run(main())
