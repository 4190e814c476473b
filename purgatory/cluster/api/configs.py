"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

`purgatory.kafka.settings.alter_configs` validates changes. A change is in force, on all live
brokers, before the response is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from purgatory.cluster.api.log_dirs import log_dir_of
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.metadata import ClusterMetadata
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import ErrorCode, KafkaError
from purgatory.kafka.features import ELIGIBLE_LEADERS
from purgatory.kafka.settings.alter_configs import (
    BROKER_KEYS,
    TOPIC_CONFIGS,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    changed_settings,
)
from purgatory.kafka.settings.broker_settings import STATIC_SETTINGS, broker_configs
from purgatory.kafka.settings.client_metrics import (
    CLIENT_METRICS_CONFIGS,
    CLIENT_METRICS_SETTINGS,
)
from purgatory.kafka.settings.group_settings import (
    GROUP_SETTINGS,
    GroupConfig,
    default_group_settings,
    group_configs,
)
from purgatory.kafka.settings.setting import INT, LIST, PASSWORD, STRING, Setting
from purgatory.kafka.settings.topic_settings import (
    BROKER_SETTINGS,
    SETTINGS,
    SMALL_SEGMENTS,
    TOPIC_SETTINGS,
    BrokerSetting,
)
from purgatory.kafka.settings.unused_settings import UNUSED_OF_LISTENERS, UNUSED_STATIC
from purgatory.kafka.topics import invalid_topic_name_reason

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
(
    _DYNAMIC_TOPIC_CONFIG,
    _DYNAMIC_BROKER_CONFIG,
    _DYNAMIC_DEFAULT_BROKER_CONFIG,
    _STATIC_BROKER_CONFIG,
    _DEFAULT_CONFIG,
) = 1, 2, 3, 4, 5
_CLIENT_METRICS_CONFIG, _DYNAMIC_GROUP_CONFIG = 7, 8
_ALL_BROKERS = ""
_MIN_INSYNC = "min.insync.replicas"
_THROTTLES = {"follower.replication.throttled.rate", "leader.replication.throttled.rate"}
"""Settings of brokers that are described once they are set."""
_UNSET_ON_BROKERS = _THROTTLES | {"flush.ms", "retention.ms", "segment.jitter.ms", "segment.ms"}
"""Settings without a default: brokers have these times in hours, too."""
_GROUP_DEFAULTS = default_group_settings(GroupConfig())
_Known = tuple[int, str, str]
"""A source, the name that the setting has there, and its value."""


class _Settings(NamedTuple):
    """The settings of one resource, for AlterConfigs.

    Args:
        now: the current settings.
        of: the definitions of all that can be set.
        of_broker: the broker's settings, used for those that aren't set.
        put: replaces the current settings; False if they can't be saved.
    """

    now: Mapping[str, str]
    of: ConfigResource
    of_broker: BrokerSetting
    put: Callable[[Mapping[str, str]], bool]


# Looking.


