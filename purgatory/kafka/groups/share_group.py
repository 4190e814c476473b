"""A share group (KIP-932), and its assignor.

A share group is a consumer group but for what follows from sharing: a partition may be assigned to
several members, so a member gets its target at once, without waiting for revocations. Only those
partitions are assigned whose state is initialized (`ShareGroupCoordinator`).

Ground rules of the assignor (Kafka's simple one)
-------------------------------------------------
* Each subscribed partition is assigned to a member, and each member has a partition, if there are
  any.
* Of members with the same subscription, none has two partitions more than another, and each
  partition has the same number of members: as few as give every member a partition.
* Members keep their partitions, as far as that allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from uuid import UUID

from purgatory.kafka.groups.assignors import Subscribers
from purgatory.kafka.groups.consumer_group import ConsumerGroup, ConsumerGroupState
from purgatory.kafka.groups.consumer_group_member import (
    ConsumerMember,
    CurrentAssignment,
    InitializedPartitions,
)
from purgatory.kafka.groups.group_records import GroupRecordKey, GroupRecordValue, RecordKind
from purgatory.kafka.groups.subscription import KnownTopics
from purgatory.kafka.topic_partition import NO_PARTITIONS, Partitions, TopicIdPartition, by_topic


def assign_shares(
    subscribers: Subscribers, numbers: Mapping[UUID, Collection[int]]
) -> dict[str, Partitions]:
    """Return the assignment of each member. O(members * partitions).

    Args:
        subscribers: by member id.
        numbers: of each topic the partitions that may be assigned.
    """
    members_by_topics: dict[frozenset[UUID], list[str]] = {}
    for member_id in sorted(subscribers):
        members_by_topics.setdefault(subscribers[member_id].topic_ids, []).append(member_id)
    assigned: dict[str, Partitions] = {}
    for topic_ids, members in members_by_topics.items():
        partitions = [
            TopicIdPartition(topic_id, number)
            for topic_id in sorted(topic_ids)
            for number in sorted(numbers.get(topic_id, ()))
        ]
        previous = {member_id: subscribers[member_id].target for member_id in members}
        assigned.update(_balance(partitions, previous))
    return assigned


def _balance(
    partitions: list[TopicIdPartition], previous: Mapping[str, Partitions]
) -> dict[str, Partitions]:
    """Assign each partition to as many members as give every member a partition."""
    assignments: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in previous}
    if not partitions:
        return dict.fromkeys(previous, frozenset())
    members_per_partition = -(-len(previous) // len(partitions))
    share, larger = divmod(members_per_partition * len(partitions), len(previous))
    # Members with the most partitions have the larger shares.
    in_order = sorted(previous, key=lambda member_id: -len(previous[member_id]))
    room = {member_id: share + (rank < larger) for rank, member_id in enumerate(in_order)}
    holders: Counter[TopicIdPartition] = Counter()

    def assign(member_id: str, partition: TopicIdPartition) -> None:
        assignments[member_id].add(partition)
        holders[partition] += 1
        room[member_id] -= 1

    for member_id in in_order:
        for partition in sorted(previous[member_id].intersection(partitions)):
            if room[member_id] and holders[partition] < members_per_partition:
                assign(member_id, partition)
    for partition in partitions:
        candidates = sorted(
            (
                candidate
                for candidate in previous
                if room[candidate] and partition not in assignments[candidate]
            ),
            key=lambda member_id: -room[member_id],
        )
        for destination in candidates[: members_per_partition - holders[partition]]:
            assign(destination, partition)
        while holders[partition] < members_per_partition:
            # Members with room have this partition already. A full member takes it, and passes
            # another one to a member with room, which lacks one: no share is larger by two.
            source = next(taker for taker in in_order if room[taker])
            destination = next(other for other in previous if partition not in assignments[other])
            moved = min(assignments[destination] - assignments[source])
            assignments[destination].remove(moved)
            assignments[source].add(moved)
            room[source] -= 1
            assignments[destination].add(partition)
            holders[partition] += 1
    return {
        member_id: frozenset(assigned_partitions)
        for member_id, assigned_partitions in assignments.items()
    }


SHARE_ASSIGNOR = "simple"
"""Kafka's name of the only assignor."""


class ShareGroup(ConsumerGroup):
    """The members of one share group, by member id."""

    is_share = True
    own_kinds = (*ConsumerGroup.own_kinds, RecordKind.SHARE_STATE)

    def __init__(self, group_id: str, known_topics: KnownTopics) -> None:
        super().__init__(group_id, known_topics)
        self.initialized: Partitions | None = None
        """The partitions with a state, of all topics that were ever subscribed to; None: no state
        was ever initialized."""
        self.initializing: set[TopicIdPartition] = set()

    @property
    def assignor(self) -> str:
        return SHARE_ASSIGNOR

    @property
    def state(self) -> ConsumerGroupState:
        return ConsumerGroupState.STABLE if self.members else ConsumerGroupState.EMPTY

    # Partitions with a state.

    def uninitialized(self) -> Partitions:
        """Return the subscribed partitions without a state. O(1) if there are none."""
        known = self.initialized or NO_PARTITIONS
        if self.topics.partition_counts is self._initialized_counts:
            return NO_PARTITIONS
        new = self.topics.partitions - known - self.initializing
        if not new and not self.initializing:
            self._initialized_counts = self.topics.partition_counts
        return new

    _initialized_counts: Mapping[UUID, int] | None = None
    """The subscribed topics' partitions, if all of them have a state."""

    def set_initialized(self, partitions: Partitions) -> None:
        """Set the partitions with a state. Those of deleted topics are left out. O(partitions)."""
        exist = {topic.topic_id for topic in self.topics.known.topics.values()}
        self.initialized = frozenset(one for one in partitions if one.topic_id in exist)
        self._initialized_counts = None
        self._mark_changed(RecordKind.SHARE_STATE)
        self.is_assignment_due = bool(self.members) and self._lacks_initialized()

    def _lacks_initialized(self) -> bool:
        assigned = NO_PARTITIONS.union(*self.targets.values())
        topics = {one.topic_id for one in self.assignable_partitions}
        of_topics = {one for one in assigned if one.topic_id in topics}
        return of_topics != self.assignable_partitions

    @property
    def assignable_partitions(self) -> Partitions:
        return self.topics.partitions & (self.initialized or NO_PARTITIONS)

    def _new_targets(self, subscribers: Subscribers) -> Mapping[str, Partitions]:
        return assign_shares(subscribers, by_topic(self.assignable_partitions))

    def _value_of(self, key: GroupRecordKey) -> GroupRecordValue | None:
        if key.kind is not RecordKind.SHARE_STATE:
            return super()._value_of(key)
        if self.initialized is None:
            return None
        names = {topic.topic_id: name for name, topic in self.topics.known.topics.items()}
        topics = sorted({one.topic_id for one in self.initialized})
        return InitializedPartitions(
            self.initialized, tuple((topic_id, names.get(topic_id, "")) for topic_id in topics)
        )

    def restore(self, values: Mapping[GroupRecordKey, GroupRecordValue]) -> None:
        for value in values.values():
            if isinstance(value, InitializedPartitions):
                self.initialized = value.partitions
        super().restore(values)

    # Assignments.

    def is_retry(self, current: CurrentAssignment, epoch: int, owned: Partitions | None) -> bool:
        return epoch == current.previous_epoch

    def next_assignment(
        self, member: ConsumerMember, owned: Partitions | None
    ) -> CurrentAssignment:
        target = self.targets.get(member.member_id, NO_PARTITIONS)
        return member.current._replace(assigned=target).with_epoch(self.target_epoch)
