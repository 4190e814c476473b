"""The controller alone: leaders, in-sync sets, and notifications of the brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from structlog.testing import capture_logs

from purgatory.kafka import TopicPartition
from purgatory.kafka.controller import Controller
from purgatory.kafka.topics import NO_LEADER, LogEnd, PartitionState, Topic

_FIRST = TopicPartition("t", 0)


class _Broker:
    """Records a broker's notifications."""

    def __init__(self) -> None:
        self.roles: dict[TopicPartition, tuple[int, int, tuple[int, ...]]] = {}
        self.live: tuple[int, ...] = ()
        self.settings: list[str | None] = []

    def update_role(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        known = self.roles.get(topic_partition)
        assert known is None or state.leader_epoch >= known[1], "epochs never fall"
        assert known is None or state.leader_epoch > known[1] or state.leader == known[0], (
            "another leader has another epoch"
        )
        self.roles[topic_partition] = (state.leader, state.leader_epoch, state.isr)

    def apply_settings(self, topic: str | None) -> None:
        self.settings.append(topic)

    def drop_replica(self, topic_partition: TopicPartition) -> None:
        del self.roles[topic_partition]

    def drop_topic(self, topic: str) -> None:
        self.roles = {key: role for key, role in self.roles.items() if key.topic != topic}

    def set_live_brokers(self, broker_ids: Sequence[int]) -> None:
        self.live = tuple(broker_ids)


def _controller(brokers: int = 3, unclean: bool = False) -> Controller:
    controller = Controller(range(1, brokers + 1), unclean)
    for broker in controller.broker_ids:
        controller.broker_up(broker, _Broker())
    return controller


def _state(controller: Controller) -> PartitionState:
    state = controller.state_of(_FIRST)
    assert state is not None
    return state


def test_partitions_are_spread_evenly_over_brokers_and_topics() -> None:
    controller = _controller(5)
    for number in range(4):
        controller.create_topic(f"t{number}", 5 * (number + 1), 3)
    leaders = Counter(state.leader for _, state in controller.partitions())
    replicas = Counter(r for _, state in controller.partitions() for r in state.replicas)
    assert set(leaders.values()) == {10}
    assert set(replicas.values()) == {30}
    assert all(len(set(state.replicas)) == 3 for _, state in controller.partitions())


def test_new_partitions_are_placed_on_live_brokers_first() -> None:
    controller = _controller(5)
    controller.broker_down(2)
    controller.broker_down(5)
    controller.create_topic("t", 3, 3)
    controller.create_topic("full", 6, 4)
    controller.create_partitions("t", 6)
    states = dict(controller.partitions())
    assert all({*one.replicas} == {1, 3, 4} for key, one in states.items() if key.topic == "t")
    full = [one for key, one in states.items() if key.topic == "full"]
    assert all({*one.replicas[:3]} == {1, 3, 4} == {*one.isr} for one in full)
    assert Counter(one.replicas[3] for one in full) == {2: 3, 5: 3}
    assert Counter(one.leader for one in states.values()) == {1: 4, 3: 4, 4: 4}


def test_first_live_replica_in_sync_leads_in_a_new_epoch() -> None:
    controller = _controller()
    controller.create_assigned_topic("t", [(2, 3, 1)], {})
    assert (_state(controller).leader, _state(controller).leader_epoch) == (2, 0)
    controller.broker_down(2)
    state = _state(controller)
    assert (state.leader, state.leader_epoch, state.isr) == (3, 1, (3, 1))
    controller.broker_down(1)
    assert (_state(controller).leader, _state(controller).isr) == (3, (3,))
    controller.broker_down(3)
    assert (_state(controller).leader, _state(controller).isr) == (NO_LEADER, (3,))


def test_replica_out_of_sync_leads_only_if_allowed() -> None:
    for unclean, leader, isr in ((False, NO_LEADER, (1,)), (True, 2, (2,))):
        controller = _controller(2, unclean)
        controller.create_assigned_topic("t", [(1, 2)], {})
        controller.remove_from_isr(_FIRST, 2)
        controller.broker_down(1)
        assert (_state(controller).leader, _state(controller).isr) == (leader, isr)


_UNCLEAN = "unclean.leader.election.enable"


@pytest.mark.parametrize(
    ("of_topic", "of_all", "leader"),
    [
        (None, None, NO_LEADER),
        ("true", None, 2),
        (None, "true", 2),
        ("false", "true", NO_LEADER),
        ("TRUE", "false", 2),
    ],
)
def test_unclean_election_is_allowed_per_topic_or_by_default(
    of_topic: str | None, of_all: str | None, leader: int
) -> None:
    def said(value: str | None) -> dict[str, str]:
        return {} if value is None else {_UNCLEAN: value}

    for late in (False, True):
        controller = _controller(2)
        controller.create_assigned_topic("t", [(1, 2)], {} if late else said(of_topic))
        controller.remove_from_isr(_FIRST, 2)
        if not late:
            controller.change_broker_settings(None, said(of_all))
        with capture_logs() as logs:
            controller.broker_down(1)
            if late:  # a leaderless partition gets a leader as soon as that is allowed
                assert _state(controller).leader == NO_LEADER
                controller.change_topic_settings("t", said(of_topic))
                controller.change_broker_settings(None, said(of_all))
        assert _state(controller).leader == leader
        assert [log["event"] for log in logs] == ["unclean_election"] * (leader == 2)


def test_first_live_replica_out_of_sync_leads_if_allowed() -> None:
    controller = _controller(2)
    controller.create_assigned_topic("t", [(1, 2)], {_UNCLEAN: "true"})
    controller.remove_from_isr(_FIRST, 2)
    controller.broker_down(2)
    controller.broker_down(1)
    controller.broker_up(2, _Broker())
    assert (_state(controller).leader, _state(controller).isr) == (2, (2,))


def test_returning_replica_leads_leaderless_partitions() -> None:
    controller = _controller(2)
    controller.create_assigned_topic("t", [(1, 2)], {})
    controller.broker_down(2)
    controller.broker_down(1)
    controller.broker_up(2, _Broker())
    assert _state(controller).leader == NO_LEADER, "broker 1 alone may have the latest records"
    one = _Broker()
    controller.broker_up(1, one)
    state = _state(controller)
    assert (state.leader, state.isr) == (1, (1,))
    assert one.roles[_FIRST] == (1, state.leader_epoch, (1,))
    assert one.live == (1, 2)


def test_isr_change_needs_the_leaders_epoch_and_live_members() -> None:
    controller = _controller()
    controller.create_assigned_topic("t", [(1, 2, 3)], {})
    assert controller.change_isr(_FIRST, 0, (1, 2))
    assert not controller.change_isr(_FIRST, 1, (1, 2, 3)), "another epoch"
    controller.broker_down(3)
    assert not controller.change_isr(_FIRST, 0, (1, 2, 3)), "broker 3 is dead"
    controller.remove_from_isr(_FIRST, 2)
    controller.blocks_isr = lambda _, broker: broker == 2
    assert not controller.change_isr(_FIRST, 0, (1, 2)), "a fault blocks broker 2"
    assert not controller.change_isr(TopicPartition("none", 0), 0, (1,))
    assert not controller.change_isr(TopicPartition("t", 1), 0, (1,))
    assert not controller.change_isr(TopicPartition("t", -1), 0, (1,))


def test_last_isr_member_stays_without_a_leader() -> None:
    controller = _controller()
    controller.create_topic("t", 1, 3)
    for broker in (3, 2, 1):
        controller.broker_down(broker)
    assert (_state(controller).leader, _state(controller).isr) == (NO_LEADER, (1,))
    controller.remove_from_isr(_FIRST, 1)
    assert _state(controller).isr == (1,), "else no broker could lead again"
    controller.broker_up(1, _Broker())
    assert _state(controller).leader == 1


def test_replica_blocked_from_the_isr_blocks_no_other_member() -> None:
    controller = _controller()
    controller.create_topic("t", 1, 3)
    controller.blocks_isr = lambda _, broker: broker == 1
    assert controller.change_isr(_FIRST, 0, (1, 2))
    assert controller.change_isr(_FIRST, 0, (1, 2, 3))


def test_the_preferred_replica_leads_again_where_it_is_in_sync() -> None:
    controller = _controller()
    controller.create_assigned_topic("t", [(1, 2, 3)], {})
    controller.broker_down(1)
    controller.broker_up(1, _Broker())
    controller.elect_preferred()
    assert _state(controller).leader == 2, "broker 1 is not in sync yet"
    epoch = _state(controller).leader_epoch
    assert controller.change_isr(_FIRST, epoch, (1, 2, 3))
    controller.elect_preferred()
    assert (_state(controller).leader, _state(controller).leader_epoch) == (1, epoch + 1)


def _restored(isr: tuple[int, ...], committed_offset: int) -> Controller:
    """Return a controller that was started again; no broker lives yet."""
    controller = Controller((1, 2, 3))
    state = PartitionState((1, 2, 3), isr, NO_LEADER, 4, 0, committed_offset)
    controller.restore([Topic("t", [state])])
    return controller


@pytest.mark.parametrize(
    ("isr", "ends", "remaining"),
    [
        ((1, 2, 3), {1: 10, 2: 10, 3: 10}, (1, 2, 3)),
        ((1, 2, 3), {1: 5, 2: 10, 3: 10}, (2, 3)),
        ((1, 2, 3), {1: 0, 2: 12, 3: 10}, (2,)),
        ((1, 2), {1: 10, 2: 10, 3: 50}, (1, 2)),
        ((1, 2), {1: 10, 3: 50}, (1, 2)),
        ((1, 2), {1: 5, 3: 50}, (2,)),
        ((1, 2), {3: 50}, (1, 2)),
        ((1, 2), {1: 5, 2: 6, 3: 9}, (3,)),
        ((1, 2), {1: 5, 2: 6, 3: 0}, (2,)),
    ],
)
def test_longest_logs_stay_in_sync_at_a_start(
    isr: tuple[int, ...], ends: dict[int, int], remaining: tuple[int, ...]
) -> None:
    controller = _restored(isr, committed_offset=10)
    with capture_logs() as logs:
        controller.reconcile_logs({one: {_FIRST: LogEnd(end, 2)} for one, end in ends.items()})
    assert _state(controller).isr == remaining
    lost = [log for log in logs if log["event"] == "acknowledged_records_lost"]
    most = max(ends[broker] for broker in remaining) if set(remaining) <= ends.keys() else 10
    assert [(log["from_offset"], log["to_offset"]) for log in lost] == [(most, 10)] * (most < 10)
    for broker in ends:
        controller.broker_up(broker, _Broker())
    leader = _state(controller).leader
    assert leader == next((b for b in remaining if b in ends), NO_LEADER)


def test_partition_without_any_replica_stays_as_it_is() -> None:
    controller = _restored((1, 2), committed_offset=10)
    controller.reconcile_logs({})
    assert (_state(controller).isr, _state(controller).leader_epoch) == ((1, 2), 4)


def test_epochs_continue_from_the_latest_in_any_log() -> None:
    controller = _restored((1, 2), committed_offset=10)
    ends = {1: LogEnd(10, 6), 2: LogEnd(10, 9), 3: LogEnd(3, 2)}
    controller.reconcile_logs({broker: {_FIRST: end} for broker, end in ends.items()})
    controller.broker_up(1, _Broker())
    assert (_state(controller).leader, _state(controller).leader_epoch) == (1, 10)


def test_an_isr_that_cannot_be_saved_is_refused() -> None:
    controller = _controller()
    controller.create_assigned_topic("t", [(1, 2, 3)], {})
    controller.on_change = lambda: False
    assert not controller.change_isr(_FIRST, 0, (1, 2))
    assert _state(controller).isr == (1, 2, 3)


class ControllerMachine(RuleBasedStateMachine):
    """Brokers that come and go, topics that are made and deleted, ISRs that shrink and grow."""

    @initialize(unclean=st.booleans())
    def begin(self, unclean: bool) -> None:
        self.controller = _controller(4, unclean)
        self.epochs: dict[TopicPartition, int] = {}
        self.names = 0
        # Made while none of their replicas lived: all are in sync, the dead too, being empty.
        self.unborn: set[str] = set()

    @rule(partitions=st.integers(1, 3), replication=st.integers(1, 4))
    def create(self, partitions: int, replication: int) -> None:
        self.names += 1
        topic = self.controller.create_topic(f"t{self.names}", partitions, replication)
        if any(state.leader == NO_LEADER for state in topic.partitions):
            self.unborn.add(topic.name)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.controller.topics:
            self.controller.delete_topic(data.draw(st.sampled_from(list(self.controller.topics))))

    @rule(broker=st.integers(1, 4))
    def down(self, broker: int) -> None:
        self.controller.broker_down(broker)

    @rule(broker=st.integers(1, 4))
    def up(self, broker: int) -> None:
        if broker not in self.controller.live:
            self.controller.broker_up(broker, _Broker())

    @rule(broker=st.integers(1, 4), joins=st.booleans(), data=st.data())
    def change_isr(self, broker: int, joins: bool, data: st.DataObject) -> None:
        led = [one for one in self.controller.partitions() if one[1].leader != NO_LEADER]
        if not led:
            return
        key, state = data.draw(st.sampled_from(led))
        members = {*state.isr, broker} if joins else {*state.isr} - {broker}
        isr = tuple(one for one in state.replicas if one in members or one == state.leader)
        agreed = self.controller.change_isr(key, state.leader_epoch, isr)
        assert agreed == (set(isr) <= self.controller.live.keys())

    @rule(broker=st.integers(1, 4), data=st.data())
    def remove_from_isr(self, broker: int, data: st.DataObject) -> None:
        partitions = self.controller.partitions()
        if partitions:
            self.controller.remove_from_isr(data.draw(st.sampled_from(partitions))[0], broker)

    @rule()
    def prefer(self) -> None:
        self.controller.elect_preferred()

    @invariant()
    def leaders_live_and_are_in_sync(self) -> None:
        live = self.controller.live
        for key, state in self.controller.partitions():
            assert state.isr
            assert set(state.isr) <= set(state.replicas)
            assert state.leader_epoch >= self.epochs.get(key, 0)
            self.epochs[key] = state.leader_epoch
            if state.leader == NO_LEADER:
                assert not live.keys() & set(state.isr), "somebody in sync could lead"
            else:
                assert state.leader in live
                assert state.leader in state.isr
                assert key.topic in self.unborn or set(state.isr) <= live.keys()
            for broker, member in live.items():
                assert isinstance(member, _Broker)
                if broker in state.replicas:
                    leader, epoch, _ = member.roles[key]
                    assert (leader, epoch) == (state.leader, state.leader_epoch)


ControllerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
test_leaders_live_and_are_in_sync_whatever_happens = ControllerMachine.TestCase
