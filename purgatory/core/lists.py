"""The watch lists as plain data, as checks look at them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any


def check_lists(
    waiting: Mapping[Hashable, list[Any]], expected: Iterable[tuple[Hashable, Any]], entries: int
) -> None:
    """Assert what holds of all watch lists. O(entries).

    Args:
        waiting: by key, who is on its list.
        expected: each key of each operation that waits, with the operation.
        entries: how many entries are counted.
    """
    found = [(key, id(operation)) for key in waiting for operation in waiting[key]]
    under_its_keys = {(key, id(operation)) for key, operation in expected}
    assert set(found) == under_its_keys, "the lists hold what is pending, under all its keys"
    assert entries == len(found)
    assert all(waiting.values()), "an empty list is dropped"
