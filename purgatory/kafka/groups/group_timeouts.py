"""The timeouts of groups and their members: operations that wait for a member's next request.

    DelayedJoin             rebalance timeout, until all members have joined again
    InitialDelayedJoin      initial rebalance delay of an empty group
    DelayedSync             rebalance timeout, until all members have sent SyncGroup
    DelayedHeartbeat        session timeout of a member
    DelayedArrival          session timeout of a pending member, until it joins with its new id

    DelayedMemberSession    session timeout of a member of a group that assigns in epochs
    DelayedRevocation       rebalance timeout of such a member, until it has revoked partitions
    DelayedRejoin           those of one that speaks the classic protocol, until it joins again
    DelayedMemberSync       and until it sends SyncGroup

Ground rules: the operations ask the group and notify the coordinator, on the thread that calls
both.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.groups.consumer_group_member import MemberState
from purgatory.kafka.groups.epoch_group import EpochGroup
from purgatory.kafka.groups.group import Group, Member


class ClassicGroupEvents(Protocol):
    """Notifications of the waits of a classic group to its coordinator."""

    def complete_join(self, group: Group) -> None:
        """Complete the join phase: all members have joined, or it timed out."""

    def complete_initial_join(self, group: Group, remaining_ms: int) -> None:
        """Complete the initial rebalance delay of an empty group."""

    def expire_sync(self, group: Group) -> None:
        """Remove the members that have joined but not synced in time."""

    def expire_session(self, group: Group, member: Member) -> None:
        """Remove a member whose session has expired."""

    def remove_pending_member(self, group: Group, member_id: str) -> None:
        """Remove a pending member that did not join in time."""


class DelayedJoin(DelayedOperation):
    """Waits until all members of a rebalancing group have joined again."""

    def __init__(self, group: Group, events: ClassicGroupEvents) -> None:
        super().__init__(group.rebalance_timeout_ms)
        self.group = group
        self.events = events

    def try_complete(self) -> bool:
        return self.group.has_all_members_joined and self.force_complete()

    def on_complete(self) -> None:
        self.events.complete_join(self.group)


class InitialDelayedJoin(DelayedOperation):
    """Waits for more members of an empty group, so that a single rebalance suffices.

    Args:
        group: the empty group.
        delay_ms: the wait.
        remaining_ms: the maximal further wait, if more members join meanwhile.
    """

    def __init__(
        self, group: Group, events: ClassicGroupEvents, delay_ms: int, remaining_ms: int
    ) -> None:
        super().__init__(delay_ms)
        self.group = group
        self.events = events
        self.remaining_ms = remaining_ms

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        self.events.complete_initial_join(self.group, self.remaining_ms)


class DelayedSync(DelayedOperation):
    """Waits until all members of a generation have sent SyncGroup."""

    def __init__(self, group: Group, events: ClassicGroupEvents) -> None:
        super().__init__(group.rebalance_timeout_ms)
        self.group = group
        self.events = events
        self.generation = group.generation

    def try_complete(self) -> bool:
        is_complete = (
            self.group.generation != self.generation or not self.group.pending_sync_members
        )
        return is_complete and self.force_complete()

    def on_expiration(self) -> None:
        if self.group.generation == self.generation:
            self.events.expire_sync(self.group)


class DelayedHeartbeat(DelayedOperation):
    """Waits for a member's next heartbeat. While the member itself waits, it needs none."""

    def __init__(self, group: Group, member: Member, events: ClassicGroupEvents) -> None:
        super().__init__(member.join_request.session_timeout_ms)
        self.group = group
        self.member = member
        self.events = events
        self.heartbeat_count = member.heartbeat_count

    def try_complete(self) -> bool:
        member = self.member
        is_removed = self.group.members.get(member.member_id) is not member
        is_waiting = (
            member.awaiting_join_callback is not None or member.awaiting_sync_callback is not None
        )
        return (
            is_removed or is_waiting or member.heartbeat_count != self.heartbeat_count
        ) and self.force_complete()

    def on_expiration(self) -> None:
        self.events.expire_session(self.group, self.member)


class DelayedArrival(DelayedOperation):
    """Waits for a pending member to join with its new id."""

    def __init__(
        self, group: Group, member_id: str, delay_ms: int, events: ClassicGroupEvents
    ) -> None:
        super().__init__(delay_ms)
        self.group = group
        self.member_id = member_id
        self.events = events

    def try_complete(self) -> bool:
        return self.member_id not in self.group.pending_members and self.force_complete()

    def on_expiration(self) -> None:
        self.events.remove_pending_member(self.group, self.member_id)


class EpochGroupEvents(Protocol):
    """Notifications of the waits of an `EpochGroup` to its coordinator."""

    def member_expired(self, group: Any, member_id: str, reason: str) -> None:
        """Handle a member whose session or rebalance timeout has expired."""


class _MemberWait(DelayedOperation):
    """Waits for an action of a member; without it the member expires, for ``reason``."""

    reason: ClassVar[str]

    def __init__(
        self, group: EpochGroup[Any], member_id: str, delay_ms: int, events: EpochGroupEvents
    ) -> None:
        super().__init__(delay_ms)
        self.group = group
        self.member_id = member_id
        self.events = events

    def on_expiration(self) -> None:
        self.events.member_expired(self.group, self.member_id, self.reason)


class DelayedMemberSession(_MemberWait):
    """Waits for a member's next heartbeat; the coordinator cancels it then."""

    reason = "session timeout"

    def try_complete(self) -> bool:
        return self.member_id not in self.group.members and self.force_complete()


class DelayedRejoin(DelayedMemberSession):
    """Waits until a member of the classic protocol joins again, for another rebalance."""

    reason = "not joined again in time"


class DelayedMemberSync(DelayedMemberSession):
    """Waits until a member of the classic protocol that has joined fetches its assignment."""

    reason = "no sync"


class DelayedRevocation(_MemberWait):
    """Waits until a member has revoked what it is to give up."""

    reason = "partitions not given up in time"

    def __init__(
        self, group: EpochGroup[Any], member_id: str, delay_ms: int, events: EpochGroupEvents
    ) -> None:
        super().__init__(group, member_id, delay_ms, events)
        self.revoking = group.members[member_id].current.revoking

    def try_complete(self) -> bool:
        member = self.group.members.get(self.member_id)
        expired = (
            member is None
            or member.current.state is not MemberState.UNREVOKED_PARTITIONS
            or member.current.revoking != self.revoking
        )
        return expired and self.force_complete()
