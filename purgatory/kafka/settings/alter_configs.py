"""Changes of settings by AlterConfigs and IncrementalAlterConfigs, of topics, brokers and groups.

Settings are kept by the names that topics have for them; brokers have other names for most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.settings.setting import LIST, Setting
from purgatory.kafka.settings.topic_settings import (
    BROKER_SETTINGS,
    SETTINGS,
    TOPIC_SETTINGS,
    BrokerSetting,
    check_together,
    check_value,
    effective_value,
    split_words,
    unknown_setting,
)


class ConfigOperation(IntEnum):
    """The operation on a setting, numbered as on Kafka's wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One change: of the setting called ``name``, with ``value`` as text, None for a deletion."""

    name: str
    value: str | None
    operation: int = ConfigOperation.SET


class ConfigResource(NamedTuple):
    """A resource with settings.

    Args:
        kind: "topic", "broker", "group" or "client metrics".
        keys: the names under which settings are kept, by the names that they have here.
        unchangeable: the values of settings that can't be changed while the cluster runs.
        settings: the definitions, by key.
        check: refuses an invalid value, as ``check_value`` does.
        check_all: refuses values that don't go together.
        takes_unknown: whether names that are unknown are accepted, and forgotten.
    """

    kind: str
    keys: Mapping[str, str]
    unchangeable: Mapping[str, str]
    settings: Mapping[str, Setting] = SETTINGS
    check: Callable[[str, Setting, str, str], None] = check_value
    check_all: Callable[[Mapping[str, str], BrokerSetting], None] = check_together
    takes_unknown: bool = False


TOPIC_CONFIGS = ConfigResource("topic", {name: name for name in TOPIC_SETTINGS}, {}, TOPIC_SETTINGS)

BROKER_KEYS: Mapping[str, str] = {
    setting.of_broker: name
    for name, setting in BROKER_SETTINGS.items()
    if setting.of_broker is not None
}
"""The settings of brokers by the names that they have there: most are defaults of topics."""


def changed_settings(
    now: Mapping[str, str],
    changes: Sequence[ConfigChange],
    resource: ConfigResource,
    of_broker: BrokerSetting,
) -> dict[str, str]:
    """Return a copy of the settings after all changes. O(changes).

    Args:
        now: the present settings. AlterConfigs, which replaces all, begins with none.
        changes: each setting at most once.
        resource: the settings that there are.
        of_broker: returns the value of a setting that is not set.

    Raises:
        KafkaError: INVALID_CONFIG or INVALID_REQUEST: the setting is unknown, can't have the value,
            can't be changed, or not in this way.
    """
    counts = Counter(change.name for change in changes)
    settings = dict(now)
    for change in changes:
        name = change.name
        if counts[name] > 1:
            raise _bad_request(f"{name} is named {counts[name]} times: name it once")
        if name in resource.unchangeable:
            _check_unchanged(change, resource.unchangeable[name])
            continue
        key = resource.keys.get(name)
        if key is None and (change.operation == ConfigOperation.DELETE or resource.takes_unknown):
            continue  # as in Kafka: what isn't set is deleted
        if key is None:
            raise unknown_setting(name, resource.kind, resource.keys)
        setting = resource.settings[key]
        value = _new_value(change, key, settings, of_broker, setting)
        if value is None:
            settings.pop(key, None)
        else:
            resource.check(name, setting, value, effective_value({}, key, of_broker))
            settings[key] = value
    resource.check_all(settings, of_broker)
    return settings


def _new_value(
    change: ConfigChange,
    key: str,
    settings: Mapping[str, str],
    of_broker: BrokerSetting,
    setting: Setting,
) -> str | None:
    operation, value = change.operation, change.value
    if operation == ConfigOperation.DELETE:
        return None
    if operation not in tuple(ConfigOperation):
        error = f"{change.name}: operation {operation}; there are 0 to 3"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error)  # as in Kafka
    if value is None:
        raise _bad_request(f"{change.name} is set to null: delete it, or give it a value")
    if operation == ConfigOperation.SET:
        return value
    if setting.kind != LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{change.name} is no list: it can be set, not added to"
        )
    current, values = split_words(effective_value(settings, key, of_broker)), split_words(value)
    if operation == ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*current, *values]))
    return ",".join(element for element in current if element not in values)


def _check_unchanged(change: ConfigChange, fixed_value: str) -> None:
    if change.operation != ConfigOperation.SET or change.value != fixed_value:
        raise _bad_request(
            f"{change.name} can't be changed while the cluster runs: it is {fixed_value!r}"
        )


def _bad_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
