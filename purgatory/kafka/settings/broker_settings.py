"""The settings of brokers that aren't defaults of topics, by Kafka's names: types and defaults.

They can't be changed while a cluster runs. A value other than Kafka's default is told as
configured.
"""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.kafka.settings.group_settings import BOUNDED, GroupConfig
from purgatory.kafka.settings.topic_settings import LIST, STRING, Setting

_BOOLEAN, _INT, _LONG = 1, 3, 5
_KINDS: Mapping[str, tuple[int, str]] = {
    "auto.create.topics.enable": (_BOOLEAN, "true"),
    "auto.leader.rebalance.enable": (_BOOLEAN, "true"),
    "default.replication.factor": (_INT, "1"),
    "delete.topic.enable": (_BOOLEAN, "true"),
    "group.consumer.assignors": (LIST, "uniform,range"),
    "group.consumer.max.size": (_INT, "2147483647"),
    "group.consumer.migration.policy": (STRING, "bidirectional"),
    "group.initial.rebalance.delay.ms": (_INT, "3000"),
    "group.max.session.timeout.ms": (_INT, "1800000"),
    "group.max.size": (_INT, "2147483647"),
    "group.min.session.timeout.ms": (_INT, "6000"),
    "group.share.assignors": (LIST, "simple"),
    "group.share.max.share.sessions": (_INT, "2000"),
    "group.share.max.size": (_INT, "200"),
    "leader.imbalance.check.interval.seconds": (_LONG, "300"),
    "num.partitions": (_INT, "1"),
    "offsets.topic.num.partitions": (_INT, "50"),
    "replica.lag.time.max.ms": (_LONG, "30000"),
    "share.coordinator.state.topic.num.partitions": (_INT, "50"),
    "socket.request.max.bytes": (_INT, "104857600"),
    "transaction.max.timeout.ms": (_INT, "900000"),
    "transaction.state.log.num.partitions": (_INT, "50"),
    "transactional.id.expiration.ms": (_INT, "604800000"),
}

_DEFAULT_GROUPS = GroupConfig()

STATIC_SETTINGS: Mapping[str, Setting] = {
    **{
        name: Setting(default, kind, name, "As in Kafka.", fixed=True)
        for name, (kind, default) in _KINDS.items()
    },
    **{
        name: Setting(value, _INT, name, "As in Kafka.", fixed=True)
        for bounded in BOUNDED.values()
        for name, value in bounded.broker_settings(_DEFAULT_GROUPS).items()
    },
}
