"""The topics of a cluster, as the members of its groups may know of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from purgatory.kafka.controller import Controller
from purgatory.kafka.groups.consumer_group_member import Viewer
from purgatory.kafka.security.authorizer import Authorizer, Operation, ResourceType
from purgatory.kafka.topics import Topic


class TopicsInSight:
    """All topics, and who may describe which (`KnownTopics`).

    Args:
        known: the topics.
        authorizer: returns what decides at a broker.
    """

    def __init__(self, known: Controller, authorizer: Callable[[], Authorizer]) -> None:
        self._known = known
        self._authorizer = authorizer

    @property
    def topics(self) -> Mapping[str, Topic]:
        """By name."""
        return self._known.topics

    @property
    def topics_version(self) -> int:
        """Another number whenever topics, partitions or access control lists came or went."""
        return self._known.topics_version + self._authorizer().version

    def sees(self, viewer: Viewer, topic: str) -> bool:
        """Whether somebody may know of a topic."""
        allows = self._authorizer().allows
        return allows(viewer.principal, viewer.host, Operation.DESCRIBE, ResourceType.TOPIC, topic)
