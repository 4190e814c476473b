"""Which groups a broker coordinates, and what it answers for those and for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from purgatory.kafka import (
    OFFSETS_TOPIC,
    BrokerGroups,
    CommittedOffset,
    ErrorCode,
    GroupConfig,
    GroupState,
    JoinAnswer,
    SyncAnswer,
    TopicPartition,
)
from tests.kafka.conftest import Broker
from tests.kafka.consumer_group_client import FakeTopics
from tests.kafka.group_client import Asked, TagCodec, code_of, joining

PLACE = TopicPartition(OFFSETS_TOPIC, 22)  # of "hello", of 50
ORDERS = TopicPartition("orders", 0)
Codes = Mapping[TopicPartition, ErrorCode]


class Coordinating:
    """A broker with its groups, and requests of theirs in one line."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.numbers = iter(range(1, 1_000))
        self.groups = BrokerGroups(
            broker.manager,
            GroupConfig(initial_rebalance_delay_ms=0),
            TagCodec(),
            new_purgatory=lambda name: broker._purgatory(name, 0),
            new_member_id=lambda begin: f"{begin}-{next(self.numbers)}",
            now_ms=broker.clock.now_ms,
            offsets_partitions=lambda: 50,
            is_known=lambda place: place.topic == "orders",
            known_topics=FakeTopics(),
        )

    def lead(self, epoch: int, *isr: int) -> None:
        self.broker.lead(epoch, isr=isr, replicas=(0, 1), tp=PLACE)
        self.groups.take_role(PLACE, leads=True)

    def follow(self, leader: int, epoch: int) -> None:
        self.groups.take_role(PLACE, leads=False)
        self.broker.manager.become_follower(PLACE, leader, epoch, (0, 1))

    def commit(self, offset: int, place: TopicPartition = ORDERS, why: str = "") -> list[Codes]:
        answers: list[Codes] = []
        offsets = {ORDERS: CommittedOffset(offset, -1, ""), place: CommittedOffset(offset, -1, why)}
        self.groups.commit("hello", -1, "", None, offsets, answers.append)
        return answers

    def join(self, member_id: str = "", ids_first: bool = False) -> Asked[JoinAnswer]:
        asked = Asked[JoinAnswer]()
        self.groups.join("hello", member_id, joining(), ids_first, asked)
        self.broker.pass_time(0)
        return asked

    def sync(self, member_id: str, assignment: bytes) -> Asked[SyncAnswer]:
        asked = Asked[SyncAnswer]()
        self.groups.sync("hello", 1, member_id, None, {member_id: assignment}, asked)
        return asked

    def delete(self, group_id: str = "hello") -> list[ErrorCode]:
        codes: list[ErrorCode] = []
        self.groups.delete(group_id, codes.append)
        return codes


@pytest.fixture
def here(make_broker: Callable[..., Broker]) -> Coordinating:
    """A broker that leads the group's partition alone."""
    here = Coordinating(make_broker(0))
    here.lead(1, 0)
    return here


def test_a_broker_that_does_not_lead_a_group_s_partition_refuses_all_that_is_asked(
    make_broker: Callable[..., Broker],
) -> None:
    there = Coordinating(make_broker(0))
    groups = there.groups
    assert groups.place_of("hello") == PLACE
    not_here = ErrorCode.NOT_COORDINATOR
    assert there.join().code is not_here
    assert there.sync("m", b"").code is not_here
    assert there.commit(5) == [{ORDERS: not_here}]
    assert there.delete() == [not_here]
    assert code_of(groups.heartbeat, "hello", 1, "m", None) is not_here
    assert code_of(groups.leave, "hello", [("m", None)]) is not_here
    assert code_of(groups.committed, "hello") is not_here
    assert code_of(groups.describe, "hello") is not_here
    assert groups.all_groups() == []


def test_a_member_joins_syncs_beats_and_leaves(here: Coordinating) -> None:
    refused = here.join(ids_first=True).answer
    assert refused.error is ErrorCode.MEMBER_ID_REQUIRED
    joined = here.join(refused.member_id).answer
    assert (joined.error, joined.generation, joined.leader_id) == (0, 1, refused.member_id)
    assert here.sync(joined.member_id, b"all").answer.assignment == b"all"
    assert code_of(here.groups.heartbeat, "hello", 1, joined.member_id, None) is ErrorCode.NONE
    assert here.groups.describe("hello").state is GroupState.STABLE
    assert here.delete() == [ErrorCode.NON_EMPTY_GROUP]
    here.groups.take_role(PLACE._replace(partition=21), leads=True)
    here.groups.take_role(PLACE._replace(partition=21), leads=False)
    assert here.groups.describe("hello").state is GroupState.STABLE, "it is of partition 22"
    left = here.groups.leave("hello", [(joined.member_id, None), ("nobody", None)])
    assert left == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert here.groups.describe("hello").state is GroupState.EMPTY
    assert here.delete() == [ErrorCode.NONE]
    assert here.groups.describe("hello").state is GroupState.DEAD


