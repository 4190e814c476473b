"""Which part of the proofs this run makes: another one with each commit.

``PURGATORY_SEED=N`` repeats the part of a run that failed.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path


@cache
def seed() -> int:
    """Return the seed in the environment, or a number made of the commit's hash."""
    given = os.environ.get("PURGATORY_SEED", "")
    if given:
        return int(given)
    asked = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return int(asked.stdout, 16) if asked.returncode == 0 else 0


def draw(names: Iterable[str], share: float, of: str) -> list[str]:
    """Return this share of ``names``, by the seed and the driver's name."""
    rng = random.Random(f"{seed()} {of}")
    return [name for name in names if rng.random() < share]


def failure(part: str, what: str, command: str) -> str:
    """Return the text of a failure, whose first line says what broke and how it is repeated."""
    return f"{part}: {' '.join(what.split())} (seed {seed()}: {command})"
