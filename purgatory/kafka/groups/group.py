"""A group of the classic protocol: its members, its generation and its state.

A data structure: the coordinator decides, and `group_timeouts` has the waits for its members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from purgatory.core.keys import GroupJoinKey, GroupSyncKey, MemberKey
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.consumer_protocol import subscribed_topics


class JoinGroupMember(NamedTuple):
    """A member as the leader gets it: its ids, and its metadata for the chosen protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinGroupResult(NamedTuple):
    """A member's place in the current generation, for the leader with all members; or an error."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str = ""
    members: Sequence[JoinGroupMember] = ()
    skip_assignment: bool = False
    """Whether the leader is back in a generation that has its assignment (KIP-814)."""


class SyncGroupResult(NamedTuple):
    """Gives a member its assignment, unless there is an error."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class LeaveGroupResult(NamedTuple):
    """The error of a whole request, or the error code of each member that was to leave."""

    error: ErrorCode
    codes: Sequence[ErrorCode] = ()


RespondJoin = Callable[[JoinGroupResult], object]
RespondSync = Callable[[SyncGroupResult], object]
RespondLeave = Callable[[LeaveGroupResult], object]
CONSUMER = "consumer"
"""The protocol type of consumers."""

NO_GENERATION = 0
UNKNOWN_MS = -1
"""The time of a state in an older Kafka's record."""


