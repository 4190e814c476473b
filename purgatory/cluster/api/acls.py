"""DescribeAcls, CreateAcls, DeleteAcls, and the authorized operations in other responses.

A change is complete when all brokers apply it; until then its request waits in the purgatory
AlterAcls.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from purgatory.cluster.api.response_future import response_future
from purgatory.cluster.broker_services import BrokerServices
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka import ErrorCode
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.security.authorizer import (
    ALTER_ACLS_KEY,
    Acl,
    AclFilter,
    DelayedAlterAcls,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
)

_PARTIAL_CHANGE_MESSAGE = "not all brokers have the change yet"


class _Result(NamedTuple):
    """The result of a part of a request; 0 is success."""

    code: int = 0
    message: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        return {"error_code": self.code, "error_message": self.message}


_DONE = _Result(message="")
"""Of lists and creations; Kafka's other responses have no text there."""
_OF_FILTERS = (
    (0, ResourceType.ANY),
    (2, PatternType.ANY),
    (2, PatternType.MATCH),
    (5, Operation.ANY),
    (6, Permission.ANY),
)
"""Values that only filters may have, by the place in an entry."""

_DISABLED = _Result(ErrorCode.SECURITY_DISABLED, "this cluster has no authorizer")


async def describe_acls(
    broker: BrokerServices, request: Request, connection: Connection
) -> Response:
    """List the entries that match a filter."""
    found: list[Acl] = []
    acl_filter = _filter(request.body)
    is_known = request.body.resource_type_filter in _RESOURCE_TYPES
    if not broker.cluster.security.is_authorizing:
        result = _DISABLED
    elif not is_known:  # as in Kafka: nothing is of such a type
        result = _DONE
    elif isinstance(acl_filter, _Result):
        result = acl_filter
    else:
        result = _DONE
        found = sorted(broker.authorizer.find(acl_filter))
    return {
        "throttle_time": 0,
        **result.fields,
        "resources": [
            {
                "resource_type": resource_type,
                "resource_name": name,
                "pattern_type": pattern_type,
                "acls": [_description(acl) for acl in acls],
            }
            for (resource_type, name, pattern_type), acls in groupby(found, lambda acl: acl[:3])
        ],
    }


async def create_acls(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Create ACLs: each is validated on its own, and the valid ones are saved together."""
    results: list[_Result] = []
    added: list[Acl] = []
    for requested in request.body.creations:
        acl = _new_acl(requested)
        if isinstance(acl, Acl):
            added.append(acl)
            results.append(_Result())
        else:
            results.append(acl)
    changed = await _alter_acls(broker, added, [])
    return {
        "throttle_time": 0,
        "results": [
            (result if result.code else changed if changed.code else _DONE).fields
            for result in results
        ],
    }


async def delete_acls(broker: BrokerServices, request: Request, connection: Connection) -> Response:
    """Remove the entries that match filters."""
    results: list[tuple[_Result, list[Acl]]] = []
    for requested in request.body.filters:
        acl_filter = _filter(requested)
        if isinstance(acl_filter, _Result):
            results.append((acl_filter, []))
        else:
            found = [acl for acl in broker.cluster.security.acls if acl_filter.matches(acl)]
            results.append((_Result(), sorted(found)))
    changed = await _alter_acls(broker, [], [acl for _, found in results for acl in found])
    return {
        "throttle_time": 0,
        "filter_results": [
            {
                **(result if result.code else changed).fields,
                "matching_acls": [
                    {
                        **changed.fields,
                        "resource_type": acl.resource_type,
                        "resource_name": acl.name,
                        "pattern_type": acl.pattern_type,
                        **_description(acl),
                    }
                    for acl in found
                ],
            }
            for result, found in results
        ],
    }


async def _alter_acls(broker: BrokerServices, added: list[Acl], removed: list[Acl]) -> _Result:
    """Change the entries, and wait until all live brokers apply the change."""
    security = broker.cluster.security
    if not security.is_authorizing:
        return _DISABLED
    if not added and not removed:
        return _Result()
    try:
        security.change_acls(added, removed)
    except ClusterError as error:
        return _Result(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    timeout_ms = security.authorization.alter_timeout_ms
    version = security.version

    def wait(respond: Any) -> None:
        everywhere = partial(broker.cluster.all_have_acls, version)
        operation = DelayedAlterAcls(timeout_ms, everywhere, respond)
        broker.alter_acls_purgatory.try_complete_else_watch(operation, [ALTER_ACLS_KEY])

    code: ErrorCode = await response_future(wait)
    return _Result() if code is ErrorCode.NONE else _Result(int(code), _PARTIAL_CHANGE_MESSAGE)


def _new_acl(requested: Any) -> Acl | _Result:
    try:
        acl = Acl(
            ResourceType(requested.resource_type),
            requested.resource_name,
            PatternType(getattr(requested, "resource_pattern_type", PatternType.LITERAL)),
            requested.principal,
            requested.host,
            Operation(requested.operation),
            Permission(requested.permission_type),
        )
    except ValueError as error:
        return _Result(ErrorCode.INVALID_REQUEST, str(error))
    wrong = check_acl(acl)
    if wrong is None:
        return acl
    is_filter = any(acl[place] is value for place, value in _OF_FILTERS)  # as in Kafka
    return _Result(
        ErrorCode.UNKNOWN_SERVER_ERROR if is_filter else ErrorCode.INVALID_REQUEST, wrong
    )


def _filter(requested: Any) -> AclFilter | _Result:
    try:
        return AclFilter(
            ResourceType(requested.resource_type_filter),
            requested.resource_name_filter,
            PatternType(getattr(requested, "pattern_type_filter", PatternType.LITERAL)),
            requested.principal_filter,
            requested.host_filter,
            Operation(requested.operation),
            Permission(requested.permission_type),
        )
    except ValueError as error:
        return _Result(ErrorCode.INVALID_REQUEST, str(error))


def _description(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


_RESOURCE_TYPES = frozenset(map(int, ResourceType))

NOT_REQUESTED = -(2**31)
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = range(3, 9)
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(9, 13)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


_CONFIGS = (_DESCRIBE_CONFIGS, _ALTER_CONFIGS)
_CLUSTER_OPERATIONS = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _IDEMPOTENT_WRITE, *_CONFIGS
)
_OF_TOPIC = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, *_CONFIGS)
_GROUP_OPERATIONS = _bits(_READ, _DELETE, _DESCRIBE, *_CONFIGS)


def authorized_cluster_operations(body: object) -> int:
    """Return the operations on the cluster, where requested."""
    return (
        _CLUSTER_OPERATIONS
        if getattr(body, "include_cluster_authorized_operations", False)
        else NOT_REQUESTED
    )


def authorized_topic_operations(body: object) -> int:
    """Return the operations on a topic, where requested."""
    return (
        _OF_TOPIC if getattr(body, "include_topic_authorized_operations", False) else NOT_REQUESTED
    )


def described_topic_operations() -> int:
    """Return the operations on a topic, for an API that always returns them."""
    return _OF_TOPIC


def authorized_group_operations(body: object) -> int:
    """Return the operations on a group, where requested."""
    return (
        _GROUP_OPERATIONS
        if getattr(body, "include_authorized_operations", False)
        else NOT_REQUESTED
    )


def with_operations(description: dict[str, Any], allowed: int) -> dict[str, Any]:
    """Add the operations on a group to its description, unless that is an error."""
    return (
        description
        if description["error_code"]
        else {**description, "authorized_operations": allowed}
    )
