"""Groups that become groups of the other protocol while they have members."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.kafka import (
    OFFSETS_TOPIC,
    BrokerGroups,
    ErrorCode,
    GroupConfig,
    GroupState,
    JoinGroupRequest,
    JoinGroupResult,
    SyncGroupResult,
    TopicPartition,
)
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
)
from purgatory.kafka.groups.consumer_protocol import (
    assignment_of,
    subscription_of,
    written_assignment,
)
from purgatory.kafka.groups.group import GroupProtocol
from purgatory.kafka.settings.group_settings import MigrationPolicy
from purgatory.kafka.topic_partition import NO_PARTITIONS
from tests.kafka.conftest import Broker
from tests.kafka.consumer_group_client import FakeTopics
from tests.kafka.group_client import Asked, TagCodec, code_of

PLACE = TopicPartition(OFFSETS_TOPIC, 0)
REBALANCE_MS, SESSION_MS = 5_000, 10_000
NONE, AGAIN = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS


def subscription(*owned: int, topic: str = "t") -> bytes:
    """Return what a consumer of the classic protocol says of itself, in version 1."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    partitions = struct.pack(f">i{len(owned)}i", len(owned), *owned)
    return struct.pack(">hi", 1, 1) + name + struct.pack(">ii", -1, 1) + name + partitions


class Migrating:
    """A broker that coordinates one group of a topic with four partitions."""

    def __init__(self, broker: Broker, policy: MigrationPolicy) -> None:
        self.broker = broker
        self.topics = FakeTopics()
        self.topics.set("t", 4)
        self.numbers = iter(range(1, 1_000))
        self.config = GroupConfig(initial_rebalance_delay_ms=0, migration_policy=policy)
        self.begin()
        self.lead(1)

    def begin(self) -> None:
        self.groups = BrokerGroups(
            self.broker.manager,
            self.config,
            TagCodec(),
            new_purgatory=lambda name: self.broker._purgatory(name, 0),
            new_member_id=lambda begin: f"{begin}-{next(self.numbers)}",
            now_ms=self.broker.clock.now_ms,
            offsets_partitions=lambda: 1,
            is_known=lambda place: True,
            known_topics=self.topics,
        )

    def lead(self, epoch: int) -> None:
        self.broker.lead(epoch, isr=(0,), replicas=(0,), tp=PLACE)
        self.groups.take_role(PLACE, leads=True)

    def move(self, epoch: int) -> None:
        """Have another coordinator, that knows what the former one wrote."""
        self.groups.take_role(PLACE, leads=False)
        self.begin()
        self.lead(epoch)

    # Requests of classic members.

    def join(
        self, member_id: str = "", *owned: int, instance_id: str | None = None, **said: Any
    ) -> Asked[JoinGroupResult]:
        asked = Asked[JoinGroupResult]()
        protocols = said.get("protocols", (("range", subscription(*owned)),))
        kind = said.get("kind", "consumer")
        joined = JoinGroupRequest("c", "/h", instance_id, SESSION_MS, REBALANCE_MS, kind, protocols)
        self.groups.join("g", member_id, joined, False, asked)
        self.broker.pass_time(0)
        return asked

    def sync(
        self, joined: JoinGroupResult, assignments: Mapping[str, Sequence[int]] | None = None
    ) -> SyncGroupResult:
        asked = Asked[SyncGroupResult]()
        handed = {
            member_id: written_assignment(TopicPartition("t", one) for one in numbers)
            for member_id, numbers in (assignments or {}).items()
        }
        self.groups.sync("g", joined.generation, joined.member_id, None, handed, asked)
        return asked.answer

    def sync_by(self, joined: JoinGroupResult, protocol: GroupProtocol) -> ErrorCode:
        asked = Asked[SyncGroupResult]()
        member_id = joined.member_id
        self.groups.sync("g", joined.generation, member_id, None, {}, asked, protocol)
        return asked.answer.error

    def assigned(self, joined: JoinGroupResult) -> set[int]:
        """Sync; return the partitions that the member is given."""
        answer = self.sync(joined)
        assert answer.error is NONE
        return {one.partition for one in assignment_of(answer.assignment)}

    def beat(self, joined: JoinGroupResult) -> ErrorCode:
        return code_of(self.groups.heartbeat, "g", joined.generation, joined.member_id, None)

    def classic_group(self) -> tuple[JoinGroupResult, JoinGroupResult]:
        """Two classic members, of which each has two partitions."""
        first = self.join()
        second = self.join()
        first = self.join(first.answer.member_id)
        one, other = first.answer, second.answer
        handed = {one.member_id: (0, 1), other.member_id: (2, 3)}
        assert self.sync(one, handed).error is NONE
        assert self.assigned(other) == {2, 3}
        return one, other

    # Signs of life of consumers.

    def consume(
        self, member_id: str, epoch: int = 0, owned: Sequence[int] | None = None, **said: Any
    ) -> ConsumerGroupHeartbeatResult:
        answers: list[ConsumerGroupHeartbeatResult] = []
        first = epoch == 0
        has = NO_PARTITIONS if first else None
        if owned is not None:
            has = self.topics.partitions("t", *owned)
        names, timeout_ms = (("t",), REBALANCE_MS) if first else (None, -1)
        asked = ConsumerGroupHeartbeat(
            "g",
            member_id,
            epoch,
            topic_names=names,
            rebalance_timeout_ms=timeout_ms,
            owned=has,
            **said,
        )
        self.groups.consumer_heartbeat(asked, answers.append)
        return answers[0]

    @property
    def kinds(self) -> list[str]:
        for group in self.groups.consumers.groups.values():
            group._check()
        known = (("classic", self.groups.groups), ("consumer", self.groups.consumers.groups))
        return [kind for kind, groups in known if "g" in groups]


