"""A member of a consumer group: its subscription, its current assignment, and the next one.

A coordinator that takes over reads the records: members keep their epochs and their partitions.

Ground rules
------------
* All values are immutable.
* A partition is assigned to a member only when no other holds it, also for revocation.
* A member comes to the target's epoch when all that it holds is in its target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from purgatory.kafka.topic_partition import NO_PARTITIONS, Partitions, TopicIdPartition

JOIN_EPOCH = 0
"""With this epoch a member joins, or joins again."""

LEAVE_EPOCH = -1
"""With this epoch a member leaves."""

STATIC_LEAVE_EPOCH = -2
"""With this epoch a static member leaves temporarily; the group keeps its place until its session
expires."""


class MemberState(IntEnum):
    """The progress of a member's reconciliation, in Kafka's numbers."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    UNRELEASED_PARTITIONS = 3


class Principal(NamedTuple):
    """A requester and its address, by which its access to topics is decided."""

    principal: str
    host: str


class ClassicMetadata(NamedTuple):
    """The words of a classic member when it joined: its session timeout in
    milliseconds, and its protocols with their metadata."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Subscription(NamedTuple):
    """The subscription that a member reported. Times are in milliseconds.

    ``requester`` is the client that subscribes by an expression. Without one, as after a restart
    until the member's next heartbeat, all topics are visible. ``classic`` is None where the member
    uses the consumer protocol.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    requester: Principal | None = None
    classic: ClassicMetadata | None = None


class CurrentAssignment(NamedTuple):
    """The current assignment of a member.

    Args:
        epoch: the epoch of the target with which it is reconciled.
        previous_epoch: the epoch before, which the member sends if the response was lost.
        state: the progress of its reconciliation.
        assigned: the partitions that it may read.
        revoking: the partitions that it has yet to revoke.
        epochs: the epoch of the target by which it got each of its partitions; those without one
            have ``epoch``.
    """

    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    epochs: Mapping[TopicIdPartition, int] = MappingProxyType({})

    @property
    def partitions(self) -> Partitions:
        """The partitions that no other member may own yet."""
        return self.assigned | self.revoking

    def assignment_epoch(self, partition: TopicIdPartition) -> int | None:
        """Return the epoch by which the member got one of its partitions; None for others."""
        if partition not in self.assigned and partition not in self.revoking:
            return None
        return self.epochs.get(partition, self.epoch)

    def with_epoch(self, epoch: int) -> CurrentAssignment:
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
    def is_static_leave(self) -> bool:
        """Whether it is a static member that left for a while."""
        return self.current.epoch == STATIC_LEAVE_EPOCH


def reconciled(
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_owned: Callable[[TopicIdPartition], bool],
) -> CurrentAssignment:
    """Return a member's assignment after a heartbeat.

    Args:
        current: the assignment before it.
        target, target_epoch: the target assignment, and its epoch of the group.
        owned: the partitions that the member reports; None: the heartbeat has none.
        is_owned: whether a member owns a partition, or has yet to revoke it.

    O(partitions of the member).
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(owned, current.revoking):
        return current
    retained = current.assigned & target
    revoking = current.assigned - target
    if revoking and _still_owns(owned, revoking):
        return current._replace(
            state=MemberState.UNREVOKED_PARTITIONS, assigned=retained, revoking=revoking
        )
    missing = target - retained
    # Partitions that the member itself gave up a moment ago may be its again.
    free = frozenset(
        partition
        for partition in missing
        if partition in current.revoking or not is_owned(partition)
    )
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    epochs = {partition: current.epochs.get(partition, current.epoch) for partition in retained}
    after = current._replace(
        state=state,
        assigned=retained | free,
        revoking=NO_PARTITIONS,
        epochs=epochs | dict.fromkeys(free, target_epoch),
    )
    return after.with_epoch(target_epoch)


def _still_owns(owned: Partitions | None, revoking: Partitions) -> bool:
    """Whether a member may still own some of these partitions."""
    return owned is None or not owned.isdisjoint(revoking)


class InitializedPartitions(NamedTuple):
    """The partitions of a share group that have a state, and the names of their topics by id."""

    partitions: Partitions
    names: tuple[tuple[UUID, str], ...]
