"""The APIs of Kafka that brokers serve, one a row.

A row has the versions, the handler, the authorization, the places of errors in responses, and the
error that redirects clients. `ApiVersions`, access control, fault injection and the tests of each
API read these rows.
An API without a row is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import cache
from typing import NamedTuple

from purgatory.cluster.api import (
    acls,
    api_versions,
    configs,
    consumer_groups,
    fetch,
    groups,
    list_offsets,
    log_dirs,
    metadata,
    offsets,
    produce,
    quotas,
    sasl,
    share_groups,
    streams_groups,
    topics,
    transactions,
)
from purgatory.cluster.api.authorization import (
    RequestParts,
    Rule,
    VisibleParts,
    authorization_context,
    serve_authorized,
)
from purgatory.cluster.api.authorization_rules import (
    authorize_add_partitions,
    authorize_cluster,
    authorize_configs,
    authorize_coordinator_key,
    authorize_create,
    authorize_delete,
    authorize_describe_transaction,
    authorize_find_coordinator,
    authorize_group,
    authorize_init_producer_id,
    authorize_leader_epochs,
    authorize_metadata,
    authorize_named_group,
    authorize_offset_fetch,
    authorize_replica,
    authorize_subscription,
    authorize_topic,
    authorize_topology,
    authorize_transactional_write,
    authorize_txn_offsets,
    visible_committed_topic,
    visible_described_group,
    visible_group,
    visible_offsets,
    visible_streams_group,
    visible_topic,
    visible_transaction,
    visible_transaction_listing,
)
from purgatory.cluster.api.delayed_errors import delayed_response
from purgatory.cluster.broker_services import BrokerServices, Handler
from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.error_responses import error_places, error_response
from purgatory.cluster.protocol.wire import Request, Versions
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.kafka_versions import (
    NEWEST_KAFKA,
    is_for_controller,
    newest_version,
    refused_apis,
)
from purgatory.kafka.security.authorizer import Operation


class Api(NamedTuple):
    """One API.

    Args:
        versions: the oldest and the newest served version.
        handler: handles a request.
        rule: the authorization of clients.
        errors: the error path of its responses: see `error_responses`.
        redirect: the error by which brokers other than the leader or the coordinator redirect
            clients; None: any broker serves the request.
        is_served: whether ApiVersions has it; else each request gets UNSUPPORTED_VERSION.
    """

    versions: Versions
    handler: Handler
    rule: Rule = Rule()
    errors: str = ""
    redirect: ErrorCode | None = None
    is_served: bool = True

    @property
    def all_versions(self) -> range:
        """Each version that is served."""
        oldest, newest = self.versions
        return range(oldest, newest + 1)


async def _api_versions(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    apis = apis_of(broker.cluster.config.kafka_version)
    served = {key: api.versions for key, api in apis.items() if api.is_served}
    return api_versions.api_versions(broker, request, served)


async def unsupported(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Refuse a request of an API that is not served, in its own response."""
    return _refusal(request, ErrorCode.UNSUPPORTED_VERSION)


def _refusal(request: Request, code: ErrorCode) -> Response:
    errors = APIS[request.api_key].errors
    places = error_places(request.api_key, request.api_version, errors)
    refusal: Response = error_response(places, request.body, code)
    return refusal


_READ_TOPICS = [RequestParts("topics", authorize_topic(Operation.READ))]
_DESCRIBED_GROUPS = authorize_named_group(Operation.DESCRIBE)
_DESCRIBED_WITH_TOPICS = Rule(
    parts=[RequestParts("group_ids", _DESCRIBED_GROUPS)],
    visible=[VisibleParts("groups", visible_described_group)],
)
_MEMBER = Rule(authorize_group(Operation.READ))
_SUBSCRIBER = Rule(authorize_subscription)
_SHARE_CONSUMER = Rule(authorize_group(Operation.READ), _READ_TOPICS, handles_empty=True)
_ALTER_CONFIGS = Rule(parts=[RequestParts("resources", authorize_configs(Operation.ALTER_CONFIGS))])
_DESCRIBE_CLUSTER = Rule(authorize_cluster(Operation.DESCRIBE))
_ALTER_CLUSTER = Rule(authorize_cluster(Operation.ALTER))


def _by_topics(operation: Operation) -> Rule:
    return Rule(parts=[RequestParts("topics", authorize_topic(operation))])


_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
_COORDINATOR = ErrorCode.NOT_COORDINATOR

_TOPICS = "topics partitions"
_TOPIC_RESPONSES = "topics:responses partitions"

