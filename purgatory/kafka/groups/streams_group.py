"""A streams group (KIP-1071): its members, its topology, its epochs, and the members' tasks.

A data structure, as `ConsumerGroup`: the coordinator decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from purgatory.kafka.groups.consumer_group_member import MemberState
from purgatory.kafka.groups.epoch_group import FIRST_EPOCH, EpochGroup
from purgatory.kafka.groups.group_records import GroupRecordKey, GroupRecordValue, RecordKind
from purgatory.kafka.groups.streams_member import (
    CurrentTasks,
    StreamsClient,
    StreamsEpoch,
    StreamsMember,
    TargetEpoch,
    TaskId,
    Tasks,
    UserEndpoint,
    by_subtopology,
    reconciled,
)
from purgatory.kafka.groups.streams_topology import ConfiguredTopology, Topology, configured
from purgatory.kafka.groups.subscription import KnownTopics
from purgatory.kafka.groups.task_assignor import TaskMember, assign_tasks

NUM_STANDBYS = "num.standby.replicas"
"""The name of the only setting by which tasks are assigned."""


class StreamsGroupState(Enum):
    """The state of a streams group, in Kafka's words."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class EndpointPartitions(NamedTuple):
    """The partitions that a client with an address reads, by topic: of active and standby tasks."""

    endpoint: UserEndpoint
    active: Sequence[tuple[str, Sequence[int]]]
    standby: Sequence[tuple[str, Sequence[int]]]


