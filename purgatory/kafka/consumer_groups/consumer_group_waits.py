"""What a consumer group waits for: signs of life, partitions to be given up, and members of the
classic protocol to join again or to sync.

Ground rules: each of them tells the coordinator, on the thread that calls both.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.consumer_groups.consumer_group_state import ConsumerGroup
from purgatory.kafka.consumer_groups.consumer_member import MemberState


class ConsumerGroupEvents(Protocol):
    """What the waits tell the coordinator."""

    def member_expired(self, group: ConsumerGroup, member_id: str, reason: str) -> None:
        """A member gave no sign of life, or didn't give up partitions, in time."""


class _MemberWait(DelayedOperation):
    """Waits for something of a member, who expires if it doesn't come: for ``reason``."""

    reason: ClassVar[str]

    def __init__(
        self, group: ConsumerGroup, member_id: str, delay_ms: int, events: ConsumerGroupEvents
    ) -> None:
        super().__init__(delay_ms)
        self.group = group
        self.member_id = member_id
        self.events = events

    def on_expiration(self) -> None:
        self.events.member_expired(self.group, self.member_id, self.reason)


class DelayedMemberSession(_MemberWait):
    """Waits for a member's next sign of life; the coordinator cancels it then."""

    reason = "session timeout"

    def try_complete(self) -> bool:
        return self.member_id not in self.group.members and self.force_complete()


class DelayedRevocation(_MemberWait):
    """Waits until a member has given up what others are to have."""

    reason = "partitions not given up in time"

    def __init__(
        self, group: ConsumerGroup, member_id: str, delay_ms: int, events: ConsumerGroupEvents
    ) -> None:
        super().__init__(group, member_id, delay_ms, events)
        self.revoking = group.members[member_id].current.revoking

    def try_complete(self) -> bool:
        member = self.group.members.get(self.member_id)
        over = (
            member is None
            or member.current.state is not MemberState.UNREVOKED_PARTITIONS
            or member.current.revoking != self.revoking
        )
        return over and self.force_complete()


class DelayedClassicStep(_MemberWait):
    """Waits for a member of the classic protocol to join again, or to sync."""

    reason = "did not join or sync in time"

    def try_complete(self) -> bool:
        return self.member_id not in self.group.awaited and self.force_complete()
