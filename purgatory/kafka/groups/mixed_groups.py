"""Groups of all kinds at one broker: which requests go to which, and how a group becomes another.

    classic     one of its members assigns (`GroupCoordinator`)
    consumer    the coordinator assigns (`ConsumerGroupCoordinator`); members of the classic
                protocol may be in it (`ClassicMembers`)
    share       members take records one by one (`ShareGroupCoordinator`)

A group that nobody is in makes way for one of another kind. A classic group of consumers becomes a
consumer group when a member of the consumer protocol joins (it is upgraded), and is one again when
the last one of these is gone (downgraded), as far as the migration policy allows: nobody has to be
stopped.

Ground rules: those of `GroupCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka.consumer_groups.classic_members import ClassicMembers
from purgatory.kafka.consumer_groups.consumer_group_coordinator import (
    ConsumerGroupCoordinator,
    RespondHeartbeat,
)
from purgatory.kafka.consumer_groups.consumer_group_state import ConsumerGroup
from purgatory.kafka.consumer_groups.consumer_heartbeat import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
)
from purgatory.kafka.consumer_groups.consumer_member import JOIN_EPOCH
from purgatory.kafka.consumer_groups.group_record import GroupRecord
from purgatory.kafka.consumer_groups.subscribed_topics import KnownTopics
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.committed_offset import OFFSETS_TOPIC, partition_of
from purgatory.kafka.groups.group import Group, GroupProtocol, Joining
from purgatory.kafka.groups.group_answers import RespondJoin, RespondSync
from purgatory.kafka.groups.group_config import GroupConfig
from purgatory.kafka.groups.group_coordinator import GroupCoordinator
from purgatory.kafka.groups.group_offsets import GroupOffsets
from purgatory.kafka.groups.group_settings import GroupSettings
from purgatory.kafka.share_groups.share_group_coordinator import ShareGroupCoordinator
from purgatory.kafka.topic_partition import TopicPartition

_log = Logger("purgatory.kafka")


class MixedGroups(GroupCoordinator):
    """Coordinates the members of groups of all kinds.

    Args:
        config: what groups are allowed.
        new_purgatory: makes a purgatory of this name.
        new_member_id: makes an id that no member had before, from how it begins.
        offsets: keeps their records.
        offsets_partitions: tells how many partitions the offsets' topic has; it is made, if need
            be.
        known_topics: the topics of the cluster.
        settings_of: returns the settings of a group.
    """

    def __init__(
        self,
        config: GroupConfig,
        new_purgatory: Callable[[str], DelayedOperationPurgatory],
        new_member_id: Callable[[str], str],
        offsets: GroupOffsets,
        offsets_partitions: Callable[[], int],
        known_topics: KnownTopics,
        settings_of: Callable[[str], GroupSettings],
    ) -> None:
        super().__init__(config, new_purgatory, new_member_id)
        self.offsets = offsets
        self._offsets_partitions = offsets_partitions
        self._known_topics = known_topics
        self.consumers = ConsumerGroupCoordinator(
            config.max_size,
            lambda group_id: settings_of(group_id).milliseconds("consumer.session.timeout.ms"),
            known_topics,
            self.heartbeats,
            lambda: new_member_id("consumer"),
            self._write,
        )
        self.consumers.became_classic = self._downgrade_if_classic
        self.shares = ShareGroupCoordinator(
            config.share_max_size,
            lambda group_id: settings_of(group_id).milliseconds("share.session.timeout.ms"),
            known_topics,
            self.heartbeats,
            lambda: new_member_id("share"),
            self._write,
        )
        self._coordinators = (self.consumers, self.shares)
        self._classic = ClassicMembers(
            self.consumers, self.heartbeats, known_topics, config.max_size
        )

    # Which groups are coordinated here.

    def place_of(self, group_id: str) -> TopicPartition:
        """Return the partition whose leader coordinates a group."""
        return TopicPartition(OFFSETS_TOPIC, partition_of(group_id, self._offsets_partitions()))

    def check_coordinated(self, group_id: str) -> None:
        """Refuse what is no group's name, or a group that another broker coordinates.

        Raises:
            GroupRefusal: INVALID_GROUP_ID or NOT_COORDINATOR.
        """
        self._partition(group_id)
        super().check_coordinated(group_id)

    # Signs of life of consumers and share consumers.

    def consumer_heartbeat(self, asked: ConsumerHeartbeat, respond: RespondHeartbeat) -> None:
        """Take a sign of life of a member of a group of the consumer protocol.

        Args:
            asked: by whom, and what has changed.
            respond: takes the answer once that is replicated; it is never called if this broker was
                killed just now.
        """
        self._take_sign(self.consumers, asked, respond)

    def share_heartbeat(self, asked: ConsumerHeartbeat, respond: RespondHeartbeat) -> None:
        """Take a sign of life of a member of a share group, as ``consumer_heartbeat`` does."""
        self._take_sign(self.shares, asked, respond)

    def _take_sign(
        self,
        coordinator: ConsumerGroupCoordinator,
        asked: ConsumerHeartbeat,
        respond: RespondHeartbeat,
    ) -> None:
        try:
            if asked.group_id:
                partition = self._partition(asked.group_id)
                super().check_coordinated(asked.group_id)
                self._check_may_tell(partition)
                if asked.epoch == JOIN_EPOCH:
                    asked.check()
                self._make_way(coordinator, asked)
        except GroupRefusal as refusal:
            respond(ConsumerHeartbeatAnswer(refusal.code, message=refusal.message))
            return
        coordinator.heartbeat(asked, respond)

    def _make_way(self, coordinator: ConsumerGroupCoordinator, asked: ConsumerHeartbeat) -> None:
        """Have a group of another kind be no more that nobody is in, or that can be upgraded, where
        one is to begin."""
        group_id = asked.group_id
        classic, other = self.groups.get(group_id), self._group_of_epochs(group_id)
        if other is not None and group_id in coordinator.groups:
            other = None
        joins = asked.epoch == JOIN_EPOCH
        is_consumer = coordinator is self.consumers
        if classic is not None and joins and is_consumer and self._may_be_upgraded(classic):
            self._upgrade(classic)
            return
        # Members that were only given their ids lose nothing: they come with others.
        waits = classic and classic.pending_members and not self.config.migration_policy.upgrades
        has_members = (classic and classic.members) or waits or (other and other.members)
        if has_members or ((classic or other) and not joins):
            raise GroupRefusal(
                ErrorCode.GROUP_ID_NOT_FOUND, message=f"{group_id} is a group of another kind"
            )
        if classic is not None:
            self.forget(group_id)
        if other is not None:
            self._forget_empty(group_id)

    # Requests of members of the classic protocol.

    def _join(
        self,
        group_id: str,
        member_id: str,
        joined: Joining,
        ids_first: bool,
        respond: RespondJoin,
    ) -> None:
        self.check_coordinated(group_id)
        group = self._group_with_classic_members(group_id)
        if group is not None:
            self._let_last_consumer_go(group, member_id, joined)
            group = self._group_with_classic_members(group_id)
        if group is None:
            super()._join(group_id, member_id, joined, ids_first, respond)
            return
        self.check_session_timeout(joined)
        self._check_may_tell(self._partition(group_id))
        new_id = self._new_member_id(joined.instance_id or joined.client_id)
        self._classic.join(group, member_id, new_id, joined, respond)

    def _sync(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        assignments: Mapping[str, bytes],
        respond: RespondSync,
        protocol: GroupProtocol,
    ) -> None:
        self.check_coordinated(group_id)
        group = self._group_with_classic_members(group_id)
        if group is None:
            super()._sync(
                group_id, generation, member_id, instance_id, assignments, respond, protocol
            )
        else:
            respond(self._classic.sync(group, generation, member_id, instance_id, protocol))

    def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """As `GroupCoordinator` does, for members of consumer groups as well.

        Raises:
            GroupRefusal: the member isn't in this generation, or is to join again.
        """
        self.check_coordinated(group_id)
        group = self._group_with_classic_members(group_id)
        if group is None:
            super().heartbeat(group_id, generation, member_id, instance_id)
        else:
            self._classic.beat(group, generation, member_id, instance_id)

    def _leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        group = self._group_with_classic_members(group_id)
        if group is None:
            return super()._leave(group_id, member_id, instance_id)
        try:
            self._classic.leave(group, member_id, instance_id)
        except GroupRefusal as refusal:
            return refusal.code
        return ErrorCode.NONE

    def _group_with_classic_members(self, group_id: str) -> ConsumerGroup | None:
        """Return a consumer group that classic members may be in; None, where there is none."""
        group = self.consumers.groups.get(group_id)
        if group is None or not group.members or not self.config.migration_policy.mixes:
            return None
        return group

    def check_joining(self, group_id: str) -> None:
        """Have a group of another kind that nobody is in be no more, where a classic one is to
        begin.

        Raises:
            GroupRefusal: INCONSISTENT_GROUP_PROTOCOL: it has members.
        """
        group = self._group_of_epochs(group_id)
        if group is None:
            return
        if group.members:
            raise GroupRefusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._forget_empty(group_id)

    # How a group becomes one of another kind.

    def _may_be_upgraded(self, group: Group) -> bool:
        upgrades = self.config.migration_policy.upgrades
        return upgrades and bool(group.members) and self._classic.may_be_upgraded(group)

    def _upgrade(self, classic: Group) -> None:
        """Have a classic group be a consumer group; who waits in it is to join again."""
        group_id = classic.group_id
        members = self._classic.upgraded(classic)
        kept = {member.member_id for member in members}
        for member in classic.members.values():
            member.refuse(
                ErrorCode.REBALANCE_IN_PROGRESS
                if member.member_id in kept
                else ErrorCode.UNKNOWN_MEMBER_ID
            )
        self.forget(group_id)
        group = ConsumerGroup(group_id, self._known_topics)
        self.consumers.groups[group_id] = group
        group.begin(classic.generation, members)
        for one in members:
            self.consumers.watch_session(group, one)
        _log.info("group_upgraded", group=group_id, epoch=group.epoch, members=len(members))

    def _downgrade_if_classic(self, group: ConsumerGroup) -> bool:
        """Have a consumer group be a classic one, if all that are left of it are; they join again.

        Returns:
            Whether it is one.
        """
        members = group.members.values()
        if (
            not self.config.migration_policy.downgrades
            or not members
            or not all(member.is_classic for member in members)
        ):
            return False
        group_id = group.group_id
        classic = self._classic.downgraded(group)
        self.consumers.forget(group_id)
        keys = dict.fromkeys((*self.offsets.records_of(group_id), *group.all_keys()))
        self._write(group_id, [(key, None) for key in keys], _ignore)
        self.groups[group_id] = classic
        for member in classic.members.values():
            self._watch_session(classic, member)
        _log.info("group_downgraded", group=group_id, generation=classic.generation)
        self._prepare_rebalance(classic, "no member of the consumer protocol is left")
        return True

    def _let_last_consumer_go(self, group: ConsumerGroup, member_id: str, joined: Joining) -> None:
        """Let a static member of the consumer protocol go that comes back with the classic one, if
        all others speak that."""
        holder_id = group.static_members.get(joined.instance_id or "")
        consumers = [one.member_id for one in group.members.values() if not one.is_classic]
        if not member_id and consumers == [holder_id]:
            self.consumers.remove(group, consumers[0], "came back with the classic protocol")
            self.consumers.save(group, _ignore)

    def _group_of_epochs(self, group_id: str) -> ConsumerGroup | None:
        """Return a group of the consumer protocol, or a share group; None, if it is neither."""
        return self.consumers.groups.get(group_id) or self.shares.groups.get(group_id)

    def _forget_empty(self, group_id: str) -> None:
        for coordinator in self._coordinators:
            coordinator.forget(group_id)
        self._write(group_id, [(key, None) for key in self.offsets.records_of(group_id)], _ignore)

    def _write(
        self,
        group_id: str,
        records: Sequence[GroupRecord],
        respond: Callable[[ErrorCode], object],
    ) -> None:
        self.offsets.write(self.place_of(group_id).partition, records, respond)

    def _check_may_tell(self, partition: int) -> None:
        """Refuse while a new coordinator may have read what will not be replicated."""
        if not self.offsets.may_tell(partition):
            raise GroupRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def _partition(self, group_id: str) -> int:
        """Return the partition of the offsets' topic that a group belongs to, if it is led here.

        Raises:
            GroupRefusal: another broker coordinates the group.
        """
        partition = partition_of(group_id, self._offsets_partitions())
        if not self.offsets.leads(partition):
            raise GroupRefusal(ErrorCode.NOT_COORDINATOR)
        return partition


def _ignore(_: object) -> None:
    """Take an answer for which nobody waits."""
