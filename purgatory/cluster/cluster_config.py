"""What a cluster is to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from purgatory.cluster.authorization import Authorization
from purgatory.cluster.listener import MECHANISMS, Listener, Place, Tls
from purgatory.cluster.protocol.connection import Limits
from purgatory.cluster.storage import Fsync
from purgatory.kafka import GroupConfig, LogConfig, TransactionConfig
from purgatory.kafka.settings.topic_settings import settings_of_log
from purgatory.settings.addresses import without_brackets


@dataclass(frozen=True)
class TopicSpec:
    """A topic that is there from the start.

    Args:
        name: of letters, digits, dots, dashes and underscores.
        partitions: how many, at least 1.
        replication: how many replicas each has; None: the cluster's default.
        settings: what it has of its own, by Kafka's names: ``{"cleanup.policy": "compact"}``.
    """

    name: str
    partitions: int = 1
    replication: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterConfig:
    """What a cluster is to be.

    Args:
        brokers: how many.
        first_broker_id: of the first; the others have the ids after it.
        host: where they listen.
        first_port: of the first broker; the others have the ports after it. 0 lets the system
            choose.
        tls: speak TLS there; None for plain connections.
        listeners: where they listen instead, in one way or several; the first is the one that
            ``Cluster.bootstrap_servers`` names. Where there are none, there is one, by ``host``,
            ``first_port``, ``tls`` and ``users``.
        racks: where the brokers stand, in their order, each a name; empty: it isn't known.
            Consumers that say theirs read from a replica there.
        topics: that are there from the start. One that the data folder has stays as it is there.
        min_insync_replicas: how many must be in sync for acks=all, and for anything to be
            committed; of a topic with fewer replicas, all.
        follower_lag_ms: how long a follower takes for what it fetched.
        replica_max_lag_ms: who did not catch up for so long leaves the ISR.
        auto_create_topics: whether asking for a topic makes it.
        default_partitions: of topics that are made so, or say nothing of it.
        default_replication: how many replicas topics have that are made so, or say nothing of it;
            None: three, or as many as there are brokers.
        max_partitions: how many all topics may have that clients make.
        offsets_partitions: of the topic that holds the groups' committed offsets.
        transactions_partitions: of the topic that holds what is known of transactional ids.
        share_state_partitions: of the topic that holds how far share groups are.
        groups: what consumer groups are allowed.
        transactions: what transactional ids are allowed.
        users: passwords by user, for SASL; None: nobody is asked, but where ``listeners`` say so.
        authorization: who may do what; None: everybody may do everything, and access control lists
            are refused.
        data_dir: where logs and metadata are kept; None keeps them in memory.
        fsync: when what is written there is forced onto the disk.
        memory_bytes: what the logs of all brokers may take together, where they are in memory.
        retention_ms: how long records are kept; None keeps them.
        log_config: segments and retention.
        limits: what a client may ask.
    """

    brokers: int = 3
    first_broker_id: int = 1
    host: str = "127.0.0.1"
    first_port: int = 0
    tls: Tls | None = None
    listeners: Sequence[Listener] = ()
    racks: Sequence[str] = ()
    topics: Sequence[TopicSpec] = ()
    min_insync_replicas: int = 1
    follower_lag_ms: float = 0
    replica_max_lag_ms: int = 30_000
    auto_create_topics: bool = True
    default_partitions: int = 1
    default_replication: int | None = None
    max_partitions: int = 10_000
    offsets_partitions: int = 4
    transactions_partitions: int = 4
    share_state_partitions: int = 4
    groups: GroupConfig = field(default_factory=GroupConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    users: Mapping[str, str] | None = None
    authorization: Authorization | None = field(default_factory=Authorization)
    data_dir: Path | None = None
    fsync: Fsync = Fsync.NEVER
    memory_bytes: int = 1024 * 1024 * 1024
    retention_ms: int | None = None
    log_config: LogConfig = field(default_factory=LogConfig)
    limits: Limits = field(default_factory=Limits)

    @property
    def broker_ids(self) -> range:
        """The ids of all brokers."""
        return range(self.first_broker_id, self.first_broker_id + self.brokers)

    def setting(self, name: str) -> str | None:
        """Return what is said here for a setting of topics, as text; None: nothing."""
        forces = self.data_dir is not None and self.fsync is Fsync.ALWAYS
        own = {
            "min.insync.replicas": self.min_insync_replicas,
            "retention.ms": self.retention_ms,
            "flush.messages": 1 if forces else None,
        }
        value = own.get(name)
        return self._settings_of_logs.get(name) if value is None else str(value)

    @cached_property
    def _settings_of_logs(self) -> Mapping[str, str]:
        return settings_of_log(self.log_config)

    def rack(self, broker_id: int) -> str | None:
        """Return where a broker stands, None if that isn't known."""
        return self.racks[broker_id - self.first_broker_id] if self.racks else None

    @property
    def all_listeners(self) -> Sequence[Listener]:
        """The listeners that each broker has, at least one."""
        if self.listeners:
            return self.listeners
        sasl = MECHANISMS if self.users is not None else ()
        one = Listener("CLIENTS", self.first_port, tls=self.tls, sasl=sasl)
        return (one,)

    def place(self, listener: Listener, broker_id: int) -> Place:
        """Return where a broker is to listen; port 0 lets the system choose."""
        port = listener.first_port and listener.first_port + broker_id - self.first_broker_id
        return Place(without_brackets(listener.host or self.host), port)
