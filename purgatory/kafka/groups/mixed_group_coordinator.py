"""The coordinator of consumer groups, some of whose members may use the classic protocol.

A classic group is upgraded when a member of the consumer protocol joins: it becomes a consumer
group, whose other members go on by JoinGroup, SyncGroup and Heartbeat, with their member epochs as
generations. When all that stay use the classic protocol, the group is downgraded: it is a classic
group again, and rebalances. `MigrationPolicy` permits both.

Members of the classic protocol are asked to join again by REBALANCE_IN_PROGRESS. They report what
they own when they join, and are given their assignment when they sync: each step within their
rebalance timeout (`DelayedRejoin`, `DelayedMemberSync`), or they are removed.

Ground rules: those of `ConsumerGroupCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.consumer_group import ConsumerGroup
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerGroupCoordinator,
    ConsumerGroupHeartbeat,
    RespondHeartbeat,
    has_same_subscription,
)
from purgatory.kafka.groups.consumer_group_member import (
    ClassicMetadata,
    ConsumerMember,
    CurrentAssignment,
    MemberState,
    Subscription,
)
from purgatory.kafka.groups.consumer_protocol import (
    ConsumerSubscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from purgatory.kafka.groups.epoch_group_coordinator import WriteRecords
from purgatory.kafka.groups.group import (
    CONSUMER,
    Group,
    GroupProtocol,
    GroupState,
    JoinGroupRequest,
    JoinGroupResult,
    LeaveGroupResult,
    Member,
    RespondJoin,
    RespondLeave,
    RespondSync,
    SyncGroupResult,
)
from purgatory.kafka.groups.group_coordinator import GroupCoordinator
from purgatory.kafka.groups.group_timeouts import (
    DelayedMemberSession,
    DelayedMemberSync,
    DelayedRejoin,
)
from purgatory.kafka.groups.instance_fencing import member_of_instance
from purgatory.kafka.groups.subscription import KnownTopics
from purgatory.kafka.settings.group_settings import MigrationPolicy
from purgatory.kafka.topic_partition import NO_PARTITIONS, Partitions, TopicIdPartition

_Steps: TypeAlias = dict[tuple[str, str], DelayedMemberSession]
_log = Logger("purgatory.kafka")


class MixedGroupCoordinator(ConsumerGroupCoordinator):
    """Coordinates the consumer groups of one broker.

    Args:
        classic: the coordinator of the classic groups, with the limits of groups.
        now_ms: returns the time, in milliseconds since 1970.
        session_timeout_ms, known_topics, heartbeats, new_member_id, write: as those of
            `ConsumerGroupCoordinator`.
    """

    def __init__(
        self,
        classic: GroupCoordinator,
        now_ms: Callable[[], int],
        session_timeout_ms: Callable[[str], int],
        known_topics: KnownTopics,
        heartbeats: DelayedOperationPurgatory,
        new_member_id: Callable[[], str],
        write: WriteRecords,
    ) -> None:
        super().__init__(
            classic.config.max_size,
            session_timeout_ms,
            known_topics,
            heartbeats,
            new_member_id,
            write,
        )
        self._classic = classic
        self._now_ms = now_ms
        self._policy = MigrationPolicy(classic.config.consumer_migration_policy)
        self._rejoins: _Steps = {}
        self._syncs: _Steps = {}

    # Requests of members of the classic protocol.

    def join(
        self,
        group_id: str,
        member_id: str,
        join_request: JoinGroupRequest,
        require_known_member_id: bool,
        respond: RespondJoin,
    ) -> None:
        """Join a consumer group with members; otherwise as `GroupCoordinator.join`.

        O(members + partitions of the group) with a new assignment.
        """
        group = self.groups[group_id]
        try:
            self._classic.check_join(group_id, join_request)
            member = self._join(group, member_id, join_request, require_known_member_id)
        except GroupRefusal as refusal:
            respond(JoinGroupResult(refusal.code, refusal.member_id or ""))
            return
        protocol = join_request.protocols[0][0]
        result = JoinGroupResult(
            ErrorCode.NONE, member.member_id, member.current.epoch, CONSUMER, protocol
        )
        self._begin_sync(group, member)

        def joined(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._begin_sync(group, member)
            respond(result if code is ErrorCode.NONE else JoinGroupResult(code, ""))

        if group.has_changes:
            self._save(group, joined)
        else:
            joined(ErrorCode.NONE)

    def _join(
        self,
        group: ConsumerGroup,
        member_id: str,
        join_request: JoinGroupRequest,
        require_known_member_id: bool,
    ) -> ConsumerMember:
        is_unknown, instance_id = not member_id, join_request.instance_id
        member_id = member_id or self._new_member_id()
        if len(group.members) >= self._max_size and member_id not in group.members:
            raise GroupRefusal(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not _supports_protocols(group, join_request):
            raise GroupRefusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if require_known_member_id and is_unknown and instance_id is None:
            raise GroupRefusal(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        try:
            reported = read_subscription(join_request.protocols[0][1])
        except ValueError:
            raise GroupRefusal(ErrorCode.UNKNOWN_SERVER_ERROR) from None
        previous = group.members.get(member_id)
        is_downgrade = False
        if instance_id is not None:
            previous = _static_member(group, member_id, instance_id, is_unknown)
            is_downgrade = (
                previous is not None
                and previous.subscription.classic is None
                and self._may_downgrade(group, {previous.member_id}, is_replaced=True)
            )
        before = Subscription() if previous is None else previous.subscription
        subscription = _subscription(join_request, reported, before)
        member = self._store_member(group, previous, member_id, subscription)
        has_changed = not has_same_subscription(group, before, subscription)
        owned = self._partitions(reported.owned)
        if not is_downgrade:
            self._assign_if_needed(group, previous, member)
            return self._reconcile(group, member, owned)
        if not has_changed:
            member = self._reconcile(group, member, owned)
        self._downgrade(group, (), rebalances=has_changed)
        return member

    def sync(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        respond: RespondSync,
        protocol: GroupProtocol,
    ) -> None:
        """Respond with a member's assignment; otherwise as `GroupCoordinator.sync`."""
        try:
            group, member, classic = self._classic_member(group_id, member_id, instance_id)
            if generation != member.current.epoch:
                raise GroupRefusal(ErrorCode.ILLEGAL_GENERATION)
            protocol.check(CONSUMER, classic.protocols[0][0])
            # A member that has yet to revoke partitions has joined in this rebalance.
            is_revoking = member.current.state is MemberState.UNREVOKED_PARTITIONS
            if group.epoch > member.current.epoch and not is_revoking:
                raise self._rebalance(group, member)
        except GroupRefusal as refusal:
            respond(SyncGroupResult(refusal.code))
            return
        _end(self._syncs, group, member_id)
        self._watch_session(group, member)
        assigned = self._by_name(member.subscription, member.current.assigned)
        assignment = write_assignment(assigned, classic.protocols[0][1])
        respond(SyncGroupResult(ErrorCode.NONE, *protocol, assignment))

    def classic_heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """Handle a heartbeat of the classic protocol.

        Raises:
            GroupRefusal: the member is not in this generation, or must join again.
        """
        group, member, _ = self._classic_member(group_id, member_id, instance_id)
        current = member.current
        if generation != current.epoch:
            raise GroupRefusal(ErrorCode.ILLEGAL_GENERATION)
        self._watch_session(group, member)
        if (
            current.epoch < group.epoch
            or current.state is MemberState.UNREVOKED_PARTITIONS
            or (
                current.state is MemberState.UNRELEASED_PARTITIONS
                and not _waits_for_release(group, member)
            )
        ):
            raise self._rebalance(group, member)

    def _rebalance(self, group: ConsumerGroup, member: ConsumerMember) -> GroupRefusal:
        """Wait for a member to join again; return the refusal that tells it to."""
        if (group.group_id, member.member_id) not in self._rejoins:
            self._watch_step(self._rejoins, DelayedRejoin, group, member)
        return GroupRefusal(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(
        self,
        group_id: str,
        members: Sequence[tuple[str, str | None]],
        respond: RespondLeave,
    ) -> None:
        """Remove members of either protocol, each by its member id, its instance id or both;
        ``respond`` is called once that is stored."""
        group = self.groups[group_id]
        leaving: dict[str, None] = {}
        codes = []
        for member_id, instance_id in members:
            try:
                leaves = member_id
                if instance_id is not None:
                    leaves = member_of_instance(group, instance_id, member_id, may_be_unknown=True)
                if leaves not in group.members:
                    raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
                leaving[leaves] = None
                codes.append(ErrorCode.NONE)
            except GroupRefusal as refusal:
                codes.append(refusal.code)
        if leaving:
            self._remove(group, leaving, "left")
            self._save(group, lambda code: respond(LeaveGroupResult(code, codes)))
        else:
            respond(LeaveGroupResult(ErrorCode.NONE, codes))

    def check_commit(
        self, group_id: str, member_id: str, epoch: int, knows_epochs: bool = True, *more: Any
    ) -> None:
        member = self.groups[group_id].members.get(member_id)
        is_classic = member is not None and member.subscription.classic is not None
        try:
            super().check_commit(group_id, member_id, epoch, knows_epochs or is_classic, *more)
        except GroupRefusal as refusal:
            if is_classic and refusal.code is ErrorCode.STALE_MEMBER_EPOCH:
                raise GroupRefusal(ErrorCode.ILLEGAL_GENERATION) from None
            raise

    def _classic_member(
        self, group_id: str, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerGroup, ConsumerMember, ClassicMetadata]:
        group = self.groups[group_id]
        if instance_id is not None:
            member_of_instance(group, instance_id, member_id)
        member = group.members.get(member_id)
        if member is None or member.subscription.classic is None:
            raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
        return group, member, member.subscription.classic

    # Upgrades.

    def heartbeat(self, request: ConsumerGroupHeartbeat, respond: RespondHeartbeat) -> None:
        super().heartbeat(request, respond)
        group = self.groups.get(request.group_id)
        if group is not None and request.group_id in self._classic.groups:
            # The group was upgraded: its members join again, now here.
            self._classic.forget(request.group_id, ErrorCode.REBALANCE_IN_PROGRESS)
            for member in group.members.values():
                self._watch_session(group, member)

    def _create(self, group_id: str) -> ConsumerGroup:
        group = super()._create(group_id)
        classic = self._classic.groups.get(group_id)
        if classic is not None:
            self._check_upgrade(classic)
            group.adopt(classic.generation, self._upgraded_members(classic))
            group.refresh_topics(matches=True)
            given = NO_PARTITIONS.union(*group.targets.values())
            if classic.state is not GroupState.STABLE or given != group.topics.partitions:
                group.bump_epoch()  # a rebalance is due, whoever joins
            _log.info("upgraded", group=group_id, members=len(group.members))
        return group

    def _check_upgrade(self, classic: Group) -> None:
        reason = None
        if not self._policy.upgrades:
            reason = "the policy of this cluster permits no upgrade"
        elif classic.protocol_type != CONSUMER:
            reason = f"its members are no consumers, but of the type {classic.protocol_type}"
        elif len(classic.members) > self._max_size:
            reason = f"it has {len(classic.members)} members, more than a consumer group may have"
        if reason is not None:
            raise _not_upgraded(classic, reason)

    def _upgraded_members(self, classic: Group) -> list[ConsumerMember]:
        """Return the members of a classic group, with the partitions that its leader gave them."""
        taken: set[TopicIdPartition] = set()
        upgraded = []
        protocol = classic.protocol or classic.choose_protocol()
        for member in classic.members.values():
            try:
                reported = read_subscription(member.metadata_for(protocol))
                given = read_assignment(member.assignment)
            except ValueError:
                raise _not_upgraded(classic, "a member's metadata can't be read") from None
            if given.user_data:
                raise _not_upgraded(classic, "its assignor adds data to assignments")
            assigned = self._partitions(given.partitions) - taken
            taken |= assigned
            subscription = _subscription(member.join_request, reported, Subscription())
            current = CurrentAssignment(classic.generation, classic.generation, assigned=assigned)
            upgraded.append(ConsumerMember(member.member_id, subscription, current))
        return upgraded

    # Downgrades.

    def _remove(self, group: ConsumerGroup, member_ids: Collection[str], reason: str) -> None:
        if self._may_downgrade(group, member_ids):
            for member_id in member_ids:
                _log.info("member_gone", group=group.group_id, member=member_id, reason=reason)
            self._downgrade(group, member_ids, rebalances=True)
        else:
            super()._remove(group, member_ids, reason)

    def _may_downgrade(
        self, group: ConsumerGroup, leaving: Collection[str], is_replaced: bool = False
    ) -> bool:
        """Whether all that stay, or replace one, use the classic protocol. O(members)."""
        count = len(group.members) - (0 if is_replaced else len(leaving))
        return (
            self._policy.downgrades
            and 0 < count <= self._classic.config.max_size
            and all(
                member.subscription.classic is not None
                for member_id, member in group.members.items()
                if member_id not in leaving
            )
        )

    def _downgrade(self, group: ConsumerGroup, leaving: Collection[str], rebalances: bool) -> None:
        """Go on with the members that stay as a classic group. O(members + partitions)."""
        classic = Group(group.group_id)
        classic.generation = group.epoch
        for member in group.members.values():
            subscription = member.subscription
            if subscription.classic is not None and member.member_id not in leaving:
                join_request = JoinGroupRequest(
                    subscription.client_id,
                    subscription.client_host,
                    subscription.instance_id,
                    subscription.classic.session_timeout_ms,
                    subscription.rebalance_timeout_ms,
                    CONSUMER,
                    subscription.classic.protocols,
                )
                classic.add(Member(member.member_id, join_request, is_new=False))
        classic.move_to(GroupState.STABLE, self._now_ms())
        classic.new_member_added = False
        classic.protocol = classic.choose_protocol()
        for stays in classic.members.values():
            target = group.targets.get(stays.member_id, NO_PARTITIONS)
            given = self._by_name(group.members[stays.member_id].subscription, target)
            stays.assignment = write_assignment(given, stays.metadata_for(classic.protocol))
        self.forget(group.group_id)
        group.dissolve(
            classic.record(
                {member.member_id: member.assignment for member in classic.members.values()}
            )
        )
        _log.info("downgraded", group=group.group_id, members=len(classic.members))
        self._classic.adopt(classic, "it is no consumer group any more" if rebalances else None)

    # Topics.

    def _partitions(self, by_name: Mapping[str, Sequence[int]]) -> Partitions:
        """Return partitions of known topics."""
        topics = self._known_topics.topics
        return frozenset(
            TopicIdPartition(topics[name].topic_id, number)
            for name, numbers in by_name.items()
            if name in topics
            for number in numbers
        )

    def _by_name(self, subscription: Subscription, partitions: Partitions) -> dict[str, list[int]]:
        """Return partitions of subscribed topics by topic, both in order."""
        topics = self._known_topics.topics
        names = {topics[name].topic_id: name for name in subscription.topic_names if name in topics}
        by_name: dict[str, list[int]] = {}
        for topic_id, number in sorted(partitions):
            if topic_id in names:
                by_name.setdefault(names[topic_id], []).append(number)
        return dict(sorted(by_name.items()))

    # Waiting.

    def _session_ms(self, group: ConsumerGroup, member: ConsumerMember) -> int:
        classic = member.subscription.classic
        if classic is None:
            return super()._session_ms(group, member)
        return classic.session_timeout_ms

    def _watch_session(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if member.subscription.classic is None:
            self._end_steps(group, member.member_id)
        super()._watch_session(group, member)

    def _watch_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if member.subscription.classic is None:
            super()._watch_revocation(group, member)

    def _begin_sync(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Wait for a member that has joined to sync, if it is one, and of the classic protocol."""
        known = group.members.get(member.member_id)
        is_here = self.groups.get(group.group_id) is group
        if is_here and known is not None and known.subscription.classic is not None:
            self._end_steps(group, member.member_id)
            self._watch_session(group, known)
            self._watch_step(self._syncs, DelayedMemberSync, group, known)

    def _watch_step(
        self,
        steps: _Steps,
        kind: type[DelayedMemberSession],
        group: ConsumerGroup,
        member: ConsumerMember,
    ) -> None:
        delay_ms = member.subscription.rebalance_timeout_ms
        waiting = kind(group, member.member_id, delay_ms, self)
        steps[group.group_id, member.member_id] = waiting
        key = group.rebalance_key(member.member_id)
        self._heartbeats.try_complete_else_watch(waiting, [key])

    def _stop_waiting(self, group: ConsumerGroup, member_id: str) -> None:
        self._end_steps(group, member_id)
        super()._stop_waiting(group, member_id)

    def _end_steps(self, group: ConsumerGroup, member_id: str) -> None:
        for steps in (self._rejoins, self._syncs):
            _end(steps, group, member_id)


def _end(steps: _Steps, group: ConsumerGroup, member_id: str) -> None:
    """End a wait for a step of a member, if there is one."""
    waiting = steps.pop((group.group_id, member_id), None) if steps else None
    if waiting is not None:
        waiting.cancel()


def _static_member(
    group: ConsumerGroup, member_id: str, instance_id: str, is_unknown: bool
) -> ConsumerMember | None:
    """Return the static member that joins again, or that a new one replaces; None: it is new."""
    if is_unknown:
        return group.members.get(group.static_members.get(instance_id, ""))
    return group.members[member_of_instance(group, instance_id, member_id)]


def _supports_protocols(group: ConsumerGroup, join_request: JoinGroupRequest) -> bool:
    """Whether a member is a consumer that shares a protocol with all classic members."""
    common = {name for name, _ in join_request.protocols}
    for member in group.members.values():
        if member.subscription.classic is not None:
            common &= {name for name, _ in member.subscription.classic.protocols}
    return join_request.protocol_type == CONSUMER and bool(common)


def _waits_for_release(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether another member holds a partition that this one is to have. O(its partitions)."""
    missing = group.targets.get(member.member_id, NO_PARTITIONS) - member.current.assigned
    return any(map(group.is_owned, missing))


def _subscription(
    join_request: JoinGroupRequest, reported: ConsumerSubscription, before: Subscription
) -> Subscription:
    """Return what a member of the classic protocol reports."""
    return Subscription(
        before.instance_id if join_request.instance_id is None else join_request.instance_id,
        before.rack_id if reported.rack_id is None else reported.rack_id,
        join_request.client_id,
        join_request.client_host,
        tuple(sorted(set(reported.topics))),
        "" if before.topic_regex else before.topic_regex,
        join_request.rebalance_timeout_ms,
        before.assignor,
        classic=ClassicMetadata(join_request.session_timeout_ms, join_request.protocols),
    )


def _not_upgraded(classic: Group, reason: str) -> GroupRefusal:
    return GroupRefusal(
        ErrorCode.GROUP_ID_NOT_FOUND,
        message=f"{classic.group_id} is a classic group, and no consumer group: {reason}",
    )
