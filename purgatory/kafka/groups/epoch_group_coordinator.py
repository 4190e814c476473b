"""The base of coordinators that assign in epochs: groups, their records, and their waits.

Ground rules: those of `ConsumerGroupCoordinator`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.groups.consumer_group_member import MemberState
from purgatory.kafka.groups.epoch_group import (
    EpochGroup,
)
from purgatory.kafka.groups.group_records import GroupRecord
from purgatory.kafka.groups.group_timeouts import DelayedMemberSession, DelayedRevocation

GroupT = TypeVar("GroupT", bound=EpochGroup[Any])

WriteRecords: TypeAlias = Callable[
    [str, Sequence[GroupRecord], Callable[[ErrorCode], object]], object
]
"""Writes records of a group, and calls back once they are replicated, or can't be."""


def ignore(_: object) -> None:
    """Ignore a response."""


class EpochGroupCoordinator(ABC, Generic[GroupT]):
    """The groups of one kind of a broker.

    Args:
        session_timeout_ms: returns how long a group's members may give no heartbeat.
        heartbeats: the purgatory in which members are waited for.
        write: writes records.
    """

    def __init__(
        self,
        session_timeout_ms: Callable[[str], int],
        heartbeats: DelayedOperationPurgatory,
        write: WriteRecords,
    ) -> None:
        self.groups: dict[str, GroupT] = {}
        self._session_timeout_ms = session_timeout_ms
        self._heartbeats = heartbeats
        self._write = write

    @abstractmethod
    def _remove(self, group: GroupT, member_ids: Collection[str], reason: str) -> None:
        """Remove members and bump the group epoch; the next heartbeat assigns again."""

    def forget(self, group_id: str) -> None:
        """Coordinate a group no more."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            for member_id in group.members:
                self._stop_waiting(group, member_id)

    def _save(self, group: GroupT, then: Callable[[ErrorCode], object]) -> None:
        """Write what has changed of a group, and call back once that is replicated, or can't be."""
        changes = group.drain_changes()

        def written(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                group.mark_unsaved(key for key, _ in changes)
            then(code)

        self._write(group.group_id, changes, written)

    def member_expired(self, group: GroupT, member_id: str, reason: str) -> None:
        """Remove a member whose session or rebalance timeout has expired."""
        if self.groups.get(group.group_id) is group and member_id in group.members:
            self._remove(group, [member_id], reason)
            self._save(group, ignore)

    def _moved(self, group: GroupT, member: Any, current: Any) -> Any:
        """Give a member another assignment, and wait for what it has to revoke."""
        member = member._replace(current=current)
        group.replace_member(member)
        self._heartbeats.check_and_complete(group.rebalance_key(member.member_id))
        self._watch_revocation(group, member)
        return member

    # Waiting.

    def _watch_session(self, group: GroupT, member: Any) -> None:
        """Begin to wait for the next heartbeat, from now on."""
        member_id = member.member_id
        previous = group.sessions.get(member_id)
        if previous is not None:
            previous.cancel()
        waiting = DelayedMemberSession(group, member_id, self._session_ms(group, member), self)
        group.sessions[member_id] = waiting
        self._heartbeats.try_complete_else_watch(waiting, [group.session_key(member_id)])

    def _session_ms(self, group: GroupT, member: Any) -> int:
        return self._session_timeout_ms(group.group_id)

    def _watch_revocation(self, group: GroupT, member: Any) -> None:
        """Begin to wait for a member's revocation, if there is one."""
        if member.current.state is MemberState.UNREVOKED_PARTITIONS:
            delay_ms = member.subscription.rebalance_timeout_ms
            waiting = DelayedRevocation(group, member.member_id, delay_ms, self)
            key = group.rebalance_key(member.member_id)
            self._heartbeats.try_complete_else_watch(waiting, [key])

    def _stop_waiting(self, group: GroupT, member_id: str) -> None:
        group.sessions.pop(member_id, None)
        for key in (group.session_key, group.rebalance_key):
            self._heartbeats.cancel_for_key(key(member_id))
