"""The assignors of consumer groups: range and uniform.

Ground rules
------------
* Equal arguments have equal results: members and partitions are gone through in order.
* Each partition of a topic with subscribers is assigned to one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias
from uuid import UUID

from purgatory.kafka.topic_partition import NO_PARTITIONS, Partitions, TopicIdPartition


class Subscriber(NamedTuple):
    """A member, as an assignor sees it.

    Args:
        topic_ids: the topics that it subscribes to and that exist.
        instance_id: of a static member.
        target: its previous target assignment.
    """

    topic_ids: frozenset[UUID]
    instance_id: str | None = None
    target: Partitions = NO_PARTITIONS


Subscribers: TypeAlias = Mapping[str, Subscriber]
"""By member id."""

Assignor: TypeAlias = Callable[[Subscribers, Mapping[UUID, int]], dict[str, Partitions]]
"""Returns each member's target assignment, from the partition counts of the topics."""


def assign_by_range(
    subscribers: Subscribers, partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    """Give each member consecutive partitions of each topic that it subscribes to.

    Static members come first, by their instance ids; then the others, by their member ids. A
    member with partition 3 of a topic thus has partition 3 of another one with as many partitions
    and the same subscribers. O(members * topics + partitions).
    """
    in_order = sorted(subscribers, key=lambda member: _sort_key(member, subscribers[member]))
    assigned: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in subscribers}
    for topic_id, count in partition_counts.items():
        members = [member for member in in_order if topic_id in subscribers[member].topic_ids]
        first = 0
        for rank, member_id in enumerate(members):
            share = count // len(members) + (rank < count % len(members))
            assigned[member_id].update(
                TopicIdPartition(topic_id, number) for number in range(first, first + share)
            )
            first += share
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _sort_key(member_id: str, subscriber: Subscriber) -> tuple[bool, str]:
    return subscriber.instance_id is None, subscriber.instance_id or member_id


def assign_uniformly(
    subscribers: Subscribers, partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    """Give all members as nearly as many partitions as their subscriptions allow, and move few.

    With equal subscriptions, no member has two partitions more than another, and each keeps its
    partitions up to its share: O(members log members + partitions). Otherwise free partitions go to
    the least loaded members, and assigned ones move as long as that makes the loads more even:
    O(partitions * members * topics) at worst.
    """
    assignments = _retained_assignments(subscribers, partition_counts)
    same = len({subscriber.topic_ids for subscriber in subscribers.values()}) <= 1
    if same:
        _trim_to_quota(assignments, sum(partition_counts.values()))
    assigned = {partition for partitions in assignments.values() for partition in partitions}
    free = [
        TopicIdPartition(topic_id, number)
        for topic_id in sorted(partition_counts)
        for number in range(partition_counts[topic_id])
        if (topic_id, number) not in assigned
    ]
    if same:
        _assign_free(assignments, free)
    else:
        _Balance(subscribers, assignments).assign_free(free)
    return {member_id: frozenset(partitions) for member_id, partitions in assignments.items()}


_Assignments: TypeAlias = dict[str, list[TopicIdPartition]]


def _retained_assignments(
    subscribers: Subscribers, partition_counts: Mapping[UUID, int]
) -> _Assignments:
    """Return what members had of what they may still have, each partition once, in order."""
    assigned: set[TopicIdPartition] = set()
    assignments: _Assignments = {}
    for member_id in sorted(subscribers):
        subscriber = subscribers[member_id]
        assignments[member_id] = [
            partition
            for partition in sorted(subscriber.target)
            if partition.topic_id in subscriber.topic_ids
            and partition.partition < partition_counts.get(partition.topic_id, 0)
            and partition not in assigned
        ]
        assigned.update(assignments[member_id])
    return assignments


def _trim_to_quota(assignments: _Assignments, partitions: int) -> None:
    """Limit each member to its share; members with the most partitions have the larger shares."""
    if not assignments:
        return
    share, larger_shares = divmod(partitions, len(assignments))
    for rank, member_id in enumerate(
        sorted(assignments, key=lambda partition: -len(assignments[partition]))
    ):
        del assignments[member_id][share + (rank < larger_shares) :]


def _assign_free(assignments: _Assignments, free: list[TopicIdPartition]) -> None:
    """Assign free partitions to the members with the fewest, topic by topic."""
    if not assignments:
        return
    share, larger_shares = divmod(sum(map(len, assignments.values())) + len(free), len(assignments))
    larger_shares -= sum(len(partitions) > share for partitions in assignments.values())
    unassigned = iter(free)
    for partitions in assignments.values():
        partitions += [next(unassigned) for _ in range(share - len(partitions))]
    rest = list(unassigned)
    assert len(rest) == larger_shares, "shares add up to all partitions"
    for partitions in assignments.values():
        if rest and len(partitions) == share:
            partitions.append(rest.pop(0))


class _Balance:
    """Evens out the partitions of members whose subscriptions differ.

    A partition can be passed to another member that subscribes to its topic, which can pass on
    another one, and so on. As long as such a path leads from a member to one that has two less,
    the loads can be evened out; without one, they can't be any more even.
    """

    def __init__(self, subscribers: Subscribers, assignments: _Assignments) -> None:
        self._held = assignments
        self._members: dict[UUID, list[str]] = {}
        for member_id in assignments:
            for topic_id in subscribers[member_id].topic_ids:
                self._members.setdefault(topic_id, []).append(member_id)

    def assign_free(self, free: list[TopicIdPartition]) -> None:
        """Assign free partitions to the members with the fewest, then balance."""
        assignments = self._held
        # Those that few may have come first: the others can be given around them.
        for partition in sorted(
            free, key=lambda partition: len(self._members.get(partition.topic_id, ()))
        ):
            members = self._members.get(partition.topic_id)
            if members:
                assignments[min(members, key=lambda member: len(assignments[member]))].append(
                    partition
                )
        while any(
            self._rebalance_member(partition)
            for partition in sorted(assignments, key=lambda partition: -len(assignments[partition]))
        ):
            pass

    def _rebalance_member(self, member_id: str) -> bool:
        """Pass a partition on from a member, if the last one on a path has two less."""
        assignments = self._held
        most = len(assignments[member_id])
        path: dict[str, tuple[str, TopicIdPartition] | None] = {member_id: None}
        queue = deque([member_id])
        visited_topics: set[UUID] = set()
        while queue:
            source = queue.popleft()
            for partition in assignments[source]:
                if partition.topic_id in visited_topics:
                    continue
                visited_topics.add(partition.topic_id)
                for destination in self._members[partition.topic_id]:
                    if destination in path:
                        continue
                    path[destination] = source, partition
                    if len(assignments[destination]) <= most - 2:
                        receiver = destination
                        while (step := path[receiver]) is not None:
                            giver, moved = step
                            assignments[giver].remove(moved)
                            assignments[receiver].append(moved)
                            receiver = giver
                        return True
                    queue.append(destination)
        return False


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_by_range}
"""By Kafka's names; the first one is for groups that don't ask for any."""

DEFAULT_ASSIGNOR = next(iter(ASSIGNORS))
