"""The settings of brokers that aren't defaults of topics, by Kafka's names: types and defaults.

They can't be changed while a cluster runs. A value other than Kafka's default is told as
configured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.settings.alter_configs import BROKER_KEYS, ConfigResource
from purgatory.kafka.settings.group_settings import BOUNDED, GroupConfig
from purgatory.kafka.settings.setting import BOOLEAN, INT, LIST, LONG, SHORT, STRING, Setting
from purgatory.kafka.settings.topic_settings import (
    BROKER_SETTINGS,
    BrokerSetting,
    check_together,
    check_value,
)
from purgatory.kafka.settings.unused_settings import THREADS, UNUSED_OF_LISTENERS, UNUSED_STATIC

_KINDS: Mapping[str, tuple[int, str]] = {
    "auto.create.topics.enable": (BOOLEAN, "true"),
    "auto.leader.rebalance.enable": (BOOLEAN, "true"),
    "connections.max.idle.ms": (LONG, "600000"),
    "default.replication.factor": (INT, "1"),
    "delete.topic.enable": (BOOLEAN, "true"),
    "group.consumer.assignors": (LIST, "uniform,range"),
    "group.consumer.max.size": (INT, "2147483647"),
    "group.consumer.migration.policy": (STRING, "bidirectional"),
    "group.initial.rebalance.delay.ms": (INT, "3000"),
    "group.max.session.timeout.ms": (INT, "1800000"),
    "group.max.size": (INT, "2147483647"),
    "group.min.session.timeout.ms": (INT, "6000"),
    "group.share.assignors": (LIST, "simple"),
    "group.share.max.share.sessions": (INT, "2000"),
    "group.share.max.size": (INT, "200"),
    "group.streams.max.size": (INT, "2147483647"),
    "leader.imbalance.check.interval.seconds": (LONG, "300"),
    "num.partitions": (INT, "1"),
    "offsets.retention.check.interval.ms": (LONG, "600000"),
    "offsets.retention.minutes": (INT, "10080"),
    "offsets.topic.num.partitions": (INT, "50"),
    "offsets.topic.replication.factor": (SHORT, "3"),
    "replica.lag.time.max.ms": (LONG, "30000"),
    "share.coordinator.state.topic.min.isr": (SHORT, "2"),
    "share.coordinator.state.topic.num.partitions": (INT, "50"),
    "share.coordinator.state.topic.replication.factor": (SHORT, "3"),
    "socket.request.max.bytes": (INT, "104857600"),
    "transaction.max.timeout.ms": (INT, "900000"),
    "transaction.state.log.min.isr": (INT, "2"),
    "transaction.state.log.num.partitions": (INT, "50"),
    "transaction.state.log.replication.factor": (SHORT, "3"),
    "transactional.id.expiration.ms": (INT, "604800000"),
}

_DEFAULT_GROUPS = GroupConfig()

STATIC_SETTINGS: Mapping[str, Setting] = {
    **{
        name: Setting(default, kind, name, "As in Kafka.", fixed=True)
        for name, (kind, default) in _KINDS.items()
    },
    **{
        name: Setting(value, INT, name, "As in Kafka.", fixed=True)
        for bounded in BOUNDED.values()
        for name, value in bounded.broker_settings(_DEFAULT_GROUPS).items()
    },
}


def broker_configs(own: Mapping[str, str], current: Callable[[str], str | None]) -> ConfigResource:
    """Return the settings that brokers may be given.

    Args:
        own: the settings that are the cluster's own, which don't change, and their values.
        current: returns the value of a setting now; None: its default.
    """

    def check(name: str, setting: Setting, value: str, fixed_value: str) -> None:
        if name in THREADS:
            threads = int(current(name) or fixed_value)
            setting = setting._replace(least=max(1, threads // 2), most=2 * threads)
        _as_bad_request(lambda: check_value(name, setting, value, fixed_value))

    def check_all(settings: Mapping[str, str], of_broker: BrokerSetting) -> None:
        _as_bad_request(lambda: check_together(settings, of_broker))

    unused = {**UNUSED_STATIC, **UNUSED_OF_LISTENERS}
    fixed = {**{name: setting.default or "" for name, setting in unused.items()}, **own}
    return ConfigResource(
        "broker", BROKER_KEYS, fixed, BROKER_SETTINGS, check, check_all, takes_unknown=True
    )


def _as_bad_request(check: Callable[[], None]) -> None:
    """Refuse a value by the error that Kafka's brokers have for their own settings."""
    try:
        check()
    except KafkaError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None
