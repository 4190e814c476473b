"""DescribeConfigs: the settings of topics and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from purgatory.broker.connection import Answer, Connection
from purgatory.broker.topic_settings import SETTINGS, value_of
from purgatory.broker.wire import Request

if TYPE_CHECKING:
    from purgatory.broker.broker import Broker
    from purgatory.broker.cluster import Cluster

_TOPIC, _BROKER = 2, 4
_UNKNOWN_TOPIC = 3
_INVALID_REQUEST = 42
_OF_TOPIC, _OF_BROKER, _BY_DEFAULT = 1, 4, 5


async def describe_configs(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell the settings of each resource, or those that are asked for."""
    body = request.body
    documented = getattr(body, "include_documentation", False)
    return {
        "throttle_time": 0,
        "results": [_resource(broker.cluster, asked, documented) for asked in body.resources],
    }


def _resource(cluster: Cluster, asked: Any, documented: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "error_code": 0,
        "error_message": None,
        "resource_type": asked.resource_type,
        "resource_name": asked.resource_name,
        "configs": (),
    }
    own: Mapping[str, str] = {}
    if asked.resource_type == _TOPIC:
        topic = cluster.controller.topics.get(asked.resource_name)
        if topic is None:
            return {**values, "error_code": _UNKNOWN_TOPIC}
        own = topic.configs
    elif asked.resource_type != _BROKER or asked.resource_name not in map(str, cluster.brokers):
        return {
            **values,
            "error_code": _INVALID_REQUEST,
            "error_message": f"{asked.resource_name!r} has no settings: topics and brokers have",
        }
    wanted = asked.configuration_keys
    return {
        **values,
        "configs": [
            _config(cluster, own, name, documented)
            for name in SETTINGS
            if wanted is None or name in wanted
        ],
    }


def _config(
    cluster: Cluster, own: Mapping[str, str], name: str, documented: bool
) -> dict[str, Any]:
    source = _BY_DEFAULT
    if name in own:
        source = _OF_TOPIC
    elif cluster.setting(name) is not None:
        source = _OF_BROKER
    return {
        "name": name,
        "value": value_of(own, name, cluster.setting),
        "read_only": True,
        "config_source": source,
        "is_default": source == _BY_DEFAULT,
        "is_sensitive": False,
        "synonyms": (),
        "config_type": SETTINGS[name].kind,
        "documentation": SETTINGS[name].doc if documented else None,
    }