def test_what_a_member_may_not_is_answered(here: Coordinating) -> None:
    assert here.join("nobody").answer == JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, "nobody")
    assert here.sync("nobody", b"").answer == SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)


def test_offsets_are_committed_with_the_time_and_told(here: Coordinating) -> None:
    here.broker.pass_time(234)
    assert here.commit(5) == [{ORDERS: ErrorCode.NONE}]
    committed = here.groups.committed("hello")
    assert committed == {ORDERS: CommittedOffset(5, -1, "", commit_ms=1_234)}
    [group] = here.groups.all_groups()
    assert (group.group_id, group.state) == ("hello", GroupState.EMPTY)


@pytest.mark.parametrize(
    ("place", "why", "code"),
    [
        (TopicPartition("none", 0), "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("orders", 1), "x" * 4_097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (TopicPartition("orders", 1), "\N{SNOWMAN}" * 1_366, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (TopicPartition("orders", 1), "x" * 4_096, ErrorCode.NONE),
    ],
)
def test_each_offset_is_taken_or_refused_for_itself(
    here: Coordinating, place: TopicPartition, why: str, code: ErrorCode
) -> None:
    assert here.commit(5, place, why) == [{ORDERS: ErrorCode.NONE, place: code}]
    assert (place in here.groups.committed("hello")) == (code is ErrorCode.NONE)


def test_a_commit_is_answered_and_told_once_it_is_replicated(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    answers = here.commit(5)
    assert answers == []
    assert here.groups.committed("hello") == {}
    here.broker.fetch(1, replica_id=1, max_wait_ms=0, tps=(PLACE,))
    assert answers == [{ORDERS: ErrorCode.NONE}]
    assert here.groups.committed("hello")[ORDERS].offset == 5


def test_a_commit_that_is_not_replicated_in_time_is_not_told(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    answers = here.commit(5)
    here.broker.pass_time(5_000)
    assert answers == [{ORDERS: ErrorCode.REQUEST_TIMED_OUT}]
    assert here.groups.committed("hello") == {}


def test_who_resigns_refuses_the_commits_that_wait(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    answers = here.commit(5)
    here.follow(1, 3)
    assert answers == [{ORDERS: ErrorCode.NOT_COORDINATOR}]


def test_who_resigns_lets_go_of_its_groups_and_refuses_what_waits(here: Coordinating) -> None:
    assert here.join().code is ErrorCode.NONE
    waiting = here.join()
    assert not waiting.given, "the other one has to join again"
    here.follow(1, 2)
    assert waiting.code is ErrorCode.NOT_COORDINATOR
    assert here.groups.all_groups() == []
    purgatories = here.groups.purgatories
    assert [purgatory.num_delayed for purgatory in purgatories] == [0, 0, 0]


def test_who_leads_next_has_read_all_that_was_committed(here: Coordinating) -> None:
    here.commit(5)
    here.commit(6, TopicPartition("orders", 1))
    here.follow(1, 2)
    assert code_of(here.groups.committed, "hello") is ErrorCode.NOT_COORDINATOR
    here.lead(3, 0)
    committed = here.groups.committed("hello")
    assert {place.partition: one.offset for place, one in committed.items()} == {0: 6, 1: 6}
    assert here.delete() == [ErrorCode.NONE]
    assert here.delete() == [ErrorCode.GROUP_ID_NOT_FOUND]
    here.follow(1, 4)
    here.lead(5, 0)
    assert here.groups.committed("hello") == {}


def test_who_leads_next_tells_nothing_that_may_yet_go_back(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    here.commit(5)
    here.follow(1, 3)
    here.lead(4, 0, 1)  # the other one may lack the record, and may lead next
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert code_of(here.groups.committed, "hello") is loading
    assert here.join().code is ErrorCode.NONE
    here.broker.fetch(0, replica_id=1, max_wait_ms=0, tps=(PLACE,))
    assert code_of(here.groups.committed, "hello") is loading
    here.broker.fetch(1, replica_id=1, max_wait_ms=0, tps=(PLACE,))
    assert here.groups.committed("hello")[ORDERS].offset == 5


def test_a_deleted_topic_takes_its_offsets_with_it(here: Coordinating) -> None:
    here.commit(5)
    here.groups.delete_topic("others")
    assert here.groups.committed("hello").keys() == {ORDERS}
    here.groups.delete_topic("orders")
    assert here.groups.committed("hello") == {}


def test_roles_in_other_topics_are_passed_over(here: Coordinating) -> None:
    here.groups.take_role(TopicPartition("orders", 22), leads=False)
    assert here.commit(5) == [{ORDERS: ErrorCode.NONE}]


def test_a_broker_that_was_killed_just_now_answers_no_commit(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    here.broker.produces.close("leave")
    assert here.commit(5) == []
    here.broker.pass_time(60_000)


def test_of_commits_that_are_replicated_together_the_last_one_stays(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    answers = [here.commit(offset) for offset in range(40)]
    here.broker.fetch(40, replica_id=1, max_wait_ms=0, tps=(PLACE,))
    assert answers == [[{ORDERS: ErrorCode.NONE}]] * 40
    assert here.groups.committed("hello")[ORDERS].offset == 39
