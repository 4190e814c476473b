"""Delta debugging (Zeller and Hildebrandt's ddmin): which few of many causes a failure needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def ever_smaller(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Iterator[Sequence[T]]:
    """Yield ever smaller parts of a list that still fail.

    The last is 1-minimal: without any single one of its items it does not fail. Whoever stops
    asking has the smallest part so far. What ``fails`` raises ends it. No part is asked about
    twice; n items take at most O(n²) questions, and O(log n) where one of them is to blame.

    Args:
        items: that fail together; each differs from the others.
        fails: whether a part fails, which keeps the order.
    """
    passed: set[tuple[T, ...]] = set()

    def fails_newly(part: tuple[T, ...]) -> bool:
        if part in passed:
            return False
        if fails(part):
            return True
        passed.add(part)
        return False

    kept, count = tuple(items), 2
    if kept and fails_newly(()):
        yield ()
        return
    while len(kept) > 1:
        pieces = _pieces(kept, count)
        rests = [_without(kept, one) for one in pieces] if count > 2 else []
        found = next((part for part in [*pieces, *rests] if fails_newly(part)), None)
        if found is not None:
            count = 2 if found in pieces else count - 1
            kept = found
            yield kept
        elif count == len(kept):
            return
        else:
            count = min(2 * count, len(kept))


def _pieces(items: tuple[T, ...], count: int) -> list[tuple[T, ...]]:
    """So many pieces, none of them empty, whose lengths differ by one at most."""
    ends = [len(items) * number // count for number in range(count + 1)]
    return [items[begin:end] for begin, end in pairwise(ends)]


def _without(items: tuple[T, ...], piece: tuple[T, ...]) -> tuple[T, ...]:
    left_out = set(piece)
    return tuple(one for one in items if one not in left_out)
