"""A coordinator of consumer groups on a manual clock, topics, and members that beat."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import ErrorCode, GroupConfig
from purgatory.kafka.groups.consumer_group import ConsumerGroup, ConsumerGroupState
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerGroupCoordinator,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
)
from purgatory.kafka.groups.consumer_group_member import Principal
from purgatory.kafka.groups.group_records import GroupRecord, GroupRecordKey, GroupRecordValue
from purgatory.kafka.topic_partition import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from timer import InlineExecutor, ManualClock, SystemTimer

SESSION_MS, REBALANCE_MS = 45_000, 60_000

Written = Callable[[ErrorCode], object]
Writes = list[tuple[Sequence[GroupRecord], Written]]


@dataclass
class FakeTopic:
    """A topic of so many partitions."""

    topic_id: UUID
    partitions: list[None]


@dataclass
class FakeTopics:
    """The topics of a cluster."""

    topics: dict[str, FakeTopic] = field(default_factory=dict)
    topics_version: int = 0

    def __post_init__(self) -> None:
        self.hidden: set[tuple[str, str]] = set()
        self._numbers = itertools.count(1)

    def may_describe(self, requester: Principal, topic: str) -> bool:
        return (requester.principal, topic) not in self.hidden

    def set(self, name: str, partitions: int) -> None:
        """Give a topic so many partitions, make it, or delete it."""
        self.topics_version += 1
        if not partitions:
            self.topics.pop(name, None)
            return
        if name not in self.topics:
            self.topics[name] = FakeTopic(UUID(int=next(self._numbers)), [])
        self.topics[name].partitions = [None] * partitions

    def partitions(self, name: str, *numbers: int) -> Partitions:
        """Return some partitions of a topic."""
        topic_id = self.topics[name].topic_id
        return frozenset(TopicIdPartition(topic_id, number) for number in numbers)


class ConsumerWorld:
    """A coordinator, its records, its purgatory and its time."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer("groups", clock=self.clock, executor=InlineExecutor())
        self.config = GroupConfig(**options)
        self.topics = FakeTopics()
        self.topics.set("t", 6)
        self.records: dict[GroupRecordKey, GroupRecordValue] = {}
        self.held_writes: Writes | None = None
        self.write_error = ErrorCode.NONE
        self._numbers = itertools.count(1)
        self._names = itertools.count(1)
        self.begin()

    def begin(self) -> None:
        """Have a coordinator that knows nothing."""
        purgatory = DelayedOperationPurgatory("Heartbeat", timer=self.timer, reaper_enabled=False)
        self.heartbeats = purgatory
        self.coordinator = ConsumerGroupCoordinator(
            self.config.max_size,
            lambda _: self.config.consumer_session_timeout_ms,
            self.topics,
            purgatory,
            lambda: f"made-{next(self._numbers)}",
            self.write,
        )

    def move(self) -> None:
        """Start another coordinator, which loads the records of the former one."""
        self.coordinator.forget("g")
        assert not self.heartbeats.num_delayed
        self.begin()
        if self.records:
            self.coordinator.restore("g", self.records)

    def write(self, group_id: str, records: Sequence[GroupRecord], then: Written) -> None:
        if self.held_writes is not None:
            self.held_writes.append((records, then))
        elif self.write_error:
            then(self.write_error)
        else:
            self.keep(records, then)

    def keep(self, records: Sequence[GroupRecord], then: Written) -> None:
        for key, value in records:
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value
        then(ErrorCode.NONE)

    def member(self, **told: Any) -> ConsumerClient:
        """A client that is in no group yet."""
        return ConsumerClient(self, f"m{next(self._names)}", **told)

    def pass_time(self, ms: int) -> None:
        """Let time pass, from one timeout to the next."""
        end_ms = self.clock.now_ms() + ms
        while (due_ms := self.timer.next_expiration_ms()) is not None and due_ms <= end_ms:
            self.clock.advance(max(0, due_ms - self.clock.now_ms()))
            self.timer.advance_clock(0)
        self.clock.advance(end_ms - self.clock.now_ms())

    def settle(self, *clients: ConsumerClient, rounds: int = 6) -> None:
        """Have clients beat in turn, each of them as often as a rebalance takes."""
        for _ in range(rounds):
            for client in clients:
                assert client.beat() is ErrorCode.NONE

    @property
    def group(self) -> ConsumerGroup:
        group = self.coordinator.groups["g"]
        group._check()
        return group

    def state(self) -> ConsumerGroupState:
        return self.group.state

    def check(self) -> None:
        for group in self.coordinator.groups.values():
            group._check()
        self.heartbeats._check()
        assert not sum(self.heartbeats.counters.callback_errors.values())


