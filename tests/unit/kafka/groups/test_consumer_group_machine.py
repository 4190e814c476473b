"""Consumer groups under anything that members, topics and coordinators may do: no partition is two
members' at once, and in the end each has a member."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from purgatory.kafka import ErrorCode
from purgatory.kafka.groups.consumer_group import ConsumerGroupState
from purgatory.kafka.topic_partition import NO_PARTITIONS, TopicIdPartition
from tests.unit.kafka.groups.consumer_group_client import ConsumerClient, ConsumerWorld

_WISHES: list[dict[str, Any]] = [
    {"topic_names": ("t",)},
    {"topic_names": ("t", "u")},
    {"topic_names": ("u",), "topic_regex": ""},
    {"topic_names": (), "topic_regex": "[tu]"},
]
_seats = st.integers(0, 4)


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Five clients, two of them static, one group and two topics.

    A client owns its assigned partitions, until it revokes them; it revokes partitions at once when
    told to, or takes its time. One whose session may be over owns nothing: a client knows that by
    its clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = ConsumerWorld(consumer_session_timeout_ms=10_000)
        self.world.topics.set("u", 2)
        self.seats = [self._client(number) for number in range(5)]
        self.epoch = 0

    def _client(self, number: int) -> ConsumerClient:
        wish = _WISHES[number % len(_WISHES)]
        assignor = ("range", "uniform", None)[number % 3]
        instance_id = f"static-{number}" if number < 2 else None
        return self.world.member(**wish, assignor=assignor, instance_id=instance_id)

    # Steps.

    @rule(number=_seats)
    def send_heartbeat(self, number: int) -> None:
        self.seats[number].beat()

    @rule(number=_seats)
    def send_heartbeat_without_revoking(self, number: int) -> None:
        """The member keeps its partitions until its next heartbeat."""
        self.seats[number].beat_slowly()

    @rule(number=_seats)
    def send_heartbeat_and_lose_the_response(self, number: int) -> None:
        client = self.seats[number]
        if client.epoch > 0:
            client.ask(owned=client.owned)
            client.tells_all_next = True

    @rule(number=_seats, wish=st.sampled_from(_WISHES))
    def change_the_subscription(self, number: int, wish: dict[str, Any]) -> None:
        self.seats[number].told.update(wish)
        self.seats[number].beat(**wish)

    @rule(number=_seats, for_a_while=st.booleans())
    def leave(self, number: int, for_a_while: bool) -> None:
        client = self.seats[number]
        client.owned = NO_PARTITIONS
        client.leave(-2 if for_a_while and number < 2 else -1)
        self.seats[number] = self._client(number)

    @rule(number=_seats)
    def crash(self, number: int) -> None:
        self.seats[number] = self._client(number)

    @rule(name=st.sampled_from("tu"), partitions=st.integers(0, 7))
    def change_topics(self, name: str, partitions: int) -> None:
        former = self.world.topics.topics.get(name)
        if former is None or not partitions or partitions > len(former.partitions):
            self.world.topics.set(name, partitions)

    @rule(seconds=st.sampled_from([1, 4, 11]))
    def wait(self, seconds: int) -> None:
        self.world.pass_time(seconds * 1_000)
        for client in self.seats:
            group = self.world.coordinator.groups.get("g")
            if group is None or client.member_id not in group.members:
                client.reset()

    @rule()
    def move_the_coordinator(self) -> None:
        self.world.move()
        # Unreplicated changes are lost, the epoch as well.
        self.epoch = 0

    @rule()
    def lose_writes(self) -> None:
        """Records can't be kept for a while."""
        self.world.write_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for client in self.seats[:2]:
            client.beat()
        self.world.write_error = ErrorCode.NONE

    # Invariants.

    @invariant()
    def group_is_consistent(self) -> None:
        self.world.check()
        group = self.world.coordinator.groups.get("g")
        if group is not None:
            assert group.epoch >= self.epoch
            self.epoch = group.epoch

    @invariant()
    def partitions_have_one_member_each(self) -> None:
        owned = [one for client in self.seats for one in client.owned]
        assert len(owned) == len(set(owned))

    def teardown(self) -> None:
        # Crashed members are removed in the end, and all others are stable.
        for _ in range(3):
            self.world.pass_time(4_000)
            for client in self.seats:
                client.beat()
        for client in self.seats:
            while client.beat() is not ErrorCode.NONE:
                self.world.pass_time(4_000)
                for other in self.seats:
                    if other is not client:
                        other.beat()
        self.world.settle(*self.seats, rounds=8)
        group = self.world.group
        assert group.state is ConsumerGroupState.STABLE
        wanted = {
            TopicIdPartition(topic_id, number)
            for topic_id, count in group.topics.partition_counts.items()
            for number in range(count)
        }
        assert {one for client in self.seats for one in client.owned} == wanted
        self.world.check()


ConsumerGroupMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
test_no_partition_is_owned_twice_and_all_are_in_the_end = ConsumerGroupMachine.TestCase
