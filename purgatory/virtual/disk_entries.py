"""What is in a folder of a virtual disk: now, and what may be left of it when the power is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

N = TypeVar("N")


class DiskEntries(Generic[N]):
    """Files and folders by their names, of which those stay that were forced.

    Args:
        entries: that are there, and were forced.
    """

    def __init__(self, entries: Mapping[str, N] | None = None) -> None:
        self._forced: dict[str, N] = dict(entries or {})
        self._entries = dict(self._forced)
        self._unforced: list[Mapping[str, N | None]] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> N | None:
        """Return what has a name, None for nothing."""
        return self._entries.get(name)

    def change(self, change: Mapping[str, N | None]) -> None:
        """Have names belong to others, or to nothing, all at once: also after a power cut."""
        self._unforced.append(change)
        _apply(change, self._entries)

    def force(self) -> None:
        """Have all entries stay."""
        self._forced = dict(self._entries)
        self._unforced.clear()

    def after_cut(self, chance: random.Random) -> dict[str, N]:
        """Return what a power cut leaves: of the changes to names that hold together, the first."""
        left = dict(self._forced)
        for changes in self._held_together():
            for change in changes[: chance.randint(0, len(changes))]:
                _apply(change, left)
        return left

    def _held_together(self) -> list[list[Mapping[str, N | None]]]:
        """The changes, by the names that were ever exchanged with one another."""
        group_of: dict[str, list[Mapping[str, N | None]]] = {}
        for change in self._unforced:
            for name in change:
                group_of.setdefault(name, [])
        groups_of_change = []
        for change in self._unforced:
            groups_of_change.append(change)
            first, *others = change
            for other in others:
                merged = group_of[other]
                if merged is not group_of[first]:
                    for name, group in group_of.items():
                        if group is merged:
                            group_of[name] = group_of[first]
        for change in groups_of_change:
            group_of[next(iter(change))].append(change)
        return list({id(group): group for group in group_of.values()}.values())


def _apply(change: Mapping[str, N | None], entries: dict[str, N]) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node
