"""The rules of the APIs that are about the cluster, its settings and its users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from purgatory.cluster.api.access.asking import GROUP, Ask
from purgatory.cluster.api.access.codes import CLUSTER_REFUSED, GROUP_REFUSED, TOPIC_REFUSED
from purgatory.cluster.api.access.rule import ALLOWED, Parts, Rule
from purgatory.kafka.security.authorizer import Operation

_TOPIC_CONFIG, _GROUP_CONFIG = 2, 32


def unless_cluster(operation: Operation) -> Callable[[Ask], int]:
    """Refuse requests to those who may not do this to the cluster."""
    return partial(_refuses_cluster, operation)


def _refuses_cluster(operation: Operation, ask: Ask) -> int:
    return ALLOWED if ask.may_cluster(operation) else CLUSTER_REFUSED


def _unless_settings(operation: Operation) -> Callable[[Ask, Any], int]:
    return partial(_refuses_settings, operation)


def _refuses_settings(operation: Operation, ask: Ask, resource: Any) -> int:
    if resource.resource_type == _TOPIC_CONFIG:
        return ALLOWED if ask.may_topic(operation, resource.resource_name) else TOPIC_REFUSED
    if resource.resource_type == _GROUP_CONFIG:
        return ALLOWED if ask.may(operation, GROUP, resource.resource_name) else GROUP_REFUSED
    return _refuses_cluster(operation, ask)


def _by_cluster(operation: Operation) -> Rule:
    return Rule(unless_cluster(operation))


_ANYBODY = Rule()

CLUSTER_RULES: Mapping[int, Rule] = {
    # SaslHandshake
    17: _ANYBODY,
    # ApiVersions
    18: _ANYBODY,
    # DescribeAcls
    29: _by_cluster(Operation.DESCRIBE),
    # CreateAcls
    30: _by_cluster(Operation.ALTER),
    # DeleteAcls
    31: _by_cluster(Operation.ALTER),
    # DescribeConfigs
    32: Rule(parts=[Parts("resources", _unless_settings(Operation.DESCRIBE_CONFIGS))]),
    # AlterConfigs
    33: Rule(parts=[Parts("resources", _unless_settings(Operation.ALTER_CONFIGS))]),
    # AlterReplicaLogDirs refuses by itself: it is asked by folders, and answers by topics.
    34: _ANYBODY,
    # DescribeLogDirs
    35: _by_cluster(Operation.DESCRIBE),
    # SaslAuthenticate
    36: _ANYBODY,
    # ElectLeaders
    43: _by_cluster(Operation.ALTER),
    # IncrementalAlterConfigs
    44: Rule(parts=[Parts("resources", _unless_settings(Operation.ALTER_CONFIGS))]),
    # AlterPartitionReassignments
    45: _by_cluster(Operation.ALTER),
    # ListPartitionReassignments
    46: _by_cluster(Operation.DESCRIBE),
    # DescribeClientQuotas
    48: _by_cluster(Operation.DESCRIBE_CONFIGS),
    # AlterClientQuotas
    49: _by_cluster(Operation.ALTER_CONFIGS),
    # DescribeUserScramCredentials
    50: _by_cluster(Operation.DESCRIBE),
    # AlterUserScramCredentials
    51: _by_cluster(Operation.ALTER),
    # DescribeQuorum
    55: _by_cluster(Operation.DESCRIBE),
    # UpdateFeatures
    57: _by_cluster(Operation.ALTER),
    # DescribeCluster
    60: _ANYBODY,
    # UnregisterBroker
    64: _by_cluster(Operation.ALTER),
    # GetTelemetrySubscriptions
    71: _ANYBODY,
    # PushTelemetry
    72: _ANYBODY,
    # ListConfigResources
    74: _by_cluster(Operation.DESCRIBE_CONFIGS),
}
"""The rules by API key."""
