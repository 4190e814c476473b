"""One broker: its listeners, a replica manager, the purgatories in which its requests wait.

A broker can be killed and revived: its process (`_Process`) is gone then, with everything that
waited in it; what its disks hold stays.

Ground rules
------------
* Everything happens on the event loop's thread.
* Nothing of a process that was killed answers anybody any more.
"""

from __future__ import annotations

import random
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from purgatory.cluster.coordinator_records import (
    OffsetsRecords,
    ShareStateRecords,
    TransactionsRecords,
)
from purgatory.cluster.inter_broker import (
    InterBrokerClient,
    InterBrokerMarkerChannel,
    SharePersister,
)
from purgatory.cluster.listeners import Endpoint, Listener, Listening
from purgatory.cluster.log_manager import (
    BrokerLogs,
    LogCompaction,
    delete_old_segments,
    roll_old_segment,
)
from purgatory.cluster.metadata import AuthorizedTopics, ClusterMetadata
from purgatory.cluster.protocol.connection import Connection, Limits, MemoryQuota, Response
from purgatory.cluster.protocol.wire import Request, Versions
from purgatory.cluster.records import earliest_offset_since
from purgatory.cluster.replica_fetcher import ReplicaFetcher
from purgatory.cluster.storage import (
    MemoryLog,
    StoredLog,
)
from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka import (
    GroupManager,
    Partition,
    ReplicaManager,
    TopicPartition,
    TransactionCoordinator,
)
from purgatory.kafka.admin_manager import LeaderElections, TopicChanges
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.replication.fetch_session import FetchSessions
from purgatory.kafka.security.authorizer import Authorizer
from purgatory.kafka.settings.topic_settings import effective_value
from purgatory.kafka.share_groups.share_coordinator import ShareCoordinator
from purgatory.kafka.share_groups.share_partition import SharePurgatories
from purgatory.kafka.share_groups.share_partition_manager import SharePartitionManager
from purgatory.kafka.topics import LogEnd, PartitionState
from timer import SystemClock

_log = Logger("purgatory.cluster")
NO_LEADER = -1
NO_EPOCH = -1
Handler = Callable[["Broker", Request, Connection], Response | Awaitable[Response]]
"""Handles a request to a broker from a connection; the result may be awaitable."""


