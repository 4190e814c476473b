"""The acts of a row: faults, changes of the topic, and the comings and goings of members."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from purgatory.kafka import OFFSETS_TOPIC, TopicPartition, group_partition
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.transactions.transaction_metadata import TRANSACTIONS_TOPIC
from purgatory.virtual.cluster import WorldCluster
from tests.world.wire_client import (
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    NoAnswerError,
    WireClient,
)
from tests.world.wire_members import GROUP_ID, TOPIC
from tests.world.wire_producer import TRANSACTIONAL_ID

PARTITIONS, MORE_PARTITIONS = 3, 5
_BYTES_PER_S = {"producer_byte_rate": 60.0, "consumer_byte_rate": 300.0}
_UNLIMITED = 1e9
"""The quotas at each broker: of clients, and of those that look at the row. Empty fetches count."""
_DAY_MS = 86_400_000
_TIMEOUT = timedelta(seconds=10)
_TOPIC_RESOURCE, _GROUP_RESOURCE = 2, 32

CHANGED_CONFIG = {"message.timestamp.type": "LogAppendTime", "compression.type": "gzip"}
COMPACTED_CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "5000",
}


async def set_quotas(admin: WireClient) -> None:
    """Limit the rates of all clients by default, and not those of the row's own readers."""
    for name in (None, admin.client_id, "auditor"):
        rates = _BYTES_PER_S if name is None else dict.fromkeys(_BYTES_PER_S, _UNLIMITED)
        entity = [{"entity_type": "client-id", "entity_name": name}]
        ops = [
            {"key": key, "value": bytes_per_s, "remove": False}
            for key, bytes_per_s in rates.items()
        ]
        asked = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
        answer = await admin.ask(1, ALTER_CLIENT_QUOTAS, asked)
        assert not answer.entries[0].error_code


# Faults.


def leader_of(cluster: WorldCluster, topic: str, partition: int = 0) -> int:
    """Return the leader of a partition; that of the first broker where there is none."""
    state = cluster.controller.state_of(TopicPartition(topic, partition))
    return 1 if state is None or state.leader < 0 else state.leader


def coordinator_of(cluster: WorldCluster, has_group: bool) -> int:
    """Return the coordinator of the group, or that of the transactional id."""
    if has_group:
        partition = group_partition(GROUP_ID, cluster.offsets_partitions())
        return leader_of(cluster, OFFSETS_TOPIC, partition)
    partition = group_partition(TRANSACTIONAL_ID, cluster.transactions_partitions())
    return leader_of(cluster, TRANSACTIONS_TOPIC, partition)


async def begin_fault(
    name: str, cluster: WorldCluster, has_group: bool, for_s: float, rng: random.Random
) -> int | None:
    """Begin a row's fault; return the broker that stands still, if one does."""
    broker = (
        coordinator_of(cluster, has_group)
        if name == "kill-coordinator"
        else leader_of(cluster, TOPIC)
    )
    match name:
        case "kill-coordinator" | "kill-leader":
            await cluster.fault.kill(broker, for_s=for_s)
        case "pause":
            cluster.fault.pause(broker, for_s=for_s)
            return broker
        case "cut-link":
            others = [other for other in cluster.brokers if other != broker]
            cluster.fault.cut_link(broker, rng.choice(others), for_s=for_s)
        case "clock-jump":
            jump_ms = rng.choice((-_DAY_MS, _DAY_MS))
            cluster.fault.jump_clock(broker, jump_ms, for_s=for_s)
        case "disk-full":
            volume = cluster.disk(broker)
            volume.fill(rng.randrange(2_000))
            asyncio.get_running_loop().call_later(for_s, volume.remove_limit)
        case "power-cut":
            await cluster.cut_power(broker, for_s=for_s)
    return None


# Changes of the topic.


async def create_topics(admin: WireClient, topics: Mapping[str, int]) -> None:
    """Create topics that may not be there yet."""
    asked = [
        {"name": name, "num_partitions": count, "replication_factor": 3}
        for name, count in topics.items()
    ]
    wanted = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    await _until_done(
        admin, CREATE_TOPICS, {"topics": asked, "timeout": _TIMEOUT}, "topics", wanted
    )


async def change_topic(name: str, admin: WireClient) -> None:
    """Change the row's topic."""
    match name:
        case "made-anew":
            gone = {"topics": [{"name": TOPIC, "topic_id": None}], "timeout": _TIMEOUT}
            wanted = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            await _until_done(admin, DELETE_TOPICS, gone, "responses", wanted)
            await create_topics(admin, {TOPIC: PARTITIONS})
            # A client's metadata request in between has created it, with one partition.
            await _add_partitions(admin, PARTITIONS)
        case "partitions-added":
            await _add_partitions(admin, MORE_PARTITIONS)
        case "config-changed":
            await alter_configs(admin, _TOPIC_RESOURCE, TOPIC, CHANGED_CONFIG)
        case "compacted":
            await alter_configs(admin, _TOPIC_RESOURCE, TOPIC, COMPACTED_CONFIG)


async def _add_partitions(admin: WireClient, count: int) -> None:
    more = {"name": TOPIC, "count": count, "assignments": None}
    wanted = (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS)
    await _until_done(
        admin, CREATE_PARTITIONS, {"topics": [more], "timeout": _TIMEOUT}, "results", wanted
    )


async def set_share_start(admin: WireClient) -> None:
    """Have the share group read from the beginning."""
    start = {"share.auto.offset.reset": "earliest"}
    await alter_configs(admin, _GROUP_RESOURCE, GROUP_ID, start)


async def alter_configs(
    admin: WireClient, resource: int, name: str, configs: Mapping[str, str]
) -> None:
    """Set the settings of a topic or a group."""
    changes = [
        {"name": key, "config_operation": 0, "value": value} for key, value in configs.items()
    ]
    of_resource = {"resource_type": resource, "resource_name": name, "configs": changes}
    await _until_done(
        admin, ALTER_CONFIGS, {"resources": [of_resource]}, "responses", (ErrorCode.NONE,)
    )


async def _until_done(
    admin: WireClient,
    api_key: int,
    values: Mapping[str, Any],
    results: str,
    wanted: tuple[ErrorCode, ...],
) -> None:
    """Ask one broker after the other until the change is made, or was made before."""
    last: Any = None
    for broker in [*admin.cluster.brokers] * 20:
        try:
            last = await admin.ask(broker, api_key, values, gives_up_s=30)
        except NoAnswerError:
            await asyncio.sleep(1)
            continue
        if all(one.error_code in wanted for one in getattr(last, results)):
            return
        await asyncio.sleep(1)
    raise AssertionError(f"the admin's request was refused: {last}")


# Members.

SILENT_S = 15.0
"""The time for which a member stands still: longer than its session."""


async def change_membership(
    name: str, members: Any, join: Callable[[], object], leave: Callable[[], Awaitable[None]]
) -> None:
    """Let a member come or go.

    Args:
        members: the hosts of members, of which the last one goes.
        join: starts another one.
        leave: has the last one leave.
    """
    match name:
        case "join":
            join()
        case "leave":
            await leave()
        case "crash":
            members[-1].crash()
        case "return":
            members[-1].restart()
        case "silence":
            members[-1].pause()
            await asyncio.sleep(SILENT_S)
            members[-1].resume()
