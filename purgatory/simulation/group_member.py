"""A consumer in a group: it joins, is assigned partitions, sends heartbeats, commits, and leaves.

It does what Kafka's own consumer does with the eager protocol. Its heartbeats go on while it works
on records; to join again it has to come to its next poll, which is after that work. A member that
processes longer than `max_poll_interval_ms` leaves by itself. Before it joins again it commits its
processed offsets, and revokes all of its partitions.

    away  ->  joining   it starts, or comes back
    joining -> member   it has its partitions, and the group's offsets of them
    member -> joining   the coordinator doesn't know it any more
    member -> revoking -> joining   a rebalance began: it commits first
    (any) ->  away      its stay ends (a member commits first), or it processed for too long

Ground rules: everything runs on the engine's thread. `_join_count` counts the joins: responses to
requests before the last one are dropped. `_incarnation` counts how often it came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, NamedTuple

from purgatory.kafka import (
    CommittedOffset,
    ErrorCode,
    GroupRefusal,
    JoinGroupRequest,
    JoinGroupResult,
    RecordBatch,
    SyncGroupResult,
    TopicPartition,
)
from purgatory.simulation.consumer import Consumer
from purgatory.simulation.coordinators import group_manager, offsets_partition_of
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.network import CallbackRequest, Connection, OnResponse, Server

EMPTY_CONTENT: Mapping[Any, Any] = {}


class GroupRequester(NamedTuple):
    """A member's identity; the leader of `coordinator_partition` is its coordinator."""

    group_id: str
    member_id: str
    generation: int
    join_request: JoinGroupRequest
    coordinator_partition: TopicPartition


class GroupRequest(CallbackRequest):
    """A member's request.

    Args:
        requester: the member's identity at the time of the request.
        connection: to the coordinator.
        on_response: takes the response; None if the connection broke before it came.
        timeout_ms: how long the coordinator may delay the response.
        content: assignments or offsets.
    """

    __slots__ = ("content", "requester")
    kind = "member"
    waits: ClassVar[bool] = False

    def __init__(
        self,
        requester: GroupRequester,
        connection: Connection,
        on_response: OnResponse,
        timeout_ms: int,
        content: Mapping[Any, Any] = EMPTY_CONTENT,
    ) -> None:
        super().__init__(connection, on_response, timeout_ms, (requester.coordinator_partition,))
        self.requester = requester
        self.content = content
        self.is_delayable = self.waits


class JoinGroup(GroupRequest):
    """Join, or rejoin."""

    __slots__ = ()
    api = "join_group"
    purgatory = "Rebalance"

    def execute(self, broker: Server) -> None:
        requester = self.requester
        group_manager(broker).classic.join(
            requester.group_id, requester.member_id, requester.join_request, True, self.respond
        )


class SyncGroup(GroupRequest):
    """Send the leader's assignments by member, and get one's own."""

    __slots__ = ()
    api = "sync_group"
    purgatory = "Sync"

    def execute(self, broker: Server) -> None:
        requester = self.requester
        coordinator = broker.manager.partition(requester.coordinator_partition)
        # A generation is unique only within one coordinator process and leader epoch.
        term = (
            broker.id,
            broker.process_number,
            -1 if coordinator is None else coordinator.leader_epoch,
        )
        group_manager(broker).classic.sync(
            requester.group_id,
            requester.generation,
            requester.member_id,
            requester.join_request.instance_id,
            self.content,
            lambda response: self.respond((response, term)),
        )


class Heartbeat(GroupRequest):
    """Send a heartbeat."""

    __slots__ = ()
    api = "heartbeat"
    purgatory = "Heartbeat"

    def execute(self, broker: Server) -> None:
        requester = self.requester
        instance_id = requester.join_request.instance_id
        heartbeat = group_manager(broker).classic.heartbeat
        self.respond(
            _call_coordinator(
                heartbeat,
                requester.group_id,
                requester.generation,
                requester.member_id,
                instance_id,
            )
        )


class LeaveGroup(GroupRequest):
    """Leave the group."""

    __slots__ = ()
    api = "leave_group"
    purgatory = "Heartbeat"

    def execute(self, broker: Server) -> None:
        requester = self.requester
        self.respond(
            _call_coordinator(
                group_manager(broker).classic.leave,
                requester.group_id,
                [(requester.member_id, None)],
            )
        )


