"""The coordinator of consumer groups: assignments, their times, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory.kafka import ErrorCode, GroupRefusal, TopicPartition
from purgatory.kafka.groups.consumer_group import ConsumerGroupState
from purgatory.kafka.groups.consumer_group_member import MemberState, Principal
from tests.unit.kafka.groups.consumer_group_client import (
    REBALANCE_MS,
    SESSION_MS,
    ConsumerClient,
    ConsumerWorld,
    Writes,
)

NONE = ErrorCode.NONE


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld()


def test_single_member_gets_all_partitions_at_once(world: ConsumerWorld) -> None:
    one = world.member()
    assert one.join() is NONE
    assert (one.epoch, one.numbers) == (2, [0, 1, 2, 3, 4, 5]), "a group begins at epoch 1"
    assert world.state() is ConsumerGroupState.STABLE
    one.beat()
    assert one.answers[-1].assignment is None, "nothing is news to it"


def test_group_begins_an_epoch_at_each_change_of_members(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member(topic_names=())
    two.join()
    assert two.epoch == 1, "nothing to read is no change"
    assert two.leave() is NONE
    assert two.join() is NONE
    assert two.epoch == 2, "the departure alone began one"
    one.join()
    two.leave()
    two.told["topic_names"] = ("t",)
    two.join()
    assert (one.epoch, two.epoch) == (3, 5), "the departure and the arrival are two changes"


def test_partition_is_revoked_before_it_is_assigned(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    one.join()
    two.join()
    assert (two.epoch, two.numbers) == (3, []), "the other one holds all"
    assert world.state() is ConsumerGroupState.RECONCILING
    former = one.owned
    assert one.beat() is NONE
    assert (one.epoch, one.numbers) == (2, [0, 1, 2]), "it stays at its epoch until it gave up"
    two.beat()
    assert two.numbers == [], "it was told to, but did not yet"
    one.owned = former
    assert one.beat() is NONE
    assert one.answers[-1].assignment is None, "it is waited for"
    one.owned = world.topics.partitions("t", 0, 1, 2)
    one.beat()
    assert one.epoch == 3
    two.beat()
    assert two.numbers == [3, 4, 5]
    assert world.state() is ConsumerGroupState.STABLE


def test_revoked_partitions_return_if_nobody_took_them(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    one.join()
    two.join()
    one.beat()
    assert (one.numbers, two.leave()) == ([0, 1, 2], NONE)
    one.beat()
    assert (one.epoch, one.numbers) == (4, [0, 1, 2, 3, 4, 5]), "at once"
    assert world.state() is ConsumerGroupState.STABLE


def test_partitions_are_assigned_as_they_are_revoked(world: ConsumerWorld) -> None:
    one, two, three = (world.member() for _ in range(3))
    world.settle(one, two)
    three.join()
    one.beat()
    one.beat()
    three.beat()
    assert (three.numbers, three.epoch) == ([2], 4)
    state = world.group.members[three.member_id].current.state
    assert state is MemberState.UNRELEASED_PARTITIONS
    two.beat()
    two.beat()
    three.beat()
    assert len(three.numbers) == 2
    assert world.state() is ConsumerGroupState.STABLE


def test_partitions_of_a_leaving_member_go_to_the_others(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    world.settle(one, two)
    assert two.leave() is NONE
    assert two.answers[-1].epoch == -1
    assert world.state() is ConsumerGroupState.ASSIGNING
    one.beat()
    assert (one.epoch, one.numbers) == (4, [0, 1, 2, 3, 4, 5])
    assert two.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    one.leave()
    assert world.state() is ConsumerGroupState.EMPTY


def test_member_without_heartbeats_is_removed(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    world.settle(one, two)
    world.pass_time(SESSION_MS - 1)
    one.beat()
    world.pass_time(1)
    one.beat()
    assert len(one.numbers) == 6
    assert two.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert two.beat() is NONE, "it joins again"
    world.check()


def test_member_that_does_not_revoke_in_time_is_removed(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    one.join()
    two.join()
    all_of_it = one.owned
    for _ in range(REBALANCE_MS // 10_000):
        one.beat()
        one.owned = all_of_it
        two.beat()
        assert two.numbers == []
        world.pass_time(10_000)
    two.beat()
    assert len(two.numbers) == 6
    assert one.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_lost_revocation_is_repeated(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    one.join()
    two.join()
    assert one.ask(owned=one.owned).assignment == world.topics.partitions("t", 0, 1, 2)
    assert one.ask().assignment == world.topics.partitions("t", 0, 1, 2)
    one.owned = world.topics.partitions("t", 0, 1, 2)
    one.beat()
    assert one.ask().assignment is None


def test_rebalance_timeout_ends_with_the_revocation(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    world.settle(one, two)
    for _ in range(4):
        world.pass_time(REBALANCE_MS // 2)
        assert [one.beat(), two.beat()] == [NONE, NONE]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "", "generates_member_id": False, "epoch": 1}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_names": (), "may_read_nothing": False}, ErrorCode.INVALID_REQUEST),
        ({"topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"topic_names": None, "topic_regex": "t.*"}, ErrorCode.NONE),
        ({"member_id": "", "generates_member_id": False}, ErrorCode.NONE),
        ({"topic_names": ("none",)}, ErrorCode.NONE),
        ({"topic_names": ()}, ErrorCode.NONE),
        ({"topic_names": None, "topic_regex": ""}, ErrorCode.NONE),
    ],
)
def test_invalid_first_heartbeat_is_refused_and_creates_no_group(
    world: ConsumerWorld, fields: dict[str, Any], code: ErrorCode
) -> None:
    usual = {"owned": frozenset(), "topic_names": ("t",), "rebalance_timeout_ms": 1_000}
    answer = world.member().ask(**{**usual, **fields})
    assert answer.error is code
    assert (answer.message is None) == (code is NONE), "it says what was wrong"
    assert bool(world.coordinator.groups) == bool(world.records) == (code is NONE)


def test_coordinator_generates_missing_member_ids(world: ConsumerWorld) -> None:
    usual = {"owned": frozenset(), "topic_names": ("t",), "rebalance_timeout_ms": 1_000}
    answer = world.member().ask(member_id="", generates_member_id=False, **usual)
    assert answer.member_id == "made-1"
    assert "made-1" in world.group.members


def test_member_with_another_epoch_is_fenced(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    world.settle(one, two)
    assert one.epoch == 3
    assert one.ask(epoch=4).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert one.ask(epoch=2).error is ErrorCode.FENCED_MEMBER_EPOCH
    too_many = world.topics.partitions("t", 0, 5)
    assert one.ask(epoch=2, owned=too_many).error is ErrorCode.FENCED_MEMBER_EPOCH
    missed = one.ask(epoch=2, owned=one.owned, topic_names=("t",), rebalance_timeout_ms=1)
    assert (missed.error, missed.epoch) == (NONE, 3), "the answer was lost"
    assert missed.assignment == one.owned, "a member that reports all partitions gets all"
    assert one.ask(member_id="nobody").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_rejoining_member_keeps_its_partitions(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    world.settle(one, two)
    had, epoch = one.owned, world.group.epoch
    assert one.join() is NONE
    assert one.owned == had
    assert world.group.epoch == epoch


def test_group_size_is_limited() -> None:
    world = ConsumerWorld(max_size=1)
    one, two = world.member(), world.member()
    assert [one.join(), two.join()] == [NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert one.join() is NONE
    world.check()


# ---- static members


def test_returning_static_member_keeps_its_partitions_and_epoch(
    world: ConsumerWorld,
) -> None:
    one, two = world.member(instance_id="i"), world.member()
    world.settle(one, two)
    had, epoch = one.owned, world.group.epoch
    assert one.leave(-2) is NONE
    assert one.answers[-1].epoch == -2
    assert world.state() is ConsumerGroupState.RECONCILING, "its place is kept"
    two.beat()
    assert len(two.numbers) == 3
    again = world.member(instance_id="i")
    assert again.join() is NONE
    assert (again.owned, again.epoch, world.group.epoch) == (had, epoch, epoch)
    assert one.ask(epoch=epoch, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert one.ask(epoch=epoch).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert one.ask(epoch=-1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert again.ask(epoch=epoch, instance_id="other").error is ErrorCode.UNKNOWN_MEMBER_ID
    world.check()


def test_present_static_member_keeps_its_place(world: ConsumerWorld) -> None:
    one, other = world.member(instance_id="i"), world.member(instance_id="i")
    one.join()
    assert other.join() is ErrorCode.UNRELEASED_INSTANCE_ID
    assert one.join() is NONE, "it may itself"
    one.leave(-2)
    assert one.ask(epoch=1, owned=one.owned).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert one.join() is NONE
    assert one.leave() is NONE
    assert other.join() is NONE, "the place is free"


def test_absent_static_member_is_removed_at_its_session_timeout(world: ConsumerWorld) -> None:
    one, two = world.member(instance_id="i"), world.member()
    world.settle(one, two)
    one.leave(-2)
    world.pass_time(SESSION_MS // 2)
    two.beat()
    world.pass_time(SESSION_MS // 2)
    two.beat()
    assert len(two.numbers) == 6
    assert world.member(instance_id="i").join() is NONE


def test_returning_static_member_revokes_its_former_topics(
    world: ConsumerWorld,
) -> None:
    world.topics.set("u", 1)
    one = world.member(instance_id="i")
    one.join()
    one.leave(-2)
    again = world.member(instance_id="i", topic_names=("u",))
    again.join()
    assert again.owned == world.topics.partitions("u", 0)


# ---- subscriptions and topics


def test_members_get_partitions_of_their_topics_alone(world: ConsumerWorld) -> None:
    world.topics.set("u", 2)
    one, two = world.member(), world.member(topic_names=("u", "u", "none"))
    world.settle(one, two)
    assert one.owned == world.topics.partitions("t", *range(6))
    assert two.owned == world.topics.partitions("u", 0, 1)
    assert world.group.members[two.member_id].subscription.topic_names == ("none", "u")


def test_expression_follows_matching_topics_as_they_come_and_go(
    world: ConsumerWorld,
) -> None:
    one = world.member(topic_names=None, topic_regex="t|u.*")
    one.join()
    assert one.owned == frozenset(), "it is matched beside the heartbeat"
    one.beat()
    assert len(one.owned) == 6
    world.topics.set("u1", 2)
    world.topics.set("v", 1)
    one.beat()
    assert len(one.owned) == 8
    epoch = one.epoch
    world.topics.set("w", 3)
    one.beat()
    assert one.epoch == epoch, "that concerns nobody"
    world.topics.set("t", 0)
    world.settle(one)
    assert one.owned == world.topics.partitions("u1", 0, 1)
    one.beat(topic_regex="v", topic_names=())
    world.settle(one)
    assert one.owned == world.topics.partitions("v", 0)
    one.leave()
    two, three = (world.member(topic_names=None, topic_regex="v") for _ in range(2))
    two.join()
    two.beat()
    epoch = world.group.epoch
    three.join()
    assert (world.group.epoch, world.group.topics.is_stale) == (epoch + 1, False), "it is known"


def test_topics_by_name_precede_those_of_a_new_expression(world: ConsumerWorld) -> None:
    world.topics.set("u", 2)
    one = world.member(topic_names=("u",), topic_regex="t")
    one.join()
    assert one.owned == world.topics.partitions("u", 0, 1)
    epoch = world.group.epoch
    assert epoch == one.epoch + 1, "the expression is matched after the first answer"
    one.beat()
    assert one.owned == world.topics.partitions("u", 0, 1) | world.topics.partitions("t", *range(6))
    one.beat()
    assert one.epoch == world.group.epoch == epoch, "once"
    one.beat(topic_regex="")
    one.beat()
    one.beat(topic_regex="t")
    assert one.owned == world.topics.partitions("u", 0, 1), "nobody had it meanwhile"
    one.beat()
    one.leave()
    two = world.member(topic_names=("u",), topic_regex="t")
    two.join()
    assert two.owned == world.topics.partitions("u", 0, 1), "nor here"


def test_expression_skips_undescribable_topics(
    world: ConsumerWorld,
) -> None:
    world.topics.set("u", 2)
    world.topics.hidden.add(("ann", "u"))
    ann = world.member(topic_names=None, topic_regex=".", requester=Principal("ann", "/h"))
    world.settle(ann)
    assert ann.owned == world.topics.partitions("t", *range(6))
    bob = world.member(topic_names=None, topic_regex=".", requester=Principal("bob", "/h"))
    world.settle(ann, bob)
    assert world.topics.partitions("u", 0, 1) < bob.owned
    assert len(ann.owned | bob.owned) == 8
    world.move()
    world.settle(ann, bob)
    assert world.topics.partitions("u", 0, 1) < bob.owned, "also where another one coordinates"
    assert len(ann.owned | bob.owned) == 8
    bob.leave()
    world.topics.hidden.clear()
    world.topics.topics_version += 1
    world.settle(ann)
    assert len(ann.owned) == 8, "she may know of it now"


def test_new_partitions_are_assigned(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    world.settle(one, two)
    before = one.owned, two.owned
    world.topics.set("t", 9)
    world.settle(one, two)
    assert before[0] < one.owned
    assert before[1] < two.owned
    assert len(one.owned | two.owned) == 9


def test_recreated_topic_is_another_topic(world: ConsumerWorld) -> None:
    one = world.member()
    one.join()
    former = one.owned
    world.topics.set("t", 0)
    world.topics.set("t", 6)
    world.settle(one)
    assert one.owned == world.topics.partitions("t", *range(6))
    assert one.owned.isdisjoint(former)


def test_most_requested_assignor_is_used(world: ConsumerWorld) -> None:
    world.topics.set("u", 3)
    both = ("t", "u")
    members = [world.member(topic_names=both, assignor="range") for _ in range(2)]
    members.append(world.member(topic_names=both, assignor="uniform"))
    world.settle(*members, rounds=8)
    assert world.group.assignor == "range"
    assert [member.numbers for member in members] == [[0, 0, 1], [1, 2, 3], [2, 4, 5]]


# ---- offsets


def test_offsets_need_the_current_member_epoch(world: ConsumerWorld) -> None:
    one = world.member()
    one.join()
    check_commit, check_fetch = world.coordinator.check_commit, world.coordinator.check_fetch
    check_commit("g", one.member_id, 2)
    check_fetch("g", one.member_id, 2)
    check_fetch("g", "", -1)
    for check, member_id, epoch, code in [
        (check_commit, one.member_id, 3, ErrorCode.STALE_MEMBER_EPOCH),
        (check_commit, "nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (check_commit, "", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        (check_fetch, one.member_id, 3, ErrorCode.STALE_MEMBER_EPOCH),
        (check_fetch, "nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        with pytest.raises(Exception, match=code.name):
            check("g", member_id, epoch)
    one.leave()
    check_commit("g", "", -1)


def test_older_epoch_commits_partitions_assigned_by_then(world: ConsumerWorld) -> None:
    one = world.member()
    one.join()
    joined = one.epoch
    check = world.coordinator.check_commit
    world.settle(one, world.member())
    kept = [TopicPartition("t", number) for number in one.numbers]
    gone = [TopicPartition("t", number) for number in range(6) if number not in one.numbers]
    assert one.epoch > joined
    assert kept
    assert gone
    for _ in range(2):  # the next coordinator knows it, too
        check("g", one.member_id, joined, True, kept)
        check("g", one.member_id, one.epoch, True, kept)
        for epoch, partitions in ((joined, gone), (joined - 1, kept), (one.epoch + 1, kept)):
            with pytest.raises(GroupRefusal, match="STALE_MEMBER_EPOCH"):
                check("g", one.member_id, epoch, True, partitions)
        world.move()
        check = world.coordinator.check_commit
    with pytest.raises(GroupRefusal, match="STALE_MEMBER_EPOCH"):
        world.coordinator.check_fetch("g", one.member_id, joined)


def test_partitions_assigned_later_need_a_later_epoch(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    world.settle(one, two)
    before, had = one.epoch, set(one.numbers)
    two.leave()
    world.settle(one)
    new = [TopicPartition("t", number) for number in one.numbers if number not in had]
    assert new
    with pytest.raises(GroupRefusal, match="STALE_MEMBER_EPOCH"):
        world.coordinator.check_commit("g", one.member_id, before, True, new)
    kept = [TopicPartition("t", number) for number in had]
    world.coordinator.check_commit("g", one.member_id, before, True, kept)


# ---- the coordinator's own death


def test_next_coordinator_resumes_where_the_former_stopped(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member(instance_id="i", assignor="range", rack_id="r")
    world.settle(one, two)
    epoch, members = world.group.epoch, world.group.members
    world.move()
    assert (world.group.epoch, world.group.members) == (epoch, members)
    assert [one.beat(), two.beat()] == [NONE, NONE]
    assert world.group.epoch == epoch, "nobody notices"
    world.pass_time(SESSION_MS)
    assert world.state() is ConsumerGroupState.EMPTY, "all members' time began anew"


def test_rebalance_resumes_at_the_next_coordinator(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    one.join()
    two.join()
    all_of_it = one.owned
    one.beat()
    one.owned = all_of_it
    world.move()
    two.beat()
    assert two.numbers == [], "the other one has yet to give up"
    for _ in range(REBALANCE_MS // 10_000):
        world.pass_time(10_000)
        one.beat()
        one.owned = all_of_it
        two.beat()
    assert len(two.numbers) == 6


def test_topics_created_without_a_coordinator_are_assigned(world: ConsumerWorld) -> None:
    one = world.member()
    one.join()
    world.coordinator.forget("g")
    world.topics.set("t", 7)
    world.begin()
    world.coordinator.restore("g", world.records)
    one.beat()
    assert len(one.owned) == 7


def test_response_is_sent_once_its_changes_are_replicated(world: ConsumerWorld) -> None:
    one = world.member()
    held: Writes = []
    world.held_writes = held
    one.join()
    assert one.answers == []
    [(records, then)] = held
    world.held_writes = None
    world.keep(records, then)
    assert (one.epoch, one.numbers) == (2, [0, 1, 2, 3, 4, 5])


def test_failed_write_is_repeated_with_the_next_heartbeat(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    one.join()
    world.write_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert two.join() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert one.beat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.write_error = NONE
    world.settle(one, two)
    epoch, members, targets = world.group.epoch, world.group.members, world.group.targets
    world.move()
    assert (world.group.epoch, world.group.members) == (epoch, members)
    assert world.group.targets == targets


def test_removed_member_is_unknown_to_the_next_coordinator(world: ConsumerWorld) -> None:
    one, two = world.member(), world.member()
    world.settle(one, two)
    two.leave()
    world.move()
    assert list(world.group.members) == [one.member_id]
    assert one.beat() is NONE
    assert len(one.numbers) == 6
    assert {key.member_id for key in world.records} == {"", one.member_id}


def test_unloaded_group_has_no_waits(world: ConsumerWorld) -> None:
    one: ConsumerClient = world.member()
    one.join()
    world.member().join()
    one.beat()
    world.coordinator.forget("g")
    world.coordinator.forget("none")
    assert not world.heartbeats.num_delayed
    world.pass_time(2 * SESSION_MS)
    assert not world.coordinator.groups
