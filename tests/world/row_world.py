"""A row, run: two minutes of a cluster and its clients, then what is left of it.

0 s     the clients begin: a producer, and two members
30 s    the fault begins, and lasts for 20 s
35 s    a member comes or goes
40 s    the topic changes
100 s   the producer ends; the members read what is left
120 s   descriptions are compared with what was told, and the members leave
350 s   the preferred leaders are compared with the leaders
then    the cluster is stopped and started from its disk; in memory, broker after broker
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any

from purgatory.cluster import Fsync, GroupConfig
from purgatory.kafka import LogConfig
from purgatory.pipeline.jobs.audit.anomalies import AUDIT_TABLES
from purgatory.virtual import World
from purgatory.virtual.cluster import WorldCluster
from purgatory.virtual.hosts import Host
from tests.world import acts
from tests.world.aiokafka_clients import AiokafkaMember, AiokafkaProducer
from tests.world.history import History, Leadership
from tests.world.pairwise import Row
from tests.world.security import ADMIN, USER, Security, security_of
from tests.world.state import descriptions, initialize_producer, read_all, snapshot, watch_offsets
from tests.world.wire_client import WireClient
from tests.world.wire_members import (
    GROUP_ID,
    SESSION_S,
    TOPIC,
    ClassicMember,
    ConsumerMember,
    PositionedMember,
    ShareMember,
    StreamsMember,
    WireMember,
)
from tests.world.wire_producer import SIDE_TOPIC, WireProducer
from tests.world.wiretap import WireTap

_FAULT_S, _FAULT_FOR_S, _MEMBER_S, _TOPIC_S = 30.0, 20.0, 35.0, 40.0
_PRODUCER_ENDS_S, _ENDS_S, _LEADERS_AFTER_S = 100.0, 120.0, 300.0
DELAY_S, SHUFFLED_S = 3.0, 15.0
"""The longest delay of acts: their order stays, or any of them may come first."""
_OLD_NAMES_S = 30.0
"""The time until a client knows that a topic was made anew: its metadata's age, and the
requests that it sends again."""


def run_row(
    row: Row, seed: int, delay_s: float = DELAY_S, realistic_delays: bool = False
) -> History:
    """Run a row, and return its history.

    Args:
        row: a value for each dimension.
        seed: of the world, and of the moments of acts.
        delay_s: by how much each act is delayed at most.
        realistic_delays: whether the brokers are some milliseconds behind.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)
    with World(seed) as world:
        return _RowWorld(world, row, delay_s, realistic_delays).run()


