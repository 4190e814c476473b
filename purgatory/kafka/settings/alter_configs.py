"""What AlterConfigs and IncrementalAlterConfigs make of the settings of a topic or a broker.

Settings are kept by their names as a topic has them; a broker has other names for most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.settings.broker_settings import OF_LISTENERS, UNCHANGEABLE
from purgatory.kafka.settings.topic_settings import (
    LIST,
    SETTINGS,
    SETTINGS_OF_BROKERS,
    STRING,
    OfBroker,
    Setting,
    check_value,
    unknown_setting,
    value_of,
    words_of,
)


class ConfigOperation(IntEnum):
    """What is done with a setting, numbered as on Kafka's wire."""

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
    """What settings something has.

    Args:
        kind: "topics", "brokers" or "groups".
        keys: the names under which they are kept, by the names that they have here.
        unchangeable: what cannot be changed while the cluster runs, and what it is.
        settings: what is known of each, by key.
        check: refuses values that can't be, as ``check_value`` does.
        takes_any: whether settings of other names are kept, too: Kafka's brokers do, for the sake
            of plugins. Their keys begin with ``CUSTOM``.
    """

    kind: str
    keys: Mapping[str, str]
    unchangeable: Mapping[str, str]
    settings: Mapping[str, Setting] = SETTINGS
    check: Callable[[str, Setting, str, str], None] = check_value
    takes_any: bool = False


CUSTOM = "custom:"
_CUSTOM = Setting(None, STRING, None, "Not known; nothing here goes by it.")
OF_TOPICS = ConfigResource("topics", {name: name for name in SETTINGS}, {})

KEYS_OF_BROKERS: Mapping[str, str] = {
    setting.of_broker: name
    for name, setting in SETTINGS_OF_BROKERS.items()
    if setting.of_broker is not None
}
"""The settings of brokers by the names that they have there: most are defaults of topics."""


def changed_settings(
    now: Mapping[str, str],
    changes: Sequence[ConfigChange],
    of: ConfigResource,
    of_broker: OfBroker,
) -> dict[str, str]:
    """Return the settings after all changes; the former ones stay as they are. O(changes).

    Args:
        now: what there is. A replacement of all, AlterConfigs, begins with nothing.
        changes: each setting at most once.
        of: what may be changed.
        of_broker: what holds where nothing is set.

    Raises:
        KafkaError: INVALID_CONFIG or INVALID_REQUEST: there is no such setting, it can't have the
            value, it can't be changed, or not in this way.
    """
    counts = Counter(change.name for change in changes)
    settings = dict(now)
    for change in changes:
        name = change.name
        if counts[name] > 1:
            raise _bad_request(f"{name} is named {counts[name]} times: name it once")
        if name in of.unchangeable:
            _check_is_so(change, of.unchangeable[name])
            continue
        key, setting = _known(name, of)
        value = _new_value(change, key, settings, of_broker, setting)
        if value is None:
            settings.pop(key, None)
        else:
            if setting is not _CUSTOM:
                of.check(name, setting, value, value_of({}, key, of_broker))
            settings[key] = value
    return settings


def _known(name: str, of: ConfigResource) -> tuple[str, Setting]:
    """Return by which key a setting is kept, and what is known of it."""
    key = of.keys.get(name)
    if key is not None:
        return key, of.settings[key]
    if not of.takes_any:
        raise unknown_setting(name, of.kind, of.keys)
    if name in UNCHANGEABLE or name.startswith(OF_LISTENERS):
        raise _bad_request(f"{name} can't be changed while the cluster runs")
    return CUSTOM + name, _CUSTOM


def _new_value(
    change: ConfigChange,
    key: str,
    settings: Mapping[str, str],
    of_broker: OfBroker,
    setting: Setting,
) -> str | None:
    operation, value = change.operation, change.value
    if operation == ConfigOperation.DELETE:
        return None
    if operation not in tuple(ConfigOperation):
        raise _bad_request(f"{change.name}: operation {operation}; there are 0 to 3")
    if value is None:
        raise _bad_request(f"{change.name} is set to null: delete it, or give it a value")
    if operation == ConfigOperation.SET:
        return value
    if setting.kind != LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{change.name} is no list: it can be set, not added to"
        )
    there, given = words_of(value_of(settings, key, of_broker)), words_of(value)
    if operation == ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*there, *given]))
    return ",".join(one for one in there if one not in given)


def _check_is_so(change: ConfigChange, as_it_is: str) -> None:
    if change.operation != ConfigOperation.SET or change.value != as_it_is:
        raise _bad_request(
            f"{change.name} can't be changed while the cluster runs: it is {as_it_is!r}"
        )


def _bad_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