APIS: Mapping[int, Api] = {
    # Produce and Fetch authorize their topics themselves: their responses have fixed layouts; and
    # Produce the transactional id, if a batch is transactional.
    0: Api(
        (3, 13),
        produce.produce,
        errors="topic_data:responses partition_data:partition_responses",
        redirect=_LEADER,
    ),
    1: Api((4, 18), fetch.fetch, Rule(authorize_replica), _TOPIC_RESPONSES, _LEADER),
    2: Api((1, 11), list_offsets.list_offsets, _by_topics(Operation.DESCRIBE), _TOPICS, _LEADER),
    3: Api(
        (0, 13),
        metadata.metadata,
        Rule(
            parts=[RequestParts("topics", authorize_metadata)],
            visible=[VisibleParts("topics", visible_topic)],
            handles_empty=True,
        ),
        "topics :partitions",
    ),
    8: Api(
        (2, 10),
        offsets.offset_commit,
        Rule(authorize_group(Operation.READ), _READ_TOPICS),
        _TOPICS,
        _COORDINATOR,
    ),
    9: Api(
        (1, 10),
        offsets.offset_fetch,
        Rule(
            authorize_offset_fetch,
            [
                RequestParts("topics", authorize_topic(Operation.DESCRIBE)),
                RequestParts("groups", _DESCRIBED_GROUPS),
            ],
            [
                VisibleParts("topics", visible_committed_topic),
                VisibleParts("groups", visible_offsets),
            ],
        ),
        "groups topics partition_indexes:partitions",
        _COORDINATOR,
    ),
    10: Api(
        (0, 6),
        groups.find_coordinator,
        Rule(
            authorize_find_coordinator,
            [
                RequestParts(
                    "coordinator_keys",
                    lambda context, key: authorize_coordinator_key(
                        context, key, context.body.key_type
                    ),
                )
            ],
        ),
        "coordinator_keys:coordinators",
    ),
    11: Api((0, 9), groups.join_group, _MEMBER, redirect=_COORDINATOR),
    12: Api((0, 4), groups.heartbeat, _MEMBER, redirect=_COORDINATOR),
    13: Api((0, 5), groups.leave_group, _MEMBER, "members", _COORDINATOR),
    14: Api((0, 5), groups.sync_group, _MEMBER, redirect=_COORDINATOR),
    15: Api(
        (0, 6),
        groups.describe_groups,
        Rule(parts=[RequestParts("groups", _DESCRIBED_GROUPS)]),
        "groups",
        _COORDINATOR,
    ),
    # Each coordinator lists its own groups.
    16: Api(
        (0, 5),
        groups.list_groups,
        Rule(visible=[VisibleParts("groups", visible_group)]),
        redirect=_COORDINATOR,
    ),
    # After version 0, the messages of the mechanism have no header.
    17: Api((0, 1), sasl.handshake),
    18: Api((0, 4), _api_versions),
    19: Api(
        (2, 7),
        topics.create_topics,
        Rule(parts=[RequestParts("topics", authorize_create)]),
        "topics",
    ),
    20: Api(
        (1, 6),
        topics.delete_topics,
        Rule(
            parts=[
                RequestParts("topic_names", authorize_delete),
                RequestParts("topics", authorize_delete),
            ]
        ),
        "topic_names|topics:responses",
    ),
    21: Api((0, 2), topics.delete_records, _by_topics(Operation.DELETE), _TOPICS, _LEADER),
    22: Api(
        (0, 5),
        transactions.init_producer_id,
        Rule(authorize_init_producer_id),
        redirect=_COORDINATOR,
    ),
    23: Api(
        (2, 4),
        fetch.offset_for_leader_epoch,
        Rule(parts=[RequestParts("topics", authorize_leader_epochs)]),
        _TOPICS,
        _LEADER,
    ),
    24: Api(
        (0, 5),
        transactions.add_partitions_to_txn,
        Rule(
            authorize_add_partitions,
            [
                RequestParts(
                    "v3_and_below_topics",
                    authorize_topic(Operation.WRITE),
                    error_for_others=ErrorCode.OPERATION_NOT_ATTEMPTED,
                )
            ],
        ),
        "v3_and_below_topics:results_by_topic_v3_and_below transactions:results_by_transaction "
        "topics:topic_results partitions:results_by_partition",
        _COORDINATOR,
    ),
    25: Api(
        (0, 4), transactions.add_offsets_to_txn, Rule(authorize_txn_offsets), redirect=_COORDINATOR
    ),
    # From version 5 on, EndTxn raises the epoch, for producers whose leaders add partitions.
    26: Api(
        (0, 5), transactions.end_txn, Rule(authorize_transactional_write), redirect=_COORDINATOR
    ),
    27: Api(
        (1, 2),
        transactions.write_txn_markers,
        Rule(authorize_cluster(Operation.CLUSTER_ACTION)),
        "markers topics partition_indexes:partitions",
        _LEADER,
    ),
    28: Api(
        (0, 5),
        offsets.txn_offset_commit,
        Rule(authorize_txn_offsets, _READ_TOPICS),
        _TOPICS,
        _COORDINATOR,
    ),
    29: Api((1, 3), acls.describe_acls, _DESCRIBE_CLUSTER),
    30: Api((1, 3), acls.create_acls, _ALTER_CLUSTER, "creations:results"),
    31: Api((1, 3), acls.delete_acls, _ALTER_CLUSTER, "filters:filter_results :matching_acls"),
    32: Api(
        (1, 4),
        configs.describe_configs,
        Rule(parts=[RequestParts("resources", authorize_configs(Operation.DESCRIBE_CONFIGS))]),
        "resources:results",
    ),
    33: Api((0, 2), configs.alter_configs, _ALTER_CONFIGS, "resources:responses"),
    # The handler authorizes: the request has folders, and the response topics.
    34: Api((1, 2), log_dirs.alter_replica_log_dirs, errors=":results :partitions"),
    35: Api((1, 5), log_dirs.describe_log_dirs, _DESCRIBE_CLUSTER, ":results"),
    36: Api((0, 2), sasl.authenticate),
    37: Api((0, 3), topics.create_partitions, _by_topics(Operation.ALTER), "topics:results"),
    42: Api(
        (0, 2),
        groups.delete_groups,
        Rule(parts=[RequestParts("groups_names", authorize_named_group(Operation.DELETE))]),
        "groups_names:results",
        _COORDINATOR,
    ),
    43: Api(
        (0, 2),
        topics.elect_leaders,
        _ALTER_CLUSTER,
        "topic_partitions:replica_election_results partitions:partition_result",
    ),
    44: Api((0, 1), configs.incremental_alter_configs, _ALTER_CONFIGS, "resources:responses"),
    45: Api((0, 1), topics.alter_partition_reassignments, _ALTER_CLUSTER, _TOPIC_RESPONSES),
    46: Api((0, 0), topics.list_partition_reassignments, _DESCRIBE_CLUSTER),
    47: Api(
        (0, 0),
        offsets.offset_delete,
        Rule(authorize_group(Operation.DELETE), _READ_TOPICS),
        _TOPICS,
        _COORDINATOR,
    ),
    48: Api(
        (0, 1),
        quotas.describe_client_quotas,
        Rule(authorize_cluster(Operation.DESCRIBE_CONFIGS)),
    ),
    # Only a whole request is authorized, and refused in each entry.
    49: Api(
        (0, 1),
        quotas.alter_client_quotas,
        Rule(authorize_cluster(Operation.ALTER_CONFIGS)),
        "entries",
    ),
    50: Api((0, 0), sasl.describe_user_scram_credentials, _DESCRIBE_CLUSTER, "users:results"),
    51: Api(
        (0, 0), sasl.alter_user_scram_credentials, _ALTER_CLUSTER, "deletions|upsertions:results"
    ),
    57: Api((0, 2), api_versions.update_features, _ALTER_CLUSTER),
    60: Api((0, 2), metadata.describe_cluster),
    61: Api(
        (0, 0),
        transactions.describe_producers,
        _by_topics(Operation.READ),
        "topics partition_indexes:partitions",
        _LEADER,
    ),
    65: Api(
        (0, 0),
        transactions.describe_transactions,
        Rule(
            parts=[RequestParts("transactional_ids", authorize_describe_transaction)],
            visible=[VisibleParts("transaction_states", visible_transaction)],
        ),
        "transactional_ids:transaction_states",
        _COORDINATOR,
    ),
    # Each coordinator lists its own transactions.
    66: Api(
        (0, 2),
        transactions.list_transactions,
        Rule(visible=[VisibleParts("transaction_states", visible_transaction_listing)]),
        redirect=_COORDINATOR,
    ),
    68: Api((0, 1), consumer_groups.consumer_group_heartbeat, _SUBSCRIBER, redirect=_COORDINATOR),
    69: Api(
        (0, 1),
        consumer_groups.consumer_group_describe,
        _DESCRIBED_WITH_TOPICS,
        "group_ids:groups",
        _COORDINATOR,
    ),
    74: Api(
        (0, 1), configs.list_config_resources, Rule(authorize_cluster(Operation.DESCRIBE_CONFIGS))
    ),
    75: Api(
        (0, 0),
        metadata.describe_topic_partitions,
        Rule(
            parts=[RequestParts("topics", authorize_topic(Operation.DESCRIBE))],
            visible=[VisibleParts("topics", visible_topic)],
        ),
        "topics :partitions",
    ),
    76: Api((1, 1), consumer_groups.share_group_heartbeat, _SUBSCRIBER, redirect=_COORDINATOR),
    77: Api(
        (1, 1),
        consumer_groups.share_group_describe,
        _DESCRIBED_WITH_TOPICS,
        "group_ids:groups",
        _COORDINATOR,
    ),
    78: Api((1, 2), share_groups.share_fetch, _SHARE_CONSUMER, _TOPIC_RESPONSES, _LEADER),
    79: Api((1, 2), share_groups.share_acknowledge, _SHARE_CONSUMER, _TOPIC_RESPONSES, _LEADER),
    88: Api(
        (0, 0),
        streams_groups.streams_group_heartbeat,
        Rule(authorize_topology),
        redirect=_COORDINATOR,
    ),
    89: Api(
        (0, 0),
        streams_groups.streams_group_describe,
        Rule(
            parts=[RequestParts("group_ids", _DESCRIBED_GROUPS)],
            visible=[VisibleParts("groups", visible_streams_group)],
        ),
        "group_ids:groups",
        _COORDINATOR,
    ),
    90: Api(
        (0, 1),
        share_groups.describe_share_group_offsets,
        Rule(
            parts=[RequestParts("groups", _DESCRIBED_GROUPS)],
            visible=[VisibleParts("groups", visible_offsets)],
        ),
        "groups topics partitions",
        _COORDINATOR,
    ),
    91: Api(
        (0, 0),
        share_groups.alter_share_group_offsets,
        Rule(authorize_group(Operation.READ), _READ_TOPICS),
        _TOPIC_RESPONSES,
        _COORDINATOR,
    ),
    92: Api(
        (0, 0),
        share_groups.delete_share_group_offsets,
        Rule(authorize_group(Operation.DELETE), _READ_TOPICS),
        "topics:responses",
        _COORDINATOR,
    ),
    # Delegation tokens, the controllers' quorum, and what brokers alone ask of share coordinators.
    **{
        key: Api(versions, unsupported, errors=errors, is_served=False)
        for key, versions, errors in (
            (38, (1, 3), ""),
            (39, (1, 2), ""),
            (40, (1, 2), ""),
            (41, (1, 3), ""),
            (55, (0, 2), ""),
            (64, (0, 0), ""),
            (80, (0, 1), ""),
            (81, (0, 0), ""),
            (83, (0, 0), "topics:results partitions"),
            (84, (0, 0), "topics:results partitions"),
            (85, (0, 1), "topics:results partitions"),
            (86, (0, 0), "topics:results partitions"),
            (87, (0, 1), "topics:results partitions"),
        )
    },
}
"""By API key."""


