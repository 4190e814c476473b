"""The rules of the APIs that read, write and describe topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from purgatory.cluster.api.access.asking import TRANSACTIONAL_ID, Ask
from purgatory.cluster.api.access.codes import (
    CLUSTER_REFUSED,
    TOPIC_REFUSED,
    TRANSACTIONAL_ID_REFUSED,
    UNKNOWN_TOPIC_ID,
)
from purgatory.cluster.api.access.rule import ALLOWED, Parts, Rule, Seen
from purgatory.kafka.security.authorizer import Operation

_CONSUMER = -1


def unless_topic(operation: Operation) -> Callable[[Ask, Any], int]:
    """Refuse parts that are about topics to which the client may not do this."""
    return partial(_refuses_topic, operation)


def _refuses_topic(operation: Operation, ask: Ask, part: Any) -> int:
    topic = ask.topic_of(part)
    if topic is None:
        return ALLOWED  # an id that no topic has: the handler says so
    return ALLOWED if ask.may_topic(operation, topic) else TOPIC_REFUSED


def _refuses_to_tell(ask: Ask, asked: Any) -> int:
    """A topic that Metadata is to tell about, or to make."""
    code = _refuses_topic(Operation.DESCRIBE, ask, asked)
    if code and asked.name is None:
        return UNKNOWN_TOPIC_ID  # as for ids that no topic has
    cluster = ask.broker.cluster
    if code or asked.name is None or asked.name in cluster.controller.topics:
        return code
    makes = cluster.config.auto_create_topics and getattr(
        ask.body, "allow_auto_topic_creation", True
    )
    return _refuses_to_create(ask, asked) if makes else ALLOWED


def _refuses_to_create(ask: Ask, asked: Any) -> int:
    may = ask.may_cluster(Operation.CREATE) or ask.may_topic(Operation.CREATE, asked.name)
    return ALLOWED if may else TOPIC_REFUSED


def _refuses_to_delete(ask: Ask, asked: Any) -> int:
    # DeleteTopics up to version 5 has bare names.
    if isinstance(asked, str):
        return ALLOWED if ask.may_topic(Operation.DELETE, asked) else TOPIC_REFUSED
    return _refuses_topic(Operation.DELETE, ask, asked)


def _refuses_transaction(ask: Ask) -> int:
    transactional_id = ask.body.transactional_id
    if transactional_id is None or ask.may(Operation.WRITE, TRANSACTIONAL_ID, transactional_id):
        return ALLOWED
    return TRANSACTIONAL_ID_REFUSED


def _refuses_replica(ask: Ask) -> int:
    """Who fetches as a replica is one of the cluster's own."""
    state = getattr(ask.body, "replica_state", None)
    replica_id = getattr(ask.body, "replica_id", _CONSUMER) if state is None else state.replica_id
    may = replica_id == _CONSUMER or ask.may_cluster(Operation.CLUSTER_ACTION)
    return ALLOWED if may else CLUSTER_REFUSED


def _refuses_epochs(ask: Ask, part: Any) -> int:
    if ask.may_cluster(Operation.CLUSTER_ACTION):
        return ALLOWED
    return _refuses_topic(Operation.DESCRIBE, ask, part)


def shown_topic(ask: Ask, topic: Mapping[str, Any]) -> Mapping[str, Any] | None:
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
