"""The rules of the APIs that read, write and describe topics.

The rules of the APIs of groups and of what they have committed.

The rules of the APIs that are about the cluster, its settings and its users.

The rules of the APIs of producers and transactions.

Who may ask each API for what, as in Kafka: a rule for each, by API key.

There are rules for APIs that nobody serves yet, too: one without a rule must not be served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from purgatory.cluster.api.authorization import (
    ALLOWED,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    AuthorizationContext,
    Parts,
    Rule,
    Seen,
)
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.security.authorizer import Operation

_CONSUMER = -1


def unless_topic(operation: Operation) -> Callable[[AuthorizationContext, Any], int]:
    """Refuse parts that are about topics to which the client may not do this."""
    return partial(_refuses_topic, operation)


def _refuses_topic(operation: Operation, ask: AuthorizationContext, part: Any) -> int:
    topic = ask.topic_of(part)
    if topic is None:
        return ALLOWED  # an id that no topic has: the handler says so
    return ALLOWED if ask.may_topic(operation, topic) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _refuses_to_tell(ask: AuthorizationContext, asked: Any) -> int:
    """A topic that Metadata is to tell about, or to make."""
    code = _refuses_topic(Operation.DESCRIBE, ask, asked)
    if code and asked.name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID  # as for ids that no topic has
    cluster = ask.broker.cluster
    if code or asked.name is None or asked.name in cluster.controller.topics:
        return code
    makes = cluster.config.auto_create_topics and getattr(
        ask.body, "allow_auto_topic_creation", True
    )
    return _refuses_to_create(ask, asked) if makes else ALLOWED


def _refuses_to_create(ask: AuthorizationContext, asked: Any) -> int:
    may = ask.may_cluster(Operation.CREATE) or ask.may_topic(Operation.CREATE, asked.name)
    return ALLOWED if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _refuses_to_delete(ask: AuthorizationContext, asked: Any) -> int:
    # DeleteTopics up to version 5 has bare names.
    if isinstance(asked, str):
        return (
            ALLOWED
            if ask.may_topic(Operation.DELETE, asked)
            else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
    return _refuses_topic(Operation.DELETE, ask, asked)


def _refuses_transaction(ask: AuthorizationContext) -> int:
    transactional_id = ask.body.transactional_id
    if transactional_id is None or ask.may(Operation.WRITE, TRANSACTIONAL_ID, transactional_id):
        return ALLOWED
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _refuses_replica(ask: AuthorizationContext) -> int:
    """Who fetches as a replica is one of the cluster's own."""
    state = getattr(ask.body, "replica_state", None)
    replica_id = getattr(ask.body, "replica_id", _CONSUMER) if state is None else state.replica_id
    may = replica_id == _CONSUMER or ask.may_cluster(Operation.CLUSTER_ACTION)
    return ALLOWED if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _refuses_epochs(ask: AuthorizationContext, part: Any) -> int:
    if ask.may_cluster(Operation.CLUSTER_ACTION):
        return ALLOWED
    return _refuses_topic(Operation.DESCRIBE, ask, part)


