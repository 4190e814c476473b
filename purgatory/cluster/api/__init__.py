"""What is done for each API: a function for each, by API key."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from purgatory.cluster.api import (
    acls,
    configs,
    consumer_groups,
    fetch,
    groups,
    list_offsets,
    log_dirs,
    metadata,
    offsets,
    produce,
    sasl,
    share_groups,
    topics,
    transactions,
)
from purgatory.cluster.api.authorization import authorization_context, guarded
from purgatory.cluster.api.authorization_rules import RULES
from purgatory.cluster.broker import Broker, Handler
from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.protocol.connection import Answer, Connection
from purgatory.cluster.protocol.wire import Request

HANDLERS: Mapping[int, Handler] = {
    0: produce.produce,
    1: fetch.fetch,
    2: list_offsets.list_offsets,
    3: metadata.metadata,
    8: offsets.offset_commit,
    9: offsets.offset_fetch,
    10: groups.find_coordinator,
    11: groups.join_group,
    12: groups.heartbeat,
    13: groups.leave_group,
    14: groups.sync_group,
    15: groups.describe_groups,
    16: groups.list_groups,
    17: sasl.handshake,
    18: metadata.api_versions,
    19: topics.create_topics,
    20: topics.delete_topics,
    21: topics.delete_records,
    22: transactions.init_producer_id,
    23: fetch.offset_for_leader_epoch,
    24: transactions.add_partitions_to_txn,
    25: transactions.add_offsets_to_txn,
    26: transactions.end_txn,
    27: transactions.write_txn_markers,
    28: offsets.txn_offset_commit,
    29: acls.describe_acls,
    30: acls.create_acls,
    31: acls.delete_acls,
    32: configs.describe_configs,
    33: configs.alter_configs,
    34: log_dirs.alter_replica_log_dirs,
    35: log_dirs.describe_log_dirs,
    36: sasl.authenticate,
    37: topics.create_partitions,
    42: groups.delete_groups,
    43: topics.elect_leaders,
    44: configs.incremental_alter_configs,
    45: topics.alter_partition_reassignments,
    46: topics.list_partition_reassignments,
    47: offsets.offset_delete,
    50: sasl.describe_user_scram_credentials,
    51: sasl.alter_user_scram_credentials,
    60: metadata.describe_cluster,
    61: transactions.describe_producers,
    65: transactions.describe_transactions,
    66: transactions.list_transactions,
    68: consumer_groups.consumer_group_heartbeat,
    69: consumer_groups.consumer_group_describe,
    74: configs.list_config_resources,
    75: metadata.describe_topic_partitions,
    76: consumer_groups.share_group_heartbeat,
    77: consumer_groups.share_group_describe,
    78: share_groups.share_fetch,
    79: share_groups.share_acknowledge,
    90: share_groups.describe_share_group_offsets,
    91: share_groups.alter_share_group_offsets,
    92: share_groups.delete_share_group_offsets,
}


def answer(broker: Broker, request: Request, connection: Connection) -> Answer | Awaitable[Answer]:
    """Answer a request, as far as its client may ask.

    Raises:
        BadRequestError: the client has yet to say who it is, or nobody serves the API.
    """
    if (
        connection.listener.sasl
        and request.api_key not in sasl.BEFORE_AUTHENTICATION
        and not sasl.is_authenticated(connection)
    ):
        listener = connection.listener
        raise BadRequestError(
            f"{request.api_name} before the client said who it is: {listener.name} takes clients "
            f"with security.protocol={listener.security_protocol} and sasl.mechanism="
            f"{' or '.join(listener.sasl)}"
        )
    handler = HANDLERS.get(request.api_key)
    if handler is None:
        raise BadRequestError(f"API {request.api_key} ({request.api_name}) is not served")
    ask = authorization_context(broker, request, connection)
    if ask is None:
        return handler(broker, request, connection)
    return guarded(ask, RULES[request.api_key], handler)
