"""The rules of the APIs of groups and of what they have committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from purgatory.cluster.api.access.asking import GROUP, TRANSACTIONAL_ID, Ask
from purgatory.cluster.api.access.codes import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TOPIC_REFUSED,
    TRANSACTIONAL_ID_REFUSED,
)
from purgatory.cluster.api.access.rule import ALLOWED, Parts, Rule, Seen
from purgatory.cluster.api.access.topic_rules import unless_topic
from purgatory.kafka.security.authorizer import Operation

_GROUP_KEY, _TRANSACTION_KEY = 0, 1


def unless_group(operation: Operation) -> Callable[[Ask], int]:
    """Refuse requests of groups to which the client may not do this."""
    return partial(_refuses_group, operation)


def _refuses_group(operation: Operation, ask: Ask) -> int:
    return ALLOWED if ask.may(operation, GROUP, ask.body.group_id) else GROUP_REFUSED


def unless_named_group(operation: Operation) -> Callable[[Ask, Any], int]:
    """Refuse parts that are groups to which the client may not do this."""
    return partial(_refuses_named_group, operation)


def _refuses_named_group(operation: Operation, ask: Ask, part: Any) -> int:
    group_id = part if isinstance(part, str) else part.group_id
    return ALLOWED if ask.may(operation, GROUP, group_id) else GROUP_REFUSED


def _refuses_key(ask: Ask, key: str, key_type: int) -> int:
    """A key whose coordinator is to be found."""
    if key_type == _GROUP_KEY:
        return ALLOWED if ask.may(Operation.DESCRIBE, GROUP, key) else GROUP_REFUSED
    if key_type == _TRANSACTION_KEY:
        may = ask.may(Operation.DESCRIBE, TRANSACTIONAL_ID, key)
        return ALLOWED if may else TRANSACTIONAL_ID_REFUSED
    return ALLOWED if ask.may_cluster(Operation.CLUSTER_ACTION) else CLUSTER_REFUSED


def _refuses_to_find(ask: Ask) -> int:
    """FindCoordinator up to version 3 has one key."""
    body = ask.body
    if not hasattr(body, "key"):
        return ALLOWED
    return _refuses_key(ask, body.key, getattr(body, "key_type", _GROUP_KEY))


def _refuses_offsets(ask: Ask) -> int:
    """OffsetFetch up to version 7 is about one group."""
    if not hasattr(ask.body, "group_id"):
        return ALLOWED
    return _refuses_group(Operation.DESCRIBE, ask)


def _refuses_subscription(ask: Ask) -> int:
    """A member of a group that says what it reads has to be allowed to know of that."""
    code = _refuses_group(Operation.READ, ask)
    topics = getattr(ask.body, "subscribed_topic_names", None) or ()
    if code or all(ask.may_topic(Operation.DESCRIBE, topic) for topic in topics):
        return code
    return TOPIC_REFUSED


def _shown_group(ask: Ask, group: Mapping[str, Any]) -> Mapping[str, Any] | None:
    may = ask.may_cluster(Operation.DESCRIBE) or ask.may(
        Operation.DESCRIBE, GROUP, group["group_id"]
    )
    return group if may else None


def _shown_offsets(ask: Ask, group: Mapping[str, Any]) -> Mapping[str, Any]:
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
    return {**partition, **nothing, "error_code": TOPIC_REFUSED}


def _shown_committed(ask: Ask, topic: Mapping[str, Any]) -> Mapping[str, Any] | None:
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
