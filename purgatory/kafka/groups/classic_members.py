"""Members of consumer groups that speak the classic protocol: they join, sync, beat and leave.

Such a member is told to join again (REBALANCE_IN_PROGRESS) when there is something new for it: then
it says what it owns, and what it is to have is decided by the coordinator, as for all others. Its
generation is its member epoch, and nobody of such a group leads. What it has to do within its
rebalance timeout waits in the purgatory ``Heartbeat``, under a `MemberKey`.

Ground rules: those of `ConsumerGroupCoordinator`.
"""

from __future__ import annotations

from collections.abc import Iterable

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.consumer_group import ConsumerGroup, DelayedClassicStep
from purgatory.kafka.groups.consumer_group_coordinator import ConsumerGroupCoordinator
from purgatory.kafka.groups.consumer_group_member import (
    ClassicMember,
    ConsumerMember,
    CurrentAssignment,
    MemberState,
    Subscription,
)
from purgatory.kafka.groups.consumer_protocol import (
    CONSUMER,
    EmbeddedSubscription,
    assignment_of,
    subscription_of,
    written_assignment,
)
from purgatory.kafka.groups.group import (
    Group,
    GroupProtocol,
    GroupState,
    JoinGroupRequest,
    JoinGroupResult,
    Member,
    RespondJoin,
    SyncGroupResult,
)
from purgatory.kafka.groups.subscription import KnownTopics
from purgatory.kafka.topic_partition import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
    TopicPartition,
)


