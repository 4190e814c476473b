"""A consumer group (KIP-848): its members, its epochs, and the partitions that each member holds.

A data structure: the coordinator decides on assignments, and removes members. The group
records which of its records have changed since they were last written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum

from purgatory.kafka.groups.assignors import (
    ASSIGNORS,
    DEFAULT_ASSIGNOR,
    Assignor,
    Subscriber,
    Subscribers,
)
from purgatory.kafka.groups.consumer_group_member import (
    ConsumerMember,
    CurrentAssignment,
    MemberState,
    Subscription,
    reconciled,
)
from purgatory.kafka.groups.epoch_group import EpochGroup
from purgatory.kafka.groups.group import ClassicGroupRecord
from purgatory.kafka.groups.group_records import (
    GroupRecordKey,
    GroupRecordValue,
    RecordKind,
)
from purgatory.kafka.groups.subscription import KnownTopics, SubscribedTopics
from purgatory.kafka.topic_partition import NO_PARTITIONS, Partitions, TopicIdPartition


class ConsumerGroupState(Enum):
    """The state of a consumer group, in Kafka's words."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup(EpochGroup[ConsumerMember]):
    """The members of one group, by member id.

    Args:
        group_id: its name.
        known_topics: the topics of the cluster.
    """

    assignors: Mapping[str, Assignor] = ASSIGNORS

    def __init__(self, group_id: str, known_topics: KnownTopics) -> None:
        super().__init__(group_id)
        self.static_members: dict[str, str] = {}
        self.targets: dict[str, Partitions] = {}
        self.topics = SubscribedTopics(known_topics)
        self.is_assignment_due = False
        """Whether partitions may be assigned that could not be before."""
        self._holders: dict[TopicIdPartition, str] = {}
        self._dissolved: ClassicGroupRecord | None = None

    # Its members.

    def replace_member(self, member: ConsumerMember) -> None:
        """Add or update a member. O(its partitions)."""
        member_id = member.member_id
        previous = self.members.get(member_id)
        self.members[member_id] = member
        if previous is None or previous.subscription != member.subscription:
            self._mark_changed(RecordKind.MEMBER, member_id)
            if previous is not None:
                self._release_instance(previous)
            if member.subscription.instance_id is not None:
                self.static_members[member.subscription.instance_id] = member_id
        if previous is None or previous.current != member.current:
            self._mark_changed(RecordKind.CURRENT, member_id)
            if previous is not None:
                self._release(previous)
            for partition in member.current.partitions:
                self._holders[partition] = member_id

    def remove(self, member_id: str) -> None:
        """Remove a member and free its partitions. O(its partitions)."""
        member = self.members.pop(member_id)
        self._release_instance(member)
        self._release(member)
        self.targets.pop(member_id, None)
        for kind in (RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT):
            self._mark_changed(kind, member_id)

    def replace(self, previous: ConsumerMember, member: ConsumerMember) -> None:
        """Replace a static member by a new one, with the same target."""
        target = self.targets.get(previous.member_id, NO_PARTITIONS)
        self.remove(previous.member_id)
        self.replace_member(member)
        self._set_target(member.member_id, target)

    def _release_instance(self, member: ConsumerMember) -> None:
        instance_id = member.subscription.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.current.partitions:
            if self._holders.get(partition) == member.member_id:
                del self._holders[partition]

    def is_owned(self, partition: TopicIdPartition) -> bool:
        """Whether a member owns a partition, or has yet to revoke it. O(1)."""
        return partition in self._holders

    # Their assignments.

    def is_retry(self, current: CurrentAssignment, epoch: int, owned: Partitions | None) -> bool:
        """Whether a heartbeat with another epoch is from a member whose last response was lost."""
        return epoch == current.previous_epoch and owned is not None and owned <= current.assigned

    def next_assignment(
        self, member: ConsumerMember, owned: Partitions | None
    ) -> CurrentAssignment:
        """Return a member's assignment after a heartbeat, by which it reports what it owns."""
        target = self.targets.get(member.member_id, NO_PARTITIONS)
        return reconciled(member.current, target, self.target_epoch, owned, self.is_owned)

    def bump_epoch(self) -> None:
        """Bump the group epoch after members or subscriptions have changed."""
        self.epoch += 1
        self._mark_changed(RecordKind.GROUP_EPOCH)

    @property
    def assignor(self) -> str:
        """The assignor that most members request, among those that request one. O(members)."""
        supporters = Counter(
            member.subscription.assignor
            for member in self.members.values()
            if member.subscription.assignor
        )
        return supporters.most_common(1)[0][0] if supporters else DEFAULT_ASSIGNOR

    def assign(self) -> None:
        """Compute the target assignment of the current epoch.

        O(members + partitions) with equal subscriptions.
        """
        subscribers = {
            member_id: Subscriber(
                self.topics.topic_ids(member.subscription),
                member.subscription.instance_id,
                self.targets.get(member_id, NO_PARTITIONS),
            )
            for member_id, member in self.members.items()
        }
        for member_id, target in self._new_targets(subscribers).items():
            self._set_target(member_id, target)
        self.target_epoch = self.epoch
        self.is_assignment_due = False
        self._mark_changed(RecordKind.TARGET_EPOCH)

    def _new_targets(self, subscribers: Subscribers) -> Mapping[str, Partitions]:
        return self.assignors[self.assignor](subscribers, self.topics.partition_counts)

    @property
    def assignable_partitions(self) -> Partitions:
        """The subscribed partitions that may be assigned. O(partitions)."""
        return self.topics.partitions

    def _set_target(self, member_id: str, target: Partitions) -> None:
        if self.targets.get(member_id) != target:
            self.targets[member_id] = target
            self._mark_changed(RecordKind.TARGET, member_id)

    def refresh_topics(self, matches: bool = False) -> bool:
        """Resolve the topics of all members; return whether the assignment may change.

        ``matches`` is `SubscribedTopics.refresh`'s.
        """
        subscriptions = (member.subscription for member in self.members.values())
        return self.topics.refresh(subscriptions, matches)

    def subscribed_names(self) -> set[str]:
        """Return the names of all subscribed topics. O(members + topics)."""
        names = (self.topics.names(member.subscription) for member in self.members.values())
        return set[str]().union(*names)

    # Its state.

    @property
    def state(self) -> ConsumerGroupState:
        """The group's state. O(members)."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(map(self._is_reconciled, self.members.values())):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def _is_reconciled(self, member: ConsumerMember) -> bool:
        current = member.current
        return current.epoch == self.target_epoch and current.state is MemberState.STABLE

    # Its records.

    def _value_of(self, key: GroupRecordKey) -> GroupRecordValue | None:
        if key.kind is RecordKind.CLASSIC or self._dissolved is not None:
            return self._dissolved if key.kind is RecordKind.CLASSIC else None
        member = self.members.get(key.member_id)
        if key.kind is RecordKind.GROUP_EPOCH:
            return self.epoch
        if key.kind is RecordKind.TARGET_EPOCH:
            return self.target_epoch
        if key.kind is RecordKind.TARGET:
            return self.targets.get(key.member_id)
        if member is None:
            return None
        return member.subscription if key.kind is RecordKind.MEMBER else member.current

    def adopt(self, epoch: int, members: Iterable[ConsumerMember]) -> None:
        """Go on with the members of a classic group, which hold their targets. O(partitions)."""
        self._mark_changed(RecordKind.CLASSIC)
        self.epoch = self.target_epoch = epoch
        for member in members:
            self.replace_member(member)
            self._set_target(member.member_id, member.current.assigned)
        self._mark_changed(RecordKind.GROUP_EPOCH)
        self._mark_changed(RecordKind.TARGET_EPOCH)

    def dissolve(self, record: ClassicGroupRecord) -> None:
        """End: a classic group goes on with the members. All changes that are left are the record
        of that group, and the deletion of all others. O(members)."""
        for member_id in self.members:
            for kind in (RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT):
                self._mark_changed(kind, member_id)
        for kind in (RecordKind.GROUP_EPOCH, RecordKind.TARGET_EPOCH, RecordKind.CLASSIC):
            self._mark_changed(kind)
        self._dissolved = record

    def restore(self, values: Mapping[GroupRecordKey, GroupRecordValue]) -> None:
        """Restore the state from the log's records. O(records)."""
        currents: dict[str, CurrentAssignment] = {}
        subscriptions: dict[str, Subscription] = {}
        for (_, kind, member_id, _), value in values.items():
            match value:
                case Subscription():
                    subscriptions[member_id] = value
                case CurrentAssignment():
                    currents[member_id] = value
                case frozenset():
                    self.targets[member_id] = value
                case int() if kind is RecordKind.GROUP_EPOCH:
                    self.epoch = value
                case int():
                    self.target_epoch = value
        for member_id, subscription in subscriptions.items():
            current = currents.get(member_id, CurrentAssignment())
            self.replace_member(ConsumerMember(member_id, subscription, current))
        self.refresh_topics(matches=True)
        self._changed_keys.clear()
        targets = NO_PARTITIONS.union(*self.targets.values())
        readers = {
            member_id
            for member_id, member in self.members.items()
            if self.topics.topic_ids(member.subscription)
        }
        # Topics came or went while nobody coordinated the group, or not all of a change was kept.
        stale = targets != self.assignable_partitions or not (
            readers <= self.targets.keys() <= self.members.keys()
        )
        if stale and self.members and self.epoch == self.target_epoch:
            self.bump_epoch()

    def _check(self) -> None:
        """Assert all invariants. O(members + partitions)."""
        owners: dict[TopicIdPartition, str] = {}
        for member_id, member in self.members.items():
            assert member.member_id == member_id
            current = member.current
            assert current.assigned.isdisjoint(current.revoking)
            assert (current.state is MemberState.UNREVOKED_PARTITIONS) == bool(current.revoking)
            assert current.epoch <= self.target_epoch
            for partition in current.partitions:
                assert partition not in owners, f"{partition} is held twice"
                owners[partition] = member_id
        assert owners == self._holders
        assert self.target_epoch <= self.epoch
        assert self.targets.keys() <= self.members.keys()
        assert {
            member.subscription.instance_id: member_id
            for member_id, member in self.members.items()
            if member.subscription.instance_id is not None
        } == self.static_members
