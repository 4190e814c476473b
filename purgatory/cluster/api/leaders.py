"""ElectLeaders: have the preferred replica lead, or any that there is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request, milliseconds
from purgatory.kafka import ErrorCode, TopicPartition

_PREFERRED, _UNCLEAN = 0, 1
_SAID: Mapping[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such partition",
    ErrorCode.ELECTION_NOT_NEEDED: "it has the leader that was asked for",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "the first replica is dead, or not in sync",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "all of its replicas are dead",
    ErrorCode.REQUEST_TIMED_OUT: "a leader was elected, and does not lead yet",
}


async def elect_leaders(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Elect leaders; answered when they lead."""
    body = request.body
    kind = getattr(body, "election_type", _PREFERRED)
    if kind not in (_PREFERRED, _UNCLEAN):
        return {
            "throttle_time": 0,
            "error_code": int(ErrorCode.INVALID_REQUEST),
            "replica_election_results": (),
        }
    asked = None
    if body.topic_partitions is not None:
        asked = [
            TopicPartition(topic.topic, number)
            for topic in body.topic_partitions
            for number in topic.partitions
        ]
    results: Mapping[TopicPartition, ErrorCode] = await answer_of(
        partial(broker.elections.elect, asked, kind == _UNCLEAN, milliseconds(body.timeout))
    )
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, number), code in results.items():
        told: dict[str, Any] = {
            "partition_id": number,
            "error_code": int(code),
            "error_message": _SAID.get(code),
        }
        topics.setdefault(topic, []).append(told)
    return {
        "throttle_time": 0,
        "error_code": 0,
        "replica_election_results": [
            {"topic": topic, "partition_result": told} for topic, told in topics.items()
        ],
    }
