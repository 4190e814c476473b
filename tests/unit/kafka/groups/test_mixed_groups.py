"""Members of both protocols in one group: it is upgraded, shared, and downgraded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from purgatory.kafka import CommittedOffset, ErrorCode, GroupState, TopicPartition
from purgatory.kafka.groups.consumer_group_member import MemberState
from purgatory.kafka.groups.group_records import RecordKind
from tests.unit.kafka.conftest import Broker
from tests.unit.kafka.groups.mixed_world import REBALANCE_MS, SESSION_MS, MixedWorld

NONE, REBALANCE = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS
EPOCH_KINDS = {kind for kind in RecordKind if not kind.is_of_streams} - {
    *(RecordKind.CLASSIC, RecordKind.SHARE_STATE)
}


@pytest.fixture
def here(make_broker: Callable[..., Broker]) -> MixedWorld:
    """A broker that coordinates the group."""
    return MixedWorld(make_broker(0))


def committed(here: MixedWorld, generation: int, member_id: str) -> ErrorCode:
    answers: list[ErrorCode] = []
    offsets = {TopicPartition("t", 0): CommittedOffset(5, -1, "")}
    here.groups.offset_metadata.commit(
        "g",
        generation,
        member_id,
        None,
        offsets,
        lambda codes: answers.extend(codes.values()),
        knows_epochs=False,
    )
    [code] = answers
    return code


# ---- upgrades


@pytest.mark.parametrize("cooperates", [False, True])
def test_consumer_joins_classic_members(here: MixedWorld, cooperates: bool) -> None:
    one, two = here.classic(cooperates=cooperates), here.classic(cooperates=cooperates)
    here.form(one, two)
    assert (one.numbers, two.numbers) == ([0, 2], [1, 3])
    consumer = here.consumer()
    assert consumer.join() is NONE
    assert (here.kinds, consumer.numbers) == (["consumer"], [])
    assert here.stored == EPOCH_KINDS
    assert (one.heartbeat(), two.heartbeat()) == (REBALANCE, REBALANCE)
    before = one.generation
    assert committed(here, before, one.member_id) is NONE, "it has not joined again"
    here.settle(one, two, consumer)
    assert {one.generation, two.generation, consumer.epoch} == {before + 1}
    assert (one.heartbeat(), two.heartbeat()) == (NONE, NONE)
    assert committed(here, before + 1, one.member_id) is NONE
    assert committed(here, before + 2, one.member_id) is ErrorCode.ILLEGAL_GENERATION
    assert committed(here, before + 1, consumer.member_id) is ErrorCode.UNSUPPORTED_VERSION


def test_upgrade_tells_members_that_wait_to_join(here: MixedWorld) -> None:
    one, two = here.classic(), here.classic()
    here.form(one)
    assert two.join() is None
    assert here.consumer().join() is NONE
    assert two.joining.code is REBALANCE
    assert one.heartbeat() is REBALANCE


def test_upgrade_tells_members_that_wait_to_sync(here: MixedWorld) -> None:
    one, two = here.classic(), here.classic()
    one.join(), two.join(), one.join()
    for member in (one, two):
        member.take_join()
    follower = two if one.leads else one
    answers: list[ErrorCode] = []
    here.groups.classic_requests.sync(
        "g",
        follower.generation,
        follower.member_id,
        None,
        {},
        lambda result: answers.append(result.error),
    )
    assert answers == []
    assert here.consumer().join() is NONE
    assert answers == [REBALANCE]


def test_classic_member_may_join_a_group_of_consumers(here: MixedWorld) -> None:
    consumer, member = here.consumer(), here.classic()
    assert consumer.join() is NONE
    assert member.join(require_known_member_id=True) is ErrorCode.MEMBER_ID_REQUIRED
    assert len(here.group.members) == 1
    assert member.join() is NONE
    assert not member.leads
    assert member.sync() is NONE
    here.settle(consumer, member)
    assert member.leave() is NONE
    here.settle(consumer)
    assert here.kinds == ["consumer"]


def test_member_changes_its_protocol_under_its_id(here: MixedWorld) -> None:
    member = here.classic()
    here.form(member)
    consumer = here.consumer()
    consumer.member_id = member.member_id
    assert consumer.join() is NONE
    assert consumer.numbers == [0, 1, 2, 3]
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    here.broker.pass_time(REBALANCE_MS)
    assert consumer.beat() is NONE, "its session is that of consumers, and no sync is due"


def test_members_of_a_mixed_group_survive_a_takeover(here: MixedWorld) -> None:
    one, two, consumer = here.classic(), here.classic("two"), here.consumer()
    here.form(one, two)
    consumer.join()
    here.settle(one, two, consumer)
    here.move()
    assert here.kinds == ["consumer"]
    assert (one.heartbeat(), two.heartbeat(), consumer.beat()) == (NONE, NONE, NONE)
    here.broker.pass_time(SESSION_MS)
    assert list(here.group.members) == [consumer.member_id], "classic sessions are shorter"


# ---- requests of classic members


def test_member_that_revokes_keeps_its_generation(here: MixedWorld) -> None:
    member, consumer = here.classic(cooperates=True), here.consumer()
    here.form(member)
    consumer.join()
    assert member.heartbeat() is REBALANCE
    assert member.join() is NONE
    current = here.group.members[member.member_id].current
    assert (member.generation, current.state) == (1, MemberState.UNREVOKED_PARTITIONS)
    assert member.sync() is NONE
    assert member.heartbeat() is REBALANCE, "it is to tell what it has revoked"
    assert member.join() is NONE
    assert member.generation == 2


def test_member_that_waits_for_partitions_is_told_of_them(here: MixedWorld) -> None:
    consumer, member = here.consumer(), here.classic()
    consumer.join()
    assert member.join() is NONE
    assert (member.sync(), member.numbers, member.heartbeat()) == (NONE, [], NONE)
    consumer.beat()
    consumer.beat(owned=consumer.owned)
    assert member.heartbeat() is REBALANCE
    assert member.join() is NONE
    assert member.sync() is NONE
    assert len(member.numbers) == 2


def test_requests_of_another_generation_are_refused(here: MixedWorld) -> None:
    member, consumer = here.classic(), here.consumer()
    consumer.join()
    member.join()
    member.sync()
    generation, member.generation = member.generation, member.generation + 1
    assert member.heartbeat() is ErrorCode.ILLEGAL_GENERATION
    assert member.sync() is ErrorCode.ILLEGAL_GENERATION
    member.generation = generation
    here.consumer().join()
    assert member.sync() is REBALANCE
    member.protocols = ("other",)
    assert member.sync() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert member.join() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    member.member_id = consumer.member_id
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.sync() is ErrorCode.UNKNOWN_MEMBER_ID


def test_classic_members_of_a_group_need_a_common_protocol(here: MixedWorld) -> None:
    consumer, one, two = here.consumer(), here.classic(), here.classic()
    consumer.join()
    one.protocols, two.protocols = ("range", "sticky"), ("mine",)
    assert one.join() is NONE
    assert two.join() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    two.protocols = ("mine", "sticky")
    assert two.join() is NONE


def test_unreadable_subscription_is_refused(here: MixedWorld) -> None:
    member = here.classic()
    here.consumer().join()
    request = member.request()._replace(protocols=(("range", b"?"),))
    answers: list[ErrorCode] = []
    here.groups.classic_requests.join(
        "g", "", request, False, lambda result: answers.append(result.error)
    )
    assert answers == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert len(here.group.members) == 1


def test_full_consumer_group_refuses_classic_members(make_broker: Callable[..., Broker]) -> None:
    here = MixedWorld(make_broker(0), max_size=1)
    here.consumer().join()
    assert here.classic().join() is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_invalid_session_timeout_is_refused(here: MixedWorld) -> None:
    here.consumer().join()
    request = here.classic().request()._replace(session_timeout_ms=1)
    answers: list[ErrorCode] = []
    here.groups.classic_requests.join(
        "g", "", request, False, lambda result: answers.append(result.error)
    )
    assert answers == [ErrorCode.INVALID_SESSION_TIMEOUT]


def beat_for(here: MixedWorld, ms: int, *clients: object) -> None:
    """Let time pass while clients send heartbeats, and do nothing else."""
    for _ in range(ms // 1_000):
        here.broker.pass_time(1_000)
        for client in clients:
            client.heartbeat()  # type: ignore[attr-defined]


def test_member_that_does_not_join_again_is_removed(here: MixedWorld) -> None:
    one, consumer = here.classic(), here.consumer()
    here.form(one)
    consumer.join()
    assert one.heartbeat() is REBALANCE
    beat_for(here, REBALANCE_MS - 1_000, one)
    assert len(here.group.members) == 2
    beat_for(here, 1_000)
    assert list(here.group.members) == [consumer.member_id]


def test_member_that_does_not_sync_is_removed(here: MixedWorld) -> None:
    one, consumer = here.classic(), here.consumer()
    consumer.join()
    one.join()
    beat_for(here, REBALANCE_MS, one)
    assert list(here.group.members) == [consumer.member_id]


def test_classic_members_are_removed_after_their_session(here: MixedWorld) -> None:
    one, consumer = here.classic(), here.consumer()
    consumer.join()
    one.join()
    one.sync()
    here.broker.pass_time(SESSION_MS)
    assert list(here.group.members) == [consumer.member_id]


# ---- downgrades


@pytest.mark.parametrize("way", ["leaves", "expires", "is removed"])
def test_group_is_classic_again_without_consumers(here: MixedWorld, way: str) -> None:
    one, two, consumer = here.classic(), here.classic("two"), here.consumer()
    here.form(one, two)
    consumer.join()
    here.settle(one, two, consumer)
    match way:
        case "leaves":
            assert consumer.leave() is NONE
        case "is removed":
            assert here.leave((consumer.member_id, None)) == [NONE]
        case _:
            for _ in range(45):
                here.broker.pass_time(1_000)
                codes = one.heartbeat(), two.heartbeat()
            assert codes == (REBALANCE, REBALANCE)
    assert (here.kinds, here.stored) == (["classic"], {RecordKind.CLASSIC})
    group, before = here.groups.classic.groups["g"], one.generation
    assert (group.generation, group.state) == (before, GroupState.PREPARING_REBALANCE)
    assert (one.heartbeat(), two.heartbeat()) == (REBALANCE, REBALANCE)
    here.form(one, two)
    assert (one.generation, two.generation) == (before + 1, before + 1)
    assert sorted(one.numbers + two.numbers) == [0, 1, 2, 3]
    assert (one.heartbeat(), two.heartbeat()) == (NONE, NONE)


def test_downgraded_group_survives_a_takeover(here: MixedWorld) -> None:
    one, consumer = here.classic(), here.consumer()
    here.form(one)
    consumer.join()
    here.settle(one, consumer)
    held = one.numbers
    consumer.leave()
    here.move()
    assert here.kinds == ["classic"]
    assert one.heartbeat() is NONE, "the rebalance is over with its coordinator"
    assert one.sync() is NONE
    assert set(one.numbers) >= set(held)


def test_last_consumer_leaves_an_empty_group(here: MixedWorld) -> None:
    consumer = here.consumer()
    consumer.join()
    consumer.leave()
    assert here.kinds == ["consumer"]


def test_classic_members_that_leave_together_end_a_group(here: MixedWorld) -> None:
    one, two, consumer = here.classic(), here.classic("two"), here.consumer()
    consumer.join()
    for member in (one, two):
        member.join()
        member.sync()
    epoch = here.group.epoch
    gone = (one.member_id, None), ("", "two"), ("nobody", None), ("", "nobody"), ("m", "two")
    unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
    assert here.leave(*gone) == [NONE, NONE, unknown, unknown, fenced]
    assert here.group.epoch == epoch + 1
    assert list(here.group.members) == [consumer.member_id]


# ---- static members


def test_classic_static_member_replaces_a_consumer(here: MixedWorld) -> None:
    one, consumer = here.classic(), here.consumer(instance_id="two")
    here.form(one)
    consumer.join()
    here.settle(one, consumer)
    held = consumer.numbers
    two = here.classic("two")
    assert two.join() is NONE
    assert (here.kinds, here.stored) == (["classic"], {RecordKind.CLASSIC})
    assert two.generation == one.generation
    assert (two.sync(), two.numbers) == (NONE, held)
    assert (one.heartbeat(), two.heartbeat()) == (NONE, NONE), "no rebalance is needed"


def test_consumer_replaces_a_classic_static_member(here: MixedWorld) -> None:
    one, two = here.classic(), here.classic("two")
    here.form(one, two)
    held = two.numbers
    consumer = here.consumer(instance_id="two")
    assert consumer.join() is NONE
    assert consumer.numbers == held
    assert two.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert (one.heartbeat(), consumer.epoch) == (NONE, one.generation), "no rebalance is needed"
    here.settle(one, consumer)


def test_static_member_of_another_id_is_fenced(here: MixedWorld) -> None:
    one, consumer = here.classic("one"), here.consumer()
    consumer.join()
    one.join()
    assert one.sync() is NONE
    back = here.classic("one")
    assert back.join() is NONE
    assert one.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert one.join() is ErrorCode.FENCED_INSTANCE_ID
    back.instance_id = "another"
    assert back.join() is ErrorCode.UNKNOWN_MEMBER_ID
    assert back.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
