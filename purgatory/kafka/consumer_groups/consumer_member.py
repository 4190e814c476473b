"""A member of a consumer group: what it said of itself, and what it has. Values, never changed."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from purgatory.kafka.consumer_groups.topic_id_partition import NO_PARTITIONS, Partitions

JOIN_EPOCH = 0
"""With this epoch a member joins, or joins again."""
LEAVE_EPOCH = -1
"""With this epoch a member leaves."""
STATIC_LEAVE_EPOCH = -2
"""With this epoch a static member leaves for a while; the group keeps its place until its session
ends."""


class MemberState(IntEnum):
    """How far a member is on its way to its target, in Kafka's numbers."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    UNRELEASED_PARTITIONS = 3


class ClassicMember(NamedTuple):
    """What a member that speaks the classic protocol said beside its subscription.

    ``protocols`` are its ways to assign partitions, each with what it said for it. Times are in
    milliseconds.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Viewer(NamedTuple):
    """Who asks, and from where: by that it is known which topics a member may know of."""

    principal: str
    host: str


class Subscription(NamedTuple):
    """What a member said of itself. Times are in milliseconds.

    ``viewer`` is who subscribes by an expression: it is not kept, and None, which sees all topics,
    until the member gives its next sign of life.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None
    viewer: Viewer | None = None


class CurrentAssignment(NamedTuple):
    """What a member has.

    Args:
        epoch: the one of the target that it goes by.
        previous_epoch: that it had before: it comes with that if an answer was lost.
        state: how far it is.
        assigned: what it may read.
        revoking: what it has to give up, and did not yet.
    """

    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS

    @property
    def held(self) -> Partitions:
        """What nobody else may have yet."""
        return self.assigned | self.revoking

    def at_epoch(self, epoch: int) -> CurrentAssignment:
        """Return it with another epoch, if that is one, and this as the previous one."""
        if epoch == self.epoch:
            return self
        return self._replace(epoch=epoch, previous_epoch=self.epoch)


class ConsumerMember(NamedTuple):
    """A member of a consumer group."""

    member_id: str
    subscription: Subscription
    current: CurrentAssignment = CurrentAssignment()

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol."""
        return self.subscription.classic is not None

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that left for a while."""
        return self.current.epoch == STATIC_LEAVE_EPOCH
