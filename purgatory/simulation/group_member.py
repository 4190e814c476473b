"""A consumer in a group: it joins, is assigned partitions, sends heartbeats, commits, and leaves.

It does what Kafka's own consumer does with the eager protocol. Its heartbeats go on while it works
on records; to join again it has to come to its next poll, which is after that work. A member that
works longer than `max_poll_interval_ms` leaves by itself. Before it joins again it commits what it
processed, and gives all of its partitions back.

    away  ->  joining   it starts, or comes back
    joining -> member   it has its partitions, and the group's offsets of them
    member -> joining   the coordinator doesn't know it any more
    member -> giving back -> joining   a rebalance began: first it commits
    (any) ->  away      its time is over (a member commits first), or it worked for too long

Ground rules: everything runs on the engine's thread. `_turn` counts the joins: responses to
requests before the last one are dropped. `_life` counts how often it came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, NamedTuple

from purgatory.kafka import (
    CommittedOffset,
    ErrorCode,
    GroupManager,
    GroupRefusal,
    JoinGroupRequest,
    JoinGroupResult,
    RecordBatch,
    SyncGroupResult,
    TopicPartition,
)
from purgatory.simulation.consumer import Consumer
from purgatory.simulation.coordinators import offsets_partition_of
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.network import Connection, Request, Server

Answered = Callable[[Any], object]
NO_CONTENT: Mapping[Any, Any] = {}


class GroupRequester(NamedTuple):
    """As what a member asks: `place` is the partition whose leader coordinates its group."""

    group_id: str
    member_id: str
    generation: int
    joining: JoinGroupRequest
    place: TopicPartition


class GroupRequest(Request):
    """A member's request.

    Args:
        asked_as: who asks, as what it is when it does.
        connection: to the coordinator.
        answered: takes the response; None if the connection broke before it came.
        timeout_ms: how long the coordinator may let it wait.
        content: what is handed in with it.
    """

    __slots__ = ("_answered", "_timeout_ms", "asked_as", "content")
    kind = "member"
    waits: ClassVar[bool] = False

    def __init__(
        self,
        asked_as: GroupRequester,
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
    """Give a heartbeat."""

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


def _groups(broker: Server) -> GroupManager:
    assert broker.groups is not None, "brokers coordinate groups where there are any"
    return broker.groups


def _code(ask: Callable[..., object], *arguments: object) -> ErrorCode:
    """Return the error with which something is refused, or that there is none."""
    try:
        ask(*arguments)
    except GroupRefusal as refusal:
        return refusal.code
    return ErrorCode.NONE


_BACKOFF_NS = 100 * NS_PER_MS
_COMMIT_TIMEOUT_MS = 5_000
_PROTOCOL = "range"

OUT = frozenset(
    (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)
)
"""Who is told this belongs to the group no more, or to no generation that is."""

_JOIN_AT_ONCE = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
    )
)


class MemberState(Enum):
    """What a member is doing."""

    AWAY = "away"
    JOINING = "joining"
    MEMBER = "member"
    GIVING_BACK = "giving back"


class GroupMember:
    """One consumer's part in its group.

    Args:
        consumer: fetches what it is given.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.group = consumer.group
        self.state = MemberState.AWAY
        self.member_id = ""
        self.generation = -1
        section = self._section = consumer.group.section
        self.place = offsets_partition_of(section.group)
        """The partition whose leader coordinates the group."""
        self.is_static = section.membership == "static"
        self.joining = JoinGroupRequest(
            client_id=section.group,
            client_host="/simulated",
            instance_id=f"{section.group}-{consumer.number}" if self.is_static else None,
            session_timeout_ms=section.session_timeout_ms,
            rebalance_timeout_ms=section.max_poll_interval_ms,
            protocol_type="consumer",
            protocols=((_PROTOCOL, b""),),
        )
        self._engine = consumer.group.engine
        self._connections: dict[tuple[int, bool], Connection] = {}
        self._turn = 0
        self._life = 0
        self._at_next_poll: Callable[[], object] | None = None
        self._committed: dict[TopicPartition, int] = {}

    # Coming and going.

    def start(self) -> None:
        """Join the group for the first time, or come back."""
        if self.state is MemberState.AWAY:
            self._life += 1
            self._at_next_poll = None
            self._join()
            stay_ns = self.group.stay_ns()
            if stay_ns:
                self._engine.after(stay_ns, self._go, self._life)
            self._engine.after(self._heartbeat_ns, self._beat, self._life)

    def _go(self, life: int) -> None:
        """Its time is over: another one takes its place after a while."""
        if life != self._life or self.state is MemberState.AWAY:
            return
        if self.state is MemberState.MEMBER:
            self._when_idle(partial(self._commit_and, self._go_away))
        else:
            self._go_away()

    def _go_away(self) -> None:
        self._leave()
        self.member_id = ""  # who comes is another process
        self._engine.after(self.group.away_ns(), self.start)

    def _leave(self) -> None:
        if self.state is MemberState.AWAY:
            return
        # A static member just stops: it is expected back until its session is over.
        if not self.is_static:
            self._ask(LeaveGroup, lambda _: None)
            self.member_id = ""
        self.state = MemberState.AWAY
        self.generation = -1
        self._turn += 1
        self._at_next_poll = None
        self.consumer.assign({})

    # What the consumer tells.

    def works_for(self, work_ns: int) -> None:
        """The consumer has read something, and is busy with it for so long."""
        longest_ns = self._section.max_poll_interval_ms * NS_PER_MS
        if work_ns > longest_ns:
            self._engine.after(longest_ns, self._expel, self._turn)

    def came_to_poll(self) -> None:
        """The consumer is through with its work."""
        wanted, self._at_next_poll = self._at_next_poll, None
        if wanted is not None:
            wanted()

    def was_given(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        """The consumer has read something: it commits later what it worked through."""

    def _when_idle(self, function: Callable[[], object]) -> None:
        """Call this now, or when the consumer is through with its work."""
        if self.consumer.works:
            self._at_next_poll = function
        else:
            function()

    def _expel(self, turn: int) -> None:
        if turn == self._turn and self.state is MemberState.MEMBER and self.consumer.works:
            self.group.counts.expelled += 1
            self._leave()
            self._at_next_poll = self.start

    # Joining.

    def _join(self) -> None:
        self.state = MemberState.JOINING
        self._turn += 1
        self.generation = -1
        self.group.counts.joins += 1
        self._ask(JoinGroup, self._joined, timeout_ms=3 * self._section.max_poll_interval_ms)

    def _joined(self, answer: JoinGroupResult | None) -> None:
        if answer is None:
            self._later(self._join)
            return
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self._join()
        elif answer.error is not ErrorCode.NONE:
            self._refused(answer.error)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation
            assignments: Mapping[str, bytes] = {}
            if answer.leader_id == answer.member_id:
                members = sorted(entry.member_id for entry in answer.members)
                assignments = _assign_partitions(self.group.topic_partitions, members)
            self._ask(
                SyncGroup,
                self._synced,
                assignments,
                timeout_ms=2 * self._section.max_poll_interval_ms,
            )

    def _synced(self, answered: tuple[SyncGroupResult, tuple[int, ...]] | None) -> None:
        if answered is None:
            self._later(self._join)
            return
        answer, term = answered
        if answer.error is not ErrorCode.NONE:
            self._refused(answer.error)
        else:
            given = _partitions(answer.assignment)
            mine = [place for place in self.group.topic_partitions if place.partition in given]
            term = (*term, self.generation)
            who = self.joining.instance_id or self.member_id
            if self.group.watch.given(who, term, mine):
                self.group.counts.rebalances += 1
            self._fetch_offsets(mine)

    def _fetch_offsets(self, mine: Sequence[TopicPartition]) -> None:
        acknowledged = self.group.watch.acknowledged()
        self._ask(OffsetFetch, partial(self._take_up, mine, acknowledged))

    def _take_up(
        self,
        mine: Sequence[TopicPartition],
        acknowledged: Mapping[TopicPartition, int],
        answer: Mapping[TopicPartition, int] | ErrorCode | None,
    ) -> None:
        if answer is None or isinstance(answer, ErrorCode):
            self._later(self._fetch_offsets, mine)
            return
        self.group.watch.fetched(self.member_id, answer, mine, acknowledged)
        self.state = MemberState.MEMBER
        self._committed = {place: answer.get(place, 0) for place in mine}
        self.consumer.assign(self._committed)
        self._engine.after(self._commit_ns, self._commit_sometimes, self._turn)

    def _refused(self, error: ErrorCode) -> None:
        """Join again, at once or after a while."""
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if error in OUT:
            self.consumer.assign({})  # others may have its partitions
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self._leave()
        elif error in _JOIN_AT_ONCE:
            self._join()
        else:
            self._later(self._join)

    # Staying.

    def _beat(self, life: int) -> None:
        if life != self._life or self.state is MemberState.AWAY:
            return
        if self.state is MemberState.MEMBER and not self._stands_still:
            self._ask(Heartbeat, self._beaten)
        self._engine.after(self._heartbeat_ns, self._beat, life)

    def _beaten(self, error: ErrorCode | None) -> None:
        if self.state is not MemberState.MEMBER:
            return
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            if self._at_next_poll is None:  # it may be about to go
                self._when_idle(partial(self._commit_and, self._join))
        elif error in OUT:
            self._refused(error)

    def _commit_sometimes(self, turn: int) -> None:
        if turn == self._turn and self.state is MemberState.MEMBER:
            self._commit(lambda _: None, self.consumer.processed)
            self._engine.after(self._commit_ns, self._commit_sometimes, turn)

    def _commit_and(self, then: Callable[[], object]) -> None:
        """Give all partitions back, commit how far they were worked through, and go on."""
        self.state = MemberState.GIVING_BACK
        processed = self.consumer.processed
        self.consumer.assign({})
        self._commit(lambda _: then(), processed)

    def _commit(self, then: Answered, processed: Mapping[TopicPartition, int]) -> None:
        """Commit what was worked through and is not committed."""
        offsets = {
            place: offset
            for place, offset in processed.items()
            if offset != self._committed.get(place)
        }
        if not offsets:
            then(None)
            return
        number = self.group.watch.commit_sent(offsets)

        def answered(codes: Mapping[TopicPartition, ErrorCode] | None) -> None:
            if codes is not None and not any(codes.values()):
                self.group.counts.commits += 1
                self.group.watch.commit_acknowledged(number)
                self._committed.update(offsets)
            then(codes)

        self._ask(OffsetCommit, answered, offsets, timeout_ms=_COMMIT_TIMEOUT_MS)

    # Asking the coordinator.

    def _ask(
        self,
        kind: type[GroupRequest],
        answered: Callable[..., object],
        content: Mapping[Any, Any] = NO_CONTENT,
        timeout_ms: int = 0,
    ) -> None:
        coordinator = self.group.leader_of(self.place)
        turn = self._turn
        if coordinator < 0:
            self._engine.after(_BACKOFF_NS, self._answered, turn, answered, None)
            return
        connection = self._connection(coordinator, is_join=kind is JoinGroup)
        take = partial(self._answered, turn, answered)
        asked_as = GroupRequester(
            self.group.name, self.member_id, self.generation, self.joining, self.place
        )
        connection.send(kind(asked_as, connection, take, timeout_ms, content))

    def _answered(self, turn: int, answered: Answered, answer: Any) -> None:
        if turn == self._turn:
            answered(answer)

    def _connection(self, broker_id: int, is_join: bool) -> Connection:
        """The connection to a coordinator. A join waits for others: it has one of its own."""
        connection = self._connections.get((broker_id, is_join))
        if connection is None:
            longest_ms = 3 * self._section.max_poll_interval_ms if is_join else 0
            connection = self.group.connect(broker_id, longest_ms)
            self._connections[broker_id, is_join] = connection
        return connection

    def _later(self, function: Callable[..., object], *arguments: object) -> None:
        turn = self._turn

        def call() -> None:
            if turn == self._turn:
                function(*arguments)

        self._engine.after(_BACKOFF_NS, call)

    @property
    def _stands_still(self) -> bool:
        """Whether its process does nothing, and so doesn't beat."""
        return False

    @property
    def _heartbeat_ns(self) -> int:
        return self._section.heartbeat_interval_ms * NS_PER_MS

    @property
    def _commit_ns(self) -> int:
        return self._section.commit_interval_ms * NS_PER_MS


def _assign_partitions(
    topic_partitions: Sequence[TopicPartition], members: Sequence[str]
) -> dict[str, bytes]:
    """Give each member a range of partitions; the first ones get one more, if need be."""
    share, rest = divmod(len(topic_partitions), len(members))
    dealt, begin = {}, 0
    for number, member_id in enumerate(members):
        end = begin + share + (number < rest)
        numbers = (str(place.partition) for place in topic_partitions[begin:end])
        dealt[member_id] = ",".join(numbers).encode()
        begin = end
    return dealt


def _partitions(assignment: bytes) -> frozenset[int]:
    return frozenset(int(number) for number in assignment.decode().split(",") if number)
