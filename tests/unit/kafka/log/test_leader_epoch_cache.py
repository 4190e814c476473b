from __future__ import annotations

import pytest

from purgatory.kafka import EpochEndOffset, LeaderEpochCache
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_EPOCH


def cache_of(*entries: tuple[int, int]) -> LeaderEpochCache:
    cache = LeaderEpochCache()
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)
    return cache


def test_an_empty_cache_knows_no_epoch() -> None:
    cache = LeaderEpochCache()

    assert cache.latest == -1
    assert cache.end_offset_for(0, 10) == UNKNOWN_EPOCH
    assert cache.end_offset_for(-1, 10) == UNKNOWN_EPOCH


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (1, (1, 0)),  # before all known epochs: ends where these begin
        (2, (2, 10)),
        (3, (2, 10)),  # unknown: the epoch below
        (5, (5, 25)),
        (6, (5, 25)),
        (8, (8, 40)),  # the latest ends with the log
        (9, (-1, -1)),  # the asker knows more
        (-1, (-1, -1)),
    ],
)
def test_end_offset_of_each_epoch_is_the_start_of_the_next(
    asked: int, expected: tuple[int, int]
) -> None:
    cache = cache_of((2, 0), (5, 10), (8, 25))

    assert cache.end_offset_for(asked, 40) == EpochEndOffset(*expected)


def test_an_older_or_known_epoch_is_ignored() -> None:
    cache = cache_of((5, 10), (5, 20), (4, 30))

    assert cache.entries() == [(5, 10)]


def test_epoch_without_a_record_is_replaced_by_the_next() -> None:
    cache = cache_of((1, 0), (2, 10), (3, 10))

    assert cache.entries() == [(1, 0), (3, 10)]
    cache._check(0, 10)


def test_truncating_the_end_forgets_epochs_that_begin_there() -> None:
    cache = cache_of((1, 0), (2, 10), (3, 20))

    cache.truncate_from_end(20)
    assert cache.entries() == [(1, 0), (2, 10)]
    assert cache.latest == 2
    cache.truncate_from_end(10)
    assert cache.latest == 1
    cache.truncate_from_end(0)
    assert cache.latest == -1


def test_truncating_the_start_keeps_the_epoch_that_spans_it() -> None:
    cache = cache_of((1, 0), (2, 10), (3, 20))

    cache.truncate_from_start(15)

    assert cache.entries() == [(2, 15), (3, 20)]
    cache._check(15, 30)


def test_truncating_the_start_before_all_epochs_changes_nothing() -> None:
    cache = cache_of((1, 5))

    cache.truncate_from_start(3)

    assert cache.entries() == [(1, 5)]


def test_cleared_cache_has_no_epochs() -> None:
    cache = cache_of((1, 0), (2, 10))

    cache.clear()

    assert cache.entries() == []
    assert cache.latest == -1