class Broker:
    """One broker of a cluster.

    Args:
        cluster: whose.
        broker_id: which one.
        handler: handles clients' requests to it.
        supported: the APIs by key, with the oldest and the newest version of each.
    """

    def __init__(
        self,
        cluster: ClusterMetadata,
        broker_id: int,
        handler: Handler,
        supported: Mapping[int, Versions],
    ) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.listening = Listening(
            broker_id,
            {
                listener.name: cluster.config.endpoint(listener, broker_id)
                for listener in cluster.config.all_listeners
            },
        )
        self.alive = False
        self.lost_records = 0
        """How many of the last records of each of its logs are gone when it comes back."""
        self._handler = handler
        self._supported = supported
        self._connections: dict[Connection, None] = {}  # in the order in which they came
        self._held = MemoryQuota()
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self.logs = BrokerLogs(cluster, broker_id, self.setting)
        self.purgatories: list[AsyncPurgatory] = []
        self.manager: ReplicaManager
        self.fetch_sessions: FetchSessions
        self._compaction: LogCompaction
        self.groups: GroupManager
        self.elections: LeaderElections
        self.topic_changes: TopicChanges
        self.authorizer: Authorizer
        self.alter_acls_purgatory: DelayedOperationPurgatory
        self.transactions: TransactionCoordinator
        self.share_coordinator: ShareCoordinator
        self.share_states: SharePersister
        self.shares: SharePartitionManager
        self.peer_calls: InterBrokerClient

    # Its life.

    async def load_logs(self, unsaved_epochs: int = 0) -> None:
        """Load the logs from disk: before ``start``, and before the controller elects.

        Others are served meanwhile. Remains of deleted topics go.

        Args:
            max_epoch_gap: by how much a log's leader epoch may be beyond the controller's.
        """
        assert not self.alive
        lost, self.lost_records = self.lost_records, 0
        await self.logs.load(unsaved_epochs, lost)

    def log_ends(self) -> dict[TopicPartition, LogEnd]:
        """Return where its logs end, be it dead or alive."""
        logs = self.manager.logs() if self.alive else self.logs.offline_logs
        return {key: LogEnd(log.end_offset, log.epochs.latest) for key, log in logs.items()}

    async def start(self, tls: Mapping[str, ssl.SSLContext]) -> None:
        """Start the broker: apply its roles, and listen.

        Args:
            tls: by the names of the listeners that speak it.

        Raises:
            ClusterError: it can't listen there.
        """
        assert not self.alive
        self._start_process()
        self.alive = True
        if self.cluster.trace is not None:
            self.cluster.trace.record_started(self.broker_id)
        self.cluster.controller.broker_up(self.broker_id, self)
        try:
            await self.listening.start(self.cluster.config.all_listeners, self._new_connection, tls)
        except ClusterError:
            await self.kill()
            raise

    def endpoint(self, listener: Listener) -> Endpoint:
        """Return the broker's address for clients of a listener."""
        return self.listening.endpoint(listener)

    @property
    def host(self) -> str:
        """Where its first listener is."""
        return self.endpoint(self.cluster.config.all_listeners[0]).host

    @property
    def port(self) -> int:
        """Where its first listener is."""
        return self.endpoint(self.cluster.config.all_listeners[0]).port

    def _start_process(self) -> None:
        config, trace = self.cluster.config, self.cluster.trace
        broker_id = self.broker_id
        self.purgatories = []
        self._compaction = LogCompaction()
        self.fetch_sessions = FetchSessions(lambda: random.randint(1, 2**31 - 1))
        self.logs.configure()
        self.manager = ReplicaManager(
            broker_id,
            clock=SystemClock(),
            produce_purgatory=self._purgatory("Produce"),
            fetch_purgatory=self._purgatory("Fetch"),
            delete_records_purgatory=self._purgatory("DeleteRecords"),
            share_fetch_purgatory=(share_fetches := self._purgatory("ShareFetch")),
            min_insync_replicas=config.min_insync_replicas,
            max_lag_ms=config.replica_max_lag_ms,
            new_log=self.logs.new_log,
            min_insync_of=self._min_insync_of,
            is_on_other_broker=self._is_known,
            logs=self.logs.offline_logs,
            on_isr_change=self.cluster.controller.change_isr,
        )
        self.elections = LeaderElections(
            self._purgatory("ElectLeader"), self.cluster.controller, self.knows_leader
        )
        self.topic_changes = TopicChanges(self._purgatory("Topic"))
        self.groups = GroupManager(
            self.manager,
            config.groups,
            OffsetsRecords(),
            new_purgatory=self._purgatory,
            new_member_id=lambda begin: f"{begin}-{uuid.uuid4()}",
            now_ms=self.now_ms,
            offsets_partitions=self.cluster.offsets_partitions,
            is_known=self._is_known,
            known_topics=AuthorizedTopics(self.cluster.controller, lambda: self.authorizer),
            on_ended=None if trace is None else trace.transactions.on_offset_ended,
            settings_of=self.cluster.group_settings,
        )
        self.peer_calls = InterBrokerClient(self, self.cluster)
        self._start_shares(SharePurgatories(share_fetches, self._purgatory("AcquisitionLock")))
        self.transactions = TransactionCoordinator(
            self.manager,
            config.transactions,
            TransactionsRecords(),
            InterBrokerMarkerChannel(self.peer_calls, self.cluster),
            new_purgatory=self._purgatory,
            new_producer_id=self.cluster.new_producer_id,
            now_ms=self.now_ms,
            state_partitions=self.cluster.transactions_partitions,
            on_record=None if trace is None else trace.transactions.on_record,
        )
        self.authorizer = self.cluster.security.new_authorizer()
        self.alter_acls_purgatory = self._purgatory("AlterAcls")

    def _start_shares(self, waits: SharePurgatories) -> None:
        self.share_coordinator = ShareCoordinator(
            self.manager, ShareStateRecords(), self.cluster.share_state_partitions
        )
        self.share_states = SharePersister(self.peer_calls, self.cluster, self.share_coordinator)
        self.shares = SharePartitionManager(
            self.manager,
            self.cluster.config.groups,
            self.share_states,
            waits,
            self.cluster.group_settings,
            self._topic_name,
            self._offset_at,
        )

    def _topic_name(self, topic_id: uuid.UUID) -> str | None:
        topic = self.cluster.topic_of(topic_id)
        return None if topic is None else topic.name

    def _offset_at(self, partition: Partition, age_ms: int) -> int:
        return earliest_offset_since(partition, self.now_ms() - age_ms)

    def now_ms(self) -> int:
        """Return the broker's wall-clock time, in milliseconds since 1970."""
        return time.time_ns() // 1_000_000 + self.cluster.fault.clock_jump_ms(self.broker_id)

    def _purgatory(self, name: str) -> DelayedOperationPurgatory:
        trace = self.cluster.trace
        on_completed = None
        if trace is not None and trace.operations:
            on_completed = partial(trace.record_completed, self.broker_id, name)
        purgatory = AsyncPurgatory(name, broker_id=self.broker_id, on_completed=on_completed)
        self.purgatories.append(purgatory)
        return purgatory.core

    def knows_leader(self, topic_partition: TopicPartition) -> bool:
        """Whether the elected leader of a partition is alive and not paused."""
        state = self.cluster.controller.state_of(topic_partition)
        leader = None if state is None else self.cluster.live_broker(state.leader)
        if leader is None or self.cluster.fault.is_paused(leader.broker_id):
            return False
        partition = leader.manager.partition(topic_partition)
        return partition is not None and partition.is_leader

    def _is_known(self, topic_partition: TopicPartition) -> bool:
        return self.cluster.controller.state_of(topic_partition) is not None

    def setting(self, name: str) -> str | None:
        """Return this broker's own value of a topic setting, as text, or None."""
        own = self.cluster.controller.broker_settings.get(self.broker_id, {}).get(name)
        return self.cluster.setting(name) if own is None else own

    def _min_insync_of(self, topic_partition: TopicPartition) -> int:
        settings = self.cluster.settings_of(topic_partition.topic)
        return int(effective_value(settings, "min.insync.replicas", self.setting))

    async def kill(self) -> None:
        """Stop at once, as on SIGKILL: no response is sent."""
        if not self.alive:
            return
        self.alive = False
        self.cut_connections()
        await self.listening.stop()
        fetchers, self._fetchers = self._fetchers, {}
        for fetcher in fetchers.values():
            await fetcher.stop()
        await self.peer_calls.stop()
        if self.cluster.trace is not None:
            self.cluster.trace.record_stopped(
                self.broker_id, self.purgatories, not self.cluster.stopped
            )
        for purgatory in self.purgatories:
            await purgatory.aclose("leave")
        # Only now: nothing must wait any more when the partitions go, or it would be answered.
        self.logs.reattach(self.manager.detach_logs())

    def cut_connections(self) -> int:
        """Cut all clients' connections, and say how many there were."""
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        return len(connections)

    def cut_idle_connections(self) -> None:
        """Cut the connections that their clients keep for nothing."""
        for connection in list(self._connections):
            connection.abort_if_idle()

    def apply_retention(self, now_ms: int) -> None:
        """Drop records that are older than their topics keep them, and begin segments by time."""
        if not self.alive:
            return
        for partition in self.manager.partitions():
            delete_old_segments(partition.log, now_ms)
            roll_old_segment(partition.log, now_ms)

    async def compact(self, now_ms: int) -> None:
        """Compact the logs that need it, while others are served."""
        if not self.alive:
            return
        topics = self.cluster.controller.topics
        # What the cluster's own topics say is written again by their coordinators.
        partitions = [
            partition
            for partition in self.manager.partitions()
            if (topic := topics.get(partition.topic_partition.topic)) and not topic.internal
        ]
        await self._compaction.compact(partitions, now_ms)

    def shrink_isrs(self) -> None:
        """Remove lagging followers from the ISRs."""
        if self.alive:
            self.manager.maybe_shrink_isr()

    # What the controller calls.

    def update_role(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Become leader or follower according to ``state``."""
        manager = self.manager
        leads = state.leader == self.broker_id
        if leads:
            manager.become_leader(topic_partition, state.leader_epoch, state.isr, state.replicas)
        self.groups.update_role(topic_partition, leads)
        self.share_coordinator.update_role(topic_partition, leads)
        self.shares.update_role(topic_partition, state.leader_epoch if leads else None)
        self.transactions.update_role(topic_partition, leads, state.leader_epoch)
        if leads:
            self.cluster.check_decisions_on(topic_partition)
            return
        manager.become_follower(topic_partition, state.leader, state.leader_epoch, state.replicas)
        if state.leader != NO_LEADER:
            self._fetcher_from(state.leader).wake(topic_partition)

    def drop_topic(self, topic: str) -> None:
        """Forget a topic with its records."""
        logs = [p.log for p in self.manager.partitions() if p.topic_partition.topic == topic]
        self.manager.delete_topic(topic)
        for log in logs:
            if isinstance(log, StoredLog | MemoryLog):
                log.remove()
        self.groups.delete_topic(topic)
        controller = self.cluster.controller
        self.share_coordinator.delete_orphans(
            lambda topic_id: controller.topic_with_id(topic_id) is not None
        )

    def drop_replica(self, topic_partition: TopicPartition) -> None:
        """Delete a replica and its log, after a reassignment."""
        partition = self.manager.partition(topic_partition)
        self.groups.update_role(topic_partition, False)
        self.share_coordinator.update_role(topic_partition, False)
        self.shares.update_role(topic_partition, None)
        self.transactions.update_role(topic_partition, False, NO_EPOCH)
        self.manager.stop_replica(topic_partition, delete=True)
        if partition is not None and isinstance(partition.log, StoredLog | MemoryLog):
            partition.log.remove()
        for fetcher in self._fetchers.values():
            fetcher.wake(topic_partition)

    def forget_topic(self, topic: str) -> None:
        """Take a deleted topic off the disks of a broker that is dead.

        It must not find them when it is revived: a topic of that name would be another one.
        """
        assert not self.alive
        self.logs.forget_topic(topic)

    def set_live_brokers(self, broker_ids: Sequence[int]) -> None:
        """Update the live brokers; fetchers of returned leaders begin at once."""
        self.manager.set_live_brokers(broker_ids)
        self.peer_calls.fail_dead_brokers()
        for fetcher in self._fetchers.values():
            fetcher.wake()

    def apply_settings(self, topic: str | None) -> None:
        """Apply the current settings of a topic, or of this broker."""
        now_ms = self.now_ms()
        for partition in self.manager.partitions():
            key = partition.topic_partition
            if topic in (None, key.topic):
                self.manager.configure(key, self.logs.config_of(key), self._min_insync_of(key))
                delete_old_segments(partition.log, now_ms)

    def apply_acls(self) -> None:
        """Decide by the access control lists of the day."""
        self.authorizer.apply(self.cluster.security.version, self.cluster.security.acls)

    def _fetcher_from(self, leader_id: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = ReplicaFetcher(self, leader_id, self.cluster)
            self._fetchers[leader_id] = fetcher
        return fetcher

    # Serving clients.

    def _new_connection(self, listener: Listener) -> Connection:
        return Connection(
            self._serve,
            self._send,
            self._supported,
            self.limits,
            self._held,
            self.cluster.scheduler,
            self._opened,
            self._closed,
            listener,
        )

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    @property
    def limits(self) -> Limits:
        """The limits of clients."""
        return self.cluster.config.limits

    def _opened(self, connection: Connection) -> bool:
        # One that the event loop had accepted when this broker was killed gets here after that.
        if not self.alive:
            return False
        if len(self._connections) >= self.limits.connections:
            _log.warning("too_many_connections", broker=self.broker_id, peer=connection.peer)
            return False
        self._connections[connection] = None
        return True

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if self.alive:
            self.shares.connection_closed(connection)
        if self.cluster.trace is not None:
            self.cluster.trace.record_close(connection)

    def _serve(self, request: Request, connection: Connection) -> Response | Awaitable[Response]:
        fault = self.cluster.fault
        if fault.active:
            return fault.serve(self.broker_id, request, connection, self._handler)
        return self._handler(self, request, connection)

    def _send(
        self, connection: Connection, request: Request, frame: bytes
    ) -> Awaitable[None] | None:
        if self.cluster.fault.is_altering_responses(connection):
            return self._send_with_faults(connection, request, frame)
        arrived = connection.write(frame)
        if connection.is_full:
            return self._record_delivery(connection, request, arrived)
        if self.cluster.trace is not None:
            self.cluster.trace.record_delivery(connection, request, arrived)
        return None

    async def _send_with_faults(
        self, connection: Connection, request: Request, frame: bytes
    ) -> None:
        arrived = await self.cluster.fault.send(self.broker_id, connection, request, frame)
        await self._record_delivery(connection, request, arrived)

    async def _record_delivery(
        self, connection: Connection, request: Request, arrived: bool
    ) -> None:
        await connection.drain()
        if self.cluster.trace is not None:
            self.cluster.trace.record_delivery(connection, request, arrived)
