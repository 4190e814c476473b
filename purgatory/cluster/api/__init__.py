"""What is done for each API: a function for each, by API key."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from purgatory.cluster.api import (
    committed_offsets,
    configs,
    fetch,
    groups,
    list_offsets,
    metadata,
    produce,
    producers,
    sasl,
    topics,
    versions,
)
from purgatory.cluster.broker import Broker, Handler
from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request

HANDLERS: Mapping[int, Handler] = {
    0: produce.produce,
    1: fetch.fetch,
    2: list_offsets.list_offsets,
    3: metadata.metadata,
    8: committed_offsets.offset_commit,
    9: committed_offsets.offset_fetch,
    10: groups.find_coordinator,
    11: groups.join_group,
    12: groups.heartbeat,
    13: groups.leave_group,
    14: groups.sync_group,
    15: groups.describe_groups,
    16: groups.list_groups,
    17: sasl.handshake,
    18: versions.api_versions,
    19: topics.create_topics,
    20: topics.delete_topics,
    21: topics.delete_records,
    22: producers.init_producer_id,
    23: fetch.offset_for_leader_epoch,
    32: configs.describe_configs,
    36: sasl.authenticate,
    37: topics.create_partitions,
    42: groups.delete_groups,
    60: metadata.describe_cluster,
}


def answer(broker: Broker, request: Request, connection: Connection) -> Awaitable[Answer]:
    """Answer a request, as far as its client may ask.

    Raises:
        BadRequestError: the client has yet to say who it is, or nobody serves the API.
    """
    unknown_user = broker.cluster.config.users is not None and connection.user is None
    if unknown_user and request.api_key not in sasl.BEFORE_AUTHENTICATION:
        raise BadRequestError(f"{request.api_name} before the client said who it is")
    handler = HANDLERS.get(request.api_key)
    if handler is None:
        raise BadRequestError(f"API {request.api_key} ({request.api_name}) is not served")
    return handler(broker, request, connection)
