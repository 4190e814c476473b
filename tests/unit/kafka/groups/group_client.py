"""A coordinator of groups on a manual clock, and members that ask it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import (
    ErrorCode,
    Group,
    GroupConfig,
    GroupRefusal,
    GroupState,
    JoinGroupRequest,
    JoinGroupResult,
    RecordBatch,
    StoredEntry,
    SyncGroupResult,
)
from purgatory.kafka.groups.group import ClassicGroupRecord, LeaveGroupResult
from purgatory.kafka.groups.group_coordinator import GroupCoordinator
from purgatory.kafka.log.producer_state import ProducerIdentity
from timer import InlineExecutor, ManualClock, SystemTimer

DELAY_MS, SESSION_MS, REBALANCE_MS = 3_000, 10_000, 60_000

AnswerT = TypeVar("AnswerT", JoinGroupResult, SyncGroupResult, LeaveGroupResult)


class Asked(Generic[AnswerT]):
    """Takes the answer to one request, and sees to it that there is only one."""

    def __init__(self, then: Callable[[AnswerT], object] | None = None) -> None:
        self._then: Callable[[AnswerT], object] | None = then
        self._answer: AnswerT | None = None

    def __call__(self, answer: AnswerT) -> None:
        assert self._answer is None, "a request was answered twice"
        self._answer = answer
        if self._then is not None:
            self._then(answer)

    @property
    def given(self) -> bool:
        return self._answer is not None

    @property
    def answer(self) -> AnswerT:
        assert self._answer is not None, "not answered yet"
        return self._answer

    @property
    def code(self) -> ErrorCode:
        return self.answer.error


class TagCodec:
    """Keeps committed offsets as a batch's tag."""

    def batch(
        self, entries: Sequence[StoredEntry], producer: ProducerIdentity | None = None
    ) -> RecordBatch:
        size_bytes = 100 * len(entries)
        if producer is None:
            return RecordBatch(0, len(entries), size_bytes, tag=tuple(entries))
        return RecordBatch(
            0, len(entries), size_bytes, -1, *producer, tag=tuple(entries), transactional=True
        )

    def entries(self, batch: RecordBatch) -> Sequence[StoredEntry]:
        assert isinstance(batch.tag, tuple)
        return batch.tag


class GroupWorld:
    """A coordinator, its purgatories and their time, and what it has stored of the group.

    Writes are replicated at once, unless they are held (`held_writes`), or fail (`write_error`).
    """

    def __init__(self, **options: Any) -> None:
        self.record: ClassicGroupRecord | None = None
        self.held_writes: list[Callable[[], None]] | None = None
        self.write_error = ErrorCode.NONE
        limits: dict[str, Any] = {
            "initial_rebalance_delay_ms": DELAY_MS,
            "min_session_timeout_ms": 100,
            **options,
        }
        self.clock = ManualClock()
        self.timer = SystemTimer("groups", clock=self.clock, executor=InlineExecutor())
        self._numbers = itertools.count(1)
        self.coordinator = GroupCoordinator(
            GroupConfig(**limits),
            self.new_purgatory,
            self.new_member_id,
            save=self._save,
            now_ms=self.clock.now_ms,
        )

    def _save(
        self,
        group: Group,
        assignments: Mapping[str, bytes],
        respond: Callable[[ErrorCode], object],
    ) -> None:
        record = group.record(assignments)

        def write() -> None:
            if self.write_error is ErrorCode.NONE:
                self.record = record
            respond(self.write_error)

        if self.held_writes is None:
            write()
        else:
            self.held_writes.append(write)

    def replicate(self) -> None:
        """Let the held writes come to their end."""
        held, self.held_writes = self.held_writes or [], None
        for write in held:
            write()

    def move(self) -> None:
        """Let another coordinator take over."""
        self.coordinator.forget("g")
        assert not any(purgatory.num_delayed for purgatory in self.coordinator.purgatories)
        if self.record is not None:
            self.coordinator.restore("g", self.record)

    def new_purgatory(self, name: str) -> DelayedOperationPurgatory:
        return DelayedOperationPurgatory(name, timer=self.timer, reaper_enabled=False)

    def new_member_id(self, begin: str) -> str:
        return f"{begin}-{next(self._numbers)}"

    def client(self, instance_id: str | None = None) -> GroupClient:
        return GroupClient(self.coordinator, instance_id)

    def clients(self, count: int) -> list[GroupClient]:
        return [self.client() for _ in range(count)]

    def pass_time(self, ms: int) -> None:
        """Let time pass, from one timeout to the next."""
        end_ms = self.clock.now_ms() + ms
        while (due_ms := self.timer.next_expiration_ms()) is not None and due_ms <= end_ms:
            self.clock.advance(max(0, due_ms - self.clock.now_ms()))
            self.timer.advance_clock(0)
        self.clock.advance(end_ms - self.clock.now_ms())

    def pass_time_beating(self, seconds: int, *clients: GroupClient) -> set[ErrorCode]:
        """Let time pass while clients send heartbeats each second; return the answers."""
        codes = set()
        for _ in range(seconds):
            self.pass_time(1_000)
            codes |= {client.heartbeat() for client in clients}
        return codes

    @property
    def group(self) -> Group:
        group = self.coordinator.groups["g"]
        group._check()
        return group

    def stable(self, *clients: GroupClient) -> None:
        """Bring clients into one generation, with their assignments."""
        joins = [client.join() for client in clients]
        self.pass_time(2 * DELAY_MS)
        assert [join.code for join in joins] == [0] * len(clients)
        syncs = [client.sync() for client in clients]
        assert [sync.answer.assignment for sync in syncs] == [
            client.member_id.encode() for client in clients
        ]
        assert self.group.state is GroupState.STABLE

    def check(self) -> None:
        for group in self.coordinator.groups.values():
            group._check()
        for purgatory in self.coordinator.purgatories:
            purgatory._check()
            assert not purgatory.counters.missed_wakeups, purgatory.name
            assert not sum(purgatory.counters.callback_errors.values()), purgatory.name


