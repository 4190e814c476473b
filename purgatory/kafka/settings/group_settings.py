"""The settings of groups: of all of them (`GroupConfig`), and of one, by Kafka's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.fetch_thresholds import FetchIsolation
from purgatory.kafka.settings.alter_configs import ConfigResource
from purgatory.kafka.settings.setting import BOOLEAN, INT, STRING, Setting
from purgatory.kafka.settings.topic_settings import BrokerSetting, check_value
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
        offsets_retention_ms: how long offsets are kept that no member reads on from.
        offsets_retention_check_interval_ms: how often expired offsets are deleted, and groups
            without offsets and members.
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
        streams_session_timeout_ms, streams_heartbeat_interval_ms, streams_max_size: the same of
            streams groups.
        streams_initial_rebalance_delay_ms: how long the first member of one waits for others.
        streams_num_standby_replicas: how many copies of a task's state its members keep.
    """

    initial_rebalance_delay_ms: OrTimedelta[int] = default(3_000)
    min_session_timeout_ms: OrTimedelta[int] = default(6_000)
    max_session_timeout_ms: OrTimedelta[int] = default(1_800_000)
    max_size: int = 2**31 - 1
    offsets_retention_ms: OrTimedelta[int] = default(604_800_000)
    offsets_retention_check_interval_ms: OrTimedelta[int] = default(600_000)
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
    streams_session_timeout_ms: OrTimedelta[int] = default(45_000)
    streams_heartbeat_interval_ms: OrTimedelta[int] = default(5_000)
    streams_max_size: int = 2**31 - 1
    streams_initial_rebalance_delay_ms: OrTimedelta[int] = default(3_000)
    streams_num_standby_replicas: int = 0


_START, _ISOLATION, _RENEWAL = (
    "share.auto.offset.reset",
    "share.isolation.level",
    "share.renew.acknowledge.enable",
)
EARLIEST, LATEST = "earliest", "latest"

_BY_DURATION = re.compile(
    r"by_duration:P(?!$)(?:(\d{1,12})D)?"
    r"(?:T(?!$)(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,12}(?:\.\d{1,3})?)S)?)?",
    re.ASCII,
)

_SECONDS = (86_400, 3_600, 60, 1)
_COMMITTED = "read_committed"


class _Bounded(NamedTuple):
    """A number of a group: its default is a broker's setting, its bounds are two others.

    Args:
        of_broker: the broker's setting.
        field: of `GroupConfig`.
        least, most: the brokers' bounds, unless the default is beyond.
        doc: its description.
        told: the bounds that are settings of brokers.
    """

    of_broker: str
    field: str
    least: int
    most: int
    doc: str
    told: tuple[str, ...] = ("min", "max")

    def broker_settings(self, config: GroupConfig) -> dict[str, str]:
        """Return the broker's settings: the default of groups, and their bounds."""
        kind, name = self.of_broker.removeprefix("group.").split(".", 1)
        bounds = dict(zip(("min", "max"), self.bounds(config), strict=True))
        settings = {self.of_broker: str(getattr(config, self.field))}
        for one in self.told:
            settings[f"group.{kind}.{one}.{name.removeprefix('num.')}"] = str(bounds[one])
        return settings

    def bounds(self, config: GroupConfig) -> tuple[int, int]:
        """Return the least and the greatest value of a group's setting."""
        by_default = getattr(config, self.field)
        return min(self.least, by_default), max(self.most, by_default)


