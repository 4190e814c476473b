"""The authorization of each API, as in Kafka; `registry` composes its rules of these functions.

``authorize_*`` returns an error code or ``ALLOWED``, or a function that does. ``visible_*`` returns
the visible part of an element of a response, or None.
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
)
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.security.authorizer import Operation
from purgatory.kafka.topics import INTERNAL_TOPICS, invalid_topic_name_reason

_CONSUMER = -1


def _cluster_error(context: AuthorizationContext, operation: Operation) -> int:
    return ALLOWED if context.allows_cluster(operation) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _topic_error(context: AuthorizationContext, operation: Operation, topic: str) -> int:
    allowed = context.allows_topic(operation, topic)
    return ALLOWED if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _group_error(context: AuthorizationContext, operation: Operation, group_id: str) -> int:
    allowed = context.allows(operation, GROUP, group_id)
    return ALLOWED if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED


def _transaction_error(
    context: AuthorizationContext, operation: Operation, transactional_id: str
) -> int:
    allowed = context.allows(operation, TRANSACTIONAL_ID, transactional_id)
    return ALLOWED if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def authorize_cluster(operation: Operation) -> Callable[[AuthorizationContext], int]:
    """Require an operation on the cluster."""
    return lambda context: _cluster_error(context, operation)


def authorize_topic(operation: Operation) -> Callable[[AuthorizationContext, Any], int]:
    """Require an operation on the topic of an element."""
    return partial(_authorize_topic, operation)


def _authorize_topic(operation: Operation, context: AuthorizationContext, part: Any) -> int:
    topic = context.topic_of(part)
    # An unknown topic id is allowed: the handler returns the error.
    return ALLOWED if topic is None else _topic_error(context, operation, topic)


def authorize_metadata(context: AuthorizationContext, requested: Any) -> int:
    """Authorize a topic of a Metadata request, which may be created."""
    code = _authorize_topic(Operation.DESCRIBE, context, requested)
    if code and requested.name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID  # as for ids that no topic has
    cluster = context.broker.cluster
    if code or requested.name is None or requested.name in cluster.controller.topics:
        return code
    makes = cluster.config.auto_create_topics and getattr(
        context.body, "allow_auto_topic_creation", True
    )
    return authorize_create(context, requested) if makes else ALLOWED


def authorize_create(context: AuthorizationContext, requested: Any) -> int:
    if context.allows_cluster(Operation.CREATE):
        return ALLOWED
    return _topic_error(context, Operation.CREATE, requested.name)


def authorize_delete(context: AuthorizationContext, requested: Any) -> int:
    # DeleteTopics up to version 5 has bare names.
    if isinstance(requested, str):
        return _topic_error(context, Operation.DELETE, requested)
    return _authorize_topic(Operation.DELETE, context, requested)


def authorize_replica(context: AuthorizationContext) -> int:
    """Require CLUSTER_ACTION of a fetch by a replica."""
    state = getattr(context.body, "replica_state", None)
    replica_id = (
        getattr(context.body, "replica_id", _CONSUMER) if state is None else state.replica_id
    )
    if replica_id == _CONSUMER:
        return ALLOWED
    return _cluster_error(context, Operation.CLUSTER_ACTION)


def authorize_leader_epochs(context: AuthorizationContext, part: Any) -> int:
    if context.allows_cluster(Operation.CLUSTER_ACTION):
        return ALLOWED
    return _authorize_topic(Operation.DESCRIBE, context, part)


def visible_topic(
    context: AuthorizationContext, topic: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Keep topics that the client may describe, and errors of requested topics."""
    name = topic["name"]
    is_visible = (
        topic["error_code"] or name is None or context.allows_topic(Operation.DESCRIBE, name)
    )
    return topic if is_visible else None


_GROUP_KEY, _TRANSACTION_KEY = 0, 1


