"""A share group (KIP-932), and its assignor.

A share group is a consumer group but for what follows from sharing: a partition may be assigned to
several members, so a member gets its target at once, without waiting for revocations.

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
from collections.abc import Mapping
from uuid import UUID

from purgatory.kafka.groups.assignors import Assignor, Subscribers
from purgatory.kafka.groups.consumer_group import ConsumerGroup
from purgatory.kafka.groups.consumer_group_member import ConsumerMember, CurrentAssignment
from purgatory.kafka.topic_partition import NO_PARTITIONS, Partitions, TopicIdPartition


def assign_shares(
    subscribers: Subscribers, partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    """Return the assignment of each member. O(members * partitions)."""
    members_by_topics: dict[frozenset[UUID], list[str]] = {}
    for member_id in sorted(subscribers):
        members_by_topics.setdefault(subscribers[member_id].topic_ids, []).append(member_id)
    assigned: dict[str, Partitions] = {}
    for topic_ids, members in members_by_topics.items():
        partitions = [
            TopicIdPartition(topic_id, number)
            for topic_id in sorted(topic_ids)
            for number in range(partition_counts.get(topic_id, 0))
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


SHARE_ASSIGNORS: Mapping[str, Assignor] = {"simple": assign_shares}
"""By Kafka's name."""


class ShareGroup(ConsumerGroup):
    """The members of one share group, by member id."""

    is_share = True
    assignors = SHARE_ASSIGNORS

    @property
    def assignor(self) -> str:
        """The only assignor."""
        return next(iter(self.assignors))

    def is_retry(self, current: CurrentAssignment, epoch: int, owned: Partitions | None) -> bool:
        return epoch == current.previous_epoch

    def next_assignment(
        self, member: ConsumerMember, owned: Partitions | None
    ) -> CurrentAssignment:
        target = self.targets.get(member.member_id, NO_PARTITIONS)
        return member.current._replace(assigned=target).with_epoch(self.target_epoch)
