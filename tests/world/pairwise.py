"""Rows that cover each combination of values of so many dimensions, chosen deterministically.

A greedy cover: each row begins with a combination that no row has yet, and takes for each other
dimension the value with the most new combinations. The best of some tries, by a generator with a
fixed seed, is the next row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from random import Random

Row = Mapping[str, str]
Combination = frozenset[tuple[str, str]]

_TRIES = 24


def combinations_of(row: Row, strength: int) -> Iterator[Combination]:
    """Yield the combinations of so many values that a row covers."""
    yield from map(frozenset, combinations(row.items(), strength))


def possible_combinations(
    dimensions: Mapping[str, Sequence[str]],
    excludes: Callable[[Row], str | None],
    strength: int = 2,
) -> dict[Combination, None]:
    """Return the combinations that some allowed row has, in their order.

    Args:
        dimensions: the values of each.
        excludes: returns why a row, perhaps without some dimensions, can't be; None: it can.
        strength: the number of values of a combination.
    """
    found: dict[Combination, None] = {}
    for names in combinations(dimensions, strength):
        for values in product(*(dimensions[name] for name in names)):
            row = dict(zip(names, values, strict=True))
            if _completed(row, dimensions, excludes, lambda _: 0) is not None:
                found[frozenset(row.items())] = None
    return found


def cover(
    dimensions: Mapping[str, Sequence[str]],
    excludes: Callable[[Row], str | None],
    strength: int = 2,
) -> list[Row]:
    """Return rows that together have each combination of so many values that a row can have."""
    rng = Random(strength)
    uncovered = possible_combinations(dimensions, excludes, strength)
    rows: list[Row] = []
    while uncovered:
        best: Row = {}
        best_gain = -1
        for _ in range(_TRIES):
            row = _drawn(rng, dimensions, excludes, uncovered, strength)
            gain = sum(one in uncovered for one in combinations_of(row, strength))
            if gain > best_gain:
                best, best_gain = row, gain
        rows.append({name: best[name] for name in dimensions})
        for one in combinations_of(best, strength):
            uncovered.pop(one, None)
    return rows


def _drawn(
    rng: Random,
    dimensions: Mapping[str, Sequence[str]],
    excludes: Callable[[Row], str | None],
    uncovered: Mapping[Combination, None],
    strength: int,
) -> Row:
    """Return a row that begins with the first uncovered combination, or with another one."""
    begin = next(iter(uncovered))
    if rng.random() < 0.5:
        begin = rng.choice(list(uncovered))
    shuffled = {name: rng.sample(values, len(values)) for name, values in dimensions.items()}
    order = rng.sample(list(shuffled), len(shuffled))
    row = _completed(
        dict(begin),
        {name: shuffled[name] for name in order},
        excludes,
        lambda partial: _gain(partial, uncovered, strength),
    )
    assert row is not None, "each of the combinations is possible"
    return row


def _gain(partial: Row, uncovered: Mapping[Combination, None], strength: int) -> int:
    """The uncovered combinations with the last value of a row that isn't complete."""
    *earlier, last = partial.items()
    return sum(frozenset((*one, last)) in uncovered for one in combinations(earlier, strength - 1))


def _completed(
    row: dict[str, str],
    dimensions: Mapping[str, Sequence[str]],
    excludes: Callable[[Row], str | None],
    gain: Callable[[Row], int],
) -> Row | None:
    """Complete a row, by the values of the highest gains; None: it can't be."""
    if excludes(row) is not None:
        return None
    missing = next((name for name in dimensions if name not in row), None)
    if missing is None:
        return row
    values = sorted(dimensions[missing], key=lambda value: -gain({**row, missing: value}))
    for value in values:
        found = _completed({**row, missing: value}, dimensions, excludes, gain)
        if found is not None:
            return found
    return None
