"""A coordinator of streams groups on a manual clock, topics, and members that beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import ErrorCode, GroupConfig
from purgatory.kafka.groups.group_records import GroupRecordKey, GroupRecordValue
from purgatory.kafka.groups.streams_group import StreamsGroup
from purgatory.kafka.groups.streams_group_coordinator import (
    StreamsGroupCoordinator,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResult,
)
from purgatory.kafka.groups.streams_member import NO_TASKS, Tasks
from purgatory.kafka.groups.streams_topology import InternalTopic, Subtopology, Topology
from purgatory.kafka.settings.group_settings import GroupSettings, default_group_settings
from purgatory.kafka.topic_partition import TopicPartition
from tests.unit.kafka.groups.consumer_group_client import FakeTopics
from timer import InlineExecutor, ManualClock, SystemTimer

SESSION_MS, REBALANCE_MS = 45_000, 20_000
STATELESS = Topology(0, (Subtopology("0", ("t",)),))
STATEFUL = Topology(0, (Subtopology("0", ("t",), changelog_topics=(InternalTopic("c"),)),))
JOINS = (NO_TASKS, NO_TASKS, NO_TASKS)


class StreamsWorld:
    """A coordinator, a topic of four partitions, and what is stored."""

    def __init__(self, delay_ms: int = 0, settings: Mapping[str, str] | None = None) -> None:
        self.clock = ManualClock(1_000)
        self._timer = SystemTimer("streams", clock=self.clock, executor=InlineExecutor())
        self.purgatory = DelayedOperationPurgatory(
            "Heartbeat", timer=self._timer, reaper_enabled=False
        )
        self.topics = FakeTopics()
        self.topics.set("t", 4)
        self.stored: dict[GroupRecordKey, GroupRecordValue] = {}
        self.settings = {
            **default_group_settings(GroupConfig()),
            "streams.initial.rebalance.delay.ms": str(delay_ms),
            "streams.assignment.interval.ms": "0",
            **(settings or {}),
        }
        self.fails = False
        self.coordinator = self._new()

    def _new(self) -> StreamsGroupCoordinator:
        return StreamsGroupCoordinator(
            100,
            self.clock.now_ms,
            lambda _: GroupSettings(self.settings),
            self.topics,
            self.purgatory,
            self._write,
        )

    def _write(self, group_id: str, records: Any, respond: Any) -> None:
        if self.fails:
            respond(ErrorCode.REQUEST_TIMED_OUT)
            return
        for key, value in records:
            self.stored.pop(key, None)
            if value is not None:
                self.stored[key] = value
        respond(ErrorCode.NONE)

    def move(self) -> None:
        """Let another coordinator take over."""
        self.coordinator.forget("g")
        self.coordinator = self._new()
        if self.stored:
            self.coordinator.restore("g", self.stored)

    def pass_time(self, ms: int) -> None:
        """Let time pass, from one timeout to the next."""
        end_ms = self.clock.now_ms() + ms
        while (due_ms := self._timer.next_expiration_ms()) is not None and due_ms <= end_ms:
            self.clock.advance(max(0, due_ms - self.clock.now_ms()))
            self._timer.advance_clock(0)
        self.clock.advance(end_ms - self.clock.now_ms())

    @property
    def group(self) -> StreamsGroup:
        group = self.coordinator.groups["g"]
        group._check()
        return group

    def beat(self, member_id: str, epoch: int, **more: Any) -> StreamsGroupHeartbeatResult:
        """Send a heartbeat as it stands."""
        answers: list[StreamsGroupHeartbeatResult] = []
        request = StreamsGroupHeartbeat("g", member_id, epoch, **more)
        self.coordinator.heartbeat(request, answers.append)
        [answer] = answers
        return answer

    def member(self, name: str, topology: Topology = STATELESS, process: str = "") -> StreamsClient:
        """A member that is in no group yet."""
        return StreamsClient(self, name, topology, process or f"process of {name}")


class StreamsClient:
    """A member that follows the coordinator."""

    def __init__(self, world: StreamsWorld, name: str, topology: Topology, process: str) -> None:
        self.world = world
        self.name = name
        self.topology = topology
        self.process = process
        self.epoch = 0
        self.tasks = Tasks()
        self.answer = StreamsGroupHeartbeatResult(ErrorCode.NONE)

    @property
    def numbers(self) -> list[int]:
        """The partitions of its active tasks."""
        return sorted(task.partition for task in self.tasks.active)

    @property
    def standbys(self) -> list[int]:
        """The partitions of its standby tasks."""
        return sorted(task.partition for task in self.tasks.standby)

    @property
    def statuses(self) -> list[str]:
        """The names of what it was told of the group."""
        return [one.code.name for one in self.answer.status]

    def join(self, **more: Any) -> ErrorCode:
        """Join, without tasks."""
        self.tasks = Tasks()
        return self._take(
            self.world.beat(
                self.name,
                0,
                topology=self.topology,
                rebalance_timeout_ms=REBALANCE_MS,
                process_id=self.process,
                owned=JOINS,
                **more,
            )
        )

    def beat(self, **more: Any) -> ErrorCode:
        """Send a heartbeat with the tasks that it has, and take those that it is told."""
        if self.epoch == 0:
            return self.join(**more)
        asked = {"owned": tuple(self.tasks), **more}
        return self._take(self.world.beat(self.name, self.epoch, **asked))

    def leave(self) -> ErrorCode:
        """Leave the group."""
        answer, self.epoch, self.tasks = self.world.beat(self.name, -1), 0, Tasks()
        return answer.error

    def commits(self, epoch: int, *numbers: int) -> None:
        """Commit offsets of partitions."""
        places = [TopicPartition("t", number) for number in numbers]
        self.world.coordinator.check_commit("g", self.name, epoch, True, places)

    def _take(self, answer: StreamsGroupHeartbeatResult) -> ErrorCode:
        self.answer = answer
        if answer.error is not ErrorCode.NONE:
            self.epoch, self.tasks = 0, Tasks()
            return answer.error
        self.epoch = answer.epoch
        if answer.tasks is not None:
            self.tasks = answer.tasks
        return ErrorCode.NONE


def settle(*clients: StreamsClient, rounds: int = 6) -> None:
    """Have clients beat in turn, until a rebalance is over."""
    for _ in range(rounds):
        for client in clients:
            client.beat()