def shown_topic(ask: AuthorizationContext, topic: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Show topics that the client may describe; and what was wrong with those it asked for."""
    name = topic["name"]
    shown = topic["error_code"] or name is None or ask.may_topic(Operation.DESCRIBE, name)
    return topic if shown else None


_METADATA = Rule(
    parts=[Parts("topics", _refuses_to_tell)],
    seen=[Seen("topics", shown_topic)],
    answers_none=True,
)

TOPIC_RULES: Mapping[int, Rule] = {
    # Produce and Fetch look at their topics themselves: their answers are bytes already.
    # Produce
    0: Rule(_refuses_transaction),
    # Fetch
    1: Rule(_refuses_replica),
    # ListOffsets
    2: Rule(parts=[Parts("topics", unless_topic(Operation.DESCRIBE))]),
    # Metadata
    3: _METADATA,
    # CreateTopics
    19: Rule(parts=[Parts("topics", _refuses_to_create)]),
    # DeleteTopics
    20: Rule(
        parts=[
            Parts("topic_names", _refuses_to_delete),
            Parts("topics", _refuses_to_delete),
        ]
    ),
    # DeleteRecords
    21: Rule(parts=[Parts("topics", unless_topic(Operation.DELETE))]),
    # OffsetForLeaderEpoch
    23: Rule(parts=[Parts("topics", _refuses_epochs)]),
    # CreatePartitions
    37: Rule(parts=[Parts("topics", unless_topic(Operation.ALTER))]),
    # DescribeProducers
    61: Rule(parts=[Parts("topics", unless_topic(Operation.READ))]),
    # DescribeTopicPartitions
    75: Rule(
        parts=[Parts("topics", unless_topic(Operation.DESCRIBE))],
        seen=[Seen("topics", shown_topic)],
    ),
}
"""The rules by API key."""

_GROUP_KEY, _TRANSACTION_KEY = 0, 1


def unless_group(operation: Operation) -> Callable[[AuthorizationContext], int]:
    """Refuse requests of groups to which the client may not do this."""
    return partial(_refuses_group, operation)


def _refuses_group(operation: Operation, ask: AuthorizationContext) -> int:
    return (
        ALLOWED
        if ask.may(operation, GROUP, ask.body.group_id)
        else ErrorCode.GROUP_AUTHORIZATION_FAILED
    )


def unless_named_group(operation: Operation) -> Callable[[AuthorizationContext, Any], int]:
    """Refuse parts that are groups to which the client may not do this."""
    return partial(_refuses_named_group, operation)


def _refuses_named_group(operation: Operation, ask: AuthorizationContext, part: Any) -> int:
    group_id = part if isinstance(part, str) else part.group_id
    return ALLOWED if ask.may(operation, GROUP, group_id) else ErrorCode.GROUP_AUTHORIZATION_FAILED


def _refuses_key(ask: AuthorizationContext, key: str, key_type: int) -> int:
    """A key whose coordinator is to be found."""
    if key_type == _GROUP_KEY:
        return (
            ALLOWED
            if ask.may(Operation.DESCRIBE, GROUP, key)
            else ErrorCode.GROUP_AUTHORIZATION_FAILED
        )
    if key_type == _TRANSACTION_KEY:
        may = ask.may(Operation.DESCRIBE, TRANSACTIONAL_ID, key)
        return ALLOWED if may else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return (
        ALLOWED
        if ask.may_cluster(Operation.CLUSTER_ACTION)
        else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    )


def _refuses_to_find(ask: AuthorizationContext) -> int:
    """FindCoordinator up to version 3 has one key."""
    body = ask.body
    if not hasattr(body, "key"):
        return ALLOWED
    return _refuses_key(ask, body.key, getattr(body, "key_type", _GROUP_KEY))


def _refuses_offsets(ask: AuthorizationContext) -> int:
    """OffsetFetch up to version 7 is about one group."""
    if not hasattr(ask.body, "group_id"):
        return ALLOWED
    return _refuses_group(Operation.DESCRIBE, ask)


def _refuses_subscription(ask: AuthorizationContext) -> int:
    """A member of a group that says what it reads has to be allowed to know of that."""
    code = _refuses_group(Operation.READ, ask)
    topics = getattr(ask.body, "subscribed_topic_names", None) or ()
    if code or all(ask.may_topic(Operation.DESCRIBE, topic) for topic in topics):
        return code
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _shown_group(ask: AuthorizationContext, group: Mapping[str, Any]) -> Mapping[str, Any] | None:
    may = ask.may_cluster(Operation.DESCRIBE) or ask.may(
        Operation.DESCRIBE, GROUP, group["group_id"]
    )
    return group if may else None


def _shown_offsets(ask: AuthorizationContext, group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of what a group has committed, show only topics that the client may describe.

    Those that it asked for by name are refused, the others of a question for all are left out.
    """
    named = _topics_asked_for(ask.body, group["group_id"])
    topics = []
    for topic in group["topics"]:
        name = ask.topic_told(topic)
        if name is None or ask.may_topic(Operation.DESCRIBE, name):
            topics.append(topic)
        elif named:
            topics.append({**topic, "partitions": [_hidden(one) for one in topic["partitions"]]})
    return {**group, "topics": topics}


def _topics_asked_for(body: Any, group_id: str) -> bool:
    return any(one.topics is not None for one in body.groups if one.group_id == group_id)


def _hidden(partition: Mapping[str, Any]) -> Mapping[str, Any]:
    nothing = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}
    return {**partition, **nothing, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def _shown_committed(
    ask: AuthorizationContext, topic: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    return topic if ask.may_topic(Operation.DESCRIBE, topic["name"]) else None


_MEMBER = Rule(unless_group(Operation.READ))
_SUBSCRIBER = Rule(_refuses_subscription)
_READ_PARTS = [Parts("topics", unless_topic(Operation.READ))]
_DESCRIBE = unless_named_group(Operation.DESCRIBE)

GROUP_RULES: Mapping[int, Rule] = {
    # OffsetCommit
    8: Rule(unless_group(Operation.READ), _READ_PARTS),
    # OffsetFetch
    9: Rule(
        _refuses_offsets,
        [
            Parts("topics", unless_topic(Operation.DESCRIBE)),
            Parts("groups", _DESCRIBE),
        ],
        [Seen("topics", _shown_committed), Seen("groups", _shown_offsets)],
    ),
    # FindCoordinator
    10: Rule(
        _refuses_to_find,
        [
            Parts(
                "coordinator_keys",
                lambda ask, key: _refuses_key(ask, key, ask.body.key_type),
            )
        ],
    ),
    # JoinGroup
    11: _MEMBER,
    # Heartbeat
    12: _MEMBER,
    # LeaveGroup
    13: _MEMBER,
    # SyncGroup
    14: _MEMBER,
    # DescribeGroups
    15: Rule(parts=[Parts("groups", _DESCRIBE)]),
    # ListGroups
    16: Rule(seen=[Seen("groups", _shown_group)]),
    # DeleteGroups
    42: Rule(parts=[Parts("groups_names", unless_named_group(Operation.DELETE))]),
    # OffsetDelete
    47: Rule(unless_group(Operation.DELETE), _READ_PARTS),
    # ConsumerGroupHeartbeat
    68: _SUBSCRIBER,
    # ConsumerGroupDescribe
    69: Rule(parts=[Parts("group_ids", _DESCRIBE)]),
    # ShareGroupHeartbeat
    76: _SUBSCRIBER,
    # ShareGroupDescribe
    77: Rule(parts=[Parts("group_ids", _DESCRIBE)]),
    # ShareFetch
    78: Rule(
        unless_group(Operation.READ),
        [Parts("topics", unless_topic(Operation.READ))],
        answers_none=True,
    ),
    # ShareAcknowledge
    79: Rule(
        unless_group(Operation.READ),
        [Parts("topics", unless_topic(Operation.READ))],
        answers_none=True,
    ),
    # DescribeShareGroupOffsets
    90: Rule(parts=[Parts("groups", _DESCRIBE)]),
    # AlterShareGroupOffsets
    91: Rule(
        unless_group(Operation.READ),
        [Parts("topics", unless_topic(Operation.READ))],
    ),
    # DeleteShareGroupOffsets
    92: Rule(
        unless_group(Operation.DELETE),
        [Parts("topics", unless_topic(Operation.READ))],
    ),
}
"""The rules by API key."""

_TOPIC_CONFIG, _GROUP_CONFIG = 2, 32


def unless_cluster(operation: Operation) -> Callable[[AuthorizationContext], int]:
    """Refuse requests to those who may not do this to the cluster."""
    return partial(_refuses_cluster, operation)


def _refuses_cluster(operation: Operation, ask: AuthorizationContext) -> int:
    return ALLOWED if ask.may_cluster(operation) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _unless_settings(operation: Operation) -> Callable[[AuthorizationContext, Any], int]:
    return partial(_refuses_settings, operation)


def _refuses_settings(operation: Operation, ask: AuthorizationContext, resource: Any) -> int:
    if resource.resource_type == _TOPIC_CONFIG:
        return (
            ALLOWED
            if ask.may_topic(operation, resource.resource_name)
            else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
    if resource.resource_type == _GROUP_CONFIG:
        return (
            ALLOWED
            if ask.may(operation, GROUP, resource.resource_name)
            else ErrorCode.GROUP_AUTHORIZATION_FAILED
        )
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


def _code(ask: AuthorizationContext, operation: Operation, transactional_id: str) -> int:
    may = ask.may(operation, TRANSACTIONAL_ID, transactional_id)
    return ALLOWED if may else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _refuses_write(ask: AuthorizationContext) -> int:
    return _code(ask, Operation.WRITE, ask.body.transactional_id)


def _refuses_producer(ask: AuthorizationContext) -> int:
    """Who wants a producer id: for transactions, or because it may write to some topic."""
    if ask.body.transactional_id is not None:
        return _refuses_write(ask)
    may = ask.may_cluster(Operation.IDEMPOTENT_WRITE) or ask.may_some(Operation.WRITE, TOPIC)
    return ALLOWED if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _refuses_partitions(ask: AuthorizationContext) -> int:
    """AddPartitionsToTxn is from a producer up to version 3, and then from brokers."""
    transactional_id = getattr(ask.body, "v3_and_below_transactional_id", None)
    if transactional_id is not None:
        return _code(ask, Operation.WRITE, transactional_id)
    return (
        ALLOWED
        if ask.may_cluster(Operation.CLUSTER_ACTION)
        else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    )


def _refuses_txn_offsets(ask: AuthorizationContext) -> int:
    """Offsets of a group that belong to a transaction."""
    code = _refuses_write(ask)
    if code or ask.may(Operation.READ, GROUP, ask.body.group_id):
        return code
    return ErrorCode.GROUP_AUTHORIZATION_FAILED


def _refuses_state(ask: AuthorizationContext, transactional_id: Any) -> int:
    return _code(ask, Operation.DESCRIBE, transactional_id)


def _shown_state(ask: AuthorizationContext, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out topics that the client may not describe."""
    topics = state.get("topics") or ()
    shown = [one for one in topics if ask.may_topic(Operation.DESCRIBE, one["topic"])]
    return {**state, "topics": shown}


def _shown_listing(ask: AuthorizationContext, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return None if _code(ask, Operation.DESCRIBE, state["transactional_id"]) else state


TRANSACTION_RULES: Mapping[int, Rule] = {
    # InitProducerId
    22: Rule(_refuses_producer),
    # AddPartitionsToTxn
    24: Rule(
        _refuses_partitions,
        [
            Parts(
                "v3_and_below_topics",
                unless_topic(Operation.WRITE),
                others=ErrorCode.OPERATION_NOT_ATTEMPTED,
            )
        ],
    ),
    # AddOffsetsToTxn
    25: Rule(_refuses_txn_offsets),
    # EndTxn
    26: Rule(_refuses_write),
    # WriteTxnMarkers
    27: Rule(unless_cluster(Operation.CLUSTER_ACTION)),
    # TxnOffsetCommit
    28: Rule(_refuses_txn_offsets, [Parts("topics", unless_topic(Operation.READ))]),
    # DescribeTransactions
    65: Rule(
        parts=[Parts("transactional_ids", _refuses_state)],
        seen=[Seen("transaction_states", _shown_state)],
    ),
    # ListTransactions
    66: Rule(seen=[Seen("transaction_states", _shown_listing)]),
}
"""The rules by API key."""

RULES: Mapping[int, Rule] = {**TOPIC_RULES, **GROUP_RULES, **CLUSTER_RULES, **TRANSACTION_RULES}