def authorize_group(operation: Operation) -> Callable[[AuthorizationContext], int]:
    """Require an operation on the group of the request."""
    return lambda context: _group_error(context, operation, context.body.group_id)


def authorize_named_group(operation: Operation) -> Callable[[AuthorizationContext, Any], int]:
    """Require an operation on a group that is an element."""
    return lambda context, part: _group_error(
        context, operation, part if isinstance(part, str) else part.group_id
    )


def authorize_coordinator_key(context: AuthorizationContext, key: str, key_type: int) -> int:
    """Authorize one key of a FindCoordinator request."""
    if key_type == _GROUP_KEY:
        return _group_error(context, Operation.DESCRIBE, key)
    if key_type == _TRANSACTION_KEY:
        return _transaction_error(context, Operation.DESCRIBE, key)
    return _cluster_error(context, Operation.CLUSTER_ACTION)


def authorize_find_coordinator(context: AuthorizationContext) -> int:
    """Authorize the key that FindCoordinator has up to version 3."""
    body = context.body
    if not hasattr(body, "key"):
        return ALLOWED
    return authorize_coordinator_key(context, body.key, getattr(body, "key_type", _GROUP_KEY))


def authorize_offset_fetch(context: AuthorizationContext) -> int:
    """Authorize the group that OffsetFetch has up to version 7."""
    if not hasattr(context.body, "group_id"):
        return ALLOWED
    return _group_error(context, Operation.DESCRIBE, context.body.group_id)


def authorize_subscription(context: AuthorizationContext) -> int:
    """Require DESCRIBE on the subscribed topics."""
    code = _group_error(context, Operation.READ, context.body.group_id)
    topics = getattr(context.body, "subscribed_topic_names", None) or ()
    if code or all(context.allows_topic(Operation.DESCRIBE, topic) for topic in topics):
        return code
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def authorize_topology(context: AuthorizationContext) -> int:
    """Require DESCRIBE on the topics of a topology. Those that can't be topics are allowed: the
    handler returns the error."""
    code = _group_error(context, Operation.READ, context.body.group_id)
    topology = context.body.topology
    if code or topology is None:
        return code
    names = {
        name
        for one in topology.subtopologies
        for name in (*one.source_topics, *one.repartition_sink_topics, *_internal_names(one))
    }
    usable = [name for name in names if invalid_topic_name_reason(name, ()) is None]
    if len(usable) < len(names) or not INTERNAL_TOPICS.isdisjoint(names):
        return ALLOWED
    if all(context.allows_topic(Operation.DESCRIBE, name) for name in names):
        return ALLOWED
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _internal_names(subtopology: Any) -> list[str]:
    topics = (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics)
    return [topic.name for topic in topics]


