"""The coordinator of the consumer groups (KIP-848) whose records a broker leads.

Members only send heartbeats. A heartbeat has a member's subscription and partitions; the response
has its assignment. Whenever members or topics come or go, the group's epoch rises, and an assignor
computes a new target; each member is reconciled with it by itself (`reconciled`). The purgatory
``Heartbeat`` holds, under two `MemberKey`s, a member's next heartbeat (`DelayedMemberSession`) and
its revocation of partitions (`DelayedRevocation`).

Ground rules
------------
* One thread at a time calls it, and the timer of its purgatory is moved on that thread.
* Changes are written before the response: a coordinator that takes over knows all that a member
  knows. A change that could not be written is written with the next change or heartbeat.
* ``respond`` is called once; never, if the broker was killed just now. The callback calls nothing
  here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.assignors import ASSIGNORS
from purgatory.kafka.groups.consumer_group import ConsumerGroup
from purgatory.kafka.groups.consumer_group_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    CurrentAssignment,
    MemberState,
    Principal,
    Subscription,
)
from purgatory.kafka.groups.epoch_group_coordinator import (
    EpochGroupCoordinator,
    WriteRecords,
    ignore,
)
from purgatory.kafka.groups.group_records import GroupRecordKey, GroupRecordValue
from purgatory.kafka.groups.instance_fencing import member_of_instance
from purgatory.kafka.groups.subscription import KnownTopics, PatternError, TopicPattern
from purgatory.kafka.topic_partition import Partitions, TopicIdPartition, TopicPartition

_UNCHANGED_MS = -1


class ConsumerGroupHeartbeat(NamedTuple):
    """A heartbeat request, with the changes since the previous one.

    Args:
        epoch: the member's, or `JOIN_EPOCH`, `LEAVE_EPOCH` or `STATIC_LEAVE_EPOCH`.
        instance_id, rack_id, topic_names, topic_regex, assignor, rebalance_timeout_ms: None, or -1,
            if unchanged.
        owned: the member's partitions; None if not reported.
        generates_member_id: whether the member generates its id, instead of the coordinator.
        may_read_nothing: whether a member may join with an empty subscription.
        requester: the client; None: one that may describe all topics.
    """

    group_id: str
    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = _UNCHANGED_MS
    owned: Partitions | None = None
    generates_member_id: bool = True
    may_read_nothing: bool = True
    requester: Principal | None = None

    @property
    def is_full(self) -> bool:
        """Whether all fields are set, as in a retry."""
        subscribes = self.topic_names is not None or self.topic_regex is not None
        return subscribes and self.owned is not None and self.rebalance_timeout_ms >= 0

    def subscription(self, previous: Subscription) -> Subscription:
        """Return the member's new subscription."""
        names = None if self.topic_names is None else tuple(sorted(set(self.topic_names)))
        timeout_ms = self.rebalance_timeout_ms
        return Subscription(
            _newer(self.instance_id, previous.instance_id),
            _newer(self.rack_id, previous.rack_id),
            self.client_id,
            self.client_host,
            previous.topic_names if names is None else names,
            _newer(self.topic_regex, previous.topic_regex),
            previous.rebalance_timeout_ms if timeout_ms == _UNCHANGED_MS else timeout_ms,
            _newer(self.assignor, previous.assignor),
            requester=self.requester if _newer(self.topic_regex, previous.topic_regex) else None,
        )

    def check(self) -> None:
        """Validate the request.

        Raises:
            GroupRefusal: INVALID_REQUEST or UNSUPPORTED_ASSIGNOR.
        """
        if "" in (self.group_id, self.instance_id, self.rack_id):
            names = ("group_id", "instance_id", "rack_id")
            empty = next(name for name in names if getattr(self, name) == "")
            raise _invalid(f"{empty} can't be empty")
        if not self.member_id and (self.generates_member_id or self.epoch != JOIN_EPOCH):
            raise _invalid("member_id can't be empty")
        if self.epoch < STATIC_LEAVE_EPOCH:
            raise _invalid(f"a member epoch of {self.epoch}")
        if self.epoch == STATIC_LEAVE_EPOCH and self.instance_id is None:
            raise _invalid("instance_id can't be null where a static member leaves for a while")
        if self.epoch == JOIN_EPOCH:
            if self.rebalance_timeout_ms < 0:
                raise _invalid("a member that joins has to send its rebalance timeout")
            if self.owned is None or self.owned:
                raise _invalid("a member that joins owns no partitions, and has to send that")
            reads = self.topic_names, self.topic_regex
            if reads == (None, None) or not (self.may_read_nothing or any(reads)):
                raise _invalid("a member that joins has to subscribe to something")
        if self.assignor is not None and self.assignor not in ASSIGNORS:
            raise GroupRefusal(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                message=f"{self.assignor} is none of the assignors {', '.join(ASSIGNORS)}",
            )