async def describe_configs(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return the settings of each resource, or those that are requested."""
    body = request.body
    documented = getattr(body, "include_documentation", False)
    return {
        "throttle_time": 0,
        "results": [
            _described(broker, requested, body.include_synonyms, documented)
            for requested in body.resources
        ],
    }


def _described(
    broker: BrokerServices, requested: Any, synonyms: bool, documented: bool
) -> dict[str, Any]:
    requested_keys: Collection[str] = requested.configuration_keys or ()  # None, or none: all
    values: dict[str, Any] = {
        "error_code": 0,
        "error_message": "",  # as in Kafka
        "resource_type": requested.resource_type,
        "resource_name": requested.resource_name,
        "configs": (),
    }
    try:
        found = _shown(broker, requested.resource_type, requested.resource_name)
    except KafkaError as error:
        return {**values, "error_code": int(error.code), "error_message": error.message}
    return {
        **values,
        "configs": [
            {
                **config,
                "synonyms": config["synonyms"] if synonyms else (),
                "documentation": config["documentation"] if documented else None,
            }
            for config in found
            if not requested_keys or config["name"] in requested_keys
        ],
    }


def _shown(broker: BrokerServices, kind: int, name: str) -> Sequence[Mapping[str, Any]]:
    """Return the settings of a resource, or former ones if this broker is behind."""
    current, delays = list(_configs_of(broker, kind, name)), broker.cluster.delays
    old = None if delays is None else delays.old_config(broker.broker_id, kind, name)
    return current if old is None else old


def _configs_of(broker: BrokerServices, kind: int, name: str) -> Iterator[dict[str, Any]]:
    cluster = broker.cluster
    _check_resource(broker, kind, name)
    if kind == _TOPIC:
        return described_topic_settings(broker, cluster.settings_of(name))
    if kind == _GROUP:
        return _group_configs(cluster, name)
    if kind == _CLIENT_METRICS:
        return _client_metrics_configs(cluster, name)
    return _default_broker_configs(cluster) if name == _ALL_BROKERS else _broker_configs(broker)


def _check_resource(broker: BrokerServices, kind: int, name: str) -> None:
    cluster = broker.cluster
    if kind == _TOPIC:
        invalid = invalid_topic_name_reason(name)
        if invalid is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, invalid)
        if name not in cluster.controller.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    elif kind in (_GROUP, _CLIENT_METRICS):
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a group and a subscription have a name")
    elif kind != _BROKER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{name!r} is a resource of type {kind}: topics ({_TOPIC}), brokers ({_BROKER}), "
            f"clients' metrics ({_CLIENT_METRICS}) and groups ({_GROUP}) have settings",
        )
    elif name not in (_ALL_BROKERS, str(broker.broker_id)):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"a broker knows its own settings, and those of all brokers, called '': this is "
            f"{broker.broker_id}, and {name!r} was asked for",
        )


def described_topic_settings(
    broker: BrokerServices, own: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield all settings of a topic that has its own values for some of them."""
    shown = {**SETTINGS, SMALL_SEGMENTS: TOPIC_SETTINGS[SMALL_SEGMENTS]}
    for name, setting in (shown if SMALL_SEGMENTS in own else SETTINGS).items():
        known = list(_known_of_broker(broker.cluster, broker.broker_id, name))
        if name in own:
            known.insert(0, (_DYNAMIC_TOPIC_CONFIG, name, own[name]))
        yield _config(name, known, setting.kind, setting.doc, False, setting.default)


def _group_configs(cluster: ClusterMetadata, group_id: str) -> Iterator[dict[str, Any]]:
    own = cluster.controller.group_settings.get(group_id, {})
    defaults = default_group_settings(cluster.config.groups)
    for name, setting in GROUP_SETTINGS.items():
        is_default = defaults[name] == _GROUP_DEFAULTS[name]
        source = _DEFAULT_CONFIG if is_default else _STATIC_BROKER_CONFIG
        known = [(source, setting.of_broker or name, defaults[name])]
        if name in own:
            known.insert(0, (_DYNAMIC_GROUP_CONFIG, name, own[name]))
        yield _config(name, known, setting.kind, setting.doc, setting.fixed)


def _client_metrics_configs(cluster: ClusterMetadata, name: str) -> Iterator[dict[str, Any]]:
    own = cluster.controller.client_metrics.get(name, {})
    for key, setting in CLIENT_METRICS_SETTINGS.items():
        known = [(_CLIENT_METRICS_CONFIG, key, own[key])] if key in own else []
        yield _config(key, known, setting.kind, setting.doc, False, setting.default)


def _broker_configs(broker: BrokerServices) -> Iterator[dict[str, Any]]:
    cluster, broker_id = broker.cluster, broker.broker_id
    name = str(broker_id)
    id_known = [(_STATIC_BROKER_CONFIG, "broker.id", name), (_DEFAULT_CONFIG, "broker.id", "-1")]
    yield _config("broker.id", id_known, INT, "The broker's number.", True)
    for own, (value, kind) in _own_settings(broker).items():
        known = [(_STATIC_BROKER_CONFIG, own, value)]
        yield _config(own, known, kind, "The broker's own.", own != "listeners")
    rack = cluster.config.rack(broker_id)
    racks = [] if rack is None else [(_STATIC_BROKER_CONFIG, "broker.rack", rack)]
    yield _config("broker.rack", racks, STRING, "Where the broker is.", True)
    values = cluster.broker_settings()
    static: Mapping[str, Setting] = {**UNUSED_STATIC, **UNUSED_OF_LISTENERS, **STATIC_SETTINGS}
    for own, setting in static.items():
        default = setting.default
        told = values.get(own, default)
        known = [] if default is None else [(_DEFAULT_CONFIG, own, default)]
        if told is not None and told != default:
            known.insert(0, (_STATIC_BROKER_CONFIG, own, told))
        yield _config(own, known, setting.kind, setting.doc, own not in UNUSED_OF_LISTENERS)
    for own, key in BROKER_KEYS.items():
        setting = BROKER_SETTINGS[key]
        known = list(_known_of_broker(cluster, broker_id, key))
        if known or key not in _THROTTLES:
            yield _config(own, known, setting.kind, setting.doc, False, None)


def _own_settings(broker: BrokerServices) -> Mapping[str, tuple[str, int]]:
    """Return the settings that each broker has for itself: the values and their types."""
    places = ",".join(
        f"{listener.name}://{broker.cluster.brokers[broker.broker_id].endpoint(listener)}"
        for listener in broker.cluster.config.all_listeners
    )
    return {
        "node.id": (str(broker.broker_id), INT),
        "advertised.listeners": (places, LIST),
        "listeners": (places, LIST),
        "process.roles": ("broker,controller", LIST),
        "log.dirs": (log_dir_of(broker), LIST),
    }


def _default_broker_configs(cluster: ClusterMetadata) -> Iterator[dict[str, Any]]:
    """As in Kafka: nothing but what was set for all brokers."""
    for own, key in BROKER_KEYS.items():
        value = _default_of_brokers(cluster, key)
        if value is not None:
            setting = BROKER_SETTINGS[key]
            known = [(_DYNAMIC_DEFAULT_BROKER_CONFIG, own, value)]
            yield _config(own, known, setting.kind, setting.doc, False)


def _default_of_brokers(cluster: ClusterMetadata, key: str) -> str | None:
    value = cluster.controller.default_settings.get(key)
    # As in Kafka since 4.1: with eligible leaders it is set for all brokers, whatever it is.
    return cluster.setting_at_start(key) if value is None and key == _MIN_INSYNC else value


def _known_of_broker(cluster: ClusterMetadata, broker_id: int, key: str) -> Iterator[_Known]:
    """Yield what a broker knows of a setting of topics; the first is in force."""
    setting = BROKER_SETTINGS[key]
    name = setting.of_broker
    if name is None:
        return
    broker_value = cluster.controller.broker_settings.get(broker_id, {}).get(key)
    at_start, default = cluster.setting_at_start(key), setting.default
    values = [
        (_DYNAMIC_BROKER_CONFIG, name, broker_value),
        (_DYNAMIC_DEFAULT_BROKER_CONFIG, name, _default_of_brokers(cluster, key)),
        (
            _STATIC_BROKER_CONFIG,
            name,
            None if key == _MIN_INSYNC or at_start == default else at_start,
        ),
        (_DEFAULT_CONFIG, name, None if key in _UNSET_ON_BROKERS else default),
    ]
    yield from ((source, called, value) for source, called, value in values if value is not None)


def _config(
    name: str,
    known: Sequence[_Known],
    kind: int,
    doc: str,
    read_only: bool,
    default: str | None = None,
) -> dict[str, Any]:
    source, _, value = known[0] if known else (_DEFAULT_CONFIG, name, default)
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": source,
        "is_default": source == _DEFAULT_CONFIG,
        "is_sensitive": kind == PASSWORD,
        "synonyms": [
            {"name": called, "value": value, "source": source} for source, called, value in known
        ],
        "config_type": kind,
        "documentation": doc,
    }


