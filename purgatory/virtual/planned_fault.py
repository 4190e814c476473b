"""A fault of a world, with the number by which it can be left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from purgatory.virtual.world_clock import US_PER_S


@dataclass(frozen=True)
class PlannedFault:
    """A fault of a world.

    Args:
        number: by which it can be left out.
        at_us: when it begins, in microseconds since the world began.
        text: what it is.
        begin: begins it; where that has to be awaited, it returns a coroutine.
    """

    number: int
    at_us: int
    text: str
    begin: Callable[[], object]

    def __str__(self) -> str:
        return f"{self.number:>4}  {self.at_us / US_PER_S:12.6f} s  {self.text}"
