"""Groups under anything that members may do: each step leaves them sound, each request answered."""

from __future__ import annotations

from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from purgatory.kafka import ErrorCode, GroupRefusal, GroupState, JoinGroupResult, SyncGroupResult
from tests.proofs.drawn import width
from tests.unit.kafka.groups.group_client import DELAY_MS, Asked, GroupClient, GroupWorld, joining

_WISHES = [("range",), ("range", "sticky"), ("sticky", "range")]
_seats = st.integers(0, 4)


class GroupMachine(RuleBasedStateMachine):
    """Five clients, two of them static, and one group.

    A leader assigns to each member a text that names the generation and the member, so that each
    assignment tells whom it was meant for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld()
        self.coordinator = self.world.coordinator
        self.asked: list[Asked[JoinGroupResult] | Asked[SyncGroupResult]] = []
        self.ids: dict[str, set[str]] = {}
        """The ids that a static member had."""
        self.reset()
        self.seats = [self._client(number) for number in range(5)]

    def reset(self) -> None:
        """The group is empty, and in no generation."""
        self.newest = 0
        self.assigned: set[tuple[int, str]] = set()

    def _client(self, number: int) -> GroupClient:
        return self.world.client(f"static-{number}" if number < 2 else None)

    # Steps of clients.

    @rule()
    def all_join(self) -> None:
        for number in range(5):
            self.join(number, _WISHES[0], require_known_member_id=False, lost=False)
        self.world.pass_time(2 * DELAY_MS)

    @rule(
        number=_seats,
        wish=st.sampled_from(_WISHES),
        require_known_member_id=st.booleans(),
        lost=st.integers(0, 4).map(lambda number: not number),
    )
    def join(
        self, number: int, wish: tuple[str, ...], require_known_member_id: bool, lost: bool
    ) -> None:
        """A client joins; its answer may be lost."""
        client = self.seats[number]
        asked = Asked[JoinGroupResult](partial(self._joined, client, lost))
        joined = joining(*wish, instance_id=client.instance_id)
        self.coordinator.join("g", client.member_id, joined, require_known_member_id, asked)
        self.asked.append(asked)

    def _joined(self, client: GroupClient, lost: bool, answer: JoinGroupResult) -> None:
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED and not lost:
            client.member_id = answer.member_id
        elif answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""
        if answer.error:
            return
        assert answer.generation >= self.newest
        self.newest = answer.generation
        if client.instance_id is not None:
            self.ids.setdefault(client.instance_id, set()).add(answer.member_id)
        if not lost:
            client._joined(answer)
        roster = [member.member_id for member in answer.members]
        assert answer.leader_id != answer.member_id or answer.member_id in roster

    @rule(number=_seats)
    def sync(self, number: int) -> None:
        client = self.seats[number]
        generation, member_id = client.generation, client.member_id
        roster = client.roster if client.leads else []
        assignments = {member: f"{generation} {member}".encode() for member in roster}

        def synced(answer: SyncGroupResult) -> None:
            if answer.error:
                return
            assert generation == self.newest, "of an old generation"
            in_generation, meant_for = answer.assignment.decode().split()
            assert int(in_generation) == generation
            # A static member that is back has the assignment of its former id.
            assert meant_for in self.ids.get(client.instance_id or "", {member_id})
            self.assigned.add((generation, member_id))

        asked = Asked(synced)
        self.coordinator.sync("g", generation, member_id, client.instance_id, assignments, asked)
        self.asked.append(asked)

    @rule(number=_seats)
    def heartbeat(self, number: int) -> None:
        client = self.seats[number]
        if not client.heartbeat():
            assert client.generation == self.newest, "of an old generation"

    @rule(number=_seats)
    def commit(self, number: int) -> None:
        client = self.seats[number]
        try:
            self.coordinator.check_commit(
                "g", client.generation, client.member_id, client.instance_id
            )
        except GroupRefusal:
            return
        assert client.generation in (-1, self.newest), "of an old generation"

    @rule(number=_seats)
    def leave(self, number: int) -> None:
        self.seats[number].leave()

    @rule(number=_seats)
    def crash(self, number: int) -> None:
        """A client crashes, and starts again."""
        self.seats[number] = self._client(number)

    @rule(seconds=st.sampled_from([0.5, 3, 9, 40]))
    def wait(self, seconds: float) -> None:
        self.world.pass_time(int(seconds * 1_000))

    @rule()
    def change_the_coordinator(self) -> None:
        """The next coordinator knows what is stored, and nothing later."""
        self.world.move()
        assert all(asked.given for asked in self.asked)
        self._know_stored()

    @rule()
    def lose_the_record(self) -> None:
        self.world.record = None
        self.world.move()
        assert not self.coordinator.groups
        self.reset()

    def _know_stored(self) -> None:
        record = self.world.record
        self.newest = 0 if record is None else record.generation
        for client in self.seats:
            if client.generation > self.newest:
                client.generation = -1
        if record is not None:
            self.assigned = {(record.generation, member.member_id) for member in record.members}

    # Invariants.

    @invariant()
    def group_is_consistent(self) -> None:
        self.world.check()
        group = self.coordinator.groups.get("g")
        if group is None:
            return
        assert group.generation >= self.newest
        members = group.members.values()
        joins = [member for member in members if member.awaiting_join_callback is not None]
        assert not joins or group.state is GroupState.PREPARING_REBALANCE
        syncs = [member for member in members if member.awaiting_sync_callback is not None]
        assert not syncs or group.state is GroupState.COMPLETING_REBALANCE
        assert len(joins) + len(syncs) == sum(not asked.given for asked in self.asked)
        if group.state is GroupState.STABLE:
            for member in members:
                has_it = (group.generation, member.member_id) in self.assigned
                came_back = member.instance_id is not None
                assert has_it or came_back or member.member_id in group.pending_sync_members

    def teardown(self) -> None:
        # Without heartbeats all members are removed in the end, and no operation waits.
        self.world.pass_time(300_000)
        assert all(asked.given for asked in self.asked)
        group = self.coordinator.groups.get("g")
        assert group is None or group.state is GroupState.EMPTY
        assert not self.coordinator.heartbeats.num_delayed
        assert not self.coordinator.rebalances.num_delayed
        self.world.check()


GroupMachine.TestCase.settings = settings(max_examples=width(50, 100), stateful_step_count=50)
test_groups_stay_sound_whatever_their_members_do = GroupMachine.TestCase