Make = Callable[..., Migrating]


@pytest.fixture
def make(make_broker: Callable[..., Broker]) -> Make:
    def make(policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL) -> Migrating:
        return Migrating(make_broker(0), policy)

    return make


def partitions(answer: ConsumerGroupHeartbeatResult) -> set[int]:
    return {one.partition for one in answer.assignment or ()}


def test_a_classic_group_becomes_a_consumer_group_and_nobody_is_given_what_others_have(
    make: Make,
) -> None:
    here = make()
    one, other = here.classic_group()
    came = here.consume("m")
    assert here.kinds == ["consumer"]
    assert came.error is NONE
    assert partitions(came) == set(), "the others have it all"
    assert (here.beat(one), here.beat(other)) == (AGAIN, AGAIN)
    # An eager member owns nothing when it joins again, and gives up one of two at once.
    again = here.join(one.member_id).answer
    assert (again.error, again.leader_id, again.generation) == (NONE, "", came.epoch)
    mine = here.assigned(again)
    assert here.beat(again) is NONE
    free = partitions(here.consume("m", came.epoch, ()))
    assert free.isdisjoint(mine | {2, 3})
    second = here.join(other.member_id, 2, 3).answer  # a cooperative one owns it still
    theirs = here.assigned(second)
    assert theirs <= {2, 3}
    second = here.join(other.member_id, *theirs).answer
    theirs = here.assigned(second)
    free |= partitions(here.consume("m", came.epoch, tuple(free)))
    assert [len(those) for those in (mine, theirs, free)].count(1) == 2
    assert mine | theirs | free == {0, 1, 2, 3}
    assert here.kinds == ["consumer"]


