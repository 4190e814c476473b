"""Access control: handles the authorized part of a request, and returns errors for the rest.

A `Rule` authorizes a request, then each of its elements, and filters the response. Elements that
are not authorized do not reach the handler of the API.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from purgatory.cluster.api.acls import NOT_REQUESTED
from purgatory.cluster.broker_services import BrokerServices, Handler
from purgatory.cluster.protocol.connection import Connection, Response, await_response
from purgatory.cluster.protocol.error_responses import (
    error_element,
    error_places,
    error_response,
)
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka.security.authorizer import CLUSTER_NAME, Operation, ResourceType

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)


class AuthorizationContext(NamedTuple):
    """A request, the broker that received it, and the client."""

    broker: BrokerServices
    request: Request
    connection: Connection

    @property
    def body(self) -> Any:
        """The body of the request."""
        return self.request.body

    def allows(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether the client may do this to a resource."""
        client = self.connection
        return self.broker.authorizer.allows(
            client.principal, client.host, operation, resource, name
        )

    def allows_topic(self, operation: Operation, name: str) -> bool:
        """Whether the client may do this to a topic."""
        return self.allows(operation, TOPIC, name)

    def allows_cluster(self, operation: Operation) -> bool:
        """Whether the client may do this to the cluster."""
        return self.allows(operation, CLUSTER, CLUSTER_NAME)

    def allows_any(self, operation: Operation, resource: ResourceType) -> bool:
        """Whether the client may do this to any resource of a type."""
        client = self.connection
        return self.broker.authorizer.allows_any(client.principal, client.host, operation, resource)

    def topic_of(self, part: Any) -> str | None:
        """Return the topic of a part of the request, by name or id; None: there is none."""
        for field in ("name", "topic", "topic_name"):
            name: str | None = getattr(part, field, None)
            if name is not None:
                return name
        return self._topic_with_id(getattr(part, "topic_id", None))

    def topic_in_response(self, part: Mapping[str, Any]) -> str | None:
        """Return the topic of a part of a response; None: there is no such topic."""
        name: str | None = part.get("name") or part.get("topic_name")
        return self._topic_with_id(part.get("topic_id")) if name is None else name

    def _topic_with_id(self, topic_id: UUID | None) -> str | None:
        if topic_id is None:
            return None
        topic = self.broker.cluster.controller.topic_with_id(topic_id)
        return None if topic is None else topic.name


def authorization_context(
    broker: BrokerServices, request: Request, connection: Connection
) -> AuthorizationContext | None:
    """Return the context of a request's checks; None where the client may do everything."""
    if broker.authorizer.allows_all(connection.principal):
        return None
    return AuthorizationContext(broker, request, connection)


ALLOWED = 0


def allow_all(context: AuthorizationContext) -> int:
    """Allow any client the request as a whole."""
    return ALLOWED


@dataclass(frozen=True)
class RequestParts:
    """A list of a request whose elements are authorized one by one.

    Args:
        request: the list's name in the request.
        authorize: returns the error code of an element, or ``ALLOWED``.
        error_for_others: the error of the other elements if one is not authorized; None if each
            element is handled by itself.
    """

    request: str
    authorize: Callable[[AuthorizationContext, Any], int]
    error_for_others: int | None = None


@dataclass(frozen=True)
class VisibleParts:
    """A list of a response that is filtered for the client.

    Args:
        response: the list's name.
        filter: returns an element, or its visible part; None if it is hidden.
    """

    response: str
    filter: Callable[[AuthorizationContext, Mapping[str, Any]], Mapping[str, Any] | None]


@dataclass(frozen=True)
class Rule:
    """The authorization of an API.

    Args:
        authorize: returns the error code of the whole request, or ``ALLOWED``.
        parts: lists of the request whose elements are authorized.
        visible: lists of the response that are filtered.
        handles_empty: whether the handler is called if no element is authorized.
    """

    authorize: Callable[[AuthorizationContext], int] = allow_all
    parts: Sequence[RequestParts] = ()
    visible: Sequence[VisibleParts] = ()
    handles_empty: bool = False


async def serve_authorized(
    context: AuthorizationContext, rule: Rule, errors: str, handler: Handler
) -> Response:
    """Handle the authorized part of a request.

    Args:
        rule, errors, handler: those of its API in `registry.APIS`.
    """
    request = context.request
    places = error_places(request.api_key, request.api_version, errors)
    code = rule.authorize(context)
    if code:
        if getattr(request.body, "acks", None) == 0:  # as each error to it (`closes_connection`)
            context.connection.abort()
            return None
        response: Response = error_response(places, request.body, code)
        return response
    refused: list[Any] = []
    nothing_left = False
    for parts in rule.parts:
        codes = _codes(context, parts)
        if any(codes):
            elements = list(zip(getattr(request.body, parts.request), codes, strict=True))
            allowed = tuple(element for element, code in elements if not code)
            refused += [
                error_element(places.arrays, element, code) for element, code in elements if code
            ]
            body = dataclasses.replace(request.body, **{parts.request: allowed})
            request = dataclasses.replace(request, body=body)
            nothing_left = not allowed
    if refused and nothing_left and not rule.handles_empty:
        success = error_response(places, request.body, 0)
        array = places.arrays[0].response
        refusal: Response = dataclasses.replace(success, **{array: tuple(refused)})
        return refusal
    response = await await_response(handler(context.broker, request, context.connection))
    if not isinstance(response, Mapping):
        return response
    values = _visible(context, rule, response)
    if refused:
        array = places.arrays[0].response
        values[array] = [*values[array], *refused]
    return values


def _codes(context: AuthorizationContext, parts: RequestParts) -> list[int]:
    """Return a code for each element of a list of the request."""
    codes = [
        parts.authorize(context, element)
        for element in getattr(context.body, parts.request, None) or ()
    ]
    if parts.error_for_others is not None and any(codes):
        return [code or parts.error_for_others for code in codes]
    return codes


def _visible(
    context: AuthorizationContext, rule: Rule, response: Mapping[str, Any]
) -> dict[str, Any]:
    values = dict(response)
    for visible in rule.visible:
        if values.get(visible.response):
            filtered = [visible.filter(context, element) for element in values[visible.response]]
            values[visible.response] = [element for element in filtered if element is not None]
    for field in ("topics", "groups"):
        if isinstance(values.get(field), (list, tuple)):
            values[field] = [
                _with_authorized_operations(context, element) for element in values[field]
            ]
    bits = values.get("cluster_authorized_operations", NOT_REQUESTED)
    if bits != NOT_REQUESTED:
        allowed = _authorized_operations(context, ResourceType.CLUSTER, CLUSTER_NAME, bits)
        # As in Kafka: a client that may not describe the cluster doesn't see other operations.
        values["cluster_authorized_operations"] = (
            allowed if context.allows_cluster(Operation.DESCRIBE) else 0
        )
    return values


def _with_authorized_operations(
    context: AuthorizationContext, part: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Restrict the operations on a resource to the client's."""
    for field, resource, name in (
        ("topic_authorized_operations", TOPIC, "name"),
        ("authorized_operations", GROUP, "group_id"),
    ):
        bits = part.get(field, NOT_REQUESTED)
        if bits != NOT_REQUESTED and part.get(name):
            part = {**part, field: _authorized_operations(context, resource, part[name], bits)}
    return part


def _authorized_operations(
    context: AuthorizationContext, resource: ResourceType, name: str, bits: int
) -> int:
    allowed = (
        element
        for element in Operation
        if bits >> element & 1 and context.allows(element, resource, name)
    )
    return sum(1 << element for element in allowed)