class GroupState(Enum):
    """The state of a group, in Kafka's words."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class JoinGroupRequest(NamedTuple):
    """A member's JoinGroup request. Times are in milliseconds.

    Attributes:
        can_skip_assignment: whether the client knows that a leader which is back has its assignment
            (KIP-814); an older one is told that its former id leads.
    """

    client_id: str
    client_host: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    can_skip_assignment: bool = True


class GroupProtocol(NamedTuple):
    """The protocol that a member expects in SyncGroup; None matches any."""

    type: str | None = None
    name: str | None = None

    def check(self, group_type: str | None, group_protocol: str | None) -> None:
        """Check that the group has the type and protocol that a member expects.

        Raises:
            GroupRefusal: INCONSISTENT_GROUP_PROTOCOL.
        """
        for expected, supported in ((self.type, group_type), (self.name, group_protocol)):
            if expected is not None and supported is not None and expected != supported:
                raise GroupRefusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


ANY_PROTOCOL = GroupProtocol()


# A generation is stored when its rebalance is over, and when a group is empty: the next coordinator
# goes on with the members, their generation and their assignments.


class ClassicMemberRecord(NamedTuple):
    """A member of a stored generation. Times are in milliseconds.

    Args:
        subscription: its metadata for the protocol of the group.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class ClassicGroupRecord(NamedTuple):
    """A stored generation of a group; an empty group has no members.

    Args:
        protocol_type: "" before the first member.
        protocol, leader_id: None without members.
        state_ms: when the group came into its state, in milliseconds since 1970; -1: unknown.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader_id: str | None
    state_ms: int
    members: tuple[ClassicMemberRecord, ...] = ()


@dataclass(slots=True, eq=False)
class Member:
    """One member of a group.

    ``awaiting_join_callback`` and ``awaiting_sync_callback`` take the responses of the requests of
    it that wait, or are None.
    """

    member_id: str
    join_request: JoinGroupRequest
    assignment: bytes = b""
    awaiting_join_callback: RespondJoin | None = None
    awaiting_sync_callback: RespondSync | None = None
    heartbeat_count: int = 0
    is_new: bool = True

    @property
    def instance_id(self) -> str | None:
        """The id of a static member; None for a dynamic one."""
        return self.join_request.instance_id

    def metadata_for(self, protocol: str) -> bytes:
        """Return its metadata for an assignment protocol; empty if it does not support it."""
        return next((data for name, data in self.join_request.protocols if name == protocol), b"")

    def respond_join(self, result: JoinGroupResult) -> None:
        """Respond to its join request, if one waits."""
        respond, self.awaiting_join_callback = self.awaiting_join_callback, None
        if respond is not None:
            respond(result)

    def respond_sync(self, result: SyncGroupResult) -> None:
        """Respond to its sync request, if one waits."""
        respond, self.awaiting_sync_callback = self.awaiting_sync_callback, None
        if respond is not None:
            respond(result)

    def refuse(self, code: ErrorCode) -> None:
        """Refuse its requests that wait."""
        self.respond_join(JoinGroupResult(code, self.member_id))
        self.respond_sync(SyncGroupResult(code))


class Group:
    """The members of a group by member id, in the order of joining.

    Its members wait on ``join_key`` and ``sync_key``.

    Args:
        state_ms: when it came into its state, in milliseconds since 1970; -1: unknown.
    """

    def __init__(self, group_id: str, state_ms: int = UNKNOWN_MS) -> None:
        self.group_id = group_id
        self.join_key = GroupJoinKey(group_id)
        self.sync_key = GroupSyncKey(group_id)
        self.state = GroupState.EMPTY
        self.state_ms = state_ms
        self.generation = NO_GENERATION
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: set[str] = set()
        self.pending_sync_members: set[str] = set()
        self.new_member_added = False

    def member_key(self, member_id: str) -> MemberKey:
        """Return the watch key of a member's next heartbeat."""
        return MemberKey(self.group_id, member_id)

    # Its members.

    def add(self, member: Member) -> None:
        """Add a member; the first one leads."""
        if not self.members:
            self.protocol_type = member.join_request.protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.pending_members.discard(member.member_id)
        self.new_member_added = True

    def remove(self, member: Member) -> None:
        """Remove a member; if it was the leader, another one leads."""
        self.members.pop(member.member_id, None)
        self.pending_sync_members.discard(member.member_id)
        if (
            member.instance_id is not None
            and self.static_members.get(member.instance_id) == member.member_id
        ):
            del self.static_members[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace(self, member: Member, new_id: str) -> None:
        """Replace the id of a static member that has rejoined."""
        was_leader = self.leader_id == member.member_id
        self.members = {
            (new_id if key == member.member_id else key): value
            for key, value in self.members.items()
        }
        self.pending_sync_members.discard(member.member_id)
        member.member_id = new_id
        assert member.instance_id is not None, "only static members come back"
        self.static_members[member.instance_id] = new_id
        if was_leader:
            self.leader_id = new_id

    def elect_joined_leader(self) -> None:
        """Elect another leader, if the leader is a static member that has not rejoined."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.awaiting_join_callback is None:
            self.leader_id = next(
                (
                    key
                    for key, member in self.members.items()
                    if member.awaiting_join_callback is not None
                ),
                self.leader_id,
            )

    # Its protocol.

    def supports_protocols(self, join_request: JoinGroupRequest) -> bool:
        """Whether a member supports a protocol that all other members support."""
        if not self.members:
            return bool(join_request.protocol_type and join_request.protocols)
        if join_request.protocol_type != self.protocol_type:
            return False
        return bool(self._common_protocols() & {name for name, _ in join_request.protocols})

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer, of those that all support."""
        common = self._common_protocols()
        supporters = Counter(
            next(name for name, _ in member.join_request.protocols if name in common)
            for member in self.members.values()
        )
        return supporters.most_common(1)[0][0]

    def _common_protocols(self) -> set[str]:
        supported = [{name for name, _ in m.join_request.protocols} for m in self.members.values()]
        return set.intersection(*supported) if supported else set()

    # How far they are.

    @property
    def has_all_members_joined(self) -> bool:
        """Whether all members have joined or rejoined, and none is pending."""
        return not self.pending_members and all(
            member.awaiting_join_callback is not None for member in self.members.values()
        )

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((m.join_request.rebalance_timeout_ms for m in self.members.values()), default=0)

    def move_to(self, state: GroupState, now_ms: int) -> None:
        """Come into a state, at a time in milliseconds since 1970."""
        self.state = state
        self.state_ms = now_ms

    def next_generation(self, now_ms: int) -> None:
        """Begin a generation with the current members."""
        self.generation += 1
        self.new_member_added = False
        if not self.members:
            self.move_to(GroupState.EMPTY, now_ms)
            self.protocol = None
            self.pending_sync_members.clear()
            return
        self.protocol = self.choose_protocol()
        self.move_to(GroupState.COMPLETING_REBALANCE, now_ms)
        self.pending_sync_members = set(self.members)

    # Responses to its members.

    def join_result(self, member: Member) -> JoinGroupResult:
        """Return a member's JoinGroup result; the leader's has all members."""
        assert self.leader_id is not None, "a group with members has a leader"
        leads = member.member_id == self.leader_id
        members = self.current_member_metadata() if leads else ()
        return JoinGroupResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader_id,
            members,
            leads and self.state is GroupState.STABLE,
        )

    def sync_result(self, member: Member) -> SyncGroupResult:
        """Give a member its assignment."""
        return SyncGroupResult(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    def current_member_metadata(self) -> tuple[JoinGroupMember, ...]:
        """Return all members with their metadata, as the leader gets them."""
        assert self.protocol is not None, "a generation has one"
        return tuple(
            JoinGroupMember(
                member.member_id, member.instance_id, member.metadata_for(self.protocol)
            )
            for member in self.members.values()
        )

    def subscribed_topics(self) -> Set[str] | None:
        """Return the topics that its members, which are consumers, read; None if that isn't known:
        before the first generation, or where another client's subscription can't be read."""
        if self.members and self.protocol is None:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                for name, metadata in member.join_request.protocols:
                    if name == self.protocol:
                        topics.update(subscribed_topics(metadata))
        except ValueError:
            return None
        return topics

    # Its record.

    def record(self, assignments: Mapping[str, bytes]) -> ClassicGroupRecord:
        """Return its generation, as stored, with these assignments by member id. O(members)."""
        return ClassicGroupRecord(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader_id,
            self.state_ms,
            tuple(
                ClassicMemberRecord(
                    member.member_id,
                    member.instance_id,
                    member.join_request.client_id,
                    member.join_request.client_host,
                    member.join_request.rebalance_timeout_ms,
                    member.join_request.session_timeout_ms,
                    member.metadata_for(self.protocol or ""),
                    assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    @classmethod
    def restored(cls, group_id: str, record: ClassicGroupRecord) -> Group:
        """Return a group as stored: stable, or empty. O(members).

        Of each member's protocols the chosen one alone is known.
        """
        group = cls(group_id, record.state_ms)
        group.generation = record.generation
        for stored in record.members:
            protocols = ((record.protocol or "", stored.subscription),)
            join_request = JoinGroupRequest(
                stored.client_id,
                stored.client_host,
                stored.instance_id,
                stored.session_timeout_ms,
                stored.rebalance_timeout_ms,
                record.protocol_type,
                protocols,
            )
            group.add(
                Member(stored.member_id, join_request, stored.assignment, is_new=False),
            )
        group.protocol_type = record.protocol_type or None
        group.new_member_added = False
        if record.members:
            group.state = GroupState.STABLE
            group.protocol = record.protocol
            if record.leader_id in group.members:
                group.leader_id = record.leader_id
        return group

    def _check(self) -> None:
        """Assert all invariants. O(members)."""
        assert all(key == member.member_id for key, member in self.members.items())
        assert (self.leader_id is None) == (not self.members)
        assert self.leader_id is None or self.leader_id in self.members
        assert self.pending_sync_members <= self.members.keys()
        assert self.pending_members.isdisjoint(self.members)
        for instance_id, member_id in self.static_members.items():
            assert self.members[member_id].instance_id == instance_id
        if self.state is GroupState.EMPTY:
            assert not self.members
