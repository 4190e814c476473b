"""A cluster of brokers in one process: they share the event loop and a controller.

Ground rules
------------
* Everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Coroutine, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Self
from uuid import UUID

from purgatory.cluster.api.registry import apis_of, serve
from purgatory.cluster.broker import Broker
from purgatory.cluster.config import ClusterConfig
from purgatory.cluster.fault_injection import Faults
from purgatory.cluster.metadata import ClusterMetadata
from purgatory.cluster.observer import ClusterObserver, replica_offsets
from purgatory.cluster.steering import FAULTS
from purgatory.cluster.steering.moves import BrokerIsEmpty, Moves, empty_broker
from purgatory.cluster.steering.request_hooks import RequestHooks
from purgatory.cluster.steering.request_methods import RequestMethods
from purgatory.cluster.steering.seen_requests import RequestLog
from purgatory.cluster.steering.waits import ClusterWaits
from purgatory.cluster.storage import REAL_DISK, Disk
from purgatory.cluster.trace import ClusterTrace
from purgatory.cluster.traced_brokers import TopicFacts
from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka import TopicPartition
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.security.authorizer import ALTER_ACLS_KEY
from purgatory.kafka.topics import PartitionState

_MAX_EPOCH_GAP = 1_000_000
"""The largest gap between a log's epoch and the saved one; a larger one comes from a damaged log.

An older `cluster.json` may have been put back, or a power cut may have lost the last one: that must
not cost records.
"""
_MAINTENANCE_S = 5.0
"""The longest interval between two checks of lagging followers, retention and unsaved state."""
_FIRST_RETENTION_S, _RETENTION_S = 30.0, 300.0
"""When records that are kept for a week or longer are looked at, and how often then.

