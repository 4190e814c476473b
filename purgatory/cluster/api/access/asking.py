"""A request and who makes it: what the rules of access look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from purgatory.cluster.broker import Broker
from purgatory.cluster.protocol.connection import Connection
from purgatory.cluster.protocol.wire import Request
from purgatory.kafka.security.authorizer import CLUSTER_NAME, Operation, ResourceType

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)


class Ask(NamedTuple):
    """A request, the broker that is asked, and the client."""

    broker: Broker
    request: Request
    connection: Connection

    @property
    def body(self) -> Any:
        """What is asked."""
        return self.request.body

    def may(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether the client may do this to a resource."""
        client = self.connection
        return self.broker.authorizer.allows(
            client.principal, client.host, operation, resource, name
        )

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Whether the client may do this to a topic."""
        return self.may(operation, TOPIC, name)

    def may_cluster(self, operation: Operation) -> bool:
        """Whether the client may do this to the cluster."""
        return self.may(operation, CLUSTER, CLUSTER_NAME)

    def may_some(self, operation: Operation, resource: ResourceType) -> bool:
        """Whether the client may do this to any resource of a type."""
        client = self.connection
        return self.broker.authorizer.allows_some(
            client.principal, client.host, operation, resource
        )

    def topic_of(self, part: Any) -> str | None:
        """Return which topic a part of the request is about, by name or id; None: none of ours."""
        for field in ("name", "topic", "topic_name"):
            name: str | None = getattr(part, field, None)
            if name is not None:
                return name
        return self._topic_with_id(getattr(part, "topic_id", None))

    def topic_told(self, part: Mapping[str, Any]) -> str | None:
        """Return which topic a part of an answer is about; None: none of ours."""
        name: str | None = part.get("name")
        return self._topic_with_id(part.get("topic_id")) if name is None else name

    def _topic_with_id(self, topic_id: UUID | None) -> str | None:
        if topic_id is None:
            return None
        topic = self.broker.cluster.controller.topic_with_id(topic_id)
        return None if topic is None else topic.name


def asked_by(broker: Broker, request: Request, connection: Connection) -> Ask | None:
    """Return what has to be looked at; None where the client may do everything."""
    if broker.authorizer.allows_all(connection.principal):
        return None
    return Ask(broker, request, connection)
