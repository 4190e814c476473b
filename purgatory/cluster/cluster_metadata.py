"""What the brokers of a cluster share: its settings, what its controller decided, and that saved.

Ground rules
------------
* Everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from purgatory.cluster.cluster_config import ClusterConfig
from purgatory.cluster.cluster_trace import ClusterTrace
from purgatory.cluster.fault_injection import Faults
from purgatory.cluster.protocol.rounds import Rounds
from purgatory.cluster.storage import FolderLock, Fsync, load_metadata, save_metadata
from purgatory.core.fault_log import Logger
from purgatory.kafka import OFFSETS_TOPIC, ReplicaManager
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ClusterError

_LEAST_MEMORY_BYTES = 4 * 1024 * 1024
_LARGEST_MEMORY_SEGMENT_BYTES = 16 * 1024 * 1024
_SEGMENTS_IN_SHARE = 64

_log = Logger("purgatory.cluster")


class Peer(Protocol):
    """A broker, as the others of its cluster see it."""

    broker_id: int
    host: str
    port: int
    alive: bool
    manager: ReplicaManager


class ClusterMetadata:
    """What the brokers of a cluster share, and what is kept of it in the data folder.

    Args:
        config: what it is to be.
        trace: takes down what happens.
    """

    def __init__(self, config: ClusterConfig, trace: ClusterTrace | None = None) -> None:
        self.config = config
        self.trace = trace
        self.brokers: Mapping[int, Peer] = {}
        self.fault: Faults
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
        self.controller = Controller(range(1, config.brokers + 1))
        self._next_producer_id = 1_000
        self._lock: FolderLock | None = None
        self._unsaved = False

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

    def live_broker(self, broker_id: int) -> Peer | None:
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