def test_it_is_a_classic_group_again_when_the_last_consumer_leaves_whoever_coordinates(
    make: Make,
) -> None:
    here = make()
    one, other = here.classic_group()
    epoch = here.consume("m").epoch
    one, other = here.join(one.member_id).answer, here.join(other.member_id).answer
    here.move(2)
    assert here.kinds == ["consumer"]
    assert here.beat(one) is NONE, "the next coordinator knows the classic members as well"
    assert here.consume("m", -1).error is NONE
    assert here.kinds == ["classic"]
    assert (here.beat(one), here.beat(other)) == (AGAIN, AGAIN)
    first, second = here.join(one.member_id), here.join(other.member_id)
    assert first.answer.generation == second.answer.generation == epoch + 1
    handed = {one.member_id: (0, 1), other.member_id: (2, 3)}
    leader = first.answer if first.answer.members else second.answer
    assert here.sync(leader, handed).error is NONE
    here.move(3)
    assert here.kinds == [], "nothing is left of the consumer group"
    assert here.groups.offsets.records_of("g") == {}


def test_a_consumer_that_gives_no_sign_of_life_leaves_a_classic_group_as_well(make: Make) -> None:
    here = make()
    one, other = here.classic_group()
    here.consume("m")
    one, other = here.join(one.member_id).answer, here.join(other.member_id).answer
    here.sync(one), here.sync(other)
    for _ in range(6):
        assert here.kinds == ["consumer"]
        here.broker.pass_time(7_500)
        here.beat(one), here.beat(other)
    assert here.kinds == ["classic"]
    group = here.groups.groups["g"]
    assert set(group.members) == {one.member_id, other.member_id}
    assert group.state is GroupState.PREPARING_REBALANCE


def test_a_classic_member_that_does_not_join_again_in_time_is_out(make: Make) -> None:
    here = make()
    one, other = here.classic_group()
    came = here.consume("m")
    assert (here.beat(one), here.beat(other)) == (AGAIN, AGAIN)
    joined = here.join(other.member_id).answer
    here.sync(joined)
    here.broker.pass_time(REBALANCE_MS - 1)
    waits = here.groups.heartbeats.num_delayed
    assert here.beat(one) is AGAIN
    assert here.groups.heartbeats.num_delayed == waits, "it is waited for once"
    assert here.beat(joined) is NONE
    here.broker.pass_time(1)
    assert here.beat(one) is ErrorCode.UNKNOWN_MEMBER_ID
    assert here.beat(joined) is AGAIN, "there is more for it now"
    assert here.consume("m", came.epoch).epoch > came.epoch


def test_a_classic_member_of_a_consumer_group_syncs_with_its_protocol(make: Make) -> None:
    here = make()
    one, _ = here.classic_group()
    here.consume("m")
    joined = here.join(one.member_id).answer
    for kind, name in (("connect", joined.protocol), ("consumer", "another")):
        code = here.sync_by(joined, GroupProtocol(kind, name))
        assert code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert here.sync_by(joined, GroupProtocol("consumer", joined.protocol)) is NONE


def test_a_member_that_joins_and_does_not_sync_is_out(make: Make) -> None:
    here = make()
    one, _ = here.classic_group()
    here.consume("m")
    joined = here.join(one.member_id).answer
    here.broker.pass_time(REBALANCE_MS)
    assert here.sync(joined).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_waits_in_a_classic_group_that_is_upgraded_is_to_join_again(make: Make) -> None:
    here = make()
    one, _ = here.classic_group()
    again, newcomer = here.join(one.member_id), here.join()
    assert not again.given
    assert not newcomer.given
    assert here.consume("m").error is NONE
    assert again.code is AGAIN
    assert newcomer.code is ErrorCode.UNKNOWN_MEMBER_ID, "nobody ever knew it"
    joined = here.join()
    assert joined.code is NONE
    assert len(here.groups.consumers.groups["g"].members) == 4


def test_a_group_that_is_about_to_begin_makes_way(make: Make) -> None:
    here = make()
    here.config = here.config._replace(initial_rebalance_delay_ms=3_000)
    here.begin()
    here.lead(2)
    first = here.join()
    assert not first.given
    assert here.consume("m").error is NONE
    assert first.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert here.join().code is NONE
    assert here.kinds == ["consumer"]


