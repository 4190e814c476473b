"""The assignors of consumer groups: range and uniform.

Ground rules
------------
* The same question has the same answer: members and partitions are gone through in order.
* Each partition of a topic that anybody subscribes to is given to one member that does.
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
        target: what it was to have before.
    """

    topic_ids: frozenset[UUID]
    instance_id: str | None = None
    target: Partitions = NO_PARTITIONS


Subscribers: TypeAlias = Mapping[str, Subscriber]
"""By member id."""

Assignor: TypeAlias = Callable[[Subscribers, Mapping[UUID, int]], dict[str, Partitions]]
"""Returns what each member is to have, given how many partitions each topic has."""


def assign_by_range(
    subscribers: Subscribers, partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    """Give each member consecutive partitions of each topic that it subscribes to.

    Static members come first, by their instance ids; then the others, by their member ids. So who
    has partition 3 of a topic has partition 3 of another one with as many partitions and the same
    subscribers. O(members * topics + partitions).
    """
    in_order = sorted(subscribers, key=lambda member: _rank(member, subscribers[member]))
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


def _rank(member_id: str, subscriber: Subscriber) -> tuple[bool, str]:
    return subscriber.instance_id is None, subscriber.instance_id or member_id


def assign_uniformly(
    subscribers: Subscribers, partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    """Give all members as nearly as many partitions as their subscriptions allow, and move few.

    Where all subscribe to the same topics, no member has two partitions more than another, and each
    keeps what it had up to its share: O(members log members + partitions). Else the least loaded
    are given what is free, and what was given is moved as long as that makes the loads more even:
    O(partitions * members * topics) at worst.
    """
    held = _retained(subscribers, partition_counts)
    same = len({subscriber.topic_ids for subscriber in subscribers.values()}) <= 1
    if same:
        _keep_shares(held, sum(partition_counts.values()))
    taken = {partition for partitions in held.values() for partition in partitions}
    free = [
        TopicIdPartition(topic_id, number)
        for topic_id in sorted(partition_counts)
        for number in range(partition_counts[topic_id])
        if (topic_id, number) not in taken
    ]
    if same:
        _deal(held, free)
    else:
        _Balance(subscribers, held).deal(free)
    return {member_id: frozenset(partitions) for member_id, partitions in held.items()}


_Held: TypeAlias = dict[str, list[TopicIdPartition]]


def _retained(subscribers: Subscribers, partition_counts: Mapping[UUID, int]) -> _Held:
    """Return what members had of what they may still have, each partition once, in order."""
    taken: set[TopicIdPartition] = set()
    held: _Held = {}
    for member_id in sorted(subscribers):
        subscriber = subscribers[member_id]
        held[member_id] = [
            partition
            for partition in sorted(subscriber.target)
            if partition.topic_id in subscriber.topic_ids
            and partition.partition < partition_counts.get(partition.topic_id, 0)
            and partition not in taken
        ]
        taken.update(held[member_id])
    return held


def _keep_shares(held: _Held, partitions: int) -> None:
    """Let each member keep its share alone; those who had most have the larger ones."""
    if not held:
        return
    share, larger_shares = divmod(partitions, len(held))
    for rank, member_id in enumerate(sorted(held, key=lambda one: -len(held[one]))):
        del held[member_id][share + (rank < larger_shares) :]


def _deal(held: _Held, free: list[TopicIdPartition]) -> None:
    """Give free partitions to those who have least, topic by topic."""
    if not held:
        return
    share, larger_shares = divmod(sum(map(len, held.values())) + len(free), len(held))
    larger_shares -= sum(len(partitions) > share for partitions in held.values())
    left = iter(free)
    for partitions in held.values():
        partitions += [next(left) for _ in range(share - len(partitions))]
    rest = list(left)
    assert len(rest) == larger_shares, "shares add up to all partitions"
    for partitions in held.values():
        if rest and len(partitions) == share:
            partitions.append(rest.pop(0))


class _Balance:
    """Evens out what members hold whose subscriptions differ.

    What one holds can be passed to another one that subscribes to its topic, which can pass on
    something else, and so on. As long as such a path leads from a member to one that has two less,
    the loads can be evened out; without one, they can't be any more even.
    """

    def __init__(self, subscribers: Subscribers, held: _Held) -> None:
        self._held = held
        self._members: dict[UUID, list[str]] = {}
        for member_id in held:
            for topic_id in subscribers[member_id].topic_ids:
                self._members.setdefault(topic_id, []).append(member_id)

    def deal(self, free: list[TopicIdPartition]) -> None:
        """Give free partitions to those who have least, then even out."""
        held = self._held
        # Those that few may have come first: the others can be given around them.
        for partition in sorted(
            free, key=lambda partition: len(self._members.get(partition.topic_id, ()))
        ):
            members = self._members.get(partition.topic_id)
            if members:
                held[min(members, key=lambda member: len(held[member]))].append(partition)
        while any(
            self._relieve(partition)
            for partition in sorted(held, key=lambda partition: -len(held[partition]))
        ):
            pass

    def _relieve(self, member_id: str) -> bool:
        """Pass a partition on from a member, if the last one on a path has two less."""
        held = self._held
        most = len(held[member_id])
        path: dict[str, tuple[str, TopicIdPartition] | None] = {member_id: None}
        queue = deque([member_id])
        seen_topics: set[UUID] = set()
        while queue:
            giver = queue.popleft()
            for partition in held[giver]:
                if partition.topic_id in seen_topics:
                    continue
                seen_topics.add(partition.topic_id)
                for taker in self._members[partition.topic_id]:
                    if taker in path:
                        continue
                    path[taker] = giver, partition
                    if len(held[taker]) <= most - 2:
                        self._pass_on(taker, path)
                        return True
                    queue.append(taker)
        return False

    def _pass_on(self, taker: str, path: Mapping[str, tuple[str, TopicIdPartition] | None]) -> None:
        while (step := path[taker]) is not None:
            giver, one = step
            self._held[giver].remove(one)
            self._held[taker].append(one)
            taker = giver


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_by_range}
"""By Kafka's names; the first one is for groups that don't ask for any."""

DEFAULT_ASSIGNOR = next(iter(ASSIGNORS))
