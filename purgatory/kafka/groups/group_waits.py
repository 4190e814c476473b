"""What a group waits for: members to join, members to fetch their assignment, signs of life.

Ground rules: each of them asks the group and tells the coordinator, on the thread that calls both.
"""

from __future__ import annotations

from typing import Protocol

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.groups.group import Group, Member


class GroupEvents(Protocol):
    """What the waits tell the coordinator."""

    def join_over(self, group: Group) -> None:
        """All have joined, or the time for it is up."""

    def first_join_over(self, group: Group, left_ms: int) -> None:
        """The first members of a group had their time to come together."""

    def sync_expired(self, group: Group) -> None:
        """Some member didn't fetch its assignment in time."""

    def session_expired(self, group: Group, member: Member) -> None:
        """A member gave no sign of life in time."""

    def expect_no_more(self, group: Group, member_id: str) -> None:
        """A member that was given its id didn't come with it in time."""


class DelayedJoin(DelayedOperation):
    """Waits until all members of a group that rebalances have joined again."""

    def __init__(self, group: Group, events: GroupEvents) -> None:
        super().__init__(group.rebalance_timeout_ms)
        self.group = group
        self.events = events

    def try_complete(self) -> bool:
        return self.group.all_joined and self.force_complete()

    def on_complete(self) -> None:
        self.events.join_over(self.group)


class InitialDelayedJoin(DelayedOperation):
    """Gives the members of an empty group time to come together, so that one rebalance does.

    Args:
        group: whose.
        delay_ms: how long it waits.
        left_ms: how long it may be waited after that, if more members come meanwhile.
    """

    def __init__(self, group: Group, events: GroupEvents, delay_ms: int, left_ms: int) -> None:
        super().__init__(delay_ms)
        self.group = group
        self.events = events
        self.left_ms = left_ms

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        self.events.first_join_over(self.group, self.left_ms)


class DelayedSync(DelayedOperation):
    """Waits until all members of a generation have asked for their assignment."""

    def __init__(self, group: Group, events: GroupEvents) -> None:
        super().__init__(group.rebalance_timeout_ms)
        self.group = group
        self.events = events
        self.generation = group.generation

    def try_complete(self) -> bool:
        over = self.group.generation != self.generation or not self.group.unsynced
        return over and self.force_complete()

    def on_expiration(self) -> None:
        if self.group.generation == self.generation:
            self.events.sync_expired(self.group)


class DelayedHeartbeat(DelayedOperation):
    """Waits for a member's next sign of life. While the member itself waits, it needs none."""

    def __init__(self, group: Group, member: Member, events: GroupEvents) -> None:
        super().__init__(member.joined.session_timeout_ms)
        self.group = group
        self.member = member
        self.events = events
        self.beats = member.beats

    def try_complete(self) -> bool:
        member = self.member
        gone = self.group.members.get(member.member_id) is not member
        waits = member.joining is not None or member.syncing is not None
        return (gone or waits or member.beats != self.beats) and self.force_complete()

    def on_expiration(self) -> None:
        self.events.session_expired(self.group, self.member)


class DelayedArrival(DelayedOperation):
    """Waits for a member that was given its id to come with it."""

    def __init__(self, group: Group, member_id: str, delay_ms: int, events: GroupEvents) -> None:
        super().__init__(delay_ms)
        self.group = group
        self.member_id = member_id
        self.events = events

    def try_complete(self) -> bool:
        return self.member_id not in self.group.pending_members and self.force_complete()

    def on_expiration(self) -> None:
        self.events.expect_no_more(self.group, self.member_id)
