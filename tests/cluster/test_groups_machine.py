"""Groups under anything that members may do, in virtual time: each step leaves them sound."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from purgatory.cluster.api.answer_of import answer_of
from purgatory.kafka import GroupConfig, GroupRefusal, GroupState, JoinAnswer, Joining, SyncAnswer
from purgatory.kafka.groups.group_coordinator import GroupCoordinator
from purgatory.kafka.groups.group_errors import MemberIdRequired
from tests.event_loop.conftest import VirtualLoop, new_purgatory, settle

_SESSION_MS, _REBALANCE_MS = 10_000, 30_000
_WISHES = [("range",), ("range", "sticky"), ("sticky", "range")]
_seats = st.integers(0, 4)


class _Seat:
    """A client's place: what it believes, and the request that it waits for."""

    def __init__(self, instance_id: str | None) -> None:
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.leader = False
        self.roster: list[str] = []
        self.waiting: asyncio.Task[None] | None = None

    @property
    def waits(self) -> bool:
        return self.waiting is not None and not self.waiting.done()


class GroupMachine(RuleBasedStateMachine):
    """Five clients, two of them static, and one group."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.runner.run(self._begin())
        self.seats = [_Seat(f"static-{n}" if n < 2 else None) for n in range(5)]
        self.generation = 0

    async def _begin(self) -> None:
        config = GroupConfig(initial_rebalance_delay_ms=3_000, min_session_timeout_ms=100)
        numbers = itertools.count(1)
        self.groups = GroupCoordinator(
            config,
            lambda name: new_purgatory(name).core,
            lambda begin: f"{begin}-{next(numbers)}",
        )

    def _step(self, coroutine: Coroutine[Any, Any, None] | None = None) -> None:
        async def step() -> None:
            if coroutine is not None:
                await coroutine
            await settle()

        self.runner.run(step())

    async def _ask(self, seat: _Seat, request: Coroutine[Any, Any, None]) -> None:
        seat.waiting = asyncio.create_task(request)

    @rule(number=_seats, wish=st.sampled_from(_WISHES), ids_first=st.booleans())
    def join(self, number: int, wish: tuple[str, ...], ids_first: bool) -> None:
        seat = self.seats[number]
        self._step(self._ask(seat, self._join(seat, wish, ids_first)))

    async def _join(self, seat: _Seat, wish: tuple[str, ...], ids_first: bool) -> None:
        protocols = tuple((name, name.encode()) for name in wish)
        joined = Joining(
            "c", "/h", seat.instance_id, _SESSION_MS, _REBALANCE_MS, "consumer", protocols
        )
        try:
            answer: JoinAnswer = await answer_of(
                partial(self.groups.join, "g", seat.member_id, joined, ids_first)
            )
        except MemberIdRequired as required:
            seat.member_id = required.member_id
        except GroupRefusal:
            seat.member_id = ""
        else:
            if answer.error:
                return
            seat.member_id = answer.member_id
            seat.generation = answer.generation
            seat.leader = answer.leader_id == seat.member_id
            seat.roster = [member.member_id for member in answer.roster]
            assert not seat.leader or seat.member_id in seat.roster

    @rule(number=_seats)
    def sync(self, number: int) -> None:
        seat = self.seats[number]
        self._step(self._ask(seat, self._sync(seat)))

    async def _sync(self, seat: _Seat) -> None:
        assignments = {member: member.encode() for member in seat.roster} if seat.leader else {}
        try:
            answer: SyncAnswer = await answer_of(
                partial(
                    self.groups.sync,
                    "g",
                    seat.generation,
                    seat.member_id,
                    seat.instance_id,
                    assignments,
                )
            )
        except GroupRefusal:
            return
        # Who came back as a static member has the assignment of the id that it had before.
        if answer.error == 0 and seat.instance_id is None:
            assert answer.assignment == seat.member_id.encode()

    @rule(number=_seats)
    def heartbeat(self, number: int) -> None:
        seat = self.seats[number]
        self._step(self._call(self.groups.heartbeat, seat.generation, seat))

    @rule(number=_seats)
    def leave(self, number: int) -> None:
        self._step(self._call(self.groups.leave, None, self.seats[number]))

    async def _call(self, call: Any, generation: int | None, seat: _Seat) -> None:
        numbers = () if generation is None else (generation,)
        try:
            call("g", *numbers, seat.member_id, seat.instance_id)
        except GroupRefusal:
            return

    @rule(number=_seats)
    def restart(self, number: int) -> None:
        """A client ends without a word, and begins anew."""
        seat = self.seats[number]
        if seat.waiting is not None:
            seat.waiting.cancel()
        self.seats[number] = _Seat(seat.instance_id)
        self._step()

    @rule(seconds=st.sampled_from([0.5, 3, 9, 40]))
    def wait(self, seconds: float) -> None:
        self._step(asyncio.sleep(seconds))

    @rule()
    def lose_the_coordinator(self) -> None:
        async def forget() -> None:
            self.groups.forget("g")

        self._step(forget())
        assert not self.groups.groups
        assert not any(seat.waits for seat in self.seats)
        assert not any(purgatory.num_delayed for purgatory in self.groups.purgatories)
        self.generation = 0

    @invariant()
    def the_group_is_sound(self) -> None:
        for seat in self.seats:
            if seat.waiting is not None and seat.waiting.done() and not seat.waiting.cancelled():
                seat.waiting.result()
        group = self.groups.groups.get("g")
        if group is None:
            return
        group._check()
        assert group.generation >= self.generation
        self.generation = group.generation
        waiting = [member for member in group.members.values() if member.joining is not None]
        assert not waiting or group.state is GroupState.PREPARING_REBALANCE
        syncing = [member for member in group.members.values() if member.syncing is not None]
        assert not syncing or group.state is GroupState.COMPLETING_REBALANCE

    def teardown(self) -> None:
        # Without signs of life everybody is out in the end, and nobody waits for anything.
        self._step(asyncio.sleep(300))
        assert not any(seat.waits for seat in self.seats)
        group = self.groups.groups.get("g")
        assert group is None or group.state is GroupState.EMPTY
        assert not self.groups.heartbeats.num_delayed
        assert not self.groups.rebalances.num_delayed
        for purgatory in self.groups.purgatories:
            assert not purgatory.counters.missed_wakeups, purgatory.name
        self.runner.close()


GroupMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=50)
test_groups_stay_sound_whatever_their_members_do = GroupMachine.TestCase
