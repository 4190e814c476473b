"""A broker that coordinates one group, and members of both protocols that follow it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import cast

from purgatory.kafka import (
    OFFSETS_TOPIC,
    ErrorCode,
    GroupConfig,
    GroupManager,
    JoinGroupRequest,
    JoinGroupResult,
    SyncGroupResult,
    TopicPartition,
)
from purgatory.kafka.groups.consumer_group import ConsumerGroup
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
)
from purgatory.kafka.groups.consumer_protocol import read_assignment, write_assignment
from purgatory.kafka.groups.group import CONSUMER, GroupProtocol, LeaveGroupResult
from purgatory.kafka.groups.group_records import RecordKind
from purgatory.kafka.settings.group_settings import MigrationPolicy
from purgatory.kafka.topic_partition import NO_PARTITIONS
from tests.unit.kafka.conftest import Broker
from tests.unit.kafka.groups.consumer_group_client import (
    ConsumerClient,
    ConsumerWorld,
    FakeTopics,
)
from tests.unit.kafka.groups.group_client import Asked, TagCodec, code_of

PLACE = TopicPartition(OFFSETS_TOPIC, 0)
PARTITIONS = 4
REBALANCE_MS, SESSION_MS = 20_000, 10_000


def subscription(*topics: str, owned: Mapping[str, Sequence[int]] | None = None) -> bytes:
    """Return a subscription of the classic consumer protocol, in version 0, or in version 1 with
    partitions that are owned."""
    names = [struct.pack(">h", len(topic)) + topic.encode() for topic in topics]
    version = 0 if owned is None else 1
    data = struct.pack(">hi", version, len(topics)) + b"".join(names) + struct.pack(">i", -1)
    if owned is not None:
        data += struct.pack(">i", len(owned))
        for topic, numbers in owned.items():
            data += struct.pack(">h", len(topic)) + topic.encode()
            data += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return data


class MixedWorld:
    """A broker that coordinates one group of a topic with four partitions."""

    def __init__(
        self,
        broker: Broker,
        delay_ms: int = 0,
        policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL,
        max_size: int = 100,
    ) -> None:
        self.broker = broker
        self.topics = FakeTopics()
        self.topics.set("t", PARTITIONS)
        self.numbers = iter(range(1, 1_000))
        self.config = GroupConfig(
            initial_rebalance_delay_ms=delay_ms,
            consumer_migration_policy=policy,
            max_size=max_size,
        )
        self.groups = GroupManager(
            broker.manager,
            self.config,
            TagCodec(),
            new_purgatory=lambda name: broker._purgatory(name, 0),
            new_member_id=lambda begin: f"{begin}-{next(self.numbers)}",
            now_ms=broker.clock.now_ms,
            offsets_partitions=lambda: 1,
            is_known=lambda place: True,
            known_topics=self.topics,
        )
        self.coordinator = SimpleNamespace(heartbeat=self.groups.consumer_heartbeat)
        self._epoch = 0
        self.lead()

    def lead(self) -> None:
        self._epoch += 1
        self.broker.lead(self._epoch, isr=(0,), replicas=(0,), tp=PLACE)
        self.groups.update_role(PLACE, leads=True)

    def move(self) -> None:
        """Let another coordinator take over."""
        self.groups.update_role(PLACE, leads=False)
        assert not self.kinds
        assert not any(one.num_delayed for one in self.groups.classic.purgatories)
        self.lead()

    def classic(self, instance_id: str | None = None, cooperates: bool = False) -> ClassicClient:
        """A member of the classic protocol that is in no group yet."""
        return ClassicClient(self, instance_id, cooperates)

    def consumer(self, **told: object) -> ConsumerClient:
        """A member of the consumer protocol that is in no group yet."""
        return ConsumerClient(cast(ConsumerWorld, self), f"c{next(self.numbers)}", **told)

    def form(self, *clients: ClassicClient) -> None:
        """Have clients join the classic group, and share the partitions."""
        for client in clients:
            client.join()
        joined = [client for client in clients if client.joining.given]
        for client in joined if len(joined) < len(clients) else ():
            client.join()
        for client in clients:
            assert client.take_join() is ErrorCode.NONE
        for client in sorted(clients, key=lambda one: not one.leads):
            client.sync()

    def settle(self, *clients: ClassicClient | ConsumerClient, rounds: int = 6) -> None:
        """Have clients beat in turn, until a rebalance is over."""
        for _ in range(rounds):
            for client in clients:
                client.beat()
        held = [client.numbers for client in clients]
        assert sorted(chain.from_iterable(held)) == list(range(PARTITIONS)), held
        assert max(map(len, held)) - min(map(len, held)) <= 1, held

    @property
    def group(self) -> ConsumerGroup:
        group = self.groups.consumers.groups["g"]
        group._check()
        return group

    @property
    def kinds(self) -> list[str]:
        """The kind of the group, where there is one."""
        for consumers in self.groups.consumers.groups.values():
            consumers._check()
        for classic in self.groups.classic.groups.values():
            classic._check()
        known = (
            ("classic", self.groups.classic.groups),
            ("consumer", self.groups.consumers.groups),
        )
        return [kind for kind, groups in known if "g" in groups]

    @property
    def stored(self) -> set[RecordKind]:
        """The kinds of the group's records."""
        return {key.kind for key in self.groups.offsets.records_of("g")}

    def consume(self, member_id: str, epoch: int = 0) -> ConsumerGroupHeartbeatResult:
        """Send one heartbeat of the consumer protocol."""
        answers: list[ConsumerGroupHeartbeatResult] = []
        joins = epoch == 0
        asked = ConsumerGroupHeartbeat(
            "g",
            member_id,
            epoch,
            topic_names=("t",) if joins else None,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            owned=NO_PARTITIONS if joins else None,
        )
        self.groups.consumer_heartbeat(asked, answers.append)
        return answers[0]

    def leave(self, *members: tuple[str, str | None]) -> Sequence[ErrorCode]:
        asked = Asked[LeaveGroupResult]()
        self.groups.classic_requests.leave("g", members, asked)
        assert asked.code is ErrorCode.NONE
        return asked.answer.codes