class ConsumerClient:
    """A consumer: its heartbeat has all fields when it joins, and after an error; else the changes.
    The consumer follows its assignment.

    Args:
        told: fields of `ConsumerGroupHeartbeat`, beside the subscription to the topic "t".
    """

    def __init__(self, world: ConsumerWorld, member_id: str, **told: Any) -> None:
        self.world = world
        self.member_id = member_id
        self.epoch = 0
        self.owned = NO_PARTITIONS
        self.told: dict[str, Any] = {"topic_names": ("t",), **told}
        self.answers: list[ConsumerGroupHeartbeatResult] = []
        self.tells_all_next = False
        self._owned_next: Partitions | None = None

    def join(self, **told: Any) -> ErrorCode:
        """Join, or join again, with nothing owned."""
        self.reset()
        self.told.update(told)
        return self._ask({"rebalance_timeout_ms": REBALANCE_MS, **self.told})

    def beat(self, **told: Any) -> ErrorCode:
        """Send a heartbeat, and own the partitions of the response."""
        if self.epoch == 0:
            return self.join(**told)
        self._catch_up()
        if self.tells_all_next:
            self.told.update(told)
            return self._ask({"rebalance_timeout_ms": REBALANCE_MS, **self.told})
        instance_id = self.told.get("instance_id")
        return self._ask({"instance_id": instance_id, **told})

    def beat_slowly(self) -> None:
        """Send a heartbeat, and own the partitions of the response only at the next one."""
        self._catch_up()
        before = self.owned
        self.beat()
        if self.epoch > 0:
            self.owned, self._owned_next = before, self.owned

    def _catch_up(self) -> None:
        if self._owned_next is not None:
            self.owned, self._owned_next = self._owned_next, None

    def leave(self, epoch: int = -1) -> ErrorCode:
        """Leave."""
        self.epoch = epoch
        return self._ask({"instance_id": self.told.get("instance_id")})

    def ask(self, **fields: Any) -> ConsumerGroupHeartbeatResult:
        """Send any heartbeat; the client does nothing with the answer."""
        asked = ConsumerGroupHeartbeat("g", self.member_id, self.epoch)._replace(**fields)
        answers: list[ConsumerGroupHeartbeatResult] = []
        self.world.coordinator.heartbeat(asked, answers.append)
        [answer] = answers
        return answer

    def _ask(self, fields: dict[str, Any]) -> ErrorCode:
        requester = self.told.get("requester")
        asked = ConsumerGroupHeartbeat(
            "g", self.member_id, self.epoch, owned=self.owned, requester=requester
        )
        before = len(self.answers)
        self.tells_all_next = True  # unless it is answered
        self.world.coordinator.heartbeat(asked._replace(**fields), self._take)
        if len(self.answers) == before:
            return ErrorCode.REQUEST_TIMED_OUT
        return self.answers[-1].error

    def _take(self, answer: ConsumerGroupHeartbeatResult) -> None:
        self.answers.append(answer)
        self.tells_all_next = bool(answer.error)
        if answer.error is ErrorCode.NONE:
            self.epoch = answer.epoch
            if answer.assignment is not None:
                self.owned = answer.assignment
        elif answer.error in (
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ):
            self.reset()

    def reset(self) -> None:
        """Own nothing, and join at the next heartbeat."""
        self.epoch, self.owned, self._owned_next = 0, NO_PARTITIONS, None

    @property
    def numbers(self) -> list[int]:
        """The partitions that it owns, by number alone."""
        return sorted(one.partition for one in self.owned)
