"""The coordinator of the streams groups (KIP-1071) whose records a broker leads.

As that of consumer groups, but for what Kafka Streams needs: members report a topology, and are
assigned tasks of it once all of its topics are there. The internal topics that are missing are told
to the caller, which creates them. The first members of a group wait for others
(`DelayedFirstAssignment`), and a group is assigned anew once an interval has passed since the last
time. Kafka 4.3 has neither static members nor warmup tasks.

Ground rules: those of `ConsumerGroupCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from purgatory.core.keys import GroupJoinKey
from purgatory.core.operation import DelayedOperation
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.consumer_group_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
)
from purgatory.kafka.groups.epoch_group_coordinator import (
    EpochGroupCoordinator,
    WriteRecords,
    ignore,
)
from purgatory.kafka.groups.group_records import GroupRecordKey, GroupRecordValue
from purgatory.kafka.groups.streams_group import (
    NUM_STANDBYS,
    EndpointPartitions,
    StreamsGroup,
)
from purgatory.kafka.groups.streams_member import (
    StreamsClient,
    StreamsMember,
    TaskId,
    Tasks,
    UserEndpoint,
)
from purgatory.kafka.groups.streams_topology import (
    ConfiguredTopology,
    InternalTopic,
    Status,
    StatusCode,
    Topology,
)
from purgatory.kafka.groups.subscription import KnownTopics
from purgatory.kafka.settings.group_settings import GroupSettings
from purgatory.kafka.topic_partition import TopicPartition

_UNCHANGED_MS = -1
_NONE_ASSIGNED = 0
_log = Logger("purgatory.kafka")


class StreamsGroupHeartbeat(NamedTuple):
    """A heartbeat request, with the changes since the previous one.

    Args:
        epoch: the member's, or `JOIN_EPOCH`, `LEAVE_EPOCH` or `STATIC_LEAVE_EPOCH`.
        endpoint_epoch: that of the addresses that the member knows.
        instance_id, rack_id, topology, process_id, user_endpoint, client_tags,
            rebalance_timeout_ms: None, or -1, if unchanged.
        owned: the member's active, standby and warmup tasks; each None if not reported.
        shuts_down: whether the application is to end.
        has_offsets: whether it has offsets of tasks.
    """

    group_id: str
    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    endpoint_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = _UNCHANGED_MS
    topology: Topology | None = None
    owned: tuple[frozenset[TaskId] | None, ...] = (None, None, None)
    process_id: str | None = None
    user_endpoint: UserEndpoint | None = None
    client_tags: tuple[tuple[str, str], ...] | None = None
    shuts_down: bool = False
    has_offsets: bool = False

    @property
    def owned_tasks(self) -> Tasks | None:
        """The tasks that the member reports; None: it reports none."""
        active, standby, warmup = self.owned
        if active is None or standby is None or warmup is None:
            return None
        return Tasks(active, standby, warmup)

    def client(self, before: StreamsClient) -> StreamsClient:
        """Return what the member is known to be now."""
        timeout_ms, topology = self.rebalance_timeout_ms, self.topology
        return StreamsClient(
            before.rack_id if self.rack_id is None else self.rack_id,
            self.client_id,
            self.client_host,
            before.rebalance_timeout_ms if timeout_ms == _UNCHANGED_MS else timeout_ms,
            before.topology_epoch if topology is None else topology.epoch,
            before.process_id if self.process_id is None else self.process_id,
            before.user_endpoint if self.user_endpoint is None else self.user_endpoint,
            before.client_tags if self.client_tags is None else self.client_tags,
        )

    def check(self) -> None:
        """Validate the request.

        Raises:
            GroupRefusal: INVALID_REQUEST or STREAMS_INVALID_TOPOLOGY.
        """
        if self.instance_id is not None:
            raise _invalid("Static membership is not yet supported.")
        if self.has_offsets:
            raise _invalid("offsets of tasks are not supported yet")
        if self.owned[2]:
            raise _invalid("WarmupTasks are not supported yet.")
        if self.topology and any(one.source_topic_regex for one in self.topology.subtopologies):
            raise _invalid("Regular expressions for source topics are not supported yet.")
        for name in ("member_id", "group_id", "rack_id"):
            value = getattr(self, name)
            if value is not None and not value.strip():
                raise _invalid(f"{name} can't be empty")
        if self.epoch < LEAVE_EPOCH:
            is_static = self.epoch == STATIC_LEAVE_EPOCH
            raise _invalid(
                "InstanceId can't be null." if is_static else f"a member epoch of {self.epoch}"
            )
        if self.epoch == JOIN_EPOCH:
            self._check_joining()
        if self.owned != (None, None, None) and self.owned_tasks is None:
            raise _invalid("If one task-type is non-null, all must be non-null.")
        if self.epoch != JOIN_EPOCH and self.topology is not None:
            raise _invalid("Topology can only be provided when (re-)joining.")

    def _check_joining(self) -> None:
        if self.rebalance_timeout_ms == _UNCHANGED_MS:
            raise _invalid("a member that joins has to send its rebalance timeout")
        if any(self.owned):
            raise _invalid("a member that joins owns no tasks")
        if self.topology is None:
            raise _invalid("a member that joins has to send its topology")
        self.topology.check()


def _invalid(message: str) -> GroupRefusal:
    return GroupRefusal(ErrorCode.INVALID_REQUEST, message=message)


@dataclass(frozen=True)
class StreamsGroupHeartbeatResult:
    """A member's epoch, and what is new to it; or an error.

    Args:
        tasks: its tasks, if they have changed.
        endpoint_epoch: that of ``endpoints``.
        endpoints: the clients with addresses, if they have changed.
        missing: the internal topics that are to be created.
    """

    error: ErrorCode
    member_id: str = ""
    epoch: int = 0
    message: str | None = None
    status: Sequence[Status] = ()
    tasks: Tasks | None = None
    endpoint_epoch: int = 0
    endpoints: Sequence[EndpointPartitions] | None = None
    missing: Mapping[str, InternalTopic] = field(default_factory=dict)


RespondStreams: TypeAlias = Callable[[StreamsGroupHeartbeatResult], object]


class DelayedFirstAssignment(DelayedOperation):
    """Waits for more members of a group that has just got its first one; then it is assigned."""

    def __init__(self, delay_ms: int, on_end: Callable[[], object]) -> None:
        super().__init__(delay_ms)
        self._on_end = on_end

    def try_complete(self) -> bool:
        return False

    def on_expiration(self) -> None:
        self._on_end()


class StreamsGroupCoordinator(EpochGroupCoordinator[StreamsGroup]):
    """Coordinates the streams groups of one broker.

    Args:
        max_size: how many members a group may have.
        now_ms: returns the time, in milliseconds since 1970.
        settings: returns the settings of a group.
        known_topics: the topics of the cluster.
        heartbeats: the purgatory in which members are waited for.
        write: writes records.
    """

    def __init__(
        self,
        max_size: int,
        now_ms: Callable[[], int],
        settings: Callable[[str], GroupSettings],
        known_topics: KnownTopics,
        heartbeats: DelayedOperationPurgatory,
        write: WriteRecords,
    ) -> None:
        def session_timeout_ms(group_id: str) -> int:
            return settings(group_id).milliseconds("streams.session.timeout.ms")

        super().__init__(session_timeout_ms, heartbeats, write)
        self._max_size = max_size
        self._now_ms = now_ms
        self._settings = settings
        self._known_topics = known_topics
        self._delayed: dict[str, DelayedFirstAssignment] = {}

    # Groups.

    def restore(
        self, group_id: str, values: Mapping[GroupRecordKey, GroupRecordValue]
    ) -> StreamsGroup:
        """Restore a group from its records and restart the session timeouts of all members."""
        group = self.groups[group_id] = StreamsGroup(group_id, self._known_topics)
        group.restore(values)
        for member in group.members.values():
            self._watch_session(group, member)
            self._watch_revocation(group, member)
        return group

    def forget(self, group_id: str) -> None:
        delayed = self._delayed.pop(group_id, None)
        if delayed is not None:
            delayed.cancel()
        super().forget(group_id)

    # Heartbeats.

    def heartbeat(self, request: StreamsGroupHeartbeat, respond: RespondStreams) -> None:
        """Handle a heartbeat; ``respond`` is called once its changes are replicated.

        O(members) without a change; O(members + tasks * processes) with a new assignment.
        """
        try:
            request.check()
            group = self.groups.get(request.group_id)
            if group is None:
                if request.epoch != JOIN_EPOCH:
                    raise GroupRefusal(
                        ErrorCode.GROUP_ID_NOT_FOUND,
                        message=f"there is no such group: {request.group_id}",
                    )
                group = StreamsGroup(request.group_id, self._known_topics)
            is_leaving = request.epoch == LEAVE_EPOCH
            result = (self._leave if is_leaving else self._heartbeat)(group, request)
        except GroupRefusal as refusal:
            respond(StreamsGroupHeartbeatResult(refusal.code, message=refusal.message))
            return
        if not group.has_changes:
            respond(result)
            return
        self._save(
            group,
            lambda code: respond(
                result if code is ErrorCode.NONE else StreamsGroupHeartbeatResult(code)
            ),
        )

    def _leave(
        self, group: StreamsGroup, request: StreamsGroupHeartbeat
    ) -> StreamsGroupHeartbeatResult:
        if request.shuts_down:
            group.shutdown_by = group.shutdown_by or request.member_id
        _member_of(group, request)
        self._remove(group, [request.member_id], "left")
        return StreamsGroupHeartbeatResult(ErrorCode.NONE, request.member_id, request.epoch)

    def _remove(self, group: StreamsGroup, member_ids: Collection[str], reason: str) -> None:
        for member_id in member_ids:
            self._stop_waiting(group, member_id)
            group.remove(member_id)
            _log.info("member_gone", group=group.group_id, member=member_id, reason=reason)
        group.bump_epoch()

    def _heartbeat(
        self, group: StreamsGroup, request: StreamsGroupHeartbeat
    ) -> StreamsGroupHeartbeatResult:
        is_known = group.group_id in self.groups
        previous = self._existing_member(group, request)
        before = previous or StreamsMember(request.member_id, StreamsClient())
        topology = _topology(group, request.topology)
        found = group.configure(topology)
        _check_tasks(found, request)
        # From here on nothing is refused, and the group changes.
        self.groups[group.group_id] = group
        if not group.members:
            self._delay_first(group)
        member = before._replace(subscription=request.client(before.subscription))
        group.replace_member(member)
        if group.topology is None:
            group.set_topology(topology)
        status = [*_stale_status(group, member)]
        if self._is_changed(group, previous, member, found):
            group.bump_epoch()
        target_epoch_before = group.target_epoch
        is_first_delayed = group.group_id in self._delayed
        status += self._assign_if_due(group)
        if group.target_epoch != target_epoch_before:
            _log.info(
                "assigned", group=group.group_id, epoch=group.epoch, members=len(group.members)
            )
        target = Tasks() if is_first_delayed else group.targets.get(member.member_id, Tasks())
        member = self._reconcile(group, member, target, request.owned_tasks)
        self._watch_session(group, member)
        if request.shuts_down:
            group.shutdown_by = group.shutdown_by or member.member_id
        tasks = None
        if request.epoch == JOIN_EPOCH or _has_other_tasks(before, member):
            tasks = member.current.assigned
            if member.subscription.user_endpoint is not None:
                group.endpoint_epoch += 1
        has_news = group.endpoint_epoch != request.endpoint_epoch
        status += _topic_status(group, found)
        result = StreamsGroupHeartbeatResult(
            ErrorCode.NONE,
            member.member_id,
            member.current.epoch,
            status=status,
            tasks=tasks,
            endpoint_epoch=group.endpoint_epoch if is_known else 0,
            endpoints=group.endpoint_partitions() if has_news else None,
            missing=found.missing,
        )
        if not is_known:
            # As in Kafka, a group that is made keeps nothing but its records.
            group.configured, group.endpoint_epoch, group.shutdown_by = None, 0, None
        return result

    def _existing_member(
        self, group: StreamsGroup, request: StreamsGroupHeartbeat
    ) -> StreamsMember | None:
        """Return the requesting member; None if it is new.

        Raises:
            GroupRefusal: the request is refused.
        """
        if request.epoch == JOIN_EPOCH:
            if len(group.members) >= self._max_size:  # as in Kafka, also for a member of it
                raise GroupRefusal(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    message=f"the group has {len(group.members)} members, and may have no more",
                )
            return group.members.get(request.member_id)
        member = _member_of(group, request)
        current, owned = member.current, request.owned_tasks
        is_retry = (
            request.epoch == current.previous_epoch
            and owned is not None
            and owned.is_within(current.assigned)
        )
        if request.epoch > current.epoch or (request.epoch < current.epoch and not is_retry):
            raise GroupRefusal(
                ErrorCode.FENCED_MEMBER_EPOCH,
                message=f"{member.member_id} is at epoch {current.epoch}, not at {request.epoch}",
            )
        return member

    def _is_changed(
        self,
        group: StreamsGroup,
        previous: StreamsMember | None,
        member: StreamsMember,
        found: ConfiguredTopology,
    ) -> bool:
        """Note topics and settings in the group; return whether a new epoch has to begin."""
        topology = found.topology
        now = found.topics_hash
        validated = topology.epoch if found.is_ready else -1
        standbys = self._settings(group.group_id).values["streams.num.standby.replicas"]
        configs = ((NUM_STANDBYS, standbys),)
        is_changed = (
            previous is None
            or previous.subscription != member.subscription
            or (now, validated, configs)
            != (group.topics_hash, group.validated_epoch, group.configs)
        )
        group.topics_hash, group.validated_epoch, group.configs = now, validated, configs
        return is_changed

    def _delay_first(self, group: StreamsGroup) -> None:
        group_id = group.group_id
        settings = self._settings(group_id)
        delay_ms = settings.milliseconds("streams.initial.rebalance.delay.ms")
        if delay_ms <= 0 or group_id in self._delayed:
            return

        def assign() -> None:
            del self._delayed[group_id]
            if group.members and group.epoch > group.target_epoch:
                group.assign(self._now_ms())
                self._save(group, ignore)

        waiting = self._delayed[group_id] = DelayedFirstAssignment(delay_ms, assign)
        self._heartbeats.try_complete_else_watch(waiting, [GroupJoinKey(group_id)])

    def _assign_if_due(self, group: StreamsGroup) -> Sequence[Status]:
        """Assign a group whose epoch is newer than its target; or return why that has to wait."""
        if group.group_id in self._delayed:
            return [_delayed("the configured initial rebalance delay")]
        if group.target_epoch >= group.epoch:
            return []
        interval_ms = self._settings(group.group_id).milliseconds("streams.assignment.interval.ms")
        now_ms, assigned_ms = self._now_ms(), group.assigned_ms
        # A clock that was set back doesn't hold it up.
        if assigned_ms != _NONE_ASSIGNED and 0 <= now_ms - assigned_ms < interval_ms:
            return [_delayed("the configured assignment interval")]
        group.assign(now_ms)
        return []

    def _reconcile(
        self, group: StreamsGroup, member: StreamsMember, target: Tasks, owned: Tasks | None
    ) -> StreamsMember:
        """Reconcile a member with its target as far as its tasks and others' permit."""
        current = group.next_tasks(member, target, owned)
        return member if current == member.current else self._moved(group, member, current)

    # Offsets.

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        knows_epochs: bool = True,
        topic_partitions: Collection[TopicPartition] = (),
    ) -> None:
        """Check that offsets may be committed, as `ConsumerGroupCoordinator.check_commit`: a
        partition belongs to the active task of the subtopology that reads its topic.

        Raises:
            GroupRefusal: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, or UNSUPPORTED_VERSION.
        """
        group = self.groups[group_id]
        if epoch < 0 and not group.members:
            return
        member = group.members.get(member_id)
        if member is None:
            raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
        if not knows_epochs:
            raise GroupRefusal(ErrorCode.UNSUPPORTED_VERSION)
        if epoch > member.current.epoch:
            raise GroupRefusal(ErrorCode.STALE_MEMBER_EPOCH)
        if epoch < member.current.epoch:
            for topic, number in topic_partitions:
                subtopology = group.topology and group.topology.subtopology_of(topic)
                task = None if subtopology is None else TaskId(subtopology, number)
                assigned_in = task and member.current.assignment_epoch(task)
                if assigned_in is None or epoch < assigned_in:
                    raise GroupRefusal(ErrorCode.STALE_MEMBER_EPOCH)

    def check_fetch(self, group_id: str, member_id: str, epoch: int) -> None:
        """Check that a request may fetch offsets: it names a member of this epoch, or none.

        Raises:
            GroupRefusal: UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH.
        """
        if epoch < 0 and not member_id:
            return
        member = self.groups[group_id].members.get(member_id)
        if member is None:
            raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch != member.current.epoch:
            raise GroupRefusal(ErrorCode.STALE_MEMBER_EPOCH)


