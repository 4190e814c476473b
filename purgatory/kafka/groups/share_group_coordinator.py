"""The coordinator of the share groups whose records a broker leads, and its assignor.

It is the one of consumer groups but for what follows from sharing: a partition may be assigned to
several members, so a member gets its target at once, without waiting for revocations.

Ground rules of the assignor (Kafka's simple one)
-------------------------------------------------
* Each subscribed partition is assigned to some member, and each member has some, if there are any.
* Of members with the same subscription, no one has two more than another, and each partition has
  the same number of members: as few as give every member one.
* Members keep their partitions, as far as that allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from purgatory.kafka.groups.assignors import Assignor, Subscribers
from purgatory.kafka.groups.consumer_group import ConsumerGroup
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerGroupCoordinator,
    ConsumerGroupHeartbeat,
)
from purgatory.kafka.groups.consumer_group_member import ConsumerMember, CurrentAssignment
from purgatory.kafka.topic_partition import NO_PARTITIONS, Partitions, TopicIdPartition


def assign_shares(
    subscribers: Subscribers, partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    """Return what each member is to fetch from. O(members * partitions)."""
    alike: dict[frozenset[UUID], list[str]] = {}
    for member_id in sorted(subscribers):
        alike.setdefault(subscribers[member_id].topic_ids, []).append(member_id)
    assigned: dict[str, Partitions] = {}
    for topic_ids, members in alike.items():
        partitions = [
            TopicIdPartition(topic_id, number)
            for topic_id in sorted(topic_ids)
            for number in range(partition_counts.get(topic_id, 0))
        ]
        former = {member_id: subscribers[member_id].target for member_id in members}
        assigned.update(_spread(partitions, former))
    return assigned


def _spread(
    partitions: list[TopicIdPartition], former: Mapping[str, Partitions]
) -> dict[str, Partitions]:
    """Give each partition to as many members as makes everybody have one."""
    held: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in former}
    if not partitions:
        return dict.fromkeys(former, frozenset())
    sharing = -(-len(former) // len(partitions))
    share, larger = divmod(sharing * len(partitions), len(former))
    # Those who had most have the larger shares.
    in_order = sorted(former, key=lambda member_id: -len(former[member_id]))
    room = {member_id: share + (rank < larger) for rank, member_id in enumerate(in_order)}
    holders: Counter[TopicIdPartition] = Counter()

    def give(member_id: str, partition: TopicIdPartition) -> None:
        held[member_id].add(partition)
        holders[partition] += 1
        room[member_id] -= 1

    for member_id in in_order:
        for partition in sorted(former[member_id].intersection(partitions)):
            if room[member_id] and holders[partition] < sharing:
                give(member_id, partition)
    for partition in partitions:
        takers = sorted(
            (taker for taker in former if room[taker] and partition not in held[taker]),
            key=lambda taker: -room[taker],
        )
        for taker in takers[: sharing - holders[partition]]:
            give(taker, partition)
        while holders[partition] < sharing:
            # Whoever has room has it already. One that is full gives that one something for it:
            # it has something else, as no share is larger by two.
            giver = next(taker for taker in in_order if room[taker])
            taker = next(other for other in former if partition not in held[other])
            passed_on = min(held[taker] - held[giver])
            held[taker].remove(passed_on)
            held[giver].add(passed_on)
            room[giver] -= 1
            held[taker].add(partition)
            holders[partition] += 1
    return {member_id: frozenset(those) for member_id, those in held.items()}


SHARE_ASSIGNORS: Mapping[str, Assignor] = {"simple": assign_shares}
"""By Kafka's name."""


class ShareGroup(ConsumerGroup):
    """The members of one share group, by member id."""

    is_share = True
    assignors = SHARE_ASSIGNORS

    @property
    def assignor(self) -> str:
        """The one that there is."""
        return next(iter(self.assignors))

    def is_held(self, partition: TopicIdPartition) -> bool:
        """Whether a partition is exclusive to a member: never."""
        return False


class ShareGroupCoordinator(ConsumerGroupCoordinator):
    """Coordinates the share groups of one broker."""

    new_group = ShareGroup

    def _missed_response(self, current: CurrentAssignment, request: ConsumerGroupHeartbeat) -> bool:
        return request.epoch == current.previous_epoch

    def _next_step(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Partitions | None
    ) -> CurrentAssignment:
        target = group.targets.get(member.member_id, NO_PARTITIONS)
        return member.current._replace(assigned=target).at_epoch(group.target_epoch)