class OffsetFetch(GroupRequest):
    """Fetch the group's committed offsets by partition; an error while a transaction may change
    them."""

    __slots__ = ()
    api = "offset_fetch"
    purgatory = "Fetch"

    def execute(self, broker: Server) -> None:
        self.respond(stable_offsets(broker, self.requester.group_id))


class OffsetCommit(GroupRequest):
    """Commit offsets by partition; the response is sent once they are replicated."""

    __slots__ = ()
    api = "offset_commit"
    purgatory = "Produce"
    waits = True

    def execute(self, broker: Server) -> None:
        requester = self.requester
        group_manager(broker).commit(
            requester.group_id,
            requester.generation,
            requester.member_id,
            requester.join_request.instance_id,
            {
                topic_partition: CommittedOffset(offset, -1, "")
                for topic_partition, offset in self.content.items()
            },
            self.respond,
        )


def stable_offsets(broker: Server, group_id: str) -> dict[TopicPartition, int] | ErrorCode:
    """Return a group's committed offsets, or the error."""
    groups = group_manager(broker)
    try:
        committed = groups.committed(group_id)
        if groups.pending(group_id):
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
    except GroupRefusal as refusal:
        return refusal.code
    return {
        topic_partition: committed_offset.offset
        for topic_partition, committed_offset in committed.items()
    }


def _call_coordinator(method: Callable[..., object], *arguments: object) -> ErrorCode:
    """Return the error of a call, or NONE."""
    try:
        method(*arguments)
    except GroupRefusal as refusal:
        return refusal.code
    return ErrorCode.NONE


_BACKOFF_NS = 100 * NS_PER_MS
_COMMIT_TIMEOUT_MS = 5_000
_PROTOCOL = "range"

MEMBERSHIP_LOST = frozenset(
    (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)
)
"""After these errors a member is no longer in the group, or not in its current generation."""

_REJOIN_ERRORS = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
    )
)


class MemberState(Enum):
    """The states of a member."""

    AWAY = "away"
    JOINING = "joining"
    MEMBER = "member"
    REVOKING = "revoking"


