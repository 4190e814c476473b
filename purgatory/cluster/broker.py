"""One broker: a listener, a replica manager, the purgatories in which its requests wait.

A broker can be killed and revived: its process (`_Process`) is gone then, with everything that
waited in it; what its disks hold stays.

Ground rules
------------
* Everything happens on the event loop's thread.
* Nothing of a process that was killed answers anybody any more.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from purgatory.cluster.cluster_metadata import ClusterMetadata
from purgatory.cluster.offsets_records import OffsetsRecords
from purgatory.cluster.protocol.connection import Answer, Connection, HeldBytes, Limits
from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.replica_fetcher import ReplicaFetcher
from purgatory.cluster.storage import (
    MemoryBudget,
    MemoryLog,
    Noted,
    StoredLog,
    load_logs,
    replica_folders,
)
from purgatory.cluster.storage.retention import drop_older_than
from purgatory.cluster.topic_settings import log_config, value_of
from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.core.fault_log import Logger
from purgatory.kafka import BrokerGroups, Log, LogConfig, ReplicaManager, TopicPartition
from purgatory.kafka.controller import LogEnd, PartitionState
from purgatory.kafka.errors import ClusterError
from timer import SystemClock

_log = Logger("purgatory.cluster")

NO_LEADER = -1

Handler = Callable[["Broker", Request, Connection], Awaitable[Answer]]
"""Answers a request that came to a broker by a connection."""


class Broker:
    """One broker of a cluster.

    Args:
        cluster: whose.
        broker_id: from 1 on.
        port: where it listens; 0 lets the system choose.
        handler: answers clients' requests to it.
    """

    def __init__(
        self, cluster: ClusterMetadata, broker_id: int, port: int, handler: Handler
    ) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.host = cluster.config.host
        self.port = port
        self.alive = False
        self.lost_records = 0
        """How many of the last records of each of its logs are gone when it comes back."""
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._held = HeldBytes()
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._logs: Mapping[TopicPartition, Log] = {}
        self._deleted_topics: set[str] = set()  # since it died
        self.purgatories: list[AsyncPurgatory] = []
        data_dir = cluster.config.data_dir
        self._folder = None if data_dir is None else data_dir / f"broker-{broker_id}"
        self.memory = MemoryBudget(cluster.memory_share_bytes)
        self.manager: ReplicaManager
        self.groups: BrokerGroups

    # Its life.

    async def load_logs(self, unsaved_epochs: int = 0) -> None:
        """Read back what is on the disk: before ``start``, and before the controller elects.

        Others are served meanwhile. Remains of deleted topics go.

        Args:
            unsaved_epochs: by how much a log's leader epoch may be beyond the controller's.
        """
        assert not self.alive
        if self._folder is not None:
            await self._read_logs(self._folder, unsaved_epochs)
        lost, self.lost_records = self.lost_records, 0
        for log in self._logs.values() if lost else ():
            log.truncate_to(max(log.start_offset, log.end_offset - lost))

    async def _read_logs(self, folder: Path, unsaved_epochs: int) -> None:
        config = self.cluster.config
        topics = self.cluster.controller.topics
        for topic_partition, place in replica_folders(folder):
            if topic_partition.topic not in topics:
                shutil.rmtree(place, ignore_errors=True)
        self._deleted_topics.clear()
        logs: Mapping[TopicPartition, Log] = await asyncio.get_running_loop().run_in_executor(
            None,
            load_logs,
            folder,
            self._log_config_of,
            partial(self._noted_of, unsaved_epochs),
            config.fsync,
        )
        for topic in self._deleted_topics:  # while they were read
            self._remove_folders(topic)
        self._logs = {
            key: log for key, log in logs.items() if key.topic not in self._deleted_topics
        }

    def log_ends(self) -> dict[TopicPartition, LogEnd]:
        """Return where its logs end, be it dead or alive."""
        logs = self._logs
        if self.alive:
            logs = {one.topic_partition: one.log for one in self.manager.partitions()}
        return {key: LogEnd(log.end_offset, log.epochs.latest) for key, log in logs.items()}

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Begin to live: learn the roles, listen.

        Raises:
            ClusterError: it can't listen there.
        """
        assert not self.alive
        self._start_process()
        self.alive = True
        self.cluster.controller.broker_up(self.broker_id, self)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._new_connection, self.host, self.port, ssl=tls, backlog=1024
            )
        except OSError as error:
            await self.kill()
            raise ClusterError(
                f"broker {self.broker_id} can't listen on {self.host}:{self.port}: {error.strerror}"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    def _start_process(self) -> None:
        config = self.cluster.config
        broker_id = self.broker_id
        self.purgatories = []
        self.manager = ReplicaManager(
            broker_id,
            clock=SystemClock(),
            produce_purgatory=self._purgatory("Produce"),
            fetch_purgatory=self._purgatory("Fetch"),
            delete_records_purgatory=self._purgatory("DeleteRecords"),
            min_insync_replicas=config.min_insync_replicas,
            max_lag_ms=config.replica_max_lag_ms,
            new_log=self._new_log,
            min_insync_of=self._min_insync_of,
            is_elsewhere=self._is_known,
            logs=self._logs,
            on_isr_change=self.cluster.controller.change_isr,
        )
        self.groups = BrokerGroups(
            self.manager,
            config.groups,
            OffsetsRecords(),
            new_purgatory=self._purgatory,
            new_member_id=lambda begin: f"{begin}-{uuid.uuid4()}",
            now_ms=lambda: time.time_ns() // 1_000_000,
            offsets_partitions=self.cluster.offsets_partitions,
            is_known=self._is_known,
        )

    def _purgatory(self, name: str) -> DelayedOperationPurgatory:
        trace = self.cluster.trace
        on_settled = None if trace is None else partial(trace.settled, self.broker_id, name)
        purgatory = AsyncPurgatory(name, broker_id=self.broker_id, on_settled=on_settled)
        self.purgatories.append(purgatory)
        return purgatory.core

    def _is_known(self, topic_partition: TopicPartition) -> bool:
        return self.cluster.controller.state_of(topic_partition) is not None

    def _noted_of(self, unsaved_epochs: int, topic_partition: TopicPartition) -> Noted:
        state = self.cluster.controller.state_of(topic_partition)
        if state is None:
            return Noted()
        return Noted(state.start_offset, state.leader_epoch + unsaved_epochs)

    def _log_config_of(self, topic_partition: TopicPartition) -> LogConfig:
        settings = self.cluster.settings_of(topic_partition.topic)
        config = log_config(settings, self.cluster.log_config)
        if self._folder is not None:
            return config
        # Memory is freed by whole segments: they may not be larger here.
        most = self.cluster.log_config.segment_bytes
        return config._replace(segment_bytes=min(config.segment_bytes, most))

    def _new_log(self, topic_partition: TopicPartition) -> Log:
        config = self._log_config_of(topic_partition)
        if self._folder is None:
            return MemoryLog(config, self.memory, self.may_drop(topic_partition.topic))
        fsync = self.cluster.config.fsync
        return StoredLog(self._folder / str(topic_partition), config, fsync)

    def may_drop(self, topic: str) -> bool:
        """Whether old records of a topic may go; those of one to be compacted may not."""
        return "compact" not in self.cluster.settings_of(topic).get("cleanup.policy", "")

    def _min_insync_of(self, topic_partition: TopicPartition) -> int:
        settings = self.cluster.settings_of(topic_partition.topic)
        return int(value_of(settings, "min.insync.replicas", self.cluster.setting))

    async def kill(self) -> None:
        """End at once, as a process does that gets SIGKILL: nothing is answered any more."""
        if not self.alive:
            return
        self.alive = False
        self.cut_connections()
        server, self._server = self._server, None
        if server is not None:
            await _stop_listening(server)
        fetchers, self._fetchers = self._fetchers, {}
        for fetcher in fetchers.values():
            await fetcher.stop()
        for purgatory in self.purgatories:
            await purgatory.aclose("leave")
        # Only now: nothing must wait any more when the partitions go, or it would be answered.
        logs = self.manager.take_logs()
        # A stored log is read back from its disk: it may be damaged meanwhile.
        self._logs = logs if self._folder is None else {}

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
        """Drop records that are older than their topics keep them."""
        if not self.alive:
            return
        cluster = self.cluster
        for partition in self.manager.partitions():
            topic = partition.topic_partition.topic
            keep_ms = int(value_of(cluster.settings_of(topic), "retention.ms", cluster.setting))
            if keep_ms >= 0 and self.may_drop(topic):
                drop_older_than(partition.log, now_ms - keep_ms)

    def shrink_isrs(self) -> None:
        """Drop from the ISRs who lags for too long."""
        if self.alive:
            self.manager.maybe_shrink_isr()

    # What the controller calls.

    def take_role(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Lead or follow as ``state`` says."""
        manager = self.manager
        leads = state.leader == self.broker_id
        if leads:
            manager.become_leader(topic_partition, state.leader_epoch, state.isr, state.replicas)
        self.groups.take_role(topic_partition, leads)
        if leads:
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

    def forget_topic(self, topic: str) -> None:
        """Take a deleted topic off the disks of a broker that is dead.

        It must not find them when it is revived: a topic of that name would be another one.
        """
        assert not self.alive
        self._deleted_topics.add(topic)
        self._remove_folders(topic)
        for topic_partition, log in self._logs.items():
            if topic_partition.topic == topic and isinstance(log, MemoryLog):
                log.remove()
        self._logs = {key: log for key, log in self._logs.items() if key.topic != topic}

    def _remove_folders(self, topic: str) -> None:
        for topic_partition, place in replica_folders(self._folder) if self._folder else ():
            if topic_partition.topic == topic:
                shutil.rmtree(place, ignore_errors=True)

    def set_live_brokers(self, broker_ids: Sequence[int]) -> None:
        """Learn who lives: fetchers whose leader came back begin at once."""
        self.manager.set_live_brokers(broker_ids)
        for fetcher in self._fetchers.values():
            fetcher.wake()

    def _fetcher_from(self, leader_id: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = ReplicaFetcher(self, leader_id, self.cluster)
            self._fetchers[leader_id] = fetcher
        return fetcher

    # Serving clients.

    def _new_connection(self) -> Connection:
        return Connection(
            self._serve,
            self._send,
            self.limits,
            self._held,
            self.cluster.rounds,
            self._opened,
            self._closed,
        )

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    @property
    def limits(self) -> Limits:
        """What clients may ask."""
        return self.cluster.config.limits

    def _opened(self, connection: Connection) -> bool:
        # One that the event loop had accepted when this broker was killed gets here after that.
        if not self.alive:
            return False
        if len(self._connections) >= self.limits.connections:
            _log.warning("too_many_connections", broker=self.broker_id, peer=connection.peer)
            return False
        self._connections.add(connection)
        return True

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self.cluster.trace is not None:
            self.cluster.trace.closed(connection)

    def _serve(self, request: Request, connection: Connection) -> Awaitable[Answer]:
        if self.cluster.fault.active:
            return self._serve_after_pause(request, connection)
        return self._handler(self, request, connection)

    async def _serve_after_pause(self, request: Request, connection: Connection) -> Answer:
        await self.cluster.fault.pass_pause(self.broker_id)
        return await self._handler(self, request, connection)

    def _send(
        self, connection: Connection, request: Request, frame: bytes
    ) -> Awaitable[None] | None:
        if self.cluster.fault.active or self.cluster.trace is not None:
            return self._send_noted(connection, request, frame)
        connection.write(frame)
        return None

    async def _send_noted(self, connection: Connection, request: Request, frame: bytes) -> None:
        arrived = await self.cluster.fault.send(self.broker_id, connection, request, frame)
        await connection.taken()
        if self.cluster.trace is not None:
            self.cluster.trace.delivered(connection, request, arrived)


async def _stop_listening(server: asyncio.Server) -> None:
    """Accept nobody more.

    Whom asyncio has accepted already gets a connection in the next turn, to be turned away: once
    the server is closed it could not make one, and would leave the socket open.
    """
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening)
    await asyncio.sleep(0)
    server.close()