def _newer(reported: str | None, previous: str | None) -> str | None:
    return previous if reported is None else reported


def _invalid(message: str) -> GroupRefusal:
    return GroupRefusal(ErrorCode.INVALID_REQUEST, message=message)


class ConsumerGroupHeartbeatResult(NamedTuple):
    """A member's epoch, and its assignment if that has changed; or an error."""

    error: ErrorCode
    member_id: str | None = None
    epoch: int = 0
    assignment: Partitions | None = None
    message: str | None = None


RespondHeartbeat: TypeAlias = Callable[[ConsumerGroupHeartbeatResult], object]

_log = Logger("purgatory.kafka")


class ConsumerGroupCoordinator(EpochGroupCoordinator[ConsumerGroup]):
    """Coordinates the consumer groups of one broker.

    Args:
        max_size: how many members a group may have.
        session_timeout_ms: returns how long a group's members may give no heartbeat.
        known_topics: the topics of the cluster.
        heartbeats: the purgatory in which members are waited for.
        new_member_id: makes an id that no member had before.
        write: writes records.
        new_group: makes a group from its id and the topics: `ShareGroup` makes share groups.
    """

    def __init__(
        self,
        max_size: int,
        session_timeout_ms: Callable[[str], int],
        known_topics: KnownTopics,
        heartbeats: DelayedOperationPurgatory,
        new_member_id: Callable[[], str],
        write: WriteRecords,
        new_group: Callable[[str, KnownTopics], ConsumerGroup] = ConsumerGroup,
    ) -> None:
        super().__init__(session_timeout_ms, heartbeats, write)
        self._max_size = max_size
        self._known_topics = known_topics
        self._new_member_id = new_member_id
        self._new_group = new_group

    # Groups.

    def restore(
        self, group_id: str, values: Mapping[GroupRecordKey, GroupRecordValue]
    ) -> ConsumerGroup:
        """Restore a group from its records and restart the session timeouts of all members."""
        group = self.groups[group_id] = self._new_group(group_id, self._known_topics)
        group.restore(values)
        for member in group.members.values():
            self._watch_session(group, member)
            self._watch_revocation(group, member)
        return group

    def create(self, group_id: str, respond: Callable[[ErrorCode], object]) -> None:
        """Make a group without members; ``respond`` is called once it is replicated."""
        group = self.groups[group_id] = self._new_group(group_id, self._known_topics)
        group.bump_epoch()
        self._save(group, respond)

    # Heartbeats.

    def heartbeat(self, request: ConsumerGroupHeartbeat, respond: RespondHeartbeat) -> None:
        """Handle a heartbeat; ``respond`` is called once its changes are replicated.

        O(1) without a change; O(members + partitions of the group) with a new assignment.
        """
        try:
            request.check()
            group = self.groups.get(request.group_id)
            if group is None:
                if request.epoch != JOIN_EPOCH:
                    raise GroupRefusal(
                        ErrorCode.GROUP_ID_NOT_FOUND,
                        message=f"there is no such group: {request.group_id}",
                    )
                group = self._create(request.group_id)
            result = (
                self._leave(group, request)
                if request.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH)
                else self._heartbeat(group, request)
            )
        except GroupRefusal as refusal:
            respond(ConsumerGroupHeartbeatResult(refusal.code, message=refusal.message))
            return

        if group.has_changes:
            self._save(
                group,
                lambda code: respond(
                    ConsumerGroupHeartbeatResult(code) if code is not ErrorCode.NONE else result
                ),
            )
        else:
            respond(result)
        self._match_expressions(group)

    def _match_expressions(self, group: ConsumerGroup) -> None:
        """Match expressions that are new to a group, with an epoch of its own, as in Kafka."""
        if group.topics.has_unmatched and self.groups.get(group.group_id) is group:
            if group.refresh_topics(matches=True):
                group.bump_epoch()
            self._save(group, ignore)

    def _create(self, group_id: str) -> ConsumerGroup:
        """Return a group for its first member; it is kept once that has joined."""
        return self._new_group(group_id, self._known_topics)

    def _heartbeat(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeat
    ) -> ConsumerGroupHeartbeatResult:
        if request.topic_regex:
            try:
                TopicPattern(request.topic_regex)
            except PatternError as error:
                raise GroupRefusal(
                    ErrorCode.INVALID_REGULAR_EXPRESSION, message=str(error)
                ) from None
        previous = self._existing_member(group, request)
        if previous is not None and _is_unchanged(group, previous, request):
            self._watch_session(group, previous)
            return ConsumerGroupHeartbeatResult(ErrorCode.NONE, previous.member_id, request.epoch)
        subscription = request.subscription(
            Subscription() if previous is None else previous.subscription
        )
        member_id = request.member_id or self._new_member_id()
        self.groups[group.group_id] = group
        member = self._store_member(group, previous, member_id, subscription)
        self._assign_if_needed(group, previous, member)
        member = self._reconcile(group, member, request.owned)
        self._watch_session(group, member)
        is_changed = (
            request.epoch == JOIN_EPOCH
            or request.is_full
            or previous is None
            or member.current.assigned != previous.current.assigned
            # A lost response may have told it to revoke partitions, and others wait for that.
            or (request.owned is None and member.current.revoking)
        )
        return ConsumerGroupHeartbeatResult(
            ErrorCode.NONE,
            member.member_id,
            member.current.epoch,
            member.current.assigned if is_changed else None,
        )

    def _existing_member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeat
    ) -> ConsumerMember | None:
        """Return the requesting member, or the one that it replaces; None if it is new.

        Raises:
            GroupRefusal: the request is invalid.
        """
        member = group.members.get(request.member_id)
        if request.epoch != JOIN_EPOCH:
            if request.instance_id is not None:
                member_of_instance(group, request.instance_id, request.member_id)
            if member is None:
                raise _unknown(request)
            current = member.current
            if request.epoch != current.epoch and not group.is_retry(
                current, request.epoch, request.owned
            ):
                raise GroupRefusal(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    message=f"{member.member_id} is at epoch {current.epoch}, "
                    f"not at {request.epoch}",
                )
            return member
        holder = group.members.get(group.static_members.get(request.instance_id or "", ""))
        if holder is not None and holder is not member:
            if holder.is_static_leave or holder.subscription.classic is not None:
                return holder
            raise GroupRefusal(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                message=f"{holder.member_id} is in the group as {request.instance_id}",
            )
        if member is None and len(group.members) >= self._max_size:
            raise GroupRefusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                message=f"the group has {len(group.members)} members, and may have no more",
            )
        return member

    def _store_member(
        self,
        group: ConsumerGroup,
        previous: ConsumerMember | None,
        member_id: str,
        subscription: Subscription,
    ) -> ConsumerMember:
        """Store a new, updated or replaced member."""
        if previous is None:
            member = ConsumerMember(member_id, subscription)
        elif previous.member_id == member_id and not previous.is_static_leave:
            member = previous._replace(subscription=subscription)
        else:
            # The new member begins with the partitions of the former one, and revokes some then.
            current = CurrentAssignment(assigned=previous.current.assigned)
            member = ConsumerMember(member_id, subscription, current)
        if previous is not None and previous.member_id != member_id:
            self._stop_waiting(group, previous.member_id)
            group.replace(previous, member)
        else:
            group.replace_member(member)
        return member

    def _assign_if_needed(
        self, group: ConsumerGroup, previous: ConsumerMember | None, member: ConsumerMember
    ) -> None:
        """Begin an epoch if subscriptions or topics changed, and compute its target assignment."""
        before = Subscription() if previous is None else previous.subscription
        is_new = previous is None or not has_same_subscription(group, before, member.subscription)
        changed = is_new and group.topics.is_known_change(before, member.subscription)
        if is_new or group.topics.is_stale or group.epoch != group.target_epoch:
            changed |= group.refresh_topics()
        if changed or (group.is_assignment_due and group.epoch == group.target_epoch):
            group.bump_epoch()
        if group.epoch != group.target_epoch:
            group.assign()
            _log.info(
                "assigned", group=group.group_id, epoch=group.epoch, members=len(group.members)
            )

    def _reconcile(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Partitions | None
    ) -> ConsumerMember:
        """Reconcile a member with its target as far as its partitions permit."""
        current = group.next_assignment(member, owned)
        return member if current == member.current else self._moved(group, member, current)

    # Leaving.

    def _leave(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeat
    ) -> ConsumerGroupHeartbeatResult:
        if request.instance_id is not None:
            member_of_instance(group, request.instance_id, request.member_id)
        member = group.members.get(request.member_id)
        if member is None:
            raise _unknown(request)
        if request.epoch == LEAVE_EPOCH:
            self._remove(group, [member.member_id], "left")
        else:
            self._heartbeats.cancel_for_key(group.rebalance_key(member.member_id))
            static_leave = CurrentAssignment(
                STATIC_LEAVE_EPOCH, STATIC_LEAVE_EPOCH, assigned=member.current.assigned
            )
            group.replace_member(member._replace(current=static_leave))
        return ConsumerGroupHeartbeatResult(ErrorCode.NONE, member.member_id, request.epoch)

    def _remove(self, group: ConsumerGroup, member_ids: Collection[str], reason: str) -> None:
        """Remove members and bump the group epoch; the next heartbeat assigns again."""
        for member_id in member_ids:
            self._stop_waiting(group, member_id)
            group.remove(member_id)
            _log.info("member_gone", group=group.group_id, member=member_id, reason=reason)
        group.refresh_topics()  # the epoch is for what the others read, too
        group.bump_epoch()

    # Offsets.

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        knows_epochs: bool = True,
        topic_partitions: Collection[TopicPartition] = (),
    ) -> None:
        """Check that offsets may be committed: by a member of this epoch; by one of a later epoch,
        of partitions that were assigned to it in this epoch or before, and still are (KIP-1251);
        or, in a group without members, with the member id "" and the epoch -1.

        Args:
            group_id, member_id, epoch: as in the request.
            knows_epochs: whether the request is of a version that has epochs.
            topic_partitions: those of the offsets.

        Raises:
            GroupRefusal: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, or UNSUPPORTED_VERSION.
        """
        member = self.groups[group_id].members.get(member_id)
        if member is not None and not knows_epochs:
            raise GroupRefusal(ErrorCode.UNSUPPORTED_VERSION)
        if member is not None and epoch < member.current.epoch:
            for topic_partition in topic_partitions:
                assigned_in = self._assignment_epoch(member, topic_partition)
                if assigned_in is None or epoch < assigned_in:
                    raise GroupRefusal(ErrorCode.STALE_MEMBER_EPOCH)
        elif epoch >= 0 or self.groups[group_id].members:
            self._check_member(group_id, member_id, epoch)

    def _assignment_epoch(
        self, member: ConsumerMember, topic_partition: TopicPartition
    ) -> int | None:
        topic = self._known_topics.topics.get(topic_partition.topic)
        if topic is None:
            return None
        place = TopicIdPartition(topic.topic_id, topic_partition.partition)
        return member.current.assignment_epoch(place)

    def check_fetch(self, group_id: str, member_id: str, epoch: int) -> None:
        """Check that a request may fetch offsets: it names a member of this epoch, or none.

        Raises:
            GroupRefusal: UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH.
        """
        if epoch >= 0 or member_id:
            self._check_member(group_id, member_id, epoch)

    def _check_member(self, group_id: str, member_id: str, epoch: int) -> None:
        member = self.groups[group_id].members.get(member_id)
        if member is None:
            raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch != member.current.epoch:
            raise GroupRefusal(ErrorCode.STALE_MEMBER_EPOCH)