As in Kafka: by default a week is kept, and records may have been given older times.
"""
REMOVAL_TIMEOUT_S = 30.0
"""The time in which other brokers copy what one has that is removed."""
_IDLE_CHECKS = 10
"""The number of checks of idle connections within the shortest idle time."""

_NS_PER_MS = 1_000_000
_CLEANUP_POLICY, _COMPACT = "cleanup.policy", "compact"
_log = Logger("purgatory.cluster")


class Cluster(RequestMethods, ClusterMetadata):
    """A cluster in one process: brokers, controller and the network between them.

    ``async with Cluster(config) as cluster`` starts and stops it.

    Args:
        config: the configuration.
        trace: records events.
        disk: the disk of the data folder.
    """

    def __init__(
        self,
        config: ClusterConfig | None = None,
        trace: ClusterTrace | None = None,
        disk: Disk = REAL_DISK,
    ) -> None:
        super().__init__(config or ClusterConfig(), trace, disk)
        self.apis = apis_of(self.config.kafka_version)
        versions = {key: api.versions for key, api in self.apis.items()}
        self._new_broker = partial(Broker, self, handler=serve, supported=versions)
        self.brokers: Mapping[int, Broker] = {
            broker_id: self._new_broker(broker_id) for broker_id in self.config.broker_ids
        }
        self.fault = Faults(self)
        self.request_log = RequestLog(self.apis, self._name_of_topic)
        self.hooks = RequestHooks(self.request_log)
        self.wait_for = ClusterWaits(lambda wait: wait.watch(self))
        self.move = Moves(self)
        self.on_event = self.wait_for.notify
        self.fault.on_use = partial(self.wait_for.notify, FAULTS)
        self.controller.blocks_isr = self.fault.blocks_isr
        self.security.on_acls_changed = self._distribute_acls
        self.controller.on_topic_deleted = self._forget_topic
        self._maintenance: list[asyncio.Task[None]] = []
        self._observer: ClusterObserver | None = None
        if trace is not None and trace.change is not None:
            self._observer = ClusterObserver(self, trace.clock, trace.record_change)
        if trace is not None:
            trace.topics.facts = self._topic_facts
            self.fault.on_refused = trace.record_injected_error
        self._used_ids = set(self.brokers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: Mapping[str, ssl.SSLContext] = {}
        self._reviving: dict[int, asyncio.Event] = {}

    def _topic_facts(self, name: str) -> TopicFacts | None:
        topic = self.controller.topics.get(name)
        if topic is None:
            return None
        policy = topic.configs.get(_CLEANUP_POLICY) or self.setting(_CLEANUP_POLICY) or ""
        return TopicFacts(topic.topic_id, _COMPACT in policy)

    def _name_of_topic(self, topic_id: UUID) -> str | None:
        topic = self.topic_of(topic_id)
        return None if topic is None else topic.name

    def __repr__(self) -> str:
        counts = f"{len(self.brokers)} brokers, {len(self.controller.topics)} topics"
        return f"<{type(self).__name__} of {counts}, {len(self.fault.active)} faults>"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Start all brokers, and create the topics.

        Args:
            tls: the TLS context of the first listener, in place of the configured one.

        Raises:
            ClusterError: a broker can't listen, or the data folder can't be used.
        """
        listeners = self.config.all_listeners
        own = {
            listener.name: listener.tls.context()
            for listener in listeners
            if listener.tls is not None
        }
        self.wait_for.start()
        self._tls = own if tls is None else {**own, listeners[0].name: tls}
        try:
            self._load_metadata()
            for broker in self.brokers.values():
                await broker.load_logs(_MAX_EPOCH_GAP)
            self._reconcile_logs(self.brokers)
            for broker in self.brokers.values():
                await broker.start(self._tls)
        except BaseException:
            await self.stop()
            raise
        self.controller.elect_preferred()
        for topic in self.config.topics:
            if topic.name in self.controller.topics:
                continue  # from the data folder
            replication = topic.replication or self.default_replication
            self.controller.create_topic(
                topic.name, topic.partitions, replication, self.checked_settings(topic.settings)
            )
        loop = asyncio.get_running_loop()
        self._maintenance = [
            loop.create_task(self._run_maintenance()),
            loop.create_task(self._cut_idle_connections()),
        ]
        if self.config.auto_leader_rebalance:
            self._maintenance.append(loop.create_task(self._balance_leaders()))
        if self._observer is not None:
            self._maintenance.append(loop.create_task(self._observer.run()))

    def _reconcile_logs(self, returning_brokers: Collection[int]) -> None:
        """Remove brokers with incomplete logs from the ISRs, before they start."""
        self.controller.reconcile_logs(
            {
                broker_id: broker.log_ends()
                for broker_id, broker in self.brokers.items()
                if broker.alive or broker_id in returning_brokers
            }
        )

    def _record_committed(self) -> bool:
        """Record the committed offsets, to be saved with the next change; return whether any has
        changed."""
        managers = {
            broker.broker_id: broker.manager for broker in self.brokers.values() if broker.alive
        }
        return self.controller.record_committed(managers)

    def _forget_topic(self, topic: str) -> None:
        for broker in self.brokers.values():
            if not broker.alive:
                broker.forget_topic(topic)

    async def stop(self) -> None:
        """Stop everything."""
        self.stopped = True
        if self._maintenance and self._observer is not None:
            self._observer.observe_or_log()
            self._observer = None
        for maintenance in self._maintenance:
            maintenance.cancel()
        if self._maintenance and self.config.data_dir is not None and self._record_committed():
            self._save_metadata()
        self.fault.forget_all()
        await self.wait_for.stop()
        for task in list(self._tasks):
            task.cancel()
        for broker in self.brokers.values():
            await broker.kill()
            broker.listening.release()
        if self._lock is not None:
            self._lock.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    # Addresses.

    @property
    def bootstrap_servers(self) -> str:
        """``bootstrap.servers`` of a client: "127.0.0.1:9092,127.0.0.1:9093"."""
        return self.bootstrap_servers_of(self.config.all_listeners[0].name)

    def bootstrap_servers_of(self, listener: str) -> str:
        """``bootstrap.servers`` of a client of another listener.

        Raises:
            ClusterError: there is no listener of that name.
        """
        listeners = {known.name: known for known in self.config.all_listeners}
        if listener not in listeners:
            raise ClusterError(f"there is no listener {listener}; there are {', '.join(listeners)}")
        endpoints = [broker.endpoint(listeners[listener]) for broker in self.brokers.values()]
        return ",".join(map(str, endpoints))

    # Starts and kills of brokers, for `fault`.

    async def kill(self, broker_id: int, lost_records: int = 0) -> None:
        """Kill a broker, and remove it from the controller.

        The last ``lost_records`` of each of its logs are lost when it is revived. A broker that is
        being started is killed afterwards.
        """
        while broker_id in self._reviving:
            await self._reviving[broker_id].wait()
        self._record_committed()
        await self.brokers[broker_id].kill()
        self.brokers[broker_id].lost_records = lost_records
        self.controller.broker_down(broker_id)
        self._check_alter_acls()
        self.check_decisions()

    async def revive(self, broker_id: int) -> None:
        """Start a broker that was killed.

        Raises:
            ClusterError: the broker is being started, can't listen, or the cluster was stopped.
        """
        if broker_id in self._reviving:
            raise ClusterError(f"broker {broker_id} is just being started")
        self._reviving[broker_id] = asyncio.Event()
        try:
            broker = self.brokers[broker_id]
            await broker.load_logs()
            if self.stopped:
                raise ClusterError("the cluster was stopped")
            self._reconcile_logs([broker_id])
            await broker.start(self._tls)
        except ClusterError:
            self.controller.broker_down(broker_id)  # the broker was up while it tried to listen
            raise
        finally:
            self._reviving.pop(broker_id).set()

    async def settle(self) -> None:
        """Revive all dead brokers."""
        await asyncio.sleep(0)  # those whose faults have just ended begin
        for broker_id, broker in self.brokers.items():
            while broker_id in self._reviving:
                await self._reviving[broker_id].wait()
            if not broker.alive:
                await self.revive(broker_id)

    def revive_soon(self, broker_id: int) -> None:
        """As ``revive``, without waiting: an error is logged."""
        self._begin_task(self._try_revive(broker_id))

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try_revive(self, broker_id: int) -> None:
        try:
            await self.revive(broker_id)
        except ClusterError as error:
            _log.error("not_revived", broker=broker_id, reason=str(error))

    # Brokers that are added and removed.

    async def add_broker(self) -> int:
        """Start one more broker, and return its id: it gets replicas of new topics alone, as in
        Kafka.

        Raises:
            ClusterError: it can't listen, or the cluster has a data folder.
        """
        self._check_in_memory()
        broker_id = max(self._used_ids) + 1
        self._used_ids.add(broker_id)
        broker = self._new_broker(broker_id)
        self._set_brokers({**self.brokers, broker_id: broker})
        try:
            await broker.load_logs()
            await broker.start(self._tls)
        except ClusterError:
            self.controller.broker_down(broker_id)
            self._set_brokers({key: one for key, one in self.brokers.items() if key != broker_id})
            raise
        return broker_id

    async def remove_broker(
        self, broker_id: int, *, timeout: float | timedelta | None = REMOVAL_TIMEOUT_S
    ) -> None:
        """Move a broker's replicas to others, then stop it for ever. Partitions for which there is
        no other broker have a replica less.

        Args:
            broker_id: a live one.
            timeout: seconds, or a timedelta, until the others have all records; None: any time.

        Raises:
            ClusterError: it is not there, dead, the last one, or the cluster has a data folder.
            TimeoutError: the others are late: the broker stays, without new replicas.
        """
        self._check_in_memory()
        self.fault.check_live(broker_id)
        empty_broker(self.controller, broker_id)
        await self.wait_for.until(BrokerIsEmpty(broker_id), timeout)
        await self.kill(broker_id)
        self.brokers[broker_id].listening.release()
        self._set_brokers({key: one for key, one in self.brokers.items() if key != broker_id})

    def _check_in_memory(self) -> None:
        if self.config.data_dir is not None:
            raise ClusterError("a cluster with a data folder has the brokers of its configuration")

    def _set_brokers(self, brokers: Mapping[int, Broker]) -> None:
        self.brokers = brokers
        self.controller.broker_ids = tuple(brokers)
        if self.delays is not None:
            self.delays.broker_ids = self.controller.broker_ids

    # Distribution of ACLs.

    def _distribute_acls(self) -> None:
        for broker in self.brokers.values():
            if self.fault.is_paused(broker.broker_id):
                self._begin_task(self._apply_acls_after_pause(broker))
            elif broker.alive:
                broker.apply_acls()
        self._check_alter_acls()

    async def _apply_acls_after_pause(self, broker: Broker) -> None:
        await self.fault.wait_while_paused(broker.broker_id)
        if broker.alive:
            broker.apply_acls()
            self._check_alter_acls()

    def _check_alter_acls(self) -> None:
        """Complete the requests that wait until all brokers apply the entries."""
        for broker in self.brokers.values():
            if broker.alive:
                broker.alter_acls_purgatory.check_and_complete(ALTER_ACLS_KEY)

    async def _run_maintenance(self) -> None:
        """Run the periodic tasks of the brokers."""
        loop = asyncio.get_running_loop()
        long_at_s = loop.time() + _FIRST_RETENTION_S
        while True:
            await asyncio.sleep(min(self.config.replica_max_lag_ms / 2_000, _MAINTENANCE_S))
            if self.config.data_dir is not None and (self._record_committed() or self._unsaved):
                self._save_metadata()
            with_long = loop.time() >= long_at_s
            if with_long:
                long_at_s = loop.time() + _RETENTION_S
            for broker in self._active_brokers():
                broker.apply_retention(broker.now_ms(), with_long)
                await asyncio.sleep(0)  # each takes milliseconds with thousands of partitions
                await broker.compact(broker.now_ms())
                broker.shrink_isrs()
                await asyncio.sleep(0)

    async def _balance_leaders(self) -> None:
        """Have brokers that returned lead their partitions again."""
        while True:
            await asyncio.sleep(self.config.leader_imbalance_check_s)
            paused = [broker for broker in self.brokers if self.fault.is_paused(broker)]
            self.controller.elect_preferred(paused)

    async def _cut_idle_connections(self) -> None:
        limits = self.config.limits
        while True:
            await asyncio.sleep(min(limits.frame_s, limits.idle_s) / _IDLE_CHECKS)
            for broker in self._active_brokers():
                broker.cut_idle_connections()

    def _active_brokers(self) -> list[Broker]:
        """The brokers that are not paused."""
        return [
            broker for broker in self.brokers.values() if not self.fault.is_paused(broker.broker_id)
        ]


