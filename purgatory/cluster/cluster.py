"""A cluster of brokers in one process: they share the event loop and a controller.

Ground rules
------------
* Everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from purgatory.cluster.broker import Broker
from purgatory.cluster.cluster_trace import ClusterTrace
from purgatory.cluster.fault_injection import Faults
from purgatory.cluster.protocol.connection import Limits
from purgatory.cluster.protocol.rounds import Rounds
from purgatory.cluster.storage import FolderLock, Fsync, load_metadata, save_metadata
from purgatory.core.fault_log import Logger
from purgatory.kafka import OFFSETS_TOPIC, GroupConfig, LogConfig
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ClusterError

_LEAST_MEMORY_BYTES = 4 * 1024 * 1024
_LARGEST_MEMORY_SEGMENT_BYTES = 16 * 1024 * 1024
_SEGMENTS_IN_SHARE = 64
_UNSAVED_EPOCHS = 1_000_000
"""What a log's epoch is beyond this was not made by elections: `cluster.json` may be an older one,
put back by somebody, or by a file system after the loss of power, and that must not cost records.
"""
_IDLE_LOOKS = 10
"""How often it is looked for idle connections in the shortest time that one may be idle."""

_log = Logger("purgatory.cluster")


@dataclass(frozen=True)
class TopicSpec:
    """A topic that is there from the start.

    Args:
        name: of letters, digits, dots, dashes and underscores.
        partitions: how many, at least 1.
        replication: how many replicas each has; None: three, or as many as there are brokers.
    """

    name: str
    partitions: int = 1
    replication: int | None = None


@dataclass(frozen=True)
class ClusterConfig:
    """What a cluster is to be.

    Args:
        brokers: how many; their ids are 1, 2, 3 ...
        host: where they listen.
        first_port: of broker 1; the others have the ports after it. 0 lets the system choose.
        topics: that are there from the start.
        min_insync_replicas: how many must be in sync for acks=all.
        follower_lag_ms: how long a follower takes for what it fetched.
        replica_max_lag_ms: who did not catch up for so long leaves the ISR.
        auto_create_topics: whether asking for a topic makes it.
        default_partitions: of topics that are made so.
        max_partitions: how many all topics may have that clients make.
        offsets_partitions: of the topic that holds the groups' committed offsets.
        groups: what consumer groups are allowed.
        users: passwords by user, for SASL/PLAIN; None: nobody is asked.
        data_dir: where logs and metadata are kept; None keeps them in memory.
        fsync: when what is written there is forced onto the disk.
        memory_bytes: what the logs of all brokers may take together, where they are in memory.
        retention_ms: how long records are kept; None keeps them.
        log_config: segments and retention.
        limits: what a client may ask.
    """

    brokers: int = 3
    host: str = "127.0.0.1"
    first_port: int = 0
    topics: Sequence[TopicSpec] = ()
    min_insync_replicas: int = 1
    follower_lag_ms: float = 0
    replica_max_lag_ms: int = 30_000
    auto_create_topics: bool = True
    default_partitions: int = 1
    max_partitions: int = 10_000
    offsets_partitions: int = 4
    groups: GroupConfig = field(default_factory=GroupConfig)
    users: Mapping[str, str] | None = None
    data_dir: Path | None = None
    fsync: Fsync = Fsync.NEVER
    memory_bytes: int = 1024 * 1024 * 1024
    retention_ms: int | None = None
    log_config: LogConfig = field(default_factory=LogConfig)
    limits: Limits = field(default_factory=Limits)


class Cluster:
    """Brokers, the controller, and what lies between them.

    ``async with Cluster(config) as cluster`` starts and stops it.

    Args:
        config: what it is to be.
        trace: takes down what happens.
    """

    def __init__(
        self, config: ClusterConfig | None = None, trace: ClusterTrace | None = None
    ) -> None:
        self.config = config = config or ClusterConfig()
        self.trace = trace
        if config.brokers < 1:
            raise ClusterError(f"a cluster of {config.brokers} brokers: it takes at least 1")
        self.memory_share_bytes = config.memory_bytes // config.brokers
        if self.memory_share_bytes < _LEAST_MEMORY_BYTES:
            raise ClusterError(
                f"memory_bytes={config.memory_bytes} for {config.brokers} brokers: each takes at "
                f"least {_LEAST_MEMORY_BYTES}"
            )
        self.log_config = config.log_config
        if config.data_dir is None:
            most = min(_LARGEST_MEMORY_SEGMENT_BYTES, self.memory_share_bytes // _SEGMENTS_IN_SHARE)
            segment_bytes = min(config.log_config.segment_bytes, most)
            self.log_config = config.log_config._replace(segment_bytes=segment_bytes)
        self.cluster_id = "purgatory"
        self.rounds = Rounds()
        ids = range(1, config.brokers + 1)
        self.controller = Controller(ids)
        self.brokers = {
            broker_id: Broker(
                self, broker_id, config.first_port and config.first_port + broker_id - 1
            )
            for broker_id in ids
        }
        self.fault = Faults(self)
        self.controller.bars_from_isr = self.fault.bars_from_isr
        self.controller.on_topic_deleted = self._forget_topic
        self._next_producer_id = 1_000
        self._chores: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None
        self._lock: FolderLock | None = None
        self._unsaved = False
        self._stopped = False
        self._reviving: set[int] = set()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Start all brokers, and make the topics.

        Raises:
            ClusterError: a broker can't listen, or the data folder can't be used.
        """
        self._tls = tls
        try:
            self._load_metadata()
            for broker in self.brokers.values():
                await broker.load_logs(_UNSAVED_EPOCHS)
            self._take_stock(self.brokers)
            for broker in self.brokers.values():
                await broker.start(tls)
        except BaseException:
            await self.stop()
            raise
        self.controller.elect_preferred()
        for topic in self.config.topics:
            if topic.name in self.controller.topics:
                continue  # from the data folder
            self.controller.create_topic(
                topic.name, topic.partitions, topic.replication or self.default_replication
            )
        loop = asyncio.get_running_loop()
        self._chores = [
            loop.create_task(self._do_chores()),
            loop.create_task(self._cut_idle_connections()),
        ]

    def _load_metadata(self) -> None:
        folder = self.config.data_dir
        if folder is None:
            return
        self._lock = FolderLock(folder)
        self._next_producer_id = max(self._next_producer_id, load_metadata(folder, self.controller))
        self.controller.on_change = self._save_metadata

    def _save_metadata(self) -> bool:
        """Save, and say whether it is saved.

        Where the disk refuses it, it is tried again with the next change, produce and chore.
        """
        folder = self.config.data_dir
        assert folder is not None
        try:
            save_metadata(folder, self.controller, self._next_producer_id)
        except OSError as error:
            if not self._unsaved:
                _log.error("metadata_not_saved", folder=str(folder), reason=error.strerror)
            self._unsaved = True
        else:
            if self._unsaved:
                _log.info("metadata_saved", folder=str(folder))
            self._unsaved = False
        return not self._unsaved

    def is_saved(self) -> bool:
        """Whether a restart would find what the controller decided; tries to save it, if not.

        Until it would, nothing may be acknowledged: the topic might not be found, or the ISR might
        be one of brokers that lack it.
        """
        return not self._unsaved or self._save_metadata()

    def _take_stock(self, coming: Collection[int]) -> None:
        """Take brokers whose logs lack something out of the ISRs, before they come up."""
        self.controller.take_stock(
            {
                broker_id: broker.log_ends()
                for broker_id, broker in self.brokers.items()
                if broker.alive or broker_id in coming
            }
        )

    def _note_committed(self) -> bool:
        """Note how far the leaders' logs are acknowledged; say whether that is further than before.

        What is noted is saved with the next change.
        """
        managers = {one.broker_id: one.manager for one in self.brokers.values() if one.alive}
        return self.controller.note_committed(managers)

    def _forget_topic(self, topic: str) -> None:
        for broker in self.brokers.values():
            if not broker.alive:
                broker.forget_topic(topic)

    async def stop(self) -> None:
        """Stop everything."""
        self._stopped = True
        for chore in self._chores:
            chore.cancel()
        if self._chores and self.config.data_dir is not None and self._note_committed():
            self._save_metadata()
        self.fault.forget_all()
        for task in list(self._tasks):
            task.cancel()
        for broker in self.brokers.values():
            await broker.kill()
        if self._lock is not None:
            self._lock.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # Looking.

    @property
    def bootstrap_servers(self) -> str:
        """What a client is given: "127.0.0.1:9092,127.0.0.1:9093"."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self.brokers.values())

    @property
    def default_replication(self) -> int:
        """How many replicas a topic has that says nothing of it."""
        return min(3, self.config.brokers)

    def setting(self, name: str) -> str | None:
        """Return what this cluster has of its own for a setting of topics, as text, or None."""
        config = self.config
        own = {
            "min.insync.replicas": config.min_insync_replicas,
            "retention.ms": config.retention_ms,
            "segment.bytes": self.log_config.segment_bytes,
            "retention.bytes": config.log_config.retention_bytes,
            "max.message.bytes": config.log_config.max_batch_bytes,
            "flush.messages": 1 if self._forces_each_batch else None,
        }
        value = own.get(name)
        return None if value is None else str(value)

    @property
    def _forces_each_batch(self) -> bool:
        return self.config.data_dir is not None and self.config.fsync is Fsync.ALWAYS

    def broker_settings(self) -> Mapping[str, str]:
        """Return what brokers are set to beside the defaults of topics, by Kafka's names."""
        config, groups = self.config, self.config.groups
        values: Mapping[str, object] = {
            "auto.create.topics.enable": config.auto_create_topics,
            "default.replication.factor": self.default_replication,
            "delete.topic.enable": True,
            "group.initial.rebalance.delay.ms": groups.initial_rebalance_delay_ms,
            "group.max.session.timeout.ms": groups.max_session_timeout_ms,
            "group.max.size": groups.max_size,
            "group.min.session.timeout.ms": groups.min_session_timeout_ms,
            "num.partitions": config.default_partitions,
            "offsets.topic.num.partitions": config.offsets_partitions,
            "replica.lag.time.max.ms": config.replica_max_lag_ms,
            "socket.request.max.bytes": config.limits.frame_bytes,
        }
        return {name: str(value).lower() for name, value in values.items()}

    def settings_of(self, topic: str) -> Mapping[str, str]:
        """Return a topic's own settings."""
        known = self.controller.topics.get(topic)
        return {} if known is None else known.configs

    def has_room_for(self, partitions: int) -> bool:
        """Whether clients may make so many partitions more."""
        return self.controller.partition_count + partitions <= self.config.max_partitions

    def live_broker(self, broker_id: int) -> Broker | None:
        """Return a broker that lives, or None."""
        broker = self.brokers.get(broker_id)
        return broker if broker is not None and broker.alive else None

    def offsets_partitions(self) -> int:
        """Return how many partitions the topic of committed offsets has; make it if need be."""
        topic = self.controller.topics.get(OFFSETS_TOPIC)
        if topic is None:
            topic = self.controller.create_topic(
                OFFSETS_TOPIC,
                self.config.offsets_partitions,
                self.default_replication,
                # Small segments: only whole ones go.
                {"cleanup.policy": "compact", "segment.bytes": str(1024 * 1024)},
                internal=True,
            )
        return len(topic.partitions)

    def new_producer_id(self) -> int:
        """Return an id that no producer had before.

        Raises:
            ClusterError: it can't be saved, and might be given out again.
        """
        self._next_producer_id += 1
        if self.config.data_dir is not None:
            self._save_metadata()
            if self._unsaved:
                raise ClusterError(f"{self.config.data_dir} can't be written to")
        return self._next_producer_id

    # Brokers that go and come; `fault` does it for users.

    async def kill(self, broker_id: int, lost_records: int = 0) -> None:
        """Kill a broker, and have the controller notice.

        Of each of its logs the last ``lost_records`` are gone when it comes back.
        """
        self._note_committed()
        await self.brokers[broker_id].kill()
        self.brokers[broker_id].lost_records = lost_records
        self.controller.broker_down(broker_id)

    async def revive(self, broker_id: int) -> None:
        """Start a broker that was killed.

        Raises:
            ClusterError: it is just being started, it can't listen, or the cluster was stopped.
        """
        if broker_id in self._reviving:
            raise ClusterError(f"broker {broker_id} is just being started")
        self._reviving.add(broker_id)
        try:
            broker = self.brokers[broker_id]
            await broker.load_logs()
            if self._stopped:
                raise ClusterError("the cluster was stopped")
            self._take_stock([broker_id])
            await broker.start(self._tls)
        except ClusterError:
            self.controller.broker_down(broker_id)  # it was up for as long as it tried to listen
            raise
        finally:
            self._reviving.discard(broker_id)

    def revive_soon(self, broker_id: int) -> None:
        """As ``revive``, for callers that can't wait for it: an error is logged."""
        task = asyncio.get_running_loop().create_task(self._revive_or_log(broker_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _revive_or_log(self, broker_id: int) -> None:
        try:
            await self.revive(broker_id)
        except ClusterError as error:
            _log.error("not_revived", broker=broker_id, reason=str(error))

    async def _do_chores(self) -> None:
        """What a broker does from time to time."""
        while True:
            await asyncio.sleep(self.config.replica_max_lag_ms / 2_000)
            if self.config.data_dir is not None and (self._note_committed() or self._unsaved):
                self._save_metadata()
            now_ms = time.time_ns() // 1_000_000
            for broker in self._brokers_at_work():
                broker.apply_retention(now_ms)
                await asyncio.sleep(0)  # with thousands of partitions either takes milliseconds
                broker.shrink_isrs()
                await asyncio.sleep(0)

    async def _cut_idle_connections(self) -> None:
        limits = self.config.limits
        while True:
            await asyncio.sleep(min(limits.frame_s, limits.idle_s) / _IDLE_LOOKS)
            for broker in self._brokers_at_work():
                broker.cut_idle_connections()

    def _brokers_at_work(self) -> list[Broker]:
        """The brokers that do something: one that is paused does not even drop who lags."""
        return [one for one in self.brokers.values() if not self.fault.is_paused(one.broker_id)]
