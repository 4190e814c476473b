"""Watches what the members of a group are given, and what they commit, for what must never be.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purgatory.kafka import TopicPartition
from purgatory.simulation.invariants import Invariants

Term = tuple[int, ...]
"""A generation of one coordinator, in one time of its being that."""


class GroupWatch:
    """Follows one group.

    Args:
        group_id: which.
        invariants: is told of what must never be.
    """

    def __init__(self, group_id: str, invariants: Invariants) -> None:
        self._group_id = group_id
        self._invariants = invariants
        self._owners: dict[Term, dict[TopicPartition, str]] = {}
        self._commits: list[Mapping[TopicPartition, int]] = []
        self._acknowledged: dict[TopicPartition, int] = {}

    def given(self, who: str, term: Term, mine: Sequence[TopicPartition]) -> bool:
        """A member was given partitions: nobody else may have them in the same generation.

        Args:
            who: its instance id, which stays when it comes back, or else its member id.
            term: the generation.
            mine: what it was given.

        Returns:
            Whether it is the first one of that generation.
        """
        is_new = term not in self._owners
        owners = self._owners.setdefault(term, {})
        for place in mine:
            owner = owners.setdefault(place, who)
            if owner != who:
                self._invariants.violated(
                    "two members of a generation have the same partition",
                    f"{place} of group {self._group_id!r}: {owner} and {who}, "
                    f"generation {term[-1]}",
                )
        return is_new

    def commit_sent(self, offsets: Mapping[TopicPartition, int]) -> int:
        """A commit is under way; return its number."""
        self._commits.append(offsets)
        return len(self._commits) - 1

    def commit_acknowledged(self, number: int) -> None:
        """A commit was acknowledged: from now on it, or a later one, must be found."""
        for place in self._commits[number]:
            self._acknowledged[place] = max(number, self._acknowledged.get(place, -1))

    def acknowledged(self) -> Mapping[TopicPartition, int]:
        """Return the number of the last commit of each partition that was acknowledged."""
        return dict(self._acknowledged)

    def fetched(
        self,
        member_id: str,
        offsets: Mapping[TopicPartition, int],
        mine: Sequence[TopicPartition],
        acknowledged: Mapping[TopicPartition, int],
    ) -> None:
        """A member was told how far the group has read; ``acknowledged`` is from when it asked."""
        for place in mine:
            least = acknowledged.get(place)
            if least is None:
                continue
            permitted = {commit[place] for commit in self._commits[least:] if place in commit}
            if offsets.get(place) not in permitted:
                self._invariants.violated(
                    "an acknowledged commit of offsets is lost",
                    f"{place} of group {self._group_id!r}: {self._commits[least][place]} was "
                    f"acknowledged, {member_id} is told {offsets.get(place)}",
                )
