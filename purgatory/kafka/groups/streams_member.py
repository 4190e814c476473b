"""A member of a streams group (KIP-1071): its client, its current tasks, and the next ones.

A task is a partition of a subtopology: active, or a standby, which keeps its state up to date.
Members of one process share its disk.

Ground rules
------------
* All values are immutable.
* A task is active with one member only, also while that is to revoke it; and a process has it once.
* A member comes to the target's epoch when all that it holds is in its target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from purgatory.kafka.groups.consumer_group_member import JOIN_EPOCH, MemberState


class TaskId(NamedTuple):
    """A partition of a subtopology."""

    subtopology_id: str
    partition: int


TaskIds = frozenset[TaskId]
NO_TASKS: TaskIds = frozenset()


def by_subtopology(tasks: Iterable[TaskId]) -> dict[str, list[int]]:
    """Return the partitions of tasks by subtopology, both in order. O(n log n)."""
    partitions: dict[str, list[int]] = {}
    for subtopology_id, partition in sorted(tasks):
        partitions.setdefault(subtopology_id, []).append(partition)
    return partitions


class Tasks(NamedTuple):
    """Tasks of a member. Kafka 4.3 assigns no warmup tasks."""

    active: TaskIds = NO_TASKS
    standby: TaskIds = NO_TASKS
    warmup: TaskIds = NO_TASKS

    def intersects(self, other: Tasks) -> bool:
        """Whether a task is in both, of the same kind."""
        return any(one & two for one, two in zip(self, other, strict=True))

    def is_within(self, other: Tasks) -> bool:
        """Whether all tasks are in the other, of the same kind."""
        return all(one <= two for one, two in zip(self, other, strict=True))


class UserEndpoint(NamedTuple):
    """An address at which a client answers queries of its state."""

    host: str
    port: int


class StreamsClient(NamedTuple):
    """The last report of a member on itself. Times are in milliseconds."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: UserEndpoint | None = None
    client_tags: tuple[tuple[str, str], ...] = ()


class StreamsEpoch(NamedTuple):
    """The epoch of a group.

    Args:
        epoch: the epoch.
        topics_hash: stands for the topics as they were.
        validated_epoch: that of the topology whose topics all are there; -1: they are not.
        configs: the settings by which tasks are assigned.
    """

    epoch: int
    topics_hash: int = 0
    validated_epoch: int = 0
    configs: tuple[tuple[str, str], ...] = ()


class TargetEpoch(NamedTuple):
    """The epoch of a target assignment, and when it was computed (ms since 1970; 0: never)."""

    epoch: int = 0
    assigned_ms: int = 0


class CurrentTasks(NamedTuple):
    """The current tasks of a member.

    Args:
        epoch: that of the target with which it is reconciled.
        previous_epoch: the epoch before, which the member sends if the response was lost.
        state: the progress of its reconciliation.
        assigned: the tasks that it may run.
        revoking: the tasks that it has yet to revoke.
        epochs: the epoch of the target by which it got each of its active tasks; those without one
            have ``epoch``.
    """

    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Tasks = Tasks()
    revoking: Tasks = Tasks()
    epochs: Mapping[TaskId, int] = MappingProxyType({})

    def assignment_epoch(self, task: TaskId) -> int | None:
        """Return the epoch by which the member got one of its active tasks; None for others."""
        if task not in self.assigned.active and task not in self.revoking.active:
            return None
        return self.epochs.get(task, self.epoch)


class StreamsMember(NamedTuple):
    """A member of a streams group."""

    member_id: str
    subscription: StreamsClient
    current: CurrentTasks = CurrentTasks()


def reconciled(
    current: CurrentTasks,
    target: Tasks,
    target_epoch: int,
    owned: Tasks | None,
    is_unreleased: Callable[[TaskId, bool], bool],
) -> CurrentTasks:
    """Return a member's tasks after a heartbeat.

    Args:
        current: those before it.
        target, target_epoch: the target assignment, and its epoch of the group.
        owned: the tasks that the member reports; None: the heartbeat has none.
        is_unreleased: whether a task can't be the member's yet, active or not.

    O(tasks of the member).
    """
    epoch = current.epoch
    if current.state is MemberState.STABLE and epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or owned.intersects(current.revoking):
            return current
        epoch += 1
    pairs = list(zip(current.assigned, target, strict=True))
    retained = Tasks(*(has & wanted for has, wanted in pairs))
    revoking = Tasks(*(has - wanted for has, wanted in pairs))
    if any(revoking) and (owned is None or owned.intersects(revoking)):
        return current._replace(
            epoch=epoch,
            previous_epoch=current.epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=retained,
            revoking=revoking,
        )
    missing = [wanted - has for has, wanted in pairs]
    free = [
        frozenset(task for task in tasks if not is_unreleased(task, kind == 0))
        for kind, tasks in enumerate(missing)
    ]
    kept = {task: current.epochs.get(task, current.epoch) for task in retained.active}
    return CurrentTasks(
        target_epoch,
        current.epoch,
        MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS,
        Tasks(*(had | new for had, new in zip(retained, free, strict=True))),
        Tasks(),
        kept | dict.fromkeys(free[0], target_epoch),
    )
