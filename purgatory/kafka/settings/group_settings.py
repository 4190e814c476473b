"""The settings of groups: of all of them (`GroupConfig`), and of one, by Kafka's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.log_offsets import FetchIsolation
from purgatory.kafka.settings.alter_configs import ConfigResource
from purgatory.kafka.settings.topic_settings import Setting, check_value
from purgatory.settings.typed_duration import OrTimedelta, default, timed_dataclass


class MigrationPolicy(StrEnum):
    """Whether a classic group with members becomes a consumer group when a member of that protocol
    joins (upgrade), and a classic group again when the last one has left (downgrade)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """Whether classic groups are upgraded."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        """Whether consumer groups are downgraded."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@timed_dataclass
class GroupConfig:
    """The limits of groups. Times are in milliseconds, or timedeltas.

    Args:
        initial_rebalance_delay_ms: how long the first member of a group waits for others.
        min_session_timeout_ms, max_session_timeout_ms: what members may ask for.
        max_size: how many members a group may have.
        consumer_session_timeout_ms: how long a member of a group of the consumer protocol may give
            no heartbeat.
        consumer_heartbeat_interval_ms: how often members are to send one.
        consumer_migration_policy: whether groups with members change their protocol.
        share_session_timeout_ms, share_heartbeat_interval_ms: the same of members of share groups.
        share_max_size: how many members a share group may have.
        share_max_sessions: how many share sessions a broker may have.
        share_record_lock_duration_ms: how long a member of a share group has a record to itself.
        share_delivery_count_limit: how often a record is delivered at most.
        share_partition_max_record_locks: how many offsets of a partition may be on their way to a
            share group's members, from the first that is not done with on.
    """

    initial_rebalance_delay_ms: OrTimedelta[int] = default(3_000)
    min_session_timeout_ms: OrTimedelta[int] = default(6_000)
    max_session_timeout_ms: OrTimedelta[int] = default(1_800_000)
    max_size: int = 2**31 - 1
    consumer_session_timeout_ms: OrTimedelta[int] = default(45_000)
    consumer_heartbeat_interval_ms: OrTimedelta[int] = default(5_000)
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    share_session_timeout_ms: OrTimedelta[int] = default(45_000)
    share_heartbeat_interval_ms: OrTimedelta[int] = default(5_000)
    share_max_size: int = 200
    share_max_sessions: int = 2_000
    share_record_lock_duration_ms: OrTimedelta[int] = default(30_000)
    share_delivery_count_limit: int = 5
    share_partition_max_record_locks: int = 2_000


_STRING, _INT = 2, 3
_START, _ISOLATION = "share.auto.offset.reset", "share.isolation.level"
EARLIEST, LATEST = "earliest", "latest"

_BY_DURATION = re.compile(
    r"by_duration:P(?!$)(?:(\d{1,12})D)?"
    r"(?:T(?!$)(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,12}(?:\.\d{1,3})?)S)?)?",
    re.ASCII,
)

_SECONDS = (86_400, 3_600, 60, 1)
_COMMITTED = "read_committed"


def _milliseconds(of_broker: str, doc: str) -> Setting:
    return Setting(None, _INT, of_broker, doc, least=1)


GROUP_SETTINGS: Mapping[str, Setting] = {
    "consumer.heartbeat.interval.ms": _milliseconds(
        "group.consumer.heartbeat.interval.ms", "How often a consumer sends a heartbeat."
    ),
    "consumer.session.timeout.ms": _milliseconds(
        "group.consumer.session.timeout.ms", "How long a consumer may send no heartbeat."
    ),
    _START: Setting(LATEST, _STRING, None, "From where on a share group reads."),
    "share.heartbeat.interval.ms": _milliseconds(
        "group.share.heartbeat.interval.ms", "How often a share consumer sends a heartbeat."
    ),
    _ISOLATION: Setting(
        "read_uncommitted",
        _STRING,
        None,
        "Whether a share group is given records of transactions before these are committed.",
        choices=("read_uncommitted", _COMMITTED),
    ),
    "share.record.lock.duration.ms": _milliseconds(
        "group.share.record.lock.duration.ms", "How long a share consumer has a record to itself."
    ),
    "share.session.timeout.ms": _milliseconds(
        "group.share.session.timeout.ms", "How long a share consumer may send no heartbeat."
    ),
}


def _check(name: str, setting: Setting, value: str, fixed_value: str) -> None:
    if name != _START:
        check_value(name, setting, value, fixed_value)
    elif value not in (EARLIEST, LATEST) and not _BY_DURATION.fullmatch(value):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{name}={value}: it is {LATEST}, {EARLIEST}, or by_duration: with a time like PT1H30M",
        )


GROUP_CONFIGS = ConfigResource(
    "groups", {name: name for name in GROUP_SETTINGS}, {}, GROUP_SETTINGS, _check
)


def default_group_settings(config: GroupConfig) -> dict[str, str]:
    """Return the settings of groups without own settings."""
    return {
        "consumer.heartbeat.interval.ms": str(config.consumer_heartbeat_interval_ms),
        "consumer.session.timeout.ms": str(config.consumer_session_timeout_ms),
        _START: LATEST,
        "share.heartbeat.interval.ms": str(config.share_heartbeat_interval_ms),
        _ISOLATION: "read_uncommitted",
        "share.record.lock.duration.ms": str(config.share_record_lock_duration_ms),
        "share.session.timeout.ms": str(config.share_session_timeout_ms),
    }


@dataclass(frozen=True)
class GroupSettings:
    """The settings of one group. Times are in milliseconds.

    Args:
        values: all settings, as text, by Kafka's names.
    """

    values: Mapping[str, str]

    def milliseconds(self, name: str) -> int:
        """Return a setting that is a time: "share.session.timeout.ms"."""
        return int(self.values[name])

    @property
    def share_isolation(self) -> FetchIsolation:
        """How far a share group sees."""
        is_committed = self.values[_ISOLATION] == _COMMITTED
        return FetchIsolation.TXN_COMMITTED if is_committed else FetchIsolation.HIGH_WATERMARK

    @property
    def share_start(self) -> str | int:
        """From where on a share group reads: EARLIEST, LATEST, or records as old at most."""
        value = self.values[_START]
        match = _BY_DURATION.fullmatch(value)
        if match is None:
            return value
        parts = zip(match.groups(default="0"), _SECONDS, strict=True)
        return int(sum(float(number) * 1_000 * seconds for number, seconds in parts))
