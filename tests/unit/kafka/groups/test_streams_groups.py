"""Streams groups: topologies, tasks that move, waits of members, commits, and their records."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from purgatory.kafka import ErrorCode
from purgatory.kafka.errors import GroupRefusal
from purgatory.kafka.groups.streams_member import TaskId, UserEndpoint
from purgatory.kafka.groups.streams_topology import (
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    Topology,
    configured,
)
from tests.unit.kafka.groups.consumer_group_client import FakeTopics
from tests.unit.kafka.groups.streams_group_client import (
    REBALANCE_MS,
    SESSION_MS,
    STATEFUL,
    STATELESS,
    StreamsClient,
    StreamsWorld,
    settle,
)

NONE = ErrorCode.NONE
SILENT = (None, None, None)
"""The tasks of a heartbeat that reports none."""


@pytest.fixture
def world() -> StreamsWorld:
    return StreamsWorld()


# ---- members and their tasks


def test_first_member_gets_all_tasks(world: StreamsWorld) -> None:
    member = world.member("a")
    assert member.join() is NONE
    assert (member.epoch, member.numbers) == (2, [0, 1, 2, 3])
    assert world.group.state.value == "Stable"


def test_task_moves_once_its_member_has_given_it_up(world: StreamsWorld) -> None:
    one, two = world.member("a"), world.member("b")
    one.join()
    two.join()
    assert two.numbers == [], "both are the other's yet"
    one.beat(owned=SILENT)
    assert one.numbers == [0, 1]
    one.beat(owned=SILENT)
    two.beat()
    assert two.numbers == [], "a heartbeat without tasks gives up nothing"
    settle(one, two)
    assert (one.numbers, two.numbers) == ([0, 1], [2, 3])
    assert (one.epoch, two.epoch) == (3, 3)


def test_leaving_member_frees_its_tasks(world: StreamsWorld) -> None:
    one, two = world.member("a"), world.member("b")
    one.join()
    two.join()
    settle(one, two)
    assert two.leave() is NONE
    settle(one)
    assert one.numbers == [0, 1, 2, 3]
    assert two.leave() is ErrorCode.UNKNOWN_MEMBER_ID


def test_silent_member_expires_with_its_session(world: StreamsWorld) -> None:
    one, two = world.member("a"), world.member("b")
    one.join()
    two.join()
    settle(one, two)
    world.pass_time(SESSION_MS - 1)
    one.beat()
    assert set(world.group.members) == {"a", "b"}
    world.pass_time(1)
    assert set(world.group.members) == {"a"}
    assert two.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    settle(one)
    assert one.numbers == [0, 1, 2, 3]


def test_member_that_revokes_nothing_expires(world: StreamsWorld) -> None:
    one, two = world.member("a"), world.member("b")
    one.join()
    two.join()
    held = tuple(one.tasks)
    world.beat("a", one.epoch, owned=held)
    for _ in range(2):
        world.pass_time(REBALANCE_MS // 2 - 1)
        world.beat("a", one.epoch, owned=held)
        two.beat()
    world.pass_time(2)
    assert set(world.group.members) == {"b"}


def test_group_waits_for_members_at_first() -> None:
    world = StreamsWorld(delay_ms=3_000)
    one, two = world.member("a"), world.member("b")
    one.join()
    assert (one.epoch, one.numbers, one.statuses) == (1, [], ["ASSIGNMENT_DELAYED"])
    two.join()
    one.beat()
    world.pass_time(2_999)
    assert world.group.state.value == "Assigning"
    world.pass_time(1)
    settle(one, two, rounds=1)
    assert (one.numbers, two.numbers) == ([0, 2], [1, 3]), "none had to be revoked"


def test_group_is_assigned_after_an_interval() -> None:
    world = StreamsWorld(settings={"streams.assignment.interval.ms": "1000"})
    one, two = world.member("a"), world.member("b")
    one.join()
    two.join()
    assert two.statuses == ["ASSIGNMENT_DELAYED"]
    world.pass_time(999)
    assert (two.beat(), two.statuses) == (NONE, ["ASSIGNMENT_DELAYED"])
    world.pass_time(1)
    settle(two, one)
    assert (one.numbers, two.numbers) == ([0, 1], [2, 3])


def test_standbys_follow_the_setting(world: StreamsWorld) -> None:
    world.topics.set("c", 4)
    one, two = world.member("a", STATEFUL), world.member("b", STATEFUL)
    one.join()
    two.join()
    settle(one, two)
    assert one.standbys == two.standbys == []
    world.settings["streams.num.standby.replicas"] = "1"
    settle(one, two)
    assert (one.standbys, two.standbys) == ([2, 3], [0, 1])


def test_fenced_members_are_told_so(world: StreamsWorld) -> None:
    member = world.member("a")
    member.join()
    refused = ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("a", 9).error is refused
    assert world.beat("a", 1).error is refused, "without its tasks it is no retry"
    task = frozenset({TaskId("0", 3)})
    none: frozenset[TaskId] = frozenset()
    assert world.beat("a", 0 + 1, owned=(task, none, none)).error is refused
    member.beat()
    assert (member.epoch, member.numbers) == (2, [0, 1, 2, 3])


def test_shutdown_is_told_until_the_group_is_empty(world: StreamsWorld) -> None:
    one, two = world.member("a"), world.member("b")
    one.join()
    two.join()
    one.beat(shuts_down=True)
    two.beat()
    assert two.statuses == ["SHUTDOWN_APPLICATION"]
    assert "a encountered" in two.answer.status[0].detail
    for member in (one, two):
        member.leave()
    one.join()
    one.beat()
    assert one.statuses == []


def test_addresses_are_told_when_they_change(world: StreamsWorld) -> None:
    one = world.member("a")
    one.join(user_endpoint=UserEndpoint("here", 80))
    two = world.member("b")
    two.join()
    settle(one, two)
    answer = world.beat("b", two.epoch, endpoint_epoch=-1)
    assert answer.endpoints is not None
    [told] = answer.endpoints
    assert (told.endpoint.port, told.active) == (80, [("t", [0, 1])])
    assert world.beat("b", two.epoch, endpoint_epoch=answer.endpoint_epoch).endpoints is None


# ---- topologies


def test_missing_internal_topics_are_told(world: StreamsWorld) -> None:
    member = world.member("a", STATEFUL)
    member.join()
    assert member.statuses == ["MISSING_INTERNAL_TOPICS"]
    assert member.answer.missing == {"c": InternalTopic("c", 4)}
    assert (member.numbers, world.group.state.value) == ([], "NotReady")
    world.topics.set("c", 4)
    member.beat()
    assert (member.statuses, member.numbers) == ([], [0, 1, 2, 3])


def test_lost_source_topic_takes_the_tasks(world: StreamsWorld) -> None:
    member = world.member("a")
    member.join()
    world.topics.set("t", 0)
    settle(member, rounds=2)
    assert (member.statuses, member.numbers) == (["MISSING_SOURCE_TOPICS"], [])
    world.topics.set("t", 2)
    settle(member, rounds=2)
    assert (member.statuses, member.numbers) == ([], [0, 1])


def test_stale_topology_is_told(world: StreamsWorld) -> None:
    late = world.member("b", STATELESS)
    world.member("a", STATELESS._replace(epoch=1)).join()
    assert late.join() is NONE
    assert late.statuses == ["STALE_TOPOLOGY"]
    other = world.member("c", Topology(1, (Subtopology("1", ("t",)),)))
    assert other.join() is ErrorCode.INVALID_REQUEST


def places(*sources: int, repartitions: tuple[int, ...] = ()) -> tuple[CopartitionGroup, ...]:
    return (CopartitionGroup(sources, (), repartitions),)


R5 = (InternalTopic("r", 5),)
R = (InternalTopic("r"),)


@pytest.mark.parametrize(
    ("subtopologies", "expected"),
    [
        ([Subtopology("0", ("t", "u"))], {"0": 4}),
        ([Subtopology("0", ("gone", "lost"))], "Source topics gone, lost are missing."),
        (
            [Subtopology("0", ("t", "u"), copartition_groups=places(0, 1))],
            "Following topics do not have the same number of partitions: [{t=4, u=2}]",
        ),
        (
            [Subtopology("0", ("t",), changelog_topics=(InternalTopic("u"),))],
            "Existing topic u has different number of partitions: expected 4, found 2",
        ),
        (
            [
                Subtopology("0", ("u",), repartition_sink_topics=("r",)),
                Subtopology("1", ("t",), (), (), (), R, places(0, repartitions=(0,))),
            ],
            {"0": 2, "1": 4},
        ),
        (
            [
                Subtopology("0", ("u",), repartition_sink_topics=("r",)),
                Subtopology("1", ("t",), (), (), (), R5, places(0, repartitions=(0,))),
            ],
            "Number of partitions [5] of repartition topic [r] doesn't match number of partitions "
            "[4] of the source topic.",
        ),
        (
            [
                Subtopology("0", ("u",), repartition_sink_topics=("r",)),
                Subtopology("1", (), (), (), ("s",), R),
                Subtopology("2", (), (), (), (), (InternalTopic("s"),)),
            ],
            {"0": 2, "1": 2, "2": 2},
        ),
        (
            [
                Subtopology(
                    "0", ("u",), repartition_sink_topics=("r",), repartition_source_topics=R5
                )
            ],
            {"0": 5},
        ),
    ],
)
def test_partitions_of_internal_topics_are_decided(
    subtopologies: list[Subtopology], expected: Any
) -> None:
    topics = FakeTopics()
    topics.set("t", 4)
    topics.set("u", 2)
    found = configured(Topology(0, tuple(subtopologies)), topics.topics)
    if isinstance(expected, str):
        assert found.problem is not None
        assert (found.problem.detail, found.subtopologies) == (expected, None)
    else:
        assert found.subtopologies is not None
        assert {name: one.tasks for name, one in found.subtopologies.items()} == expected


# ---- commits


def refusal(member: StreamsClient, epoch: int, *numbers: int) -> ErrorCode:
    try:
        member.commits(epoch, *numbers)
    except GroupRefusal as refused:
        return refused.code
    return NONE


def test_late_commit_holds_for_tasks_that_stayed(world: StreamsWorld) -> None:
    one, two = world.member("a"), world.member("b")
    one.join()
    two.join()
    settle(one, two)
    assert refusal(one, 2, 0, 1) is NONE, "it has had them since epoch 2"
    stale = ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(one, 2, 2) is stale
    assert refusal(two, 2, 2) is stale
    assert refusal(two, 3, 2) is NONE
    assert refusal(one, 4, 0) is stale
    assert refusal(world.member("c"), 3, 0) is ErrorCode.UNKNOWN_MEMBER_ID


# ---- records


def test_coordinator_that_takes_over_knows_all(world: StreamsWorld) -> None:
    one, two = world.member("a"), world.member("b")
    one.join()
    two.join()
    one.beat()
    world.move()
    assert world.purgatory.num_delayed == 3, "two sessions, and a revocation"
    settle(one, two)
    assert (one.numbers, two.numbers) == ([0, 1], [2, 3])
    world.move()
    assert one.beat() is NONE
    assert one.answer.tasks is None


def test_change_that_was_not_written_is_written_later(world: StreamsWorld) -> None:
    one = world.member("a")
    one.join()
    world.fails = True
    two = world.member("b")
    assert two.join() is ErrorCode.REQUEST_TIMED_OUT
    world.fails = False
    one.beat()
    world.move()
    assert set(world.group.members) == {"a", "b"}


class StreamsMachine(RuleBasedStateMachine):
    """Members come, go, and fall silent; topics change; coordinators move: no task is twice."""

    def __init__(self) -> None:
        super().__init__()
        self.world = StreamsWorld()
        self.world.topics.set("c", 4)
        self.members = [
            self.world.member(f"m{number}", STATEFUL, f"p{number // 2}") for number in range(5)
        ]

    @rule(number=st.integers(0, 4), reports=st.booleans())
    def beat(self, number: int, reports: bool) -> None:
        member = self.members[number]
        if reports or member.epoch == 0:
            member.beat()
        else:
            member.beat(owned=SILENT)

    @rule(number=st.integers(0, 4))
    def joins_anew(self, number: int) -> None:
        self.members[number].join()

    @rule(number=st.integers(0, 4))
    def leave(self, number: int) -> None:
        self.members[number].leave()

    @rule(ms=st.sampled_from([1, REBALANCE_MS, SESSION_MS]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(standbys=st.integers(0, 2))
    def configure(self, standbys: int) -> None:
        self.world.settings["streams.num.standby.replicas"] = str(standbys)

    @rule(count=st.sampled_from([0, 2, 4]))
    def change_topics(self, count: int) -> None:
        for name in "tc":
            self.world.topics.set(name, count)

    @rule()
    def move(self) -> None:
        self.world.move()

    @invariant()
    def holds_its_invariants(self) -> None:
        if "g" in self.world.coordinator.groups:
            self.world.group._check()

    def teardown(self) -> None:
        """Have all topics and members: then all tasks are theirs."""
        for name in "tc":
            self.world.topics.set(name, 4)
        settle(*self.members, rounds=8)
        held = [member.numbers for member in self.members]
        assert sorted(chain.from_iterable(held)) == [0, 1, 2, 3], held
        assert self.world.group.state.value == "Stable"


StreamsMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestStreamsMachine = StreamsMachine.TestCase
