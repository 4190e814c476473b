"""DescribeConfigs: the settings of topics and brokers, by the names that Kafka has for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from purgatory.cluster.broker import Broker
from purgatory.cluster.cluster_metadata import ClusterMetadata
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.topic_settings import SETTINGS, value_of

_TOPIC, _BROKER = 2, 4
_UNKNOWN_TOPIC = 3
_INVALID_REQUEST = 42
_OF_TOPIC, _OF_BROKER, _BY_DEFAULT = 1, 4, 5
_BOOLEAN, _INT = 1, 3


async def describe_configs(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell the settings of each resource, or those that are asked for."""
    body = request.body
    documented = getattr(body, "include_documentation", False)
    return {
        "throttle_time": 0,
        "results": [_resource(broker.cluster, asked, documented) for asked in body.resources],
    }


def _resource(cluster: ClusterMetadata, asked: Any, documented: bool) -> dict[str, Any]:
    name: str = asked.resource_name
    wanted: Collection[str] | None = asked.configuration_keys
    values: dict[str, Any] = {
        "error_code": 0,
        "error_message": None,
        "resource_type": asked.resource_type,
        "resource_name": name,
        "configs": (),
    }
    if asked.resource_type == _TOPIC:
        if name not in cluster.controller.topics:
            return {**values, "error_code": _UNKNOWN_TOPIC}
        found = _of_topic(cluster, name)
    elif asked.resource_type == _BROKER and name in map(str, cluster.brokers):
        found = _of_broker(cluster, name)
    else:
        return {
            **values,
            "error_code": _INVALID_REQUEST,
            "error_message": f"{name!r} has no settings: topics and brokers have",
        }
    return {
        **values,
        "configs": [
            {**config, "documentation": config["documentation"] if documented else None}
            for config in found
            if wanted is None or config["name"] in wanted
        ],
    }


def _of_topic(cluster: ClusterMetadata, topic: str) -> Iterator[dict[str, Any]]:
    own = cluster.settings_of(topic)
    for name, setting in SETTINGS.items():
        source = _BY_DEFAULT
        if name in own:
            source = _OF_TOPIC
        elif cluster.setting(name) is not None:
            source = _OF_BROKER
        value = value_of(own, name, cluster.setting)
        yield _config(name, value, source, setting.kind, setting.doc)


def _of_broker(cluster: ClusterMetadata, broker_id: str) -> Iterator[dict[str, Any]]:
    yield _config("broker.id", broker_id, _OF_BROKER, _INT, "The broker's number.")
    for name, value in cluster.broker_settings().items():
        kind = _BOOLEAN if value in ("true", "false") else _INT
        yield _config(name, value, _OF_BROKER, kind, "As in Kafka.")
    for name, setting in SETTINGS.items():
        if setting.of_broker is not None:
            source = _BY_DEFAULT if cluster.setting(name) is None else _OF_BROKER
            value = value_of({}, name, cluster.setting)
            yield _config(setting.of_broker, value, source, setting.kind, setting.doc)


def _config(name: str, value: str, source: int, kind: int, doc: str) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": True,
        "config_source": source,
        "is_default": source == _BY_DEFAULT,
        "is_sensitive": False,
        "synonyms": (),
        "config_type": kind,
        "documentation": doc,
    }
