"""The part of the proofs that a run makes: one in `make test`, any other by `PURGATORY_SEED`.

`make nightly` takes the number of the commit; `PURGATORY_SEED=N` repeats the part that failed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable


def seed() -> int:
    """Return the seed in the environment; 0: the part that `make test` makes."""
    return int(os.environ.get("PURGATORY_SEED") or 0)


def width(by_day: int, by_night: int) -> int:
    """Return one of these, by whether the environment has a seed, as it has by night."""
    return by_night if seed() else by_day


def draw(names: Iterable[str], share: float, of: str) -> list[str]:
    """Return this share of ``names``, by the seed and the driver's name."""
    rng = random.Random(f"{seed()} {of}")
    return [name for name in names if rng.random() < share]


def failure(part: str, what: str, command: str) -> str:
    """Return the text of a failure, whose first line says what broke and how it is repeated."""
    return f"{part}: {' '.join(what.split())} (seed {seed()}: {command})"
