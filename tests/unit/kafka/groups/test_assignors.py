"""The assignors against plain statements of their promises, and a search through all loads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.kafka.groups.assignors import (
    ASSIGNORS,
    DEFAULT_ASSIGNOR,
    Assignor,
    Subscriber,
    assign_by_range,
    assign_uniformly,
)
from purgatory.kafka.topic_partition import Partitions, TopicIdPartition

_TOPICS = [UUID(int=number) for number in range(1, 4)]
_partitions = st.frozensets(
    st.builds(TopicIdPartition, st.sampled_from(_TOPICS), st.integers(0, 5)), max_size=6
)
_subscribers = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(
        Subscriber,
        st.frozensets(st.sampled_from(_TOPICS)),
        st.none() | st.sampled_from(["x", "y"]),
        _partitions,
    ),
    max_size=5,
)
_counts = st.dictionaries(st.sampled_from(_TOPICS), st.integers(1, 5))


def _wanted(subscribers: Mapping[str, Subscriber], counts: Mapping[UUID, int]) -> Partitions:
    return frozenset(
        TopicIdPartition(topic_id, number)
        for topic_id, count in counts.items()
        for number in range(count)
        if any(topic_id in one.topic_ids for one in subscribers.values())
    )


def _of_known_topics(
    subscribers: Mapping[str, Subscriber], counts: Mapping[UUID, int]
) -> tuple[dict[str, Subscriber], dict[UUID, int]]:
    """Leave out cases that assignors never get: topics that don't exist, or without subscribers."""
    known = {
        member_id: one._replace(topic_ids=one.topic_ids.intersection(counts))
        for member_id, one in subscribers.items()
    }
    wanted = {topic_id for one in known.values() for topic_id in one.topic_ids}
    return known, {topic_id: count for topic_id, count in counts.items() if topic_id in wanted}


@pytest.mark.parametrize("assign", ASSIGNORS.values())
@given(_subscribers, _counts)
@settings(max_examples=150)
def test_assignor_gives_each_partition_to_one_subscriber(
    assign: Assignor, subscribers: Mapping[str, Subscriber], counts: Mapping[UUID, int]
) -> None:
    subscribers, counts = _of_known_topics(subscribers, counts)
    assigned = assign(subscribers, counts)
    assert assigned.keys() == subscribers.keys()
    given_out = [one for partitions in assigned.values() for one in partitions]
    assert sorted(given_out) == sorted(_wanted(subscribers, counts))
    for member_id, partitions in assigned.items():
        assert {one.topic_id for one in partitions} <= subscribers[member_id].topic_ids
    assert assign(subscribers, counts) == assigned, "the same question has the same answer"


@given(_subscribers, _counts)
@settings(max_examples=150)
def test_uniform_loads_are_as_even_as_possible(
    subscribers: Mapping[str, Subscriber], counts: Mapping[UUID, int]
) -> None:
    subscribers, counts = _of_known_topics(dict(itertools.islice(subscribers.items(), 3)), counts)
    counts = {topic_id: min(count, 3) for topic_id, count in counts.items()}
    loads = sorted(map(len, assign_uniformly(subscribers, counts).values()), reverse=True)
    # Partitions of a topic are alike: how many of each a member has is all that counts.
    ways = [
        [
            split
            for split in itertools.product(range(count + 1), repeat=len(subscribers))
            if sum(split) == count
            and all(
                not share or topic_id in one.topic_ids
                for share, one in zip(split, subscribers.values(), strict=True)
            )
        ]
        for topic_id, count in counts.items()
    ]
    best = min(
        (
            sorted(map(sum, zip(*way, strict=True)), reverse=True)
            for way in itertools.product(*ways)
        ),
        default=[],
    )
    assert loads == (best or [0] * len(subscribers))


@given(_subscribers, _counts)
@settings(max_examples=150)
def test_uniform_keeps_a_balanced_assignment(
    subscribers: Mapping[str, Subscriber], counts: Mapping[UUID, int]
) -> None:
    subscribers, counts = _of_known_topics(subscribers, counts)
    once = assign_uniformly(subscribers, counts)
    after = {
        member_id: one._replace(target=once[member_id]) for member_id, one in subscribers.items()
    }
    assert assign_uniformly(after, counts) == once


@given(st.integers(1, 8), st.integers(1, 30))
def test_uniform_moves_no_more_than_a_new_member_s_share(members: int, count: int) -> None:
    counts = {_TOPICS[0]: count}
    new = Subscriber(frozenset(counts))
    subscribers = {f"m{number}": new for number in range(members)}
    before = assign_uniformly(subscribers, counts)
    subscribers = {
        **{one: new._replace(target=target) for one, target in before.items()},
        "late": new,
    }
    after = assign_uniformly(subscribers, counts)
    moved = sum(len(after[member_id] - before[member_id]) for member_id in before)
    assert moved == 0
    assert len(after["late"]) in (count // (members + 1), -(-count // (members + 1)))


@given(_subscribers, _counts)
@settings(max_examples=150)
def test_ranges_are_consecutive_and_in_order(
    subscribers: Mapping[str, Subscriber], counts: Mapping[UUID, int]
) -> None:
    subscribers, counts = _of_known_topics(subscribers, counts)
    assigned = assign_by_range(subscribers, counts)
    in_order = sorted(
        subscribers,
        key=lambda one: (
            subscribers[one].instance_id is None,
            subscribers[one].instance_id or one,
        ),
    )
    for topic_id, count in counts.items():
        members = [one for one in in_order if topic_id in subscribers[one].topic_ids]
        shares = [
            sorted(one.partition for one in assigned[member] if one.topic_id == topic_id)
            for member in members
        ]
        assert [number for share in shares for number in share] == list(range(count))
        sizes = list(map(len, shares))
        assert sizes == sorted(sizes, reverse=True)
        assert max(sizes) - min(sizes) <= 1


def test_uniform_is_the_default_assignor() -> None:
    assert DEFAULT_ASSIGNOR == "uniform"
    assert set(ASSIGNORS) == {"uniform", "range"}
