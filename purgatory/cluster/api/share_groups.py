"""The APIs of share groups (KIP-932): signs of life of their members, and looking at groups."""

from __future__ import annotations

from functools import partial

from purgatory.cluster.api import permitted_operations
from purgatory.cluster.api.answer_of import answer_of
from purgatory.cluster.api.consumer_groups import description, told
from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
)
from purgatory.kafka.groups.consumer_group_member import JOIN_EPOCH
from purgatory.kafka.topic_partition import NO_PARTITIONS


async def heartbeat(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Take a sign of life; answered once what it changes is replicated."""
    body = request.body
    names, joins = body.subscribed_topic_names, body.member_epoch == JOIN_EPOCH
    asked = ConsumerHeartbeat(
        body.group_id,
        body.member_id,
        body.member_epoch,
        request.client_id or "",
        f"/{connection.host}",
        rack_id=body.rack_id,
        topic_names=None if names is None else tuple(names),
        # It owns nothing, and gives nothing up: it has no time to do so in.
        rebalance_timeout_ms=0 if joins else -1,
        owned=NO_PARTITIONS if joins else None,
    )
    answer: ConsumerHeartbeatAnswer = await answer_of(partial(broker.groups.share_heartbeat, asked))
    settings = broker.cluster.group_settings(body.group_id)
    return told(answer, settings.milliseconds("share.heartbeat.interval.ms"))


async def describe(broker: Broker, request: Request, connection: Connection) -> Answer:
    """Tell all about some share groups."""
    allowed = permitted_operations.of_group(request.body)
    return {
        "throttle_time": 0,
        "groups": [
            {
                **description(broker, broker.groups.describe_shares, group_id),
                "authorized_operations": allowed,
            }
            for group_id in request.body.group_ids
        ],
    }