async def list_config_resources(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Return what has settings: of the types that are requested, or, from version 1 on, of all."""
    controller = broker.cluster.controller
    names: Mapping[int, Iterable[object]] = {
        _TOPIC: controller.topics,
        _BROKER: broker.cluster.brokers,
        _BROKER_LOGGER: broker.cluster.brokers,
        _CLIENT_METRICS: controller.client_metrics,
        _GROUP: (group for group, own in controller.group_settings.items() if own),
    }
    requested = getattr(request.body, "resource_types", (_CLIENT_METRICS,)) or names
    unknown = set(requested) - set(names)
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.UNSUPPORTED_VERSION if unknown else 0,
        "config_resources": [
            {"resource_name": str(name), "resource_type": kind}
            for kind in sorted(set(requested))
            for name in names.get(kind, ())
            if not unknown
        ],
    }


# Changing.


async def alter_configs(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Set the requested settings, and reset all others to their defaults."""

    def change(requested: Any, settings: _Settings) -> dict[str, str]:
        changes = [ConfigChange(config.name, config.value) for config in requested.configs]
        return changed_settings({}, changes, settings.of, settings.of_broker)

    return _altered(broker, request, change)


async def incremental_alter_configs(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """Change the requested settings, and no others."""

    def change(requested: Any, settings: _Settings) -> dict[str, str]:
        changes = [
            ConfigChange(config.name, config.value, config.config_operation)
            for config in requested.configs
        ]
        return changed_settings(settings.now, changes, settings.of, settings.of_broker)

    return _altered(broker, request, change)


_Change = Callable[[Any, _Settings], dict[str, str]]


def _altered(broker: BrokerServices, request: Request, change: _Change) -> dict[str, Any]:
    body = request.body
    counts = Counter(
        (requested.resource_type, requested.resource_name) for requested in body.resources
    )
    return {
        "throttle_time": 0,
        "responses": [
            _altered_resource(
                broker,
                requested,
                counts[(requested.resource_type, requested.resource_name)],
                body.validate_only,
                change,
            )
            for requested in body.resources
        ],
    }


def _altered_resource(
    broker: BrokerServices, requested: Any, count: int, validate_only: bool, change: _Change
) -> dict[str, Any]:
    name = requested.resource_name
    values = {"resource_type": requested.resource_type, "resource_name": name}
    try:
        if count > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name!r} is there {count} times")
        if requested.resource_type == _TOPIC and not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "no settings are those of all topics")
        if requested.resource_type == _BROKER_LOGGER and name == str(broker.broker_id):
            raise KafkaError(ErrorCode.INVALID_CONFIG, "there are no loggers")
        settings = _settings_of(broker, requested.resource_type, name)
        changed = change(requested, settings)
        if requested.resource_type == _BROKER:
            _check_min_insync(broker.cluster, requested, settings.now, changed)
        delays = None if validate_only else broker.cluster.delays
        old = None if delays is None else list(_configs_of(broker, requested.resource_type, name))
        if not validate_only and not settings.put(changed):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the change can't be saved")
        if delays is not None and old is not None:
            delays.begin_config(requested.resource_type, name, old)
    except KafkaError as error:
        return {**values, "error_code": int(error.code), "error_message": error.message}
    return {**values, "error_code": 0, "error_message": None}