def _member_of(group: StreamsGroup, request: StreamsGroupHeartbeat) -> StreamsMember:
    member = group.members.get(request.member_id)
    if member is None:
        raise GroupRefusal(
            ErrorCode.UNKNOWN_MEMBER_ID,
            message=f"{request.member_id} is no member of {request.group_id}",
        )
    return member


def _topology(group: StreamsGroup, requested: Topology | None) -> Topology:
    """Return the topology of a group: its first member's."""
    if group.topology is None:
        assert requested is not None, "a group begins with a member that joins"
        return requested
    known = group.topology
    if requested is None or requested.epoch < known.epoch:
        return known
    if (requested.epoch, requested.by_id) != (known.epoch, known.by_id):
        raise _invalid("Topology updates are not supported yet.")
    return known


def _check_tasks(found: ConfiguredTopology, request: StreamsGroupHeartbeat) -> None:
    if not found.is_ready:
        return
    subtopologies = found.subtopologies or {}
    for task in sorted(task for tasks in request.owned for task in tasks or ()):
        subtopology = subtopologies.get(task.subtopology_id)
        if subtopology is None or not 0 <= task.partition < subtopology.tasks:
            raise _invalid(f"{task.subtopology_id}_{task.partition} is no task of the topology")


def _has_other_tasks(before: StreamsMember, after: StreamsMember) -> bool:
    one, other = before.current, after.current
    return one.assigned != other.assigned or any(
        one.assignment_epoch(task) != other.assignment_epoch(task) for task in other.assigned.active
    )


def _delayed(by: str) -> Status:
    return Status(StatusCode.ASSIGNMENT_DELAYED, f"Assignment delayed due to {by}.")


def _stale_status(group: StreamsGroup, member: StreamsMember) -> Sequence[Status]:
    own = member.subscription.topology_epoch
    if group.topology is None or own >= group.topology.epoch:
        return []
    detail = (
        f"The member's topology epoch {own} is behind the group's topology epoch "
        f"{group.topology.epoch}."
    )
    return [Status(StatusCode.STALE_TOPOLOGY, detail)]


def _topic_status(group: StreamsGroup, found: ConfiguredTopology) -> Sequence[Status]:
    status = [] if found.problem is None else [found.problem]
    if group.shutdown_by is not None:
        detail = (
            f"Streams group member {group.shutdown_by} encountered a fatal error and requested a "
            "shutdown for the entire application."
        )
        status.append(Status(StatusCode.SHUTDOWN_APPLICATION, detail))
    return status