def cluster_state(cluster: Cluster) -> dict[str, Any]:
    """Return brokers, topics, groups, purgatories and faults. O(partitions)."""
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "elections": cluster.controller.elections,
        "brokers": [_broker(broker) for broker in cluster.brokers.values()],
        "topics": [
            {
                "name": topic.name,
                "internal": topic.internal,
                "settings": topic.configs,
                "partitions": [
                    _partition(cluster, TopicPartition(topic.name, number), state)
                    for number, state in enumerate(topic.partitions)
                ],
            }
            for topic in cluster.controller.topics.values()
        ],
        "groups": [
            {
                "name": group.group_id,
                "broker": broker.broker_id,
                "state": group.state.value,
                "generation": group.generation,
                "members": list(group.members),
            }
            for broker in cluster.brokers.values()
            if broker.alive
            for group in broker.groups.classic.groups.values()
        ],
        "faults": [fault.as_dict() for fault in cluster.fault.recent],
    }


def _partition(
    cluster: Cluster, topic_partition: TopicPartition, state: PartitionState
) -> dict[str, Any]:
    high_watermark, ends = replica_offsets(cluster, topic_partition, state)
    leader = cluster.live_broker(state.leader)
    led = None if leader is None else leader.manager.partition(topic_partition)
    return {
        "partition": topic_partition.partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "replicas": state.replicas,
        "isr": state.isr,
        "high_watermark": high_watermark,
        "log_end_offsets": ends,
        "log_start_offset": None if led is None else led.log_start_offset,
    }


def _broker(broker: Broker) -> dict[str, Any]:
    return {
        "id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "alive": broker.alive,
        "connections": broker.connection_count,
        "purgatories": [_purgatory(purgatory) for purgatory in broker.purgatories]
        if broker.alive
        else [],
    }


def _purgatory(purgatory: AsyncPurgatory) -> dict[str, Any]:
    return {
        "name": purgatory.name,
        "pending": purgatory.num_delayed,
        "oldest_ms": purgatory.core.oldest_pending_ns // _NS_PER_MS,
        "outcomes": purgatory.counters.outcomes,
    }
