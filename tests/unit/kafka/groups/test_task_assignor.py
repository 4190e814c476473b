"""Tasks of streams groups: each active once, balanced, sticky, and standbys in other processes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from purgatory.kafka.groups.streams_member import TaskId, Tasks
from purgatory.kafka.groups.streams_topology import (
    ConfiguredSubtopology,
    InternalTopic,
    Subtopology,
)
from purgatory.kafka.groups.task_assignor import TaskMember, assign_tasks


def subtopologies(*tasks: int, stateful: bool = True) -> dict[str, ConfiguredSubtopology]:
    changelogs = (InternalTopic("c", 1),) if stateful else ()
    return {
        str(number): ConfiguredSubtopology(
            count, Subtopology(str(number), changelog_topics=changelogs)
        )
        for number, count in enumerate(tasks)
    }


def tasks(*numbers: int) -> frozenset[TaskId]:
    return frozenset(TaskId("0", number) for number in numbers)


def test_tasks_of_one_subtopology_are_dealt_out() -> None:
    members = {name: TaskMember(name) for name in "ab"}
    found = assign_tasks(members, subtopologies(4), 0)
    assert found == {"a": Tasks(tasks(0, 2)), "b": Tasks(tasks(1, 3))}


def test_newcomer_gets_its_share_and_others_keep_theirs() -> None:
    members = {"a": TaskMember("a", Tasks(tasks(0, 1, 2, 3))), "b": TaskMember("b")}
    found = assign_tasks(members, subtopologies(4), 0)
    assert found == {"a": Tasks(tasks(0, 1)), "b": Tasks(tasks(2, 3))}


def test_standby_takes_over_the_tasks_of_a_lost_member() -> None:
    members = {
        "b": TaskMember("b", Tasks(tasks(0), tasks(1))),
        "c": TaskMember("c", Tasks(frozenset(), tasks(2, 3))),
    }
    found = assign_tasks(members, subtopologies(4), 1)
    assert found["c"].active >= tasks(2, 3)
    assert found["b"].active >= tasks(0)


def test_standby_is_in_another_process() -> None:
    members = {name: TaskMember("p") for name in "ab"}
    found = assign_tasks(members, subtopologies(2), 1)
    assert not any(one.standby for one in found.values()), "there is one process alone"
    members["c"] = TaskMember("q")
    found = assign_tasks(members, subtopologies(2), 1)
    assert frozenset[TaskId]().union(*(one.standby for one in found.values())) == tasks(0, 1)


def test_subtopology_without_state_has_no_standbys() -> None:
    members = {name: TaskMember(name) for name in "ab"}
    found = assign_tasks(members, subtopologies(3, stateful=False), 2)
    assert not any(one.standby for one in found.values())


processes = st.lists(st.integers(0, 3), min_size=1, max_size=6)
counts = st.lists(st.integers(1, 6), min_size=1, max_size=3)


@given(processes, processes, counts, counts, st.integers(0, 2))
def test_assignment_follows_another_in_all_cases(
    before: list[int], after: list[int], old: list[int], new: list[int], standbys: int
) -> None:
    members = {f"m{number}": TaskMember(f"p{process}") for number, process in enumerate(before)}
    known = assign_tasks(members, subtopologies(*old), standbys)
    members = {
        f"m{number}": TaskMember(f"p{process}", known.get(f"m{number}", Tasks()))
        for number, process in enumerate(after)
    }
    found = assign_tasks(members, subtopologies(*new), standbys)
    assert found.keys() == members.keys()
    expected = Counter(
        TaskId(str(number), partition)
        for number, count in enumerate(new)
        for partition in range(count)
    )
    assert Counter(task for one in found.values() for task in one.active) == expected
    in_processes = Counter(
        (members[member_id].process_id, task)
        for member_id, one in found.items()
        for task in (*one.active, *one.standby)
    )
    assert all(count == 1 for count in in_processes.values()), "a process has a task once"
    wanted = min(standbys, len({member.process_id for member in members.values()}) - 1)
    assert Counter(task for one in found.values() for task in one.standby) == Counter(
        {task: wanted for task in expected if wanted}
    )
    if not standbys and len(set(after)) == len(after):
        sizes = [len(one.active) for one in found.values()]
        assert max(sizes) - min(sizes) <= 1


def test_assignment_without_changes_stays() -> None:
    members = {name: TaskMember(name) for name in "abc"}
    found = assign_tasks(members, subtopologies(5, 4), 1)
    again = assign_tasks(
        {name: TaskMember(name, found[name]) for name in found}, subtopologies(5, 4), 1
    )
    assert again == found
