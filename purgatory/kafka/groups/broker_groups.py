"""The groups of one broker: those whose offsets are in partitions of the offsets' topic that it
leads.

Ground rules: those of `GroupCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from purgatory.core.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.committed_offset import (
    OFFSETS_TOPIC,
    CommittedOffset,
    OffsetsCodec,
    partition_of,
)
from purgatory.kafka.groups.group import Group, GroupState
from purgatory.kafka.groups.group_config import GroupConfig
from purgatory.kafka.groups.group_coordinator import GroupCoordinator
from purgatory.kafka.groups.group_offsets import GroupOffsets
from purgatory.kafka.replica_manager import ReplicaManager
from purgatory.kafka.topic_partition import TopicPartition

_MOST_METADATA_BYTES = 4096


class BrokerGroups(GroupCoordinator):
    """Coordinates groups and their offsets, and refuses those that another broker coordinates.

    Args:
        manager: where the records of committed offsets are.
        config: what groups are allowed.
        codec: makes and reads these records.
        new_purgatory: makes a purgatory of this name, which the caller closes.
        new_member_id: makes an id that no member had before, from how it begins.
        now_ms: the time of day, in milliseconds since 1970.
        offsets_partitions: tells how many partitions the offsets' topic has; it is made, if need
            be.
        is_known: whether there is such a partition in the cluster.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        config: GroupConfig,
        codec: OffsetsCodec,
        new_purgatory: Callable[[str], DelayedOperationPurgatory],
        new_member_id: Callable[[str], str],
        now_ms: Callable[[], int],
        offsets_partitions: Callable[[], int],
        is_known: Callable[[TopicPartition], bool],
    ) -> None:
        super().__init__(config, new_purgatory, new_member_id)
        self.offsets = GroupOffsets(manager, codec, now_ms)
        self._offsets_partitions = offsets_partitions
        self._is_known = is_known

    # Which groups are coordinated here.

    def place_of(self, group_id: str) -> TopicPartition:
        """Return the partition whose leader coordinates a group."""
        return TopicPartition(OFFSETS_TOPIC, partition_of(group_id, self._offsets_partitions()))

    def take_role(self, topic_partition: TopicPartition, leads: bool) -> None:
        """Coordinate the groups of a partition, or no more; all other topics are passed over.

        To be called when the broker has become a partition's leader, before it becomes a follower,
        and as often as it is told so. O(its records), where it begins to lead.
        """
        topic, partition = topic_partition
        if topic != OFFSETS_TOPIC or leads == self.offsets.leads(partition):
            return
        if leads:
            self.offsets.load(partition)
            return
        self.offsets.unload(partition)
        for group_id in list(self.groups):
            if self.place_of(group_id) == topic_partition:
                self.forget(group_id)

    def check_coordinated(self, group_id: str) -> None:
        """Refuse what is no group's name, or a group that another broker coordinates.

        Raises:
            GroupRefusal: INVALID_GROUP_ID or NOT_COORDINATOR.
        """
        self._partition(group_id)
        super().check_coordinated(group_id)

    def delete_topic(self, topic: str) -> None:
        """Delete what all groups committed of a topic that is gone, soon. O(their offsets)."""
        self.offsets.delete_topic(topic)

    # How far groups have read.

    def commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: Callable[[Mapping[TopicPartition, ErrorCode]], object],
    ) -> None:
        """Commit offsets.

        Args:
            generation, member_id, instance_id: who commits; -1, "" and None for who is in no group.
            offsets: what.
            respond: takes what became of each, once they are replicated; it is never called if this
                broker was killed just now.
        """
        try:
            partition = self._partition(group_id)
            self.check_commit(group_id, generation, member_id, instance_id)
        except GroupRefusal as refusal:
            respond(dict.fromkeys(offsets, refusal.code))
            return
        codes = {place: self._why_refused(place, one) for place, one in offsets.items()}
        taken = {place: one for place, one in offsets.items() if not codes[place]}
        if taken:
            self.offsets.commit(
                partition,
                group_id,
                taken,
                lambda code: respond({**codes, **dict.fromkeys(taken, code)}),
            )
        else:
            respond(codes)

    def _why_refused(self, place: TopicPartition, offset: CommittedOffset) -> ErrorCode:
        if not self._is_known(place):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len(offset.metadata.encode()) > _MOST_METADATA_BYTES:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return what a group has committed.

        Raises:
            GroupRefusal: another broker coordinates the group, or this one can't tell yet.
        """
        if not self.offsets.may_tell(self._partition(group_id)):
            raise GroupRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self.offsets.of_group(group_id)

    # Looking at groups.

    def all_groups(self) -> list[Group]:
        """Return the groups that are coordinated here, and those that left offsets only."""
        groups = self.groups
        left = [Group(group_id) for group_id in self.offsets.groups() if group_id not in groups]
        return [*groups.values(), *left]

    def describe(self, group_id: str) -> Group:
        """Return a group; one that nobody is in, or knows, is EMPTY or DEAD.

        Raises:
            GroupRefusal: another broker coordinates the group.
        """
        self._partition(group_id)
        group = self.groups.get(group_id)
        if group is None:
            group = Group(group_id)
            if not self.offsets.of_group(group_id):
                group.state = GroupState.DEAD
        return group

    def delete(self, group_id: str, respond: Callable[[ErrorCode], object]) -> None:
        """Delete a group without members, with its offsets."""
        try:
            group = self.describe(group_id)
            if group.members:
                raise GroupRefusal(ErrorCode.NON_EMPTY_GROUP)
            if group.state is GroupState.DEAD:
                raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND)
        except GroupRefusal as refusal:
            respond(refusal.code)
            return

        def deleted(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.forget(group_id)
            respond(code)

        self.offsets.delete(self._partition(group_id), group_id, deleted)

    def _partition(self, group_id: str) -> int:
        """Return the partition of the offsets' topic that a group belongs to, if it is led here.

        Raises:
            GroupRefusal: another broker coordinates the group.
        """
        partition = self.place_of(group_id).partition
        if not self.offsets.leads(partition):
            raise GroupRefusal(ErrorCode.NOT_COORDINATOR)
        return partition
