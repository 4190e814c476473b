"""What members of consumer groups ask their coordinator, on its way there and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from purgatory.kafka import (
    BrokerGroups,
    CommittedOffset,
    ErrorCode,
    GroupRefusal,
    Joining,
    TopicPartition,
)
from purgatory.simulation.network import Connection, Request, Server

Answered = Callable[[Any], object]
NO_CONTENT: Mapping[Any, Any] = {}


class AskedAs(NamedTuple):
    """As what a member asks: `place` is the partition whose leader coordinates its group."""

    group_id: str
    member_id: str
    generation: int
    joining: Joining
    place: TopicPartition


class GroupRequest(Request):
    """A member's request.

    Args:
        asked_as: who asks, as what it is when it does.
        connection: to the coordinator.
        answered: takes the answer; None if the connection broke before it came.
        timeout_ms: how long the coordinator may let it wait.
        content: what is handed in with it.
    """

    __slots__ = ("_answered", "_timeout_ms", "asked_as", "content")
    kind = "member"
    waits: ClassVar[bool] = False

    def __init__(
        self,
        asked_as: AskedAs,
        connection: Connection,
        answered: Answered,
        timeout_ms: int,
        content: Mapping[Any, Any] = NO_CONTENT,
    ) -> None:
        super().__init__(connection)
        self.asked_as = asked_as
        self.content = content
        self.may_wait = self.waits
        self._answered = answered
        self._timeout_ms = timeout_ms

    @property
    def timeout_ms(self) -> int:
        return self._timeout_ms

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return (self.asked_as.place,)

    def deliver(self, answer: Any) -> None:
        self._answered(answer)

    def fail(self) -> None:
        self._answered(None)


class JoinGroup(GroupRequest):
    """Join, or join again."""

    __slots__ = ()
    api = "join_group"
    purgatory = "Rebalance"

    def execute(self, broker: Server) -> None:
        asked = self.asked_as
        _groups(broker).join(asked.group_id, asked.member_id, asked.joining, True, self.respond)


class SyncGroup(GroupRequest):
    """Hand in the leader's assignments by member, and ask for one's own."""

    __slots__ = ()
    api = "sync_group"
    purgatory = "Sync"

    def execute(self, broker: Server) -> None:
        asked = self.asked_as
        led = broker.manager.partition(asked.place)
        # A generation means something to the coordinator alone that it is of.
        term = (broker.id, broker.process_number, -1 if led is None else led.leader_epoch)
        _groups(broker).sync(
            asked.group_id,
            asked.generation,
            asked.member_id,
            asked.joining.instance_id,
            self.content,
            lambda answer: self.respond((answer, term)),
        )


class Heartbeat(GroupRequest):
    """Give a sign of life."""

    __slots__ = ()
    api = "heartbeat"
    purgatory = "Heartbeat"

    def execute(self, broker: Server) -> None:
        asked = self.asked_as
        instance_id = asked.joining.instance_id
        heartbeat = _groups(broker).heartbeat
        self.respond(
            _code(heartbeat, asked.group_id, asked.generation, asked.member_id, instance_id)
        )


class LeaveGroup(GroupRequest):
    """Leave for good."""

    __slots__ = ()
    api = "leave_group"
    purgatory = "Heartbeat"

    def execute(self, broker: Server) -> None:
        asked = self.asked_as
        self.respond(_code(_groups(broker).leave, asked.group_id, [(asked.member_id, None)]))


class OffsetFetch(GroupRequest):
    """Ask what the group has committed: the offsets by partition, or an error, as while a
    transaction may yet change them."""

    __slots__ = ()
    api = "offset_fetch"
    purgatory = "Fetch"

    def execute(self, broker: Server) -> None:
        self.respond(stable_offsets(broker, self.asked_as.group_id))


class OffsetCommit(GroupRequest):
    """Commit offsets by partition; it waits until they are replicated."""

    __slots__ = ()
    api = "offset_commit"
    purgatory = "Produce"
    waits = True

    def execute(self, broker: Server) -> None:
        asked = self.asked_as
        _groups(broker).commit(
            asked.group_id,
            asked.generation,
            asked.member_id,
            asked.joining.instance_id,
            {place: CommittedOffset(offset, -1, "") for place, offset in self.content.items()},
            self.respond,
        )


def stable_offsets(broker: Server, group_id: str) -> dict[TopicPartition, int] | ErrorCode:
    """Return what a group has committed, or why that can't be told."""
    groups = _groups(broker)
    try:
        committed = groups.committed(group_id)
        if groups.pending(group_id):
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
    except GroupRefusal as refusal:
        return refusal.code
    return {place: one.offset for place, one in committed.items()}


def _groups(broker: Server) -> BrokerGroups:
    assert broker.groups is not None, "brokers coordinate groups where there are any"
    return broker.groups


def _code(ask: Callable[..., object], *arguments: object) -> ErrorCode:
    """Return the error with which something is refused, or that there is none."""
    try:
        ask(*arguments)
    except GroupRefusal as refusal:
        return refusal.code
    return ErrorCode.NONE