def _check_min_insync(
    cluster: ClusterMetadata, requested: Any, former: Mapping[str, str], changed: Mapping[str, str]
) -> None:
    """Refuse what Kafka refuses where eligible leaders are on: they are counted cluster-wide."""
    if not cluster.controller.feature_levels.get(ELIGIBLE_LEADERS):
        return
    if requested.resource_name != _ALL_BROKERS:
        if former.get(_MIN_INSYNC) != changed.get(_MIN_INSYNC):
            error = f"{_MIN_INSYNC} is that of all brokers: set it for ''"
            raise KafkaError(ErrorCode.INVALID_CONFIG, error)
    elif _MIN_INSYNC not in changed:
        operations = {
            config.name: getattr(config, "config_operation", None) for config in requested.configs
        }
        replaces = all(operation is None for operation in operations.values())
        if replaces or operations.get(_MIN_INSYNC) == ConfigOperation.DELETE:
            error = f"{_MIN_INSYNC} of all brokers can't be removed"
            raise KafkaError(ErrorCode.INVALID_CONFIG, error)


def _settings_of(broker: BrokerServices, kind: int, name: str) -> _Settings:
    cluster = broker.cluster
    controller = cluster.controller
    _check_resource(broker, kind, name)
    if kind == _TOPIC:
        return _Settings(
            cluster.settings_of(name),
            TOPIC_CONFIGS,
            broker.setting,
            lambda settings: controller.change_topic_settings(name, settings),
        )
    if kind == _GROUP:
        return _Settings(
            controller.group_settings.get(name, {}),
            group_configs(cluster.config.groups),
            default_group_settings(cluster.config.groups).get,
            lambda settings: controller.change_group_settings(name, settings),
        )
    if kind == _CLIENT_METRICS:
        return _Settings(
            controller.client_metrics.get(name, {}),
            CLIENT_METRICS_CONFIGS,
            lambda key: CLIENT_METRICS_SETTINGS[key].default,
            lambda settings: controller.change_client_metrics(name, settings),
        )
    broker_id = None if name == _ALL_BROKERS else int(name)
    own = {key: value for key, (value, _) in _own_settings(broker).items()}
    now = (
        controller.default_settings
        if broker_id is None
        else controller.broker_settings.get(broker_id, {})
    )
    return _Settings(
        now,
        broker_configs({"broker.id": name, **own, **cluster.broker_settings()}, now.get),
        cluster.setting_at_start,
        lambda settings: controller.change_broker_settings(broker_id, settings),
    )