def _is_unchanged(
    group: ConsumerGroup, member: ConsumerMember, request: ConsumerGroupHeartbeat
) -> bool:
    """Whether neither the member nor the group has changed: the usual case. O(1)."""
    current, subscription = member.current, member.subscription
    return (
        request.owned is None
        and request.topic_names is None
        and request.topic_regex is None
        and request.rack_id is None
        and request.assignor is None
        and request.rebalance_timeout_ms == _UNCHANGED_MS
        and current.state is MemberState.STABLE
        and subscription.classic is None
        and request.epoch == current.epoch == group.target_epoch == group.epoch
        and not group.topics.is_stale
        and not group.is_assignment_due
        and request.client_host == subscription.client_host
        and request.client_id == subscription.client_id
        and (not subscription.topic_regex or request.requester == subscription.requester)
    )


def _unknown(request: ConsumerGroupHeartbeat) -> GroupRefusal:
    name = request.instance_id or request.member_id
    return GroupRefusal(
        ErrorCode.UNKNOWN_MEMBER_ID, message=f"{name} is no member of {request.group_id}"
    )


def has_same_subscription(group: ConsumerGroup, before: Subscription, after: Subscription) -> bool:
    """Whether a member's new report changes nothing of what it reads."""
    if (before.topic_names, before.topic_regex) != (after.topic_names, after.topic_regex):
        return False
    return before.requester == after.requester or group.topics.names(before) == group.topics.names(
        after
    )
