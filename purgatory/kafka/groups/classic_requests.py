"""Requests of members of the classic protocol, to the groups that they are in.

A consumer group with members takes them (`MixedGroupCoordinator`); all others are those of
`GroupCoordinator`.

Ground rules: those of `GroupCoordinator`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purgatory.kafka.groups.group import (
    ANY_PROTOCOL,
    GroupProtocol,
    JoinGroupRequest,
    RespondJoin,
    RespondLeave,
    RespondSync,
)
from purgatory.kafka.groups.group_coordinator import GroupCoordinator
from purgatory.kafka.groups.mixed_group_coordinator import MixedGroupCoordinator


class ClassicRequests:
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

    Args:
        classic: the classic groups.
        consumers: the consumer groups.
    """

    def __init__(self, classic: GroupCoordinator, consumers: MixedGroupCoordinator) -> None:
        self._classic = classic
        self._consumers = consumers

    def _is_mixed(self, group_id: str) -> bool:
        group = self._consumers.groups.get(group_id)
        return group is not None and bool(group.members)

    def join(
        self,
        group_id: str,
        member_id: str,
        join_request: JoinGroupRequest,
        require_known_member_id: bool,
        respond: RespondJoin,
    ) -> None:
        """Join a group, as by `GroupCoordinator.join`."""
        coordinator = self._consumers if self._is_mixed(group_id) else self._classic
        coordinator.join(group_id, member_id, join_request, require_known_member_id, respond)

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
        """Get an assignment, as by `GroupCoordinator.sync`."""
        member = generation, member_id, instance_id
        if self._is_mixed(group_id):
            self._consumers.sync(group_id, *member, respond, protocol)
        else:
            self._classic.sync(group_id, *member, assignments, respond, protocol)

    def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """Handle a heartbeat.

        Raises:
            GroupRefusal: the member is not in this generation, or must join again.
        """
        mixed = self._is_mixed(group_id)
        beat = self._consumers.classic_heartbeat if mixed else self._classic.heartbeat
        beat(group_id, generation, member_id, instance_id)

    def leave(
        self,
        group_id: str,
        members: Sequence[tuple[str, str | None]],
        respond: RespondLeave,
    ) -> None:
        """Remove members, as by `GroupCoordinator.leave`."""
        coordinator = self._consumers if self._is_mixed(group_id) else self._classic
        coordinator.leave(group_id, members, respond)
