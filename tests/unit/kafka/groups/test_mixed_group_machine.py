"""Groups of both protocols under anything that members and coordinators may do."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from purgatory.kafka.groups.group_records import RecordKind
from tests.unit.kafka.conftest import Broker
from tests.unit.kafka.groups.consumer_group_client import ConsumerClient
from tests.unit.kafka.groups.mixed_world import PARTITIONS, ClassicClient, MixedWorld
from timer import ManualClock

_seats = st.integers(0, 5)
_END_S = 90


class MixedMachine(RuleBasedStateMachine):
    """Six clients and one group: half of each protocol, some static, some cooperative."""

    def __init__(self) -> None:
        super().__init__()
        self.world = MixedWorld(Broker(0, ManualClock()))
        self.seats = [self._client(number) for number in range(6)]

    def _client(self, number: int) -> ClassicClient | ConsumerClient:
        instance_id = f"static-{number}" if number in (1, 4) else None
        if number < 3:
            return self.world.classic(instance_id, cooperates=number == 2)
        return self.world.consumer(instance_id=instance_id)

    def _step(self, client: ClassicClient | ConsumerClient) -> None:
        if isinstance(client, ClassicClient):
            client.step()
        else:
            client.beat()

    @rule(number=_seats, times=st.integers(1, 3))
    def step(self, number: int, times: int) -> None:
        for _ in range(times):
            self._step(self.seats[number])

    @rule(number=_seats)
    def leave(self, number: int) -> None:
        client = self.seats[number]
        if client.member_id:
            client.leave()
        self.seats[number] = self._client(number)

    @rule(number=_seats)
    def crash(self, number: int) -> None:
        """A client crashes, and starts again."""
        self.seats[number] = self._client(number)

    @rule(seconds=st.sampled_from([0.5, 4, 11, 46]))
    def wait(self, seconds: float) -> None:
        self.world.broker.pass_time(int(seconds * 1_000))

    @rule()
    def change_the_coordinator(self) -> None:
        self.world.move()

    @invariant()
    def group_is_of_one_kind(self) -> None:
        world, stored = self.world, self.world.stored
        assert len(world.kinds) <= 1
        assert stored <= {RecordKind.CLASSIC} or RecordKind.CLASSIC not in stored
        if world.kinds == ["consumer"]:
            assert RecordKind.CLASSIC not in stored
        for purgatory in world.groups.classic.purgatories:
            assert not sum(purgatory.counters.callback_errors.values()), purgatory.name

    def teardown(self) -> None:
        for _ in range(_END_S):
            for client in self.seats:
                self._step(client)
            self.world.broker.pass_time(1_000)
        held = Counter(chain.from_iterable(client.numbers for client in self.seats))
        assert held == Counter(range(PARTITIONS)), held
        assert self.world.kinds == ["consumer"]
        self.group_is_of_one_kind()


MixedMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=30)
test_mixed_groups_stay_sound_whatever_happens = MixedMachine.TestCase
