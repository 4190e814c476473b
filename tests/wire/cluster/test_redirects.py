"""Each API redirects clients to the leader or the coordinator as its row in the registry says."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from kio.index import load_request_schema

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.api.registry import APIS
from purgatory.kafka import TopicPartition
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.test_authorization import codes_in, filled
from tests.wire.cluster.wire_values import record_batch

_NAME, _PARTITION = "hidden-topic", 2
"""The names of topics, groups and transactions by `filled`."""

_EXCEPTIONS = {
    16: "ListGroups: each coordinator lists its own",
    66: "ListTransactions: each coordinator lists its own",
    28: "TxnOffsetCommit: the transaction is verified first",
}


def _request(api_key: int, version: int, topic_id: UUID) -> dict[str, Any]:
    request = filled(load_request_schema(api_key, version), topic_id)
    partition: dict[str, Any] = {"partition_index": _PARTITION, "acknowledgement_batches": []}
    topics = [{"topic_id": topic_id, "partitions": [partition]}]
    match api_key:
        case 0:
            partition = {"index": _PARTITION, "records": record_batch([b"x"])}
            topics = [{"topic_id": topic_id, "partition_data": [partition]}]
            return {**request, "transactional_id": None, "topic_data": topics}
        case 1 | 2:
            return {**request, "isolation_level": 0}
        case 78:  # begins a session
            return {**request, "share_session_epoch": 0, "topics": topics}
        case 79:
            batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
            partition["acknowledgement_batches"] = [batch]
            return {**request, "share_session_epoch": 1, "topics": topics}
    return request


async def _bystander(cluster: Cluster) -> int:
    """Return a broker that neither leads the partition nor coordinates."""
    state = cluster.controller.state_of(TopicPartition(_NAME, _PARTITION))
    assert state is not None
    busy = {state.leader}
    async with await RawClient.to(cluster) as client:
        for key_type in (0, 1):
            values = {"key_type": key_type, "coordinator_keys": [_NAME]}
            [coordinator] = (await client.ask(10, 4, values)).coordinators
            busy.add(coordinator.node_id)
    return next(one for one in cluster.brokers if one not in busy)


def test_other_brokers_redirect_clients() -> None:
    async def main() -> None:
        config = ClusterConfig(brokers=4, topics=[TopicSpec(_NAME, 3, 1)])
        async with Cluster(config) as cluster:
            topic_id = cluster.controller.topics[_NAME].topic_id
            async with await RawClient.to(cluster, await _bystander(cluster)) as client:
                for api_key, api in APIS.items():
                    if api.redirect is not None and api_key not in _EXCEPTIONS:
                        request = _request(api_key, api.versions[1], topic_id)
                        response = await client.ask(api_key, api.versions[1], request)
                        assert api.redirect in codes_in(response), (api_key, response)

    asyncio.run(main())
