"""What members of consumer groups ask their coordinator, on its way there and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from purgatory.kafka import BrokerGroups, CommittedOffset, ErrorCode, GroupRefusal, TopicPartition
from purgatory.simulation.network import Connection, Request

if TYPE_CHECKING:
    from purgatory.simulation.group_member import GroupMember
    from purgatory.simulation.simulated_broker import Broker

Answered = Callable[[Any], object]


class GroupRequest(Request):
    """A member's request.

    Args:
        member: who asks.
        connection: to the coordinator.
        answered: takes the answer; None if the connection broke before it came.
        timeout_ms: how long the coordinator may let it wait.
    """

    __slots__ = ("_answered", "_timeout_ms", "asked_as", "member")
    kind = "member"
    waits: ClassVar[bool] = False

    def __init__(
        self, member: GroupMember, connection: Connection, answered: Answered, timeout_ms: int
    ) -> None:
        super().__init__(connection)
        self.member = member
        self.asked_as = (member.member_id, member.generation)
        self.may_wait = self.waits
        self._answered = answered
        self._timeout_ms = timeout_ms

    @property
    def timeout_ms(self) -> int:
        return self._timeout_ms

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return (self.member.place,)

    def deliver(self, answer: Any) -> None:
        self._answered(answer)

    def fail(self) -> None:
        self._answered(None)


class JoinGroup(GroupRequest):
    """Join, or join again."""

    __slots__ = ()
    api = "join_group"
    purgatory = "Rebalance"

    def execute(self, broker: Broker) -> None:
        member = self.member
        _groups(broker).join(member.group_id, self.asked_as[0], member.joining, True, self.respond)


class SyncGroup(GroupRequest):
    """Hand in the leader's assignments, and ask for one's own."""

    __slots__ = ("assignments",)
    api = "sync_group"
    purgatory = "Sync"

    def __init__(
        self,
        member: GroupMember,
        connection: Connection,
        answered: Answered,
        timeout_ms: int,
        assignments: Mapping[str, bytes],
    ) -> None:
        super().__init__(member, connection, answered, timeout_ms)
        self.assignments = assignments

    def execute(self, broker: Broker) -> None:
        member_id, generation = self.asked_as
        led = broker.manager.partition(self.member.place)
        # A generation means something to the coordinator alone that it is of.
        term = (broker.id, broker.process_number, -1 if led is None else led.leader_epoch)
        _groups(broker).sync(
            self.member.group_id,
            generation,
            member_id,
            self.member.joining.instance_id,
            self.assignments,
            lambda answer: self.respond((answer, term)),
        )


class Heartbeat(GroupRequest):
    """Give a sign of life."""

    __slots__ = ()
    api = "heartbeat"
    purgatory = "Heartbeat"

    def execute(self, broker: Broker) -> None:
        member_id, generation = self.asked_as
        instance_id = self.member.joining.instance_id
        self.respond(
            _code(
                _groups(broker).heartbeat, self.member.group_id, generation, member_id, instance_id
            )
        )


class LeaveGroup(GroupRequest):
    """Leave for good."""

    __slots__ = ()
    api = "leave_group"
    purgatory = "Heartbeat"

    def execute(self, broker: Broker) -> None:
        self.respond(_code(_groups(broker).leave, self.member.group_id, [(self.asked_as[0], None)]))


class OffsetFetch(GroupRequest):
    """Ask what the group has committed: the offsets by partition, or an error."""

    __slots__ = ()
    api = "offset_fetch"
    purgatory = "Fetch"

    def execute(self, broker: Broker) -> None:
        try:
            committed = _groups(broker).committed(self.member.group_id)
        except GroupRefusal as refusal:
            self.respond(refusal.code)
        else:
            self.respond({place: one.offset for place, one in committed.items()})


class OffsetCommit(GroupRequest):
    """Commit offsets; it waits until they are replicated."""

    __slots__ = ("offsets",)
    api = "offset_commit"
    purgatory = "Produce"
    waits = True

    def __init__(
        self,
        member: GroupMember,
        connection: Connection,
        answered: Answered,
        timeout_ms: int,
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        super().__init__(member, connection, answered, timeout_ms)
        self.offsets = offsets

    def execute(self, broker: Broker) -> None:
        member_id, generation = self.asked_as
        _groups(broker).commit(
            self.member.group_id,
            generation,
            member_id,
            self.member.joining.instance_id,
            {place: CommittedOffset(offset, -1, "") for place, offset in self.offsets.items()},
            self.respond,
        )


def _groups(broker: Broker) -> BrokerGroups:
    assert broker.groups is not None, "brokers coordinate groups where there are any"
    return broker.groups


def _code(ask: Callable[..., object], *arguments: object) -> ErrorCode:
    """Return the error with which something is refused, or that there is none."""
    try:
        ask(*arguments)
    except GroupRefusal as refusal:
        return refusal.code
    return ErrorCode.NONE
