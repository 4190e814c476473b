"""Settings beside Kafka's own, of which `kafka_settings.tsv` has all: types, defaults, bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from purgatory.kafka.settings.alter_configs import BROKER_KEYS
from purgatory.kafka.settings.broker_settings import STATIC_SETTINGS
from purgatory.kafka.settings.client_metrics import CLIENT_METRICS_SETTINGS
from purgatory.kafka.settings.group_settings import (
    BOUNDED,
    GROUP_SETTINGS,
    GroupConfig,
    default_group_settings,
)
from purgatory.kafka.settings.setting import Setting
from purgatory.kafka.settings.topic_settings import BROKER_SETTINGS, TOPIC_SETTINGS
from purgatory.kafka.settings.unused_settings import UNUSED_OF_LISTENERS, UNUSED_STATIC

_KINDS = dict(
    enumerate(
        ["boolean", "string", "int", "short", "long", "double", "list", "class", "password"],
        start=1,
    )
)

_HOURS = "brokers have it in hours, too, and none in milliseconds"
_AS_GROUPS = "the bounds are those of the brokers, which another test compares"

_STATIC = {**UNUSED_STATIC, **UNUSED_OF_LISTENERS, **STATIC_SETTINGS}

MEANT: Mapping[tuple[str, str], str] = {
    ("topic", "internal.segment.bytes"): "a segment holds a header at least",
    **{
        ("group", name): _AS_GROUPS
        for name in (
            "consumer.assignment.interval.ms",
            "share.assignment.interval.ms",
            "share.delivery.count.limit",
            "share.partition.max.record.locks",
            "share.record.lock.duration.ms",
            "streams.assignment.interval.ms",
        )
    },
    ("client-metrics", "interval.ms"): "Kafka checks its bounds apart from its table",
    **{
        ("broker", f"log.{name}"): _HOURS
        for name in ("flush.interval.ms", "retention.ms", "roll.jitter.ms", "roll.ms")
    },
    **{
        ("broker", f"{role}.replication.throttled.rate"): "Kafka has it in no table"
        for role in ("leader", "follower")
    },
}
"""Differences that are meant, each with its reason."""


class _Known(NamedTuple):
    kind: str
    default: str
    valid: str
    changed: str


def _table() -> dict[tuple[str, str], _Known]:
    lines = (Path(__file__).parent / "kafka_settings.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    return {(row[0], row[1]): _Known(*row[2:]) for row in rows}


def _valid(setting: Setting) -> str:
    """Return the valid values of a setting, as Kafka writes them."""
    if setting.choices == ("-1", *map(str, range(1, 10))):
        return "[1,...,9] or -1"
    if setting.pattern is not None:
        return "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    if setting.choices and setting.kind != 1:
        return f"[{', '.join(sorted(setting.choices))}]"
    if setting.least is None:
        return ""
    return f"[{setting.least},...{'' if setting.most is None else f',{setting.most}'}]"


def _sorted(valid: str) -> str:
    names = valid.strip("[]").split(", ")
    return f"[{', '.join(sorted(names))}]" if len(names) > 1 and "..." not in valid else valid


def _differences(resource: str, ours: Mapping[str, Setting]) -> set[tuple[str, str]]:
    """Return the settings that one side lacks, or that differ in type, default or bounds."""
    table = {name: known for (kind, name), known in _table().items() if kind == resource}
    found = {(resource, name) for name in table.keys() - ours.keys() if resource != "broker"}
    for name, setting in ours.items():
        known = table.get(name)
        is_null = setting.default is None or (setting.default == "" and setting.kind == 3)
        default = "null" if is_null else setting.default
        if (
            known is None
            or (known.kind, known.default) != (_KINDS[setting.kind], default)
            or (
                # The durations of share.auto.offset.reset are no choice.
                resource != "broker"
                and name != "share.auto.offset.reset"
                and _sorted(known.valid) != _valid(setting)
            )
        ):
            found.add((resource, name))
    return found


def test_settings_are_those_of_kafka_but_for_what_is_meant() -> None:
    defaults = default_group_settings(GroupConfig())
    of_groups = {
        name: setting._replace(default=defaults[name]) for name, setting in GROUP_SETTINGS.items()
    }
    of_brokers = {own: BROKER_SETTINGS[key] for own, key in BROKER_KEYS.items()}
    found = (
        _differences("topic", TOPIC_SETTINGS)
        | _differences("group", of_groups)
        | _differences("client-metrics", CLIENT_METRICS_SETTINGS)
        | _differences("broker", {**_STATIC, **of_brokers})
    )
    assert found == MEANT.keys(), "each difference is meant, and each meant one is there"


def test_bounds_of_groups_are_those_of_kafkas_brokers() -> None:
    table = _table()
    for bounded in BOUNDED.values():
        for name, value in bounded.broker_settings(GroupConfig()).items():
            assert table["broker", name].default == value, name


def test_brokers_settings_change_where_those_of_kafka_do() -> None:
    table = _table()
    changed = {
        name: table["broker", name].changed for name in BROKER_KEYS if ("broker", name) in table
    }
    assert set(changed.values()) == {"dynamic"}, changed
    static = {**UNUSED_STATIC, **STATIC_SETTINGS}
    assert {table["broker", name].changed for name in static} == {"static"}
    assert {table["broker", name].changed for name in UNUSED_OF_LISTENERS} == {"dynamic"}