class GroupClient:
    """A member, or a client that wants to be one."""

    def __init__(self, coordinator: GroupCoordinator, instance_id: str | None = None) -> None:
        self.coordinator = coordinator
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.roster: list[str] = []

    def join(
        self, *protocols: str, kind: str = "consumer", require_known_member_id: bool = False
    ) -> Asked[JoinGroupResult]:
        """Ask to join."""
        joined = joining(*protocols, kind=kind, instance_id=self.instance_id)
        asked = Asked(self._joined)
        self.coordinator.join("g", self.member_id, joined, require_known_member_id, asked)
        return asked

    def _joined(self, answer: JoinGroupResult) -> None:
        if answer.error is ErrorCode.NONE:
            self.member_id = answer.member_id
            self.generation = answer.generation
            self.leads = answer.leader_id == self.member_id
            self.roster = [member.member_id for member in answer.members]

    def get_id(self) -> None:
        """Ask to join, and be given the id to join with."""
        answer = self.join(require_known_member_id=True).answer
        assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
        self.member_id = answer.member_id

    def sync(self) -> Asked[SyncGroupResult]:
        """Ask for an assignment. A leader assigns to each its own id."""
        assignments = {member: member.encode() for member in self.roster} if self.leads else {}
        asked = Asked[SyncGroupResult]()
        self.coordinator.sync(
            "g", self.generation, self.member_id, self.instance_id, assignments, asked
        )
        return asked

    def heartbeat(self) -> ErrorCode:
        """Send a heartbeat."""
        beat = self.coordinator.heartbeat
        return code_of(beat, "g", self.generation, self.member_id, self.instance_id)

    def leave(self) -> ErrorCode:
        """Leave the group."""
        [code] = leave(self.coordinator, (self.member_id, self.instance_id))
        return code


def leave(
    coordinator: GroupCoordinator, *members: tuple[str, str | None], group_id: str = "g"
) -> Sequence[ErrorCode]:
    """Have members leave; return each one's error code."""
    asked = Asked[LeaveGroupResult]()
    coordinator.leave(group_id, members, asked)
    assert asked.code is ErrorCode.NONE
    return asked.answer.codes


def joining(
    *protocols: str,
    kind: str = "consumer",
    instance_id: str | None = None,
    session_ms: int = SESSION_MS,
) -> JoinGroupRequest:
    """The subscription of a member."""
    offered = tuple((name, name.encode()) for name in protocols or ("range",))
    return JoinGroupRequest("client", "/here", instance_id, session_ms, REBALANCE_MS, kind, offered)


def code_of(call: Callable[..., object], *args: Any, **options: Any) -> ErrorCode:
    """Why a call is refused, or NONE."""
    try:
        call(*args, **options)
    except GroupRefusal as refusal:
        return refusal.code
    return ErrorCode.NONE
