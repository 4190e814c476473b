"""The state that the brokers of a cluster share: settings, the controller's decisions, their file.

Ground rules: only the cluster's loop touches it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Protocol
from uuid import UUID, uuid4

from purgatory.cluster.config import ClusterConfig, config_problems
from purgatory.cluster.fault_injection import Faults
from purgatory.cluster.listeners import Endpoint, Listener
from purgatory.cluster.protocol.connection import FairScheduler
from purgatory.cluster.realistic_delays import RealisticDelays
from purgatory.cluster.request_traces import RequestTraces
from purgatory.cluster.security import ClusterSecurity
from purgatory.cluster.steering import PARTITIONS
from purgatory.cluster.steering.request_hooks import RequestHooks
from purgatory.cluster.steering.seen_requests import RequestLog
from purgatory.cluster.storage import (
    REAL_DISK,
    Disk,
    FolderLock,
    MemoryBudget,
    load_metadata,
    save_metadata,
)
from purgatory.cluster.trace import ClusterTrace
from purgatory.core.recent_errors import Logger
from purgatory.kafka import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    GroupManager,
    ReplicaManager,
    TopicPartition,
    TransactionCoordinator,
    group_partition,
)
from purgatory.kafka.controller import Controller
from purgatory.kafka.delayed_admin import LeaderElections, TopicChanges
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.groups.assignors import ASSIGNORS
from purgatory.kafka.groups.consumer_group_member import Principal
from purgatory.kafka.groups.share_group import SHARE_ASSIGNOR
from purgatory.kafka.kafka_versions import features_of
from purgatory.kafka.security.authorizer import Authorizer, Operation, ResourceType
from purgatory.kafka.settings.group_settings import (
    BOUNDED,
    GroupSettings,
    default_group_settings,
)
from purgatory.kafka.settings.topic_settings import validate_settings
from purgatory.kafka.share_groups.share_coordinator import ShareCoordinator
from purgatory.kafka.share_groups.share_state import SHARE_STATE_TOPIC
from purgatory.kafka.topics import Topic

_MIN_MEMORY_BYTES = 4 * 1024 * 1024
_LARGEST_MEMORY_SEGMENT_BYTES = 16 * 1024 * 1024
_SEGMENTS_PER_SHARE = 64
_log = Logger("purgatory.cluster")


class Peer(Protocol):
    """A broker, as the other brokers of its cluster see it."""

    broker_id: int
    alive: bool
    manager: ReplicaManager
    authorizer: Authorizer
    groups: GroupManager
    transactions: TransactionCoordinator
    elections: LeaderElections
    topic_changes: TopicChanges
    share_coordinator: ShareCoordinator

    def endpoint(self, listener: Listener) -> Endpoint:
        """Return the broker's address for clients of a listener."""


