"""The rules of the APIs of producers and transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purgatory.cluster.api.access.asking import GROUP, TOPIC, TRANSACTIONAL_ID, Ask
from purgatory.cluster.api.access.cluster_rules import unless_cluster
from purgatory.cluster.api.access.codes import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    NOT_ATTEMPTED,
    TRANSACTIONAL_ID_REFUSED,
)
from purgatory.cluster.api.access.rule import ALLOWED, Parts, Rule, Seen
from purgatory.cluster.api.access.topic_rules import unless_topic
from purgatory.kafka.security.authorizer import Operation


def _code(ask: Ask, operation: Operation, transactional_id: str) -> int:
    may = ask.may(operation, TRANSACTIONAL_ID, transactional_id)
    return ALLOWED if may else TRANSACTIONAL_ID_REFUSED


def _refuses_write(ask: Ask) -> int:
    return _code(ask, Operation.WRITE, ask.body.transactional_id)


def _refuses_producer(ask: Ask) -> int:
    """Who wants a producer id: for transactions, or because it may write to some topic."""
    if ask.body.transactional_id is not None:
        return _refuses_write(ask)
    may = ask.may_cluster(Operation.IDEMPOTENT_WRITE) or ask.may_some(Operation.WRITE, TOPIC)
    return ALLOWED if may else CLUSTER_REFUSED


def _refuses_partitions(ask: Ask) -> int:
    """AddPartitionsToTxn is from a producer up to version 3, and then from brokers."""
    transactional_id = getattr(ask.body, "v3_and_below_transactional_id", None)
    if transactional_id is not None:
        return _code(ask, Operation.WRITE, transactional_id)
    return ALLOWED if ask.may_cluster(Operation.CLUSTER_ACTION) else CLUSTER_REFUSED


def _refuses_offsets(ask: Ask) -> int:
    """Offsets of a group that belong to a transaction."""
    code = _refuses_write(ask)
    if code or ask.may(Operation.READ, GROUP, ask.body.group_id):
        return code
    return GROUP_REFUSED


def _refuses_state(ask: Ask, transactional_id: Any) -> int:
    return _code(ask, Operation.DESCRIBE, transactional_id)


def _shown_state(ask: Ask, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out topics that the client may not describe."""
    topics = state.get("topics") or ()
    shown = [one for one in topics if ask.may_topic(Operation.DESCRIBE, one["topic"])]
    return {**state, "topics": shown}


def _shown_listing(ask: Ask, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
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
                others=NOT_ATTEMPTED,
            )
        ],
    ),
    # AddOffsetsToTxn
    25: Rule(_refuses_offsets),
    # EndTxn
    26: Rule(_refuses_write),
    # WriteTxnMarkers
    27: Rule(unless_cluster(Operation.CLUSTER_ACTION)),
    # TxnOffsetCommit
    28: Rule(_refuses_offsets, [Parts("topics", unless_topic(Operation.READ))]),
    # DescribeTransactions
    65: Rule(
        parts=[Parts("transactional_ids", _refuses_state)],
        seen=[Seen("transaction_states", _shown_state)],
    ),
    # ListTransactions
    66: Rule(seen=[Seen("transaction_states", _shown_listing)]),
}
"""The rules by API key."""
