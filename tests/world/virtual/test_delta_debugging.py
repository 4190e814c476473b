"""ddmin against brute force on small lists, and the number of its tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.virtual.shrinking import ddmin

_MOST = 7


def _asked_of(
    items: Sequence[int], fails: Callable[[Sequence[int]], bool]
) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """The parts that were yielded, and those that were tested."""
    asked: list[Sequence[int]] = []

    def noted(part: Sequence[int]) -> bool:
        asked.append(part)
        return fails(part)

    return list(ddmin(items, noted)), asked


@st.composite
def _failing(draw: st.DrawFn) -> tuple[list[int], set[tuple[int, ...]]]:
    """A list, and the parts of it that fail: any parts, but always the list itself."""
    items = list(range(draw(st.integers(0, _MOST))))
    parts = [part for size in range(len(items)) for part in combinations(items, size)]
    chosen = draw(st.sets(st.sampled_from(parts))) if parts else set()
    return items, {*chosen, tuple(items)}


@given(_failing())
def test_delta_debugging_result_fails_and_is_minimal(
    case: tuple[list[int], set[tuple[int, ...]]],
) -> None:
    items, failing = case
    found, asked = _asked_of(items, lambda part: tuple(part) in failing)
    assert len(set(map(tuple, asked))) == len(asked), "no part is tested twice"
    steps = [tuple(items), *map(tuple, found)]
    assert all(step in failing for step in steps)
    assert all(set(after) < set(before) for before, after in pairwise(steps))
    last = steps[-1]
    assert not any(tuple(one for one in last if one != left) in failing for left in last)


@given(st.sets(st.integers(0, 30)))
def test_delta_debugging_finds_exactly_the_needed_items(needed: set[int]) -> None:
    found, _ = _asked_of(range(31), lambda part: needed <= set(part))
    assert list([range(31), *found][-1]) == sorted(needed)


@pytest.mark.parametrize("guilty", [0, 511, 512, 1023])
def test_delta_debugging_finds_one_of_many_by_bisection(guilty: int) -> None:
    found, asked = _asked_of(range(1024), lambda part: guilty in part)
    assert list(found[-1]) == [guilty]
    assert len(asked) <= 1 + 2 * 10


def test_delta_debugging_of_no_items_tries_nothing() -> None:
    assert _asked_of([], lambda part: True) == ([], [])
    assert _asked_of([1, 2, 3], lambda part: True) == ([()], [()])


def test_interrupted_delta_debugging_keeps_its_best_result() -> None:
    asked: list[Sequence[int]] = []

    def fails(part: Sequence[int]) -> bool:
        if len(asked) == 4:
            raise KeyboardInterrupt
        asked.append(part)
        return 5 in part

    parts = ddmin(range(8), fails)
    assert [next(parts), next(parts)] == [(4, 5, 6, 7), (4, 5)]
    with pytest.raises(KeyboardInterrupt):
        next(parts)
    assert [*islice(ddmin(range(8), lambda part: 5 in part), 1)] == [(4, 5, 6, 7)]
