"""The coordinator of the classic groups whose offsets a broker leads.

Members join, sync and send heartbeats; their operations wait in three purgatories:
``Rebalance`` (`DelayedJoin` on a `GroupJoinKey`), ``Sync`` (`DelayedSync` on a `GroupSyncKey`) and
``Heartbeat`` (`DelayedHeartbeat` and `DelayedArrival` on a `MemberKey`). A generation is stored
before its members get their assignments, and so is an empty group: members notice no change of the
coordinator.

Ground rules
------------
* One thread at a time calls it, and the timer of its purgatories is moved on that thread.
* Callbacks of the purgatories change groups at once, so a method that notified a purgatory looks at
  the group again.
* A request that may have to wait has a ``respond``, called once with the result or the error;
  never, if the purgatories are closed first, or the broker was killed while it stored the group.
  The callback sends a response, and calls nothing here.
  Other requests return at once, or raise `GroupRefusal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.group import (
    ANY_PROTOCOL,
    UNKNOWN_MS,
    ClassicGroupRecord,
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
from purgatory.kafka.groups.group_timeouts import (
    DelayedArrival,
    DelayedHeartbeat,
    DelayedJoin,
    DelayedSync,
    InitialDelayedJoin,
)
from purgatory.kafka.groups.instance_fencing import member_of_instance
from purgatory.kafka.settings.group_settings import GroupConfig

_MAX_GROUP_ID_BYTES = 2**15 - 1
SaveGroup = Callable[[Group, Mapping[str, bytes], Callable[[ErrorCode], object]], object]
"""Stores a group's generation with these assignments by member id, and calls back once that is
replicated, or can't be; never, if the broker is killed meanwhile."""
_log = Logger("purgatory.kafka")


def check_group_id(group_id: str, may_be_empty: bool = False) -> None:
    """Check a group id.

    Raises:
        GroupRefusal: INVALID_GROUP_ID.
    """
    # Records of committed offsets have no place for longer ones.
    if not (group_id or may_be_empty) or len(group_id.encode()) > _MAX_GROUP_ID_BYTES:
        raise GroupRefusal(ErrorCode.INVALID_GROUP_ID)