@cache
def apis_of(kafka_version: str) -> Mapping[int, Api]:
    """Return the APIs of a Kafka, without those of which this cluster serves no version."""
    if kafka_version == NEWEST_KAFKA:
        return APIS
    refused, rows = refused_apis(kafka_version), {}
    for key, api in APIS.items():
        oldest, newest = api.versions
        newest = min(newest, newest_version(kafka_version, key))
        if newest >= oldest:
            handler = unsupported if key in refused else api.handler
            rows[key] = api._replace(versions=(oldest, newest), handler=handler)
    return rows


SUPPORTED: Mapping[int, Versions] = {key: api.versions for key, api in APIS.items()}


def serve(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response | Awaitable[Response]:
    """Serve the authorized part of a request.

    Raises:
        BadRequestError: the client has not authenticated.
    """
    if (
        connection.listener.sasl
        and request.api_key not in sasl.BEFORE_AUTHENTICATION
        and not sasl.is_authenticated(connection)
    ):
        listener = connection.listener
        raise BadRequestError(
            f"{request.api_name} before authentication: {listener.name} takes clients "
            f"with security.protocol={listener.security_protocol} and sasl.mechanism="
            f"{' or '.join(listener.sasl)}"
        )
    kafka_version = broker.cluster.config.kafka_version
    api = apis_of(kafka_version)[request.api_key]
    if (
        is_for_controller(kafka_version, request.api_key)
        and broker.broker_id != broker.cluster.controller.controller_id
    ):
        return _refusal(request, ErrorCode.NOT_CONTROLLER)
    delays = broker.cluster.delays
    if delays is not None and api.redirect is ErrorCode.NOT_COORDINATOR:
        delayed = delayed_response(broker, delays, request, api.errors)
        if delayed is not None:
            return delayed
    context = authorization_context(broker, request, connection)
    if context is None:
        return api.handler(broker, request, connection)
    return serve_authorized(context, api.rule, api.errors, api.handler)