class ClassicMembers:
    """Serves these members.

    Args:
        consumers: the coordinator of their groups.
        heartbeats: where it is waited for them.
        known_topics: the topics of the cluster.
        max_size: how many members a group may have.
    """

    def __init__(
        self,
        consumers: ConsumerGroupCoordinator,
        heartbeats: DelayedOperationPurgatory,
        known_topics: KnownTopics,
        max_size: int,
    ) -> None:
        self._consumers = consumers
        self._heartbeats = heartbeats
        self._known_topics = known_topics
        self._max_size = max_size

    # Their requests.

    def join(
        self,
        group: ConsumerGroup,
        member_id: str,
        new_member_id: str,
        joined: JoinGroupRequest,
        respond: RespondJoin,
    ) -> None:
        """Join; ``respond`` is told once what that changes is replicated.

        Args:
            group: a consumer group.
            member_id: from an earlier answer; "" for a new member.
            new_member_id: that a new one has.
            joined: what the member says of itself.
            respond: takes the answer.

        Raises:
            GroupRefusal: it may not.
        """
        embedded = _read(joined)
        if not self._agrees(group, joined):
            raise GroupRefusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        former = self._former(group, member_id, joined.instance_id)
        self._expect_nothing(group, member_id)
        member = self._consumers.admit(
            group,
            former,
            member_id or new_member_id,
            _subscription(joined, embedded),
            self._by_id(embedded.owned),
        )
        self._expect(group, member)

        def saved(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                respond(JoinGroupResult(code, member.member_id))
                return
            epoch, protocol = member.current.epoch, joined.protocols[0][0]
            respond(JoinGroupResult(code, member.member_id, epoch, CONSUMER, protocol))

        self._consumers.save(group, saved)

    def sync(
        self,
        group: ConsumerGroup,
        generation: int,
        member_id: str,
        instance_id: str | None,
        protocol: GroupProtocol,
    ) -> SyncGroupResult:
        """Give a member its assignment. O(its partitions).

        Raises:
            GroupRefusal: it isn't in this generation, takes the protocol for another one, or is to
                join again.
        """
        member = self._member(group, member_id, instance_id, generation)
        assert member.subscription.classic is not None
        name = member.subscription.classic.protocols[0][0]
        protocol.check(CONSUMER, name)
        current = member.current
        is_behind = current.epoch < group.epoch
        if is_behind and current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect(group, member)
            raise GroupRefusal(ErrorCode.REBALANCE_IN_PROGRESS)
        self._expect_nothing(group, member_id)
        self._consumers.watch_session(group, member)
        assigned = written_assignment(self._by_name(member.subscription, current.assigned))
        return SyncGroupResult(ErrorCode.NONE, CONSUMER, name, assigned)

    def beat(
        self, group: ConsumerGroup, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """Take a sign of life. O(its partitions).

        Raises:
            GroupRefusal: it isn't in this generation, or is to join again.
        """
        member = self._member(group, member_id, instance_id, generation)
        self._consumers.watch_session(group, member)
        if group.topics.are_stale:
            self._consumers.assign_if_needed(group, False)
            self._consumers.save(group, _ignore)
        if self._has_news(group, member):
            self._expect(group, member)
            raise GroupRefusal(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """Let a member go.

        Raises:
            GroupRefusal: there is none.
        """
        if instance_id is not None and not member_id:
            member_id = group.static_members.get(instance_id, "")
        member = self._member(group, member_id, instance_id)
        self._consumers.remove(group, member.member_id, "left")
        self._consumers.save(group, _ignore)

    # How a group becomes another one.

    def may_be_upgraded(self, group: Group) -> bool:
        """Whether all members of a classic group are consumers. O(bytes)."""
        try:
            for member in group.members.values():
                _read(member.joined)
                assignment_of(member.assignment)
        except (GroupRefusal, ValueError):
            return False
        return True

    def upgraded(self, group: Group) -> list[ConsumerMember]:
        """Return a classic group's members as those of a consumer group. O(bytes).

        Who has come just now, and is in no generation yet, is not among them.
        """
        members = []
        held: set[TopicIdPartition] = set()
        for member in group.members.values():
            if member.is_new:
                continue
            assigned = self._by_id(assignment_of(member.assignment)) - held
            held |= assigned
            epoch = group.generation
            current = CurrentAssignment(epoch, epoch, MemberState.STABLE, assigned)
            said = _subscription(member.joined, _read(member.joined))
            members.append(ConsumerMember(member.member_id, said, current))
        return members

    def downgraded(self, group: ConsumerGroup) -> Group:
        """Return the classic group that the members of a consumer group are, all of them classic.

        O(members + partitions).
        """
        classic = Group(group.group_id)
        classic.generation = group.epoch
        for member in group.members.values():
            said = member.subscription
            assert said.classic is not None, "all of them are"
            joined = JoinGroupRequest(
                said.client_id,
                said.client_host,
                said.instance_id,
                said.classic.session_timeout_ms,
                said.rebalance_timeout_ms,
                CONSUMER,
                said.classic.protocols,
            )
            one = Member(member.member_id, joined)
            one.is_new = False
            one.assignment = written_assignment(self._by_name(said, member.current.assigned))
            classic.add(one)
        classic.protocol = classic.choose_protocol()
        classic.state = GroupState.STABLE
        return classic

    # The parts of all these.

    def _agrees(self, group: ConsumerGroup, joined: JoinGroupRequest) -> bool:
        """Whether all classic members have a way to assign partitions in common with it."""
        common = {name for name, _ in joined.protocols}
        for member in group.members.values():
            if member.subscription.classic is not None:
                common &= {name for name, _ in member.subscription.classic.protocols}
        return bool(common)

    def _former(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> ConsumerMember | None:
        holder_id = None if instance_id is None else group.static_members.get(instance_id)
        if holder_id is not None:
            if member_id not in ("", holder_id):
                raise GroupRefusal(ErrorCode.FENCED_INSTANCE_ID)
            return group.members[holder_id]
        if member_id:
            former = group.members.get(member_id)
            if former is None:
                raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
            return former
        if len(group.members) >= self._max_size:
            raise GroupRefusal(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return None

    def _member(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str | None,
        generation: int | None = None,
    ) -> ConsumerMember:
        if instance_id is not None:
            holder_id = group.static_members.get(instance_id)
            if holder_id is not None and holder_id != member_id:
                raise GroupRefusal(ErrorCode.FENCED_INSTANCE_ID)
        member = group.members.get(member_id)
        if member is None or not member.is_classic:
            raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation is not None and generation != member.current.epoch:
            raise GroupRefusal(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _has_news(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Whether a member is to join again: there is another epoch, it has to give up something,
        or what it waits for is free."""
        current = member.current
        if current.epoch < group.epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        if current.state is MemberState.STABLE:
            return False
        missing = group.targets.get(member.member_id, NO_PARTITIONS) - current.assigned
        return not any(map(group.is_held, missing))

    def _expect(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Wait for a member to join, or to sync, unless that is waited for."""
        if member.member_id in group.awaited:
            return
        group.awaited.add(member.member_id)
        delay_ms = member.subscription.rebalance_timeout_ms
        waiting = DelayedClassicStep(group, member.member_id, delay_ms, self._consumers)
        self._heartbeats.try_complete_else_watch(waiting, [group.step_key(member.member_id)])

    def _expect_nothing(self, group: ConsumerGroup, member_id: str) -> None:
        group.awaited.discard(member_id)
        self._heartbeats.check_and_complete(group.step_key(member_id))

    def _by_id(self, partitions: Iterable[TopicPartition]) -> Partitions:
        topics = self._known_topics.topics
        return frozenset(
            TopicIdPartition(topics[topic].topic_id, partition)
            for topic, partition in partitions
            if topic in topics
        )

    def _by_name(self, said: Subscription, partitions: Partitions) -> list[TopicPartition]:
        topics = self._known_topics.topics
        names = {topics[name].topic_id: name for name in said.topic_names if name in topics}
        return [
            TopicPartition(names[topic_id], partition)
            for topic_id, partition in partitions
            if topic_id in names
        ]


def _read(joined: JoinGroupRequest) -> EmbeddedSubscription:
    if joined.protocol_type != CONSUMER or not joined.protocols:
        raise GroupRefusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        return subscription_of(joined.protocols[0][1])
    except ValueError:
        raise GroupRefusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None


def _subscription(joined: JoinGroupRequest, embedded: EmbeddedSubscription) -> Subscription:
    return Subscription(
        joined.instance_id,
        embedded.rack_id,
        joined.client_id,
        joined.client_host,
        tuple(sorted(set(embedded.topic_names))),
        rebalance_timeout_ms=joined.rebalance_timeout_ms,
        classic=ClassicMember(joined.session_timeout_ms, joined.protocols),
    )


def _ignore(_: object) -> None:
    """Take an answer for which nobody waits."""
