"""A member of a consumer group: its subscription, its current assignment, and the next one.

A coordinator that takes over reads the records: members keep their epochs and their partitions.

Ground rules
------------
* Values in, values out: nothing is changed.
* A partition is assigned to a member only when no other holds it, also for revocation.
* A member comes to the target's epoch when all that it holds is in its target.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from purgatory.kafka.topic_partition import NO_PARTITIONS, Partitions, TopicIdPartition

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


class Principal(NamedTuple):
    """Who asks, and from where: by that it is known which topics a member may know of."""

    principal: str
    host: str


class Subscription(NamedTuple):
    """What a member reported of itself. Times are in milliseconds.

    ``requester`` is who subscribes by an expression: it is not kept, and None, which sees all
    topics, until the member gives its next heartbeat.
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


class CurrentAssignment(NamedTuple):
    """What a member has.

    Args:
        epoch: the one of the target that it goes by.
        previous_epoch: that it had before: it comes with that if a response was lost.
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
    def partitions(self) -> Partitions:
        """The partitions that no other member may own yet."""
        return self.assigned | self.revoking

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
        current: what it had.
        target, target_epoch: what it is to have, and since which epoch of the group.
        owned: what the member says it owns; None where it doesn't say.
        is_owned: whether a partition is some member's, or about to be given up by one.

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
    free = frozenset(partition for partition in missing if not is_owned(partition))
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    after = current._replace(state=state, assigned=retained | free, revoking=NO_PARTITIONS)
    return after.with_epoch(target_epoch)


def _still_owns(owned: Partitions | None, revoking: Partitions) -> bool:
    """Whether a member has yet to give up some of these; it may, where it doesn't say."""
    return owned is None or not owned.isdisjoint(revoking)


class RecordKind(IntEnum):
    """What a record says; numbered as the versions of keys in Kafka's `__consumer_offsets`, those
    of consumer groups."""

    GROUP_EPOCH = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


class GroupRecordKey(NamedTuple):
    """What a record is about; ``member_id`` is "" where that is the group."""

    group_id: str
    kind: RecordKind
    member_id: str = ""
    is_share: bool = False


GroupRecordValue: TypeAlias = int | Subscription | Partitions | CurrentAssignment
"""An epoch of the group or of its target; or a member's report, target or assignment."""

GroupRecord: TypeAlias = tuple[GroupRecordKey, GroupRecordValue | None]
"""The new value; None: it is deleted."""
