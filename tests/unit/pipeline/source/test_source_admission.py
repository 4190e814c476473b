"""Admission of offsets: shared among partitions, cut into tasks, written into the checkpoint."""

from __future__ import annotations

import json
import random

from purgatory.kafka import TopicPartition
from purgatory.source.data_source import split
from purgatory.source.options import OffsetRange, from_document, to_document
from purgatory.source.stream_reader import admit

A, B, C = (TopicPartition("orders", number) for number in range(3))


def test_admission_takes_all_records_below_the_limit() -> None:
    assert admit({A: 3, B: 0, C: 4}, 7, 0) == {A: 3, B: 0, C: 4}


def test_admission_gives_the_rest_to_longer_backlogs() -> None:
    assert admit({A: 1_000_000, B: 2, C: 50}, 90, 0) == {A: 44, B: 2, C: 44}


def test_partitions_take_turns_below_one_offset_each() -> None:
    read = dict.fromkeys((A, B, C), 0)
    for _ in range(6):
        for topic_partition, count in admit(
            {topic_partition: 100 - read[topic_partition] for topic_partition in read},
            2,
            sum(read.values()),
        ).items():
            read[topic_partition] += count
    assert read == {A: 4, B: 4, C: 4}


def test_admission_takes_the_limit_or_all_available_records() -> None:
    chance = random.Random(7)
    for _ in range(500):
        backlog = {
            TopicPartition("t", number): chance.choice([0, 1, chance.randrange(1_000)])
            for number in range(chance.randrange(1, 12))
        }
        limit = chance.randrange(1, 2_000)
        admitted = admit(backlog, limit, chance.randrange(1_000))
        assert sum(admitted.values()) == min(limit, sum(backlog.values()))
        assert all(
            0 <= admitted[topic_partition] <= backlog[topic_partition]
            for topic_partition in backlog
        )
        # A partition not read to its end has as much as any other, give or take the remainder.
        cut = [
            admitted[topic_partition]
            for topic_partition in backlog
            if admitted[topic_partition] < backlog[topic_partition]
        ]
        assert not cut or min(cut) >= max(admitted.values()) - 1


def test_batch_is_divided_into_the_least_number_of_ranges() -> None:
    parts = split([OffsetRange(A, 0, 90), OffsetRange(B, 10, 20)], 5, 1_000)
    assert len(parts) >= 5
    assert max(part.end - part.start for part in parts) <= 20
    assert parts[0] == OffsetRange(A, 0, 18)
    assert parts[-1] == OffsetRange(B, 10, 20)


def test_ranges_are_within_their_limit_and_disjoint() -> None:
    parts = split([OffsetRange(A, 5, 1_000)], 1, 64)
    assert all(part.end - part.start <= 64 for part in parts)
    assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert (parts[0].start, parts[-1].end) == (5, 1_000)


def test_empty_range_has_no_slices() -> None:
    assert split([], 4, 10) == []


def test_checkpoint_has_the_same_text_for_the_same_offsets() -> None:
    tenth = TopicPartition("orders", 10)
    other = TopicPartition("bills", 0)
    document = to_document({tenth: 5, B: 7, other: 1})
    assert json.dumps(document) == '{"bills": {"0": 1}, "orders": {"1": 7, "10": 5}}'
    assert from_document(document) == {tenth: 5, B: 7, other: 1}
