"""OffsetDelete: forget what a group committed of some partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import ErrorCode, TopicPartition

_Answers = tuple[ErrorCode, Mapping[TopicPartition, ErrorCode]]


async def offset_delete(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Delete committed offsets; answered once that is replicated."""
    body = request.body
    places = [
        TopicPartition(topic.name, asked.partition_index)
        for topic in body.topics
        for asked in topic.partitions
    ]

    def ask(respond: Callable[[_Answers], object]) -> None:
        broker.groups.delete_offsets(
            body.group_id, places, lambda code, codes: respond((code, codes))
        )

    code, codes = await answer_of(ask)
    return {
        "throttle_time": 0,
        "error_code": int(code),
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": asked.partition_index,
                        "error_code": int(codes[TopicPartition(topic.name, asked.partition_index)]),
                    }
                    for asked in topic.partitions
                ],
            }
            for topic in (body.topics if code is ErrorCode.NONE else ())
        ],
    }