class GroupMember:
    """The membership of one consumer in its group."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.group = consumer.group
        self.state = MemberState.AWAY
        self.member_id = ""
        self.generation = -1
        section = self._section = consumer.group.section
        self.coordinator_partition = offsets_partition_of(section.group)
        """The partition whose leader coordinates the group."""
        self.is_static = section.membership == "static"
        self.join_request = JoinGroupRequest(
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
        self._join_count = 0
        self._incarnation = 0
        self._on_next_poll: Callable[[], object] | None = None
        self._committed: dict[TopicPartition, int] = {}

    # Joining and leaving.

    def start(self) -> None:
        """Join the group for the first time, or again after a leave."""
        if self.state is MemberState.AWAY:
            self._incarnation += 1
            self._on_next_poll = None
            self._join()
            stay_ns = self.group.stay_ns()
            if stay_ns:
                self._engine.call_after(stay_ns, self._end_membership, self._incarnation)
            self._engine.call_after(self._heartbeat_ns, self._send_heartbeat, self._incarnation)

    def _end_membership(self, incarnation: int) -> None:
        """Leave at the end of the stay; another member takes its place after a while."""
        if incarnation != self._incarnation or self.state is MemberState.AWAY:
            return
        if self.state is MemberState.MEMBER:
            self._call_when_idle(partial(self._revoke_and_commit, self._leave_and_rejoin))
        else:
            self._leave_and_rejoin()

    def _leave_and_rejoin(self) -> None:
        self._leave()
        self.member_id = ""  # the next one is another process
        self._engine.call_after(self.group.away_ns(), self.start)

    def _leave(self) -> None:
        if self.state is MemberState.AWAY:
            return
        # A static member just stops: it may return until its session expires.
        if not self.is_static:
            self._send(LeaveGroup, lambda _: None)
            self.member_id = ""
        self.state = MemberState.AWAY
        self.generation = -1
        self._join_count += 1
        self._on_next_poll = None
        self.consumer.assign({})

    # Events of the consumer.

    def on_work(self, work_ns: int) -> None:
        """The consumer has read records, and processes them for so long."""
        longest_ns = self._section.max_poll_interval_ms * NS_PER_MS
        if work_ns > longest_ns:
            self._engine.call_after(longest_ns, self._exceed_poll_interval, self._join_count)

    def on_poll(self) -> None:
        """The consumer has processed its records and polls again."""
        callback, self._on_next_poll = self._on_next_poll, None
        if callback is not None:
            callback()

    def on_read(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        """The consumer has read batches: their offsets are committed once they are processed."""

    def _call_when_idle(self, function: Callable[[], object]) -> None:
        """Call this now, or when the consumer has processed its records."""
        if self.consumer.is_working:
            self._on_next_poll = function
        else:
            function()

    def _exceed_poll_interval(self, join_count: int) -> None:
        if (
            join_count == self._join_count
            and self.state is MemberState.MEMBER
            and self.consumer.is_working
        ):
            self.group.counts.expelled += 1
            self._leave()
            self._on_next_poll = self.start

    # Joining.

    def _join(self) -> None:
        self.state = MemberState.JOINING
        self._join_count += 1
        self.generation = -1
        self.group.counts.joins += 1
        self._send(
            JoinGroup, self._handle_join_response, timeout_ms=3 * self._section.max_poll_interval_ms
        )

    def _handle_join_response(self, result: JoinGroupResult | None) -> None:
        if result is None:
            self._call_later(self._join)
            return
        if result.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
            self._join()
        elif result.error is not ErrorCode.NONE:
            self._handle_error(result.error)
        else:
            self.member_id, self.generation = result.member_id, result.generation
            assignments: Mapping[str, bytes] = {}
            if result.leader_id == result.member_id:
                members = sorted(entry.member_id for entry in result.members)
                assignments = _assign_partitions(self.group.topic_partitions, members)
            self._send(
                SyncGroup,
                self._handle_sync_response,
                assignments,
                timeout_ms=2 * self._section.max_poll_interval_ms,
            )

    def _handle_sync_response(
        self, response: tuple[SyncGroupResult, tuple[int, ...]] | None
    ) -> None:
        if response is None:
            self._call_later(self._join)
            return
        result, term = response
        if result.error is not ErrorCode.NONE:
            self._handle_error(result.error)
        else:
            numbers = _partitions(result.assignment)
            partitions = [
                topic_partition
                for topic_partition in self.group.topic_partitions
                if topic_partition.partition in numbers
            ]
            term = (*term, self.generation)
            owner = self.join_request.instance_id or self.member_id
            if self.group.watch.record_assignment(owner, term, partitions):
                self.group.counts.rebalances += 1
            self._fetch_offsets(partitions)

    def _fetch_offsets(self, partitions: Sequence[TopicPartition]) -> None:
        acknowledged = self.group.watch.acknowledged_commits()
        self._send(OffsetFetch, partial(self._handle_offsets, partitions, acknowledged))

    def _handle_offsets(
        self,
        partitions: Sequence[TopicPartition],
        acknowledged: Mapping[TopicPartition, int],
        offsets: Mapping[TopicPartition, int] | ErrorCode | None,
    ) -> None:
        if offsets is None or isinstance(offsets, ErrorCode):
            self._call_later(self._fetch_offsets, partitions)
            return
        self.group.watch.check_fetched_offsets(self.member_id, offsets, partitions, acknowledged)
        self.state = MemberState.MEMBER
        self._committed = {
            topic_partition: offsets.get(topic_partition, 0) for topic_partition in partitions
        }
        self.consumer.assign(self._committed)
        self._engine.call_after(self._commit_ns, self._auto_commit, self._join_count)

    def _handle_error(self, error: ErrorCode) -> None:
        """Rejoin, at once or after the backoff."""
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if error in MEMBERSHIP_LOST:
            self.consumer.assign({})  # others may have its partitions
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self._leave()
        elif error in _REJOIN_ERRORS:
            self._join()
        else:
            self._call_later(self._join)

    # Staying.

    def _send_heartbeat(self, incarnation: int) -> None:
        if incarnation != self._incarnation or self.state is MemberState.AWAY:
            return
        if self.state is MemberState.MEMBER and not self._is_paused:
            self._send(Heartbeat, self._handle_heartbeat_response)
        self._engine.call_after(self._heartbeat_ns, self._send_heartbeat, incarnation)

    def _handle_heartbeat_response(self, error: ErrorCode | None) -> None:
        if self.state is not MemberState.MEMBER:
            return
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            if self._on_next_poll is None:  # it may be about to leave
                self._call_when_idle(partial(self._revoke_and_commit, self._join))
        elif error in MEMBERSHIP_LOST:
            self._handle_error(error)

    def _auto_commit(self, join_count: int) -> None:
        if join_count == self._join_count and self.state is MemberState.MEMBER:
            self._commit(lambda _: None, self.consumer.processed)
            self._engine.call_after(self._commit_ns, self._auto_commit, join_count)

    def _revoke_and_commit(self, function: Callable[[], object]) -> None:
        """Revoke all partitions, commit their processed offsets, then call the function."""
        self.state = MemberState.REVOKING
        processed = self.consumer.processed
        self.consumer.assign({})
        self._commit(lambda _: function(), processed)

    def _commit(self, function: OnResponse, processed: Mapping[TopicPartition, int]) -> None:
        """Commit the processed offsets that are not committed."""
        offsets = {
            topic_partition: offset
            for topic_partition, offset in processed.items()
            if offset != self._committed.get(topic_partition)
        }
        if not offsets:
            function(None)
            return
        number = self.group.watch.record_commit(offsets)

        def on_response(codes: Mapping[TopicPartition, ErrorCode] | None) -> None:
            if codes is not None and not any(codes.values()):
                self.group.counts.commits += 1
                self.group.watch.record_commit_response(number)
                self._committed.update(offsets)
            function(codes)

        self._send(OffsetCommit, on_response, offsets, timeout_ms=_COMMIT_TIMEOUT_MS)

    # Requests to the coordinator.

    def _send(
        self,
        kind: type[GroupRequest],
        on_response: Callable[..., object],
        content: Mapping[Any, Any] = EMPTY_CONTENT,
        timeout_ms: int = 0,
    ) -> None:
        coordinator = self.group.leader_of(self.coordinator_partition)
        join_count = self._join_count
        if coordinator < 0:
            self._engine.call_after(_BACKOFF_NS, self._deliver, join_count, on_response, None)
            return
        connection = self._connection(coordinator, is_join=kind is JoinGroup)
        deliver = partial(self._deliver, join_count, on_response)
        requester = GroupRequester(
            self.group.name,
            self.member_id,
            self.generation,
            self.join_request,
            self.coordinator_partition,
        )
        connection.send(kind(requester, connection, deliver, timeout_ms, content))

    def _deliver(self, join_count: int, on_response: OnResponse, response: Any) -> None:
        if join_count == self._join_count:
            on_response(response)

    def _connection(self, broker_id: int, is_join: bool) -> Connection:
        """The connection to a coordinator. Joins wait for other members, so they have their own."""
        connection = self._connections.get((broker_id, is_join))
        if connection is None:
            max_timeout_ms = 3 * self._section.max_poll_interval_ms if is_join else 0
            connection = self.group.connect(broker_id, max_timeout_ms)
            self._connections[broker_id, is_join] = connection
        return connection

    def _call_later(self, function: Callable[..., object], *arguments: object) -> None:
        join_count = self._join_count

        def call() -> None:
            if join_count == self._join_count:
                function(*arguments)

        self._engine.call_after(_BACKOFF_NS, call)

    @property
    def _is_paused(self) -> bool:
        """Whether its process is paused, and sends no heartbeats."""
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
    """Assign each member a range of partitions; the first members get one more if needed."""
    share, rest = divmod(len(topic_partitions), len(members))
    assignments, begin = {}, 0
    for number, member_id in enumerate(members):
        end = begin + share + (number < rest)
        numbers = (
            str(topic_partition.partition) for topic_partition in topic_partitions[begin:end]
        )
        assignments[member_id] = ",".join(numbers).encode()
        begin = end
    return assignments


def _partitions(assignment: bytes) -> frozenset[int]:
    return frozenset(int(number) for number in assignment.decode().split(",") if number)
