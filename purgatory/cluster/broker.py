"""One broker: its services (`BrokerServices`), its clients' connections, its life.

A broker can be killed and revived: its process is gone then, with all waiting requests; the logs on
its disks stay.

Ground rules
------------
* Everything happens on the event loop's thread.
* A killed process sends no response.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial

from purgatory.cluster.broker_services import BrokerServices, Handler
from purgatory.cluster.frozen_metadata import METADATA_APIS
from purgatory.cluster.listeners import Listener
from purgatory.cluster.log_manager import LogCompaction
from purgatory.cluster.metadata import ClusterMetadata
from purgatory.cluster.protocol.connection import Connection, Response, await_response
from purgatory.cluster.protocol.memory_pool import Limits, MemoryPool
from purgatory.cluster.protocol.wire import Request, Versions
from purgatory.cluster.replica_fetcher import ReplicaFetcher
from purgatory.cluster.steering import ANSWERS, REQUESTS
from purgatory.cluster.steering.seen_requests import SeenRequest
from purgatory.cluster.storage import MemoryLog, StoredLog
from purgatory.core.recent_errors import Logger
from purgatory.kafka import OFFSETS_TOPIC, TopicPartition
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.topics import INTERNAL_TOPICS, LogEnd, PartitionState

_log = Logger("purgatory.cluster")
NO_LEADER = -1
NO_EPOCH = -1
_PAUSED_MS = 100
"""How soon a broker that was paused does what it missed."""


class Broker(BrokerServices):
    """One broker of a cluster.

    Args:
        cluster: the state that all brokers share.
        broker_id: the broker's id.
        handler: handles clients' requests.
        supported: the APIs by key, with the oldest and the newest version of each.
    """

    def __init__(
        self,
        cluster: ClusterMetadata,
        broker_id: int,
        handler: Handler,
        supported: Mapping[int, Versions],
    ) -> None:
        super().__init__(cluster, broker_id)
        self.lost_records = 0
        """The number of last records of each log that are lost when the broker is revived."""
        self._handler = handler
        self._supported = supported
        self._connections: dict[Connection, None] = {}  # in the order of their arrival
        self._unanswered: dict[Connection, SeenRequest] = {}
        self._held = MemoryPool()
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._compaction: LogCompaction
        self._expirations: dict[int, asyncio.TimerHandle] = {}

    # Its life.

    async def load_logs(self, max_epoch_gap: int = 0) -> None:
        """Load the logs from disk: before ``start``, and before the controller elects.

        Clients of others are served meanwhile. Remains of deleted topics are removed.

        Args:
            max_epoch_gap: by how much a log's leader epoch may be beyond the controller's.
        """
        assert not self.alive
        lost, self.lost_records = self.lost_records, 0
        await self.logs.load(max_epoch_gap, lost)

    def log_ends(self) -> dict[TopicPartition, LogEnd]:
        """Return the ends of the broker's logs, dead or alive."""
        logs = self.manager.logs() if self.alive else self.logs.offline_logs
        return {key: LogEnd(log.end_offset, log.epochs.latest) for key, log in logs.items()}

    async def start(self, tls: Mapping[str, ssl.SSLContext]) -> None:
        """Start the broker: apply its roles, and listen.

        Args:
            tls: the TLS contexts by the names of listeners.

        Raises:
            ClusterError: the broker can't listen.
        """
        assert not self.alive
        self._start_services()
        self._compaction = LogCompaction()
        self.alive = True
        if self.cluster.delays is not None:
            self.cluster.delays.forget_broker(self.broker_id)
        if self.cluster.trace is not None:
            self.cluster.trace.record_started(self.broker_id)
        self.cluster.controller.broker_up(self.broker_id, self)
        try:
            await self.listening.start(self.cluster.config.all_listeners, self._new_connection, tls)
        except ClusterError:
            await self.kill()
            raise

    async def kill(self) -> None:
        """Stop at once, as on SIGKILL: no response is sent."""
        if not self.alive:
            return
        self.alive = False
        for partition in list(self._expirations):
            self._cancel_expiration(partition)
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
        # The partitions go last: an operation that still waited would get a response.
        self.logs.reattach(self.manager.detach_logs())

    def cut_connections(self) -> int:
        """Cut all clients' connections, and return how many there were."""
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        return len(connections)

    def cut_idle_connections(self) -> None:
        """Cut idle connections."""
        for connection in list(self._connections):
            connection.abort_if_idle()

    def apply_retention(self, now_ms: int, with_long: bool = True) -> None:
        """Drop records that are older than their topics keep them, and begin segments by time."""
        if self.alive:
            self.manager.apply_retention(now_ms, with_long)

    async def compact(self, now_ms: int) -> None:
        """Compact dirty logs, in slices between which clients are served."""
        if not self.alive:
            return
        topics = self.cluster.controller.topics
        # Coordinators compact the internal topics by themselves.
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

    # Calls of the controller.

    def update_role(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Become leader or follower according to ``state``."""
        manager = self.manager
        leads = state.leader == self.broker_id
        if leads:
            manager.become_leader(topic_partition, state.leader_epoch, state.isr, state.replicas)
            if self.cluster.delays is not None and topic_partition.topic in INTERNAL_TOPICS:
                self.cluster.delays.begin_loading(
                    self.broker_id, topic_partition, state.leader_epoch
                )
        self._update_groups(topic_partition, leads)
        self.share_coordinator.update_role(topic_partition, leads)
        self.shares.update_role(topic_partition, state.leader_epoch if leads else None)
        self.transactions.update_role(topic_partition, leads, state.leader_epoch)
        if leads:
            self.cluster.check_decisions_on(topic_partition)
            return
        manager.become_follower(topic_partition, state.leader, state.leader_epoch, state.replicas)
        if state.leader != NO_LEADER:
            self._fetcher_from(state.leader).wake(topic_partition)

    def _update_groups(self, topic_partition: TopicPartition, leads: bool) -> None:
        """Load or unload groups; what is loaded is searched for expired offsets regularly."""
        self.groups.update_role(topic_partition, leads)
        topic, partition = topic_partition
        if topic != OFFSETS_TOPIC or leads == (partition in self._expirations):
            return
        if leads:
            self._schedule_expiration(partition)
        else:
            self._cancel_expiration(partition)

    def _schedule_expiration(self, partition: int, delay_ms: float | None = None) -> None:
        if delay_ms is None:
            delay_ms = self.cluster.config.groups.offsets_retention_check_interval_ms
        loop = asyncio.get_running_loop()
        self._expirations[partition] = loop.call_later(
            delay_ms / 1_000, self._expire_offsets, partition
        )

    def _cancel_expiration(self, partition: int) -> None:
        self._expirations.pop(partition).cancel()

    def _expire_offsets(self, partition: int) -> None:
        if self.cluster.fault.is_paused(self.broker_id):
            self._schedule_expiration(partition, _PAUSED_MS)
        else:
            self.groups.expire_offsets(partition)
            self._schedule_expiration(partition)

    def drop_topic(self, topic: str) -> None:
        """Delete a topic with its records."""
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
        self._update_groups(topic_partition, False)
        self.share_coordinator.update_role(topic_partition, False)
        self.shares.update_role(topic_partition, None)
        self.transactions.update_role(topic_partition, False, NO_EPOCH)
        self.manager.stop_replica(topic_partition, delete=True)
        if partition is not None and isinstance(partition.log, StoredLog | MemoryLog):
            partition.log.remove()
        for fetcher in self._fetchers.values():
            fetcher.wake(topic_partition)

    def forget_topic(self, topic: str) -> None:
        """Delete a topic from the disks of a dead broker.

        A revived broker must not find its logs: a topic of that name would be another one.
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
                config, min_insync = self.logs.config_of(key), self._min_insync_of(key)
                self.manager.configure(key, config, min_insync, now_ms)

    def apply_acls(self) -> None:
        """Apply the current ACLs."""
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
        """The number of connected clients."""
        return len(self._connections)

    @property
    def limits(self) -> Limits:
        """The limits of clients."""
        return self.cluster.config.limits

    def _opened(self, connection: Connection) -> bool:
        # The event loop may have accepted a connection before this broker was killed.
        if not self.alive:
            return False
        if len(self._connections) >= self.limits.connections:
            _log.warning("too_many_connections", broker=self.broker_id, peer=connection.peer)
            return False
        self._connections[connection] = None
        if self.quota_meter.is_needed:
            # As in Kafka: it is closed after a while, so that the client doesn't come at once.
            now_ms = int(self.manager.clock.now_ms())
            wait_ms = self.quota_meter.connection_wait_ms(connection.host, now_ms)
            if wait_ms:
                connection.mute(2 * wait_ms)
                asyncio.get_running_loop().call_later(wait_ms / 1_000, connection.abort)
        return True

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._unanswered.pop(connection, None)
        if self.alive:
            self.shares.connection_closed(connection)
        if self.cluster.trace is not None:
            self.cluster.trace.record_close(connection)

    def _serve(self, request: Request, connection: Connection) -> Response | Awaitable[Response]:
        cluster = self.cluster
        seen = cluster.request_log.add(
            self.broker_id, connection.peer, request, connection.request_bytes
        )
        self._unanswered[connection] = seen
        cluster.on_event(REQUESTS)
        if cluster.hooks.active:
            return self._serve_hooked(request, connection, seen)
        return self._execute(request, connection)

    async def _serve_hooked(
        self, request: Request, connection: Connection, seen: SeenRequest
    ) -> Response:
        answer = await self.cluster.hooks.answer(seen)
        if answer is None:
            return await await_response(self._execute(request, connection))
        return None if getattr(request.body, "acks", None) == 0 else answer

    def _execute(self, request: Request, connection: Connection) -> Response | Awaitable[Response]:
        fault = self.cluster.fault
        if not fault.active and request.api_name not in METADATA_APIS:
            return self._handler(self, request, connection)
        return fault.serve(
            self.broker_id,
            request,
            connection,
            lambda rest: self._handler(self, rest, connection),
            (connection.listener.name, connection.principal, connection.host),
            self.fetch_sessions.session_keys,
        )

    def _send(
        self, connection: Connection, request: Request, frame: bytes
    ) -> Awaitable[None] | None:
        if self.cluster.fault.is_altering_responses(connection):
            return self._send_with_faults(connection, request, frame)
        arrived = connection.write(frame)
        if arrived:
            self._record_answer(connection, frame)
        if connection.is_full:
            return self._record_delivery(connection, request, arrived)
        if self.cluster.trace is not None:
            self.cluster.trace.record_delivery(connection, request, arrived)
        return None

    async def _send_with_faults(
        self, connection: Connection, request: Request, frame: bytes
    ) -> None:
        on_written = partial(self._record_answer, connection, frame)
        fault = self.cluster.fault
        arrived = await fault.send(self.broker_id, connection, request, frame, on_written)
        await self._record_delivery(connection, request, arrived)

    def _record_answer(self, connection: Connection, frame: bytes) -> None:
        seen = self._unanswered.pop(connection, None)
        if seen is not None:
            self.cluster.request_log.add_answer(seen, frame)
            self.cluster.on_event(ANSWERS)

    async def _record_delivery(
        self, connection: Connection, request: Request, arrived: bool
    ) -> None:
        await connection.drain()
        if self.cluster.trace is not None:
            self.cluster.trace.record_delivery(connection, request, arrived)