class GroupCoordinator:
    """Coordinates the groups of one broker.

    Args:
        config: the limits of groups.
        new_purgatory: makes a purgatory of this name.
        new_member_id: makes an id that no member had before, from its first part.
        check_coordinated: raises `GroupRefusal` where another broker coordinates a group.
        check_joining: raises `GroupRefusal` where a group has members of another protocol.
        save: stores groups; by default they are not.
        now_ms: returns the time, in milliseconds since 1970; by default it is unknown.
    """

    def __init__(
        self,
        config: GroupConfig,
        new_purgatory: Callable[[str], DelayedOperationPurgatory],
        new_member_id: Callable[[str], str],
        check_coordinated: Callable[[str], object] = lambda _: None,
        check_joining: Callable[[str], object] = lambda _: None,
        save: SaveGroup = lambda _group, _assignments, respond: respond(ErrorCode.NONE),
        now_ms: Callable[[], int] = lambda: UNKNOWN_MS,
    ) -> None:
        self.config = config
        self.groups: dict[str, Group] = {}
        self.rebalances = new_purgatory("Rebalance")
        self.syncs = new_purgatory("Sync")
        self.heartbeats = new_purgatory("Heartbeat")
        self._new_member_id = new_member_id
        self._check_led = check_coordinated
        self._check_joining = check_joining
        self._save = save
        self._now_ms = now_ms
        self._left: Group | None = None

    @property
    def purgatories(self) -> list[DelayedOperationPurgatory]:
        """The purgatories in which members wait."""
        return [self.rebalances, self.syncs, self.heartbeats]

    def check_coordinated(self, group_id: str) -> None:
        """Check a group id, and that the group is coordinated here.

        Raises:
            GroupRefusal: NOT_COORDINATOR or INVALID_GROUP_ID.
        """
        self._check_led(group_id)
        check_group_id(group_id)

    def restore(self, group_id: str, record: ClassicGroupRecord) -> None:
        """Restore a group as stored, and restart the session timeouts of all members."""
        group = Group.restored(group_id, record)
        self.adopt(group)
        if len(group.members) > self.config.max_size:
            self._prepare_rebalance(group, "more members than a group may have by now")

    def adopt(self, group: Group, reason: str | None = None) -> None:
        """Coordinate a stable group, whose sessions begin; with a reason, its members rebalance."""
        self.groups[group.group_id] = group
        for member in group.members.values():
            self._watch_session(group, member)
        if reason is not None:
            self._prepare_rebalance(group, reason)

    def forget(self, group_id: str, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Coordinate a group no more: its members that wait get this error."""
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        group.move_to(GroupState.DEAD, self._now_ms())
        for member in group.members.values():
            member.refuse(code)
        for member_id in (*group.members, *group.pending_members):
            self.heartbeats.cancel_for_key(group.member_key(member_id))
        self.rebalances.cancel_for_key(group.join_key)
        self.syncs.cancel_for_key(group.sync_key)

    # Joining.

    def join(
        self,
        group_id: str,
        member_id: str,
        join_request: JoinGroupRequest,
        require_known_member_id: bool,
        respond: RespondJoin,
    ) -> None:
        """Join a group.

        Args:
            member_id: from an earlier response; "" for a new member.
            require_known_member_id: whether a new member first gets an id, with which it has to
                join again.
            respond: takes the response once the rebalance is complete, or an error.
        """
        try:
            self.check_join(group_id, join_request)
            self._check_joining(group_id)
            group = self.groups.get(group_id)
            is_new = group is None
            if group is None:
                if member_id:
                    raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
                group = self.groups[group_id] = Group(group_id, self._now_ms())
            former_id = group.static_members.get(join_request.instance_id or "", "")
            try:
                if not group.supports_protocols(join_request):
                    raise GroupRefusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
                if is_new:
                    self._save_empty(group, lambda _: None)  # the next coordinator has it, too
                member = self._member_to_join(
                    group, member_id, join_request, require_known_member_id
                )
            except GroupRefusal:
                if is_new and not group.pending_members:
                    del self.groups[group_id]
                raise
            # A request that waits already was abandoned by the member, which now repeats it.
            member.respond_join(JoinGroupResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
            former = member.join_request
            changed = member.is_new or former.protocols != join_request.protocols
            is_back = not member.is_new and member.member_id != member_id
            # As in Kafka: a member is shown as the client that it was when it came.
            member.join_request = join_request._replace(
                instance_id=member.instance_id,
                client_id=former.client_id,
                client_host=former.client_host,
            )
            if is_back and group.state is GroupState.COMPLETING_REBALANCE:
                changed = True  # the leader is about to assign partitions to its former id
            elif is_back and group.state is GroupState.STABLE:
                changed = group.choose_protocol() != group.protocol
            if changed or not self._respond_at_once(group, member, is_back):
                self._wait_to_join(group, member, respond)
            elif is_back:
                self._save_replaced(group, member, former_id, former, respond)
            else:
                respond(group.join_result(member))
        except GroupRefusal as refusal:
            respond(JoinGroupResult(refusal.code, refusal.member_id or member_id))

    def check_join(self, group_id: str, join_request: JoinGroupRequest) -> None:
        """Check a request to join, whatever the group.

        Raises:
            GroupRefusal: NOT_COORDINATOR, INVALID_GROUP_ID or INVALID_SESSION_TIMEOUT.
        """
        self.check_coordinated(group_id)
        minimum, maximum = self.config.min_session_timeout_ms, self.config.max_session_timeout_ms
        if not minimum <= join_request.session_timeout_ms <= maximum:
            raise GroupRefusal(ErrorCode.INVALID_SESSION_TIMEOUT)

    def _member_to_join(
        self,
        group: Group,
        member_id: str,
        join_request: JoinGroupRequest,
        require_known_member_id: bool,
    ) -> Member:
        instance_id = join_request.instance_id
        if instance_id is not None and instance_id in group.static_members:
            return self._static_member_to_join(group, member_id, instance_id)
        if not member_id:
            if len(group.members) + len(group.pending_members) >= self.config.max_size:
                raise GroupRefusal(ErrorCode.GROUP_MAX_SIZE_REACHED)
            begin = join_request.client_id if instance_id is None else instance_id
            member_id = self._new_member_id(begin)
            if require_known_member_id and instance_id is None:
                group.pending_members.add(member_id)
                waiting = DelayedArrival(group, member_id, join_request.session_timeout_ms, self)
                self.heartbeats.try_complete_else_watch(waiting, [group.member_key(member_id)])
                raise GroupRefusal(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        elif member_id in group.members and instance_id is None:
            return group.members[member_id]
        elif member_id not in group.pending_members:
            raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
        member = Member(member_id, join_request)
        group.add(member)
        return member

    def _static_member_to_join(self, group: Group, member_id: str, instance_id: str) -> Member:
        holder = member_of_instance(group, instance_id, member_id, may_be_unknown=True)
        member = group.members[holder]
        if not member_id:
            # The member is back, or another one took its place: the old id is fenced from now on.
            self._cancel_session(group, member)
            member.refuse(ErrorCode.FENCED_INSTANCE_ID)
            group.replace(member, self._new_member_id(instance_id))
            self.syncs.check_and_complete(group.sync_key)
            self._watch_session(group, member)
        return member

    def _save_replaced(
        self,
        group: Group,
        member: Member,
        former_id: str,
        former: JoinGroupRequest,
        respond: RespondJoin,
    ) -> None:
        """Store the new id of a static member that is back, and respond; if that fails, the member
        has its former id again."""
        member_id = member.member_id
        member.awaiting_join_callback = respond
        self.heartbeats.check_and_complete(group.member_key(member_id))

        def saved(code: ErrorCode) -> None:
            if group.members.get(member_id) is not member or group.state is GroupState.DEAD:
                return
            waits = member.awaiting_join_callback is respond  # no rebalance has told it its new id
            if waits and code is not ErrorCode.NONE:
                member.join_request = former
                self._cancel_session(group, member)
                group.replace(member, former_id)
            if waits:
                result = group.join_result(member)
                if code is not ErrorCode.NONE:
                    result = JoinGroupResult(code, "")
                elif result.skip_assignment and not member.join_request.can_skip_assignment:
                    result = result._replace(leader_id=former_id, members=(), skip_assignment=False)
                member.respond_join(result)
            self._watch_session(group, member)

        assignments = {key: one.assignment for key, one in group.members.items()}
        self._save(group, assignments, saved)

    def _respond_at_once(self, group: Group, member: Member, has_rejoined: bool) -> bool:
        """Whether a rejoining member without changes can get the current generation."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            return True
        is_leader = group.leader_id == member.member_id
        # A leader that joins again wants a rebalance, perhaps for new partitions. A static one that
        # is back wants to keep the generation.
        return group.state is GroupState.STABLE and (has_rejoined or not is_leader)

    def _wait_to_join(self, group: Group, member: Member, respond: RespondJoin) -> None:
        member.awaiting_join_callback = respond
        # A member that waits for the others needs no heartbeat.
        self.heartbeats.check_and_complete(group.member_key(member.member_id))
        if group.state is GroupState.PREPARING_REBALANCE:
            self.rebalances.check_and_complete(group.join_key)
        else:
            self._prepare_rebalance(group, "a member joins")

    def _prepare_rebalance(self, group: Group, reason: str) -> None:
        for member in group.members.values():
            if member.awaiting_sync_callback is not None:
                member.respond_sync(SyncGroupResult(ErrorCode.REBALANCE_IN_PROGRESS))
                self._watch_session(group, member)
        was_empty = group.state is GroupState.EMPTY
        group.move_to(GroupState.PREPARING_REBALANCE, self._now_ms())
        self.syncs.check_and_complete(group.sync_key)
        _log.info("rebalance", group=group.group_id, generation=group.generation, reason=reason)
        if was_empty:
            self._wait_for_first_members(group, group.rebalance_timeout_ms)
        else:
            self.rebalances.try_complete_else_watch(DelayedJoin(group, self), [group.join_key])

    def _wait_for_first_members(self, group: Group, remaining_ms: int) -> None:
        delay_ms = min(self.config.initial_rebalance_delay_ms, remaining_ms)
        group.new_member_added = False
        waiting = InitialDelayedJoin(group, self, delay_ms, remaining_ms - delay_ms)
        self.rebalances.try_complete_else_watch(waiting, [group.join_key])

    # Notifications of the delayed operations.

    def complete_initial_join(self, group: Group, remaining_ms: int) -> None:
        """Complete the initial delay; extend it if members joined meanwhile."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        if group.new_member_added and remaining_ms > 0:
            self._wait_for_first_members(group, remaining_ms)
        else:
            self.complete_join(group)

    def complete_join(self, group: Group) -> None:
        """Begin a generation with the members that joined, and remove the others."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        for member in list(group.members.values()):
            if member.awaiting_join_callback is None and member.instance_id is None:
                self._cancel_session(group, member)
                self._remove_member(group, member)
        if group.members and all(m.awaiting_join_callback is None for m in group.members.values()):
            # All members are static, and none has rejoined: their sessions limit the wait.
            self.rebalances.try_complete_else_watch(DelayedJoin(group, self), [group.join_key])
            return
        group.elect_joined_leader()
        group.next_generation(self._now_ms())
        self.syncs.check_and_complete(group.sync_key)  # end syncs of the former generation
        members = list(group.members.values())
        for member in members:
            member.is_new = False
            if member.awaiting_join_callback is not None:
                member.respond_join(group.join_result(member))
                self._watch_session(group, member)
        if members:
            self.syncs.try_complete_else_watch(DelayedSync(group, self), [group.sync_key])
        elif group is not self._left:
            self._save_empty(group, lambda _: None)

    def _save_empty(self, group: Group, respond: Callable[[ErrorCode], object]) -> None:
        """Store that a group is empty. If that fails, a coordinator that takes over waits for its
        former members in vain."""

        def saved(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                _log.warning("empty_group_unsaved", group=group.group_id, error=code.name)
            respond(code)

        self._save(group, {}, saved)

    def expire_sync(self, group: Group) -> None:
        """Remove the members that have joined but not synced in time."""
        if group.state is GroupState.COMPLETING_REBALANCE or group.state is GroupState.STABLE:
            for member_id in list(group.pending_sync_members):
                member = group.members.get(member_id)
                if member is not None:
                    self._remove(group, member, "no sync")

    def expire_session(self, group: Group, member: Member) -> None:
        """Remove a member whose session has expired."""
        if group.members.get(member.member_id) is member:
            self._remove(group, member, "session timeout")

    def remove_pending_member(self, group: Group, member_id: str) -> None:
        """Remove a pending member id that did not join in time; as in Kafka, its group stays."""
        group.pending_members.discard(member_id)
        self.rebalances.check_and_complete(group.join_key)

    # Sync, heartbeat, leave.

    def sync(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        assignments: Mapping[str, bytes],
        respond: RespondSync,
        protocol: GroupProtocol = ANY_PROTOCOL,
    ) -> None:
        """Store the leader's assignments, and respond to each member with its own.

        Args:
            group_id, generation, member_id, instance_id: as in the request.
            assignments: the leader's, by member id.
            respond: takes the response once the leader's assignments are stored, or an error.
            protocol: the group's protocol as the member knows it.
        """
        try:
            group, member = self._member(group_id, member_id, instance_id)
            if generation != group.generation:
                raise GroupRefusal(ErrorCode.ILLEGAL_GENERATION)
            protocol.check(group.protocol_type, group.protocol)
            if group.state is GroupState.PREPARING_REBALANCE:
                raise GroupRefusal(ErrorCode.REBALANCE_IN_PROGRESS)
            group.pending_sync_members.discard(member_id)
            self.syncs.check_and_complete(group.sync_key)
            if group.state is GroupState.STABLE:
                self._heartbeat(group, member)
                respond(group.sync_result(member))
                return
            # A request that waits already was abandoned by the member, which now repeats it.
            member.respond_sync(SyncGroupResult(ErrorCode.REBALANCE_IN_PROGRESS))
            member.awaiting_sync_callback = respond
            self.heartbeats.check_and_complete(group.member_key(member_id))
            if member_id == group.leader_id:
                self._assign(group, assignments)
        except GroupRefusal as refusal:
            respond(SyncGroupResult(refusal.code))

    def _assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        generation = group.generation

        def saved(code: ErrorCode) -> None:
            # Another rebalance may have begun meanwhile: its members know.
            if group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation:
                self._finish_rebalance(group, assignments, code)

        self._save(group, assignments, saved)

    def _finish_rebalance(
        self, group: Group, assignments: Mapping[str, bytes], code: ErrorCode
    ) -> None:
        """Give all members their stored assignments, or the error."""
        is_stored = code is ErrorCode.NONE
        if is_stored:
            group.move_to(GroupState.STABLE, self._now_ms())
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"") if is_stored else b""
        for member in group.members.values():
            if member.awaiting_sync_callback is not None:
                result = group.sync_result(member) if is_stored else SyncGroupResult(code)
                member.respond_sync(result)
                self._watch_session(group, member)
        if not is_stored:
            self._prepare_rebalance(group, f"its assignments are not stored: {code.name}")

    def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """Handle a heartbeat.

        Raises:
            GroupRefusal: the member is not in this generation, or must rejoin.
        """
        group, member = self._member(group_id, member_id, instance_id)
        if generation != group.generation:
            raise GroupRefusal(ErrorCode.ILLEGAL_GENERATION)
        self._heartbeat(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise GroupRefusal(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(
        self,
        group_id: str,
        members: Sequence[tuple[str, str | None]],
        respond: RespondLeave,
    ) -> None:
        """Remove members, each by its member id, its instance id or both.

        Args:
            respond: called at once, or, for the last members, once it is stored that they left.
        """
        try:
            self.check_coordinated(group_id)
        except GroupRefusal as refusal:
            respond(LeaveGroupResult(refusal.code))
            return
        group = self._left = self.groups.get(group_id)
        was_empty = group is None or group.state is GroupState.EMPTY
        codes = [self._leave(group_id, *member) for member in members]
        self._left = None
        if group is None or was_empty or group.state is not GroupState.EMPTY:
            respond(LeaveGroupResult(ErrorCode.NONE, codes))
        else:
            self._save_empty(group, lambda code: respond(LeaveGroupResult(code, codes)))

    def _leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        try:
            group = self._group(group_id)
            if instance_id is not None and not member_id:
                member_id = group.static_members.get(instance_id, "")
            if member_id in group.pending_members:
                # As in Kafka: the group that it asked for is there, and empty.
                self.heartbeats.cancel_for_key(group.member_key(member_id))
                group.pending_members.discard(member_id)
                self._rebalance_without(group, "a member that asked for its id left")
            else:
                _, member = self._member(group_id, member_id, instance_id)
                self._remove(group, member, "left")
        except GroupRefusal as refusal:
            return refusal.code
        return ErrorCode.NONE

    def check_commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        knows_epochs: bool = True,
        in_transaction: bool = False,
    ) -> None:
        """Check that offsets may be committed: by a member of this generation, or, with a
        generation below 0, to a group without members.

        As Kafka's ``ClassicGroup.validateOffsetCommit``: a consumer that assigns its partitions
        itself may send any member id.

        Args:
            group_id, generation, member_id, instance_id: as in the request.
            knows_epochs: whether the request is of a version that has member epochs.
            in_transaction: whether it is part of a producer's transaction: it may name no member,
                may commit during a rebalance, and does not count as a heartbeat.

        Raises:
            GroupRefusal: the commit is refused.
        """
        self._check_led(group_id)
        # As in Kafka: a consumer without a group's name commits to the group "".
        check_group_id(group_id, may_be_empty=not in_transaction)
        group = self.groups.get(group_id)
        if generation < 0 and (group is None or group.state is GroupState.EMPTY):
            return
        if group is None:
            unknown = ErrorCode.GROUP_ID_NOT_FOUND if knows_epochs else ErrorCode.ILLEGAL_GENERATION
            raise GroupRefusal(ErrorCode.ILLEGAL_GENERATION if in_transaction else unknown)
        if generation < 0 and not member_id and instance_id is None:
            if in_transaction:
                return
            raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
        group, member = self._member(group_id, member_id, instance_id)
        if generation != group.generation:
            raise GroupRefusal(ErrorCode.ILLEGAL_GENERATION)
        if in_transaction:
            return
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise GroupRefusal(ErrorCode.REBALANCE_IN_PROGRESS)
        self._heartbeat(group, member)

    # Helpers.

    def _group(self, group_id: str) -> Group:
        self.check_coordinated(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _member(
        self, group_id: str, member_id: str, instance_id: str | None
    ) -> tuple[Group, Member]:
        group = self._group(group_id)
        if instance_id is not None:
            member_of_instance(group, instance_id, member_id)
        member = group.members.get(member_id)
        if member is None:
            raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
        return group, member

    def _remove(self, group: Group, member: Member, reason: str) -> None:
        self._cancel_session(group, member)
        member.refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        self._remove_member(group, member)
        _log.info("member_gone", group=group.group_id, member=member.member_id, reason=reason)
        self._rebalance_without(group, f"a member is gone: {reason}")

    def _rebalance_without(self, group: Group, reason: str) -> None:
        """Begin a rebalance, or go on with one, after a member has gone."""
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(group, reason)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self.rebalances.check_and_complete(group.join_key)

    def _remove_member(self, group: Group, member: Member) -> None:
        group.remove(member)
        self.syncs.check_and_complete(group.sync_key)  # perhaps all others have synced

    def _heartbeat(self, group: Group, member: Member) -> None:
        member.heartbeat_count += 1
        self.heartbeats.check_and_complete(group.member_key(member.member_id))
        self._watch_session(group, member)

    def _watch_session(self, group: Group, member: Member) -> None:
        """Begin to wait for the next heartbeat, from now on."""
        self._cancel_session(group, member)
        waiting = DelayedHeartbeat(group, member, self)
        self.heartbeats.try_complete_else_watch(waiting, [group.member_key(member.member_id)])

    def _cancel_session(self, group: Group, member: Member) -> None:
        self.heartbeats.cancel_for_key(group.member_key(member.member_id))