class ClusterMetadata:
    """The state that brokers share, and its part that the data folder stores.

    Args:
        config: of the cluster.
        trace: records events.
        disk: of the data folder.
    """

    def __init__(
        self,
        config: ClusterConfig,
        trace: ClusterTrace | None = None,
        disk: Disk = REAL_DISK,
    ) -> None:
        self.config = config
        self.data_disk = disk
        self.trace = trace
        self.stopped = False
        self.request_traces: RequestTraces | None = None
        """Follows produces while the control has viewers."""
        self.brokers: Mapping[int, Peer] = {}
        self.fault: Faults
        self.request_log: RequestLog
        self.hooks: RequestHooks
        self.on_event: Callable[[str], object] = lambda _: None
        """Called with each event that tests may wait for: see `steering.waits`."""
        problems = [problem.text("config") for problem in config_problems(config)]
        if problems:
            raise ClusterError("\n".join(problems))
        share_bytes = config.memory_bytes // config.brokers
        if share_bytes < _MIN_MEMORY_BYTES:
            raise ClusterError(
                f"memory_bytes={config.memory_bytes} for {config.brokers} brokers: each takes at "
                f"least {_MIN_MEMORY_BYTES}"
            )
        self.memory = MemoryBudget(config.memory_bytes)
        self.log_config = config.log_config
        if config.data_dir is None:
            most = min(_LARGEST_MEMORY_SEGMENT_BYTES, share_bytes // _SEGMENTS_PER_SHARE)
            segment_bytes = min(config.log_config.segment_bytes, most)
            self.log_config = replace(config.log_config, segment_bytes=segment_bytes)
        self._defaults_of_groups = default_group_settings(config.groups)
        self._default_group_settings = GroupSettings(self._defaults_of_groups)
        self.cluster_id = "purgatory"
        self.scheduler = FairScheduler()
        self.controller = Controller(
            config.broker_ids, new_topic_id=uuid4, features=features_of(config.kafka_version)
        )
        self.controller.on_change = self._on_controller_change
        self._is_stored = False
        """Whether the data folder is loaded, and has each change."""
        self.security = ClusterSecurity(config)
        self.delays = RealisticDelays(config.broker_ids) if config.realistic_delays else None
        self._next_producer_id = 1_000
        self._lock: FolderLock | None = None
        self._unsaved = False

    def _load_metadata(self) -> None:
        folder = self.config.data_dir
        if folder is not None:
            self._lock = FolderLock(folder, self.data_disk)
        self.security.load(folder, self.data_disk)
        if folder is None:
            return
        saved_id = load_metadata(folder, self.controller, self.data_disk)
        self._next_producer_id = max(self._next_producer_id, saved_id)
        self._is_stored = True

    def _on_controller_change(self) -> bool:
        """Save the controller's state; return whether that has worked."""
        is_saved = self._save_metadata() if self._is_stored else True
        self.on_event(PARTITIONS)
        return is_saved

    def _save_metadata(self) -> bool:
        """Save the metadata; return whether they are saved.

        If the disk refuses it, the next change, produce and chore try again.
        """
        folder = self.config.data_dir
        assert folder is not None
        try:
            save_metadata(folder, self.controller, self._next_producer_id, self.data_disk)
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
        """Whether the controller's state is saved; tries to save it if not.

        Unless it is, no record may be acknowledged: after a restart the topic might be unknown, or
        the ISR might have members that lack the record.
        """
        return not self._unsaved or self._save_metadata()

    @property
    def default_replication(self) -> int:
        """The default replication factor of topics."""
        return self.config.default_replication or self._max_replication

    @property
    def _max_replication(self) -> int:
        """The replication factor of the cluster's own topics, whatever the default is."""
        return min(3, self.config.brokers)

    def setting(self, name: str) -> str | None:
        """Return the cluster-wide value of a topic setting, as text, or None."""
        of_all = self.controller.default_settings.get(name)
        return self.setting_at_start(name) if of_all is None else of_all

    def setting_at_start(self, name: str) -> str | None:
        """Return the configured value of a topic setting at start, as text, or None."""
        return self.config.setting(name)

    def checked_settings(self, configs: Mapping[str, str | timedelta | None]) -> dict[str, str]:
        """Return the settings of a new topic, validated.

        Raises:
            KafkaError: INVALID_CONFIG: an unknown setting, or an invalid value.
        """
        return validate_settings(configs, self.setting)

    def broker_settings(self) -> Mapping[str, str]:
        """Return the brokers' settings other than defaults of topics: see `STATIC_SETTINGS`."""
        config, groups = self.config, self.config.groups
        values: Mapping[str, object] = {
            "auto.create.topics.enable": config.auto_create_topics,
            "auto.leader.rebalance.enable": config.auto_leader_rebalance,
            "connections.max.idle.ms": round(config.limits.idle_s * 1_000),
            "default.replication.factor": self.default_replication,
            "delete.topic.enable": True,
            "group.consumer.assignors": ",".join(ASSIGNORS),
            "group.consumer.max.size": groups.max_size,
            "group.consumer.migration.policy": groups.consumer_migration_policy,
            "group.initial.rebalance.delay.ms": groups.initial_rebalance_delay_ms,
            "group.max.session.timeout.ms": groups.max_session_timeout_ms,
            "group.max.size": groups.max_size,
            "group.min.session.timeout.ms": groups.min_session_timeout_ms,
            "group.share.assignors": SHARE_ASSIGNOR,
            "group.share.max.share.sessions": groups.share_max_sessions,
            "group.share.max.size": groups.share_max_size,
            "group.streams.max.size": groups.streams_max_size,
            "leader.imbalance.check.interval.seconds": math.ceil(config.leader_imbalance_check_s),
            "num.partitions": config.default_partitions,
            "offsets.retention.check.interval.ms": groups.offsets_retention_check_interval_ms,
            "offsets.retention.minutes": math.ceil(groups.offsets_retention_ms / 60_000),
            "offsets.topic.num.partitions": config.offsets_partitions,
            "offsets.topic.replication.factor": self._max_replication,
            "replica.lag.time.max.ms": config.replica_max_lag_ms,
            "share.coordinator.state.topic.min.isr": config.min_insync_replicas,
            "share.coordinator.state.topic.num.partitions": config.share_state_partitions,
            "share.coordinator.state.topic.replication.factor": self._max_replication,
            "socket.request.max.bytes": config.limits.frame_bytes,
            "transaction.max.timeout.ms": config.transactions.max_timeout_ms,
            "transaction.state.log.num.partitions": config.transactions_partitions,
            "transaction.state.log.min.isr": config.min_insync_replicas,
            "transaction.state.log.replication.factor": self._max_replication,
            "transactional.id.expiration.ms": config.transactions.id_expiration_ms,
        }
        of_groups = [bounded.broker_settings(groups) for bounded in BOUNDED.values()]
        return {
            **{name: str(value).lower() for name, value in values.items()},
            **{name: value for settings in of_groups for name, value in settings.items()},
        }

    def settings_of(self, topic: str) -> Mapping[str, str]:
        """Return a topic's own settings."""
        known = self.controller.topics.get(topic)
        return {} if known is None else known.configs

    def topic_of(self, name_or_id: str | UUID | None) -> Topic | None:
        """Return the topic that has a name or an id, or None. O(1)."""
        if isinstance(name_or_id, UUID):
            return self.controller.topic_with_id(name_or_id)
        return None if name_or_id is None else self.controller.topics.get(name_or_id)

    def has_room_for(self, partitions: int) -> bool:
        """Whether clients may create so many more partitions."""
        return self.controller.partition_count + partitions <= self.config.max_partitions

    def live_broker(self, broker_id: int) -> Peer | None:
        """Return a live broker, or None."""
        broker = self.brokers.get(broker_id)
        return broker if broker is not None and broker.alive else None

    def check_decisions_on(self, topic_partition: TopicPartition) -> None:
        """Complete requests that wait for a partition's leader, on all brokers."""
        for broker in self.brokers.values():
            if broker.alive:
                broker.elections.check(topic_partition)
                broker.topic_changes.check(topic_partition.topic)

    def check_decisions(self) -> None:
        """Complete requests that wait until live brokers apply a change."""
        for broker in self.brokers.values():
            if broker.alive:
                broker.elections.check_all()
                broker.topic_changes.check_all()

    def is_stopped(self, broker_id: int) -> bool:
        """Whether a broker is alive but paused, and so has not applied recent changes."""
        return self.live_broker(broker_id) is not None and self.fault.is_paused(broker_id)

    def coordinator_of(self, transactional_id: str) -> TransactionCoordinator | None:
        """Return the live coordinator of a transactional id, or None."""
        partition = group_partition(transactional_id, self.transactions_partitions())
        state = self.controller.state_of(TopicPartition(TRANSACTIONS_TOPIC, partition))
        broker = None if state is None else self.live_broker(state.leader)
        return None if broker is None else broker.transactions

    def all_have_acls(self, version: int) -> bool:
        """Whether all live brokers apply these access control entries, or later ones."""
        return all(
            broker.authorizer.version >= version for broker in self.brokers.values() if broker.alive
        )

    def live_rack(self, broker_id: int) -> str | None:
        """Return the rack of a live broker; None if it is dead, or its rack is unknown."""
        return None if self.live_broker(broker_id) is None else self.config.rack(broker_id)

    def offsets_partitions(self) -> int:
        """Return the number of partitions of ``__consumer_offsets``; create it if necessary."""
        return self._internal_partitions(OFFSETS_TOPIC)

    def transactions_partitions(self) -> int:
        """Return the number of partitions of ``__transaction_state``; create it if necessary."""
        return self._internal_partitions(TRANSACTIONS_TOPIC)

    def share_state_partitions(self) -> int:
        """Return the number of partitions of ``__share_group_state``; create it if necessary."""
        return self._internal_partitions(SHARE_STATE_TOPIC)

    def group_settings(self, group_id: str) -> GroupSettings:
        """Return the effective settings of a group."""
        own = self.controller.group_settings.get(group_id)
        return (
            GroupSettings({**self._defaults_of_groups, **own})
            if own
            else self._default_group_settings
        )

    def _internal_partitions(self, name: str) -> int:
        topic = self.controller.topics.get(name)
        if topic is None:
            topic = self.create_internal_topic(name)
        return len(topic.partitions)

    def create_internal_topic(self, name: str) -> Topic:
        """Create one of `INTERNAL_TOPICS`, with the configured number of partitions."""
        partitions = {
            OFFSETS_TOPIC: self.config.offsets_partitions,
            TRANSACTIONS_TOPIC: self.config.transactions_partitions,
            SHARE_STATE_TOPIC: self.config.share_state_partitions,
        }
        if self.delays is not None:
            self.delays.begin_topic(name, is_automatic=True)
        return self.controller.create_topic(
            name,
            partitions[name],
            self._max_replication,
            # Small segments: only whole ones are compacted.
            {"cleanup.policy": "compact", "segment.bytes": str(1024 * 1024)},
        )

    def new_producer_id(self) -> int:
        """Return an id that no producer had before.

        Raises:
            ClusterError: the id can't be saved, and might be returned again after a restart.
        """
        self._next_producer_id += 1
        if self.config.data_dir is not None:
            self._save_metadata()
            if self._unsaved:
                raise ClusterError(f"{self.config.data_dir} can't be written to")
        return self._next_producer_id


class AuthorizedTopics:
    """All topics, filtered by a client's DESCRIBE permission (`KnownTopics`).

    Args:
        known: the controller, which has all topics.
        authorizer: returns the broker's.
    """

    def __init__(self, known: Controller, authorizer: Callable[[], Authorizer]) -> None:
        self._known = known
        self._authorizer = authorizer

    @property
    def topics(self) -> Mapping[str, Topic]:
        """By name."""
        return self._known.topics

    @property
    def topics_version(self) -> int:
        """A number that changes with the topics, partitions and access control entries."""
        return self._known.topics_version + self._authorizer().version

    def may_describe(self, requester: Principal, topic: str) -> bool:
        """Whether a client may describe a topic."""
        allows = self._authorizer().allows
        return allows(
            requester.principal, requester.host, Operation.DESCRIBE, ResourceType.TOPIC, topic
        )