def visible_group(
    context: AuthorizationContext, group: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    allowed = context.allows_cluster(Operation.DESCRIBE) or context.allows(
        Operation.DESCRIBE, GROUP, group["group_id"]
    )
    return group if allowed else None


_UNAUTHORIZED: Mapping[str, Any] = {
    "committed_offset": -1,
    "committed_leader_epoch": -1,
    "metadata": "",
    "start_offset": -1,
    "lag": -1,
    "leader_epoch": 0,
    "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
}


def visible_offsets(context: AuthorizationContext, group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keep the committed offsets of topics that the client may describe.

    Other topics have an error if the request lists them, and are omitted otherwise.
    """
    requested = [other for other in context.body.groups if other.group_id == group["group_id"]]
    named = any(other.topics is not None for other in requested)
    topics = []
    for topic in group["topics"]:
        name = context.topic_in_response(topic)
        if name is None or context.allows_topic(Operation.DESCRIBE, name):
            topics.append(topic)
        elif named:
            partitions = [{**partition, **_UNAUTHORIZED} for partition in topic["partitions"]]
            topics.append({**topic, "partitions": partitions})
    return {**group, "topics": topics}


def visible_described_group(
    context: AuthorizationContext, group: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Keep groups whose assigned topics the client may describe; others have an error, as in Kafka:
    an assignment without some of its topics would be a wrong one."""
    topics = {
        topic["topic_name"]
        for member in group["members"]
        for assignment in ("assignment", "target_assignment")
        for topic in member[assignment]["topic_partitions"]
    }
    if all(context.allows_topic(Operation.DESCRIBE, topic) for topic in topics):
        return group
    return {
        **group,
        "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "error_message": "The group has described topic(s) that the client is not authorized to "
        "describe.",
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
    }


def visible_streams_group(
    context: AuthorizationContext, group: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Keep groups whose topology's topics the client may describe; others have an error."""
    topology = group.get("topology")
    names = {
        name
        for one in (topology or {}).get("subtopologies", ())
        for name in (
            *one["source_topics"],
            *one["repartition_sink_topics"],
            *(topic["name"] for topic in one["repartition_source_topics"]),
            *(topic["name"] for topic in one["state_changelog_topics"]),
        )
    }
    if all(context.allows_topic(Operation.DESCRIBE, name) for name in names):
        return group
    return {
        "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "error_message": "The described group uses topics that the client is not authorized to "
        "describe.",
        "group_id": group["group_id"],
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "topology": None,
        "members": (),
    }


def visible_committed_topic(
    context: AuthorizationContext, topic: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    return topic if context.allows_topic(Operation.DESCRIBE, topic["name"]) else None


_TOPIC_CONFIG, _GROUP_CONFIG = 2, 32


def authorize_configs(operation: Operation) -> Callable[[AuthorizationContext, Any], int]:
    """Require an operation on the topic, the group or the cluster that a resource belongs to."""

    def authorize(context: AuthorizationContext, resource: Any) -> int:
        if resource.resource_type == _TOPIC_CONFIG:
            return _topic_error(context, operation, resource.resource_name)
        if resource.resource_type == _GROUP_CONFIG:
            return _group_error(context, operation, resource.resource_name)
        return _cluster_error(context, operation)

    return authorize


def authorize_transactional_write(context: AuthorizationContext) -> int:
    return _transaction_error(context, Operation.WRITE, context.body.transactional_id)


def authorize_init_producer_id(context: AuthorizationContext) -> int:
    """Require WRITE on the transactional id, or else IDEMPOTENT_WRITE or WRITE on any topic."""
    if context.body.transactional_id is not None:
        return authorize_transactional_write(context)
    allowed = context.allows_cluster(Operation.IDEMPOTENT_WRITE) or context.allows_any(
        Operation.WRITE, TOPIC
    )
    return ALLOWED if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def authorize_add_partitions(context: AuthorizationContext) -> int:
    """Authorize a producer, up to version 3 of AddPartitionsToTxn, or a broker."""
    transactional_id = getattr(context.body, "v3_and_below_transactional_id", None)
    if transactional_id is not None:
        return _transaction_error(context, Operation.WRITE, transactional_id)
    return _cluster_error(context, Operation.CLUSTER_ACTION)


def authorize_txn_offsets(context: AuthorizationContext) -> int:
    """Require WRITE on the transactional id and READ on the group."""
    code = authorize_transactional_write(context)
    return code or _group_error(context, Operation.READ, context.body.group_id)


def authorize_describe_transaction(context: AuthorizationContext, transactional_id: Any) -> int:
    return _transaction_error(context, Operation.DESCRIBE, transactional_id)


def visible_transaction(
    context: AuthorizationContext, state: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Omit topics that the client may not describe."""
    topics = state.get("topics") or ()
    visible = [
        topic for topic in topics if context.allows_topic(Operation.DESCRIBE, topic["topic"])
    ]
    return {**state, "topics": visible}


def visible_transaction_listing(
    context: AuthorizationContext, state: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    return (
        None
        if _transaction_error(context, Operation.DESCRIBE, state["transactional_id"])
        else state
    )
