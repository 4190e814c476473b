"""The coordinator of the share groups whose records a broker leads.

It is that of consumer groups but for what follows from sharing: a partition may be several
members', so a member has its target at once, and nobody waits for another one to give up anything.

Ground rules: those of `ConsumerGroupCoordinator`.
"""

from __future__ import annotations

from purgatory.kafka.consumer_groups.consumer_group_coordinator import ConsumerGroupCoordinator
from purgatory.kafka.consumer_groups.consumer_group_state import ConsumerGroup
from purgatory.kafka.consumer_groups.consumer_heartbeat import ConsumerHeartbeat
from purgatory.kafka.consumer_groups.consumer_member import ConsumerMember, CurrentAssignment
from purgatory.kafka.consumer_groups.topic_id_partition import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from purgatory.kafka.share_groups.share_assignor import SHARE_ASSIGNORS


class ShareGroup(ConsumerGroup):
    """The members of one share group, by member id."""

    is_share = True
    assignors = SHARE_ASSIGNORS

    @property
    def assignor(self) -> str:
        """The one that there is."""
        return next(iter(self.assignors))

    def is_held(self, one: TopicIdPartition) -> bool:
        """Whether nobody else may have a partition: never."""
        return False


class ShareGroupCoordinator(ConsumerGroupCoordinator):
    """Coordinates the share groups of one broker."""

    new_group = ShareGroup

    def _missed_an_answer(self, current: CurrentAssignment, asked: ConsumerHeartbeat) -> bool:
        return asked.epoch == current.previous_epoch

    def _next_step(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Partitions | None
    ) -> CurrentAssignment:
        target = group.targets.get(member.member_id, NO_PARTITIONS)
        return member.current._replace(assigned=target).at_epoch(group.target_epoch)
