"""What groups are allowed."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class MigrationPolicy(Enum):
    """Which groups become groups of the other protocol while they have members."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group may become a classic group."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def mixes(self) -> bool:
        """Whether members of both protocols may be in a consumer group."""
        return self is not MigrationPolicy.DISABLED


class GroupConfig(NamedTuple):
    """What groups are allowed. Times are in milliseconds.

    Args:
        initial_rebalance_delay_ms: how long the first member of a group waits for others.
        min_session_timeout_ms, max_session_timeout_ms: what members may ask for.
        max_size: how many members a group may have.
        consumer_session_timeout_ms: how long a member of a group of the consumer protocol may give
            no sign of life.
        consumer_heartbeat_interval_ms: how often it is told to give one.
        migration_policy: which groups become groups of the other protocol.
        share_session_timeout_ms, share_heartbeat_interval_ms: the same of members of share groups.
        share_max_size: how many members a share group may have.
        share_max_sessions: how many share sessions a broker may have.
        share_record_lock_duration_ms: how long a member of a share group has a record to itself.
        share_delivery_count_limit: how often a record is delivered at most.
        share_partition_max_record_locks: how many offsets of a partition may be on their way to a
            share group's members, from the first that is not done with on.
    """

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5_000
    share_max_size: int = 200
    share_max_sessions: int = 2_000
    share_record_lock_duration_ms: int = 30_000
    share_delivery_count_limit: int = 5
    share_partition_max_record_locks: int = 2_000