class _RowWorld:
    def __init__(self, world: World, row: Row, delay_s: float, realistic_delays: bool) -> None:
        self._world = world
        self._row = row
        self._delay_s = delay_s
        self._realistic_delays = realistic_delays
        self._security: Security = security_of(row["security"])
        self._history = History()
        self._rng = random.Random(f"{world.seed}/row")
        self._hosts: list[Host] = []
        self._leaving: dict[str, asyncio.Event] = {}
        self._left: dict[str, asyncio.Event] = {}
        self._members: list[WireMember | AiokafkaMember] = []
        self._clients: list[WireClient] = []
        self._cluster = self._new_cluster(row["storage"] == "disk")

    def _new_cluster(self, disk: Any) -> WorldCluster:
        session_ms = round(SESSION_S * 1_000)
        return self._world.cluster(
            disk=disk,
            fsync=Fsync.ALWAYS if self._row["fault"] == "power-cut" else Fsync.NEVER,
            min_insync_replicas=2,
            replica_max_lag_ms=10_000,
            realistic_delays=self._realistic_delays,
            log_config=LogConfig(segment_bytes=1_048_576),
            groups=GroupConfig(
                initial_rebalance_delay_ms=1_000,
                consumer_session_timeout_ms=session_ms,
                share_session_timeout_ms=session_ms,
                share_record_lock_duration_ms=session_ms,
                consumer_heartbeat_interval_ms=2_500,
                share_heartbeat_interval_ms=2_500,
                streams_session_timeout_ms=session_ms,
                streams_heartbeat_interval_ms=2_500,
                # Offsets are looked through all the time, and none is old enough to expire.
                offsets_retention_check_interval_ms=1_000,
            ),
            **self._security.cluster,
        )

    def _tap(self) -> WireTap:
        return WireTap(self._cluster, self._history, lambda: self._world.now_s, SESSION_S)

    def _admin(self) -> WireClient:
        return self._client("admin", True, ADMIN)

    def _client(self, client_id: str, newest: bool, user: str = USER) -> WireClient:
        client = WireClient(self._cluster, client_id, newest, self._security, user)
        self._clients.append(client)
        return client

    # The row.

    def run(self) -> History:
        try:
            return self._run()
        finally:
            for client in self._clients:
                client.cut()

    def _run(self) -> History:
        world, history = self._world, self._history
        tap = self._tap()
        world.run(self._two_minutes(tap), "30min")
        history.ended_s = world.now_s
        if self._row["fault"] != "none":
            world.pass_time(f"{_LEADERS_AFTER_S - (_ENDS_S - _FAULT_S - _FAULT_FOR_S):.0f}s")
        history.leaderships += self._leaderships()
        history.consumed = sum(member.consumed for member in self._members)
        world.run(self._read_for_the_audit())
        history.tables = self._cluster._tables(AUDIT_TABLES)
        history.before = world.run(snapshot(self._admin(), self._row))
        self._restart()
        history.after = world.run(snapshot(self._admin(), self._row))
        if self._row["producer"] == "transactional":
            world.run(initialize_producer(self._admin()))  # its epoch rises, too
        return history

    async def _two_minutes(self, tap: WireTap) -> None:
        admin = self._admin()
        await acts.create_topics(admin, {TOPIC: acts.PARTITIONS, SIDE_TOPIC: 1})
        if self._row["group"] == "share":
            await acts.set_share_start(admin)
        if self._row["quota"] == "bytes":
            self._history.throttled_s = 0.0
            await acts.set_quotas(admin)
        for _ in range(2 if self._has_group else 1):
            self._join()
        producer = self._new_producer()
        loop = asyncio.get_running_loop()
        producing = loop.create_task(producer.run())
        watching = loop.create_task(watch_offsets(self._admin(), self._row))
        acting = [
            loop.create_task(self._at(_FAULT_S, self._begin_fault())),
            loop.create_task(self._at(_MEMBER_S, self._change_membership())),
            loop.create_task(self._at(_TOPIC_S, self._change_topic(tap))),
        ]
        await asyncio.sleep(_PRODUCER_ENDS_S - self._world.now_s)
        producer.stop()
        await asyncio.gather(*acting)
        await asyncio.wait_for(producing, 90)
        await asyncio.sleep(max(0.0, _ENDS_S - self._world.now_s))
        self._history.acknowledged = producer.acknowledged
        self._history.descriptions += await descriptions(admin, self._row, tap, self._history)
        watching.cancel()
        while self._hosts:
            await self._leave()

    async def _at(self, at_s: float, act: Any) -> None:
        await asyncio.sleep(at_s + self._rng.uniform(0, self._delay_s) - self._world.now_s)
        await act

    async def _begin_fault(self) -> None:
        now_s = self._world.now_s
        paused = await acts.begin_fault(
            self._row["fault"], self._cluster, self._has_group, _FAULT_FOR_S, self._rng
        )
        if paused is not None:
            self._history.paused.append((paused, now_s, now_s + _FAULT_FOR_S))

    async def _change_topic(self, tap: WireTap) -> None:
        if self._row["topic"] == "made-anew":
            tap.made_anew[TOPIC] = self._world.now_s + _OLD_NAMES_S
        await acts.change_topic(self._row["topic"], self._admin())

    def _restart(self) -> None:
        if self._row["storage"] == "memory":
            self._world.run(self._restart_each_broker())
            return
        if self._row["fault"] == "power-cut":
            self._world.run(self._cluster.cut_power())
        else:
            self._world.run(self._cluster.stop())
        self._cluster = self._new_cluster(self._cluster.virtual_disk)
        self._tap()
        self._world.pass_time("5s")

    async def _restart_each_broker(self) -> None:
        for broker in self._cluster.brokers:
            await self._cluster.kill(broker)
            await asyncio.sleep(2)
            await self._cluster.revive(broker)
            await asyncio.sleep(10)  # until it is in sync

    # Clients.

    @property
    def _has_group(self) -> bool:
        return self._row["group"] != "none"

    @property
    def _is_newest(self) -> bool:
        return self._row["client"] == "newest"

    def _aiokafka(self, client_id: str) -> dict[str, Any]:
        servers = self._cluster.bootstrap_servers
        return {
            "bootstrap_servers": servers,
            "client_id": client_id,
            **self._security.aiokafka(),
        }

    def _new_producer(self) -> WireProducer | AiokafkaProducer:
        kind = self._row["producer"]
        commits = self._row["group"] in ("classic", "static", "consumer", "streams")
        if self._row["client"] == "aiokafka":
            return AiokafkaProducer(self._aiokafka("producer"), kind, commits)
        client = self._client("producer", self._is_newest)
        return WireProducer(client, kind, commits)

    def _new_member(self, name: str) -> WireMember | AiokafkaMember:
        group = self._row["group"]
        instance_id = name if group == "static" else None
        if self._row["client"] == "aiokafka":
            group_id = GROUP_ID if self._has_group else None
            return AiokafkaMember(self._aiokafka(name), group_id, instance_id)
        client, fetcher = (self._client(name, self._is_newest) for _ in range(2))
        match group:
            case "classic" | "static":
                return ClassicMember(client, fetcher, instance_id)
            case "consumer":
                return ConsumerMember(client, fetcher)
            case "share":
                return ShareMember(client, fetcher)
            case "streams":
                return StreamsMember(client, fetcher)
        return PositionedMember(client, fetcher)

    def _join(self) -> None:
        name = f"reader-{len(self._leaving) + 1}"
        leaving = self._leaving[name] = asyncio.Event()
        left = self._left[name] = asyncio.Event()

        async def main() -> None:
            member = self._new_member(name)
            self._members.append(member)
            member.start()
            await leaving.wait()
            await member.stop(leaves=self._has_group)
            left.set()

        self._hosts.append(self._world.host(name, main))

    async def _leave(self) -> None:
        host = self._hosts.pop()
        if host.state != "down":
            self._leaving[host.name].set()
            await self._left[host.name].wait()

    async def _change_membership(self) -> None:
        name = self._row["membership"]
        await acts.change_membership(name, self._hosts, self._join, self._leave)

    # The end.

    def _leaderships(self) -> Sequence[Leadership]:
        return [
            Leadership(str(topic_partition), state.replicas[0], state.leader)
            for topic_partition, state in self._cluster.controller.partitions()
        ]

    async def _read_for_the_audit(self) -> None:
        await read_all(self._client("auditor", True, ADMIN), self._row)
