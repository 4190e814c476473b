"""The controller's reassignments of replicas, and elections on an administrator's request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import ErrorCode, KafkaError, TopicPartition
from purgatory.kafka.controller import Controller
from purgatory.kafka.delayed_admin import LeaderElections
from purgatory.kafka.topics import NO_LEADER, PartitionState
from timer import InlineExecutor, ManualClock, SystemTimer

_FIRST, _SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
_NONE, _NEEDLESS = ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED


class _Broker:
    """Records a broker's notifications."""

    def __init__(self) -> None:
        self.roles: dict[TopicPartition, tuple[int, tuple[int, ...]]] = {}

    def update_role(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        self.roles[topic_partition] = (state.leader, state.replicas)

    def apply_settings(self, topic: str | None) -> None:
        """Settings do not matter here."""

    def drop_replica(self, topic_partition: TopicPartition) -> None:
        del self.roles[topic_partition]

    def drop_topic(self, topic: str) -> None:
        """Topics are not deleted here."""

    def set_live_brokers(self, broker_ids: Sequence[int]) -> None:
        """Live brokers don't matter here."""


class _World:
    """Five brokers, and a topic whose first replicas are on the brokers 1 and 2."""

    def __init__(self) -> None:
        self.controller = Controller(range(1, 6))
        self.brokers = {broker_id: _Broker() for broker_id in range(1, 6)}
        for broker_id, broker in self.brokers.items():
            self.controller.broker_up(broker_id, broker)
        self.controller.create_assigned_topic("t", [(1, 2), (3, 4)], {})

    @property
    def state(self) -> PartitionState:
        state = self.controller.state_of(_FIRST)
        assert state is not None
        return state

    def hosts(self) -> set[int]:
        return {number for number, broker in self.brokers.items() if _FIRST in broker.roles}

    def in_sync(self, *isr: int) -> None:
        state = self.state
        assert self.controller.change_isr(_FIRST, state.leader_epoch, isr)


@pytest.fixture
def world() -> _World:
    return _World()


def test_reassignment_removes_replicas_once_new_ones_are_in_sync(world: _World) -> None:
    epoch = world.state.leader_epoch
    world.controller.reassign(_FIRST, (3, 4))
    assert (world.state.replicas, world.state.adding, world.state.removing) == (
        (3, 4, 1, 2),
        (3, 4),
        (1, 2),
    )
    assert (world.state.leader, world.hosts()) == (1, {1, 2, 3, 4})
    world.in_sync(3, 1, 2)
    assert world.state.adding, "one of them is missing yet"
    world.in_sync(3, 4, 1, 2)
    assert world.state == PartitionState((3, 4), (3, 4), 3, epoch + 1)
    assert world.hosts() == {3, 4}
    assert world.brokers[4].roles[_FIRST] == (3, (3, 4))


def test_reordering_or_fewer_replicas_complete_at_once(world: _World) -> None:
    world.controller.reassign(_FIRST, (2, 1))
    assert (world.state.replicas, world.state.leader, world.state.adding) == ((2, 1), 1, ())
    world.controller.reassign(_FIRST, (2,))
    assert (world.state.replicas, world.state.isr, world.state.leader) == ((2,), (2,), 2)
    assert world.hosts() == {2}


def test_reassignment_can_be_cancelled(world: _World) -> None:
    world.controller.reassign(_FIRST, (3, 2))
    world.in_sync(3, 2) if world.state.leader in (2, 3) else world.in_sync(2, 1)
    world.controller.reassign(_FIRST, None)
    assert set(world.state.replicas) == {1, 2}
    assert (world.state.adding, world.state.removing) == ((), ())
    assert world.hosts() == {1, 2}
    with pytest.raises(KafkaError, match="is not being moved") as refused:
        world.controller.reassign(_FIRST, None)
    assert refused.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_reassignment_replaces_an_ongoing_one(world: _World) -> None:
    world.controller.reassign(_FIRST, (3, 4))
    world.in_sync(3, 1, 2)
    world.controller.reassign(_FIRST, (4, 5))
    assert (world.state.replicas, world.state.adding) == ((4, 5, 1, 2), (4, 5))
    assert world.state.isr == (1, 2)
    assert world.hosts() == {1, 2, 4, 5}
    world.in_sync(4, 5, 1, 2)
    assert (world.state.replicas, world.hosts()) == ((4, 5), {4, 5})


def test_completed_reassignment_ends_a_dead_replicas_role(world: _World) -> None:
    world.controller.reassign(_FIRST, (3, 2))
    world.controller.broker_down(1)
    assert world.state.leader == 2
    world.in_sync(3, 2)
    assert world.state.replicas == (3, 2)
    again = _Broker()
    world.controller.broker_up(1, again)
    assert _FIRST not in again.roles


@pytest.mark.parametrize(
    ("replicas", "said"),
    [((), "at least one"), ((1, 1), "each once"), ((1, 9), r"no brokers \[9\]")],
)
def test_invalid_assignment_is_refused(world: _World, replicas: tuple[int, ...], said: str) -> None:
    with pytest.raises(KafkaError, match=said) as refused:
        world.controller.reassign(_FIRST, replicas)
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert world.state.replicas == (1, 2)


# ---- elections


def test_the_preferred_replica_leads_again(world: _World) -> None:
    controller = world.controller
    controller.broker_down(1)
    unavailable = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert controller.elect_leaders([_FIRST], unclean=False) == {_FIRST: unavailable}
    controller.broker_up(1, world.brokers[1])
    assert controller.elect_leaders([_FIRST], unclean=False) == {_FIRST: unavailable}
    world.in_sync(1, 2)
    unknown = TopicPartition("t", 9)
    assert controller.elect_leaders([_FIRST, _SECOND, unknown], unclean=False) == {
        _FIRST: _NONE,
        _SECOND: _NEEDLESS,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert world.state.leader == 1


def test_unclean_election_makes_a_live_replica_lead_on_request(world: _World) -> None:
    controller = world.controller
    assert controller.elect_leaders([_FIRST], unclean=True) == {_FIRST: _NEEDLESS}
    controller.broker_down(2)
    controller.broker_down(1)
    assert world.state.leader == NO_LEADER
    nobody = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert controller.elect_leaders([_FIRST], unclean=True) == {_FIRST: nobody}
    controller.broker_up(2, world.brokers[2])
    assert world.state.leader == NO_LEADER, "the live replica isn't in sync"
    assert controller.elect_leaders([_FIRST], unclean=True) == {_FIRST: _NONE}
    assert (world.state.leader, world.state.isr, world.state.is_clean) == (2, (2,), False)


class _Elections:
    """Elections whose leaders begin to lead when a test says so."""

    def __init__(self, world: _World) -> None:
        self.clock = ManualClock()
        timer = SystemTimer("elections", clock=self.clock, executor=InlineExecutor())
        self.purgatory = DelayedOperationPurgatory("ElectLeader", timer=timer, reaper_enabled=False)
        self.timer = timer
        self.led: set[TopicPartition] = set()
        self.elections = LeaderElections(
            self.purgatory, world.controller, lambda key: key in self.led
        )
        self.answers: list[Mapping[TopicPartition, ErrorCode]] = []

    def elect(self, *asked: TopicPartition) -> None:
        self.elections.elect(asked or None, False, 1_000, self.answers.append)


@pytest.fixture
def elections(world: _World) -> _Elections:
    world.controller.broker_down(1)
    world.controller.broker_down(3)
    for broker_id in (1, 3):
        world.controller.broker_up(broker_id, world.brokers[broker_id])
    world.in_sync(1, 2)
    state = world.controller.state_of(_SECOND)
    assert state is not None
    assert world.controller.change_isr(_SECOND, state.leader_epoch, (3, 4))
    return _Elections(world)


def test_election_completes_when_the_new_leaders_lead(elections: _Elections) -> None:
    elections.elect()
    elections.led = {_FIRST}
    elections.elections.check(_FIRST)
    assert elections.answers == [], "the other partition has none yet"
    elections.led = {_FIRST, _SECOND}
    elections.elections.check(_SECOND)
    assert elections.answers == [{_FIRST: _NONE, _SECOND: _NONE}]
    elections.elect()
    assert elections.answers[1:] == [{}], "partitions without a need of an election are left out"
    elections.elect(_FIRST)
    assert elections.answers[2:] == [{_FIRST: _NEEDLESS}]
    assert elections.purgatory.watched == 0


def test_election_timeout_returns_each_partitions_state(elections: _Elections) -> None:
    elections.elect(_FIRST, _SECOND)
    elections.led = {_SECOND}
    elections.elections.check(_SECOND)
    elections.clock.advance(1_001)
    elections.timer.advance_clock(0)
    assert elections.answers == [{_FIRST: ErrorCode.REQUEST_TIMED_OUT, _SECOND: _NONE}]
