"""The groups of one broker: those whose partition of the offsets topic it leads.

    classic     a member assigns the partitions (`GroupCoordinator`)
    consumer    the coordinator assigns them (`MixedGroupCoordinator`, KIP-848)
    share       members take records one by one (`ShareGroupCoordinator`, KIP-932)
    streams     the coordinator assigns tasks (`StreamsGroupCoordinator`, KIP-1071)

An empty group makes way for a group of another kind with the same name; but, as in Kafka, a streams
group for a classic one alone, and only a classic one for a streams group. Of groups with members,
classic ones become consumer groups, and these classic ones again, as the migration policy permits.

Ground rules: those of `GroupCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.former_names import FormerName
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.classic_requests import ClassicRequests
from purgatory.kafka.groups.consumer_group import ConsumerGroup
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerGroupCoordinator,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
    RespondHeartbeat,
)
from purgatory.kafka.groups.consumer_group_member import JOIN_EPOCH
from purgatory.kafka.groups.epoch_group import FIRST_EPOCH, EpochGroup
from purgatory.kafka.groups.epoch_group_coordinator import ignore
from purgatory.kafka.groups.group import (
    CONSUMER,
    ClassicGroupRecord,
    Group,
    GroupState,
)
from purgatory.kafka.groups.group_coordinator import GroupCoordinator, check_group_id
from purgatory.kafka.groups.group_records import GroupRecord, GroupRecordKey, RecordKind
from purgatory.kafka.groups.mixed_group_coordinator import MixedGroupCoordinator
from purgatory.kafka.groups.offset_expiration import expired_offsets, is_empty
from purgatory.kafka.groups.offset_metadata_manager import OffsetMetadataManager, OnEnded
from purgatory.kafka.groups.offsets import (
    OFFSETS_TOPIC,
    GroupOffsets,
    OffsetKey,
    OffsetsCodec,
    StoredEntry,
    group_partition,
)
from purgatory.kafka.groups.share_group_coordinator import (
    InitializeShare,
    ShareGroupCoordinator,
    initialize_nothing,
)
from purgatory.kafka.groups.streams_group import StreamsGroup
from purgatory.kafka.groups.streams_group_coordinator import (
    RespondStreams,
    StreamsGroupCoordinator,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResult,
)
from purgatory.kafka.groups.subscription import KnownTopics
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.settings.group_settings import (
    GroupConfig,
    GroupSettings,
    default_group_settings,
)
from purgatory.kafka.topic_partition import Partitions, TopicPartition

_GroupT = TypeVar("_GroupT")
_log = Logger("purgatory.kafka")


class GroupManager:
    """Coordinates groups and their offsets.

    Args:
        manager: the replicas of the offsets topic.
        config: the limits of groups.
        codec: encodes and decodes its records.
        new_purgatory: makes a purgatory of this name; the caller closes it.
        new_member_id: makes an id that no member had before, from its first part.
        now_ms: returns the time, in milliseconds since 1970.
        offsets_partitions: returns the partition count of the offsets topic, and creates the topic
            if needed.
        is_known: whether the cluster has a partition.
        known_topics: the topics of the cluster.
        on_ended: is called for each offset of a transaction that has ended.
        settings_of: returns the settings of a group; by default they are those of ``config``.
        new_consumer_id: makes the id of a consumer that joins a consumer group without one; by
            default as ``new_member_id``.
        initialize_share: initializes the state of a share partition.
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
        known_topics: KnownTopics,
        on_ended: OnEnded | None = None,
        settings_of: Callable[[str], GroupSettings] | None = None,
        new_consumer_id: Callable[[], str] | None = None,
        initialize_share: InitializeShare = initialize_nothing,
    ) -> None:
        by_default = GroupSettings(default_group_settings(config))
        settings = settings_of or (lambda _: by_default)
        self.offsets = GroupOffsets(manager, codec, now_ms)
        self._now_ms = now_ms
        self._offsets_partitions = offsets_partitions
        self._retention_ms = config.offsets_retention_ms
        self.classic = GroupCoordinator(
            config,
            new_purgatory,
            new_member_id,
            self._partition,
            self._check_joining,
            self._save_classic,
            now_ms,
        )
        self.consumers = MixedGroupCoordinator(
            self.classic,
            now_ms,
            lambda group_id: settings(group_id).milliseconds("consumer.session.timeout.ms"),
            known_topics,
            self.classic.heartbeats,
            new_consumer_id or (lambda: new_member_id("consumer")),
            self._write,
        )
        self.shares = ShareGroupCoordinator(
            initialize_share,
            config.share_max_size,
            lambda group_id: settings(group_id).milliseconds("share.session.timeout.ms"),
            known_topics,
            self.classic.heartbeats,
            lambda: new_member_id("share"),
            self._write,
        )
        self.streams = StreamsGroupCoordinator(
            config.streams_max_size,
            now_ms,
            settings,
            known_topics,
            self.classic.heartbeats,
            self._write,
        )
        self.classic_requests = ClassicRequests(self.classic, self.consumers)
        self._coordinators = (self.classic, self.consumers, self.shares, self.streams)
        self.offset_metadata = OffsetMetadataManager(
            self.offsets,
            self._coordinators,
            self._partition,
            self.subscribed_topics,
            is_known,
            on_ended,
        )

    groups = FormerName("GroupManager.classic.groups")
    join = FormerName("GroupManager.classic_requests.join")
    sync = FormerName("GroupManager.classic_requests.sync")
    heartbeat = FormerName("GroupManager.classic_requests.heartbeat")
    leave = FormerName("GroupManager.classic_requests.leave")
    commit = FormerName("GroupManager.offset_metadata.commit")
    commit_in_transaction = FormerName("GroupManager.offset_metadata.commit_in_transaction")
    check_commit = FormerName("GroupManager.offset_metadata.check_commit")
    committed = FormerName("GroupManager.offset_metadata.committed")
    pending = FormerName("GroupManager.offset_metadata.pending")
    delete_offsets = FormerName("GroupManager.offset_metadata.delete_offsets")
    end_transaction = FormerName("GroupManager.offset_metadata.end_transaction")

    # Roles of this broker.

    def coordinator_partition(self, group_id: str) -> TopicPartition:
        """Return the partition whose leader coordinates a group."""
        return TopicPartition(OFFSETS_TOPIC, group_partition(group_id, self._offsets_partitions()))

    # Heartbeats of consumers and share consumers.

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeat, respond: RespondHeartbeat
    ) -> None:
        """Handle a heartbeat of a member of a group of the consumer protocol.

        Args:
            request: the heartbeat.
            respond: called with the response once its changes are replicated; never called if this
                broker is killed meanwhile.
        """
        self._group_heartbeat(self.consumers, request, respond)

    def share_heartbeat(self, request: ConsumerGroupHeartbeat, respond: RespondHeartbeat) -> None:
        """Handle a heartbeat of a member of a share group, as ``consumer_heartbeat``."""
        self._group_heartbeat(self.shares, request, respond)

    def streams_heartbeat(self, request: StreamsGroupHeartbeat, respond: RespondStreams) -> None:
        """Handle a heartbeat of a member of a streams group, as ``consumer_heartbeat``."""
        group_id = request.group_id
        try:
            if group_id:
                self.offsets.check_committed(self._partition(group_id))
            request.check()
            if group_id not in self.streams.groups:
                classic = self.classic.groups.get(group_id)
                is_in_use = classic is not None and classic.state is not GroupState.EMPTY
                if is_in_use or self._epoch_based_group(group_id) is not None:
                    raise _other_kind(group_id)
                if classic is not None and request.epoch == JOIN_EPOCH:
                    self._forget_empty(group_id)
        except GroupRefusal as refusal:
            respond(StreamsGroupHeartbeatResult(refusal.code, message=refusal.message))
            return
        self.streams.heartbeat(request, respond)

    def alterable_epoch(self, group_id: str) -> int:
        """Return the epoch of a share group whose offsets may be altered: one without members, or
        one that is not there yet.

        Raises:
            GroupRefusal: the id is that of a group of another kind, the group has members, or this
                broker doesn't coordinate it.
        """
        self.offsets.check_committed(self._partition(group_id))
        check_group_id(group_id)
        others = (self.classic, self.consumers, self.streams)
        if any(group_id in coordinator.groups for coordinator in others):
            raise _other_kind(group_id)
        group = self.shares.share_group(group_id)
        if group is not None and group.members:
            raise GroupRefusal(ErrorCode.NON_EMPTY_GROUP, message=f"{group_id} has members")
        return FIRST_EPOCH if group is None else group.epoch

    def initialized_partitions(self, group_id: str) -> Partitions | None:
        """Return the partitions of a share group that have a state; None: none ever had.

        Raises:
            GroupRefusal: another broker coordinates the group.
        """
        self._partition(group_id)
        group = self.shares.share_group(group_id)
        return None if group is None else group.initialized

    def _group_heartbeat(
        self,
        coordinator: ConsumerGroupCoordinator,
        request: ConsumerGroupHeartbeat,
        respond: RespondHeartbeat,
    ) -> None:
        try:
            if request.group_id:
                partition = self._partition(request.group_id)
                is_new = request.group_id not in coordinator.groups
                if is_new:
                    check_group_id(request.group_id)
                self.offsets.check_committed(partition)
                if is_new:
                    if request.epoch == JOIN_EPOCH:
                        request.check()
                    self._remove_other_type(coordinator, request)
        except GroupRefusal as refusal:
            respond(ConsumerGroupHeartbeatResult(refusal.code, message=refusal.message))
            return
        coordinator.heartbeat(request, respond)

    def _remove_other_type(
        self, coordinator: ConsumerGroupCoordinator, request: ConsumerGroupHeartbeat
    ) -> None:
        """Delete an empty group of another kind, before a new group of its id is created. A classic
        group with members is left to the coordinator of consumer groups, which may upgrade it."""
        group_id, joins = request.group_id, request.epoch == JOIN_EPOCH
        classic, other = self.classic.groups.get(group_id), self._epoch_based_group(group_id)
        is_in_use = classic is not None and classic.state is not GroupState.EMPTY
        if is_in_use and joins and coordinator is self.consumers:
            return
        has_members = is_in_use or (other and other.members)
        is_of_streams = group_id in self.streams.groups
        if has_members or is_of_streams or ((classic or other) and not joins):
            raise _other_kind(group_id)
        self._forget_empty(group_id)

    def _check_joining(self, group_id: str) -> None:
        """Delete an empty group of another type, before a classic group of its id is created.

        Raises:
            GroupRefusal: INCONSISTENT_GROUP_PROTOCOL: the group has members.
        """
        group = self._epoch_based_group(group_id)
        if group is None:
            return
        if group.members:
            raise GroupRefusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._forget_empty(group_id)

    def update_role(self, topic_partition: TopicPartition, leads: bool) -> None:
        """Load the groups of a partition that this broker now leads, or unload them.

        Call this after the broker has become a partition's leader and before it becomes a
        follower. Idempotent; other topics are ignored. Loading is O(records of the partition).
        """
        topic, partition = topic_partition
        if topic != OFFSETS_TOPIC or leads == self.offsets.leads(partition):
            return
        if leads:
            for group_id in self.offsets.load(partition):
                records = self.offsets.records_of(group_id)
                classic = records.get(GroupRecordKey(group_id, RecordKind.CLASSIC))
                if isinstance(classic, ClassicGroupRecord):
                    self.classic.restore(group_id, classic)
                elif records:
                    self._coordinator_of(next(iter(records))).restore(group_id, records)
            return
        self.offsets.unload(partition)
        for group_id in [group_id for one in self._coordinators for group_id in one.groups]:
            if self.coordinator_partition(group_id) == topic_partition:
                self._forget(group_id)

    def expire_offsets(self, partition: int) -> None:
        """Delete the expired offsets of a partition's groups, and groups without any and without
        members. O(groups + offsets)."""
        if not self.offsets.leads(partition):
            return
        group_ids = dict.fromkeys(self.offsets.groups(partition))
        for one in (self.classic, self.consumers, self.streams):
            for group_id in one.groups:  # some may not be stored
                if self.coordinator_partition(group_id).partition == partition:
                    group_ids[group_id] = None
        pending = self.offsets.pending_by_group(partition)
        entries: list[StoredEntry] = []
        for group_id in group_ids:
            if group_id not in self.shares.groups:  # they never expire
                entries += self._expire_group(group_id, pending.get(group_id, ()))
        if entries:
            _log.info("offsets_expired", partition=partition, tombstones=len(entries))
            self.offsets.write(partition, entries, ignore)

    def _expire_group(
        self, group_id: str, pending: Collection[TopicPartition]
    ) -> list[StoredEntry]:
        group: Group | EpochGroup[Any] | None = self._epoch_based_group(group_id)
        group = group or self.classic.groups.get(group_id) or Group(group_id)
        offsets = self.offsets.group_offsets(group_id)
        expired = expired_offsets(group, offsets, pending, self._now_ms(), self._retention_ms)
        entries: list[StoredEntry] = [(OffsetKey(group_id, *place), None) for place in expired]
        if len(expired) == len(offsets) and not pending and is_empty(group):
            entries += self._tombstones(group_id)
            self._forget(group_id)
        return entries

    def _coordinator_of(
        self, key: GroupRecordKey
    ) -> ConsumerGroupCoordinator | StreamsGroupCoordinator:
        if key.kind.is_of_streams:
            return self.streams
        return self.shares if key.is_share else self.consumers

    def delete_topic(self, topic: str) -> None:
        """Delete all groups' offsets of a deleted topic, in the background. O(their offsets)."""
        self.offsets.delete_topic(topic)

    def describe_consumers(self, group_id: str) -> ConsumerGroup:
        """Return a group of the consumer protocol.

        Raises:
            GroupRefusal: another broker coordinates the group, or there is none.
        """
        return self._described(self.consumers.groups, group_id, "consumer group")

    def describe_shares(self, group_id: str) -> ConsumerGroup:
        """Return a share group; otherwise as ``describe_consumers``."""
        return self._described(self.shares.groups, group_id, "share group")

    def describe_streams(self, group_id: str) -> StreamsGroup:
        """Return a streams group; otherwise as ``describe_consumers``."""
        return self._described(self.streams.groups, group_id, "streams group")

    def _described(self, groups: Mapping[str, _GroupT], group_id: str, kind: str) -> _GroupT:
        self._partition(group_id)
        group = groups.get(group_id)
        if group is None:
            raise GroupRefusal(
                ErrorCode.GROUP_ID_NOT_FOUND, message=f"there is no {kind} {group_id}"
            )
        return group

    # Descriptions and deletions.

    def all_groups(self) -> list[Group]:
        """Return the classic groups that are coordinated here, and those that had offsets alone."""
        without_members = [
            Group(group_id)
            for group_id in self.offsets.groups()
            if group_id not in self.classic.groups and self._epoch_based_group(group_id) is None
        ]
        return [*self.classic.groups.values(), *without_members]

    def describe(self, group_id: str) -> Group:
        """Describe a classic group: EMPTY without members, DEAD if it does not exist.

        Raises:
            GroupRefusal: another broker coordinates the group, or it is not a classic group.
        """
        partition = self._partition(group_id)
        if self._epoch_based_group(group_id) is not None:
            raise GroupRefusal(
                ErrorCode.GROUP_ID_NOT_FOUND, message=f"{group_id} is not a classic group"
            )
        group = self.classic.groups.get(group_id)
        if group is None:
            group = Group(group_id)
            if not self.offsets.has_group(partition, group_id):
                group.state = GroupState.DEAD
        return group

    def delete(self, group_id: str, respond: Callable[[ErrorCode], object]) -> None:
        """Delete a group without members, with its offsets."""
        try:
            self._check_deletable(group_id)
        except GroupRefusal as refusal:
            respond(refusal.code)
            return

        def deleted(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                for coordinator in self._coordinators:
                    group = coordinator.groups.get(group_id)
                    if group is not None and is_empty(group):  # none has joined meanwhile
                        coordinator.forget(group_id)
            respond(code)

        tombstones = self._tombstones(group_id)
        self.offsets.delete(self._partition(group_id), group_id, tombstones, deleted)

    def subscribed_topics(self, group_id: str) -> Collection[str] | None:
        """Return the topics that a group's members subscribe to; None: they may read any topic.

        Raises:
            GroupRefusal: there is no such group, or its members are no consumers.
        """
        if group_id in self.shares.groups:
            raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND)
        epoch_based = self._epoch_based_group(group_id)
        if epoch_based is not None:
            self._partition(group_id)
            return epoch_based.subscribed_names()
        group = self.describe(group_id)
        if group.state is GroupState.DEAD:
            raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
            raise GroupRefusal(ErrorCode.NON_EMPTY_GROUP)
        return group.subscribed_topics()

    def _check_deletable(self, group_id: str) -> None:
        group = self._epoch_based_group(group_id) or self.describe(group_id)
        if group.members:
            raise GroupRefusal(ErrorCode.NON_EMPTY_GROUP)
        if group.state is GroupState.DEAD:
            raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND)

    def _epoch_based_group(self, group_id: str) -> EpochGroup[Any] | None:
        """Return a consumer, share or streams group, or None."""
        return (
            self.consumers.groups.get(group_id)
            or self.shares.groups.get(group_id)
            or self.streams.groups.get(group_id)
        )

    def _forget(self, group_id: str) -> None:
        for coordinator in self._coordinators:
            coordinator.forget(group_id)

    def _forget_empty(self, group_id: str) -> None:
        tombstones = self._tombstones(group_id)
        self._forget(group_id)
        if tombstones:
            self._write(group_id, tombstones, ignore)

    def _tombstones(self, group_id: str) -> list[GroupRecord]:
        """Return what deletes a group's records; nothing, if there is no such group."""
        keys = dict.fromkeys(self.offsets.records_of(group_id))
        # The last of its records may not be replicated yet.
        other = self._epoch_based_group(group_id)
        if other is not None:
            for kind in other.own_kinds:
                keys[GroupRecordKey(group_id, kind, is_share=other.is_share)] = None
        elif group_id in self.classic.groups or self.offsets.has_group(
            self.coordinator_partition(group_id).partition, group_id
        ):
            keys[GroupRecordKey(group_id, RecordKind.CLASSIC)] = None
        return [(key, None) for key in keys]

    def _save_classic(
        self,
        group: Group,
        assignments: Mapping[str, bytes],
        respond: Callable[[ErrorCode], object],
    ) -> None:
        group_id = group.group_id
        own_key = GroupRecordKey(group_id, RecordKind.CLASSIC)
        # Other records are left of a consumer group whose end could not be written.
        records: dict[GroupRecordKey, ClassicGroupRecord | None] = dict.fromkeys(
            self.offsets.records_of(group_id)
        )
        records[own_key] = group.record(assignments)
        errors = {ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        written = list(records.items())
        self._write(group_id, written, lambda code: respond(errors.get(code, code)))

    def _write(
        self,
        group_id: str,
        records: Sequence[GroupRecord],
        respond: Callable[[ErrorCode], object],
    ) -> None:
        self.offsets.write(self.coordinator_partition(group_id).partition, records, respond)

    def _partition(self, group_id: str) -> int:
        """Return the partition of the offsets topic that a group belongs to.

        Raises:
            GroupRefusal: NOT_COORDINATOR: another broker leads it.
        """
        partition = group_partition(group_id, self._offsets_partitions())
        if not self.offsets.leads(partition):
            raise GroupRefusal(ErrorCode.NOT_COORDINATOR)
        return partition


def _other_kind(group_id: str) -> GroupRefusal:
    return GroupRefusal(
        ErrorCode.GROUP_ID_NOT_FOUND, message=f"{group_id} is a group of another kind"
    )
