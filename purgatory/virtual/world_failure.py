"""A failure of a test in its world, as another process is told of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from purgatory.virtual.repeated_test import RepeatedTest


@dataclass(frozen=True)
class WorldFailure:
    """A failure.

    Args:
        test: which one failed, and how it is repeated.
        kind: of `kind_of`.
        planned: how many faults the world had, with those that were left out.
        begun: the numbers of those that had begun.
        told: all that is told of it.
    """

    test: RepeatedTest
    kind: str
    planned: int
    begun: Sequence[int]
    told: str

    def as_text(self) -> str:
        """Return it as a text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return what `as_text` made a text of.

        Raises:
            ValueError: it is none, as where whoever wrote it was ended.
        """
        values = json.loads(text)
        return cls(**{**values, "test": RepeatedTest(**values["test"])})
