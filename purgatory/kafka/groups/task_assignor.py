"""Kafka's sticky assignor of tasks, the only one of streams groups.

Ground rules
------------
* Each active task is assigned once, to members of processes with the least tasks per member.
* A member keeps its tasks while it has fewer than its share; it gets tasks next of which it has a
  standby, since it has their state.
* A standby is in a process that has the task in no other way; where there is none, it is left out.

Of equals the first in the order of their ids is taken; in Kafka, that in a hash table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from purgatory.kafka.groups.streams_member import TaskId, Tasks
from purgatory.kafka.groups.streams_topology import ConfiguredSubtopology

ACTIVE, STANDBY = 0, 1


class TaskMember(NamedTuple):
    """A member to which tasks are assigned: its process, and its previous target."""

    process_id: str
    target: Tasks = Tasks()


class _Process:
    """The members of one process, and their new tasks."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.tasks: set[TaskId] = set()

    @property
    def load(self) -> float:
        return len(self.tasks) / len(self.counts)

    def least_loaded(self) -> str:
        return min(self.counts, key=lambda member_id: (self.counts[member_id], member_id))


class _Share:
    """How many tasks a member gets before others do: it falls as members are full."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.size = self._compute()

    def _compute(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0

    def note(self, count: int) -> None:
        """Note that a member has so many tasks now."""
        if count == self.size:
            self._members -= 1
            self._tasks -= count
            self.size = self._compute()


def assign_tasks(
    members: Mapping[str, TaskMember],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    standbys: int,
) -> dict[str, Tasks]:
    """Return the tasks of each member. O(tasks * processes).

    Args:
        members: by id.
        subtopologies: by id.
        standbys: the standby tasks of each task with a state.
    """
    return _Assignment(members, subtopologies, standbys).compute()


class _Assignment:
    def __init__(
        self,
        members: Mapping[str, TaskMember],
        subtopologies: Mapping[str, ConfiguredSubtopology],
        standbys: int,
    ) -> None:
        self._members = members
        self._standbys = standbys
        self._active = [
            TaskId(name, number)
            for name, one in subtopologies.items()
            for number in range(one.tasks)
        ]
        self._stateful = [
            task for task in self._active if subtopologies[task.subtopology_id].is_stateful
        ]
        self._active_share = _Share(len(self._active), len(members))
        total = len(self._active) + len(self._stateful) * standbys
        self._total_share = _Share(total, len(members))
        self._processes: dict[str, _Process] = {}
        self._active_before: dict[TaskId, str] = {}
        self._standby_before: dict[TaskId, list[str]] = {}
        self._assigned: dict[str, tuple[set[TaskId], set[TaskId]]] = {}
        for member_id in sorted(members):
            member = members[member_id]
            self._processes.setdefault(member.process_id, _Process()).counts[member_id] = 0
            self._active_before.update(dict.fromkeys(member.target.active, member_id))
            for task in member.target.standby:
                self._standby_before.setdefault(task, []).append(member_id)
            self._assigned[member_id] = set(), set()
        self._processes = dict(sorted(self._processes.items()))

    def compute(self) -> dict[str, Tasks]:
        self._assign_active()
        if self._standbys:
            self._assign_standbys()
        return {
            member_id: Tasks(frozenset(active), frozenset(standby))
            for member_id, (active, standby) in self._assigned.items()
        }

    def _process(self, member_id: str) -> _Process:
        return self._processes[self._members[member_id].process_id]

    def _count(self, member_id: str) -> int:
        return self._process(member_id).counts[member_id]

    def _add(self, member_id: str, task: TaskId, kind: int) -> None:
        process = self._process(member_id)
        process.tasks.add(task)
        process.counts[member_id] += 1
        self._assigned[member_id][kind].add(task)
        if kind == ACTIVE:
            self._active_share.note(process.counts[member_id])
        self._total_share.note(process.counts[member_id])

    def _assign_active(self) -> None:
        left = sorted(self._active, key=lambda task: (task.partition, task.subtopology_id))
        for before in (self._active_before.get, self._least_loaded_standby):
            kept = []
            for task in left:
                member_id = before(task)
                if member_id is not None and self._count(member_id) < self._active_share.size:
                    self._add(member_id, task, ACTIVE)
                else:
                    kept.append(task)
            left = kept
        for task in sorted(left):
            process = min(self._processes.values(), key=lambda one: one.load)
            self._add(process.least_loaded(), task, ACTIVE)

    def _least_loaded_standby(self, task: TaskId, may_have: bool = True) -> str | None:
        """Return the member with the least tasks that had a standby of a task; of the standbys of
        processes that have the task already, none if it is not to have it."""
        members = self._standby_before.get(task)
        if not members:
            return None
        first = candidate = members[0]
        for member_id in members[1:]:
            process = self._process(member_id)
            is_less = process.load < self._process(candidate).load
            fits = may_have or task not in process.tasks
            if is_less and fits and self._count(member_id) < self._count(candidate):
                candidate = member_id
        return candidate if may_have or task not in self._process(first).tasks else None

    def _assign_standbys(self) -> None:
        left: list[tuple[TaskId, int]] = []
        for task in sorted(
            self._stateful, key=lambda task: (task.partition, task.subtopology_id), reverse=True
        ):
            for number in range(self._standbys):
                member_id = self._former_member(task)
                if member_id is None:
                    left.append((task, self._standbys - number))
                    break
                self._add(member_id, task, STANDBY)
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                free = [one for one in self._processes.values() if task not in one.tasks]
                if not free:
                    break
                self._add(min(free, key=lambda one: one.load).least_loaded(), task, STANDBY)

    def _former_member(self, task: TaskId) -> str | None:
        """Return a member that had a task, active or not, and may have a standby of it."""
        active = self._active_before.get(task, "")
        is_free = active != "" and task not in self._process(active).tasks
        if is_free and self._count(active) < self._total_share.size:
            return active
        standby = self._least_loaded_standby(task, may_have=False)
        if standby is not None and self._count(standby) < self._total_share.size:
            return standby
        return None
