"""What a cluster is to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from purgatory.cluster.protocol.connection import Limits
from purgatory.cluster.storage import Fsync
from purgatory.kafka import GroupConfig, LogConfig


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
