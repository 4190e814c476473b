"""Where the cluster is known to differ from a real Kafka, by name: rows that show it are red.

A row that no longer shows its difference is red as well, so that an entry goes with its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.world.invariants import Broken
from tests.world.pairwise import Row


class KnownDifference(NamedTuple):
    """One difference.

    Args:
        name: what differs.
        invariant, part: what each of its rows breaks.
        shows: whether a row shows it.
        consequences: the invariants that it may break beside, of the same part.
    """

    name: str
    invariant: str
    part: str
    shows: Callable[[Row], bool]
    consequences: Sequence[str] = ()

    def explains(self, broken: Broken) -> bool:
        """Whether it breaks an invariant so."""
        return broken.part == self.part and broken.invariant in (
            self.invariant,
            *self.consequences,
        )


KNOWN_DIFFERENCES: Final[Sequence[KnownDifference]] = (
    KnownDifference(
        "a broker that is back leads none of its partitions again",
        "preferred leaders lead",
        "controller",
        lambda row: row["fault"] in ("kill-coordinator", "kill-leader", "power-cut"),
    ),
)


class KnownDifferenceError(Exception):
    """A row broke what it is known to break, and nothing else."""


def known_differences(row: Row) -> list[KnownDifference]:
    """Return the differences that a row shows."""
    return [difference for difference in KNOWN_DIFFERENCES if difference.shows(row)]