BOUNDED: Mapping[str, _Bounded] = {
    "consumer.heartbeat.interval.ms": _Bounded(
        "group.consumer.heartbeat.interval.ms",
        "consumer_heartbeat_interval_ms",
        5_000,
        15_000,
        "How often a consumer sends a heartbeat.",
    ),
    "consumer.session.timeout.ms": _Bounded(
        "group.consumer.session.timeout.ms",
        "consumer_session_timeout_ms",
        45_000,
        60_000,
        "How long a consumer may send no heartbeat.",
    ),
    "share.delivery.count.limit": _Bounded(
        "group.share.delivery.count.limit",
        "share_delivery_count_limit",
        2,
        10,
        "How often a record is delivered at most.",
    ),
    "share.heartbeat.interval.ms": _Bounded(
        "group.share.heartbeat.interval.ms",
        "share_heartbeat_interval_ms",
        5_000,
        15_000,
        "How often a share consumer sends a heartbeat.",
    ),
    "share.partition.max.record.locks": _Bounded(
        "group.share.partition.max.record.locks",
        "share_partition_max_record_locks",
        100,
        4_000,
        "How many offsets of a partition may be on their way to the members.",
    ),
    "share.record.lock.duration.ms": _Bounded(
        "group.share.record.lock.duration.ms",
        "share_record_lock_duration_ms",
        15_000,
        60_000,
        "How long a share consumer has a record to itself.",
    ),
    "share.session.timeout.ms": _Bounded(
        "group.share.session.timeout.ms",
        "share_session_timeout_ms",
        45_000,
        60_000,
        "How long a share consumer may send no heartbeat.",
    ),
    "streams.heartbeat.interval.ms": _Bounded(
        "group.streams.heartbeat.interval.ms",
        "streams_heartbeat_interval_ms",
        5_000,
        15_000,
        "How often a member of a streams group sends a heartbeat.",
    ),
    "streams.initial.rebalance.delay.ms": _Bounded(
        "group.streams.initial.rebalance.delay.ms",
        "streams_initial_rebalance_delay_ms",
        0,
        2**31 - 1,
        "How long the first member of a streams group waits for others.",
        told=(),
    ),
    "streams.num.standby.replicas": _Bounded(
        "group.streams.num.standby.replicas",
        "streams_num_standby_replicas",
        0,
        2,
        "How many members keep a copy of a task's state.",
        told=("max",),
    ),
    "streams.session.timeout.ms": _Bounded(
        "group.streams.session.timeout.ms",
        "streams_session_timeout_ms",
        45_000,
        60_000,
        "How long a member of a streams group may send no heartbeat.",
    ),
}

_AT_ONCE = "Assignments are computed at once: it counts nowhere."
_OF_TASKS = "The least time between assignments of tasks."
_INTERVALS: Mapping[str, Setting] = {
    name: Setting(str(by_default), INT, f"group.{name}", doc, least, most)
    for name, by_default, doc, least, most in (
        ("consumer.assignment.interval.ms", 1_000, _AT_ONCE, 0, 15_000),
        ("share.assignment.interval.ms", 1_000, _AT_ONCE, 0, 15_000),
        ("streams.assignment.interval.ms", 1_000, _OF_TASKS, 0, 15_000),
    )
}

GROUP_SETTINGS: Mapping[str, Setting] = dict(
    sorted(
        {
            **_INTERVALS,
            **{
                name: Setting(
                    None, INT, bounded.of_broker, bounded.doc, least=min(1, bounded.least)
                )
                for name, bounded in BOUNDED.items()
            },
            _START: Setting(LATEST, STRING, None, "From where on a share group reads."),
            _ISOLATION: Setting(
                "read_uncommitted",
                STRING,
                None,
                "Whether a share group is given records of transactions that may still be aborted.",
                choices=("read_uncommitted", _COMMITTED),
            ),
            _RENEWAL: Setting(
                "true",
                BOOLEAN,
                None,
                "Whether members may renew the time that they have records to themselves.",
                choices=("false", "true"),
            ),
        }.items()
    )
)


def group_configs(config: GroupConfig) -> ConfigResource:
    """Return the settings that a group may have in a cluster."""

    def check(name: str, setting: Setting, value: str, fixed_value: str) -> None:
        if name in BOUNDED:
            least, most = BOUNDED[name].bounds(config)
            setting = setting._replace(least=least, most=most)
        if name != _START:
            check_value(name, setting, value, fixed_value)
        elif value not in (EARLIEST, LATEST) and not _BY_DURATION.fullmatch(value):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name}={value}: it is {LATEST}, {EARLIEST}, or by_duration: with a time like "
                "PT1H30M",
            )

    def check_all(settings: Mapping[str, str], of_broker: BrokerSetting) -> None:
        values = {**default_group_settings(config), **settings}
        for kind in ("consumer", "share", "streams"):
            session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if int(values[session]) <= int(values[heartbeat]):
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"{session}={values[session]}: it is more than {heartbeat}={values[heartbeat]}",
                )

    names = {name: name for name in GROUP_SETTINGS}
    return ConfigResource("group", names, {}, GROUP_SETTINGS, check, check_all)


def default_group_settings(config: GroupConfig) -> dict[str, str]:
    """Return the settings of groups without own settings."""
    return {
        name: setting.default
        if setting.default is not None
        else str(getattr(config, BOUNDED[name].field))
        for name, setting in GROUP_SETTINGS.items()
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
    def share_max_deliveries(self) -> int:
        """The most deliveries of a record to a share group."""
        return int(self.values["share.delivery.count.limit"])

    @property
    def share_max_records(self) -> int:
        """Offsets of a partition that may be on their way to a share group's members."""
        return int(self.values["share.partition.max.record.locks"])

    @property
    def share_renews(self) -> bool:
        """Whether a share group's members may renew their locks."""
        return self.values[_RENEWAL].lower() == "true"

    @property
    def share_isolation(self) -> FetchIsolation:
        """The isolation level of a share group."""
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