class StreamsGroup(EpochGroup[StreamsMember]):
    """The members of one group, by member id.

    Args:
        group_id: its name.
        known_topics: the topics of the cluster.
    """

    own_kinds = (
        RecordKind.STREAMS_EPOCH,
        RecordKind.STREAMS_TARGET_EPOCH,
        RecordKind.STREAMS_TOPOLOGY,
    )

    def __init__(self, group_id: str, known_topics: KnownTopics) -> None:
        super().__init__(group_id)
        # As in Kafka, those of before the first assignment: to members, 0 would say to join again.
        self.target_epoch = FIRST_EPOCH
        self.known_topics = known_topics
        self.topology: Topology | None = None
        self.topics_hash = 0
        self.validated_epoch = 0
        self.configs: tuple[tuple[str, str], ...] = ()
        self.assigned_ms = 0
        self.targets: dict[str, Tasks] = {}
        self.configured: ConfiguredTopology | None = None
        """The topology as the topics configure it, at ``topics_version``."""
        self.topics_version = -1
        self.shutdown_by: str | None = None
        """The member that asked to end the application, as long as there are members."""
        self.endpoint_epoch = 0
        """How often what a client with an address reads has changed."""

    # Its members.

    def replace_member(self, member: StreamsMember) -> None:
        """Add or update a member. O(1)."""
        previous = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if previous is None or previous.subscription != member.subscription:
            self._mark_changed(RecordKind.STREAMS_MEMBER, member.member_id)
        if previous is None or previous.current != member.current:
            self._mark_changed(RecordKind.STREAMS_CURRENT, member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member, whose tasks are free then. O(1)."""
        del self.members[member_id]
        self.targets.pop(member_id, None)
        for kind in (
            RecordKind.STREAMS_CURRENT,
            RecordKind.STREAMS_TARGET,
            RecordKind.STREAMS_MEMBER,
        ):
            self._mark_changed(kind, member_id)
        if not self.members:
            self.shutdown_by = None

    def subscribed_names(self) -> set[str]:
        if not self.members or self.topology is None:
            return set()
        return {name for one in self.topology.subtopologies for name in one.read_topics}

    # Its topology.

    def set_topology(self, topology: Topology) -> None:
        """Set the topology of a group that has none."""
        self.topology = topology
        self._mark_changed(RecordKind.STREAMS_TOPOLOGY)

    def configure(self, topology: Topology) -> ConfiguredTopology:
        """Return what the topics make of a topology. O(1) while no topic changes.

        Raises:
            GroupRefusal: as `configured`.
        """
        is_new = self.configured is None or self.configured.topology is not topology
        if is_new or self.topics_version != self.known_topics.topics_version:
            version = self.known_topics.topics_version
            self.configured = configured(topology, self.known_topics.topics)
            self.topics_version = version
        assert self.configured is not None
        return self.configured

    # Its epochs.

    def bump_epoch(self) -> None:
        """Bump the group epoch after members, topics or settings have changed."""
        self.epoch += 1
        self._mark_changed(RecordKind.STREAMS_EPOCH)

    def assign(self, now_ms: int) -> None:
        """Compute the target assignment of the current epoch: none, if topics are missing.

        O(members + tasks * processes).
        """
        if self.configured is None:
            return  # as in Kafka: the next heartbeat does both
        tasks: Mapping[str, Tasks] = dict.fromkeys(self.members, Tasks())
        if self.configured.is_ready:
            assert self.configured.subtopologies is not None
            members = {
                member_id: TaskMember(
                    member.subscription.process_id, self.targets.get(member_id, Tasks())
                )
                for member_id, member in self.members.items()
            }
            standbys = int(dict(self.configs)[NUM_STANDBYS])
            tasks = assign_tasks(members, self.configured.subtopologies, standbys)
        for member_id, target in tasks.items():
            if self.targets.get(member_id) != target:
                self.targets[member_id] = target
                self._mark_changed(RecordKind.STREAMS_TARGET, member_id)
        self.target_epoch = self.epoch
        self.assigned_ms = now_ms
        self._mark_changed(RecordKind.STREAMS_TARGET_EPOCH)

    def next_tasks(self, member: StreamsMember, target: Tasks, owned: Tasks | None) -> CurrentTasks:
        """Return a member's tasks after a heartbeat, by which it reports what it owns.

        O(1) for a stable member, otherwise O(tasks of the group).
        """
        if self._is_reconciled(member):
            return member.current
        process = member.subscription.process_id
        active: set[TaskId] = set()
        in_process: set[TaskId] = set()
        for other in self.members.values():
            for tasks in (other.current.assigned, other.current.revoking):
                active |= tasks.active
                if other.subscription.process_id == process:
                    in_process.update(*tasks)

        def is_unreleased(task: TaskId, is_active: bool) -> bool:
            return task in in_process or (is_active and task in active)

        return reconciled(member.current, target, self.target_epoch, owned, is_unreleased)

    def endpoint_partitions(self) -> Sequence[EndpointPartitions]:
        """Return what each client with an address reads. O(members + tasks)."""
        return [
            EndpointPartitions(
                member.subscription.user_endpoint,
                self._partitions(member.current.assigned.active),
                self._partitions(member.current.assigned.standby),
            )
            for member in self.members.values()
            if member.subscription.user_endpoint is not None
        ]

    def _partitions(self, tasks: frozenset[TaskId]) -> Sequence[tuple[str, Sequence[int]]]:
        assert self.configured is not None
        topics = self.known_topics.topics
        found = []
        for subtopology_id, numbers in by_subtopology(tasks).items():
            subtopology = (self.configured.subtopologies or {}).get(subtopology_id)
            if subtopology is not None:
                for name in subtopology.subtopology.read_topics:
                    # As in Kafka: so many of the first tasks as the topic has partitions.
                    found.append((name, numbers[: len(topics[name].partitions)]))
        return found

    # Its state.

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.target_epoch:
            return StreamsGroupState.ASSIGNING
        if all(map(self._is_reconciled, self.members.values())):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    def _is_reconciled(self, member: StreamsMember) -> bool:
        current = member.current
        return current.epoch == self.target_epoch and current.state is MemberState.STABLE

    # Its records.

    def _value_of(self, key: GroupRecordKey) -> GroupRecordValue | None:
        member = self.members.get(key.member_id)
        match key.kind:
            case RecordKind.STREAMS_EPOCH:
                return StreamsEpoch(
                    self.epoch, self.topics_hash, self.validated_epoch, self.configs
                )
            case RecordKind.STREAMS_TARGET_EPOCH:
                return TargetEpoch(self.target_epoch, self.assigned_ms)
            case RecordKind.STREAMS_TOPOLOGY:
                return self.topology
            case RecordKind.STREAMS_TARGET:
                return self.targets.get(key.member_id)
            case RecordKind.STREAMS_MEMBER:
                return None if member is None else member.subscription
        return None if member is None else member.current

    def restore(self, values: Mapping[GroupRecordKey, GroupRecordValue]) -> None:
        """Restore the state from the log's records. O(records)."""
        currents: dict[str, CurrentTasks] = {}
        clients: dict[str, StreamsClient] = {}
        for (_, _, member_id, _), value in values.items():
            match value:
                case StreamsEpoch():
                    self.epoch, self.topics_hash, self.validated_epoch, self.configs = value
                case TargetEpoch():
                    self.target_epoch, self.assigned_ms = value
                case Topology():
                    self.topology = value
                case Tasks():
                    self.targets[member_id] = value
                case StreamsClient():
                    clients[member_id] = value
                case CurrentTasks():
                    currents[member_id] = value
        for member_id, client in clients.items():
            current = currents.get(member_id, CurrentTasks())
            self.members[member_id] = StreamsMember(member_id, client, current)

    def _check(self) -> None:
        """Assert all invariants. O(members + tasks)."""
        active: dict[TaskId, str] = {}
        of_processes: set[tuple[str, TaskId]] = set()
        for member_id, member in self.members.items():
            assert member.member_id == member_id
            current = member.current
            assert not current.assigned.intersects(current.revoking)
            assert current.epoch <= self.target_epoch
            for tasks in (current.assigned, current.revoking):
                for task in tasks.active:
                    assert task not in active, f"{task} is active twice"
                    active[task] = member_id
                for task in frozenset[TaskId]().union(*tasks):
                    in_process = member.subscription.process_id, task
                    assert in_process not in of_processes, f"{in_process} twice in a process"
                    of_processes.add(in_process)
        assert self.target_epoch <= self.epoch
        assert self.targets.keys() <= self.members.keys()