def test_a_classic_member_is_refused_as_kafka_refuses_it(make: Make) -> None:
    here = make()
    one, _ = here.classic_group()
    here.consume("m")
    unknown, illegal = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION
    inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert here.join("nobody").code is unknown
    assert here.join(one.member_id, kind="connect").code is inconsistent
    assert here.join(one.member_id, protocols=(("range", b"?"),)).code is inconsistent
    assert here.join(protocols=(("sticky", subscription()),)).code is inconsistent
    assert here.beat(one._replace(generation=99)) is illegal
    assert here.beat(one._replace(member_id="m")) is unknown, "it speaks the other protocol"
    assert here.sync(one).error is AGAIN
    assert here.groups.leave("g", [("m", None), ("nobody", None)]) == [unknown, unknown]
    commit = here.groups.check_commit
    joined = here.join(one.member_id).answer
    assert code_of(commit, "g", 99, one.member_id, None) is illegal
    assert code_of(commit, "g", joined.generation, one.member_id, None, False) is NONE
    assert (
        code_of(commit, "g", joined.generation, "m", None, False) is ErrorCode.UNSUPPORTED_VERSION
    )
    assert here.groups.leave("g", [(one.member_id, None)]) == [NONE]
    assert here.beat(joined) is unknown


def test_a_static_member_comes_back_with_the_other_protocol(make: Make) -> None:
    here = make()
    first = here.join(instance_id="i")
    here.sync(first.answer, {first.answer.member_id: (0, 1, 2, 3)})
    came = here.consume("m", instance_id="i")
    assert here.kinds == ["consumer"]
    assert partitions(came) == {0, 1, 2, 3}, "it has its place, and what belongs to that"
    assert here.beat(first.answer) is ErrorCode.UNKNOWN_MEMBER_ID
    other = here.join().answer
    assert other.error is NONE
    back = here.join(instance_id="i")
    assert here.kinds == ["classic"], "it was the last one"
    assert back.given is False
    assert here.join(other.member_id).code is NONE
    assert back.code is NONE


def test_a_static_member_that_is_alone_comes_back_with_the_classic_protocol(make: Make) -> None:
    here = make()
    here.consume("m", instance_id="i")
    assert here.join(instance_id="i").code is NONE
    assert here.kinds == ["classic"]


@pytest.mark.parametrize("policy", list(MigrationPolicy))
def test_a_group_goes_the_ways_that_its_policy_allows(make: Make, policy: MigrationPolicy) -> None:
    here = make(policy)
    one, _ = here.classic_group()
    came = here.consume("m")
    assert came.error is (NONE if policy.upgrades else ErrorCode.GROUP_ID_NOT_FOUND)
    assert here.kinds == (["consumer"] if policy.upgrades else ["classic"])
    if policy.upgrades:
        here.consume("m", -1)
        assert here.kinds == (["classic"] if policy.downgrades else ["consumer"])
        # A classic group's generation is the consumer group's epoch, which they did not come to.
        assert here.beat(one) is (ErrorCode.ILLEGAL_GENERATION if policy.downgrades else AGAIN)


@pytest.mark.parametrize("policy", list(MigrationPolicy))
def test_a_classic_member_may_join_a_consumer_group_if_both_may_be_in_one(
    make: Make, policy: MigrationPolicy
) -> None:
    here = make(policy)
    here.consume("m")
    expected = NONE if policy.mixes else ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert here.join().code is expected


def test_a_group_of_others_than_consumers_is_no_consumer_group(make: Make) -> None:
    here = make()
    joined = here.join(kind="connect").answer
    here.sync(joined)
    assert here.consume("m").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert here.kinds == ["classic"]


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


@given(st.frozensets(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), max_size=8))
def test_assignments_are_read_as_they_were_written(those: frozenset[TopicPartition]) -> None:
    assert assignment_of(written_assignment(those)) == those


@given(st.binary(max_size=40))
def test_what_is_no_subscription_or_assignment_is_a_value_error_at_most(data: bytes) -> None:
    for read in (subscription_of, assignment_of):
        try:
            read(data)
        except ValueError:
            continue