class ClassicClient:
    """A consumer of the classic protocol.

    Args:
        cooperates: whether it keeps its partitions when it joins again, and tells which; otherwise
            it gives them up before.
    """

    def __init__(self, world: MixedWorld, instance_id: str | None, cooperates: bool) -> None:
        self.world = world
        self.instance_id = instance_id
        self.cooperates = cooperates
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.numbers: list[int] = []
        self.joining = Asked[JoinGroupResult]()
        self.kind = CONSUMER
        self.protocols: tuple[str, ...] = ("range",)
        self._roster: list[str] = []
        self._is_joining = False

    def request(self) -> JoinGroupRequest:
        if not self.cooperates:
            self.numbers = []
        metadata = subscription("t", owned={"t": self.numbers} if self.cooperates else None)
        return JoinGroupRequest(
            "c",
            "/h",
            self.instance_id,
            SESSION_MS,
            REBALANCE_MS,
            self.kind,
            tuple((name, metadata) for name in self.protocols),
        )

    def join(self, require_known_member_id: bool = False) -> ErrorCode | None:
        """Join, or join again; None while it waits."""
        self.joining = Asked[JoinGroupResult]()
        requests = self.world.groups.classic_requests
        asked = self.joining
        requests.join("g", self.member_id, self.request(), require_known_member_id, asked)
        self.world.broker.pass_time(0)
        return self.take_join()

    def take_join(self) -> ErrorCode | None:
        if not self.joining.given:
            return None
        answer = self.joining.answer
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        if answer.error is ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation
            self.leads = answer.leader_id == self.member_id
            self._roster = [member.member_id for member in answer.members]
        return answer.error

    def sync(self) -> ErrorCode | None:
        """Ask for the assignment. A leader shares the partitions out."""
        asked = Asked[SyncGroupResult](self._take)
        assignments = {
            member_id: write_assignment(
                {"t": list(range(place, PARTITIONS, len(self._roster)))}, subscription("t")
            )
            for place, member_id in enumerate(self._roster if self.leads else ())
        }
        self.world.groups.classic_requests.sync(
            "g",
            self.generation,
            self.member_id,
            self.instance_id,
            assignments,
            asked,
            GroupProtocol(self.kind, self.protocols[0]),
        )
        return asked.code if asked.given else None

    def _take(self, answer: SyncGroupResult) -> None:
        if answer.error is ErrorCode.NONE:
            assert (answer.protocol_type, answer.protocol) == (self.kind, self.protocols[0])
            self.numbers = list(read_assignment(answer.assignment).partitions.get("t", ()))

    def heartbeat(self) -> ErrorCode:
        """Send a heartbeat."""
        beat = self.world.groups.classic_requests.heartbeat
        return code_of(beat, "g", self.generation, self.member_id, self.instance_id)

    def beat(self) -> ErrorCode:
        """Send a heartbeat, and join again where the group rebalances."""
        code = self.heartbeat()
        if code is ErrorCode.REBALANCE_IN_PROGRESS and self.join() is ErrorCode.NONE:
            self.sync()
        return code

    def step(self) -> None:
        """Do what a client does next: it joins, fetches its assignment, or sends a heartbeat."""
        if self.generation < 0 and not self._is_joining:
            self._is_joining = True
            self.join()
        if not self._is_joining:
            self._react(self.heartbeat())
            return
        code = self.take_join()
        if code is None:
            return
        self._is_joining = False
        self._react(self.sync() or ErrorCode.NONE if code is ErrorCode.NONE else code)

    def _react(self, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            self.generation = -1
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
        if code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.numbers = []

    def leave(self) -> ErrorCode:
        """Leave the group."""
        [code] = self.world.leave((self.member_id, self.instance_id))
        return code
