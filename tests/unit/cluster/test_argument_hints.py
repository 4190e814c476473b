"""Wrong names of arguments and attributes of the cluster's classes, and the nearest right ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purgatory.cluster import ClusterConfig, GroupConfig, ThreadedCluster, TopicSpec
from purgatory.cluster.listeners import Tls
from purgatory.proxy import ProxyConfig, ThreadedProxy


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (
            ClusterConfig,
            "broker",
            "ClusterConfig has no argument 'broker'; did you mean \"brokers\"?",
        ),
        (ClusterConfig, "min_in_sync_replicas", 'did you mean "min_insync_replicas"?'),
        (ClusterConfig, "kafka_verison", 'did you mean "kafka_version"?'),
        (ClusterConfig, "zzz", "there are brokers, first_broker_id, host, "),
        (GroupConfig, "max_sesion_timeout_ms", 'did you mean "max_session_timeout_ms"?'),
        (TopicSpec, "partition", 'did you mean "partitions"?'),
        (Tls, "certifcate", 'did you mean "'),
        (ProxyConfig, "too", 'did you mean "to"?'),
        (ThreadedCluster, "record", 'did you mean "recorded"?'),
        (ThreadedCluster, "brokers", "give config=ClusterConfig(brokers=...)"),
        (ThreadedProxy, "to", "give config=ProxyConfig(to=...)"),
    ],
)
def test_unknown_argument_is_refused_with_the_nearest(kind: Any, name: str, hint: str) -> None:
    with pytest.raises(TypeError) as refused:
        kind(**{name: 3})
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bootstrap_server", '; did you mean "bootstrap_servers"?'),
        ("create_topics", '; did you mean "create_topic"?'),
        ("zzz", "no attribute 'zzz'"),
    ],
)
def test_unknown_attribute_is_refused_with_the_nearest(name: str, hint: str) -> None:
    for made in (ThreadedCluster(), ThreadedProxy(ProxyConfig(to=["127.0.0.1:9092"]))):
        if name == "create_topics" and isinstance(made, ThreadedProxy):
            continue
        with pytest.raises(AttributeError) as refused:
            getattr(made, name)
        assert str(refused.value).endswith(hint)
        assert not hasattr(made, name)


def test_configuration_is_made_as_before() -> None:
    assert ClusterConfig(2).brokers == ClusterConfig(brokers=2).brokers == 2
    with pytest.raises(TypeError, match="positional"):
        TopicSpec("a", 1, 1, {}, Path())  # type: ignore[call-arg]
